// The first ten steps of each model give the losses that PyTorch gives (tests/golden/golden_losses.py).
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "kernels/layout_optimizer.h"
#include "kernels/threads.h"
#include "trainer/data/mnist.h"
#include "trainer/models/cpu_model.h"
#include "trainer/models/model.h"
#include "trainer/models/row_source.h"

namespace muster {
namespace {

constexpr int kSteps = 10;
constexpr int64_t kBatch = 16;
constexpr uint64_t kDropoutSeed = 7;

// As golden_losses.py has it: numbers in [0, 1), multiples of 2^-24.
std::vector<float> Uniform(uint32_t stream, int64_t count) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + stream * 2246822519u;
    x = (x ^ (x >> 15)) * 3266489917u;
    x = (x ^ (x >> 13)) * 668265263u;
    values[i] = static_cast<float>((x ^ (x >> 16)) >> 8) * 0x1p-24f;
  }
  return values;
}

std::vector<float> Parameters(const ParameterLayout& layout) {
  std::vector<float> parameters(layout.size());
  for (size_t t = 0; t < layout.tensors().size(); ++t) {
    const LayoutTensor& tensor = layout.tensors()[t];
    const bool is_bias = tensor.spec.shape.size() == 1;
    const auto inputs = static_cast<double>(tensor.size / tensor.spec.shape.back());
    const double scale = is_bias ? 0.1 : 1 / std::sqrt(inputs);
    const std::vector<float> uniform = Uniform(static_cast<uint32_t>(t), tensor.size);
    for (int64_t i = 0; i < tensor.size; ++i) {
      parameters[tensor.offset + i] = static_cast<float>((2 * double{uniform[i]} - 1) * scale);
    }
  }
  return parameters;
}

std::vector<double> MnistLosses(const ModelConfig& config, const OptimizerConfig& optimizer) {
  SetKernelThreads(1);
  const std::unique_ptr<Model> model =
      MakeCpuModel(*PlanModel(FindModel(config)->spec), {.largest_batch = kBatch, .seed = kDropoutSeed});
  const ParameterLayout& layout = model->layout();
  std::vector<float> parameters = Parameters(layout), gradient(layout.size());
  LayoutOptimizer update = *LayoutOptimizer::Create(layout, {0, layout.size()}, {{optimizer}});
  std::vector<double> losses;
  for (uint32_t step = 0; step < kSteps; ++step) {
    const std::vector<float> features = Uniform(1000 + step, kBatch * kMnistPixels);
    std::vector<int32_t> labels;
    for (const float value : Uniform(2000 + step, kBatch)) {
      labels.push_back(static_cast<int32_t>(double{value} * 10));
    }
    const Batch batch{.features = features, .labels = labels, .position = int64_t{step} * kBatch};
    losses.push_back(model->ForwardBackward(parameters, batch, gradient).mean_loss());
    update.Apply(parameters, gradient, 1.0f / kBatch, parameters);
  }
  return losses;
}

int64_t Buckets(const IdColumnPlan& column) {
  return std::visit([](const auto& spec) { return spec.buckets; }, column.spec);
}

// A table as a whole, with what golden_losses.py puts into it.
std::vector<float> TableValuesOf(const TableSpec& table, int number) {
  std::vector<float> values(table.rows * table.width);
  if (table.initializer == Initializer::kZeros) return values;
  const std::vector<float> uniform = Uniform(100 + number, static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((2 * double{uniform[i]} - 1) * 0.1);
  return values;
}

std::vector<double> CensusLosses(const ModelConfig& config) {
  SetKernelThreads(1);
  const ModelRecipe recipe = *FindModel(config);
  const std::unique_ptr<Model> model = MakeCpuModel(*PlanModel(recipe.spec), {.largest_batch = kBatch});
  const ModelPlan& plan = model->plan();
  std::vector<OptimizerConfig> optimizers = {recipe.defaults.optimizer};
  if (recipe.defaults.wide_optimizer) optimizers.push_back(*recipe.defaults.wide_optimizer);
  std::vector<float> parameters = Parameters(plan.layout);
  LayoutOptimizer update = *LayoutOptimizer::Create(plan.layout, {0, plan.layout.size()}, optimizers);
  TableValues tables;
  std::vector<std::unique_ptr<Optimizer>> table_updates;
  for (const TableSpec& table : plan.tables) {
    tables.push_back(TableValuesOf(table, static_cast<int>(tables.size())));
    table_updates.push_back(
        MakeOptimizer(optimizers[table.optimizer_group], static_cast<int64_t>(tables.back().size())));
  }
  TableValuesSource source(plan.tables, tables);
  const int64_t id_count = std::ssize(plan.columns);
  RowIndex rows(plan.tables, plan.TableColumns(), kBatch);
  std::vector<double> losses;
  for (uint32_t step = 0; step < kSteps; ++step) {
    const std::vector<float> features = Uniform(1000 + step, kBatch * plan.spec.input.size());
    std::vector<int32_t> labels, ids;
    for (const float value : Uniform(2000 + step, kBatch)) {
      labels.push_back(static_cast<int32_t>(double{value} * 2));
    }
    const std::vector<float> uniform_ids = Uniform(3000 + step, kBatch * id_count);
    for (int64_t i = 0; i < std::ssize(uniform_ids); ++i) {
      ids.push_back(static_cast<int32_t>(double{uniform_ids[i]} *
                                         static_cast<double>(Buckets(plan.columns[i % id_count]))));
    }
    rows.Build(ids, id_count, kBatch);
    std::vector<float> row_values(rows.size()), gradient(plan.layout.size() + rows.size());
    EXPECT_TRUE(source.ReadRows(rows, row_values).ok());
    const Batch batch{
        .features = features, .ids = ids, .labels = labels, .rows = &rows, .row_values = row_values};
    losses.push_back(model->ForwardBackward(parameters, batch, gradient).mean_loss());
    const std::span<const float> of_layout = std::span(gradient).first(plan.layout.size());
    const std::span<const float> of_rows = std::span(gradient).subspan(plan.layout.size());
    update.Apply(parameters, of_layout, 1.0f / kBatch, parameters);
    for (int t = 0; t < rows.table_count(); ++t) {
      table_updates[t]->ApplyRows(plan.tables[t].width, rows.ids(t),
                                  of_rows.subspan(rows.range(t).begin, rows.range(t).size()), 1.0f / kBatch,
                                  tables[t]);
    }
  }
  return losses;
}

struct GoldenCase {
  std::string name;  // in golden_losses.json
  ModelConfig model;
  std::optional<OptimizerConfig> optimizer;  // unset: the model's own
};

void PrintTo(const GoldenCase& golden, std::ostream* out) { *out << golden.name; }

class GoldenLossesTest : public ::testing::TestWithParam<GoldenCase> {};

TEST_P(GoldenLossesTest, AreThoseOfPyTorch) {
  const auto text = ReadFile(MUSTER_GOLDEN_LOSSES);
  ASSERT_TRUE(text.ok()) << text.status();
  const auto golden = nlohmann::json::parse(*text)[GetParam().name].get<std::vector<double>>();
  ASSERT_EQ(golden.size(), size_t{kSteps});
  const ModelRecipe recipe = *FindModel(GetParam().model);
  const std::vector<double> losses =
      recipe.columns
          ? CensusLosses(GetParam().model)
          : MnistLosses(GetParam().model, GetParam().optimizer.value_or(recipe.defaults.optimizer));
  // Each logit is a sum of up to 3136 products, each rounded by half an epsilon at most, which adds up as a
  // random walk does (Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019); the
  // steps add theirs.
  const double tolerance = kSteps * std::sqrt(3136) * FLT_EPSILON / 2;
  double worst = 0;
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(losses[step], golden[step], tolerance * golden[step]) << "step " << step;
    worst = std::max(worst, std::abs(losses[step] / golden[step] - 1));
  }
  RecordProperty("worst_relative_error", std::to_string(worst));
  printf("worst relative error %.2g\n", worst);
}

INSTANTIATE_TEST_SUITE_P(
    All, GoldenLossesTest,
    ::testing::Values(GoldenCase{"softmax", {.model = "mnist_softmax"}, {}},
                      GoldenCase{"softmax_adagrad",
                                 {.model = "mnist_softmax"},
                                 OptimizerConfig{.kind = OptimizerKind::kAdagrad, .learning_rate = 0.05f}},
                      GoldenCase{"mlp", {.model = "mnist_mlp"}, {}},
                      GoldenCase{"mlp_nesterov_decay",
                                 {.model = "mnist_mlp"},
                                 OptimizerConfig{.kind = OptimizerKind::kMomentum,
                                                 .learning_rate = 0.01f,
                                                 .weight_decay = 0.01f,
                                                 .momentum = 0.9f,
                                                 .nesterov = true}},
                      GoldenCase{
                          "mlp_large_momentum",
                          {.model = "mnist_mlp", .hidden = {512, 512}},
                          OptimizerConfig{
                              .kind = OptimizerKind::kMomentum, .learning_rate = 0.01f, .momentum = 0.9f}},
                      GoldenCase{"lenet", {.model = "mnist_cnn", .variant = "lenet"}, {}},
                      GoldenCase{"deep", {.model = "mnist_cnn", .variant = "deep"}, {}},
                      GoldenCase{"wide_deep_tutorial", {.model = "wide_deep", .variant = "tutorial"}, {}},
                      GoldenCase{"wide_deep_minibatch", {.model = "wide_deep", .variant = "minibatch"}, {}},
                      GoldenCase{"wide_deep_wide_only", {.model = "wide_deep", .variant = "wide_only"}, {}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace muster
