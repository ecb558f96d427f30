// Inverted dropout on a CUDA device: the masks are those of kernels/dropout.h, bit by bit.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>

namespace muster::cuda {

/// As Dropout (kernels/dropout.h) with its threshold and factor computed.
struct DropoutMask {
  /// rate: in [0, 1).
  DropoutMask(uint64_t seed, float rate)
      : seed(seed),
        threshold(static_cast<uint64_t>(std::llround(double{rate} * 0x1p32))),
        kept(static_cast<float>(1 / (1 - double{rate}))) {}

  uint64_t seed = 0;
  uint64_t threshold = 0;  // words below it are dropped; up to 2^32
  float kept = 1;          // the factor of what is kept
};

/// output [samples, units] = input * factors: forward of values, and backward of gradients; output may be
/// input. *position, on the device: of the first sample in the training stream.
cudaError_t DropoutApply(const DropoutMask& mask, const int64_t* position, int64_t samples, int64_t units,
                         const float* input, float* output, cudaStream_t stream);

}  // namespace muster::cuda
