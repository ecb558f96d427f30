#include "trainer/models/cpu_model.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/random.h"
#include "kernels/cross_entropy.h"
#include "trainer/models/cpu_layer.h"

namespace muster {
namespace {

class CpuModel final : public Model {
 public:
  CpuModel(ModelPlan plan, const CpuModelOptions& options)
      : plan_(std::move(plan)), largest_batch_(options.largest_batch) {
    RandomStream seeds(options.seed);
    int64_t widest = 0;
    for (const LayerPlan& layer : plan_.layers) {
      const CpuLayerOptions layer_options{.largest_batch = largest_batch_, .seed = seeds.Next()};
      layers_.push_back(
          std::visit([&](const auto& spec) { return MakeCpuLayer(spec, layer, layer_options); }, layer.spec));
      outputs_.emplace_back(largest_batch_ * layer.output.size());
      widest = std::max(widest, layer.output.size());
    }
    for (std::vector<float>& gradient : gradients_) gradient.resize(largest_batch_ * widest);
  }

  const ModelPlan& plan() const override { return plan_; }

  BatchResult ForwardBackward(std::span<const float> parameters, const Batch& batch,
                              std::span<float> gradient) override {
    MUSTER_CHECK(static_cast<int64_t>(gradient.size()) == plan_.layout.size());
    const LayerPass pass{.samples = batch.size(), .training = true, .position = batch.position};
    Forward(pass, parameters, batch);
    ClearPadding(gradient);
    const int64_t last = static_cast<int64_t>(layers_.size()) - 1;
    std::span<float> output_gradient =
        std::span(gradients_[0]).first(batch.size() * plan_.layers[last].output.size());
    const BatchResult result = Loss(batch, output_gradient);
    for (int64_t i = last; i >= 0; --i) {
      // The data needs no gradient, so the first layer is asked for none. The others alternate between two
      // buffers.
      const std::span<float> input_gradient =
          i == 0
              ? std::span<float>()
              : std::span(gradients_[(last - i + 1) % 2]).first(batch.size() * plan_.layers[i].input.size());
      layers_[i]->Backward(pass, parameters, InputOf(i, batch), OutputOf(i, batch), output_gradient, gradient,
                           input_gradient);
      output_gradient = input_gradient;
    }
    return result;
  }

  BatchResult Evaluate(std::span<const float> parameters, const Batch& batch) override {
    Forward({.samples = batch.size(), .training = false, .position = batch.position}, parameters, batch);
    return Loss(batch, std::span(gradients_[0]).first(batch.size() * plan_.layers.back().output.size()));
  }

 private:
  void Forward(const LayerPass& pass, std::span<const float> parameters, const Batch& batch) {
    MUSTER_CHECK(static_cast<int64_t>(parameters.size()) == plan_.layout.size());
    MUSTER_CHECK(batch.size() <= largest_batch_);
    for (size_t i = 0; i < layers_.size(); ++i) {
      layers_[i]->Forward(pass, parameters, InputOf(i, batch), OutputOf(i, batch));
    }
  }

  BatchResult Loss(const Batch& batch, std::span<float> logits_gradient) {
    const size_t last = layers_.size() - 1;
    const LossResult loss = SoftmaxCrossEntropy(plan_.layers[last].output.size(), OutputOf(last, batch),
                                                batch.labels, logits_gradient);
    return {.loss_sum = loss.loss_sum, .correct = loss.correct, .samples = batch.size()};
  }

  std::span<const float> InputOf(size_t i, const Batch& batch) {
    return i == 0 ? batch.features : OutputOf(i - 1, batch);
  }

  std::span<float> OutputOf(size_t i, const Batch& batch) {
    return std::span(outputs_[i]).first(batch.size() * plan_.layers[i].output.size());
  }

  // Layers write their tensors and nothing between them.
  void ClearPadding(std::span<float> gradient) const {
    for (const LayoutTensor& tensor : plan_.layout.tensors()) {
      const int64_t end = tensor.offset + tensor.size;
      const int64_t padded_end = (end + kBlockFloats - 1) / kBlockFloats * kBlockFloats;
      std::fill(gradient.begin() + end, gradient.begin() + padded_end, 0.0f);
    }
  }

  const ModelPlan plan_;
  const int64_t largest_batch_;
  std::vector<std::unique_ptr<CpuLayer>> layers_;
  std::vector<std::vector<float>> outputs_;  // of each layer: [largest_batch, output size]
  std::vector<float> gradients_[2];          // [largest_batch, widest output]
};

}  // namespace

std::unique_ptr<Model> MakeCpuModel(ModelPlan plan, const CpuModelOptions& options) {
  MUSTER_CHECK(options.largest_batch >= 0);
  return std::make_unique<CpuModel>(std::move(plan), options);
}

}  // namespace muster
