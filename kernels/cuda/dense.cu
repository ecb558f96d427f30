#include "kernels/cuda/dense.h"
#include "kernels/cuda/device_code.h"

namespace muster::cuda {
namespace {

__device__ float Relu(float value) { return value < 0 ? 0 : value; }  // in this order: NaN stays

__global__ void AddBiasReluKernel(int64_t rows, int64_t columns, const float* bias, float* output) {
  for (int64_t i = FirstIndex(); i < rows * columns; i += IndexStride()) {
    output[i] = Relu(output[i] + bias[i % columns]);
  }
}

// `quads`: columns / 4, which is whole.
__global__ void AddBiasReluQuadsKernel(int64_t rows, int64_t quads, const float4* bias, float4* output) {
  for (int64_t i = FirstIndex(); i < rows * quads; i += IndexStride()) {
    const float4 b = bias[i % quads];
    float4 value = output[i];
    value.x = Relu(value.x + b.x);
    value.y = Relu(value.y + b.y);
    value.z = Relu(value.z + b.z);
    value.w = Relu(value.w + b.w);
    output[i] = value;
  }
}

constexpr int kSumColumns = 32;  // of a block: what a warp reads at once
constexpr int kSumRows = 16;     // that a block reads at once
constexpr int kSumLoads = 8;     // of a thread that are under way together

__global__ void ReluBackwardAndColumnSumsKernel(int64_t rows, int64_t columns, const float* activated,
                                                float* gradient, float* column_sums) {
  __shared__ float parts[kSumRows][kSumColumns];
  const int64_t column = int64_t{blockIdx.x} * kSumColumns + threadIdx.x;
  float sum = 0;
  if (column < columns) {
    for (int64_t first = threadIdx.y; first < rows; first += kSumRows * kSumLoads) {
      float values[kSumLoads], outputs[kSumLoads];
#pragma unroll
      for (int j = 0; j < kSumLoads; ++j) {
        const int64_t row = first + j * kSumRows;
        values[j] = row < rows ? gradient[row * columns + column] : 0;
        outputs[j] = row < rows && activated != nullptr ? activated[row * columns + column] : 1;
      }
#pragma unroll
      for (int j = 0; j < kSumLoads; ++j) {
        const int64_t row = first + j * kSumRows;
        if (outputs[j] == 0) values[j] = 0;
        if (row < rows && activated != nullptr) gradient[row * columns + column] = values[j];
        sum += values[j];
      }
    }
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (int part = 1; part < kSumRows; ++part) sum += parts[part][threadIdx.x];
  column_sums[column] = sum;
}

__global__ void ReluBackwardKernel(int64_t count, const float* activated, float* gradient) {
  for (int64_t i = FirstIndex(); i < count; i += IndexStride()) {
    if (activated[i] == 0) gradient[i] = 0;
  }
}

}  // namespace

cudaError_t AddBiasRelu(int64_t rows, int64_t columns, const float* bias, float* output,
                        cudaStream_t stream) {
  if (rows * columns == 0) return cudaSuccess;
  if (columns % 4 == 0) {
    AddBiasReluQuadsKernel<<<BlocksFor(rows * columns / 4), kBlockThreads, 0, stream>>>(
        rows, columns / 4, reinterpret_cast<const float4*>(bias), reinterpret_cast<float4*>(output));
  } else {
    AddBiasReluKernel<<<BlocksFor(rows * columns), kBlockThreads, 0, stream>>>(rows, columns, bias, output);
  }
  return cudaGetLastError();
}

cudaError_t ReluBackwardAndColumnSums(int64_t rows, int64_t columns, const float* activated, float* gradient,
                                      float* column_sums, cudaStream_t stream) {
  if (columns == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((columns + kSumColumns - 1) / kSumColumns);
  ReluBackwardAndColumnSumsKernel<<<blocks, dim3(kSumColumns, kSumRows), 0, stream>>>(
      rows, columns, activated, gradient, column_sums);
  return cudaGetLastError();
}

cudaError_t ReluBackward(int64_t count, const float* activated, float* gradient, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  ReluBackwardKernel<<<BlocksFor(count), kBlockThreads, 0, stream>>>(count, activated, gradient);
  return cudaGetLastError();
}

}  // namespace muster::cuda
