#include "kernels/cuda/dense.h"
#include "trainer/models/cuda_layer.h"

namespace muster {
namespace {

class CudaDense final : public CudaLayer {
 public:
  CudaDense(const DenseSpec& spec, const LayerPlan& plan, const CudaLayerContext& context)
      : context_(context),
        relu_(spec.activation == Activation::kRelu),
        inputs_(plan.input.size()),
        outputs_(spec.outputs),
        weights_(plan.tensors[0].offset),
        bias_(plan.tensors[1].offset) {}

  // cuBLAS adds a bias by itself. It could apply ReLU too, but says nothing about what becomes of NaN then.
  absl::Status Forward(const CudaPass& pass, const float* parameters, const float* input,
                       float* output) override {
    const float* const bias = parameters + bias_;
    MUSTER_RETURN_IF_ERROR(context_.products->Multiply({.m = pass.samples, .n = outputs_, .k = inputs_},
                                                       input, parameters + weights_, relu_ ? nullptr : bias,
                                                       output, cuda::Lane::kMain, pass.stream));
    if (!relu_) return absl::OkStatus();
    MUSTER_CUDA_RETURN_IF_ERROR(cuda::AddBiasRelu(pass.samples, outputs_, bias, output, pass.stream));
    return absl::OkStatus();
  }

  // The gradient of the parameters and that of the input do not need each other.
  absl::Status Backward(const CudaPass& pass, const float* parameters, const float* input,
                        const float* output, float* output_gradient, float* gradient,
                        float* input_gradient) override {
    float* const bias_gradient = gradient + bias_;
    if (relu_) {
      MUSTER_CUDA_RETURN_IF_ERROR(cuda::ReluBackwardAndColumnSums(
          pass.samples, outputs_, output, output_gradient, bias_gradient, pass.stream));
    }
    MUSTER_ASSIGN_OR_RETURN(const cudaStream_t side, context_.side->Fork(pass.stream));
    if (!relu_) {
      MUSTER_CUDA_RETURN_IF_ERROR(cuda::ReluBackwardAndColumnSums(pass.samples, outputs_, nullptr,
                                                                  output_gradient, bias_gradient, side));
    }
    MUSTER_RETURN_IF_ERROR(context_.products->Multiply(
        {.transpose_a = true, .m = inputs_, .n = outputs_, .k = pass.samples}, input, output_gradient,
        nullptr, gradient + weights_, cuda::Lane::kSide, side));
    if (input_gradient == nullptr) return absl::OkStatus();
    return context_.products->Multiply({.transpose_b = true, .m = pass.samples, .n = inputs_, .k = outputs_},
                                       output_gradient, parameters + weights_, nullptr, input_gradient,
                                       cuda::Lane::kMain, pass.stream);
  }

 private:
  const CudaLayerContext context_;
  const bool relu_;
  const int64_t inputs_;
  const int64_t outputs_;
  const int64_t weights_;  // offsets in the flat buffers
  const int64_t bias_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaLayer>> MakeCudaDense(const DenseSpec& spec, const LayerPlan& plan,
                                                         const CudaLayerContext& context) {
  return std::make_unique<CudaDense>(spec, plan, context);
}

}  // namespace muster
