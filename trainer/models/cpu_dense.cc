#include "kernels/dense.h"
#include "trainer/models/cpu_layer.h"

namespace muster {
namespace {

class CpuDense final : public CpuLayer {
 public:
  CpuDense(const DenseSpec& spec, const LayerPlan& plan, int64_t largest_batch)
      : dense_({.batch = largest_batch, .inputs = plan.input.size(), .outputs = spec.outputs},
               spec.activation),
        weights_(plan.tensors[0]),
        bias_(plan.tensors[1]) {}

  void Forward(const LayerPass& pass, std::span<const float> parameters, std::span<const float> input,
               std::span<float> output) override {
    dense_.Forward(pass.samples, input, SliceOf(parameters, weights_), SliceOf(parameters, bias_), output);
  }

  void Backward(const LayerPass& pass, std::span<const float> parameters, std::span<const float> input,
                std::span<const float> output, std::span<float> output_gradient, std::span<float> gradient,
                std::span<float> input_gradient) override {
    dense_.Backward(pass.samples, input, SliceOf(parameters, weights_), output, output_gradient,
                    SliceOf(gradient, weights_), SliceOf(gradient, bias_), input_gradient);
  }

 private:
  Dense dense_;
  const LayoutTensor weights_;
  const LayoutTensor bias_;
};

}  // namespace

std::unique_ptr<CpuLayer> MakeCpuLayer(const DenseSpec& spec, const LayerPlan& plan,
                                       const CpuLayerOptions& options) {
  return std::make_unique<CpuDense>(spec, plan, options.largest_batch);
}

}  // namespace muster
