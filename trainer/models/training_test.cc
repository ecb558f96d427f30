// Training in one process, to the accuracies that the published models reach.

#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/optimizer.h"
#include "kernels/threads.h"
#include "trainer/data/mnist.h"
#include "trainer/data/synthetic_digits.h"
#include "trainer/models/cpu_model.h"
#include "trainer/models/evaluate.h"
#include "trainer/models/model.h"

namespace muster {
namespace {

constexpr int64_t kBatch = 100;

struct Recipe {
  ModelConfig model;
  OptimizerConfig optimizer;
  int64_t steps = 0;
};

const Recipe kSoftmax = {.model = {.model = "mnist_softmax"},
                         .optimizer = {.kind = OptimizerKind::kSgd, .learning_rate = 0.5f},
                         .steps = 1000};
const Recipe kMlp = {.model = {.model = "mnist_mlp"},
                     .optimizer = {.kind = OptimizerKind::kAdam, .learning_rate = 0.01f},
                     .steps = 200};

// Half an epoch, with Adam rather than lenet's own optimizer, which is slower at first. Under the address
// sanitizer a step takes thirty times as long.
#ifdef __SANITIZE_ADDRESS__
constexpr int64_t kLenetSteps = 60;
constexpr double kLenetAccuracy = 0.9;
#else
constexpr int64_t kLenetSteps = 300;
constexpr double kLenetAccuracy = 0.97;
#endif
const Recipe kLenet = {.model = {.model = "mnist_cnn"},
                       .optimizer = {.kind = OptimizerKind::kAdam, .learning_rate = 0.001f},
                       .steps = kLenetSteps};

std::unique_ptr<Model> MakeModel(const ModelConfig& config) {
  return MakeCpuModel(*PlanModel(FindModel(config)->spec), {.largest_batch = kBatch});
}

std::vector<float> Train(Model& model, const Recipe& recipe, const Dataset& dataset) {
  SetKernelThreads(1);
  constexpr uint64_t kSeed = 1;
  BatchBuffer buffer(kBatch, kMnistPixels);
  std::vector<float> parameters(model.layout().size()), gradient(model.layout().size());
  model.layout().Initialize(kSeed, {0, model.layout().size()}, parameters);
  const std::unique_ptr<Optimizer> optimizer = MakeOptimizer(recipe.optimizer, model.layout().size());
  const SampleOrder order(kSeed, dataset.size());
  for (int64_t step = 0; step < recipe.steps; ++step) {
    const Batch batch = buffer.Fill(dataset, order, BatchSlice(step, kBatch, 0, 1));
    model.ForwardBackward(parameters, batch, gradient);
    optimizer->Apply(parameters, gradient, 1.0f / kBatch, parameters);
  }
  return parameters;
}

double TestAccuracy(const Recipe& recipe, const TrainTestData& mnist) {
  const std::unique_ptr<Model> model = MakeModel(recipe.model);
  const std::vector<float> parameters = Train(*model, recipe, mnist.train);
  BatchBuffer buffer(kBatch, kMnistPixels);
  const double accuracy = EvaluateDataset(*model, parameters, mnist.test, buffer)->result.accuracy();
  ::testing::Test::RecordProperty("accuracy", std::to_string(accuracy));
  printf("%s: test accuracy %.4f after %d steps\n", recipe.model.model.c_str(), accuracy,
         static_cast<int>(recipe.steps));
  return accuracy;
}

TEST(Training, LearnsSyntheticDigits) {
  const TrainTestData mnist = MakeSyntheticMnist(1);
  const double softmax = TestAccuracy(kSoftmax, mnist);
  EXPECT_GE(softmax, 0.90);
  EXPECT_LE(softmax, 0.995) << "too easy to show that something broke";
  EXPECT_GE(TestAccuracy(kMlp, mnist), 0.90);
}

TEST(Training, SameBitsOnEachRun) {
  const TrainTestData mnist = MakeSyntheticMnist(2, 1000, 1);
  Recipe recipe = kMlp;
  recipe.steps = 20;
  const std::unique_ptr<Model> model = MakeModel(recipe.model);
  EXPECT_EQ(Train(*model, recipe, mnist.train), Train(*model, recipe, mnist.train));
}

class MnistTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const folder = std::getenv("MUSTER_DATA");
    if (folder == nullptr)
      GTEST_SKIP() << "MUSTER_DATA does not name a folder with the real data set (mnist/*-ubyte)";
    absl::StatusOr<TrainTestData> mnist = LoadMnist(folder);
    ASSERT_TRUE(mnist.ok()) << mnist.status();
    mnist_ = *std::move(mnist);
    ASSERT_EQ(mnist_.train.size(), 60'000);
    ASSERT_EQ(mnist_.test.size(), 10'000);
  }

  TrainTestData mnist_;
};

TEST_F(MnistTraining, ReachesThePublishedAccuracies) {
  EXPECT_GE(TestAccuracy(kSoftmax, mnist_), 0.915);
  EXPECT_GE(TestAccuracy(kMlp, mnist_), 0.93);
}

TEST_F(MnistTraining, ConvolutionsLearn) { EXPECT_GE(TestAccuracy(kLenet, mnist_), kLenetAccuracy); }

}  // namespace
}  // namespace muster
