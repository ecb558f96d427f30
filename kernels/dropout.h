// Inverted dropout on the CPU (Srivastava et al., "Dropout: a simple way to prevent neural networks from
// overfitting", JMLR 2014), with masks that any machine can make again.
//
// What is dropped depends on the seed, the sample's position in the training stream and the unit, and on
// nothing else: other splits of a batch over workers, a restarted worker and another device drop the same.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace muster {

/// The counter-based generator Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
/// SC 2011): 128 bits that are a function of counter and key.
std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

struct Dropout {
  uint64_t seed = 0;
  float rate = 0;  // the share that is dropped, in [0, 1)
};

/// factors [samples, units]: what the values and gradients of samples at `position` and after are multiplied
/// with, 0 or 1 / (1 - rate).
///
/// Unit u of the sample at position p takes word u mod 4 of Philox, whose counter is {low half of u / 4, high
/// half, low half of p, high half} and whose key is {low half of the seed, high half}; it is dropped if the
/// word is below rate * 2^32, rounded to the nearest whole number, halves upwards.
void DropoutFactors(const Dropout& dropout, int64_t position, int64_t samples, int64_t units,
                    std::span<float> factors);

/// output[i] = input[i] * factors[i]: forward of values, and backward of gradients. All of one length. A NaN
/// or infinity stays visible, dropped or not.
void DropoutApply(std::span<const float> factors, std::span<const float> input, std::span<float> output);

}  // namespace muster
