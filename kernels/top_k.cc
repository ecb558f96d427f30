#include "kernels/top_k.h"

#include <algorithm>
#include <array>
#include <bit>

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
// `count` becomes how many of the equal ones are wanted. Digit by digit, from the highest one: a digit is
// known when the values that begin with the digits before it have been counted by it.
uint32_t Threshold(std::span<const float> values, int64_t* count) {
  constexpr int kDigitBits[] = {11, 10, 10};
  uint32_t known = 0;
  int shift = 31;
  for (const int digit_bits : kDigitBits) {
    const int above = shift;
    shift -= digit_bits;
    const uint32_t mask = (1u << digit_bits) - 1;
    std::array<int64_t, 1 << 11> counts{};
    for (const float value : values) {
      const uint32_t bits = MagnitudeBits(value);
      if (bits >> above == known >> above) ++counts[(bits >> shift) & mask];
    }
    uint32_t digit = mask;
    while (counts[digit] < *count) *count -= counts[digit--];
    known |= digit << shift;
  }
  return known;
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
