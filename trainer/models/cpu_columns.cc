#include "trainer/models/cpu_columns.h"

#include <algorithm>

#include "kernels/embedding.h"

namespace muster {
namespace {

bool IsWide(const IdColumnPlan& column) { return std::holds_alternative<WideColumnSpec>(column.spec); }

EmbeddingShape ShapeOf(const EmbeddingColumnSpec& spec, const IdColumnPlan& column, int64_t stride) {
  return {.width = spec.width, .stride = stride, .begin = column.input_begin};
}

}  // namespace

int64_t ColumnsInputSize(const ModelPlan& plan) {
  return plan.layers.empty() ? 0 : plan.layers.front().input.size();
}

void FillColumnsInput(const ModelPlan& plan, const Batch& batch, std::span<float> input) {
  const int64_t stride = ColumnsInputSize(plan), features = plan.spec.input.size();
  const int64_t id_count = static_cast<int64_t>(plan.columns.size());
  std::fill(input.begin(), input.end(), 0.0f);
  for (int64_t s = 0; s < batch.size(); ++s) {
    std::copy_n(batch.features.data() + s * features, features, input.data() + s * stride);
  }
  for (size_t i = 0; i < plan.columns.size(); ++i) {
    const IdColumnPlan& column = plan.columns[i];
    if (const auto* const embedding = std::get_if<EmbeddingColumnSpec>(&column.spec)) {
      EmbeddingSum(ShapeOf(*embedding, column, stride), batch.rows->offsets(column.table), batch.row_values,
                   input);
    } else if (const auto* const one_hot = std::get_if<OneHotColumnSpec>(&column.spec)) {
      OneHot({.width = one_hot->buckets, .stride = stride, .begin = column.input_begin},
             batch.ids.subspan(batch.size() > 0 ? i : 0), id_count, input);
    }
  }
}

void AddEmbeddingGradients(const ModelPlan& plan, const Batch& batch, std::span<const float> input_gradient,
                           std::span<float> rows_gradient) {
  const int64_t stride = ColumnsInputSize(plan);
  for (const IdColumnPlan& column : plan.columns) {
    const auto* const embedding = std::get_if<EmbeddingColumnSpec>(&column.spec);
    if (embedding == nullptr) continue;
    EmbeddingSumBackward(ShapeOf(*embedding, column, stride), batch.rows->offsets(column.table),
                         input_gradient, rows_gradient);
  }
}

void AddWide(const ModelPlan& plan, std::span<const float> parameters, const Batch& batch,
             std::span<float> logits) {
  const EmbeddingShape shape{.width = plan.outputs, .stride = plan.outputs};
  const std::span<const float> bias = parameters.subspan(plan.wide_bias->offset, plan.outputs);
  for (int64_t s = 0; s < batch.size(); ++s) {
    for (int64_t i = 0; i < plan.outputs; ++i) logits[s * plan.outputs + i] += bias[i];
  }
  for (const IdColumnPlan& column : plan.columns) {
    if (IsWide(column)) EmbeddingSum(shape, batch.rows->offsets(column.table), batch.row_values, logits);
  }
}

void WideGradients(const ModelPlan& plan, const Batch& batch, std::span<const float> logits_gradient,
                   std::span<float> gradient, std::span<float> rows_gradient) {
  const EmbeddingShape shape{.width = plan.outputs, .stride = plan.outputs};
  const std::span<float> bias = gradient.subspan(plan.wide_bias->offset, plan.outputs);
  std::fill(bias.begin(), bias.end(), 0.0f);
  for (int64_t s = 0; s < batch.size(); ++s) {
    for (int64_t i = 0; i < plan.outputs; ++i) bias[i] += logits_gradient[s * plan.outputs + i];
  }
  for (const IdColumnPlan& column : plan.columns) {
    if (!IsWide(column)) continue;
    EmbeddingSumBackward(shape, batch.rows->offsets(column.table), logits_gradient, rows_gradient);
  }
}

}  // namespace muster
