#include <climits>
#include <cmath>

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/max_pool.h"

namespace muster::cuda {
namespace {

struct Geometry {
  explicit Geometry(const PoolGeometry& g)
      : height(g.height),
        width(g.width),
        channels(g.channels),
        output_height(g.output_height()),
        output_width(g.output_width()),
        window(static_cast<int>(g.window)),
        relu(g.relu),
        by_channels(static_cast<int>(g.channels)),
        by_width(static_cast<int>(g.width)),
        by_height(static_cast<int>(g.height)),
        by_output_width(static_cast<int>(g.output_width())),
        by_output_height(static_cast<int>(g.output_height())),
        by_window(window) {}

  int64_t height, width, channels, output_height, output_width;
  int window;
  bool relu;
  Divisor by_channels, by_width, by_height, by_output_width, by_output_height, by_window;
};

__global__ void ForwardKernel(const __grid_constant__ Geometry g, int64_t count, const float* input,
                              float* output, uint8_t* winners) {
  for (int64_t i = FirstIndex(); i < count; i += IndexStride()) {
    uint32_t pixel, row, sample;
    const uint32_t c = g.by_channels.Split(static_cast<uint32_t>(i), &pixel);
    const uint32_t x = g.by_output_width.Split(pixel, &row);
    const uint32_t y = g.by_output_height.Split(row, &sample);
    const float* const corner =
        input + ((sample * g.height + y * g.window) * g.width + x * g.window) * g.channels + c;
    float best = g.relu ? 0.0f : -INFINITY;
    int winner = g.relu ? g.window * g.window : 0;
    for (int wy = 0; wy < g.window; ++wy) {
      for (int wx = 0; wx < g.window; ++wx) {
        const float value = corner[(wy * g.width + wx) * g.channels];
        if (value > best || value != value) {  // a NaN wins, and nothing is above it
          best = value;
          winner = wy * g.window + wx;
        }
      }
    }
    output[i] = best;
    winners[i] = static_cast<uint8_t>(winner);
  }
}

// One thread for each value of the input, so that those outside of all windows are written too.
__global__ void BackwardKernel(const __grid_constant__ Geometry g, int64_t count,
                               const float* output_gradient, const uint8_t* winners, float* input_gradient) {
  for (int64_t i = FirstIndex(); i < count; i += IndexStride()) {
    uint32_t pixel, row, sample, window_x, window_y;
    const uint32_t c = g.by_channels.Split(static_cast<uint32_t>(i), &pixel);
    const uint32_t x = g.by_width.Split(pixel, &row);
    const uint32_t y = g.by_height.Split(row, &sample);
    const uint32_t wx = g.by_window.Split(x, &window_x);
    const uint32_t wy = g.by_window.Split(y, &window_y);
    float gradient = 0;
    if (window_x < g.output_width && window_y < g.output_height) {
      const int64_t out =
          ((sample * g.output_height + window_y) * g.output_width + window_x) * g.channels + c;
      if (winners[out] == wy * g.window + wx) gradient = output_gradient[out];
    }
    input_gradient[i] = gradient;
  }
}

}  // namespace

cudaError_t MaxPoolForward(const PoolGeometry& geometry, const float* input, float* output, uint8_t* winners,
                           cudaStream_t stream) {
  if (geometry.input_count() > INT_MAX) return cudaErrorInvalidValue;
  const int64_t count = geometry.output_count();
  if (count == 0) return cudaSuccess;
  ForwardKernel<<<BlocksFor(count), kBlockThreads, 0, stream>>>(Geometry(geometry), count, input, output,
                                                                winners);
  return cudaGetLastError();
}

cudaError_t MaxPoolBackward(const PoolGeometry& geometry, const float* output_gradient,
                            const uint8_t* winners, float* input_gradient, cudaStream_t stream) {
  const int64_t count = geometry.input_count();
  if (count > INT_MAX) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  BackwardKernel<<<BlocksFor(count), kBlockThreads, 0, stream>>>(Geometry(geometry), count, output_gradient,
                                                                 winners, input_gradient);
  return cudaGetLastError();
}

}  // namespace muster::cuda
