#include "kernels/cuda/max_pool.h"

#include "trainer/models/cuda_layer.h"

namespace muster {
namespace {

class CudaMaxPool final : public CudaLayer {
 public:
  static absl::StatusOr<std::unique_ptr<CudaLayer>> Create(const MaxPoolSpec& spec, const LayerPlan& plan,
                                                           const CudaLayerContext& context) {
    std::unique_ptr<CudaMaxPool> layer(new CudaMaxPool(spec, plan));
    MUSTER_ASSIGN_OR_RETURN(layer->winners_, cuda::DeviceArray<uint8_t>::Create(
                                                 layer->Geometry(context.largest_batch).output_count()));
    return layer;
  }

  absl::Status Forward(const CudaPass& pass, const float*, const float* input, float* output) override {
    MUSTER_CUDA_RETURN_IF_ERROR(
        cuda::MaxPoolForward(Geometry(pass.samples), input, output, winners_.data(), pass.stream));
    return absl::OkStatus();
  }

  absl::Status Backward(const CudaPass& pass, const float*, const float*, const float*,
                        float* output_gradient, float*, float* input_gradient) override {
    if (input_gradient == nullptr) return absl::OkStatus();
    MUSTER_CUDA_RETURN_IF_ERROR(cuda::MaxPoolBackward(Geometry(pass.samples), output_gradient,
                                                      winners_.data(), input_gradient, pass.stream));
    return absl::OkStatus();
  }

 private:
  CudaMaxPool(const MaxPoolSpec& spec, const LayerPlan& plan)
      : shape_{.height = plan.input.height,
               .width = plan.input.width,
               .channels = plan.input.channels,
               .window = spec.window} {}

  cuda::PoolGeometry Geometry(int64_t samples) const {
    cuda::PoolGeometry geometry = shape_;
    geometry.samples = samples;
    return geometry;
  }

  const cuda::PoolGeometry shape_;      // without samples
  cuda::DeviceArray<uint8_t> winners_;  // of the last forward pass
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaLayer>> MakeCudaMaxPool(const MaxPoolSpec& spec, const LayerPlan& plan,
                                                           const CudaLayerContext& context) {
  return CudaMaxPool::Create(spec, plan, context);
}

}  // namespace muster
