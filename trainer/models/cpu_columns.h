// The id columns of a model on the CPU: what they give the first layer and the logits, and what comes back.
#pragma once

#include <cstdint>
#include <span>

#include "trainer/data/batch.h"
#include "trainer/models/model_spec.h"

namespace muster {

/// The first layer's input of a model with id columns, [samples, ColumnsInputSize]: the batch's features, and
/// behind them embeddings and one-hot ids.
void FillColumnsInput(const ModelPlan& plan, const Batch& batch, std::span<float> input);

/// Floats of one sample's input.
int64_t ColumnsInputSize(const ModelPlan& plan);

/// From the gradient of the loss with respect to that input: adds that of the embeddings to `rows_gradient`
/// [batch.rows->size()].
void AddEmbeddingGradients(const ModelPlan& plan, const Batch& batch, std::span<const float> input_gradient,
                           std::span<float> rows_gradient);

/// Adds the wide columns and their bias, a slice of `parameters`, to logits [samples, outputs].
void AddWide(const ModelPlan& plan, std::span<const float> parameters, const Batch& batch,
             std::span<float> logits);

/// From the gradient of the loss with respect to the logits: adds that of the wide columns to
/// `rows_gradient`, and writes that of their bias to its place in `gradient`.
void WideGradients(const ModelPlan& plan, const Batch& batch, std::span<const float> logits_gradient,
                   std::span<float> gradient, std::span<float> rows_gradient);

}  // namespace muster
