// Passes over whole ranges, each element by itself: the same bits on every instruction set and machine. No
// libm.
#pragma once

#include <cstdint>
#include <span>

namespace muster {

/// values = exp(values), in place. Relative error below 2 units in the last place (1.3e-7). What is below
/// -87.3 gives 0, as its exponential is no normal float; what is above 88 gives infinity; NaN stays NaN.
void Exponentials(std::span<float> values);

/// Whether no value is infinite or NaN.
bool AllFinite(std::span<const float> values);

/// sums = a + b. Same sizes; `sums` may be one of them, but not overlap them otherwise.
void Sum(std::span<const float> a, std::span<const float> b, std::span<float> sums);

/// features = bytes / 255, rounded twice. Same sizes.
void BytesToUnitInterval(std::span<const uint8_t> bytes, std::span<float> features);

}  // namespace muster
