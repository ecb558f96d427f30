#include "kernels/cross_entropy.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <tuple>

#include "kernels/dense_reference.h"
#include "kernels/kernel_testing.h"

namespace muster {
namespace {

class SoftmaxTest : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(SoftmaxTest, MatchesTheReference) {
  const auto [batch, classes] = GetParam();
  std::vector<float> x = RandomFloats(5, batch * classes);
  for (float& value : x) value *= 20;
  const std::vector<int32_t> labels = RandomLabels(6, batch, classes);
  std::vector<double> expected_gradient;
  const double expected = ReferenceSoftmaxCrossEntropy(classes, Doubles(x), labels, &expected_gradient);

  Guarded logits(x), gradient(batch * classes);
  const LossResult result = SoftmaxCrossEntropy(classes, logits.span(), labels, gradient.span());
  // The difference of logits, up to 40, is rounded once to a float; exp turns that into a relative error of
  // 20 epsilon, its own rounding and two products add less than 4. A gradient is at most 1, one sample's loss
  // is the logarithm of the sum.
  const double tolerance = 24 * FLT_EPSILON;
  ExpectNear(gradient.span(), expected_gradient, tolerance);
  EXPECT_NEAR(result.loss_sum, expected, batch * tolerance);

  SoftmaxCrossEntropy(classes, logits.span(), labels, logits.span());  // in place
  EXPECT_TRUE(std::equal(logits.span().begin(), logits.span().end(), gradient.span().begin()));
}

INSTANTIATE_TEST_SUITE_P(Sizes, SoftmaxTest,
                         ::testing::Values(std::tuple(1, 1), std::tuple(3, 7), std::tuple(33, 10),
                                           std::tuple(64, 33), std::tuple(65, 10), std::tuple(200, 3),
                                           std::tuple(0, 3)));

TEST(SigmoidCrossEntropy, MatchesTheReference) {
  for (const int batch : {0, 1, 7, 64, 65, 200}) {
    std::vector<float> x = RandomFloats(7, batch);
    for (float& value : x) value *= 10;
    const std::vector<int32_t> labels = RandomLabels(8, batch, 2);
    std::vector<double> expected_gradient;
    const double expected = ReferenceSigmoidCrossEntropy(Doubles(x), labels, &expected_gradient);
    int64_t correct = 0;
    for (int i = 0; i < batch; ++i) correct += (x[i] > 0) == (labels[i] == 1);
    Guarded logits(x), gradient(batch);
    const LossResult result = SigmoidCrossEntropy(logits.span(), labels, gradient.span());
    // The exponential is off by two epsilon, a loss near 0 by as much of at most 1, a gradient by one
    // rounding more.
    ExpectNear(gradient.span(), expected_gradient, 3 * FLT_EPSILON);
    EXPECT_NEAR(result.loss_sum, expected, batch * 3 * FLT_EPSILON);
    EXPECT_EQ(result.correct, correct);
    SigmoidCrossEntropy(logits.span(), labels, logits.span());  // in place
    EXPECT_TRUE(std::equal(logits.span().begin(), logits.span().end(), gradient.span().begin()));
  }
}

TEST(SigmoidReference, IsThePlainFormulaAndAgreesWithCentralDifferences) {
  constexpr double kStep = 1e-5;
  const auto loss = [](double x, int32_t label, std::vector<double>* gradient) {
    return ReferenceSigmoidCrossEntropy(std::vector{x}, std::vector{label}, gradient);
  };
  for (const double x : {-30.0, -2.0, -1e-3, 0.0, 0.5, 3.0}) {
    for (const int32_t label : {0, 1}) {
      std::vector<double> gradient, unused;
      const double probability = 1 / (1 + std::exp(label == 1 ? -x : x));
      EXPECT_NEAR(loss(x, label, &gradient), -std::log(probability), 1e-12);
      const double difference =
          (loss(x + kStep, label, &unused) - loss(x - kStep, label, &unused)) / (2 * kStep);
      EXPECT_NEAR(gradient[0], difference, 1e-6);
    }
  }
}

TEST(SigmoidCrossEntropy, IsStableForLargeLogitsAndNanStaysVisible) {
  std::vector<float> gradient(3);
  const std::vector<float> logits = {1000, -1000, -1e30f};
  const LossResult result = SigmoidCrossEntropy(logits, std::vector<int32_t>{1, 0, 1}, gradient);
  EXPECT_EQ(result.loss_sum, double{1e30f});
  EXPECT_EQ(result.correct, 2);
  EXPECT_EQ(gradient, (std::vector<float>{0, 0, -1}));
  for (const int32_t label : {0, 1}) {
    std::vector<float> one(1);
    const LossResult bad = SigmoidCrossEntropy(std::vector<float>{NAN}, std::vector<int32_t>{label}, one);
    EXPECT_TRUE(std::isnan(bad.loss_sum));
    EXPECT_TRUE(std::isnan(one[0]));
    EXPECT_EQ(bad.correct, 0);
  }
}

TEST(SoftmaxReference, GradientAgreesWithCentralDifferences) {
  constexpr int64_t kClasses = 5;
  constexpr double kStep = 1e-5;  // truncation and rounding both near 1e-10
  const std::vector<int32_t> labels = RandomLabels(1, 4, kClasses);
  std::vector<double> x = Doubles(RandomFloats(2, 4 * kClasses)), gradient, unused;
  ReferenceSoftmaxCrossEntropy(kClasses, x, labels, &gradient);
  for (size_t i = 0; i < x.size(); ++i) {
    const double saved = x[i];
    x[i] = saved + kStep;
    const double above = ReferenceSoftmaxCrossEntropy(kClasses, x, labels, &unused);
    x[i] = saved - kStep;
    const double below = ReferenceSoftmaxCrossEntropy(kClasses, x, labels, &unused);
    x[i] = saved;
    EXPECT_NEAR((above - below) / (2 * kStep), gradient[i], 1e-6) << i;
  }
}

TEST(SoftmaxCrossEntropy, IsStableForLargeLogits) {
  const std::vector<float> logits = {FLT_MAX / 2, -FLT_MAX / 2, 0, 1000, 999, -1000};
  std::vector<float> gradient(6);
  const LossResult result = SoftmaxCrossEntropy(3, logits, std::vector<int32_t>{0, 0}, gradient);
  EXPECT_NEAR(result.loss_sum, std::log1p(std::exp(-1)), FLT_EPSILON);
  EXPECT_EQ(result.correct, 2);
  EXPECT_EQ(gradient[0], 0);
  EXPECT_NEAR(gradient[4], 1 / (1 + std::exp(1)), FLT_EPSILON);
}

TEST(SoftmaxCrossEntropy, CountsTheFirstOfEqualLogits) {
  const std::vector<float> logits = {0, 0, 0, 0, 1, 1};
  std::vector<float> gradient(6);
  EXPECT_EQ(SoftmaxCrossEntropy(3, logits, std::vector<int32_t>{0, 1}, gradient).correct, 2);
  EXPECT_EQ(SoftmaxCrossEntropy(3, logits, std::vector<int32_t>{2, 2}, gradient).correct, 0);
}

TEST(SoftmaxCrossEntropy, NanStaysVisibleWhereverItIs) {
  for (int position = 0; position < 3; ++position) {  // the search for the largest must not hide it
    std::vector<float> logits = {1, 2, 3}, gradient(3);
    logits[position] = NAN;
    const LossResult result = SoftmaxCrossEntropy(3, logits, std::vector<int32_t>{2}, gradient);
    EXPECT_TRUE(std::isnan(result.loss_sum));
    EXPECT_EQ(result.correct, 0);
    for (const float value : gradient) EXPECT_TRUE(std::isnan(value));
  }
}

}  // namespace
}  // namespace muster
