#include "trainer/models/sequential.h"

#include <algorithm>
#include <utility>

#include "kernels/dense.h"

namespace muster {
namespace {

class Sequential : public Model {
 public:
  Sequential(std::vector<std::unique_ptr<Layer>> layers, ParameterLayout layout, int64_t largest_batch)
      : layers_(std::move(layers)), layout_(std::move(layout)), largest_batch_(largest_batch) {
    size_t tensor = 0;
    int64_t widest = 0;
    for (const std::unique_ptr<Layer>& layer : layers_) {
      const size_t count = layer->TensorSpecs().size();
      tensors_.push_back(std::span(layout_.tensors()).subspan(tensor, count));
      tensor += count;
      outputs_.emplace_back(largest_batch * layer->output_size());
      widest = std::max(widest, layer->output_size());
    }
    gradients_[0].resize(largest_batch * widest);
    gradients_[1].resize(largest_batch * widest);
  }
  Sequential(const Sequential&) = delete;  // tensors_ points into layout_
  Sequential& operator=(const Sequential&) = delete;

  const ParameterLayout& layout() const override { return layout_; }

  BatchResult ForwardBackward(std::span<const float> parameters, const Batch& batch,
                              std::span<float> gradient) override {
    MUSTER_CHECK(static_cast<int64_t>(gradient.size()) == layout_.size());
    Forward(parameters, batch);
    ClearPadding(gradient);
    const int64_t last = static_cast<int64_t>(layers_.size()) - 1;
    std::span<float> output_gradient =
        std::span(gradients_[0]).first(batch.size() * layers_[last]->output_size());
    const BatchResult result = Loss(batch, output_gradient);
    for (int64_t i = last; i >= 0; --i) {
      // The data needs no gradient, so the first layer is asked for none. The others alternate between two
      // buffers.
      const std::span<float> input_gradient =
          i == 0 ? std::span<float>()
                 : std::span(gradients_[(last - i + 1) % 2]).first(batch.size() * layers_[i]->input_size());
      layers_[i]->Backward(batch.size(), tensors_[i], parameters, InputOf(i, batch), OutputOf(i, batch),
                           output_gradient, gradient, input_gradient);
      output_gradient = input_gradient;
    }
    return result;
  }

  BatchResult Evaluate(std::span<const float> parameters, const Batch& batch) override {
    Forward(parameters, batch);
    return Loss(batch, {});
  }

 private:
  void Forward(std::span<const float> parameters, const Batch& batch) {
    MUSTER_CHECK(static_cast<int64_t>(parameters.size()) == layout_.size());
    MUSTER_CHECK(batch.size() <= largest_batch_);
    for (size_t i = 0; i < layers_.size(); ++i) {
      layers_[i]->Forward(batch.size(), tensors_[i], parameters, InputOf(i, batch), OutputOf(i, batch));
    }
  }

  BatchResult Loss(const Batch& batch, std::span<float> logits_gradient) {
    const size_t last = layers_.size() - 1;
    const LossResult loss = SoftmaxCrossEntropy(layers_[last]->output_size(), OutputOf(last, batch),
                                                batch.labels, logits_gradient);
    return {.loss_sum = loss.loss_sum, .correct = loss.correct, .samples = batch.size()};
  }

  std::span<const float> InputOf(size_t i, const Batch& batch) {
    return i == 0 ? batch.features : OutputOf(i - 1, batch);
  }

  std::span<float> OutputOf(size_t i, const Batch& batch) {
    return std::span(outputs_[i]).first(batch.size() * layers_[i]->output_size());
  }

  // Layers write their tensors and nothing between them.
  void ClearPadding(std::span<float> gradient) const {
    for (const LayoutTensor& tensor : layout_.tensors()) {
      const int64_t end = tensor.offset + tensor.size;
      const int64_t padded_end = (end + kBlockFloats - 1) / kBlockFloats * kBlockFloats;
      std::fill(gradient.begin() + end, gradient.begin() + padded_end, 0.0f);
    }
  }

  const std::vector<std::unique_ptr<Layer>> layers_;
  const ParameterLayout layout_;
  const int64_t largest_batch_;
  std::vector<std::span<const LayoutTensor>> tensors_;  // of each layer
  std::vector<std::vector<float>> outputs_;             // of each layer: [largest_batch, output_size]
  std::vector<float> gradients_[2];                     // [largest_batch, widest output]
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> MakeSequential(std::vector<std::unique_ptr<Layer>> layers,
                                                      int64_t largest_batch) {
  MUSTER_CHECK(!layers.empty() && largest_batch >= 0);
  std::vector<TensorSpec> specs;
  for (size_t i = 0; i < layers.size(); ++i) {
    MUSTER_CHECK(i == 0 || layers[i]->input_size() == layers[i - 1]->output_size());
    for (TensorSpec& spec : layers[i]->TensorSpecs()) specs.push_back(std::move(spec));
  }
  MUSTER_ASSIGN_OR_RETURN(ParameterLayout layout, ParameterLayout::Create(std::move(specs)));
  return std::make_unique<Sequential>(std::move(layers), std::move(layout), largest_batch);
}

}  // namespace muster
