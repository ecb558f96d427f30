// Training that stays on a GPU gives what the same training on the CPU gives.
#include "trainer/models/cuda_training.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <ostream>

#include "kernels/cuda/cuda_testing.h"
#include "kernels/layout_optimizer.h"
#include "kernels/threads.h"
#include "trainer/data/mnist.h"
#include "trainer/data/synthetic_digits.h"
#include "trainer/models/cpu_model.h"
#include "trainer/models/cuda_optimizer.h"
#include "trainer/models/evaluate.h"

namespace muster {

struct TrainingCase {
  std::string name;
  ModelConfig model;
  std::optional<OptimizerConfig> optimizer = {};  // unset: the model's own
  bool augment = false;
  int64_t batch_size = 32;
};

void PrintTo(const TrainingCase& training, std::ostream* out) { *out << training.name; }

namespace {

constexpr uint64_t kSeed = 9;
constexpr int64_t kSteps = 50;
constexpr int64_t kEvaluationBatch = 100;

struct Outcome {
  std::vector<double> losses;  // means
  std::vector<float> parameters;
  BatchResult test;
};

class CudaTrainingTest : public cuda::CudaTest, public ::testing::WithParamInterface<TrainingCase> {
 protected:
  // Epochs of 1000 samples, so that batches pass from one into the next; tests of no multiple of the batch.
  static const TrainTestData& Data() {
    static const TrainTestData data = MakeSyntheticMnist(2, 1000, 250);
    return data;
  }
  ModelPlan Plan() const { return *PlanModel(FindModel(GetParam().model)->spec); }
  OptimizerConfig Optimizer() const {
    return GetParam().optimizer.value_or(FindModel(GetParam().model)->defaults.optimizer);
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
    std::vector<float> gradient(layout.size());
    const OptimizerConfig config = Optimizer();
    LayoutOptimizer optimizer = *LayoutOptimizer::Create(layout, {0, layout.size()}, {&config, 1});
    const SampleOrder order(kSeed, Data().train.size());
    BatchBuffer buffer(batch_size, kMnistPixels), test_buffer(kEvaluationBatch, kMnistPixels);
    if (GetParam().augment) buffer.set_augmentation({kSeed, kMnistSide, kMnistSide, 1});
    for (int64_t step = 0; step < kSteps; ++step) {
      const Batch batch = buffer.Fill(Data().train, order, BatchSlice(step, batch_size, 0, 1));
      outcome.losses.push_back(model->ForwardBackward(outcome.parameters, batch, gradient).mean_loss());
      optimizer.Apply(outcome.parameters, gradient, 1.0f / static_cast<float>(batch_size),
                      outcome.parameters);
    }
    outcome.test = EvaluateDataset(*model, outcome.parameters, Data().test, test_buffer)->result;
    SetKernelThreads(1);
    return outcome;
  }

  std::unique_ptr<DeviceTraining> MakeTraining() const {
    auto training = MakeCudaTraining(0, Plan(), Data(),
                                     {.optimizers = {Optimizer()},
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
    EXPECT_GT(training->device_seconds(), 0);
    return outcome;
  }
};

TEST_P(CudaTrainingTest, GivesTheLossesOfTheCpu) {
  const Outcome expected = TrainOnCpu(), actual = TrainOnGpu({kSteps}, false);
  for (int64_t step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(actual.losses[step], expected.losses[step], 1e-4 * std::max(1.0, expected.losses[step]))
        << "step " << step;
  }
  EXPECT_EQ(actual.test.samples, expected.test.samples);
  EXPECT_NEAR(actual.test.mean_loss(), expected.test.mean_loss(),
              1e-4 * std::max(1.0, expected.test.mean_loss()));
}

TEST_P(CudaTrainingTest, RunsOfAnyLengthGiveTheSameBits) {
  const Outcome whole = TrainOnGpu({kSteps}, false), parts = TrainOnGpu({1, 3, 21, 1, 24}, true);
  EXPECT_EQ(parts.losses, whole.losses);
  EXPECT_EQ(parts.parameters, whole.parameters);
  EXPECT_EQ(parts.test.loss_sum, whole.test.loss_sum);
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

TEST_P(CudaTrainingTest, RefusesWhatIsNotKeptAsBytes) {
  TrainTestData data = Data();
  data.train.features.resize(data.train.bytes.size());
  data.train.bytes.clear();
  const auto training = MakeCudaTraining(
      0, Plan(), data, {.optimizers = {Optimizer()}, .batch_size = 32, .evaluation_batch_size = 10});
  EXPECT_TRUE(absl::IsUnimplemented(training.status())) << training.status();
}

std::vector<TrainingCase> Cases() {
  const OptimizerConfig momentum{.kind = OptimizerKind::kMomentum, .learning_rate = 0.01f};
  return {{.name = "softmax", .model = {.model = "mnist_softmax"}},
          {.name = "mlp", .model = {.model = "mnist_mlp"}},
          {.name = "mlp_augmented", .model = {.model = "mnist_mlp"}, .augment = true},
          {.name = "mlp_odd", .model = {.model = "mnist_mlp", .hidden = {33, 7}}, .batch_size = 13},
          {.name = "mlp_whole_set", .model = {.model = "mnist_mlp"}, .batch_size = 1000},
          {.name = "mlp_ftrl",
           .model = {.model = "mnist_mlp"},
           .optimizer = OptimizerConfig{.kind = OptimizerKind::kFtrl, .learning_rate = 0.05f}},
          {.name = "lenet", .model = {.model = "mnist_cnn", .variant = "lenet"}},
          {.name = "deep",
           .model = {.model = "mnist_cnn", .variant = "deep"},
           .optimizer = momentum,
           .batch_size = 16}};
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
  ASSERT_EQ((*optimizer)->factor_count(), 3);
  std::vector<float> expected(layout.size()), sums(layout.size());
  for (const LayoutTensor& tensor : layout.tensors()) {
    for (int64_t i = tensor.offset; i < tensor.offset + tensor.size; ++i) {
      expected[i] = static_cast<float>(i % 7) - 3;
      sums[i] = static_cast<float>(i % 5) - 2;
    }
  }
  const cuda::GuardedFloats parameters(expected), gradient(sums);
  const cuda::GuardedOnDevice<int32_t> first_bad(std::vector<int32_t>{99});
  for (int step = 0; step < 3; ++step) {
    std::vector<StepFactors> factors(3);
    (*optimizer)->NextFactors(factors);
    const cuda::GuardedOnDevice<StepFactors> on_device(factors);
    ASSERT_TRUE((*optimizer)
                    ->Update(on_device.data(), parameters.data(), gradient.data(), first_bad.data(),
                             cudaStreamPerThread)
                    .ok());
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
