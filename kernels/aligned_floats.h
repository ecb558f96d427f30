// Scratch memory of kernels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace muster {

/// Floats that begin at a cache line; its end is padded to one.
class AlignedFloats {
 public:
  explicit AlignedFloats(int64_t size, float value = 0) : lines_((size + kLineFloats - 1) / kLineFloats) {
    std::fill_n(data(), static_cast<int64_t>(lines_.size()) * kLineFloats, value);
  }
  bool empty() const { return lines_.empty(); }
  float* data() { return reinterpret_cast<float*>(lines_.data()); }

 private:
  static constexpr int64_t kLineFloats = 16;
  struct alignas(64) Line {
    float values[kLineFloats];
  };
  std::vector<Line> lines_;
};

}  // namespace muster
