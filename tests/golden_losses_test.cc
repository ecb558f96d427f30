// The first ten steps of each model give the losses that PyTorch gives (tests/golden/golden_losses.py).
#include <gtest/gtest.h>

#include "kernels/layout_optimizer.h"
#include "kernels/threads.h"
#include "tests/support/golden_losses.h"
#include "trainer/models/cpu_model.h"
#include "trainer/models/row_source.h"

namespace muster {
namespace {

int64_t Buckets(const IdColumnPlan& column) {
  return std::visit([](const auto& spec) { return spec.buckets; }, column.spec);
}

// A table as a whole, with what golden_losses.py puts into it.
std::vector<float> TableValuesOf(const TableSpec& table, int number) {
  std::vector<float> values(table.rows * table.width);
  if (table.initializer == Initializer::kZeros) return values;
  const std::vector<float> uniform = GoldenUniform(100 + number, static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((2 * double{uniform[i]} - 1) * 0.1);
  return values;
}

std::vector<double> CensusLosses(const ModelConfig& config) {
  SetKernelThreads(1);
  const ModelRecipe recipe = *FindModel(config);
  const std::unique_ptr<Model> model = MakeCpuModel(*PlanModel(recipe.spec), {.largest_batch = kGoldenBatch});
  const ModelPlan& plan = model->plan();
  std::vector<OptimizerConfig> optimizers = {recipe.defaults.optimizer};
  if (recipe.defaults.wide_optimizer) optimizers.push_back(*recipe.defaults.wide_optimizer);
  std::vector<float> parameters = GoldenParameters(plan.layout);
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
      ids.push_back(static_cast<int32_t>(double{uniform_ids[i]} *
                                         static_cast<double>(Buckets(plan.columns[i % id_count]))));
    }
    rows.Build(ids, id_count, kGoldenBatch);
    std::vector<float> row_values(rows.size()), gradient(plan.layout.size() + rows.size());
    EXPECT_TRUE(source.ReadRows(rows, row_values).ok());
    const Batch batch{
        .features = features, .ids = ids, .labels = labels, .rows = &rows, .row_values = row_values};
    losses.push_back(model->ForwardBackward(parameters, batch, gradient).mean_loss());
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

class GoldenLossesTest : public ::testing::TestWithParam<GoldenCase> {};

TEST_P(GoldenLossesTest, AreThoseOfPyTorch) {
  SetKernelThreads(1);
  const auto model = MakeCpuModel(*PlanModel(FindModel(GetParam().model)->spec),
                                  {.largest_batch = kGoldenBatch, .seed = kGoldenDropoutSeed});
  ExpectGoldenLosses(GetParam(), *model);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenLossesTest, ::testing::ValuesIn(GoldenCases()),
                         [](const auto& info) { return info.param.name; });

class CensusGoldenLossesTest : public ::testing::TestWithParam<std::string> {};

TEST_P(CensusGoldenLossesTest, AreThoseOfPyTorch) {
  ExpectGoldenLosses("wide_deep_" + GetParam(), CensusLosses({.model = "wide_deep", .variant = GetParam()}));
}

INSTANTIATE_TEST_SUITE_P(All, CensusGoldenLossesTest, ::testing::Values("tutorial", "minibatch", "wide_only"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace muster
