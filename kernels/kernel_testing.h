// What the tests of kernels have in common.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"
#include "kernels/guarded.h"

namespace muster {

/// In [-1, 1).
inline std::vector<float> RandomFloats(uint64_t seed, int64_t size) {
  RandomStream random(seed);
  std::vector<float> values(size);
  for (float& value : values) value = static_cast<float>(2 * random.NextDouble() - 1);
  return values;
}

/// Whole numbers from -3 to 3: their sums of products are exact in float, so that results are those of a
/// reference to the last bit; few different ones, so that some are equal.
inline std::vector<float> RandomIntegers(uint64_t seed, int64_t size) {
  RandomStream random(seed);
  std::vector<float> values(size);
  for (float& value : values) value = static_cast<float>(random.NextBelow(7)) - 3;
  return values;
}

inline std::vector<int32_t> RandomLabels(uint64_t seed, int64_t size, int64_t classes) {
  RandomStream random(seed);
  std::vector<int32_t> labels(size);
  for (int32_t& label : labels) label = static_cast<int32_t>(random.NextBelow(classes));
  return labels;
}

inline std::vector<double> Doubles(std::span<const float> values) { return {values.begin(), values.end()}; }

inline void ExpectNear(std::span<const float> actual, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(actual[i], expected[i], tolerance) << "at " << i;
}

}  // namespace muster
