// Training that stays on a GPU gives what the same training on the CPU gives.
#include "trainer/models/cuda_training.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <ostream>

#include "kernels/cuda/cuda_testing.h"
#include "kernels/elementwise.h"
#include "kernels/layout_optimizer.h"
#include "kernels/parameter_table.h"
#include "kernels/threads.h"
#include "trainer/data/census_columns.h"
#include "trainer/data/mnist.h"
#include "trainer/data/synthetic_census.h"
#include "trainer/data/synthetic_digits.h"
#include "trainer/models/cpu_model.h"
#include "trainer/models/cuda_optimizer.h"
#include "trainer/models/evaluate.h"

namespace muster {

constexpr int64_t kSteps = 50;

struct TrainingCase {
  std::string name;
  ModelConfig model;
  std::optional<OptimizerConfig> optimizer = {};  // unset: the model's own
  bool augment = false;
  int64_t batch_size = 32;
  int64_t steps = kSteps;  // compared with the CPU's
};

void PrintTo(const TrainingCase& training, std::ostream* out) { *out << training.name; }

namespace {

constexpr uint64_t kSeed = 9;
constexpr int64_t kEvaluationBatch = 100;

struct Outcome {
  std::vector<double> losses;  // means
  std::vector<float> parameters;
  TableValues tables;
  Evaluation test;
};

TrainTestData MakeCensus(const WideDeepColumns& columns) {
  const Census census = MakeSyntheticCensus(2, 1000, 250);
  FeatureColumns features = AllFeatures(columns);
  MUSTER_CHECK(FitStandardization(census.train.table, &features.numeric).ok());
  const auto encode = [&](const CensusDataset& part) {
    EncodedFeatures encoded = *Encode(features, part.table);
    return Dataset{.feature_count = encoded.numeric_count,
                   .id_count = encoded.id_count,
                   .features = std::move(encoded.numeric),
                   .ids = std::move(encoded.ids),
                   .labels = part.labels};
  };
  return {.train = encode(census.train), .test = encode(census.test)};
}

// As a process without servers has them.
class LocalTables final : public RowSource {
 public:
  explicit LocalTables(std::vector<ParameterTable> tables) : tables_(std::move(tables)) {}

  absl::Status ReadRows(const RowIndex& rows, std::span<float> values) override {
    for (int t = 0; t < rows.table_count(); ++t) {
      tables_[t].Read(rows.ids(t), values.subspan(rows.range(t).begin, rows.range(t).size()));
    }
    return absl::OkStatus();
  }

  void Apply(const RowIndex& rows, std::span<const float> gradient_sums, float scale) {
    for (int t = 0; t < rows.table_count(); ++t) {
      tables_[t].Apply(rows.ids(t), gradient_sums.subspan(rows.range(t).begin, rows.range(t).size()), scale);
    }
  }

 private:
  std::vector<ParameterTable> tables_;
};

class CudaTrainingTest : public cuda::CudaTest, public ::testing::WithParamInterface<TrainingCase> {
 protected:
  // Epochs of 1000 samples, so that batches pass from one into the next; tests of no multiple of the batch.
  static const TrainTestData& Data() {
    static std::map<std::string, TrainTestData> sets;  // by what the model makes of the census
    const ModelRecipe recipe = *FindModel(GetParam().model);
    const auto [found, is_new] = sets.try_emplace(recipe.columns ? recipe.variant : "");
    if (is_new) {
      found->second = recipe.columns ? MakeCensus(*recipe.columns) : MakeSyntheticMnist(2, 1000, 250);
    }
    return found->second;
  }
  ModelPlan Plan() const { return *PlanModel(FindModel(GetParam().model)->spec); }
  // By group.
  std::vector<OptimizerConfig> Optimizers() const {
    const TrainDefaults defaults = FindModel(GetParam().model)->defaults;
    std::vector<OptimizerConfig> optimizers = {GetParam().optimizer.value_or(defaults.optimizer)};
    if (defaults.wide_optimizer) optimizers.push_back(*defaults.wide_optimizer);
    return optimizers;
  }
  static std::vector<float> Initial(const ParameterLayout& layout) {
    std::vector<float> parameters(layout.size());
    layout.Initialize(kSeed, {0, layout.size()}, parameters);
    return parameters;
  }

  Outcome TrainOnCpu() const {
    SetKernelThreads(2);
    const int64_t batch_size = GetParam().batch_size;
    const auto model =
        MakeCpuModel(Plan(), {.largest_batch = std::max(batch_size, kEvaluationBatch), .seed = kSeed});
    const ParameterLayout& layout = model->layout();
    Outcome outcome{.parameters = Initial(layout)};
    const ModelPlan& plan = model->plan();
    LayoutOptimizer optimizer = *LayoutOptimizer::Create(layout, {0, layout.size()}, Optimizers());
    LocalTables tables(*MakeTables(plan.tables, Optimizers(), kSeed));
    RowIndex rows(plan.tables, plan.TableColumns(), batch_size);
    const SampleOrder order(kSeed, Data().train.size());
    const int64_t feature_count = Data().train.feature_count, id_count = Data().train.id_count;
    BatchBuffer buffer(batch_size, feature_count, id_count),
        test_buffer(kEvaluationBatch, feature_count, id_count);
    if (GetParam().augment) buffer.set_augmentation({kSeed, kMnistSide, kMnistSide, 1});
    for (int64_t step = 0; step < GetParam().steps; ++step) {
      Batch batch = buffer.Fill(Data().train, order, BatchSlice(step, batch_size, 0, 1));
      rows.Build(batch.ids, id_count, batch_size);
      std::vector<float> row_values(rows.size()), gradient(layout.size() + rows.size());
      MUSTER_CHECK(tables.ReadRows(rows, row_values).ok());
      batch.rows = &rows;
      batch.row_values = row_values;
      outcome.losses.push_back(model->ForwardBackward(outcome.parameters, batch, gradient).mean_loss());
      const float scale = 1.0f / static_cast<float>(batch_size);
      const std::span<const float> sums = gradient;
      optimizer.Apply(outcome.parameters, sums.first(layout.size()), scale, outcome.parameters);
      tables.Apply(rows, sums.subspan(layout.size()), scale);
    }
    outcome.test = *EvaluateDataset(*model, outcome.parameters, Data().test, test_buffer, &tables);
    outcome.tables = *ReadTables(plan.tables, tables);
    SetKernelThreads(1);
    return outcome;
  }

  std::unique_ptr<DeviceTraining> MakeTraining() const {
    auto training = MakeCudaTraining(0, Plan(), Data(),
                                     {.optimizers = Optimizers(),
                                      .batch_size = GetParam().batch_size,
                                      .evaluation_batch_size = kEvaluationBatch,
                                      .seed = kSeed,
                                      .augment_shift = GetParam().augment});
    MUSTER_CHECK(training.ok(), training.status().ToString());
    return *std::move(training);
  }

  // `evaluate`: between the runs too, which must change nothing.
  Outcome TrainOnGpu(const std::vector<int64_t>& runs, bool evaluate) const {
    const auto training = MakeTraining();
    const ModelPlan plan = Plan();
    Outcome outcome{.parameters = Initial(plan.layout)};
    EXPECT_TRUE(training->Start(outcome.parameters).ok());
    for (const int64_t steps : runs) {
      const auto results = training->Run(steps);
      MUSTER_CHECK(results.ok(), results.status().ToString());
      EXPECT_EQ(static_cast<int64_t>(results->size()), steps);
      for (const DeviceStep& step : *results) {
        EXPECT_EQ(step.tensor_not_finite, -1);
        outcome.losses.push_back(step.loss_sum / static_cast<double>(GetParam().batch_size));
      }
      if (evaluate) {
        EXPECT_TRUE(training->EvaluateTestSet().ok());
      }
    }
    const auto test = training->EvaluateTestSet();
    MUSTER_CHECK(test.ok(), test.status().ToString());
    outcome.test = *test;
    EXPECT_TRUE(training->ReadParameters(outcome.parameters).ok());
    outcome.tables = *training->ReadTables();
    EXPECT_GT(training->device_seconds(), 0);
    return outcome;
  }
};

TEST_P(CudaTrainingTest, GivesTheLossesOfTheCpu) {
  const Outcome expected = TrainOnCpu(), actual = TrainOnGpu({GetParam().steps}, false);
  for (int64_t step = 0; step < GetParam().steps; ++step) {
    EXPECT_NEAR(actual.losses[step], expected.losses[step], 1e-4 * std::max(1.0, expected.losses[step]))
        << "step " << step;
  }
  const BatchResult &test = actual.test.result, &expected_test = expected.test.result;
  EXPECT_EQ(test.samples, expected_test.samples);
  EXPECT_NEAR(test.mean_loss(), expected_test.mean_loss(), 1e-4 * std::max(1.0, expected_test.mean_loss()));
  EXPECT_EQ(actual.test.auc.has_value(), expected.test.auc.has_value());
  // Of the more than 10,000 pairs of samples a few change sides.
  EXPECT_NEAR(actual.test.auc.value_or(0), expected.test.auc.value_or(0), 1e-3);
  ASSERT_EQ(actual.tables.size(), expected.tables.size());
  // Gradients that are off as the losses are, by 1e-4 of their size, in 50 steps at a rate of at most 0.2.
  for (size_t t = 0; t < expected.tables.size(); ++t) {
    ASSERT_EQ(actual.tables[t].size(), expected.tables[t].size());
    for (size_t i = 0; i < expected.tables[t].size(); ++i) {
      ASSERT_NEAR(actual.tables[t][i], expected.tables[t][i], 1e-3) << "table " << t << " at " << i;
    }
  }
}

TEST_P(CudaTrainingTest, RunsOfAnyLengthGiveTheSameBits) {
  const Outcome whole = TrainOnGpu({kSteps}, false), parts = TrainOnGpu({1, 3, 21, 1, 24}, true);
  EXPECT_EQ(parts.losses, whole.losses);
  EXPECT_EQ(parts.parameters, whole.parameters);
  EXPECT_EQ(parts.tables, whole.tables);
  EXPECT_EQ(parts.test.result.loss_sum, whole.test.result.loss_sum);
  EXPECT_EQ(parts.test.auc, whole.test.auc);
}

TEST_P(CudaTrainingTest, NamesTheTensorThatIsNotFinite) {
  const ModelPlan plan = Plan();
  std::vector<float> parameters = Initial(plan.layout);
  const LayoutTensor& last_bias = plan.layout.tensors().back();
  parameters[last_bias.offset] = NAN;
  const auto training = MakeTraining();
  ASSERT_TRUE(training->Start(parameters).ok());
  const auto results = training->Run(3);
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_FALSE(std::isfinite(results->front().loss_sum));
  EXPECT_EQ(results->front().tensor_not_finite, 0);  // the first: every gradient is
}

using CudaTrainingData = cuda::CudaTest;

// As numbers instead of bytes the same samples give the same bits.
TEST_F(CudaTrainingData, MayBeBytesOrNumbers) {
  const ModelPlan plan = *PlanModel(FindModel({.model = "mnist_mlp"})->spec);
  const TrainTestData as_bytes = MakeSyntheticMnist(2, 300, 70);
  TrainTestData as_numbers = as_bytes;
  for (Dataset* const set : {&as_numbers.train, &as_numbers.test}) {
    set->features.resize(set->bytes.size());
    BytesToUnitInterval(set->bytes, set->features);
    set->bytes.clear();
  }
  const DeviceTrainingOptions options{
      .optimizers = {OptimizerConfig{}}, .batch_size = 32, .evaluation_batch_size = 32, .seed = kSeed};
  const auto train = [&](const TrainTestData& data) {
    const auto training = *MakeCudaTraining(0, plan, data, options);
    std::vector<float> parameters(plan.layout.size());
    plan.layout.Initialize(kSeed, {0, plan.layout.size()}, parameters);
    EXPECT_TRUE(training->Start(parameters).ok());
    EXPECT_TRUE(training->Run(12).ok());
    EXPECT_TRUE(training->ReadParameters(parameters).ok());
    return std::pair(parameters, training->EvaluateTestSet()->result.loss_sum);
  };
  EXPECT_EQ(train(as_numbers), train(as_bytes));
  DeviceTrainingOptions shifted = options;
  shifted.augment_shift = true;
  EXPECT_TRUE(absl::IsUnimplemented(MakeCudaTraining(0, plan, as_numbers, shifted).status()));
}

std::vector<TrainingCase> Cases() {
  return {{.name = "softmax", .model = {.model = "mnist_softmax"}},
          {.name = "mlp", .model = {.model = "mnist_mlp"}},
          {.name = "mlp_augmented", .model = {.model = "mnist_mlp"}, .augment = true},
          // More steps than a graph has.
          {.name = "mlp_odd",
           .model = {.model = "mnist_mlp", .hidden = {33, 7}},
           .batch_size = 13,
           .steps = kSteps + 10},
          {.name = "mlp_whole_set", .model = {.model = "mnist_mlp"}, .batch_size = 1000},
          {.name = "mlp_ftrl",
           .model = {.model = "mnist_mlp"},
           .optimizer = OptimizerConfig{.kind = OptimizerKind::kFtrl, .learning_rate = 0.05f}},
          {.name = "lenet", .model = {.model = "mnist_cnn", .variant = "lenet"}},
          // Few steps at a low rate: a value that rounding takes to the other side of a ReLU or a pooling
          // changes gradients by a thousandth. On the CPU alone, parameters 3e-7 apart give losses that are
          // 0.1 apart after 50 steps at a rate of 0.01, and 5e-7 apart after these.
          {.name = "deep",
           .model = {.model = "mnist_cnn", .variant = "deep"},
           .optimizer = OptimizerConfig{.kind = OptimizerKind::kMomentum, .learning_rate = 0.001f},
           .batch_size = 16,
           .steps = 12},
          {.name = "wide_deep_tutorial", .model = {.model = "wide_deep", .variant = "tutorial"}},
          {.name = "wide_deep_minibatch",
           .model = {.model = "wide_deep", .variant = "minibatch"},
           .batch_size = 40},
          {.name = "wide_deep_adam",
           .model = {.model = "wide_deep", .variant = "dist_test"},
           .optimizer = OptimizerConfig{.kind = OptimizerKind::kAdam, .learning_rate = 0.001f},
           .batch_size = 13},
          {.name = "wide_deep_whole_set",
           .model = {.model = "wide_deep", .variant = "tutorial"},
           .batch_size = 1000},
          {.name = "wide_only", .model = {.model = "wide_deep", .variant = "wide_only"}}};
}

INSTANTIATE_TEST_SUITE_P(All, CudaTrainingTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

using CudaOptimizerTest = cuda::CudaTest;

// Groups that come back after another one, and tensors with padding behind them.
TEST_F(CudaOptimizerTest, EachGroupHasItsOwnOptimizer) {
  const auto layout = *ParameterLayout::Create({{.name = "a", .shape = {5}, .optimizer_group = 0},
                                                {.name = "b", .shape = {16}, .optimizer_group = 0},
                                                {.name = "c", .shape = {33}, .optimizer_group = 1},
                                                {.name = "d", .shape = {1}, .optimizer_group = 0}});
  const std::vector<OptimizerConfig> by_group = {
      {.kind = OptimizerKind::kAdam, .learning_rate = 0.1f},
      {.kind = OptimizerKind::kFtrl, .learning_rate = 0.2f, .l1 = 0.01f}};
  constexpr float kScale = 0.25f;
  LayoutOptimizer expected_optimizer = *LayoutOptimizer::Create(layout, {0, layout.size()}, by_group);
  const auto optimizer = CudaOptimizer::Create(layout, by_group, kScale);
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  ASSERT_EQ((*optimizer)->factor_count(), 2);
  std::vector<float> expected(layout.size()), sums(layout.size());
  for (const LayoutTensor& tensor : layout.tensors()) {
    for (int64_t i = tensor.offset; i < tensor.offset + tensor.size; ++i) {
      expected[i] = static_cast<float>(i % 7) - 3;
      sums[i] = static_cast<float>(i % 5) - 2;
    }
  }
  const cuda::GuardedFloats parameters(expected), gradient(sums);
  const cuda::GuardedOnDevice<int32_t> first_bad(std::vector<int32_t>{99});
  const int64_t boundary = layout.tensors()[1].offset;
  for (int step = 0; step < 3; ++step) {
    std::vector<StepFactors> factors(2);
    (*optimizer)->NextFactors(factors);
    const cuda::GuardedOnDevice<StepFactors> on_device(factors);
    // In two parts, the second first, as a backward pass gives them.
    for (const LayoutRange part : {LayoutRange{boundary, layout.size()}, LayoutRange{0, boundary}}) {
      ASSERT_TRUE((*optimizer)
                      ->Update(part, on_device.data(), parameters.data(), gradient.data(), first_bad.data(),
                               cudaStreamPerThread)
                      .ok());
    }
    expected_optimizer.Apply(expected, sums, kScale, expected);
    EXPECT_EQ(parameters.Read(), expected);
  }
  EXPECT_EQ(first_bad.Read()[0], 99);
}

TEST_F(CudaOptimizerTest, RefusesAGroupWithoutAnOptimizer) {
  const auto layout = *ParameterLayout::Create({{.name = "a", .shape = {5}, .optimizer_group = 1}});
  const OptimizerConfig config;
  EXPECT_EQ(CudaOptimizer::Create(layout, {&config, 1}, 1).status().message(),
            "tensor 'a' is of optimizer group 1, for which there is no optimizer");
}

}  // namespace
}  // namespace muster
