#include "kernels/dropout.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"

namespace muster {
namespace {

uint32_t LowHalf(uint64_t value) { return static_cast<uint32_t>(value); }
uint32_t HighHalf(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

// The factors of units 4 * four to 4 * four + 3.
class Factors {
 public:
  explicit Factors(const Dropout& dropout)
      : key_{LowHalf(dropout.seed), HighHalf(dropout.seed)},
        threshold_(static_cast<uint64_t>(std::llround(double{dropout.rate} * 0x1p32))),
        kept_(static_cast<float>(1 / (1 - double{dropout.rate}))) {
    MUSTER_CHECK(dropout.rate >= 0 && dropout.rate < 1);
  }

  std::array<float, 4> Of(int64_t position, int64_t four) const {
    const std::array<uint32_t, 4> words =
        Philox({LowHalf(four), HighHalf(four), LowHalf(position), HighHalf(position)}, key_);
    std::array<float, 4> factors;
    for (size_t i = 0; i < 4; ++i) factors[i] = words[i] < threshold_ ? 0 : kept_;
    return factors;
  }

 private:
  const std::array<uint32_t, 2> key_;
  const uint64_t threshold_;  // may be 2^32
  const float kept_;
};

}  // namespace

std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr int kRounds = 10;
  constexpr uint64_t kMultipliers[] = {0xD2511F53, 0xCD9E8D57};
  constexpr uint32_t kWeyl[] = {0x9E3779B9, 0xBB67AE85};
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t even = kMultipliers[0] * counter[0], odd = kMultipliers[1] * counter[2];
    counter = {HighHalf(odd) ^ counter[1] ^ key[0], LowHalf(odd), HighHalf(even) ^ counter[3] ^ key[1],
               LowHalf(even)};
    key = {key[0] + kWeyl[0], key[1] + kWeyl[1]};
  }
  return counter;
}

void DropoutFactors(const Dropout& dropout, int64_t position, int64_t samples, int64_t units,
                    std::span<float> factors) {
  MUSTER_CHECK(position >= 0 && samples >= 0 && units >= 0 &&
               static_cast<int64_t>(factors.size()) == samples * units);
  const Factors fours(dropout);
  for (int64_t sample = 0; sample < samples; ++sample) {
    float* const row = factors.data() + sample * units;
    for (int64_t unit = 0; unit < units; unit += 4) {
      const std::array<float, 4> four = fours.Of(position + sample, unit / 4);
      std::copy_n(four.begin(), std::min<int64_t>(4, units - unit), row + unit);
    }
  }
}

void DropoutApply(std::span<const float> factors, std::span<const float> input, std::span<float> output) {
  MUSTER_CHECK(factors.size() == input.size() && input.size() == output.size());
  for (size_t i = 0; i < output.size(); ++i) output[i] = input[i] * factors[i];
}

}  // namespace muster
