#include "kernels/convolution.h"
#include "trainer/models/cpu_layer.h"

namespace muster {
namespace {

class CpuConvolution final : public CpuLayer {
 public:
  CpuConvolution(const ConvolutionShape& shape, const LayerPlan& plan, int64_t largest_batch)
      : convolution_(shape, largest_batch), weights_(plan.tensors[0]), bias_(plan.tensors[1]) {}

  void Forward(const LayerPass& pass, std::span<const float> parameters, std::span<const float> input,
               std::span<float> output) override {
    convolution_.Forward(pass.samples, input, SliceOf(parameters, weights_), SliceOf(parameters, bias_),
                         output);
  }

  void Backward(const LayerPass& pass, std::span<const float> parameters, std::span<const float> input,
                std::span<const float>, std::span<float> output_gradient, std::span<float> gradient,
                std::span<float> input_gradient) override {
    convolution_.Backward(pass.samples, input, SliceOf(parameters, weights_), output_gradient,
                          SliceOf(gradient, weights_), SliceOf(gradient, bias_), input_gradient);
  }

 private:
  Convolution convolution_;
  const LayoutTensor weights_;
  const LayoutTensor bias_;
};

ConvolutionShape ShapeOf(const ConvolutionSpec& spec, const SampleShape& input, int64_t pool_window) {
  return {.height = input.height,
          .width = input.width,
          .channels = input.channels,
          .outputs = spec.outputs,
          .kernel = spec.kernel,
          .padding = spec.padding,
          .activation = spec.activation,
          .pool_window = pool_window};
}

}  // namespace

std::unique_ptr<CpuLayer> MakeCpuLayer(const ConvolutionSpec& spec, const LayerPlan& plan,
                                       const CpuLayerOptions& options) {
  return std::make_unique<CpuConvolution>(ShapeOf(spec, plan.input, 1), plan, options.largest_batch);
}

std::unique_ptr<CpuLayer> MakeCpuPooledConvolution(const ConvolutionSpec& spec, const MaxPoolSpec& pool,
                                                   const LayerPlan& plan, const CpuLayerOptions& options) {
  return std::make_unique<CpuConvolution>(ShapeOf(spec, plan.input, pool.window), plan,
                                          options.largest_batch);
}

}  // namespace muster
