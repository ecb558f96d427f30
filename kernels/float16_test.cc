#include "kernels/float16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/random.h"

namespace muster {
namespace {

std::vector<uint16_t> AllHalves() {
  std::vector<uint16_t> halves(1 << 16);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  return halves;
}

// What the bits stand for, by the definition of the formats.
double ValueOf(uint16_t half, int mantissa_bits) {
  const int exponent_bits = 15 - mantissa_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (half & 0x7fff) >> mantissa_bits;
  const double fraction = std::ldexp(half & ((1 << mantissa_bits) - 1), -mantissa_bits);
  double value;
  if (exponent == (1 << exponent_bits) - 1) {
    value = fraction == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    value = std::ldexp(fraction, 1 - bias);
  } else {
    value = std::ldexp(1 + fraction, exponent - bias);
  }
  return half & 0x8000 ? -value : value;
}

struct Format {
  int mantissa_bits;
  void (*to)(std::span<const float>, std::span<uint16_t>);
  void (*from)(const unsigned char*, std::span<float>);
};
const Format kFormats[] = {{10, ToFloat16, FromFloat16}, {7, ToBfloat16, FromBfloat16}};

std::vector<float> Decode(const Format& format, const std::vector<uint16_t>& halves) {
  std::vector<unsigned char> bytes(1 + 2 * halves.size());  // at an odd byte
  std::memcpy(bytes.data() + 1, halves.data(), 2 * halves.size());
  std::vector<float> values(halves.size());
  format.from(bytes.data() + 1, values);
  return values;
}

TEST(Float16, EveryOneOfThemStandsForWhatItsFormatSays) {
  for (const Format& format : kFormats) {
    const std::vector<uint16_t> halves = AllHalves();
    const std::vector<float> values = Decode(format, halves);
    for (size_t i = 0; i < halves.size(); ++i) {
      const double expected = ValueOf(halves[i], format.mantissa_bits);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(values[i])) << i;
      } else {
        ASSERT_EQ(values[i], expected) << i;
        ASSERT_EQ(std::signbit(values[i]), std::signbit(expected)) << i;
      }
    }
  }
}

TEST(Float16, WhatComesFromOneGoesBackToIt) {
  for (const Format& format : kFormats) {
    const std::vector<uint16_t> halves = AllHalves();
    const std::vector<float> values = Decode(format, halves);
    std::vector<uint16_t> again(halves.size());
    format.to(values, again);
    for (size_t i = 0; i < halves.size(); ++i) {
      if (std::isnan(values[i])) continue;
      ASSERT_EQ(again[i], halves[i]) << i;
    }
    const std::vector<float> decoded = Decode(format, again);
    for (size_t i = 0; i < halves.size(); ++i) ASSERT_EQ(std::isnan(decoded[i]), std::isnan(values[i])) << i;
  }
}

// Halfway between two neighbours it is the even one, and beside it the nearer one.
TEST(Float16, RoundsToTheNearestAndHalvesToEven) {
  for (const Format& format : kFormats) {
    const uint16_t infinity =
        static_cast<uint16_t>(((1 << (15 - format.mantissa_bits)) - 1) << format.mantissa_bits);
    for (uint16_t half = 0; half + 1 < infinity; ++half) {
      const double below = ValueOf(half, format.mantissa_bits);
      const double above = ValueOf(half + 1, format.mantissa_bits);
      const auto middle = static_cast<float>((below + above) / 2);
      ASSERT_EQ(middle, (below + above) / 2);
      const std::vector<float> values = {middle, std::nextafter(middle, 0.0f),
                                         std::nextafter(middle, std::numeric_limits<float>::infinity()),
                                         -middle};
      std::vector<uint16_t> rounded(values.size());
      format.to(values, rounded);
      const auto even = static_cast<uint16_t>(half % 2 == 0 ? half : half + 1);
      ASSERT_EQ(rounded[0], even) << half;
      ASSERT_EQ(rounded[1], half) << half;
      ASSERT_EQ(rounded[2], half + 1) << half;
      ASSERT_EQ(rounded[3], even | 0x8000) << half;
    }
  }
}

TEST(Float16, WhatIsTooLargeIsInfinite) {
  const std::vector<float> values = {65504.0f, 65519.9f, 65520.0f, 1e6f, -1e30f, INFINITY};
  std::vector<uint16_t> halves(values.size());
  ToFloat16(values, halves);
  EXPECT_EQ(halves, (std::vector<uint16_t>{0x7bff, 0x7bff, 0x7c00, 0x7c00, 0xfc00, 0x7c00}));
  ToBfloat16(values, halves);
  EXPECT_EQ(halves[5], 0x7f80);
  EXPECT_LT(halves[3], 0x7f80);
}

// The bits of vectors are those of the loop's last few.
TEST(Float16, EachElementIsByItself) {
  RandomStream random(1);
  std::vector<float> values(1003);
  for (float& value : values) value = std::bit_cast<float>(static_cast<uint32_t>(random.Next() >> 32));
  for (const Format& format : kFormats) {
    std::vector<uint16_t> all(values.size());
    format.to(values, all);
    const std::vector<float> decoded = Decode(format, all);
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t one;
      format.to({&values[i], 1}, {&one, 1});
      ASSERT_EQ(one, all[i]) << values[i];
      ASSERT_EQ(std::bit_cast<uint32_t>(Decode(format, {one})[0]), std::bit_cast<uint32_t>(decoded[i]));
    }
  }
}

}  // namespace
}  // namespace muster
