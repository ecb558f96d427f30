#include "kernels/elementwise.h"

#include <atomic>
#include <cstring>
#include <limits>

#include "base/status.h"
#include "kernels/finite.h"
#include "kernels/threads.h"
#include "kernels/vectorize.h"

namespace muster {
namespace {

// exp(x) = 2^n * exp(r) with n the nearest whole number to x / ln 2, so that |r| <= ln 2 / 2. There the
// Taylor series to the seventh power is off by at most (ln 2 / 2)^8 / 8! = 5e-9.
inline float Exponential(float x) {
  constexpr float kLowest = -87.3f, kHighest = 88.0f;
  constexpr float kLog2E = 1.44269504f;
  // ln 2 in two parts; products of n with the first are exact.
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  // Added to a float below 2^22 this leaves a whole number in the low bits.
  constexpr float kRound = 12582912.0f;
  const float clamped = x < kLowest ? kLowest : (x > kHighest ? kHighest : x);  // NaN stays
  const float shifted = clamped * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float power = 1.0f / 5040;
  power = power * r + 1.0f / 720;
  power = power * r + 1.0f / 120;
  power = power * r + 1.0f / 24;
  power = power * r + 1.0f / 6;
  power = power * r + 0.5f;
  power = power * r + 1;
  power = power * r + 1;
  const uint32_t scale = (std::bit_cast<uint32_t>(shifted) + 127) << 23;
  const float result = power * std::bit_cast<float>(scale);
  return x < kLowest ? 0 : (x > kHighest ? std::numeric_limits<float>::infinity() : result);
}

MUSTER_VECTORIZE void ExponentialsOf(float* values, int64_t size) {
  for (int64_t i = 0; i < size; ++i) values[i] = Exponential(values[i]);
}

MUSTER_VECTORIZE void SumLoop(const float* a, const float* b, float* sums, size_t size) {
#pragma GCC ivdep
  for (size_t i = 0; i < size; ++i) sums[i] = a[i] + b[i];
}

MUSTER_VECTORIZE void BytesToFeatures(const uint8_t* __restrict bytes, float* __restrict features,
                                      int64_t size) {
  // A product, because the division would cost as much as a small model's forward pass.
  for (int64_t i = 0; i < size; ++i) features[i] = static_cast<float>(bytes[i]) * (1.0f / 255);
}

}  // namespace

void Exponentials(std::span<float> values) {
  ExponentialsOf(values.data(), static_cast<int64_t>(values.size()));
}

bool AllFinite(std::span<const float> values) {
  std::atomic<bool> all = true;
  ForEachPart(static_cast<int64_t>(values.size()), 1, [&](int64_t begin, int64_t end) {
    if (!AllFiniteBytes(reinterpret_cast<const unsigned char*>(values.data() + begin), end - begin))
      all = false;
  });
  return all;
}

void Sum(std::span<const float> a, std::span<const float> b, std::span<float> sums) {
  MUSTER_CHECK(a.size() == sums.size() && b.size() == sums.size());
  SumLoop(a.data(), b.data(), sums.data(), sums.size());
}

void BytesToUnitInterval(std::span<const uint8_t> bytes, std::span<float> features) {
  MUSTER_CHECK(bytes.size() == features.size());
  BytesToFeatures(bytes.data(), features.data(), static_cast<int64_t>(bytes.size()));
}

}  // namespace muster
