#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "base/random.h"
#include "trainer/data/mnist.h"
#include "trainer/data/synthetic_digits.h"
#include "trainer/models/cpu_model.h"
#include "trainer/models/evaluate.h"
#include "trainer/models/model.h"

namespace muster {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kLargestBatch = 32;

std::unique_ptr<Model> MustMake(const ModelConfig& config) {
  return MakeCpuModel(*PlanModel(FindModel(config)->spec), {.largest_batch = kLargestBatch});
}

std::vector<float> Initial(const Model& model) {
  std::vector<float> parameters(model.layout().size());
  model.layout().Initialize(1, {0, model.layout().size()}, parameters);
  return parameters;
}

TEST(Models, HaveTheirPublishedShapes) {
  const auto softmax = MustMake({.model = "mnist_softmax"});
  EXPECT_EQ(softmax->layout().parameter_count(), 784 * 10 + 10);
  const auto mlp = MustMake({.model = "mnist_mlp"});
  EXPECT_EQ(mlp->layout().parameter_count(), 784 * 100 + 100 + 100 * 10 + 10);
  const auto large = MustMake({.model = "mnist_mlp", .hidden = {512, 256}});
  std::vector<std::string> names;
  for (const LayoutTensor& tensor : large->layout().tensors()) names.push_back(tensor.spec.name);
  EXPECT_THAT(names, ElementsAre("hidden_0/weights", "hidden_0/bias", "hidden_1/weights", "hidden_1/bias",
                                 "softmax/weights", "softmax/bias"));
  EXPECT_THAT(large->layout().tensors()[2].spec.shape, ElementsAre(512, 256));
  EXPECT_EQ(large->layout().tensors()[0].spec.scale, 1.0f / 28);
}

TEST(Models, DefaultsAreThePublishedOnes) {
  const TrainDefaults softmax = FindModel({.model = "mnist_softmax"})->defaults;
  EXPECT_EQ(softmax.optimizer, (OptimizerConfig{.kind = OptimizerKind::kSgd, .learning_rate = 0.5f}));
  EXPECT_EQ(softmax.batch_size, 100);
  EXPECT_EQ(softmax.train_steps, 1000);
  const TrainDefaults mlp = FindModel({.model = "mnist_mlp"})->defaults;
  EXPECT_EQ(mlp.optimizer, (OptimizerConfig{.kind = OptimizerKind::kAdam, .learning_rate = 0.001f}));
  EXPECT_EQ(mlp.batch_size, 100);
  EXPECT_EQ(mlp.train_steps, 5000);
}

TEST(Models, RefuseWhatTheyDoNotHave) {
  const auto error = [](const ModelConfig& config) {
    const absl::Status status = FindModel(config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(error({.model = "mnist_sofmax"}),
            "no model 'mnist_sofmax', did you mean 'mnist_softmax'?; there are: mnist_softmax, mnist_mlp");
  EXPECT_EQ(error({.model = "resnet"}), "no model 'resnet'; there are: mnist_softmax, mnist_mlp");
  EXPECT_EQ(error({.model = "mnist_mlp", .variant = "deep"}),
            "mnist_mlp has no variants, so none called 'deep'");
  EXPECT_EQ(error({.model = "mnist_mlp", .hidden = {100, 0}}), "hidden: a layer of size 0; at least 1");
  EXPECT_EQ(error({.model = "mnist_softmax", .hidden = {100}}),
            "mnist_softmax has no hidden layers; mnist_mlp is the model that has");
}

class EachModelTest : public ::testing::TestWithParam<ModelConfig> {
 protected:
  const std::unique_ptr<Model> model_ = MustMake(GetParam());
  const Dataset dataset_ = MakeSyntheticDigits(1, 100);
  BatchBuffer buffer_{kLargestBatch, kMnistPixels};
};

// The loss of dense layers with ReLU between them, plainly and in double.
double ReferenceLoss(const ParameterLayout& layout, const std::vector<double>& parameters,
                     const Batch& batch) {
  double loss = 0;
  for (int64_t b = 0; b < batch.size(); ++b) {
    const std::span<const float> pixels = batch.features.subspan(b * kMnistPixels, kMnistPixels);
    std::vector<double> values(pixels.begin(), pixels.end());
    for (size_t t = 0; t < layout.tensors().size(); t += 2) {
      const double* const weights = parameters.data() + layout.tensors()[t].offset;
      const LayoutTensor& bias = layout.tensors()[t + 1];
      std::vector<double> next(parameters.begin() + bias.offset,
                               parameters.begin() + bias.offset + bias.size);
      for (size_t i = 0; i < values.size(); ++i) {
        for (size_t o = 0; o < next.size(); ++o) next[o] += values[i] * weights[i * next.size() + o];
      }
      const bool last = t + 2 == layout.tensors().size();
      for (double& value : next) value = last ? value : std::max(value, 0.0);
      values = next;
    }
    double sum = 0;
    for (const double logit : values) sum += std::exp(logit);
    loss += std::log(sum) - values[batch.labels[b]];
  }
  return loss;
}

TEST_P(EachModelTest, GradientAgreesWithDifferencesOfTheLoss) {
  constexpr int64_t kSamples = 8;
  const ParameterLayout& layout = model_->layout();
  RandomStream random(1);
  std::vector<float> parameters(layout.size()), gradient(layout.size(), NAN);
  for (float& value : parameters) value = static_cast<float>((2 * random.NextDouble() - 1) / 28);
  const Batch batch = buffer_.FillInOrder(dataset_, {0, kSamples});
  const BatchResult result = model_->ForwardBackward(parameters, batch, gradient);

  // As in PartsAddUpToTheWhole; the differences themselves are good to nine digits.
  const double tolerance = kSamples * 784 * FLT_EPSILON / 2;
  std::vector<double> moved(parameters.begin(), parameters.end());
  EXPECT_NEAR(result.loss_sum, ReferenceLoss(layout, moved, batch), tolerance);
  for (const LayoutTensor& tensor : layout.tensors()) {
    for (int i = 0; i < 20; ++i) {
      const int64_t at = tensor.offset + static_cast<int64_t>(random.NextBelow(tensor.size));
      constexpr double kStep = 1e-6;
      moved[at] += kStep;
      const double above = ReferenceLoss(layout, moved, batch);
      moved[at] -= 2 * kStep;
      const double below = ReferenceLoss(layout, moved, batch);
      moved[at] = parameters[at];
      EXPECT_NEAR(gradient[at], (above - below) / (2 * kStep), tolerance) << tensor.spec.name << " at " << at;
    }
  }
}

TEST_P(EachModelTest, PartsAddUpToTheWhole) {
  const std::vector<float> parameters = Initial(*model_);
  std::vector<float> whole(parameters.size(), NAN), sum(parameters.size()), part(parameters.size(), NAN);
  const BatchResult expected =
      model_->ForwardBackward(parameters, buffer_.FillInOrder(dataset_, {0, kLargestBatch}), whole);
  BatchResult result;
  for (int worker = 0; worker < 3; ++worker) {
    const SampleRange slice = BatchSlice(0, kLargestBatch, worker, 3);
    result += model_->ForwardBackward(parameters, buffer_.FillInOrder(dataset_, slice), part);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  EXPECT_EQ(result.samples, kLargestBatch);
  EXPECT_EQ(result.correct, expected.correct);
  // Each logit is a sum of up to 784 products and may be rounded differently for another batch size; for
  // values of order one that is at most 784 half epsilons per sample.
  const double tolerance = kLargestBatch * 784 * FLT_EPSILON / 2;
  EXPECT_NEAR(result.loss_sum, expected.loss_sum, tolerance);
  for (size_t i = 0; i < sum.size(); ++i) ASSERT_NEAR(sum[i], whole[i], tolerance) << i;
}

TEST_P(EachModelTest, PaddingIsIgnoredAndItsGradientIsZero) {
  const std::vector<float> parameters = Initial(*model_);
  std::vector<float> poisoned = parameters;
  std::vector<bool> is_padding(parameters.size(), true);
  for (const LayoutTensor& tensor : model_->layout().tensors()) {
    std::fill_n(is_padding.begin() + tensor.offset, tensor.size, false);
  }
  for (size_t i = 0; i < poisoned.size(); ++i) {
    if (is_padding[i]) poisoned[i] = NAN;
  }
  const Batch batch = buffer_.FillInOrder(dataset_, {0, 5});
  std::vector<float> expected(parameters.size(), NAN), gradient(parameters.size(), NAN);
  const BatchResult result = model_->ForwardBackward(parameters, batch, expected);
  EXPECT_EQ(model_->ForwardBackward(poisoned, batch, gradient).loss_sum, result.loss_sum);
  EXPECT_EQ(gradient, expected);  // NaN is not equal to itself, so none is left
  for (size_t i = 0; i < gradient.size(); ++i) {
    if (is_padding[i]) {
      ASSERT_EQ(gradient[i], 0.0f) << i;
    }
  }
}

TEST_P(EachModelTest, EmptyBatchGivesZeros) {
  const std::vector<float> parameters = Initial(*model_);
  std::vector<float> gradient(parameters.size(), NAN);
  const BatchResult result =
      model_->ForwardBackward(parameters, buffer_.FillInOrder(dataset_, {0, 0}), gradient);
  EXPECT_EQ(result.samples, 0);
  EXPECT_EQ(result.loss_sum, 0);
  EXPECT_EQ(gradient, std::vector<float>(gradient.size()));
}

TEST_P(EachModelTest, EvaluationCoversTheWholeDataSet) {
  const std::vector<float> parameters = Initial(*model_);
  const BatchResult all =
      EvaluateDataset(*model_, parameters, dataset_, buffer_);  // 100 is no multiple of 32
  BatchResult expected;
  for (int64_t i = 0; i < dataset_.size(); ++i) {
    expected += model_->Evaluate(parameters, buffer_.FillInOrder(dataset_, {i, i + 1}));
  }
  EXPECT_EQ(all.samples, 100);
  EXPECT_NEAR(all.mean_loss(), expected.mean_loss(), 784 * FLT_EPSILON / 2);
}

INSTANTIATE_TEST_SUITE_P(All, EachModelTest,
                         ::testing::Values(ModelConfig{.model = "mnist_softmax"},
                                           ModelConfig{.model = "mnist_mlp"},
                                           ModelConfig{.model = "mnist_mlp", .hidden = {33, 50, 7}}));

}  // namespace
}  // namespace muster
