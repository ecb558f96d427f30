#include "trainer/models/dense_layer.h"

namespace muster {
namespace {

// The part of a flat buffer that a tensor takes.
template <typename T>
std::span<T> Slice(std::span<T> buffer, const LayoutTensor& tensor) {
  return buffer.subspan(tensor.offset, tensor.size);
}

class DenseLayer : public Layer {
 public:
  explicit DenseLayer(const DenseLayerOptions& options) : options_(options) {}

  std::vector<TensorSpec> TensorSpecs() const override {
    return {{.name = options_.name + "/weights",
             .shape = {options_.inputs, options_.outputs},
             .initializer = options_.weights_initializer,
             .scale = options_.weights_scale},
            {.name = options_.name + "/bias", .shape = {options_.outputs}}};
  }

  int64_t input_size() const override { return options_.inputs; }
  int64_t output_size() const override { return options_.outputs; }

  void Forward(int64_t samples, std::span<const LayoutTensor> tensors, std::span<const float> parameters,
               std::span<const float> input, std::span<float> output) const override {
    DenseForward(Shape(samples), input, Slice(parameters, tensors[kWeights]),
                 Slice(parameters, tensors[kBias]), options_.activation, output);
  }

  void Backward(int64_t samples, std::span<const LayoutTensor> tensors, std::span<const float> parameters,
                std::span<const float> input, std::span<const float> output, std::span<float> output_gradient,
                std::span<float> gradient, std::span<float> input_gradient) const override {
    if (options_.activation == Activation::kRelu) ReluBackward(output, output_gradient);
    DenseBackwardParameters(Shape(samples), input, output_gradient, Slice(gradient, tensors[kWeights]),
                            Slice(gradient, tensors[kBias]));
    if (input_gradient.empty()) return;
    DenseBackwardInput(Shape(samples), output_gradient, Slice(parameters, tensors[kWeights]), input_gradient);
  }

 private:
  enum TensorIndex { kWeights = 0, kBias = 1 };

  DenseShape Shape(int64_t samples) const {
    return {.batch = samples, .inputs = options_.inputs, .outputs = options_.outputs};
  }

  const DenseLayerOptions options_;
};

}  // namespace

std::unique_ptr<Layer> MakeDenseLayer(const DenseLayerOptions& options) {
  return std::make_unique<DenseLayer>(options);
}

}  // namespace muster
