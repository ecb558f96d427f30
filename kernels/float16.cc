#include "kernels/float16.h"

#include <bit>
#include <cstring>

#include "base/status.h"
#include "kernels/vectorize.h"

namespace muster {
namespace {

constexpr uint32_t kInfinity = 0x7f800000u;

// All cases are computed and one is chosen, so that loops become vectors.
inline uint16_t Float16Of(float value) {
  constexpr uint32_t kTooLarge = 0x47800000u;        // 65536
  constexpr uint32_t kSmallestNormal = 0x38800000u;  // 2^-14
  constexpr uint32_t kHalf = 0x3f000000u;            // 0.5, whose last place is the smallest float16, 2^-24
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t special = magnitude > kInfinity ? 0x7e00u : 0x7c00u;
  // The addition rounds.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - kHalf;
  const uint32_t is_odd = (magnitude >> 13) & 1u;
  const uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + is_odd) >> 13;
  const uint32_t finite = magnitude < kSmallestNormal ? subnormal : normal;
  return static_cast<uint16_t>((magnitude >= kTooLarge ? special : finite) | ((bits >> 16) & 0x8000u));
}

inline float FromFloat16(uint16_t half) {
  const uint32_t shifted = (half & 0x7fffu) << 13;
  constexpr uint32_t kLargestExponent = 0x1fu << 23;
  constexpr uint32_t kSmallestNormal = 113u << 23;  // 2^-14
  const uint32_t exponent = shifted & kLargestExponent;
  const uint32_t special = shifted + ((255u - 31u) << 23);
  const uint32_t normal = shifted + ((127u - 15u) << 23);
  const float subnormal =
      std::bit_cast<float>(shifted + kSmallestNormal) - std::bit_cast<float>(kSmallestNormal);
  const uint32_t small = exponent == 0 ? std::bit_cast<uint32_t>(subnormal) : normal;
  const uint32_t magnitude = exponent == kLargestExponent ? special : small;
  return std::bit_cast<float>(magnitude | (static_cast<uint32_t>(half & 0x8000u) << 16));
}

inline uint16_t Bfloat16Of(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > kInfinity ? nan : rounded);
}

inline float FromBfloat16(uint16_t half) { return std::bit_cast<float>(static_cast<uint32_t>(half) << 16); }

inline uint16_t HalfAt(const unsigned char* bytes, size_t i) {
  uint16_t half;
  std::memcpy(&half, bytes + i * sizeof half, sizeof half);
  return half;
}

MUSTER_VECTORIZE void ToFloat16Loop(const float* values, size_t size, uint16_t* out) {
  for (size_t i = 0; i < size; ++i) out[i] = Float16Of(values[i]);
}
MUSTER_VECTORIZE void ToBfloat16Loop(const float* values, size_t size, uint16_t* out) {
  for (size_t i = 0; i < size; ++i) out[i] = Bfloat16Of(values[i]);
}
MUSTER_VECTORIZE void FromFloat16Loop(const unsigned char* bytes, size_t size, float* values) {
  for (size_t i = 0; i < size; ++i) values[i] = FromFloat16(HalfAt(bytes, i));
}
MUSTER_VECTORIZE void FromBfloat16Loop(const unsigned char* bytes, size_t size, float* values) {
  for (size_t i = 0; i < size; ++i) values[i] = FromBfloat16(HalfAt(bytes, i));
}

}  // namespace

void ToFloat16(std::span<const float> values, std::span<uint16_t> out) {
  MUSTER_CHECK(values.size() == out.size());
  ToFloat16Loop(values.data(), values.size(), out.data());
}

void ToBfloat16(std::span<const float> values, std::span<uint16_t> out) {
  MUSTER_CHECK(values.size() == out.size());
  ToBfloat16Loop(values.data(), values.size(), out.data());
}

void FromFloat16(const unsigned char* bytes, std::span<float> values) {
  FromFloat16Loop(bytes, values.size(), values.data());
}

void FromBfloat16(const unsigned char* bytes, std::span<float> values) {
  FromBfloat16Loop(bytes, values.size(), values.data());
}

}  // namespace muster
