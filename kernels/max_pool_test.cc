#include "kernels/max_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/kernel_testing.h"
#include "kernels/max_pool_reference.h"

namespace muster {
namespace {

// Where channel c of a pixel of [samples, height, width, channels] lies in the memory that `shape` names.
int64_t PlaceOf(const MaxPoolShape& shape, int64_t at) {
  if (shape.input_block == 0) return at;
  const int64_t c = at % shape.channels, pixel = at / shape.channels;
  const int64_t pixels = shape.height * shape.width;
  const int64_t blocks = (shape.channels + shape.input_block - 1) / shape.input_block;
  const int64_t plane = pixel / pixels * blocks + c / shape.input_block;
  return (plane * pixels + pixel % pixels) * shape.input_block + c % shape.input_block;
}

// No arithmetic, so all values are exactly those of the reference.
TEST(MaxPool, MatchesTheReferenceAndStaysInside) {
  constexpr int64_t kSamples = 3;
  for (const int64_t channels : {1, 3, 4, 5, 17}) {
    for (const int64_t window : {1, 2, 3, 5}) {
      for (const int64_t block : {0, 8, 16}) {
        for (const bool relu : {false, true}) {
          const MaxPoolShape shape{.height = 7,
                                   .width = 5,
                                   .channels = channels,
                                   .window = window,
                                   .activation = relu ? Activation::kRelu : Activation::kNone,
                                   .input_block = block};
          SCOPED_TRACE(::testing::Message() << channels << " channels, window " << window << ", block "
                                            << block << ", relu " << relu);
          const std::vector<float> x = RandomIntegers(1, kSamples * 7 * 5 * channels);
          const std::vector<float> dy = RandomIntegers(2, kSamples * shape.output_size());
          std::vector<float> placed(kSamples * shape.input_size(), NAN);  // no channel: not to be looked at
          for (size_t i = 0; i < x.size(); ++i) placed[PlaceOf(shape, i)] = x[i];

          Guarded input(placed), output(dy.size()), output_gradient(dy);
          Guarded input_gradient(static_cast<int64_t>(placed.size()));
          std::vector<uint8_t> winners(dy.size());
          MaxPoolForward(shape, kSamples, input.span(), output.span(), winners);
          MaxPoolBackward(shape, kSamples, output_gradient.span(), winners, input_gradient.span());

          std::vector<double> activated = Doubles(x);
          for (double& value : activated) value = relu && value < 0 ? 0 : value;
          const ReferencePooled expected = ReferenceMaxPoolForward(shape, kSamples, activated);
          EXPECT_EQ(Doubles(output.span()), expected.output);
          std::vector<double> gradient =
              ReferenceMaxPoolBackward(shape, kSamples, Doubles(dy), expected.winners);
          for (size_t i = 0; i < gradient.size(); ++i) {
            if (relu && x[i] <= 0) gradient[i] = 0;
            ASSERT_EQ(input_gradient.span()[PlaceOf(shape, i)], gradient[i]) << i;
          }
        }
      }
    }
  }
}

TEST(MaxPool, LeavesPlacesWithoutAChannelAlone) {
  const MaxPoolShape shape{.height = 3, .width = 3, .channels = 5, .window = 2, .input_block = 8};
  std::vector<float> gradient(shape.input_size(), 7);
  const std::vector<uint8_t> winners(shape.output_size());
  MaxPoolBackward(shape, 1, std::vector<float>(shape.output_size(), 1.0f), winners, gradient);
  for (int64_t pixel = 0; pixel < 9; ++pixel) {
    for (int64_t c = 0; c < 8; ++c) EXPECT_EQ(gradient[pixel * 8 + c], c >= 5 ? 7 : pixel == 0 ? 1 : 0);
  }
}

TEST(MaxPool, NotFiniteStaysVisible) {
  for (const Activation activation : {Activation::kNone, Activation::kRelu}) {
    // Five channels: four that are pooled at once, and one.
    const MaxPoolShape shape{.height = 2, .width = 2, .channels = 5, .window = 2, .activation = activation};
    for (int place = 0; place < 4; ++place) {
      for (int channel = 0; channel < 5; ++channel) {
        std::vector<float> input(20, 1.0f), output(5), gradient(20);
        std::vector<uint8_t> winners(5);
        input[place * 5 + channel] = NAN;
        MaxPoolForward(shape, 1, input, output, winners);
        for (int c = 0; c < 5; ++c) EXPECT_EQ(std::isnan(output[c]), c == channel);
        MaxPoolBackward(shape, 1, std::vector<float>(5, NAN), winners, gradient);
        EXPECT_TRUE(std::isnan(gradient[place * 5 + channel]));
      }
    }
  }
}

TEST(MaxPool, OfNothing) {
  const MaxPoolShape shape{.height = 2, .width = 2, .channels = 3, .window = 2};
  MaxPoolForward(shape, 0, {}, {}, {});
  MaxPoolBackward(shape, 0, {}, {}, {});
  const MaxPoolShape infinite{.height = 1, .width = 1, .channels = 1, .window = 1};
  std::vector<float> output(1);
  std::vector<uint8_t> winners(1);
  MaxPoolForward(infinite, 1, std::vector<float>{-INFINITY}, output, winners);
  EXPECT_EQ(output[0], -INFINITY);
}

TEST(MaxPoolDeathTest, RefusesSizesThatDoNotFit) {
  const MaxPoolShape shape{.height = 4, .width = 4, .channels = 1, .window = 2};
  std::vector<float> input(16), output(4);
  std::vector<uint8_t> winners(4);
  EXPECT_DEATH(MaxPoolForward(shape, 2, input, output, winners), "samples");
  MaxPoolShape too_large = shape;
  too_large.window = 5;
  EXPECT_DEATH(MaxPoolForward(too_large, 1, input, {}, {}), "window");
}

}  // namespace
}  // namespace muster
