// How products of floats are computed on a CUDA device.
#pragma once

#include <cstdint>

namespace muster::cuda {

/// Values in memory are floats in every case, and sums are too. The factors of products keep 24 bits, 11
/// (TF32) or 8 (bfloat16).
enum class Math : uint8_t { kFloat32, kTf32, kBfloat16 };

}  // namespace muster::cuda
