// Buffers of tests that notice what is read or written outside of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace muster {

/// Floats in the middle of NaNs, not aligned: what is read outside spoils the result, what is written outside
/// aborts the test when the buffer goes.
class Guarded {
 public:
  explicit Guarded(std::span<const float> values) : buffer_(values.size() + 2 * kGuard, NAN) {
    std::copy(values.begin(), values.end(), buffer_.begin() + kGuard);
  }
  /// An output: its old values are NaN as well.
  explicit Guarded(int64_t size) : Guarded(std::vector<float>(size, NAN)) {}
  ~Guarded() {
    for (size_t i = 0; i < kGuard; ++i) {
      MUSTER_CHECK(std::isnan(buffer_[i]) && std::isnan(buffer_[buffer_.size() - 1 - i]));
    }
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::span<float> span() { return std::span(buffer_).subspan(kGuard, buffer_.size() - 2 * kGuard); }

 private:
  static constexpr size_t kGuard = 17;  // odd, so that no buffer is aligned
  std::vector<float> buffer_;
};

}  // namespace muster
