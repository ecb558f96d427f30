#include "kernels/dense.h"
#include "trainer/models/cpu_layer.h"

namespace muster {
namespace {

class CpuDense final : public CpuLayer {
 public:
  CpuDense(const DenseSpec& spec, const LayerPlan& plan)
      : activation_(spec.activation),
        inputs_(plan.input.size()),
        outputs_(spec.outputs),
        weights_(plan.tensors[0]),
        bias_(plan.tensors[1]) {}

  void Forward(const LayerPass& pass, std::span<const float> parameters, std::span<const float> input,
               std::span<float> output) override {
    DenseForward(Shape(pass), input, SliceOf(parameters, weights_), SliceOf(parameters, bias_), activation_,
                 output);
  }

  void Backward(const LayerPass& pass, std::span<const float> parameters, std::span<const float> input,
                std::span<const float> output, std::span<float> output_gradient, std::span<float> gradient,
                std::span<float> input_gradient) override {
    if (activation_ == Activation::kRelu) ReluBackward(output, output_gradient);
    DenseBackwardParameters(Shape(pass), input, output_gradient, SliceOf(gradient, weights_),
                            SliceOf(gradient, bias_));
    if (input_gradient.empty()) return;
    DenseBackwardInput(Shape(pass), output_gradient, SliceOf(parameters, weights_), input_gradient);
  }

 private:
  DenseShape Shape(const LayerPass& pass) const {
    return {.batch = pass.samples, .inputs = inputs_, .outputs = outputs_};
  }

  const Activation activation_;
  const int64_t inputs_;
  const int64_t outputs_;
  const LayoutTensor weights_;
  const LayoutTensor bias_;
};

}  // namespace

std::unique_ptr<CpuLayer> MakeCpuLayer(const DenseSpec& spec, const LayerPlan& plan, const CpuLayerOptions&) {
  return std::make_unique<CpuDense>(spec, plan);
}

}  // namespace muster
