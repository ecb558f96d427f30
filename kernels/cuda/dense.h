// What dense layers do on a CUDA device beside their products.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace muster::cuda {

/// output [rows, columns] = relu(output + bias [columns]), in place. NaN stays NaN.
cudaError_t AddBiasRelu(int64_t rows, int64_t columns, const float* bias, float* output, cudaStream_t stream);

/// Of gradient [rows, columns]: zeroes what has an `activated` value (the same shape) of zero, unless that is
/// null, and writes the sums of the columns to column_sums [columns].
cudaError_t ReluBackwardAndColumnSums(int64_t rows, int64_t columns, const float* activated, float* gradient,
                                      float* column_sums, cudaStream_t stream);

/// Zeroes each gradient whose `activated` value is zero. Both [count].
cudaError_t ReluBackward(int64_t count, const float* activated, float* gradient, cudaStream_t stream);

}  // namespace muster::cuda
