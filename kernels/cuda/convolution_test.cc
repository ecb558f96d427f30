#include "kernels/cuda/convolution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <ostream>
#include <vector>

#include "kernels/convolution_reference.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/cuda/max_pool.h"
#include "kernels/kernel_testing.h"
#include "kernels/max_pool_reference.h"

namespace muster {

void PrintTo(const ConvolutionShape& shape, std::ostream* out) {
  *out << shape.height << "x" << shape.width << "x" << shape.channels << " by " << shape.kernel << "x"
       << shape.kernel << "x" << shape.outputs << (shape.padding == Padding::kSame ? " same" : " valid")
       << (shape.activation == Activation::kRelu ? " relu" : "");
}

namespace cuda {
namespace {

ConvolutionGeometry GeometryOf(const ConvolutionShape& shape, int64_t samples) {
  return {.samples = samples,
          .height = shape.height,
          .width = shape.width,
          .channels = shape.channels,
          .output_height = shape.convolved_height(),
          .output_width = shape.convolved_width(),
          .outputs = shape.outputs,
          .kernel = shape.kernel,
          .before = shape.padding == Padding::kSame ? (shape.kernel - 1) / 2 : 0};
}

class ConvolutionTest : public CudaTest, public ::testing::WithParamInterface<ConvolutionShape> {};

// Of whole numbers, so that every kind of math gives the reference's results to the last bit.
TEST_P(ConvolutionTest, MatchesTheReferenceAndStaysInside) {
  const ConvolutionShape& shape = GetParam();
  const bool relu = shape.activation == Activation::kRelu;
  for (const int64_t samples : {3, 1, 0, 20}) {
    const ConvolutionGeometry geometry = GeometryOf(shape, samples);
    const std::vector<float> x = RandomIntegers(1, samples * shape.input_size()),
                             w = RandomIntegers(2, shape.weights_size()),
                             b = RandomIntegers(3, shape.outputs),
                             dy = RandomIntegers(4, samples * shape.output_size());
    std::vector<double> expected_output =
        ReferenceConvolutionForward(shape, samples, Doubles(x), Doubles(w), Doubles(b));
    if (relu) ReferenceRelu(expected_output);
    const ReferenceGradients expected =
        ReferenceConvolutionBackward(shape, samples, Doubles(x), Doubles(w), Doubles(dy));
    for (const Math math : {Math::kFloat32, Math::kTf32, Math::kBfloat16}) {
      SCOPED_TRACE(::testing::Message() << samples << " samples, math " << static_cast<int>(math));
      const GuardedFloats input(x), weights(w), bias(b), output_gradient(dy);
      const GuardedFloats output(samples * shape.output_size()), weights_gradient(shape.weights_size()),
          bias_gradient(shape.outputs), input_gradient(samples * shape.input_size()),
          turned(shape.weights_size()), scratch(ConvolutionScratchSize(GeometryOf(shape, 20)));
      ASSERT_EQ(ConvolutionForward(geometry, math, input.data(), weights.data(), bias.data(), relu,
                                   output.data(), cudaStreamPerThread),
                cudaSuccess);
      EXPECT_EQ(Doubles(output.Read()), expected_output);

      ASSERT_EQ(
          ConvolutionParameterGradient(geometry, math, input.data(), output_gradient.data(), scratch.data(),
                                       weights_gradient.data(), bias_gradient.data(), cudaStreamPerThread),
          cudaSuccess);
      EXPECT_EQ(Doubles(weights_gradient.Read()), expected.weights);
      EXPECT_EQ(Doubles(bias_gradient.Read()), expected.bias);
      scratch.Read();

      ASSERT_EQ(TurnWeights(geometry, weights.data(), turned.data(), cudaStreamPerThread), cudaSuccess);
      ASSERT_EQ(ConvolutionForward(InputGradientGeometry(geometry), math, output_gradient.data(),
                                   turned.data(), nullptr, false, input_gradient.data(), cudaStreamPerThread),
                cudaSuccess);
      turned.Read();
      EXPECT_EQ(Doubles(input_gradient.Read()), expected.input);
    }
  }
}

std::vector<ConvolutionShape> Shapes() {
  constexpr auto kSame = Padding::kSame, kValid = Padding::kValid;
  constexpr auto kRelu = Activation::kRelu;
  return {{.height = 1, .width = 1, .channels = 1, .outputs = 1, .kernel = 1},
          {.height = 7, .width = 5, .channels = 3, .outputs = 5, .kernel = 3, .padding = kSame},
          {.height = 7, .width = 5, .channels = 1, .outputs = 17, .kernel = 4, .padding = kValid},
          {.height = 7, .width = 5, .channels = 17, .outputs = 3, .kernel = 2, .padding = kSame},
          {.height = 5, .width = 5, .channels = 4, .outputs = 33, .kernel = 5, .activation = kRelu},
          {.height = 9, .width = 8, .channels = 4, .outputs = 8, .kernel = 3, .padding = kSame},
          {.height = 6, .width = 11, .channels = 8, .outputs = 36, .kernel = 4, .padding = kSame},
          // the models'
          {.height = 28, .width = 28, .channels = 1, .outputs = 20, .kernel = 5},
          {.height = 12, .width = 12, .channels = 20, .outputs = 50, .kernel = 5},
          {.height = 28,
           .width = 28,
           .channels = 1,
           .outputs = 32,
           .kernel = 5,
           .padding = kSame,
           .activation = kRelu},
          {.height = 14, .width = 14, .channels = 32, .outputs = 64, .kernel = 5, .padding = kSame},
          {.height = 6, .width = 5, .channels = 36, .outputs = 72, .kernel = 3, .padding = kSame}};
}

INSTANTIATE_TEST_SUITE_P(Shapes, ConvolutionTest, ::testing::ValuesIn(Shapes()));

using Convolutions = CudaTest;

std::vector<uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

// Planned for the largest batch. Needs no GPU.
TEST(ConvolutionScratch, IsEnoughForFewerSamplesToo) {
  for (const ConvolutionShape& shape : Shapes()) {
    for (const int64_t largest : {64, 128, 1000}) {
      const int64_t size = ConvolutionScratchSize(GeometryOf(shape, largest));
      for (int64_t samples = 0; samples < largest; ++samples) {
        ASSERT_LE(ConvolutionScratchSize(GeometryOf(shape, samples)), size) << samples << " of " << largest;
      }
    }
  }
}

// To the bit, so that a model may use the one or the other.
TEST_F(Convolutions, PoolAtOnceAsTheyDoLater) {
  constexpr int64_t kSamples = 5;
  for (const int64_t outputs : {36, 33}) {
    const ConvolutionShape shape{
        .height = 16, .width = 8, .channels = 3, .outputs = outputs, .kernel = 3, .padding = Padding::kSame};
    const ConvolutionGeometry geometry = GeometryOf(shape, kSamples);
    std::vector<float> x = RandomFloats(1, kSamples * shape.input_size());
    x[40] = NAN;
    const GuardedFloats input(x), weights(RandomFloats(2, shape.weights_size())),
        bias(RandomFloats(3, shape.outputs));
    for (const int64_t window : {1, 2, 4, 8}) {
      for (const bool relu : {false, true}) {
        for (const Math math : {Math::kFloat32, Math::kTf32}) {
          SCOPED_TRACE(::testing::Message()
                       << "window " << window << ", relu " << relu << ", math " << static_cast<int>(math));
          const PoolGeometry pool{.samples = kSamples,
                                  .height = geometry.output_height,
                                  .width = geometry.output_width,
                                  .channels = geometry.outputs,
                                  .window = window,
                                  .relu = relu};
          const GuardedFloats convolved(pool.input_count()), later(pool.output_count()),
              at_once(pool.output_count());
          const GuardedOnDevice<uint8_t> winners_later(pool.output_count()),
              winners_at_once(pool.output_count());
          ASSERT_EQ(ConvolutionForward(geometry, math, input.data(), weights.data(), bias.data(), false,
                                       convolved.data(), cudaStreamPerThread),
                    cudaSuccess);
          ASSERT_EQ(
              MaxPoolForward(pool, convolved.data(), later.data(), winners_later.data(), cudaStreamPerThread),
              cudaSuccess);
          ASSERT_TRUE(PoolsAtOnce(geometry, window));
          ASSERT_EQ(ConvolutionPoolForward(geometry, math, input.data(), weights.data(), bias.data(), window,
                                           relu, at_once.data(), winners_at_once.data(), cudaStreamPerThread),
                    cudaSuccess);
          EXPECT_EQ(BitsOf(at_once.Read()), BitsOf(later.Read()));
          EXPECT_EQ(winners_at_once.Read(), winners_later.Read());
        }
      }
    }
  }
}

// Of 18816 values for each sample.
TEST(ConvolutionGeometryTest, IsTooLargeFromSomeBatchOn) {
  const ConvolutionShape shape{
      .height = 28, .width = 28, .channels = 1, .outputs = 24, .kernel = 5, .padding = Padding::kSame};
  EXPECT_FALSE(IsTooLarge(GeometryOf(shape, 57065)));
  EXPECT_TRUE(IsTooLarge(GeometryOf(shape, 57066)));
  EXPECT_FALSE(IsTooLarge(InputGradientGeometry(GeometryOf(shape, 57065))));
  EXPECT_TRUE(IsTooLarge(InputGradientGeometry(GeometryOf(shape, 57066))));
}

TEST_F(Convolutions, RefuseWindowsThatTheyCannotPoolAtOnce) {
  const ConvolutionGeometry geometry =
      GeometryOf({.height = 6, .width = 6, .channels = 1, .outputs = 1, .kernel = 1}, 1);
  for (const int64_t window : {3, 4}) {
    EXPECT_FALSE(PoolsAtOnce(geometry, window));
    EXPECT_EQ(ConvolutionPoolForward(geometry, Math::kFloat32, nullptr, nullptr, nullptr, window, false,
                                     nullptr, nullptr, cudaStreamPerThread),
              cudaErrorInvalidValue);
  }
}

TEST_F(Convolutions, NotFiniteReachesWhatItTakesPartIn) {
  const ConvolutionShape shape{.height = 4, .width = 4, .channels = 1, .outputs = 1, .kernel = 3};
  std::vector<float> x(16, 1.0f);
  x[0] = NAN;  // under the first of the four outputs only
  const GuardedFloats input(x), weights(std::vector<float>(9, 1.0f)), bias(std::vector<float>(1)), output(4);
  ASSERT_EQ(ConvolutionForward(GeometryOf(shape, 1), Math::kFloat32, input.data(), weights.data(),
                               bias.data(), true, output.data(), cudaStreamPerThread),
            cudaSuccess);
  const std::vector<float> y = output.Read();
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(std::vector<float>(y.begin() + 1, y.end()), (std::vector<float>{9, 9, 9}));
}

TEST_F(Convolutions, RefuseWhatTheyCannotCount) {
  const ConvolutionGeometry geometry =
      GeometryOf({.height = 1024, .width = 1024, .channels = 1, .outputs = 1, .kernel = 1}, 1 << 11);
  EXPECT_EQ(ConvolutionForward(geometry, Math::kFloat32, nullptr, nullptr, nullptr, false, nullptr,
                               cudaStreamPerThread),
            cudaErrorInvalidValue);
}

using MaxPool = CudaTest;

// No arithmetic, so all values are exactly those of the reference.
TEST_F(MaxPool, MatchesTheReferenceAndStaysInside) {
  for (const int64_t samples : {3, 0}) {
    for (const int64_t channels : {1, 3, 4, 17}) {
      for (const int64_t window : {1, 2, 3, 5}) {
        for (const bool relu : {false, true}) {
          SCOPED_TRACE(::testing::Message() << samples << " samples, " << channels << " channels, window "
                                            << window << ", relu " << relu);
          const PoolGeometry g{.samples = samples,
                               .height = 7,
                               .width = 5,
                               .channels = channels,
                               .window = window,
                               .relu = relu};
          const std::vector<float> x = RandomIntegers(1, g.input_count()),
                                   dy = RandomIntegers(2, g.output_count());
          const GuardedFloats input(x), output(g.output_count()), output_gradient(dy),
              input_gradient(g.input_count());
          const GuardedOnDevice<uint8_t> winners(g.output_count());
          ASSERT_EQ(MaxPoolForward(g, input.data(), output.data(), winners.data(), cudaStreamPerThread),
                    cudaSuccess);
          ASSERT_EQ(MaxPoolBackward(g, output_gradient.data(), winners.data(), input_gradient.data(),
                                    cudaStreamPerThread),
                    cudaSuccess);
          std::vector<double> activated = Doubles(x);
          for (double& value : activated) value = relu && value < 0 ? 0 : value;
          const MaxPoolShape shape{.height = 7, .width = 5, .channels = channels, .window = window};
          const ReferencePooled expected = ReferenceMaxPoolForward(shape, samples, activated);
          EXPECT_EQ(Doubles(output.Read()), expected.output);
          winners.Read();
          std::vector<double> gradient =
              ReferenceMaxPoolBackward(shape, samples, Doubles(dy), expected.winners);
          for (size_t i = 0; relu && i < gradient.size(); ++i) {
            if (x[i] <= 0) gradient[i] = 0;
          }
          EXPECT_EQ(Doubles(input_gradient.Read()), gradient);
        }
      }
    }
  }
}

TEST_F(MaxPool, NanWins) {
  const PoolGeometry g{.samples = 1, .height = 2, .width = 2, .channels = 1, .window = 2, .relu = true};
  const GuardedFloats input(std::vector<float>{1, NAN, 5, 2}), output(1),
      output_gradient(std::vector<float>{7}), input_gradient(4);
  const GuardedOnDevice<uint8_t> winners(1);
  ASSERT_EQ(MaxPoolForward(g, input.data(), output.data(), winners.data(), cudaStreamPerThread), cudaSuccess);
  ASSERT_EQ(
      MaxPoolBackward(g, output_gradient.data(), winners.data(), input_gradient.data(), cudaStreamPerThread),
      cudaSuccess);
  EXPECT_TRUE(std::isnan(output.Read()[0]));
  EXPECT_EQ(input_gradient.Read(), (std::vector<float>{0, 7, 0, 0}));
}

}  // namespace
}  // namespace cuda
}  // namespace muster
