// Max pooling on a CUDA device, as kernels/max_pool.h has it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace muster::cuda {

struct PoolGeometry {
  int64_t samples = 0;
  int64_t height = 0;  // of the input, [samples, height, width, channels]
  int64_t width = 0;
  int64_t channels = 0;
  int64_t window = 1;
  bool relu = false;  // in front of the pooling

  int64_t output_height() const { return height / window; }
  int64_t output_width() const { return width / window; }
  int64_t input_count() const { return samples * height * width * channels; }
  int64_t output_count() const { return samples * output_height() * output_width() * channels; }
};

/// output [samples, output_height, output_width, channels]; winners (the same shape): the place of the value
/// that won in its window, or window * window where ReLU gave a zero. Inputs of 2^31 values or more are
/// refused.
cudaError_t MaxPoolForward(const PoolGeometry& geometry, const float* input, float* output, uint8_t* winners,
                           cudaStream_t stream);

/// input_gradient, of the values before ReLU, all of it written, from output_gradient and the winners.
cudaError_t MaxPoolBackward(const PoolGeometry& geometry, const float* output_gradient,
                            const uint8_t* winners, float* input_gradient, cudaStream_t stream);

}  // namespace muster::cuda
