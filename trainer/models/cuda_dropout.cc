#include "kernels/cuda/dropout.h"

#include "trainer/models/cuda_layer.h"

namespace muster {
namespace {

// The mask is made again in the backward pass: that is cheaper than writing and reading it.
class CudaDropout final : public CudaLayer {
 public:
  CudaDropout(const DropoutSpec& spec, const LayerPlan& plan, uint64_t seed)
      : mask_(seed, spec.rate), units_(plan.input.size()) {}

  absl::Status Forward(const CudaPass& pass, const float*, const float* input, float* output) override {
    if (!pass.training) {
      MUSTER_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(output, input, pass.samples * units_ * sizeof(float),
                                                  cudaMemcpyDeviceToDevice, pass.stream));
      return absl::OkStatus();
    }
    MUSTER_CUDA_RETURN_IF_ERROR(
        cuda::DropoutApply(mask_, pass.position, pass.samples, units_, input, output, pass.stream));
    return absl::OkStatus();
  }

  absl::Status Backward(const CudaPass& pass, const float*, const float*, const float*,
                        float* output_gradient, float*, float* input_gradient) override {
    if (input_gradient == nullptr) return absl::OkStatus();
    MUSTER_CUDA_RETURN_IF_ERROR(cuda::DropoutApply(mask_, pass.position, pass.samples, units_,
                                                   output_gradient, input_gradient, pass.stream));
    return absl::OkStatus();
  }

 private:
  const cuda::DropoutMask mask_;
  const int64_t units_;
};

}  // namespace

std::unique_ptr<CudaLayer> MakeCudaDropout(const DropoutSpec& spec, const LayerPlan& plan, uint64_t seed) {
  return std::make_unique<CudaDropout>(spec, plan, seed);
}

}  // namespace muster
