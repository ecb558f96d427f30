#include "trainer/models/cuda_replica.h"

namespace muster {

absl::StatusOr<std::unique_ptr<CudaReplica>> CudaReplica::Create(
    int device_index, const ParameterLayout& layout, std::span<const OptimizerConfig> optimizers) {
  MUSTER_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_index));
  std::unique_ptr<CudaReplica> replica(new CudaReplica(device_index));
  MUSTER_ASSIGN_OR_RETURN(replica->stream_, cuda::MakeStream());
  MUSTER_ASSIGN_OR_RETURN(replica->parameters_, cuda::ZerosOnDevice<float>(layout.size()));
  MUSTER_ASSIGN_OR_RETURN(replica->gradient_, cuda::ZerosOnDevice<float>(layout.size()));
  MUSTER_ASSIGN_OR_RETURN(replica->optimizer_,
                          CudaOptimizer::Create(layout, optimizers, /*gradient_scale=*/1));
  const int64_t factor_count = replica->optimizer_->factor_count();
  MUSTER_ASSIGN_OR_RETURN(replica->factors_, cuda::PinnedArray<StepFactors>::Create(factor_count));
  MUSTER_ASSIGN_OR_RETURN(replica->device_factors_, cuda::DeviceArray<StepFactors>::Create(factor_count));
  MUSTER_ASSIGN_OR_RETURN(replica->first_bad_, cuda::ZerosOnDevice<int32_t>(1));
  return replica;
}

absl::Status CudaReplica::Load(std::span<float> parameters) {
  MUSTER_CHECK(static_cast<int64_t>(parameters.size()) == parameters_.size());
  MUSTER_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_index_));
  MUSTER_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream()));
  return cuda::WriteToDevice<float>(parameters_.data(), parameters);
}

absl::Status CudaReplica::Store(std::span<float> parameters) {
  MUSTER_CHECK(static_cast<int64_t>(parameters.size()) == parameters_.size());
  MUSTER_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_index_));
  MUSTER_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream()));
  MUSTER_CUDA_RETURN_IF_ERROR(
      cudaMemcpy(parameters.data(), parameters_.data(), parameters_.bytes(), cudaMemcpyDeviceToHost));
  return absl::OkStatus();
}

absl::Status CudaReplica::CopySlot(int slot, std::span<float> values) {
  MUSTER_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_index_));
  return optimizer_->CopySlot(slot, values, stream());
}

absl::Status CudaReplica::SetSlot(int slot, std::span<const float> values) {
  MUSTER_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_index_));
  return optimizer_->SetSlot(slot, values, stream());
}

// Nobody waits here for its end: the next pass comes behind it.
absl::Status CudaReplica::Update(std::span<const float> gradient_sum, float scale) {
  MUSTER_CHECK(static_cast<int64_t>(gradient_sum.size()) == gradient_.size());
  MUSTER_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_index_));
  MUSTER_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream()));  // the update before has read its factors
  if (gradient_sum.data() != gradient_.data()) {
    MUSTER_RETURN_IF_ERROR(cuda::WriteToDevice(gradient_.data(), gradient_sum));
  }
  optimizer_->set_gradient_scale(scale);
  optimizer_->NextFactors(factors_.values());
  MUSTER_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(device_factors_.data(), factors_.data(), factors_.bytes(),
                                              cudaMemcpyHostToDevice, stream()));
  return optimizer_->Update({0, gradient_.size()}, device_factors_.data(), parameters_.data(),
                            gradient_.data(), first_bad_.data(), stream());
}

// On the default stream, for which the pass under way does not wait.
absl::Status CudaReplica::ReadGradient(LayoutRange part, std::span<float> values) {
  MUSTER_CHECK(static_cast<int64_t>(values.size()) == part.size());
  MUSTER_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_index_));
  MUSTER_CUDA_RETURN_IF_ERROR(
      cudaMemcpy(values.data(), gradient_.data() + part.begin, values.size_bytes(), cudaMemcpyDeviceToHost));
  return absl::OkStatus();
}

}  // namespace muster
