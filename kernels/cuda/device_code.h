// What kernels have in common. For the .cu files of this folder.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace muster::cuda {

inline constexpr int kBlockThreads = 256;
inline constexpr int kWarp = 32;
inline constexpr int kWarps = kBlockThreads / kWarp;  // of a block
inline constexpr unsigned kAllLanes = 0xffffffffu;

/// Blocks for a loop that is strided by the whole grid: one thread for each of `count` elements, as long as
/// they are not so many that starting more blocks costs more than looping.
inline unsigned BlocksFor(int64_t count, int threads = kBlockThreads) {
  constexpr int64_t kMostBlocks = 16 * 132;
  const int64_t blocks = (count + threads - 1) / threads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > kMostBlocks ? kMostBlocks : blocks);
}

/// Of a loop strided by the whole grid.
__device__ inline int64_t FirstIndex() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline int64_t IndexStride() { return int64_t{gridDim.x} * blockDim.x; }

/// kWidth channels next to one another, which are read and written together.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Channels {
  T values[kWidth];
};

/// In all lanes, with the same bits; the order of additions is fixed. All lanes call.
template <typename T>
__device__ T SumOfWarp(T sum) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
  return sum;
}

/// Divides whole numbers below 2^31 by one that is known before the kernel starts, with a product instead of
/// a division (Granlund and Montgomery, "Division by invariant integers using multiplication", PLDI 1994,
/// figure 4.1).
class Divisor {
 public:
  /// divisor: from 1 to below 2^31.
  explicit Divisor(int divisor) : divisor_(static_cast<uint32_t>(divisor)) {
    while ((uint64_t{1} << shift_) < divisor_) ++shift_;
    multiplier_ =
        static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << shift_) - divisor_) / divisor_ + 1);
  }
  __host__ __device__ uint32_t Divide(uint32_t number) const {
    const auto high = static_cast<uint32_t>((uint64_t{number} * multiplier_) >> 32);
    return (high + number) >> shift_;
  }
  /// Returns the remainder and sets the quotient.
  __host__ __device__ uint32_t Split(uint32_t number, uint32_t* quotient) const {
    *quotient = Divide(number);
    return number - *quotient * divisor_;
  }

 private:
  uint32_t divisor_ = 1;
  uint32_t multiplier_ = 0;
  uint32_t shift_ = 0;
};

}  // namespace muster::cuda
