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
  ClearPadding(updated);
}

void LayoutOptimizer::Apply(std::span<const float> parameters, GradientSource gradient_sum, UpdateScale scale,
                            std::span<float> updated) {
  constexpr int64_t kBlock = 16 << 10;  // floats: with what it is made of, in a core's second cache
  const size_t size = size_;
  MUSTER_CHECK(parameters.size() == size && updated.size() == size);
  for (const Stretch& stretch : stretches_) {
    stretch.optimizer->Begin(scale);
    for (int64_t begin = stretch.range.begin; begin < stretch.range.end; begin += kBlock) {
      const LayoutRange block{begin, std::min(begin + kBlock, stretch.range.end)};
      stretch.optimizer->ApplyPart(begin - stretch.range.begin, parameters.subspan(begin, block.size()),
                                   gradient_sum(block), updated.subspan(begin, block.size()));
    }
  }
  ClearPadding(updated);
}

// In each update, since any of them may be the first into this buffer.
void LayoutOptimizer::ClearPadding(std::span<float> updated) const {
  for (const LayoutRange& padding : padding_) {
    std::fill(updated.begin() + padding.begin, updated.begin() + padding.end, 0.0f);
  }
}

int LayoutOptimizer::slot_count() const {
  size_t count = 0;
  for (const Stretch& stretch : stretches_) count = std::max(count, stretch.optimizer->slots().size());
  return static_cast<int>(count);
}

void LayoutOptimizer::CopySlot(int slot, std::span<float> values) const {
  MUSTER_CHECK(static_cast<int64_t>(values.size()) == size_);
  std::fill(values.begin(), values.end(), 0.0f);
  for (const Stretch& stretch : stretches_) {
    const auto slots = stretch.optimizer->slots();
    if (slot < static_cast<int>(slots.size())) {
      std::copy(slots[slot].begin(), slots[slot].end(), values.begin() + stretch.range.begin);
    }
  }
}

void LayoutOptimizer::SetSlot(int slot, std::span<const float> values) {
  MUSTER_CHECK(static_cast<int64_t>(values.size()) == size_);
  for (const Stretch& stretch : stretches_) {
    const auto slots = stretch.optimizer->slots();
    if (slot < static_cast<int>(slots.size())) {
      std::copy_n(values.begin() + stretch.range.begin, stretch.range.size(), slots[slot].begin());
    }
  }
}

void LayoutOptimizer::SkipTo(uint64_t updates) {
  for (const Stretch& stretch : stretches_) stretch.optimizer->SkipTo(updates);
}

}  // namespace muster
