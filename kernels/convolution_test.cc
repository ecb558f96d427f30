#include "kernels/convolution.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <ostream>
#include <vector>

#include "kernels/convolution_reference.h"
#include "kernels/kernel_testing.h"
#include "kernels/max_pool_reference.h"
#include "kernels/threads.h"

namespace muster {

void PrintTo(const ConvolutionShape& shape, std::ostream* out) {
  *out << shape.height << "x" << shape.width << "x" << shape.channels << " by " << shape.kernel << "x"
       << shape.kernel << "x" << shape.outputs << (shape.padding == Padding::kSame ? " same" : " valid")
       << (shape.activation == Activation::kRelu ? " relu" : "") << " pool " << shape.pool_window;
}

namespace {

// Of whole numbers, so that the results are those of the reference to the last bit, and every choice that
// ReLU and pooling make is the same. What is multiplied by weights is a multiple of 225, since Winograd's
// transform divides weights by up to that.
constexpr float kWhole = 225;

std::vector<float> RandomMultiples(uint64_t seed, int64_t size) {
  std::vector<float> values = RandomIntegers(seed, size);
  for (float& value : values) value *= kWhole;
  return values;
}

struct Data {
  std::vector<float> input, weights, bias, output_gradient;
};

Data IntegerData(const ConvolutionShape& shape, int64_t samples) {
  return {.input = RandomIntegers(1, samples * shape.input_size()),
          .weights = RandomMultiples(2, shape.weights_size()),
          .bias = RandomMultiples(3, shape.outputs),
          .output_gradient = RandomIntegers(4, samples * shape.output_size())};
}

Data FloatData(const ConvolutionShape& shape, int64_t samples) {
  return {.input = RandomFloats(1, samples * shape.input_size()),
          .weights = RandomFloats(2, shape.weights_size()),
          .bias = RandomFloats(3, shape.outputs),
          .output_gradient = RandomFloats(4, samples * shape.output_size())};
}

struct Result {
  std::vector<double> output, weights_gradient, bias_gradient, input_gradient;
  friend bool operator==(const Result&, const Result&) = default;
};

Result RunBoth(Convolution& convolution, const ConvolutionShape& shape, int64_t samples, const Data& data) {
  Guarded input(data.input), weights(data.weights), bias(data.bias), output_gradient(data.output_gradient);
  Guarded output(samples * shape.output_size()), weights_gradient(shape.weights_size()),
      bias_gradient(shape.outputs), input_gradient(samples * shape.input_size());
  convolution.Forward(samples, input.span(), weights.span(), bias.span(), output.span());
  convolution.Backward(samples, input.span(), weights.span(), output_gradient.span(), weights_gradient.span(),
                       bias_gradient.span(), input_gradient.span());
  return {Doubles(output.span()), Doubles(weights_gradient.span()), Doubles(bias_gradient.span()),
          Doubles(input_gradient.span())};
}

Result Reference(const ConvolutionShape& shape, int64_t samples, const Data& data) {
  const std::vector<double> input = Doubles(data.input), weights = Doubles(data.weights);
  const bool relu = shape.activation == Activation::kRelu;
  std::vector<double> convolved =
      ReferenceConvolutionForward(shape, samples, input, weights, Doubles(data.bias));
  if (relu) ReferenceRelu(convolved);
  const MaxPoolShape pool{.height = shape.convolved_height(),
                          .width = shape.convolved_width(),
                          .channels = shape.outputs,
                          .window = shape.pool_window};
  const ReferencePooled pooled = ReferenceMaxPoolForward(pool, samples, convolved);
  std::vector<double> gradient =
      ReferenceMaxPoolBackward(pool, samples, Doubles(data.output_gradient), pooled.winners);
  if (relu) ReferenceReluBackward(convolved, gradient);
  const ReferenceGradients gradients = ReferenceConvolutionBackward(shape, samples, input, weights, gradient);
  return {pooled.output, gradients.weights, gradients.bias, gradients.input};
}

constexpr int64_t kLargestBatch = 37;

class ConvolutionTest : public ::testing::TestWithParam<ConvolutionShape> {
 protected:
  void TearDown() override { SetKernelThreads(1); }
};

TEST_P(ConvolutionTest, MatchesTheReferenceAndStaysInside) {
  const ConvolutionShape& shape = GetParam();
  Convolution convolution(shape, kLargestBatch);
  for (const int64_t samples : {int64_t{3}, int64_t{1}, kLargestBatch, int64_t{0}}) {
    const Data data = IntegerData(shape, samples);
    const Result expected = Reference(shape, samples, data);
    for (const int threads : {1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << samples << " samples, " << threads << " threads");
      SetKernelThreads(threads);
      const Result result = RunBoth(convolution, shape, samples, data);
      ASSERT_EQ(result.output, expected.output);
      ASSERT_EQ(result.weights_gradient, expected.weights_gradient);
      ASSERT_EQ(result.bias_gradient, expected.bias_gradient);
      ASSERT_EQ(result.input_gradient, expected.input_gradient);
    }
  }
}

// A sum of `terms` products of values up to 1 and one more value, in any order, is wrong by at most
// (terms + 2) roundings of a value up to terms + 1 (Higham, "Accuracy and stability of numerical algorithms",
// 3.1). Winograd's (5 x 5) pass through 36 products more and are enlarged; that this adds no more than as
// many terms is no theorem, but leaves room: their errors here are up to five times those of direct sums,
// which are a thousandth of the bound.
double SumTolerance(int64_t terms) { return (terms + 2.0) * (terms + 1.0) * FLT_EPSILON / 2; }

TEST_P(ConvolutionTest, RoundsAsFloatsDo) {
  ConvolutionShape shape = GetParam();
  // Alone: what ReLU and pooling choose could depend on a rounding.
  shape.activation = Activation::kNone;
  shape.pool_window = 1;
  constexpr int64_t kSamples = 3;
  const Data data = FloatData(shape, kSamples);
  Convolution convolution(shape, kSamples);
  const Result result = RunBoth(convolution, shape, kSamples, data);
  const Result expected = Reference(shape, kSamples, data);
  const auto expect_near = [&](const std::vector<double>& actual, const std::vector<double>& wanted,
                               int64_t terms) {
    if (shape.kernel == 5) terms += 36;
    for (size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(actual[i], wanted[i], SumTolerance(terms)) << i;
  };
  const int64_t kernel = shape.kernel * shape.kernel;
  const int64_t pixels = kSamples * shape.convolved_height() * shape.convolved_width();
  expect_near(result.output, expected.output, kernel * shape.channels);
  expect_near(result.input_gradient, expected.input_gradient, kernel * shape.outputs);
  expect_near(result.weights_gradient, expected.weights_gradient, pixels);
  expect_near(result.bias_gradient, expected.bias_gradient, pixels);
}

TEST_P(ConvolutionTest, GivesTheSameBitsOnEachCall) {
  const ConvolutionShape& shape = GetParam();
  const Data data = FloatData(shape, kLargestBatch);
  SetKernelThreads(2);
  Convolution convolution(shape, kLargestBatch);
  const Result first = RunBoth(convolution, shape, kLargestBatch, data);
  RunBoth(convolution, shape, 2, IntegerData(shape, 2));  // leaves no trace
  EXPECT_EQ(RunBoth(convolution, shape, kLargestBatch, data), first);
  Convolution another(shape, kLargestBatch + 1);
  EXPECT_EQ(RunBoth(another, shape, kLargestBatch, data), first);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, ConvolutionTest,
    ::testing::Values(
        ConvolutionShape{.height = 7, .width = 5, .channels = 1, .outputs = 3, .kernel = 3},
        ConvolutionShape{.height = 7,
                         .width = 5,
                         .channels = 3,
                         .outputs = 5,
                         .kernel = 5,
                         .padding = Padding::kSame,
                         .activation = Activation::kRelu,
                         .pool_window = 2},
        ConvolutionShape{
            .height = 7, .width = 5, .channels = 5, .outputs = 17, .kernel = 1, .pool_window = 3},
        ConvolutionShape{.height = 7,
                         .width = 5,
                         .channels = 17,
                         .outputs = 1,
                         .kernel = 2,
                         .padding = Padding::kSame,
                         .activation = Activation::kRelu},
        ConvolutionShape{
            .height = 5, .width = 7, .channels = 17, .outputs = 17, .kernel = 5, .pool_window = 1},
        ConvolutionShape{
            .height = 1, .width = 1, .channels = 8, .outputs = 16, .kernel = 3, .padding = Padding::kSame},
        ConvolutionShape{
            .height = 12, .width = 12, .channels = 20, .outputs = 50, .kernel = 5, .pool_window = 2},
        ConvolutionShape{.height = 14,
                         .width = 14,
                         .channels = 16,
                         .outputs = 32,
                         .kernel = 5,
                         .padding = Padding::kSame,
                         .activation = Activation::kRelu,
                         .pool_window = 2},
        ConvolutionShape{.height = 28,
                         .width = 28,
                         .channels = 1,
                         .outputs = 32,
                         .kernel = 5,
                         .padding = Padding::kSame,
                         .activation = Activation::kRelu,
                         .pool_window = 2}));

TEST(Convolution, NeedsNoInputGradient) {
  const ConvolutionShape shape{.height = 6, .width = 6, .channels = 3, .outputs = 8, .kernel = 3};
  const Data data = IntegerData(shape, 2);
  Convolution convolution(shape, 2);
  const Result expected = RunBoth(convolution, shape, 2, data);
  std::vector<float> weights_gradient(shape.weights_size()), bias_gradient(shape.outputs);
  convolution.Backward(2, data.input, data.weights, data.output_gradient, weights_gradient, bias_gradient,
                       {});
  EXPECT_EQ(Doubles(weights_gradient), expected.weights_gradient);
  EXPECT_EQ(Doubles(bias_gradient), expected.bias_gradient);
}

// On one colour all convolved values are equal, so that the first of each window wins, whatever the weights.
TEST(Convolution, EqualValuesStayEqual) {
  const ConvolutionShape shape{
      .height = 12, .width = 12, .channels = 20, .outputs = 50, .kernel = 5, .pool_window = 2};
  constexpr int64_t kSamples = 2;
  Data data = FloatData(shape, kSamples);
  std::ranges::fill(data.input, 0.1f);
  Convolution convolution(shape, kSamples);
  const Result result = RunBoth(convolution, shape, kSamples, data);
  const Result expected = Reference(shape, kSamples, data);
  for (size_t i = 0; i < expected.input_gradient.size(); ++i) {
    ASSERT_NEAR(result.input_gradient[i], expected.input_gradient[i], 1e-3) << i;
  }
}

// Or an optimizer such as Adam, for which size does not count, would move weights that take no part.
TEST(Convolution, GradientsOfWhatIsDeadAreZero) {
  const ConvolutionShape shape{.height = 9, .width = 8, .channels = 20, .outputs = 50, .kernel = 5};
  constexpr int64_t kSamples = 3, kDeadChannel = 7, kDeadOutput = 33;
  Data data = FloatData(shape, kSamples);
  for (size_t i = kDeadChannel; i < data.input.size(); i += shape.channels) data.input[i] = 0;
  for (size_t i = kDeadOutput; i < data.output_gradient.size(); i += shape.outputs)
    data.output_gradient[i] = 0;
  for (float& gradient : std::span(data.output_gradient).first(shape.output_size())) gradient = 0;
  Convolution convolution(shape, kSamples);
  const Result result = RunBoth(convolution, shape, kSamples, data);
  for (int64_t i = 0; i < shape.weights_size(); ++i) {
    const bool is_dead =
        i / shape.outputs % shape.channels == kDeadChannel || i % shape.outputs == kDeadOutput;
    ASSERT_EQ(result.weights_gradient[i] == 0, is_dead) << i;
  }
  EXPECT_EQ(result.bias_gradient[kDeadOutput], 0);
  for (int64_t i = 0; i < kSamples * shape.input_size(); ++i) {  // the first sample is not to be learnt from
    ASSERT_EQ(result.input_gradient[i] == 0, i < shape.input_size()) << i;
  }
}

TEST(Convolution, NotFiniteReachesWhatItTakesPartIn) {
  for (const auto& [channels, kernel] : {std::pair(1, 3), {3, 3}, {16, 3}, {1, 5}, {16, 5}}) {
    const ConvolutionShape shape{.height = 8,
                                 .width = 8,
                                 .channels = channels,
                                 .outputs = 16,
                                 .kernel = kernel,
                                 .activation = Activation::kRelu,
                                 .pool_window = 2};
    Convolution convolution(shape, 2);
    Data data = IntegerData(shape, 2);
    data.input[0] = NAN;  // one corner of the first sample
    const Result result = RunBoth(convolution, shape, 2, data);
    for (int64_t i = 0; i < 2 * shape.output_size(); ++i) {
      EXPECT_EQ(std::isnan(result.output[i]), i < shape.outputs) << i;
    }
    for (int64_t o = 0; o < shape.outputs; ++o) EXPECT_TRUE(std::isnan(result.weights_gradient[o])) << o;

    data = IntegerData(shape, 2);
    data.weights[0] = NAN;
    data.output_gradient.assign(data.output_gradient.size(), 1.0f);
    const Result poisoned = RunBoth(convolution, shape, 2, data);
    for (size_t i = 0; i < poisoned.output.size(); ++i) {
      EXPECT_EQ(std::isnan(poisoned.output[i]), i % shape.outputs == 0) << i;
    }
    EXPECT_TRUE(std::isnan(poisoned.input_gradient[0]));
  }
}

TEST(Convolution, LeavesTheCallersThreadsAsTheyAre) {
  const ConvolutionShape shape{.height = 6, .width = 6, .channels = 3, .outputs = 8, .kernel = 3};
  SetKernelThreads(3);
  Convolution convolution(shape, 5);
  RunBoth(convolution, shape, 5, IntegerData(shape, 5));
  EXPECT_EQ(omp_get_max_threads(), 3);
  SetKernelThreads(1);
}

TEST(ConvolutionDeathTest, RefusesSizesThatDoNotFit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const ConvolutionShape shape{.height = 4, .width = 4, .channels = 1, .outputs = 2, .kernel = 3};
  Convolution convolution(shape, 1);
  const Data data = IntegerData(shape, 2);
  std::vector<float> output(2 * shape.output_size());
  EXPECT_DEATH(convolution.Forward(2, data.input, data.weights, data.bias, output), "largest_batch");
  ConvolutionShape too_large = shape;
  too_large.kernel = 5;
  EXPECT_DEATH(Convolution(too_large, 1), "convolved_height");
}

}  // namespace
}  // namespace muster
