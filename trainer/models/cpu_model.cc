#include "trainer/models/cpu_model.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/random.h"
#include "kernels/cross_entropy.h"
#include "trainer/models/cpu_columns.h"
#include "trainer/models/cpu_layer.h"

namespace muster {
namespace {

class CpuModel final : public Model {
 public:
  CpuModel(ModelPlan plan, const CpuModelOptions& options)
      : plan_(std::move(plan)), largest_batch_(options.largest_batch) {
    RandomStream seeds(options.seed);  // one for each layer of the plan
    int64_t widest = plan_.outputs;
    if (!plan_.columns.empty()) {
      widest = std::max(widest, ColumnsInputSize(plan_));
      input_.resize(largest_batch_ * ColumnsInputSize(plan_));
    }
    for (size_t i = 0; i < plan_.layers.size(); ++i) {
      const LayerPlan& first = plan_.layers[i];
      const CpuLayerOptions layer_options{.largest_batch = largest_batch_, .seed = seeds.Next()};
      Stage stage{.input_size = first.input.size()};
      if (!first.tensors.empty()) stage.tensors_begin = first.tensors.front().offset;
      if (const MaxPoolSpec* const pool = PoolBehindConvolution(i)) {
        stage.layer =
            MakeCpuPooledConvolution(std::get<ConvolutionSpec>(first.spec), *pool, first, layer_options);
        seeds.Next();
        ++i;
      } else {
        stage.layer = std::visit([&](const auto& spec) { return MakeCpuLayer(spec, first, layer_options); },
                                 first.spec);
      }
      stage.output_size = plan_.layers[i].output.size();
      stage.output.resize(largest_batch_ * stage.output_size);
      widest = std::max(widest, stage.output_size);
      stages_.push_back(std::move(stage));
    }
    if (plan_.wide_bias) logits_.resize(largest_batch_ * plan_.outputs);
    for (std::vector<float>& gradient : gradients_) gradient.resize(largest_batch_ * widest);
  }

  const ModelPlan& plan() const override { return plan_; }

  using Model::ForwardBackward;
  BatchResult ForwardBackward(std::span<const float> parameters, const Batch& batch,
                              std::span<float> gradient, GradientReady ready) override {
    MUSTER_CHECK(static_cast<int64_t>(gradient.size()) == plan_.layout.size() + RowFloats(batch));
    const LayerPass pass{.samples = batch.size(), .training = true, .position = batch.position};
    Forward(pass, parameters, batch);
    const std::span<float> rows_gradient = gradient.subspan(plan_.layout.size());
    gradient = gradient.first(plan_.layout.size());
    ClearPadding(gradient);
    std::fill(rows_gradient.begin(), rows_gradient.end(), 0.0f);
    std::span<float> output_gradient = std::span(gradients_[0]).first(logits().size());
    const BatchResult result = Loss(batch, output_gradient);
    if (plan_.wide_bias) WideGradients(plan_, batch, output_gradient, gradient, rows_gradient);
    const int64_t last = static_cast<int64_t>(stages_.size()) - 1;
    for (int64_t i = last; i >= 0; --i) {
      // The data needs no gradient, so the first layer is asked for none unless there is something to learn
      // below it. The others alternate between two buffers.
      const std::span<float> input_gradient =
          i == 0 && plan_.tables.empty()
              ? std::span<float>()
              : std::span(gradients_[(last - i + 1) % 2]).first(batch.size() * stages_[i].input_size);
      stages_[i].layer->Backward(pass, parameters, InputOf(i, batch), OutputOf(i, batch), output_gradient,
                                 gradient, input_gradient);
      output_gradient = input_gradient;
      if (stages_[i].tensors_begin > 0) ready(stages_[i].tensors_begin);
    }
    if (!stages_.empty() && !plan_.tables.empty()) {
      AddEmbeddingGradients(plan_, batch, output_gradient, rows_gradient);
    }
    return result;
  }

  BatchResult Evaluate(std::span<const float> parameters, const Batch& batch) override {
    Forward({.samples = batch.size(), .training = false, .position = batch.position}, parameters, batch);
    return Loss(batch, std::span(gradients_[0]).first(logits().size()));
  }

  std::span<const float> logits() const override {
    const std::vector<float>& values = plan_.wide_bias ? logits_ : stages_.back().output;
    return std::span(values).first(samples_ * plan_.outputs);
  }

 private:
  // One layer of the plan, or two that run as one.
  struct Stage {
    std::unique_ptr<CpuLayer> layer;
    int64_t input_size = 0;
    int64_t output_size = 0;
    int64_t tensors_begin = 0;  // of its own, behind those of the stages before; 0: it has none, or is first
    std::vector<float> output;  // [largest_batch, output_size]
  };

  // The pooling that follows layer i, if that is a convolution and has one; null otherwise.
  const MaxPoolSpec* PoolBehindConvolution(size_t i) const {
    if (!std::holds_alternative<ConvolutionSpec>(plan_.layers[i].spec)) return nullptr;
    return i + 1 < plan_.layers.size() ? std::get_if<MaxPoolSpec>(&plan_.layers[i + 1].spec) : nullptr;
  }

  void Forward(const LayerPass& pass, std::span<const float> parameters, const Batch& batch) {
    MUSTER_CHECK(static_cast<int64_t>(parameters.size()) == plan_.layout.size());
    MUSTER_CHECK(batch.size() <= largest_batch_);
    MUSTER_CHECK((batch.rows == nullptr ? 0 : batch.rows->table_count()) ==
                     static_cast<int>(plan_.tables.size()) &&
                 static_cast<int64_t>(batch.row_values.size()) == RowFloats(batch));
    samples_ = batch.size();
    if (!plan_.columns.empty() && !stages_.empty()) FillColumnsInput(plan_, batch, InputBuffer(batch));
    for (size_t i = 0; i < stages_.size(); ++i) {
      stages_[i].layer->Forward(pass, parameters, InputOf(i, batch), OutputOf(i, batch));
    }
    if (!plan_.wide_bias) return;
    const std::span<float> sums = std::span(logits_).first(samples_ * plan_.outputs);
    if (stages_.empty()) {
      std::fill(sums.begin(), sums.end(), 0.0f);
    } else {
      std::copy_n(stages_.back().output.begin(), sums.size(), sums.begin());
    }
    AddWide(plan_, parameters, batch, sums);
  }

  BatchResult Loss(const Batch& batch, std::span<float> logits_gradient) {
    LossResult loss;
    switch (plan_.spec.loss) {
      case LossKind::kSoftmaxCrossEntropy:
        loss = SoftmaxCrossEntropy(plan_.outputs, logits(), batch.labels, logits_gradient);
        break;
      case LossKind::kSigmoidCrossEntropy:
        loss = SigmoidCrossEntropy(logits(), batch.labels, logits_gradient);
        break;
    }
    return {.loss_sum = loss.loss_sum, .correct = loss.correct, .samples = batch.size()};
  }

  static int64_t RowFloats(const Batch& batch) { return batch.rows == nullptr ? 0 : batch.rows->size(); }

  std::span<float> InputBuffer(const Batch& batch) {
    return std::span(input_).first(batch.size() * ColumnsInputSize(plan_));
  }

  std::span<const float> InputOf(size_t i, const Batch& batch) {
    if (i > 0) return OutputOf(i - 1, batch);
    return plan_.columns.empty() ? batch.features : InputBuffer(batch);
  }

  std::span<float> OutputOf(size_t i, const Batch& batch) {
    return std::span(stages_[i].output).first(batch.size() * stages_[i].output_size);
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
  std::vector<Stage> stages_;
  int64_t samples_ = 0;              // of the batch that passed last
  std::vector<float> input_;         // [largest_batch, ColumnsInputSize], of models with id columns
  std::vector<float> logits_;        // [largest_batch, outputs], where wide columns add to them
  std::vector<float> gradients_[2];  // [largest_batch, widest]
};

}  // namespace

std::unique_ptr<Model> MakeCpuModel(ModelPlan plan, const CpuModelOptions& options) {
  MUSTER_CHECK(options.largest_batch >= 0);
  return std::make_unique<CpuModel>(std::move(plan), options);
}

}  // namespace muster
