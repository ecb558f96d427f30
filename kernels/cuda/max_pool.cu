#include <climits>
#include <cmath>
#include <type_traits>

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/max_pool.h"

namespace muster::cuda {
namespace {

// Counts windows, of kWidth channels each. `down` and `across` say how many there are in an image.
template <int kWidth>
struct Geometry {
  Geometry(const PoolGeometry& g, int64_t down, int64_t across)
      : height(static_cast<int>(g.height)),
        width(static_cast<int>(g.width)),
        groups(static_cast<int>(g.channels / kWidth)),
        output_height(static_cast<int>(g.output_height())),
        output_width(static_cast<int>(g.output_width())),
        window(static_cast<int>(g.window)),
        relu(g.relu),
        count(g.samples * down * across * groups),
        by_groups(groups),
        by_across(static_cast<int>(across)),
        by_down(static_cast<int>(down)) {}

  struct Place {
    int sample, y, x, group;  // y, x: of the window
  };
  __device__ Place PlaceOf(int64_t i) const {
    uint32_t pixel, row, sample;
    const uint32_t group = by_groups.Split(static_cast<uint32_t>(i), &pixel);
    const uint32_t x = by_across.Split(pixel, &row);
    const uint32_t y = by_down.Split(row, &sample);
    return {static_cast<int>(sample), static_cast<int>(y), static_cast<int>(x), static_cast<int>(group)};
  }

  int height, width, groups, output_height, output_width, window;
  bool relu;
  int64_t count;
  Divisor by_groups, by_across, by_down;
};

template <int kWidth>
__global__ void ForwardKernel(const __grid_constant__ Geometry<kWidth> g,
                              const Channels<float, kWidth>* input, Channels<float, kWidth>* output,
                              Channels<uint8_t, kWidth>* winners) {
  for (int64_t i = FirstIndex(); i < g.count; i += IndexStride()) {
    const auto place = g.PlaceOf(i);
    const auto* const corner =
        input + ((place.sample * g.height + place.y * g.window) * g.width + place.x * g.window) * g.groups +
        place.group;
    Channels<float, kWidth> best;
    Channels<uint8_t, kWidth> winner;
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {
      best.values[c] = g.relu ? 0.0f : -INFINITY;
      winner.values[c] = static_cast<uint8_t>(g.relu ? g.window * g.window : 0);
    }
    for (int wy = 0; wy < g.window; ++wy) {
      for (int wx = 0; wx < g.window; ++wx) {
        const Channels<float, kWidth> here = corner[(wy * g.width + wx) * g.groups];
#pragma unroll
        for (int c = 0; c < kWidth; ++c) {
          const float value = here.values[c];
          if (value > best.values[c] || value != value) {  // a NaN wins, and nothing is above it
            best.values[c] = value;
            winner.values[c] = static_cast<uint8_t>(wy * g.window + wx);
          }
        }
      }
    }
    output[i] = best;
    winners[i] = winner;
  }
}

// Also counts the windows of which a part only is in the image: values there have no part in the output.
template <int kWidth>
__global__ void BackwardKernel(const __grid_constant__ Geometry<kWidth> g,
                               const Channels<float, kWidth>* output_gradient,
                               const Channels<uint8_t, kWidth>* winners,
                               Channels<float, kWidth>* input_gradient) {
  for (int64_t i = FirstIndex(); i < g.count; i += IndexStride()) {
    const auto place = g.PlaceOf(i);
    const bool is_whole = place.y < g.output_height && place.x < g.output_width;
    const int out = ((place.sample * g.output_height + place.y) * g.output_width + place.x) * g.groups;
    Channels<float, kWidth> gradient{};
    Channels<uint8_t, kWidth> winner{};
    if (is_whole) {
      gradient = output_gradient[out + place.group];
      winner = winners[out + place.group];
    }
    for (int wy = 0; wy < g.window; ++wy) {
      for (int wx = 0; wx < g.window; ++wx) {
        const int y = place.y * g.window + wy, x = place.x * g.window + wx;
        if (y >= g.height || x >= g.width) continue;
        Channels<float, kWidth> here;
#pragma unroll
        for (int c = 0; c < kWidth; ++c) {
          here.values[c] = winner.values[c] == wy * g.window + wx ? gradient.values[c] : 0;
        }
        input_gradient[((place.sample * g.height + y) * g.width + x) * g.groups + place.group] = here;
      }
    }
  }
}

int64_t CeilOf(int64_t size, int64_t window) { return (size + window - 1) / window; }

// Calls launch with how many channels a thread takes, as a constant.
template <typename Launch>
void WithWidth(const PoolGeometry& g, const Launch& launch) {
  if (g.channels % 4 == 0) {
    launch(std::integral_constant<int, 4>());
  } else {
    launch(std::integral_constant<int, 1>());
  }
}

template <int kWidth, typename T>
auto* InGroups(T* values) {
  using Group = Channels<std::remove_const_t<T>, kWidth>;
  return reinterpret_cast<std::conditional_t<std::is_const_v<T>, const Group, Group>*>(values);
}

}  // namespace

cudaError_t MaxPoolForward(const PoolGeometry& geometry, const float* input, float* output, uint8_t* winners,
                           cudaStream_t stream) {
  if (geometry.input_count() > INT_MAX) return cudaErrorInvalidValue;
  if (geometry.output_count() == 0) return cudaSuccess;
  WithWidth(geometry, [&]<int kWidth>(std::integral_constant<int, kWidth>) {
    const Geometry<kWidth> g(geometry, geometry.output_height(), geometry.output_width());
    ForwardKernel<kWidth><<<BlocksFor(g.count), kBlockThreads, 0, stream>>>(
        g, InGroups<kWidth>(input), InGroups<kWidth>(output), InGroups<kWidth>(winners));
  });
  return cudaGetLastError();
}

cudaError_t MaxPoolBackward(const PoolGeometry& geometry, const float* output_gradient,
                            const uint8_t* winners, float* input_gradient, cudaStream_t stream) {
  if (geometry.input_count() > INT_MAX) return cudaErrorInvalidValue;
  if (geometry.input_count() == 0) return cudaSuccess;
  WithWidth(geometry, [&]<int kWidth>(std::integral_constant<int, kWidth>) {
    const Geometry<kWidth> g(geometry, CeilOf(geometry.height, geometry.window),
                             CeilOf(geometry.width, geometry.window));
    BackwardKernel<kWidth><<<BlocksFor(g.count), kBlockThreads, 0, stream>>>(
        g, InGroups<kWidth>(output_gradient), InGroups<kWidth>(winners), InGroups<kWidth>(input_gradient));
  });
  return cudaGetLastError();
}

}  // namespace muster::cuda
