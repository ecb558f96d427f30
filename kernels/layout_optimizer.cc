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
  MUSTER_CHECK(is_whole());
  keeps_slots_ = false;
  for (const Stretch& stretch : stretches_) {
    const size_t begin = stretch.range.begin, count = stretch.range.size();
    stretch.optimizer->Apply(parameters.subspan(begin, count), gradient_sum.subspan(begin, count), scale,
                             updated.subspan(begin, count));
  }
  ++updates_;
  ClearPadding({0, size_}, updated);
}

void LayoutOptimizer::Apply(std::span<const float> parameters, GradientSource gradient_sum, UpdateScale scale,
                            std::span<float> updated) {
  Begin(scale);
  ApplyPart({0, size_}, parameters, gradient_sum, updated);
}

void LayoutOptimizer::Begin(UpdateScale scale, bool may_be_taken_back) {
  MUSTER_CHECK(is_whole());
  for (const Stretch& stretch : stretches_) stretch.optimizer->Begin(scale);
  ++updates_;
  applied_ = 0;
  keeps_slots_ = may_be_taken_back;
  if (!keeps_slots_ || !slots_before_.empty()) return;
  for (int slot = 0; slot < slot_count(); ++slot) slots_before_.emplace_back(size_);
}

void LayoutOptimizer::ApplyPart(LayoutRange part, std::span<const float> parameters,
                                GradientSource gradient_sum, std::span<float> updated) {
  constexpr int64_t kBlock = 16 << 10;  // floats: with what it is made of, in a core's second cache
  MUSTER_CHECK(static_cast<int64_t>(parameters.size()) == size_ &&
               static_cast<int64_t>(updated.size()) == size_);
  MUSTER_CHECK(part.begin == applied_ && part.end >= part.begin && part.end <= size_);
  for (const Stretch& stretch : stretches_) {
    const int64_t end = std::min(part.end, stretch.range.end);
    for (int64_t begin = std::max(part.begin, stretch.range.begin); begin < end; begin += kBlock) {
      const LayoutRange block{begin, std::min(begin + kBlock, end)};
      if (keeps_slots_) KeepSlots(stretch, block);
      stretch.optimizer->ApplyPart(begin - stretch.range.begin, parameters.subspan(begin, block.size()),
                                   gradient_sum(block), updated.subspan(begin, block.size()));
    }
  }
  ClearPadding(part, updated);
  applied_ = part.end;
}

void LayoutOptimizer::KeepSlots(const Stretch& stretch, LayoutRange block) {
  const auto slots = stretch.optimizer->slots();
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    const auto values = slots[slot].subspan(block.begin - stretch.range.begin, block.size());
    std::copy(values.begin(), values.end(), slots_before_[slot].begin() + block.begin);
  }
}

void LayoutOptimizer::TakeBack() {
  MUSTER_CHECK(keeps_slots_);
  for (const Stretch& stretch : stretches_) {
    const int64_t count = std::min(applied_, stretch.range.end) - stretch.range.begin;
    const auto slots = stretch.optimizer->slots();
    for (size_t slot = 0; slot < slots.size() && count > 0; ++slot) {
      std::copy_n(slots_before_[slot].begin() + stretch.range.begin, count, slots[slot].begin());
    }
  }
  applied_ = size_;
  keeps_slots_ = false;
  SkipTo(updates_ - 1);
}

// In each update, since any of them may be the first into this buffer.
void LayoutOptimizer::ClearPadding(LayoutRange part, std::span<float> updated) const {
  for (const LayoutRange& padding : padding_) {
    const int64_t begin = std::max(padding.begin, part.begin), end = std::min(padding.end, part.end);
    if (begin < end) std::fill(updated.begin() + begin, updated.begin() + end, 0.0f);
  }
}

int LayoutOptimizer::slot_count() const {
  size_t count = 0;
  for (const Stretch& stretch : stretches_) count = std::max(count, stretch.optimizer->slots().size());
  return static_cast<int>(count);
}

void LayoutOptimizer::CopySlot(int slot, std::span<float> values) const {
  MUSTER_CHECK(static_cast<int64_t>(values.size()) == size_ && is_whole());
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
  updates_ = updates;
  for (const Stretch& stretch : stretches_) stretch.optimizer->SkipTo(updates);
}

}  // namespace muster
