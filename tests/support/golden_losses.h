// The first ten steps of each model, on numbers that tests/golden/golden_losses.py makes too.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <variant>
#include <vector>

#include "base/file.h"
#include "kernels/layout_optimizer.h"
#include "tests/support/checkout.h"
#include "trainer/data/mnist.h"
#include "trainer/models/model.h"
#include "trainer/models/row_source.h"

namespace muster {

inline constexpr int kGoldenSteps = 10;
inline constexpr int64_t kGoldenBatch = 16;
inline constexpr uint64_t kGoldenDropoutSeed = 7;

// As golden_losses.py has it: numbers in [0, 1), multiples of 2^-24.
inline std::vector<float> GoldenUniform(uint32_t stream, int64_t count) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + stream * 2246822519u;
    x = (x ^ (x >> 15)) * 3266489917u;
    x = (x ^ (x >> 13)) * 668265263u;
    values[i] = static_cast<float>((x ^ (x >> 16)) >> 8) * 0x1p-24f;
  }
  return values;
}

inline std::vector<float> GoldenParameters(const ParameterLayout& layout) {
  std::vector<float> parameters(layout.size());
  for (size_t t = 0; t < layout.tensors().size(); ++t) {
    const LayoutTensor& tensor = layout.tensors()[t];
    const bool is_bias = tensor.spec.shape.size() == 1;
    const auto inputs = static_cast<double>(tensor.size / tensor.spec.shape.back());
    const double scale = is_bias ? 0.1 : 1 / std::sqrt(inputs);
    const std::vector<float> uniform = GoldenUniform(static_cast<uint32_t>(t), tensor.size);
    for (int64_t i = 0; i < tensor.size; ++i) {
      parameters[tensor.offset + i] = static_cast<float>((2 * double{uniform[i]} - 1) * scale);
    }
  }
  return parameters;
}

/// The losses of the first steps of `model`, which was made for kGoldenBatch samples with kGoldenDropoutSeed.
inline std::vector<double> GoldenLosses(Model& model, const OptimizerConfig& optimizer) {
  const ParameterLayout& layout = model.layout();
  std::vector<float> parameters = GoldenParameters(layout), gradient(layout.size());
  LayoutOptimizer update = *LayoutOptimizer::Create(layout, {0, layout.size()}, {{optimizer}});
  std::vector<double> losses;
  for (uint32_t step = 0; step < kGoldenSteps; ++step) {
    const std::vector<float> features = GoldenUniform(1000 + step, kGoldenBatch * kMnistPixels);
    std::vector<int32_t> labels;
    for (const float value : GoldenUniform(2000 + step, kGoldenBatch)) {
      labels.push_back(static_cast<int32_t>(double{value} * 10));
    }
    const Batch batch{.features = features, .labels = labels, .position = int64_t{step} * kGoldenBatch};
    losses.push_back(model.ForwardBackward(parameters, batch, gradient).mean_loss());
    update.Apply(parameters, gradient, 1.0f / kGoldenBatch, parameters);
  }
  return losses;
}

/// A table as a whole, with what golden_losses.py puts into it.
inline std::vector<float> GoldenTable(const TableSpec& table, int number) {
  std::vector<float> values(table.rows * table.width);
  if (table.initializer == Initializer::kZeros) return values;
  const std::vector<float> uniform = GoldenUniform(100 + number, static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((2 * double{uniform[i]} - 1) * 0.1);
  return values;
}

/// As GoldenLosses, of a model of the census. optimizers: by group.
inline std::vector<double> GoldenCensusLosses(Model& model, const std::vector<OptimizerConfig>& optimizers) {
  const ModelPlan& plan = model.plan();
  std::vector<float> parameters = GoldenParameters(plan.layout);
  LayoutOptimizer update = *LayoutOptimizer::Create(plan.layout, {0, plan.layout.size()}, optimizers);
  TableValues tables;
  std::vector<std::unique_ptr<Optimizer>> table_updates;
  for (const TableSpec& table : plan.tables) {
    tables.push_back(GoldenTable(table, static_cast<int>(tables.size())));
    table_updates.push_back(
        MakeOptimizer(optimizers[table.optimizer_group], static_cast<int64_t>(tables.back().size())));
  }
  TableValuesSource source(plan.tables, tables);
  const int64_t id_count = std::ssize(plan.columns);
  RowIndex rows(plan.tables, plan.TableColumns(), kGoldenBatch);
  std::vector<double> losses;
  for (uint32_t step = 0; step < kGoldenSteps; ++step) {
    const std::vector<float> features = GoldenUniform(1000 + step, kGoldenBatch * plan.spec.input.size());
    std::vector<int32_t> labels, ids;
    for (const float value : GoldenUniform(2000 + step, kGoldenBatch)) {
      labels.push_back(static_cast<int32_t>(double{value} * 2));
    }
    const std::vector<float> uniform_ids = GoldenUniform(3000 + step, kGoldenBatch * id_count);
    for (int64_t i = 0; i < std::ssize(uniform_ids); ++i) {
      const int64_t buckets =
          std::visit([](const auto& spec) { return spec.buckets; }, plan.columns[i % id_count].spec);
      ids.push_back(static_cast<int32_t>(double{uniform_ids[i]} * static_cast<double>(buckets)));
    }
    rows.Build(ids, id_count, kGoldenBatch);
    std::vector<float> row_values(rows.size()), gradient(plan.layout.size() + rows.size());
    EXPECT_TRUE(source.ReadRows(rows, row_values).ok());
    const Batch batch{
        .features = features, .ids = ids, .labels = labels, .rows = &rows, .row_values = row_values};
    losses.push_back(model.ForwardBackward(parameters, batch, gradient).mean_loss());
    const std::span<const float> of_layout = std::span(gradient).first(plan.layout.size());
    const std::span<const float> of_rows = std::span(gradient).subspan(plan.layout.size());
    update.Apply(parameters, of_layout, 1.0f / kGoldenBatch, parameters);
    for (int t = 0; t < rows.table_count(); ++t) {
      table_updates[t]->ApplyRows(plan.tables[t].width, rows.ids(t),
                                  of_rows.subspan(rows.range(t).begin, rows.range(t).size()),
                                  1.0f / kGoldenBatch, tables[t]);
    }
  }
  return losses;
}

struct GoldenCase {
  std::string name;  // in golden_losses.json
  ModelConfig model;
  std::optional<OptimizerConfig> optimizer;  // unset: the model's own
  // By how much its losses change where every first parameter is moved by up to half an epsilon, relative to
  // themselves (golden_losses.py --moved); 0 where that is a small part of half an epsilon.
  double moved = 0;
};

inline void PrintTo(const GoldenCase& golden, std::ostream* out) { *out << golden.name; }

/// They are those that PyTorch gives. `name`: in golden_losses.json; tolerance: relative.
inline void ExpectGoldenLosses(const std::string& name, const std::vector<double>& losses, double tolerance) {
  // The variable is for tests that were built elsewhere.
  const char* const elsewhere = std::getenv("MUSTER_GOLDEN_LOSSES");
  const auto text =
      ReadFile(elsewhere != nullptr ? elsewhere : SourcePath("tests/golden/golden_losses.json"));
  ASSERT_TRUE(text.ok()) << text.status();
  const auto golden = nlohmann::json::parse(*text)[name].get<std::vector<double>>();
  ASSERT_EQ(golden.size(), size_t{kGoldenSteps});
  double worst = 0;
  for (int step = 0; step < kGoldenSteps; ++step) {
    EXPECT_NEAR(losses[step], golden[step], tolerance * golden[step]) << "step " << step;
    worst = std::max(worst, std::abs(losses[step] / golden[step] - 1));
  }
  ::testing::Test::RecordProperty("worst_relative_error", std::to_string(worst));
  printf("worst relative error %.2g\n", worst);
}

inline void ExpectGoldenLosses(const GoldenCase& golden_case, Model& model, double tolerance) {
  const OptimizerConfig own = FindModel(golden_case.model)->defaults.optimizer;
  ExpectGoldenLosses(golden_case.name, GoldenLosses(model, golden_case.optimizer.value_or(own)), tolerance);
}

/// `variant`: of wide_deep, which `model` is, made as for GoldenLosses.
inline void ExpectGoldenCensusLosses(const std::string& variant, Model& model, double tolerance) {
  const TrainDefaults defaults = FindModel({.model = "wide_deep", .variant = variant})->defaults;
  std::vector<OptimizerConfig> optimizers = {defaults.optimizer};
  if (defaults.wide_optimizer) optimizers.push_back(*defaults.wide_optimizer);
  ExpectGoldenLosses("wide_deep_" + variant, GoldenCensusLosses(model, optimizers), tolerance);
}

/// The variants of wide_deep that golden_losses.json has.
inline std::vector<std::string> GoldenCensusVariants() {
  return {"tutorial", "dist_test", "minibatch", "wide_only"};
}

inline std::vector<GoldenCase> GoldenCases() {
  return {
      // Both diverge, losses of 77 and 10: a step is too long for pixels of which none is 0.
      GoldenCase{"softmax", {.model = "mnist_softmax"}, {}, 6.1e-7},
      GoldenCase{"softmax_adagrad",
                 {.model = "mnist_softmax"},
                 OptimizerConfig{.kind = OptimizerKind::kAdagrad, .learning_rate = 0.05f},
                 5.6e-8},
      GoldenCase{"mlp", {.model = "mnist_mlp"}, {}},
      GoldenCase{"mlp_nesterov_decay",
                 {.model = "mnist_mlp"},
                 OptimizerConfig{.kind = OptimizerKind::kMomentum,
                                 .learning_rate = 0.01f,
                                 .weight_decay = 0.01f,
                                 .momentum = 0.9f,
                                 .nesterov = true}},
      GoldenCase{"mlp_large_momentum",
                 {.model = "mnist_mlp", .hidden = {512, 512}},
                 OptimizerConfig{.kind = OptimizerKind::kMomentum, .learning_rate = 0.01f, .momentum = 0.9f}},
      GoldenCase{"lenet", {.model = "mnist_cnn", .variant = "lenet"}, {}},
      GoldenCase{"deep", {.model = "mnist_cnn", .variant = "deep"}, {}}};
}

}  // namespace muster
