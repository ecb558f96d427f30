#include "kernels/cuda/convolution.h"

#include <absl/strings/str_format.h>

#include "kernels/cuda/dense.h"
#include "kernels/cuda/max_pool.h"
#include "trainer/models/cuda_layer.h"

namespace muster {
namespace {

// A convolution alone applies ReLU as it writes its values. With a pooling behind it, that does, at once or
// later, and its backward pass gives the gradient before ReLU.
class CudaConvolution final : public CudaLayer {
 public:
  static absl::StatusOr<std::unique_ptr<CudaLayer>> Create(const ConvolutionSpec& spec,
                                                           const MaxPoolSpec* pool, const LayerPlan& plan,
                                                           const CudaLayerContext& context) {
    std::unique_ptr<CudaConvolution> layer(new CudaConvolution(spec, pool, plan, context));
    const cuda::ConvolutionGeometry& shape = layer->shape_;
    const cuda::ConvolutionGeometry largest = layer->Geometry(context.largest_batch);
    if (cuda::IsTooLarge(largest) || cuda::IsTooLarge(cuda::InputGradientGeometry(largest))) {
      return absl::UnimplementedError(absl::StrFormat(
          "a convolution of %d x %d x %d values to %d x %d x %d for %d samples at once is more "
          "than the 2^30 values that there is code for on CUDA: take smaller batches",
          shape.height, shape.width, shape.channels, shape.output_height, shape.output_width, shape.outputs,
          context.largest_batch));
    }
    MUSTER_ASSIGN_OR_RETURN(layer->turned_, cuda::DeviceArray<float>::Create(shape.terms() * shape.outputs));
    const int64_t scratch = cuda::ConvolutionScratchSize(layer->Geometry(context.largest_training_batch));
    MUSTER_ASSIGN_OR_RETURN(layer->scratch_, cuda::DeviceArray<float>::Create(scratch));
    if (pool == nullptr) return layer;
    const int64_t convolved = shape.output_height * shape.output_width * shape.outputs;
    const int64_t pooled = layer->PoolGeometry(1).output_count();
    if (!layer->PoolsAtOnce()) {
      MUSTER_ASSIGN_OR_RETURN(layer->convolved_,
                              cuda::DeviceArray<float>::Create(context.largest_batch * convolved));
    }
    MUSTER_ASSIGN_OR_RETURN(layer->winners_,
                            cuda::DeviceArray<uint8_t>::Create(context.largest_batch * pooled));
    MUSTER_ASSIGN_OR_RETURN(layer->convolved_gradient_,
                            cuda::DeviceArray<float>::Create(context.largest_training_batch * convolved));
    return layer;
  }

  absl::Status Forward(const CudaPass& pass, const float* parameters, const float* input,
                       float* output) override {
    if (has_pool_ && PoolsAtOnce()) {
      MUSTER_CUDA_RETURN_IF_ERROR(cuda::ConvolutionPoolForward(
          Geometry(pass.samples), context_.math, input, parameters + weights_, parameters + bias_, window_,
          relu_, output, winners_.data(), pass.stream));
      return absl::OkStatus();
    }
    MUSTER_CUDA_RETURN_IF_ERROR(cuda::ConvolutionForward(
        Geometry(pass.samples), context_.math, input, parameters + weights_, parameters + bias_,
        relu_ && !has_pool_, has_pool_ ? convolved_.data() : output, pass.stream));
    if (!has_pool_) return absl::OkStatus();
    MUSTER_CUDA_RETURN_IF_ERROR(cuda::MaxPoolForward(PoolGeometry(pass.samples), convolved_.data(), output,
                                                     winners_.data(), pass.stream));
    return absl::OkStatus();
  }

  absl::Status Backward(const CudaPass& pass, const float* parameters, const float* input,
                        const float* output, float* output_gradient, float* gradient,
                        float* input_gradient) override {
    const cuda::ConvolutionGeometry geometry = Geometry(pass.samples);
    float* convolved_gradient = output_gradient;
    if (has_pool_) {
      convolved_gradient = convolved_gradient_.data();
      MUSTER_CUDA_RETURN_IF_ERROR(cuda::MaxPoolBackward(PoolGeometry(pass.samples), output_gradient,
                                                        winners_.data(), convolved_gradient, pass.stream));
    } else if (relu_) {
      MUSTER_CUDA_RETURN_IF_ERROR(
          cuda::ReluBackward(geometry.pixels() * geometry.outputs, output, convolved_gradient, pass.stream));
    }
    MUSTER_ASSIGN_OR_RETURN(const cudaStream_t side, context_.side->Fork(pass.stream));
    MUSTER_CUDA_RETURN_IF_ERROR(
        cuda::ConvolutionParameterGradient(geometry, context_.math, input, convolved_gradient,
                                           scratch_.data(), gradient + weights_, gradient + bias_, side));
    if (input_gradient == nullptr) return absl::OkStatus();
    MUSTER_CUDA_RETURN_IF_ERROR(
        cuda::TurnWeights(geometry, parameters + weights_, turned_.data(), pass.stream));
    MUSTER_CUDA_RETURN_IF_ERROR(cuda::ConvolutionForward(
        cuda::InputGradientGeometry(geometry), context_.math, convolved_gradient, turned_.data(),
        /*bias=*/nullptr, /*relu=*/false, input_gradient, pass.stream));
    return absl::OkStatus();
  }

 private:
  CudaConvolution(const ConvolutionSpec& spec, const MaxPoolSpec* pool, const LayerPlan& plan,
                  const CudaLayerContext& context)
      : context_(context),
        shape_{.height = plan.input.height,
               .width = plan.input.width,
               .channels = plan.input.channels,
               .output_height = plan.output.height,
               .output_width = plan.output.width,
               .outputs = spec.outputs,
               .kernel = spec.kernel,
               .before = spec.padding == Padding::kSame ? (spec.kernel - 1) / 2 : 0},
        relu_(spec.activation == Activation::kRelu),
        has_pool_(pool != nullptr),
        window_(pool != nullptr ? pool->window : 1),
        weights_(plan.tensors[0].offset),
        bias_(plan.tensors[1].offset) {}

  cuda::ConvolutionGeometry Geometry(int64_t samples) const {
    cuda::ConvolutionGeometry geometry = shape_;
    geometry.samples = samples;
    return geometry;
  }

  bool PoolsAtOnce() const { return cuda::PoolsAtOnce(shape_, window_); }

  cuda::PoolGeometry PoolGeometry(int64_t samples) const {
    return {.samples = samples,
            .height = shape_.output_height,
            .width = shape_.output_width,
            .channels = shape_.outputs,
            .window = window_,
            .relu = relu_};
  }

  const CudaLayerContext context_;
  const cuda::ConvolutionGeometry shape_;  // without samples
  const bool relu_;
  const bool has_pool_;
  const int64_t window_;
  const int64_t weights_;  // offsets in the flat buffers
  const int64_t bias_;
  cuda::DeviceArray<float> turned_;
  cuda::DeviceArray<float> scratch_;    // of the gradient of the parameters
  cuda::DeviceArray<float> convolved_;  // [largest_batch, ...], before ReLU; if a pooling comes later
  cuda::DeviceArray<float> convolved_gradient_;  // [largest_training_batch, ...]
  cuda::DeviceArray<uint8_t> winners_;           // [largest_batch, ...]
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaLayer>> MakeCudaConvolution(const ConvolutionSpec& spec,
                                                               const MaxPoolSpec* pool, const LayerPlan& plan,
                                                               const CudaLayerContext& context) {
  return CudaConvolution::Create(spec, pool, plan, context);
}

}  // namespace muster
