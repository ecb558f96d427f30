// What the tests of kernels have in common.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"

namespace muster {

/// In [-1, 1).
inline std::vector<float> RandomFloats(uint64_t seed, int64_t size) {
  RandomStream random(seed);
  std::vector<float> values(size);
  for (float& value : values) value = static_cast<float>(2 * random.NextDouble() - 1);
  return values;
}

inline std::vector<int32_t> RandomLabels(uint64_t seed, int64_t size, int64_t classes) {
  RandomStream random(seed);
  std::vector<int32_t> labels(size);
  for (int32_t& label : labels) label = static_cast<int32_t>(random.NextBelow(classes));
  return labels;
}

inline std::vector<double> Doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

/// A buffer in the middle of NaNs: reading outside of it spoils the result, writing outside of it is found at
/// the end.
class Guarded {
 public:
  explicit Guarded(const std::vector<float>& values) : buffer_(values.size() + 2 * kGuard, NAN) {
    std::copy(values.begin(), values.end(), buffer_.begin() + kGuard);
  }
  explicit Guarded(int64_t size)
      : Guarded(std::vector<float>(size, NAN)) {}  // an output: its old values are NaN as well
  ~Guarded() {
    for (size_t i = 0; i < kGuard; ++i) {
      EXPECT_TRUE(std::isnan(buffer_[i]) && std::isnan(buffer_[buffer_.size() - 1 - i])) << "written outside";
    }
  }
  std::span<float> span() { return std::span(buffer_).subspan(kGuard, buffer_.size() - 2 * kGuard); }

 private:
  static constexpr size_t kGuard = 17;  // odd, so that no buffer is aligned
  std::vector<float> buffer_;
};

inline void ExpectNear(std::span<const float> actual, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(actual[i], expected[i], tolerance) << "at " << i;
}

}  // namespace muster
