// LayoutOptimizer on a CUDA device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/runtime.h"
#include "kernels/parameter_layout.h"
#include "kernels/step_factors.h"

namespace muster {

/// The slots of an optimizer over `size` floats, as they are to begin with; null where the kind has none.
struct SlotsOnDevice {
  static absl::StatusOr<SlotsOnDevice> Create(const OptimizerConfig& config, int64_t size);
  cuda::DeviceArray<float> first;
  cuda::DeviceArray<float> second;
};

/// The optimizers of a whole layout, each over the tensors of its group, with their state on the device. The
/// bits are those of LayoutOptimizer. One thread at a time.
class CudaOptimizer {
 public:
  /// `by_group`: as for LayoutOptimizer. gradient_scale: one over the samples of a step. InvalidArgument: a
  /// config that is not valid, a tensor of a group without one.
  static absl::StatusOr<std::unique_ptr<CudaOptimizer>> Create(const ParameterLayout& layout,
                                                               std::span<const OptimizerConfig> by_group,
                                                               float gradient_scale);

  /// StepFactors of one step: one for each group.
  int64_t factor_count() const { return static_cast<int64_t>(sequences_.size()); }

  /// Writes those of the next step to `factors` ([factor_count()]).
  void NextFactors(std::span<StepFactors> factors);

  /// The most slots that one of them has.
  int slot_count() const;

  /// Copy a slot of all of them, as LayoutOptimizer has it, [layout.size()] of the host; when all on `stream`
  /// has ended.
  absl::Status CopySlot(int slot, std::span<float> values, cudaStream_t stream) const;
  absl::Status SetSlot(int slot, std::span<const float> values, cudaStream_t stream);

  /// As if NextFactors had been asked for `updates` of them.
  void SkipTo(uint64_t updates);

  /// Of updates that are enqueued from now on: one over the samples in a gradient sum.
  void set_gradient_scale(float scale) { gradient_scale_ = scale; }

  /// Enqueues one step's update, in place, of the part of parameters [layout.size()] that begins and ends
  /// with tensors or the layout. On the device: gradient sums [layout.size()], padding zero; factors
  /// [factor_count()]; first_bad as FiniteCheck has it.
  absl::Status Update(LayoutRange part, const StepFactors* factors, float* parameters, const float* gradient,
                      int32_t* first_bad, cudaStream_t stream);

 private:
  // Neighbouring tensors of one group with the padding between them.
  struct Stretch {
    LayoutRange range;
    int group = 0;
    SlotsOnDevice slots;
  };

  CudaOptimizer() = default;
  absl::Status AddStretch(LayoutRange range, int group);
  // Null: the stretch has no such slot.
  static float* SlotOf(const Stretch& stretch, int slot) {
    return slot == 0 ? stretch.slots.first.data() : stretch.slots.second.data();
  }

  float gradient_scale_ = 1;
  std::vector<OptimizerConfig> configs_;  // by group
  std::vector<StepFactorSequence> sequences_;
  std::vector<Stretch> stretches_;
  cuda::DeviceArray<int64_t> tensor_ends_;
};

}  // namespace muster
