#include "kernels/layout_optimizer.h"

#include <algorithm>

namespace muster {

absl::StatusOr<LayoutOptimizer> LayoutOptimizer::Create(const ParameterLayout& layout, LayoutRange range,
                                                        std::span<const OptimizerConfig> by_group) {
  MUSTER_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= layout.size());
  for (size_t group = 0; group < by_group.size(); ++group) {
    MUSTER_RETURN_IF_ERROR(Annotate(Validate(by_group[group]), absl::StrFormat("optimizer group %d", group)));
  }
  struct GroupRange {
    LayoutRange range;
    int group = 0;
  };
  std::vector<GroupRange> stretches;
  LayoutOptimizer result(range.size());
  const auto clip = [&](int64_t position) {
    return std::clamp(position, range.begin, range.end) - range.begin;
  };
  for (size_t t = 0; t < layout.tensors().size(); ++t) {
    const LayoutTensor& tensor = layout.tensors()[t];
    const int group = tensor.spec.optimizer_group;
    if (group >= static_cast<int>(by_group.size())) {
      return InvalidArgument("tensor '%s' is of optimizer group %d, for which there is no optimizer",
                             tensor.spec.name, group);
    }
    const bool is_last = t + 1 == layout.tensors().size();
    const int64_t next_offset = is_last ? layout.size() : layout.tensors()[t + 1].offset;
    const LayoutRange whole{clip(tensor.offset), clip(next_offset)};
    if (whole.size() == 0) continue;
    const LayoutRange padding{clip(tensor.offset + tensor.size), whole.end};
    if (padding.size() > 0) result.padding_.push_back(padding);
    if (!stretches.empty() && stretches.back().group == group) {
      stretches.back().range.end = whole.end;
    } else {
      stretches.push_back({whole, group});
    }
  }
  for (const auto& [stretch, group] : stretches) {
    result.stretches_.push_back({stretch, MakeOptimizer(by_group[group], stretch.size())});
  }
  return result;
}

void LayoutOptimizer::Apply(std::span<const float> parameters, std::span<const float> gradient_sum,
                            UpdateScale scale, std::span<float> updated) {
  const size_t size = size_;
  MUSTER_CHECK(parameters.size() == size && gradient_sum.size() == size && updated.size() == size);
  for (const Stretch& stretch : stretches_) {
    const size_t begin = stretch.range.begin, count = stretch.range.size();
    stretch.optimizer->Apply(parameters.subspan(begin, count), gradient_sum.subspan(begin, count), scale,
                             updated.subspan(begin, count));
  }
  for (const LayoutRange& padding : padding_) {
    std::fill(updated.begin() + padding.begin, updated.begin() + padding.end, 0.0f);
  }
}

}  // namespace muster
