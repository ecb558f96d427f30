#include <climits>
#include <cmath>

#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/device_code.h"

namespace muster::cuda {
namespace {

struct Largest {
  float value;
  int index;  // the first of equals
};

__device__ Largest LargestOfWarp(Largest largest) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const float value = __shfl_xor_sync(kAllLanes, largest.value, offset);
    const int index = __shfl_xor_sync(kAllLanes, largest.index, offset);
    if (value > largest.value || (value == largest.value && index < largest.index)) largest = {value, index};
  }
  return largest;
}

// The loss of one row, the same in all lanes of the warp.
__device__ LossSums RowLoss(int64_t classes, const float* x, int32_t label, float* gradient) {
  const int lane = threadIdx.x % kWarp;
  // NaNs are never the largest, but reach the sum of exponentials.
  Largest largest = {-INFINITY, INT_MAX};
  for (int64_t i = lane; i < classes; i += kWarp) {
    if (x[i] > largest.value || (x[i] == largest.value && i < largest.index)) {
      largest = {x[i], static_cast<int>(i)};
    }
  }
  largest = LargestOfWarp(largest);
  double sum = 0;
  for (int64_t i = lane; i < classes; i += kWarp) sum += expf(x[i] - largest.value);
  sum = SumOfWarp(sum);
  const bool valid = label >= 0 && label < classes;
  const double loss = valid ? log(sum) - (double{x[label]} - double{largest.value}) : NAN;
  const bool correct = largest.index == label && !isnan(loss);
  if (gradient != nullptr) {
    __syncwarp();  // all lanes have read x[label], which may be overwritten now
    const float inverse = valid ? static_cast<float>(1 / sum) : NAN;
    for (int64_t i = lane; i < classes; i += kWarp) {
      gradient[i] = expf(x[i] - largest.value) * inverse - (i == label ? 1.0f : 0.0f);
    }
  }
  return {loss, correct ? 1 : 0};
}

__device__ void Add(LossSums* sums, const LossSums& other) {
  sums->loss_sum += other.loss_sum;
  sums->correct += other.correct;
}

// From the sums of each warp, which all of its lanes have, to *result.
__device__ void AddUp(LossSums sums, bool add, LossScratch* scratch, LossSums* result) {
  __shared__ LossSums parts[kWarps];
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = sums;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  // The block that is last adds all blocks' sums, in an order that depends on their number only, so that the
  // result has the same bits whichever it is. The counter is zero again then.
  bool is_last = false;
  if (threadIdx.x == 0) {
    for (int i = 1; i < kWarps; ++i) Add(&sums, parts[i]);
    scratch->parts[blockIdx.x] = sums;
    __threadfence();
    is_last = atomicInc(&scratch->finished, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
  }
  if (!__any_sync(kAllLanes, is_last)) return;
  __syncwarp();
  LossSums all{};
  const volatile LossSums* const written = scratch->parts;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += kWarp) {
    all.loss_sum += written[i].loss_sum;
    all.correct += written[i].correct;
  }
  all = {SumOfWarp(all.loss_sum), SumOfWarp(all.correct)};
  if (threadIdx.x != 0) return;
  if (add) Add(&all, *result);
  *result = all;
}

// A warp takes one row at a time.
__global__ void SoftmaxCrossEntropyKernel(int64_t batch, int64_t classes, const float* logits,
                                          const int32_t* labels, float* gradient, bool add,
                                          LossScratch* scratch, LossSums* result) {
  const int warp = threadIdx.x / kWarp;
  LossSums sums{};
  for (int64_t row = int64_t{blockIdx.x} * kWarps + warp; row < batch; row += int64_t{gridDim.x} * kWarps) {
    float* const row_gradient = gradient == nullptr ? nullptr : gradient + row * classes;
    Add(&sums, RowLoss(classes, logits + row * classes, labels[row], row_gradient));
  }
  AddUp(sums, add, scratch, result);
}

__global__ void SigmoidCrossEntropyKernel(int64_t batch, const float* logits, const int32_t* labels,
                                          float* gradient, bool add, LossScratch* scratch, LossSums* result) {
  LossSums sums{};
  for (int64_t row = FirstIndex(); row < batch; row += IndexStride()) {
    const float x = logits[row];
    const int32_t label = labels[row];
    const bool valid = label == 0 || label == 1;
    const double e = expf(-fabsf(x));  // never overflows
    // log(1 + exp(x)) - label * x, where x > 0 written as x + log(1 + exp(-x)).
    sums.loss_sum += valid ? log1p(e) + double{x > 0 ? x : 0} - double{x} * label : NAN;
    sums.correct += valid && (label == 1 ? x > 0 : x <= 0) ? 1 : 0;  // false for NaN
    if (gradient == nullptr) continue;
    const double probability = x > 0 ? 1 / (1 + e) : e / (1 + e);
    gradient[row] = valid ? static_cast<float>(probability - label) : NAN;
  }
  AddUp({SumOfWarp(sums.loss_sum), SumOfWarp(sums.correct)}, add, scratch, result);
}

unsigned LossBlocks(int64_t wanted) {
  return static_cast<unsigned>(wanted < 1 ? 1 : wanted > kMaxLossBlocks ? kMaxLossBlocks : wanted);
}

}  // namespace

cudaError_t SoftmaxCrossEntropy(int64_t batch, int64_t classes, const float* logits, const int32_t* labels,
                                float* gradient, bool add, LossScratch* scratch, LossSums* result,
                                cudaStream_t stream) {
  const unsigned blocks = LossBlocks((batch + kWarps - 1) / kWarps);
  SoftmaxCrossEntropyKernel<<<blocks, kBlockThreads, 0, stream>>>(batch, classes, logits, labels, gradient,
                                                                  add, scratch, result);
  return cudaGetLastError();
}

cudaError_t SigmoidCrossEntropy(int64_t batch, const float* logits, const int32_t* labels, float* gradient,
                                bool add, LossScratch* scratch, LossSums* result, cudaStream_t stream) {
  const unsigned blocks = LossBlocks((batch + kBlockThreads - 1) / kBlockThreads);
  SigmoidCrossEntropyKernel<<<blocks, kBlockThreads, 0, stream>>>(batch, logits, labels, gradient, add,
                                                                  scratch, result);
  return cudaGetLastError();
}

}  // namespace muster::cuda
