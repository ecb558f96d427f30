// A worker's replica on a CUDA device, for cuda_model, whose passes and the replica's updates follow each
// other on one stream.
#pragma once

#include <memory>
#include <span>

#include "trainer/models/cuda_optimizer.h"
#include "trainer/models/replica.h"

namespace muster {

class CudaReplica final : public Replica {
 public:
  /// On device `device_index`, which exists. Errors as Device::MakeReplica.
  static absl::StatusOr<std::unique_ptr<CudaReplica>> Create(int device_index, const ParameterLayout& layout,
                                                             std::span<const OptimizerConfig> optimizers);

  absl::Status Load(std::span<float> parameters) override;
  absl::Status Store(std::span<float> parameters) override;
  int slot_count() const override { return optimizer_->slot_count(); }
  absl::Status CopySlot(int slot, std::span<float> values) override;
  absl::Status SetSlot(int slot, std::span<const float> values) override;
  void SkipTo(uint64_t updates) override { optimizer_->SkipTo(updates); }
  absl::Status Update(std::span<const float> gradient_sum, float scale) override;
  std::span<float> gradient() override { return {gradient_.data(), static_cast<size_t>(gradient_.size())}; }
  absl::Status ReadGradient(LayoutRange part, std::span<float> values) override;
  bool is_finite() const override { return is_finite_; }

  /// On the device: [layout.size()].
  float* parameters() const { return parameters_.data(); }
  cudaStream_t stream() const { return stream_.get(); }

  /// By whoever makes the gradient, and before it tells of a part.
  void set_is_finite(bool is_finite) { is_finite_ = is_finite; }

 private:
  explicit CudaReplica(int device_index) : device_index_(device_index) {}

  const int device_index_;
  cuda::Stream stream_;
  cuda::DeviceArray<float> parameters_;
  cuda::DeviceArray<float> gradient_;
  std::unique_ptr<CudaOptimizer> optimizer_;
  cuda::PinnedArray<StepFactors> factors_;
  cuda::DeviceArray<StepFactors> device_factors_;
  cuda::DeviceArray<int32_t> first_bad_;  // of updates: nobody reads it
  bool is_finite_ = true;
};

}  // namespace muster
