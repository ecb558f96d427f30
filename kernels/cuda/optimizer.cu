// Compiled without contraction (-fmad=false), so that every operation is rounded as on the CPU.
#include "kernels/cuda/device_code.h"
#include "kernels/cuda/element_updates.h"
#include "kernels/cuda/optimizer.h"

namespace muster::cuda {
namespace {

__device__ void Report(const FiniteCheck& check, int64_t i) {
  const int64_t place = check.offset + i;
  int32_t tensor = 0;
  while (tensor < check.tensor_count - 1 && place >= check.tensor_ends[tensor]) ++tensor;
  atomicMin(check.first_bad, tensor);
}

// update(parameter, gradient sum, i) gives the new parameter.
template <typename Update>
__device__ void ForEach(UpdateArrays arrays, const FiniteCheck& check, const Update& update) {
  for (int64_t i = FirstIndex(); i < arrays.size; i += IndexStride()) {
    const float sum = arrays.gradient_sum[i];
    if (!isfinite(sum)) Report(check, i);
    arrays.updated[i] = update(arrays.parameters[i], sum, i);
  }
}

__global__ void SgdKernel(UpdateArrays arrays, GradientFactors by, const StepFactors* factors,
                          FiniteCheck check) {
  const float rate = factors->rate;
  ForEach(arrays, check,
          [&](float parameter, float sum, int64_t) { return SgdElement(parameter, sum, by, rate); });
}

__global__ void MomentumKernel(UpdateArrays arrays, GradientFactors by, const StepFactors* factors,
                               float momentum, bool nesterov, float* velocity, FiniteCheck check) {
  const float rate = factors->rate;
  const bool clear_subnormals = factors->clear_subnormals;
  ForEach(arrays, check, [&](float parameter, float sum, int64_t i) {
    return MomentumElement(parameter, sum, by, rate, momentum, nesterov, clear_subnormals, velocity + i);
  });
}

__global__ void AdagradKernel(UpdateArrays arrays, GradientFactors by, const StepFactors* factors,
                              float* accumulator, FiniteCheck check) {
  const float rate = factors->rate;
  ForEach(arrays, check, [&](float parameter, float sum, int64_t i) {
    return AdagradElement(parameter, sum, by, rate, accumulator + i);
  });
}

__global__ void AdamKernel(UpdateArrays arrays, GradientFactors by, const StepFactors* factors,
                           float* first_moment, float* second_moment, FiniteCheck check) {
  const AdamFactors adam = factors->adam;
  const bool clear_subnormals = factors->clear_subnormals;
  ForEach(arrays, check, [&](float parameter, float sum, int64_t i) {
    return AdamElement(parameter, sum, by, adam, clear_subnormals, first_moment + i, second_moment + i);
  });
}

__global__ void FtrlKernel(UpdateArrays arrays, float scale, const StepFactors* factors, float l1,
                           float twice_l2, float* accumulator, float* linear, FiniteCheck check) {
  const FtrlFactors ftrl{scale, factors->inverse_rate, l1, twice_l2};
  ForEach(arrays, check, [&](float parameter, float sum, int64_t i) {
    return FtrlElement(parameter, sum, ftrl, accumulator + i, linear + i);
  });
}

__global__ void NotFiniteKernel(int64_t size, const float* values, int64_t* word) {
  for (int64_t i = FirstIndex(); i < size; i += IndexStride()) {
    if (!isfinite(values[i])) atomicOr(reinterpret_cast<unsigned long long*>(word), 1ull);
  }
}

}  // namespace

cudaError_t SgdUpdate(UpdateArrays arrays, GradientFactors gradient, const StepFactors* factors,
                      const FiniteCheck& check, cudaStream_t stream) {
  if (arrays.size == 0) return cudaSuccess;
  SgdKernel<<<BlocksFor(arrays.size), kBlockThreads, 0, stream>>>(arrays, gradient, factors, check);
  return cudaGetLastError();
}

cudaError_t MomentumUpdate(UpdateArrays arrays, GradientFactors gradient, const StepFactors* factors,
                           float momentum, bool nesterov, float* velocity, const FiniteCheck& check,
                           cudaStream_t stream) {
  if (arrays.size == 0) return cudaSuccess;
  MomentumKernel<<<BlocksFor(arrays.size), kBlockThreads, 0, stream>>>(arrays, gradient, factors, momentum,
                                                                       nesterov, velocity, check);
  return cudaGetLastError();
}

cudaError_t AdagradUpdate(UpdateArrays arrays, GradientFactors gradient, const StepFactors* factors,
                          float* accumulator, const FiniteCheck& check, cudaStream_t stream) {
  if (arrays.size == 0) return cudaSuccess;
  AdagradKernel<<<BlocksFor(arrays.size), kBlockThreads, 0, stream>>>(arrays, gradient, factors, accumulator,
                                                                      check);
  return cudaGetLastError();
}

cudaError_t AdamUpdate(UpdateArrays arrays, GradientFactors gradient, const StepFactors* factors,
                       float* first_moment, float* second_moment, const FiniteCheck& check,
                       cudaStream_t stream) {
  if (arrays.size == 0) return cudaSuccess;
  AdamKernel<<<BlocksFor(arrays.size), kBlockThreads, 0, stream>>>(arrays, gradient, factors, first_moment,
                                                                   second_moment, check);
  return cudaGetLastError();
}

cudaError_t FtrlUpdate(UpdateArrays arrays, float scale, const StepFactors* factors, float l1, float twice_l2,
                       float* accumulator, float* linear, const FiniteCheck& check, cudaStream_t stream) {
  if (arrays.size == 0) return cudaSuccess;
  FtrlKernel<<<BlocksFor(arrays.size), kBlockThreads, 0, stream>>>(arrays, scale, factors, l1, twice_l2,
                                                                   accumulator, linear, check);
  return cudaGetLastError();
}

cudaError_t MarkNotFinite(int64_t size, const float* values, int64_t* word, cudaStream_t stream) {
  if (size == 0) return cudaSuccess;
  NotFiniteKernel<<<BlocksFor(size), kBlockThreads, 0, stream>>>(size, values, word);
  return cudaGetLastError();
}

}  // namespace muster::cuda
