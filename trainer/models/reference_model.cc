#include "trainer/models/reference_model.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <ranges>
#include <utility>

#include "base/random.h"
#include "kernels/convolution_reference.h"
#include "kernels/dense_reference.h"
#include "kernels/dropout_reference.h"
#include "kernels/max_pool_reference.h"

namespace muster {
namespace {

using Values = std::vector<double>;

// What is known of the batch at every layer.
struct Pass {
  int64_t samples = 0;
  int64_t position = 0;
  bool training = false;
  uint64_t seed = 0;
};

struct Parameters {
  std::span<const double> weights, bias;
};

// A layer's values, and what its backward pass needs besides.
struct Trace {
  Values output;
  std::vector<int64_t> winners;
  Values factors;
};

// What a backward pass gives; weights and bias are empty where the layer has none.
using Gradients = ReferenceGradients;

DenseShape ShapeOf(const DenseSpec& spec, const LayerPlan& plan, int64_t samples) {
  return {.batch = samples, .inputs = plan.input.size(), .outputs = spec.outputs};
}

ConvolutionShape ShapeOf(const ConvolutionSpec& spec, const LayerPlan& plan) {
  return {.height = plan.input.height,
          .width = plan.input.width,
          .channels = plan.input.channels,
          .outputs = spec.outputs,
          .kernel = spec.kernel,
          .padding = spec.padding};
}

MaxPoolShape ShapeOf(const MaxPoolSpec& spec, const LayerPlan& plan) {
  return {.height = plan.input.height,
          .width = plan.input.width,
          .channels = plan.input.channels,
          .window = spec.window};
}

Trace Forward(const DenseSpec& spec, const LayerPlan& plan, const Pass& pass, const Parameters& parameters,
              const Values& input) {
  Trace trace{.output = ReferenceDenseForward(ShapeOf(spec, plan, pass.samples), input, parameters.weights,
                                              parameters.bias)};
  if (spec.activation == Activation::kRelu) ReferenceRelu(trace.output);
  return trace;
}

Gradients Backward(const DenseSpec& spec, const LayerPlan& plan, const Pass& pass,
                   const Parameters& parameters, const Values& input, const Trace& trace, Values gradient) {
  if (spec.activation == Activation::kRelu) ReferenceReluBackward(trace.output, gradient);
  return ReferenceDenseBackward(ShapeOf(spec, plan, pass.samples), input, parameters.weights, gradient);
}

Trace Forward(const ConvolutionSpec& spec, const LayerPlan& plan, const Pass& pass,
              const Parameters& parameters, const Values& input) {
  Trace trace{.output = ReferenceConvolutionForward(ShapeOf(spec, plan), pass.samples, input,
                                                    parameters.weights, parameters.bias)};
  if (spec.activation == Activation::kRelu) ReferenceRelu(trace.output);
  return trace;
}

Gradients Backward(const ConvolutionSpec& spec, const LayerPlan& plan, const Pass& pass,
                   const Parameters& parameters, const Values& input, const Trace& trace, Values gradient) {
  if (spec.activation == Activation::kRelu) ReferenceReluBackward(trace.output, gradient);
  return ReferenceConvolutionBackward(ShapeOf(spec, plan), pass.samples, input, parameters.weights, gradient);
}

Trace Forward(const MaxPoolSpec& spec, const LayerPlan& plan, const Pass& pass, const Parameters&,
              const Values& input) {
  ReferencePooled pooled = ReferenceMaxPoolForward(ShapeOf(spec, plan), pass.samples, input);
  return {.output = std::move(pooled.output), .winners = std::move(pooled.winners)};
}

Gradients Backward(const MaxPoolSpec& spec, const LayerPlan& plan, const Pass& pass, const Parameters&,
                   const Values&, const Trace& trace, const Values& gradient) {
  return {.input = ReferenceMaxPoolBackward(ShapeOf(spec, plan), pass.samples, gradient, trace.winners)};
}

Trace Forward(const DropoutSpec& spec, const LayerPlan& plan, const Pass& pass, const Parameters&,
              const Values& input) {
  Trace trace{.output = input, .factors = Values(input.size(), 1.0)};
  if (!pass.training) return trace;
  const int64_t units = plan.input.size();
  for (size_t i = 0; i < input.size(); ++i) {
    trace.factors[i] =
        ReferenceDropoutFactor({.seed = pass.seed, .rate = spec.rate}, pass.position + i / units, i % units);
    trace.output[i] *= trace.factors[i];
  }
  return trace;
}

Gradients Backward(const DropoutSpec&, const LayerPlan&, const Pass&, const Parameters&, const Values&,
                   const Trace& trace, Values gradient) {
  for (size_t i = 0; i < gradient.size(); ++i) gradient[i] *= trace.factors[i];
  return {.input = std::move(gradient)};
}

Parameters ParametersOf(const LayerPlan& plan, std::span<const double> all) {
  if (plan.tensors.empty()) return {};
  const auto slice = [&](const LayoutTensor& tensor) { return all.subspan(tensor.offset, tensor.size); };
  return {.weights = slice(plan.tensors[0]), .bias = slice(plan.tensors[1])};
}

Values Magnitudes(std::span<const double> values) {
  Values magnitudes(values.begin(), values.end());
  for (double& value : magnitudes) value = std::abs(value);
  return magnitudes;
}

// The longest sum of a layer's backward pass for a batch.
int64_t LongestSum(const LayerPlan& plan, int64_t samples) {
  if (plan.tensors.empty()) return 1;
  const int64_t pixels = plan.output.height * plan.output.width;  // 1 for a dense layer
  const LayoutTensor& weights = plan.tensors[0];
  const int64_t uses_of_an_input = weights.size / weights.spec.shape[weights.spec.shape.size() - 2];
  return std::max(samples * pixels, uses_of_an_input);
}

// Where a gradient of a convolution, or of what lies before one, is zero or small beside others of its
// tensor: Winograd's algorithm (kernels/winograd.h) has errors that are small by norm, not by component. No
// theorem gives one rounding of the largest magnitude; errors are a few tenths of it.
void AddErrorByNorm(const ModelPlan& plan, std::span<const double> magnitudes, std::span<double> tolerance) {
  bool reached = false;
  for (const LayerPlan& layer : std::views::reverse(plan.layers)) {
    reached |= std::holds_alternative<ConvolutionSpec>(layer.spec);
    if (!reached) continue;
    for (const LayoutTensor& tensor : layer.tensors) {
      const double error = FLT_EPSILON * std::ranges::max(magnitudes.subspan(tensor.offset, tensor.size));
      for (double& value : tolerance.subspan(tensor.offset, tensor.size)) value += error;
    }
  }
}

}  // namespace

struct ReferenceModel::Activations {
  Pass pass;
  Values features;
  std::vector<Trace> traces;  // of each layer
  Values logits;
  double loss_sum = 0;
  Values logits_gradient;

  const Values& InputOf(size_t layer) const { return layer == 0 ? features : traces[layer - 1].output; }
};

ReferenceModel::ReferenceModel(ModelPlan plan, uint64_t seed) : plan_(std::move(plan)) {
  RandomStream seeds(seed);
  for (size_t i = 0; i < plan_.layers.size(); ++i) seeds_.push_back(seeds.Next());
}

ReferenceModel::Activations ReferenceModel::Forward(std::span<const double> parameters, const Batch& batch,
                                                    bool training) const {
  Activations activations{.pass = {.samples = batch.size(), .position = batch.position, .training = training},
                          .features = Input(parameters.subspan(plan_.layout.size()), batch)};
  for (size_t i = 0; i < plan_.layers.size(); ++i) {
    const LayerPlan& layer = plan_.layers[i];
    Pass pass = activations.pass;
    pass.seed = seeds_[i];
    activations.traces.push_back(std::visit(
        [&](const auto& spec) {
          return muster::Forward(spec, layer, pass, ParametersOf(layer, parameters), activations.InputOf(i));
        },
        layer.spec));
  }
  activations.logits =
      activations.traces.empty() ? Values(batch.size() * plan_.outputs) : activations.traces.back().output;
  if (plan_.wide_bias) AddWide(parameters, batch, activations.logits);
  activations.loss_sum =
      plan_.spec.loss == LossKind::kSigmoidCrossEntropy
          ? ReferenceSigmoidCrossEntropy(activations.logits, batch.labels, &activations.logits_gradient)
          : ReferenceSoftmaxCrossEntropy(plan_.outputs, activations.logits, batch.labels,
                                         &activations.logits_gradient);
  return activations;
}

// What the first layer takes: the features, and what the id columns give.
std::vector<double> ReferenceModel::Input(std::span<const double> row_values, const Batch& batch) const {
  if (plan_.columns.empty()) return {batch.features.begin(), batch.features.end()};
  Values input;
  const int64_t features = plan_.spec.input.size(), id_count = static_cast<int64_t>(plan_.columns.size());
  for (int64_t s = 0; s < batch.size(); ++s) {
    input.insert(input.end(), batch.features.begin() + s * features,
                 batch.features.begin() + (s + 1) * features);
    for (int64_t c = 0; c < id_count; ++c) {
      const IdColumnPlan& column = plan_.columns[c];
      if (const auto* const embedding = std::get_if<EmbeddingColumnSpec>(&column.spec)) {
        const double* const row = row_values.data() + batch.rows->offsets(column.table)[s];
        input.insert(input.end(), row, row + embedding->width);
      } else if (const auto* const one_hot = std::get_if<OneHotColumnSpec>(&column.spec)) {
        for (int64_t id = 0; id < one_hot->buckets; ++id) {
          input.push_back(id == batch.ids[s * id_count + c] ? 1 : 0);
        }
      }
    }
  }
  return input;
}

void ReferenceModel::AddWide(std::span<const double> parameters, const Batch& batch,
                             std::vector<double>& logits) const {
  const std::span<const double> rows = parameters.subspan(plan_.layout.size());
  for (int64_t s = 0; s < batch.size(); ++s) {
    for (int64_t i = 0; i < plan_.outputs; ++i) {
      double& logit = logits[s * plan_.outputs + i];
      logit += parameters[plan_.wide_bias->offset + i];
      for (const IdColumnPlan& column : plan_.columns) {
        if (!std::holds_alternative<WideColumnSpec>(column.spec)) continue;
        logit += rows[batch.rows->offsets(column.table)[s] + i];
      }
    }
  }
}

// Of the wide columns and their bias from the logits' gradient, of the embeddings from that of the input.
void ReferenceModel::ColumnGradients(const Batch& batch, const std::vector<double>& logits_gradient,
                                     const std::vector<double>& input_gradient,
                                     std::span<double> gradient) const {
  const std::span<double> rows = gradient.subspan(plan_.layout.size());
  for (int64_t s = 0; s < batch.size(); ++s) {
    const double* const of_logits = logits_gradient.data() + s * plan_.outputs;
    for (int64_t i = 0; plan_.wide_bias && i < plan_.outputs; ++i) {
      gradient[plan_.wide_bias->offset + i] += of_logits[i];
    }
    for (const IdColumnPlan& column : plan_.columns) {
      if (column.table < 0) continue;
      const bool is_wide = std::holds_alternative<WideColumnSpec>(column.spec);
      const double* const from =
          is_wide ? of_logits
                  : input_gradient.data() + s * plan_.layers.front().input.size() + column.input_begin;
      double* const row = rows.data() + batch.rows->offsets(column.table)[s];
      for (int64_t i = 0; i < plan_.tables[column.table].width; ++i) row[i] += from[i];
    }
  }
}

std::vector<double> ReferenceModel::Backward(std::span<const double> parameters, const Batch& batch,
                                             const Activations& activations,
                                             std::vector<double> gradient) const {
  Values result(parameters.size());
  const Values logits_gradient = gradient;
  for (size_t i = plan_.layers.size(); i-- > 0;) {
    const LayerPlan& layer = plan_.layers[i];
    Gradients gradients = std::visit(
        [&](const auto& spec) {
          return muster::Backward(spec, layer, activations.pass, ParametersOf(layer, parameters),
                                  activations.InputOf(i), activations.traces[i], gradient);
        },
        layer.spec);
    if (!layer.tensors.empty()) {
      std::copy(gradients.weights.begin(), gradients.weights.end(), result.begin() + layer.tensors[0].offset);
      std::copy(gradients.bias.begin(), gradients.bias.end(), result.begin() + layer.tensors[1].offset);
    }
    gradient = std::move(gradients.input);
  }
  if (!plan_.columns.empty()) ColumnGradients(batch, logits_gradient, gradient, result);
  return result;
}

ReferenceResult ReferenceModel::ForwardBackward(std::span<const double> parameters,
                                                const Batch& batch) const {
  const Activations activations = Forward(parameters, batch, true);
  return {.loss_sum = activations.loss_sum,
          .gradient = Backward(parameters, batch, activations, activations.logits_gradient)};
}

double ReferenceModel::TrainingLoss(std::span<const double> parameters, const Batch& batch) const {
  return Forward(parameters, batch, true).loss_sum;
}

double ReferenceModel::EvaluationLoss(std::span<const double> parameters, const Batch& batch) const {
  return Forward(parameters, batch, false).loss_sum;
}

std::vector<double> ReferenceModel::GradientTolerance(std::span<const double> parameters, const Batch& batch,
                                                      double logits_error) const {
  // The backward pass is linear in the gradient, so run with magnitudes it adds magnitudes up.
  Activations activations = Forward(parameters, batch, true);
  activations.features = Magnitudes(activations.features);
  int64_t terms = plan_.columns.empty() ? 0 : batch.size();  // of a row's sum
  for (size_t i = 0; i < plan_.layers.size(); ++i) {
    activations.traces[i].output = Magnitudes(activations.traces[i].output);
    terms += LongestSum(plan_.layers[i], batch.size());
  }
  Values tolerance =
      Backward(Magnitudes(parameters), batch, activations, Values(activations.logits_gradient.size(), 1.0));
  const Values magnitudes = tolerance;
  for (double& value : tolerance) value *= logits_error + static_cast<double>(terms) * FLT_EPSILON / 2;
  AddErrorByNorm(plan_, magnitudes, tolerance);
  return tolerance;
}

}  // namespace muster
