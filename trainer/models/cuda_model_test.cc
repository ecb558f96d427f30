// Models on a GPU, held against the reference in double. Each is asked three times, because the first pass of
// a size is enqueued, the second captured, and the third only launched.
#include "trainer/models/cuda_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/cuda/cuda_testing.h"
#include "trainer/data/mnist.h"
#include "trainer/data/synthetic_digits.h"
#include "trainer/models/column_cases.h"
#include "trainer/models/cpu_model.h"
#include "trainer/models/exact_data.h"
#include "trainer/models/layer_cases.h"
#include "trainer/models/reference_model.h"

namespace muster {
namespace {

using cuda::CudaTest;

constexpr int64_t kLargestBatch = 32;
constexpr uint64_t kSeed = 5;
constexpr int kTimes = 3;

// As in layers_test.cc: of a gradient of logits up to 20 in float, and of one sample's loss.
constexpr double kLossError = 24 * FLT_EPSILON;

std::unique_ptr<Model> MustMake(const ModelPlan& plan, cuda::Math math = cuda::Math::kFloat32) {
  auto model = MakeCudaModel(0, plan, {.largest_batch = kLargestBatch, .seed = kSeed, .math = math});
  MUSTER_CHECK(model.ok(), model.status().ToString());
  return *std::move(model);
}

void ExpectMatchesTheReference(Model& model, const Batch& batch) {
  const ReferenceModel reference(model.plan(), kSeed);
  const std::vector<float> parameters = ExactParameters(model.layout(), 3);
  const std::vector<double> exact(parameters.begin(), parameters.end());
  const ReferenceResult expected = reference.ForwardBackward(exact, batch);
  const std::vector<double> tolerance = reference.GradientTolerance(exact, batch, kLossError);
  const double loss_tolerance = static_cast<double>(batch.size()) * kLossError;
  for (int time = 0; time < kTimes; ++time) {
    SCOPED_TRACE(::testing::Message() << batch.size() << " samples, time " << time);
    std::vector<float> gradient(parameters.size(), NAN);
    const BatchResult result = model.ForwardBackward(parameters, batch, gradient);
    ASSERT_TRUE(model.status().ok()) << model.status();
    EXPECT_EQ(result.samples, batch.size());
    EXPECT_NEAR(result.loss_sum, expected.loss_sum, loss_tolerance);
    for (const LayoutTensor& tensor : model.layout().tensors()) {
      for (int64_t i = tensor.offset; i < tensor.offset + tensor.size; ++i) {
        ASSERT_NEAR(gradient[i], expected.gradient[i], tolerance[i])
            << tensor.spec.name << " at " << i - tensor.offset;
      }
    }
    EXPECT_NEAR(model.Evaluate(parameters, batch).loss_sum, reference.EvaluationLoss(exact, batch),
                loss_tolerance);
    ASSERT_TRUE(model.status().ok()) << model.status();
  }
}

class CudaLayersTest : public CudaTest, public ::testing::WithParamInterface<LayersCase> {};

TEST_P(CudaLayersTest, MatchTheReference) {
  const ModelPlan plan = PlanOf(GetParam());
  const auto model = MustMake(plan);
  for (const int64_t samples : {3, 1, 32}) {
    const ExactBatch data(4, samples, plan.spec.input.size(), kLayersClasses);
    ExpectMatchesTheReference(*model, data.batch());
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaLayersTest, ::testing::ValuesIn(LayersCases()),
                         [](const auto& info) { return info.param.name; });

class CudaColumnsTest : public CudaTest, public ::testing::WithParamInterface<ColumnsCase> {
 protected:
  const ModelPlan plan_ = *PlanModel(GetParam().spec);
};

// A batch of other rows each time, which the graphs of the times before must not remember.
TEST_P(CudaColumnsTest, MatchTheReference) {
  const auto model = MustMake(plan_);
  const ReferenceModel reference(plan_, kSeed);
  const std::vector<float> parameters = ExactParameters(plan_.layout, 3);
  for (const int64_t samples : {9, 1, 0, 32}) {
    for (uint64_t time = 0; time < kTimes; ++time) {
      SCOPED_TRACE(::testing::Message() << samples << " samples, time " << time);
      const ColumnsBatch data(plan_, 4 + time, samples);
      const std::vector<double> all = data.BehindParameters(parameters);
      const ReferenceResult expected = reference.ForwardBackward(all, data.batch());
      const std::vector<double> tolerance = reference.GradientTolerance(all, data.batch(), kLossError);
      const double loss_tolerance = static_cast<double>(samples) * kLossError;
      std::vector<float> gradient(all.size(), NAN);
      const BatchResult result = model->ForwardBackward(parameters, data.batch(), gradient);
      ASSERT_TRUE(model->status().ok()) << model->status();
      EXPECT_NEAR(result.loss_sum, expected.loss_sum, loss_tolerance);
      for (size_t i = 0; i < gradient.size(); ++i) {
        ASSERT_NEAR(gradient[i], expected.gradient[i], tolerance[i]) << i;
      }
      EXPECT_NEAR(model->Evaluate(parameters, data.batch()).loss_sum,
                  reference.EvaluationLoss(all, data.batch()), loss_tolerance);
    }
  }
}

TEST_P(CudaColumnsTest, GiveTheLogitsOfTheCpu) {
  const auto model = MustMake(plan_);
  const auto expected = MakeCpuModel(plan_, {.largest_batch = kLargestBatch, .seed = kSeed});
  const std::vector<float> parameters = ExactParameters(plan_.layout, 3);
  for (const int64_t samples : {9, 32, 0}) {
    const ColumnsBatch data(plan_, 5, samples);
    const BatchResult result = model->Evaluate(parameters, data.batch());
    EXPECT_EQ(result.correct, expected->Evaluate(parameters, data.batch()).correct);
    // Exact numbers, so that the order of sums does not matter.
    EXPECT_TRUE(std::equal(model->logits().begin(), model->logits().end(), expected->logits().begin(),
                           expected->logits().end()));
  }
}

TEST_P(CudaColumnsTest, NanInARowReachesTheLossAndItsGradient) {
  const auto model = MustMake(plan_);
  ColumnsBatch data(plan_, 4, 9);
  data.values[0] = NAN;
  std::vector<float> gradient(plan_.layout.size() + data.rows.size());
  const std::vector<float> parameters = ExactParameters(plan_.layout, 3);
  EXPECT_TRUE(std::isnan(model->ForwardBackward(parameters, data.batch(), gradient).loss_sum));
  EXPECT_TRUE(std::isnan(gradient[plan_.layout.size()]));
}

TEST_P(CudaColumnsTest, GiveTheSameBitsOnEachCall) {
  const auto model = MustMake(plan_);
  const ColumnsBatch data(plan_, 6, kLargestBatch);
  // Numbers that are not exact.
  std::vector<float> parameters(plan_.layout.size()), first(plan_.layout.size() + data.rows.size());
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i] = std::sin(static_cast<float>(i));
  std::vector<float> again(first.size());
  const double loss = model->ForwardBackward(parameters, data.batch(), first).loss_sum;
  for (int time = 0; time < 5; ++time) {
    EXPECT_EQ(model->ForwardBackward(parameters, data.batch(), again).loss_sum, loss);
    ASSERT_EQ(again, first);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaColumnsTest, ::testing::ValuesIn(ColumnsCases()),
                         [](const auto& info) { return info.param.name; });

using WideColumnsOnDevice = CudaTest;

TEST_F(WideColumnsOnDevice, BesideAnActivationAreNotThere) {
  const ModelPlan plan =
      *PlanModel({.input = {.channels = 2},
                  .columns = {WideColumnSpec{.name = "a", .buckets = 3}},
                  .layers = {DenseSpec{.name = "logit", .outputs = 1, .activation = Activation::kRelu}},
                  .loss = LossKind::kSigmoidCrossEntropy});
  EXPECT_TRUE(absl::IsUnimplemented(MakeCudaModel(0, plan, {.largest_batch = 1}).status()));
}

class CudaModelTest : public CudaTest, public ::testing::WithParamInterface<ModelConfig> {
 protected:
  ModelPlan Plan() const { return *PlanModel(FindModel(GetParam())->spec); }

  static std::vector<float> Initial(const Model& model) {
    std::vector<float> parameters(model.layout().size());
    model.layout().Initialize(1, {0, model.layout().size()}, parameters);
    return parameters;
  }
};

TEST_P(CudaModelTest, MatchesTheReference) {
  const ModelPlan plan = Plan();
  const ExactBatch data(1, 3, kMnistPixels, kMnistClasses);
  ExpectMatchesTheReference(*MustMake(plan), data.batch());
}

TEST_P(CudaModelTest, CoarserMathStaysNear) {
  const ModelPlan plan = Plan();
  const ExactBatch data(1, 16, kMnistPixels, kMnistClasses);
  const auto exact = MustMake(plan);
  const std::vector<float> parameters = Initial(*exact);
  std::vector<float> expected(parameters.size()), gradient(parameters.size());
  const BatchResult result = exact->ForwardBackward(parameters, data.batch(), expected);
  double norm = 0;
  for (const float value : expected) norm += double{value} * value;
  for (const auto& [math, unit] :
       {std::pair(cuda::Math::kTf32, 0x1p-11), std::pair(cuda::Math::kBfloat16, 0x1p-8)}) {
    const auto model = MustMake(plan, math);
    const BatchResult coarse = model->ForwardBackward(parameters, data.batch(), gradient);
    double difference = 0;
    for (size_t i = 0; i < gradient.size(); ++i) difference += std::pow(double{gradient[i]} - expected[i], 2);
    // Two roundings for each of up to five layers there and back, and room for a ReLU or a pooling that
    // decides otherwise.
    constexpr double kRoundings = 2 * 2 * 5 * 4;
    EXPECT_LE(std::sqrt(difference), kRoundings * unit * std::sqrt(norm));
    EXPECT_NEAR(coarse.loss_sum, result.loss_sum, kRoundings * unit * result.loss_sum);
  }
}

TEST_P(CudaModelTest, GivesTheSameBitsOnEachCall) {
  const auto model = MustMake(Plan());
  const std::vector<float> parameters = Initial(*model);
  const ExactBatch data(1, kLargestBatch, kMnistPixels, kMnistClasses);
  std::vector<float> first(parameters.size()), again(parameters.size());
  const double loss = model->ForwardBackward(parameters, data.batch(), first).loss_sum;
  for (int time = 0; time < 5; ++time) {
    EXPECT_EQ(model->ForwardBackward(parameters, data.batch(), again).loss_sum, loss);
    ASSERT_EQ(again, first);
  }
}

TEST_P(CudaModelTest, NotFiniteReachesTheLoss) {
  const auto model = MustMake(Plan());
  const std::vector<float> parameters = Initial(*model);
  std::vector<float> gradient(parameters.size());
  for (const float bad : {NAN, INFINITY}) {
    std::vector<float> features(3 * kMnistPixels, 0.5f);
    features[kMnistPixels + kMnistPixels / 2] = bad;  // the second sample's
    const std::vector<int32_t> labels = {1, 2, 3};
    const Batch batch{.features = features, .labels = labels};
    EXPECT_FALSE(std::isfinite(model->ForwardBackward(parameters, batch, gradient).loss_sum));
    EXPECT_FALSE(
        std::all_of(gradient.begin(), gradient.end(), [](float value) { return std::isfinite(value); }));
    EXPECT_FALSE(std::isfinite(model->Evaluate(parameters, batch).loss_sum));
  }
  EXPECT_TRUE(model->status().ok()) << model->status();
}

TEST_P(CudaModelTest, PaddingIsIgnoredAndItsGradientIsZero) {
  const auto model = MustMake(Plan());
  const std::vector<float> parameters = Initial(*model);
  std::vector<float> poisoned = parameters;
  std::vector<bool> is_padding(parameters.size(), true);
  for (const LayoutTensor& tensor : model->layout().tensors()) {
    std::fill_n(is_padding.begin() + tensor.offset, tensor.size, false);
  }
  for (size_t i = 0; i < poisoned.size(); ++i) {
    if (is_padding[i]) poisoned[i] = NAN;
  }
  const ExactBatch data(1, 5, kMnistPixels, kMnistClasses);
  std::vector<float> expected(parameters.size(), NAN), gradient(parameters.size(), NAN);
  const BatchResult result = model->ForwardBackward(parameters, data.batch(), expected);
  EXPECT_EQ(model->ForwardBackward(poisoned, data.batch(), gradient).loss_sum, result.loss_sum);
  EXPECT_EQ(gradient, expected);  // NaN is not equal to itself, so none is left
  for (size_t i = 0; i < gradient.size(); ++i) {
    if (is_padding[i]) {
      ASSERT_EQ(gradient[i], 0.0f) << i;
    }
  }
}

TEST_P(CudaModelTest, EmptyBatchGivesZeros) {
  const auto model = MustMake(Plan());
  const std::vector<float> parameters = Initial(*model);
  for (int time = 0; time < kTimes; ++time) {
    std::vector<float> gradient(parameters.size(), NAN);
    const BatchResult result = model->ForwardBackward(parameters, Batch{}, gradient);
    EXPECT_EQ(result.samples, 0);
    EXPECT_EQ(result.loss_sum, 0);
    EXPECT_EQ(gradient, std::vector<float>(gradient.size()));
    EXPECT_EQ(model->Evaluate(parameters, Batch{}).loss_sum, 0);
  }
  EXPECT_TRUE(model->status().ok()) << model->status();
}

INSTANTIATE_TEST_SUITE_P(All, CudaModelTest,
                         ::testing::Values(ModelConfig{.model = "mnist_softmax"},
                                           ModelConfig{.model = "mnist_mlp"},
                                           ModelConfig{.model = "mnist_mlp", .hidden = {33, 50, 7}},
                                           ModelConfig{.model = "mnist_cnn", .variant = "lenet"},
                                           ModelConfig{.model = "mnist_cnn", .variant = "deep"}),
                         [](const auto& info) {
                           const ModelConfig& config = info.param;
                           return config.model + (config.variant.empty() ? "" : "_" + config.variant) +
                                  (config.hidden.empty() ? "" : "_hidden");
                         });

}  // namespace
}  // namespace muster
