// Small models with id columns, on odd shapes, and batches for them: for the tests of everything that runs
// plans.
#pragma once

#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/random.h"
#include "kernels/row_index.h"
#include "trainer/models/exact_data.h"
#include "trainer/models/model_spec.h"

namespace muster {

struct ColumnsCase {
  std::string name;
  ModelSpec spec;
};

inline void PrintTo(const ColumnsCase& columns_case, std::ostream* out) { *out << columns_case.name; }

inline std::vector<ColumnsCase> ColumnsCases() {
  const WideColumnSpec wide{.name = "a", .buckets = 7}, crossed{.name = "b", .buckets = 1000};
  const EmbeddingColumnSpec narrow{.name = "c", .buckets = 5, .width = 2},
      usual{.name = "a", .buckets = 30, .width = 8};
  const OneHotColumnSpec one_hot{.name = "d", .buckets = 4};
  const auto sigmoid = LossKind::kSigmoidCrossEntropy;
  const std::vector<LayerSpec> layers = {
      DenseSpec{.name = "hidden", .outputs = 6, .activation = Activation::kRelu},
      DenseSpec{.name = "logit", .outputs = 1}};
  const std::vector<LayerSpec> classes = {DenseSpec{.name = "softmax", .outputs = 3}};
  const SampleShape three{.channels = 3}, none{.channels = 0};
  return {
      {"wide_only", {.input = none, .columns = {wide, crossed}, .loss = sigmoid}},
      {"wide_beside_layers", {.input = three, .columns = {wide, crossed}, .layers = layers, .loss = sigmoid}},
      {"embeddings", {.input = three, .columns = {narrow, usual}, .layers = layers, .loss = sigmoid}},
      {"embeddings_only", {.input = none, .columns = {usual}, .layers = layers, .loss = sigmoid}},
      {"everything",
       {.input = three,
        .columns = {wide, narrow, crossed, one_hot, usual},
        .layers = layers,
        .loss = sigmoid,
        .wide_optimizer_group = 1}},
      {"three_classes",
       {.input = three,
        .columns = {wide, one_hot, crossed, narrow},
        .layers = classes,
        .wide_optimizer_group = 1}}};
}

/// A batch with its rows, in numbers as ExactBatch has them; the first column has one id for all samples.
struct ColumnsBatch {
  ColumnsBatch(const ModelPlan& plan, uint64_t seed, int64_t samples)
      : exact(seed, samples, plan.spec.input.size(), plan.outputs == 1 ? 2 : plan.outputs),
        rows(plan.tables, plan.TableColumns(), samples) {
    RandomStream random(seed);
    for (int64_t s = 0; s < samples; ++s) {
      for (size_t c = 0; c < plan.columns.size(); ++c) {
        const int64_t buckets =
            std::visit([](const auto& spec) { return spec.buckets; }, plan.columns[c].spec);
        ids.push_back(static_cast<int32_t>(c == 0 ? buckets - 1 : random.NextBelow(buckets)));
      }
    }
    rows.Build(ids, static_cast<int64_t>(plan.columns.size()), samples);
    for (int64_t i = 0; i < rows.size(); ++i) {
      values.push_back(static_cast<float>(random.NextBelow(3)) / 2 - 0.5f);
    }
  }
  Batch batch() const {
    Batch batch = exact.batch();
    batch.ids = ids;
    batch.rows = &rows;
    batch.row_values = values;
    return batch;
  }

  /// The parameters with the batch's rows behind them, as ReferenceModel takes them.
  std::vector<double> BehindParameters(std::span<const float> parameters) const {
    std::vector<double> all(parameters.begin(), parameters.end());
    all.insert(all.end(), values.begin(), values.end());
    return all;
  }

  const ExactBatch exact;
  std::vector<int32_t> ids;
  RowIndex rows;
  std::vector<float> values;
};

}  // namespace muster
