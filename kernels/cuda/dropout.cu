#include "kernels/cuda/device_code.h"
#include "kernels/cuda/dropout.h"

namespace muster::cuda {
namespace {

// As in kernels/dropout.cc.
__device__ uint4 Philox(uint4 counter, uint2 key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint32_t even_low = 0xD2511F53u * counter.x, even_high = __umulhi(0xD2511F53u, counter.x);
    const uint32_t odd_low = 0xCD9E8D57u * counter.z, odd_high = __umulhi(0xCD9E8D57u, counter.z);
    counter = make_uint4(odd_high ^ counter.y ^ key.x, odd_low, even_high ^ counter.w ^ key.y, even_low);
    key = make_uint2(key.x + 0x9E3779B9u, key.y + 0xBB67AE85u);
  }
  return counter;
}

// One thread for each four units of a sample.
__global__ void ApplyKernel(DropoutMask mask, const int64_t* position, int64_t samples, int64_t units,
                            int64_t fours, const float* input, float* output) {
  const uint2 key = make_uint2(static_cast<uint32_t>(mask.seed), static_cast<uint32_t>(mask.seed >> 32));
  for (int64_t i = FirstIndex(); i < samples * fours; i += IndexStride()) {
    const int64_t sample = i / fours, four = i % fours;
    const uint64_t at = static_cast<uint64_t>(*position + sample);
    const uint4 words = Philox(make_uint4(static_cast<uint32_t>(four), static_cast<uint32_t>(four >> 32),
                                          static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32)),
                               key);
    const uint32_t word[] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      const int64_t unit = 4 * four + lane;
      if (unit >= units) break;
      // A product also where it is dropped: NaN stays visible.
      output[sample * units + unit] =
          input[sample * units + unit] * (word[lane] < mask.threshold ? 0.0f : mask.kept);
    }
  }
}

}  // namespace

cudaError_t DropoutApply(const DropoutMask& mask, const int64_t* position, int64_t samples, int64_t units,
                         const float* input, float* output, cudaStream_t stream) {
  const int64_t fours = (units + 3) / 4;
  if (samples * fours == 0) return cudaSuccess;
  ApplyKernel<<<BlocksFor(samples * fours), kBlockThreads, 0, stream>>>(mask, position, samples, units, fours,
                                                                        input, output);
  return cudaGetLastError();
}

}  // namespace muster::cuda
