// Floats in 16 bits, as they travel: IEEE 754's binary16 ("float16", 11 bits of precision, at most 65504) and
// bfloat16 (8 bits, the range of a float). Each element by itself: the same bits on every instruction set and
// machine.
#pragma once

#include <cstdint>
#include <span>

namespace muster {

/// out = values, rounded to nearest, halves to even. What is too large becomes infinite, NaN stays NaN. Same
/// sizes.
void ToFloat16(std::span<const float> values, std::span<uint16_t> out);
void ToBfloat16(std::span<const float> values, std::span<uint16_t> out);

/// Exactly. `bytes`: 2 for each value, which may lie at any byte.
void FromFloat16(const unsigned char* bytes, std::span<float> values);
void FromBfloat16(const unsigned char* bytes, std::span<float> values);

}  // namespace muster
