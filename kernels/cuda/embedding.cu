// Compiled without contraction (-fmad=false), so that every operation is rounded as on the CPU.
#include "kernels/cuda/embedding.h"

#include <cmath>

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/element_updates.h"

namespace muster::cuda {
namespace {

__device__ float ValueAt(const ColumnSource& column, const int32_t* indices, int64_t samples, int64_t sample,
                         int64_t i) {
  if (column.kind == ColumnSource::Kind::kSample) return column.rows[sample * column.step + i];
  const int32_t index = indices[column.column * samples + sample];
  if (index < 0) return NAN;
  if (column.kind == ColumnSource::Kind::kOneHot) return index == i ? 1 : 0;
  return column.rows[index * column.step + i];
}

// Column blockIdx.y.
__global__ void FillInputKernel(const ColumnSource* columns, const int32_t* indices, int64_t samples,
                                int64_t stride, float* input) {
  const ColumnSource column = columns[blockIdx.y];
  for (int64_t at = FirstIndex(); at < samples * column.width; at += IndexStride()) {
    const int64_t sample = at / column.width, i = at % column.width;
    input[sample * stride + column.begin + i] = ValueAt(column, indices, samples, sample, i);
  }
}

__global__ void AddWideColumnsKernel(const ColumnSource* columns, int count, const int32_t* indices,
                                     int64_t samples, int64_t width, const float* beginning,
                                     const float* bias, float* sums) {
  for (int64_t at = FirstIndex(); at < samples * width; at += IndexStride()) {
    const int64_t sample = at / width, i = at % width;
    float sum = (beginning == nullptr ? 0 : beginning[at]) + bias[i];
    for (int c = 0; c < count; ++c) sum += ValueAt(columns[c], indices, samples, sample, i);
    sums[at] = sum;
  }
}

constexpr int kPiece = 8;  // floats of a row that a warp adds up at a time

// In the warp of the first of the samples that name a row: calls use(place, i, sum) with the place of each
// float i of the row, in steps of its index, and the sum of its gradient.
template <typename Use>
__device__ void ForRowOf(int64_t sample, const RowGradient& from, const int32_t* indices, int64_t samples,
                         const Use& use) {
  const int lane = threadIdx.x % kWarp;
  const int32_t* const column = indices + from.column * samples;
  const int32_t index = column[sample];
  if (index < 0) return;
  for (int64_t other = lane; other - lane < sample; other += kWarp) {
    if (__any_sync(kAllLanes, other < sample && column[other] == index)) return;
  }
  for (int piece = 0; piece < from.width; piece += kPiece) {
    float sums[kPiece] = {};
    for (int64_t other = sample + lane; other < samples; other += kWarp) {
      if (column[other] != index) continue;
      const float* const gradient = from.matrix + other * from.stride + from.begin + piece;
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        if (piece + i < from.width) sums[i] += gradient[i];
      }
    }
    float sum = 0;  // of float `lane` of the piece
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      const float whole = SumOfWarp(sums[i]);
      if (lane == i) sum = whole;
    }
    if (lane < kPiece && piece + lane < from.width) use(index, piece + lane, sum);
  }
}

// A warp for each sample of table blockIdx.y.
__device__ int64_t FirstSample() { return FirstIndex() / kWarp; }
__device__ int64_t SampleStride() { return IndexStride() / kWarp; }

__global__ void SumRowGradientsKernel(const RowGradient* gradients, const int32_t* indices, int64_t samples,
                                      float* packed) {
  const RowGradient from = gradients[blockIdx.y];
  for (int64_t sample = FirstSample(); sample < samples; sample += SampleStride()) {
    ForRowOf(sample, from, indices, samples,
             [&](int32_t index, int i, float sum) { packed[int64_t{index} + i] = sum; });
  }
}

__device__ float Updated(const RowUpdate& update, const StepFactors& factors, float parameter, float sum,
                         int64_t place) {
  const GradientFactors by{update.scale, update.weight_decay};
  float* const first = update.first_slot + place;
  float* const second = update.second_slot + place;
  switch (update.kind) {
    case OptimizerKind::kSgd:
      return SgdElement(parameter, sum, by, factors.rate);
    case OptimizerKind::kMomentum:
      return MomentumElement(parameter, sum, by, factors.rate, update.momentum, update.nesterov,
                             factors.clear_subnormals, first);
    case OptimizerKind::kAdagrad:
      return AdagradElement(parameter, sum, by, factors.rate, first);
    case OptimizerKind::kAdam:
      return AdamElement(parameter, sum, by, factors.adam, factors.clear_subnormals, first, second);
    case OptimizerKind::kFtrl:
      return FtrlElement(parameter, sum, {update.scale, factors.inverse_rate, update.l1, update.twice_l2},
                         first, second);
  }
  return NAN;
}

__global__ void UpdateRowsKernel(const RowGradient* gradients, const RowUpdate* updates,
                                 const int32_t* indices, int64_t samples, const StepFactors* factors,
                                 int32_t* first_bad) {
  const RowGradient from = gradients[blockIdx.y];
  const RowUpdate update = updates[blockIdx.y];
  for (int64_t sample = FirstSample(); sample < samples; sample += SampleStride()) {
    ForRowOf(sample, from, indices, samples, [&](int32_t index, int i, float sum) {
      if (!isfinite(sum)) atomicMin(first_bad, update.tensor);
      const int64_t place = int64_t{index} * from.width + i;
      update.values[place] = Updated(update, factors[update.factors], update.values[place], sum, place);
    });
  }
}

dim3 BlocksForColumns(int64_t threads, int count) {
  return dim3(BlocksFor(threads), static_cast<unsigned>(count));
}

}  // namespace

cudaError_t FillInput(const ColumnSource* columns, int count, const int32_t* indices, int64_t samples,
                      int64_t stride, float* input, cudaStream_t stream) {
  if (count == 0 || samples == 0) return cudaSuccess;
  FillInputKernel<<<BlocksForColumns(samples * stride / count, count), kBlockThreads, 0, stream>>>(
      columns, indices, samples, stride, input);
  return cudaGetLastError();
}

cudaError_t AddWideColumns(const ColumnSource* columns, int count, const int32_t* indices, int64_t samples,
                           int64_t width, const float* beginning, const float* bias, float* sums,
                           cudaStream_t stream) {
  if (samples * width == 0) return cudaSuccess;
  AddWideColumnsKernel<<<BlocksFor(samples * width), kBlockThreads, 0, stream>>>(
      columns, count, indices, samples, width, beginning, bias, sums);
  return cudaGetLastError();
}

cudaError_t SumRowGradients(const RowGradient* gradients, int count, const int32_t* indices, int64_t samples,
                            float* packed, cudaStream_t stream) {
  if (count == 0 || samples == 0) return cudaSuccess;
  SumRowGradientsKernel<<<BlocksForColumns(samples * kWarp, count), kBlockThreads, 0, stream>>>(
      gradients, indices, samples, packed);
  return cudaGetLastError();
}

cudaError_t UpdateRows(const RowGradient* gradients, const RowUpdate* updates, int count,
                       const int32_t* indices, int64_t samples, const StepFactors* factors,
                       int32_t* first_bad, cudaStream_t stream) {
  if (count == 0 || samples == 0) return cudaSuccess;
  UpdateRowsKernel<<<BlocksForColumns(samples * kWarp, count), kBlockThreads, 0, stream>>>(
      gradients, updates, indices, samples, factors, first_bad);
  return cudaGetLastError();
}

}  // namespace muster::cuda
