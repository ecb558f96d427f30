// LayoutOptimizer: the optimizers of a range of a ParameterLayout, each over the tensors of its group.
#pragma once

#include <absl/functional/function_ref.h>

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/optimizer.h"
#include "kernels/parameter_layout.h"

namespace muster {

/// One thread at a time.
class LayoutOptimizer {
 public:
  /// `by_group`: the optimizer of each TensorSpec::optimizer_group. InvalidArgument, the same for every
  /// range: a config that is not valid, a tensor of a group without one.
  static absl::StatusOr<LayoutOptimizer> Create(const ParameterLayout& layout, LayoutRange range,
                                                std::span<const OptimizerConfig> by_group);

  /// One update, as Optimizer::Apply; all spans [range.size()]. Padding is 0 in `updated`, whatever it is in
  /// the others, and however the buffer is cut into ranges the result has the same bits.
  void Apply(std::span<const float> parameters, std::span<const float> gradient_sum, UpdateScale scale,
             std::span<float> updated);

  /// The same, with sums that are made as they are needed: `gradient_sum` is called for ranges of some
  /// thousand floats that follow each other from 0 to range.size(), and what it returns is used until the
  /// next call. On the calling thread.
  using GradientSource = absl::FunctionRef<std::span<const float>(LayoutRange)>;
  void Apply(std::span<const float> parameters, GradientSource gradient_sum, UpdateScale scale,
             std::span<float> updated);

  /// The same in parts, which follow each other from 0 on and end where the caller likes: Begin, then
  /// ApplyPart for each, until one ends at range.size(). Spans as in Apply.
  ///
  /// TakeBack undoes it, before its end or after, if it was begun as one that may be taken back, which costs
  /// a copy of the slots.
  void Begin(UpdateScale scale, bool may_be_taken_back = false);
  void ApplyPart(LayoutRange part, std::span<const float> parameters, GradientSource gradient_sum,
                 std::span<float> updated);
  void TakeBack();

  /// The most slots that one of them has.
  int slot_count() const;

  /// Copies a slot of all of them, [range.size()]; 0 where there is none. Set reads what Copy wrote, also
  /// pieces of it that optimizers of other ranges of the layout did.
  void CopySlot(int slot, std::span<float> values) const;
  void SetSlot(int slot, std::span<const float> values);

  /// As if it had made `updates` updates.
  void SkipTo(uint64_t updates);

 private:
  // Neighbouring tensors of one group with the padding between them. Ranges here count from the start of
  // the whole range.
  struct Stretch {
    LayoutRange range;
    std::unique_ptr<Optimizer> optimizer;
  };

  explicit LayoutOptimizer(int64_t size) : size_(size), applied_(size) {}
  bool is_whole() const { return applied_ == size_; }  // no update has been begun and not ended
  void KeepSlots(const Stretch& stretch, LayoutRange block);
  void ClearPadding(LayoutRange part, std::span<float> updated) const;

  int64_t size_ = 0;
  std::vector<Stretch> stretches_;
  std::vector<LayoutRange> padding_;
  uint64_t updates_ = 0;  // that were begun
  int64_t applied_ = 0;   // floats of the last one
  bool keeps_slots_ = false;
  std::vector<std::vector<float>> slots_before_;  // of what is applied; [range.size()] each
};

}  // namespace muster
