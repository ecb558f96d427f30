#include "kernels/top_k.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int64_t> Largest(std::span<const float> values, int64_t count) {
  std::vector<int64_t> places = {7};  // what was there before
  LargestMagnitudes(values, count, &places);
  return places;
}

std::vector<int64_t> BySorting(std::span<const float> values, int64_t count) {
  std::vector<int64_t> places(values.size());
  std::iota(places.begin(), places.end(), int64_t{0});
  std::stable_sort(places.begin(), places.end(),
                   [&](int64_t a, int64_t b) { return std::abs(values[a]) > std::abs(values[b]); });
  places.resize(count);
  std::sort(places.begin(), places.end());
  return places;
}

TEST(TopK, FindsWhatSortingFinds) {
  RandomStream random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<float> values(random.NextBelow(200));
    for (float& value : values) {
      // Of many magnitudes, and often the same.
      const auto exponent = static_cast<int>(random.NextBelow(round % 2 == 0 ? 200 : 3)) - 100;
      value = std::ldexp(static_cast<float>(random.NextBelow(8)) - 4.0f, exponent);
    }
    const auto count = static_cast<int64_t>(random.NextBelow(values.size() + 1));
    ASSERT_EQ(Largest(values, count), BySorting(values, count)) << round;
  }
}

TEST(TopK, OfEqualOnesThoseThatComeFirst) {
  const std::vector<float> values = {0, -1, 1, 1, 2, -1};
  EXPECT_THAT(Largest(values, 3), ElementsAre(1, 2, 4));
  EXPECT_THAT(Largest(values, 6), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(Largest(values, 0), IsEmpty());
  EXPECT_THAT(Largest({}, 0), IsEmpty());
}

TEST(TopK, WhatIsNotFiniteIsLargest) {
  const std::vector<float> values = {1, 3e38f, NAN, -INFINITY, 5};
  EXPECT_THAT(Largest(values, 2), ElementsAre(2, 3));
  EXPECT_EQ(LargestMagnitude(values), INFINITY);
  EXPECT_EQ(LargestMagnitude(std::vector<float>{-3, 2}), 3);
  EXPECT_EQ(LargestMagnitude({}), 0);
}

}  // namespace
}  // namespace muster
