// What parameters are before the first update.
#pragma once

#include <cstdint>
#include <span>

namespace muster {

enum class Initializer : uint8_t {
  kZeros = 0,
  kTruncatedNormal = 1,  // mean 0, standard deviation `scale` before truncation at two of them
  kUniform = 2,          // in [-scale, scale)
  kConstant = 3,         // scale
};

inline constexpr Initializer kLastInitializer = Initializer::kConstant;

/// Elements [first, first + values.size()) of a tensor: each a pure function of (seed, its position), so that
/// any part can be made anywhere. The same bits on every machine, without libm.
void InitializeValues(Initializer initializer, float scale, uint64_t seed, int64_t first,
                      std::span<float> values);

}  // namespace muster
