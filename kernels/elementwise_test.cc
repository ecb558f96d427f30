#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include <bit>
#include <cfloat>
#include <cmath>

#include "base/crc32c.h"
#include "kernels/kernel_testing.h"

namespace muster {
namespace {

// All floats of a range, thinned out: every 1009th.
std::vector<float> Thinned(float from, float to) {
  std::vector<float> values;
  for (uint32_t bits = std::bit_cast<uint32_t>(from); bits < std::bit_cast<uint32_t>(to); bits += 1009) {
    values.push_back(std::bit_cast<float>(bits));
  }
  return values;
}

TEST(Exponentials, AreAccurate) {
  std::vector<float> values = Thinned(0x1p-40f, 88.0f);
  for (const float value : Thinned(0x1p-40f, 87.3f)) values.push_back(-value);
  values.push_back(0);
  const std::vector<float> x = values;
  Exponentials(values);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(double{x[i]});
    worst = std::max(worst, std::abs(values[i] - exact) / exact);
  }
  EXPECT_LT(worst, FLT_EPSILON);
  RecordProperty("worst_relative_error", std::to_string(worst));
}

TEST(Exponentials, HandleTheEnds) {
  std::vector<float> values = {-INFINITY, -1e30f, -87.4f, 88.1f, INFINITY, NAN, -0.0f};
  Exponentials(values);
  EXPECT_EQ(values[0], 0);
  EXPECT_EQ(values[1], 0);
  EXPECT_EQ(values[2], 0);
  EXPECT_EQ(values[3], INFINITY);
  EXPECT_EQ(values[4], INFINITY);
  EXPECT_TRUE(std::isnan(values[5]));
  EXPECT_EQ(values[6], 1);
}

// Golden value, made by this code: unlike hosts must compute the same.
TEST(Exponentials, HaveTheRecordedBits) {
  std::vector<float> values = RandomFloats(1, 10'007);
  for (float& value : values) value *= 80;
  Exponentials(values);
  EXPECT_EQ(Crc32c(values.data(), values.size() * sizeof(float)), 2441064590u);
}

TEST(AllFinite, FindsOneBadValueAnywhere) {
  for (const int size : {0, 1, 7, 8, 17, 64, 131}) {
    std::vector<float> values = RandomFloats(2, size);
    if (size > 0) values[size / 2] = -FLT_MAX;
    EXPECT_TRUE(AllFinite(values));
    for (int i = 0; i < size; ++i) {
      for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
        const float saved = std::exchange(values[i], bad);
        EXPECT_FALSE(AllFinite(values)) << i << " of " << size;
        values[i] = saved;
      }
    }
  }
}

TEST(Sum, AlsoInPlaceAndToNaN) {
  for (const int size : {0, 1, 7, 16, 131}) {
    const std::vector<float> a = RandomFloats(3, size), b = RandomFloats(4, size);
    Guarded sums(size);
    Sum(a, b, sums.span());
    std::vector<float> in_first = a, in_second = b;
    Sum(in_first, b, in_first);
    Sum(a, in_second, in_second);
    for (int i = 0; i < size; ++i) {
      EXPECT_EQ(sums.span()[i], a[i] + b[i]);
      EXPECT_EQ(in_first[i], a[i] + b[i]);
      EXPECT_EQ(in_second[i], a[i] + b[i]);
    }
  }
  std::vector<float> bad = {NAN, INFINITY}, sums(2);
  Sum(bad, std::vector<float>{1, -INFINITY}, sums);
  EXPECT_TRUE(std::isnan(sums[0]) && std::isnan(sums[1]));
}

TEST(BytesToUnitInterval, CoversZeroToOne) {
  std::vector<uint8_t> bytes(256);
  for (int i = 0; i < 256; ++i) bytes[i] = static_cast<uint8_t>(i);
  Guarded features(256);
  BytesToUnitInterval(bytes, features.span());
  for (int i = 0; i < 256; ++i) EXPECT_FLOAT_EQ(features.span()[i], static_cast<float>(i) / 255) << i;
  EXPECT_EQ(features.span()[0], 0);
  EXPECT_EQ(features.span()[255], 1);
}

}  // namespace
}  // namespace muster
