#include "kernels/top_k.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

#include "base/status.h"
#include "kernels/vectorize.h"

namespace muster {
namespace {

// Magnitudes of floats are in the order of their bits.
inline uint32_t MagnitudeBits(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffffu; }

MUSTER_VECTORIZE uint32_t LargestBits(const float* values, size_t size) {
  uint32_t largest = 0;
  for (size_t i = 0; i < size; ++i) largest = std::max(largest, MagnitudeBits(values[i]));
  return largest;
}

// The magnitude of which fewer than `count` values are larger, and with those that are equal as many or more;
// `count` becomes how many of the equal ones are wanted. Counted by exponent and three bits more, which few
// values have in common.
uint32_t Threshold(std::span<const float> values, int64_t* count) {
  constexpr int kShift = 20;
  std::array<int64_t, 1 << (31 - kShift)> counts{};
  for (const float value : values) ++counts[MagnitudeBits(value) >> kShift];
  uint32_t bucket = counts.size() - 1;
  while (counts[bucket] < *count) *count -= counts[bucket--];
  std::vector<uint32_t> candidates;
  candidates.reserve(counts[bucket]);
  for (const float value : values) {
    if (const uint32_t bits = MagnitudeBits(value); bits >> kShift == bucket) candidates.push_back(bits);
  }
  const auto last = candidates.begin() + (*count - 1);
  std::nth_element(candidates.begin(), last, candidates.end(), std::greater<>());
  *count -= std::count_if(candidates.begin(), last, [&](uint32_t bits) { return bits > *last; });
  return *last;
}

}  // namespace

void LargestMagnitudes(std::span<const float> values, int64_t count, std::vector<int64_t>* places) {
  const auto size = static_cast<int64_t>(values.size());
  MUSTER_CHECK(count >= 0 && count <= size);
  places->clear();
  if (count == 0) return;
  places->reserve(count);
  int64_t equal = count;
  const uint32_t threshold = Threshold(values, &equal);
  for (int64_t i = 0; i < size; ++i) {
    const uint32_t bits = MagnitudeBits(values[i]);
    if (bits > threshold || (bits == threshold && equal-- > 0)) places->push_back(i);
  }
}

float LargestMagnitude(std::span<const float> values) {
  constexpr uint32_t kInfinity = 0x7f800000u;
  return std::bit_cast<float>(std::min(LargestBits(values.data(), values.size()), kInfinity));
}

}  // namespace muster
