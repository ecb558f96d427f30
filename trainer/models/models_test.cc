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
#include "trainer/models/exact_data.h"
#include "trainer/models/model.h"
#include "trainer/models/reference_model.h"
#include "trainer/models/waiting_model.h"

namespace muster {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kLargestBatch = 32;
constexpr uint64_t kSeed = 5;

std::unique_ptr<Model> MustMake(const ModelConfig& config) {
  return MakeCpuModel(*PlanModel(FindModel(config)->spec), {.largest_batch = kLargestBatch, .seed = kSeed});
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
  EXPECT_EQ(MustMake({.model = "mnist_cnn"})->layout().parameter_count(), 431'080);
  EXPECT_EQ(MustMake({.model = "mnist_cnn", .variant = "lenet"})->layout().parameter_count(), 431'080);
  EXPECT_EQ(MustMake({.model = "mnist_cnn", .variant = "deep"})->layout().parameter_count(), 3'274'634);
}

TEST(Models, WhatIsReadyOfAGradientIsFinal) {
  const Dataset data = MakeSyntheticDigits(1, kLargestBatch);
  for (const auto& [config, calls] :
       std::vector<std::pair<ModelConfig, size_t>>{{{.model = "mnist_softmax"}, 0},
                                                   {{.model = "mnist_mlp"}, 1},
                                                   {{.model = "mnist_mlp", .hidden = {30, 20}}, 2},
                                                   {{.model = "mnist_cnn", .variant = "lenet"}, 3},
                                                   {{.model = "mnist_cnn", .variant = "deep"}, 3}}) {
    const auto model = MustMake(config);
    std::vector<float> gradient(model->layout().size(), NAN);
    std::vector<std::pair<int64_t, std::vector<float>>> ready;
    BatchBuffer buffer(kLargestBatch, data.feature_count);
    const Batch batch = buffer.Fill(data, SampleOrder(1, data.size()), {0, kLargestBatch});
    model->ForwardBackward(Initial(*model), batch, gradient, [&](int64_t begin) {
      ready.emplace_back(begin, std::vector(gradient.begin() + begin, gradient.end()));
    });
    EXPECT_EQ(ready.size(), calls) << Describe(config);
    int64_t before = model->layout().size();
    for (const auto& [begin, values] : ready) {
      EXPECT_LT(begin, before) << Describe(config);
      before = begin;
      EXPECT_TRUE(std::equal(values.begin(), values.end(), gradient.begin() + begin))
          << Describe(config) << " from " << begin;
    }
  }
}

TEST(WaitingModel, TakesItsTimeAndSaysWhatIsReadyOnTheWay) {
  constexpr Duration kStep = std::chrono::milliseconds(30);
  const auto model =
      MakeWaitingModel(*PlanModel(FindModel({.model = "mnist_cnn", .variant = "deep"})->spec), 8, kStep);
  const Dataset data = MakeSyntheticDigits(1, 8);
  BatchBuffer buffer(8, data.feature_count);
  const Batch batch = buffer.Fill(data, SampleOrder(1, data.size()), {0, 8});
  std::vector<float> gradient(model->layout().size(), NAN);
  std::vector<int64_t> begins;
  std::vector<Duration> times;
  const TimePoint start = Now();
  const BatchResult result = model->ForwardBackward({}, batch, gradient, [&](int64_t begin) {
    begins.push_back(begin);
    times.push_back(Now() - start);
  });
  EXPECT_GE(Now() - start, kStep);
  EXPECT_EQ(result.samples, 8);
  EXPECT_EQ(result.loss_sum, 0);
  EXPECT_EQ(gradient, std::vector<float>(gradient.size(), 0));
  EXPECT_EQ(model->logits().size(), 80u);
  const auto& tensors = model->layout().tensors();
  EXPECT_THAT(begins, ElementsAre(tensors[6].offset, tensors[4].offset, tensors[2].offset));
  EXPECT_GE(times[0], kStep / 3) << "the forward pass comes first";
  EXPECT_GE(times[2], kStep * 9 / 10) << "the second convolution has most of the multiplications";
}

TEST(Models, ConvolutionalNetworksStartAsPublished) {
  const auto lenet = MustMake({.model = "mnist_cnn", .variant = "lenet"});
  const auto deep = MustMake({.model = "mnist_cnn", .variant = "deep"});
  const std::vector<double> fan_in = {25, 500, 800, 500};
  for (size_t i = 0; i < 8; ++i) {
    const bool is_bias = i % 2 == 1;
    const TensorSpec& uniform = lenet->layout().tensors()[i].spec;
    EXPECT_EQ(uniform.initializer, is_bias ? Initializer::kZeros : Initializer::kUniform) << uniform.name;
    EXPECT_FLOAT_EQ(uniform.scale, is_bias ? 0 : std::sqrt(3 / fan_in[i / 2])) << uniform.name;
    const TensorSpec& normal = deep->layout().tensors()[i].spec;
    EXPECT_EQ(normal.initializer, is_bias ? Initializer::kConstant : Initializer::kTruncatedNormal)
        << normal.name;
    EXPECT_EQ(normal.scale, 0.1f) << normal.name;
  }
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
  const TrainDefaults lenet = FindModel({.model = "mnist_cnn"})->defaults;
  EXPECT_EQ(lenet.optimizer,
            (OptimizerConfig{.kind = OptimizerKind::kMomentum,
                             .learning_rate = 0.01f,
                             .weight_decay = 5e-4f,
                             .momentum = 0.9f,
                             .schedule = {.kind = ScheduleKind::kInverse, .gamma = 1e-4f, .power = 0.75f}}));
  EXPECT_TRUE(Validate(lenet.optimizer).ok());
  EXPECT_EQ(lenet.batch_size, 64);
  EXPECT_EQ(lenet.train_steps, 10'000);
  const TrainDefaults deep = FindModel({.model = "mnist_cnn", .variant = "deep"})->defaults;
  EXPECT_EQ(deep.optimizer, (OptimizerConfig{.kind = OptimizerKind::kAdam, .learning_rate = 1e-4f}));
  EXPECT_EQ(deep.batch_size, 50);
  EXPECT_EQ(deep.train_steps, 20'000);
}

TEST(Models, SayWhichVariantWasChosen) {
  EXPECT_EQ(FindModel({.model = "mnist_mlp"})->variant, "");
  EXPECT_EQ(FindModel({.model = "mnist_cnn"})->variant, "lenet");
  EXPECT_EQ(FindModel({.model = "mnist_cnn", .variant = "deep"})->variant, "deep");
}

TEST(Models, RefuseWhatTheyDoNotHave) {
  const auto error = [](const ModelConfig& config) {
    const absl::Status status = FindModel(config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(error({.model = "mnist_sofmax"}),
            "no model 'mnist_sofmax', did you mean 'mnist_softmax'?; there are: mnist_softmax, mnist_mlp, "
            "mnist_cnn, wide_deep");
  EXPECT_EQ(error({.model = "resnet"}),
            "no model 'resnet'; there are: mnist_softmax, mnist_mlp, mnist_cnn, wide_deep");
  EXPECT_EQ(error({.model = "mnist_mlp", .variant = "deep"}),
            "mnist_mlp has no variants, so none called 'deep'");
  EXPECT_EQ(error({.model = "mnist_cnn", .variant = "dep"}),
            "mnist_cnn has no variant 'dep', did you mean 'deep'?; there are: lenet, deep");
  EXPECT_EQ(error({.model = "mnist_cnn", .hidden = {100}}),
            "mnist_cnn has no hidden layers; mnist_mlp is the model that has");
  for (const std::string model : {"mnist_mlp", "wide_deep"}) {
    for (const int64_t size : {INT64_MIN, int64_t{0}, int64_t{65537}, INT64_MAX}) {
      EXPECT_EQ(error({.model = model, .hidden = {100, size}}),
                absl::StrFormat("hidden: a layer of size %d; from 1 to 65536", size));
    }
    EXPECT_EQ(error({.model = model, .hidden = std::vector<int64_t>(1001, 1)}),
              "hidden: 1001 layers; at most 1000");
    EXPECT_TRUE(FindModel({.model = model, .hidden = std::vector<int64_t>(1000, 1)}).ok());
    EXPECT_TRUE(FindModel({.model = model, .hidden = {65536, 1}}).ok());
  }
  EXPECT_EQ(error({.model = "mnist_softmax", .hidden = {100}}),
            "mnist_softmax has no hidden layers; mnist_mlp is the model that has");
}

constexpr int64_t kDigits = 70;  // no multiple of the batch

// Synthetic digits in steps of 1/16, for ExactParameters.
Dataset ExactDigits() {
  Dataset digits = MakeSyntheticDigits(1, kDigits);
  for (const uint8_t byte : digits.bytes) digits.features.push_back(static_cast<float>(byte / 16) / 16);
  digits.bytes.clear();
  return digits;
}

class EachModelTest : public ::testing::TestWithParam<ModelConfig> {
 protected:
  const std::unique_ptr<Model> model_ = MustMake(GetParam());
  const ReferenceModel reference_{model_->plan(), kSeed};
  const Dataset dataset_ = ExactDigits();
  BatchBuffer buffer_{kLargestBatch, kMnistPixels};
};

// Of the gradient of logits up to 20 in float, and of one sample's loss (dense_test.cc).
constexpr double kLossError = 24 * FLT_EPSILON;

TEST_P(EachModelTest, MatchesTheReference) {
  const std::vector<float> parameters = ExactParameters(model_->layout(), 1);
  const std::vector<double> exact(parameters.begin(), parameters.end());
  const Batch batch = buffer_.FillInOrder(dataset_, {7, 10});
  std::vector<float> gradient(parameters.size(), NAN);
  const BatchResult result = model_->ForwardBackward(parameters, batch, gradient);
  const ReferenceResult expected = reference_.ForwardBackward(exact, batch);
  const std::vector<double> tolerance = reference_.GradientTolerance(exact, batch, kLossError);
  EXPECT_NEAR(result.loss_sum, expected.loss_sum, batch.size() * kLossError);
  for (const LayoutTensor& tensor : model_->layout().tensors()) {
    double largest = 0, largest_tolerance = 0;
    for (int64_t i = tensor.offset; i < tensor.offset + tensor.size; ++i) {
      ASSERT_NEAR(gradient[i], expected.gradient[i], tolerance[i]) << tensor.spec.name << " at " << i;
      largest = std::max(largest, std::abs(expected.gradient[i]));
      largest_tolerance = std::max(largest_tolerance, tolerance[i]);
    }
    EXPECT_LT(largest_tolerance, 0.1 * largest) << tensor.spec.name << ": too wide to show a mistake";
  }
  EXPECT_NEAR(model_->Evaluate(parameters, batch).loss_sum, reference_.EvaluationLoss(exact, batch),
              batch.size() * kLossError);
}

TEST_P(EachModelTest, PartsAddUpToTheWhole) {
  constexpr int64_t kSamples = 7;
  const std::vector<float> parameters = ExactParameters(model_->layout(), 2);
  const std::vector<double> exact(parameters.begin(), parameters.end());
  std::vector<float> whole(parameters.size(), NAN), sum(parameters.size()), part(parameters.size(), NAN);
  BatchResult result;
  for (int worker = 0; worker < 3; ++worker) {
    const SampleRange slice = BatchSlice(0, kSamples, worker, 3);
    result += model_->ForwardBackward(parameters, buffer_.FillInOrder(dataset_, slice), part);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  const Batch batch = buffer_.FillInOrder(dataset_, {0, kSamples});
  const BatchResult expected = model_->ForwardBackward(parameters, batch, whole);
  EXPECT_EQ(result.samples, kSamples);
  EXPECT_EQ(result.correct, expected.correct);
  EXPECT_NEAR(result.loss_sum, expected.loss_sum, 2 * kSamples * kLossError);
  // Each of the two may be off by that much.
  const std::vector<double> tolerance = reference_.GradientTolerance(exact, batch, kLossError);
  for (size_t i = 0; i < sum.size(); ++i) ASSERT_NEAR(sum[i], whole[i], 2 * tolerance[i]) << i;
}

TEST_P(EachModelTest, NotFiniteReachesTheLoss) {
  const std::vector<float> parameters = Initial(*model_);
  std::vector<float> gradient(parameters.size());
  for (const float bad : {NAN, INFINITY}) {
    Dataset poisoned = dataset_;
    poisoned.features[kMnistPixels + kMnistPixels / 2] = bad;  // the second sample's
    const Batch batch = buffer_.FillInOrder(poisoned, {0, 3});
    EXPECT_FALSE(std::isfinite(model_->ForwardBackward(parameters, batch, gradient).loss_sum));
    EXPECT_FALSE(
        std::all_of(gradient.begin(), gradient.end(), [](float value) { return std::isfinite(value); }));
    EXPECT_FALSE(std::isfinite(model_->Evaluate(parameters, batch).loss_sum));
  }
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
  const std::vector<float> parameters = ExactParameters(model_->layout(), 3);
  const BatchResult all = EvaluateDataset(*model_, parameters, dataset_, buffer_)->result;
  BatchResult expected;
  for (int64_t i = 0; i < dataset_.size(); ++i) {
    expected += model_->Evaluate(parameters, buffer_.FillInOrder(dataset_, {i, i + 1}));
  }
  EXPECT_EQ(all.samples, kDigits);
  EXPECT_EQ(all.correct, expected.correct);
  EXPECT_NEAR(all.loss_sum, expected.loss_sum, 2 * kDigits * kLossError);
}

INSTANTIATE_TEST_SUITE_P(All, EachModelTest,
                         ::testing::Values(ModelConfig{.model = "mnist_softmax"},
                                           ModelConfig{.model = "mnist_mlp"},
                                           ModelConfig{.model = "mnist_mlp", .hidden = {33, 50, 7}},
                                           ModelConfig{.model = "mnist_cnn", .variant = "lenet"},
                                           ModelConfig{.model = "mnist_cnn", .variant = "deep"}));

}  // namespace
}  // namespace muster
