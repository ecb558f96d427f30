#include "kernels/cuda/convolution.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <type_traits>

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/patches.h"
#include "kernels/cuda/tile.h"

namespace muster::cuda {
namespace {

// What is different between kernels of one operation: the size of the tile, the kind of product, and whether
// the channels of input and output come in fours.
template <typename TileShape, bool kUseTensorCores, bool kInputQuads, bool kOutputQuads>
struct Variant {
  using Shape = TileShape;
  using Sums = std::conditional_t<kUseTensorCores, TensorCoreSums<Shape>, FloatSums<Shape>>;
  static constexpr int kRows = Shape::kRows, kColumns = Shape::kColumns;
  static constexpr int kInputWidth = kInputQuads ? 4 : 1, kOutputWidth = kOutputQuads ? 4 : 1;
};

// Calls write(row, column) for each group of V::kOutputWidth columns of `rows` rows of a tile.
template <typename V, typename Write>
__device__ void ForGroups(int rows, const Write& write) {
  constexpr int kAcross = V::kColumns / V::kOutputWidth;
  for (int i = static_cast<int>(threadIdx.x); i < rows * kAcross; i += kTileThreads) {
    write(i / kAcross, i % kAcross * V::kOutputWidth);
  }
}

// The greatest of each window's values, that of the single one without a pooling: as MaxPoolForward has it.
// winners may be null.
template <typename V>
__global__ void __launch_bounds__(kTileThreads)
    ForwardKernel(const __grid_constant__ PatchGeometry g, const float* input, const float* weights,
                  const float* bias, bool relu, float* output, uint8_t* winners) {
  __shared__ __align__(128) typename V::Shape::Memory memory;
  const int first_pixel = static_cast<int>(blockIdx.x) * V::kRows;
  const int first_column = static_cast<int>(blockIdx.y) * V::kColumns;
  LoadPatches<typename V::Shape, V::kInputWidth> load_a(g, input, first_pixel);
  LoadRows<typename V::Shape, V::kOutputWidth> load_b(weights, g.outputs, 0, g.terms, first_column);
  MultiplyTiles<typename V::Sums>((g.terms + kTileDepth - 1) / kTileDepth, load_a, load_b, memory);
  const int area = g.window * g.window;
  ForGroups<V>(V::kRows / area, [&](int row, int column) {
    constexpr int kWidth = V::kOutputWidth;
    const int channel = first_column + column;
    if (first_pixel + row * area >= g.pixels || channel >= g.outputs) return;
    Channels<float, kWidth> best;
    Channels<uint8_t, kWidth> winner;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float from_bias = bias == nullptr ? 0 : bias[channel + i];
      best.values[i] = relu ? 0.0f : -INFINITY;
      winner.values[i] = static_cast<uint8_t>(relu ? area : 0);
      for (int place = 0; place < area; ++place) {
        const float value = memory.sums[row * area + place][column + i] + from_bias;
        if (value > best.values[i] || value != value) {  // a NaN wins, and nothing is above it
          best.values[i] = value;
          winner.values[i] = static_cast<uint8_t>(place);
        }
      }
    }
    const int64_t at = static_cast<int64_t>(first_pixel / area + row) * g.outputs + channel;
    *reinterpret_cast<Channels<float, kWidth>*>(output + at) = best;
    if (winners != nullptr) *reinterpret_cast<Channels<uint8_t, kWidth>*>(winners + at) = winner;
  });
}

// Block z adds up `pixels_per_part` pixels: parts [parts, terms + 1, outputs], the last row for the bias.
template <typename V>
__global__ void __launch_bounds__(kTileThreads)
    GradientPartsKernel(const __grid_constant__ PatchGeometry g, const float* input,
                        const float* output_gradient, int pixels_per_part, float* parts) {
  __shared__ __align__(128) typename V::Shape::Memory memory;
  const int first_term = static_cast<int>(blockIdx.x) * V::kRows;
  const int first_column = static_cast<int>(blockIdx.y) * V::kColumns;
  const int begin = min(static_cast<int>(blockIdx.z) * pixels_per_part, g.pixels);
  const int end = min(begin + pixels_per_part, g.pixels);
  LoadTransposedPatches<typename V::Shape, V::kInputWidth> load_a(g, input, first_term, begin, end);
  LoadRows<typename V::Shape, V::kOutputWidth> load_b(output_gradient, g.outputs, begin, end, first_column);
  MultiplyTiles<typename V::Sums>((end - begin + kTileDepth - 1) / kTileDepth, load_a, load_b, memory);
  float* const part = parts + static_cast<int64_t>(blockIdx.z) * (g.terms + 1) * g.outputs;
  ForGroups<V>(V::kRows, [&](int row, int column) {
    const int term = first_term + row, channel = first_column + column;
    if (term > g.terms || channel >= g.outputs) return;
    using Group = Channels<float, V::kOutputWidth>;
    *reinterpret_cast<Group*>(part + static_cast<int64_t>(term) * g.outputs + channel) =
        *reinterpret_cast<const Group*>(&memory.sums[row][column]);
  });
}

constexpr int kReduceColumns = 32;  // values of a block
constexpr int kReduceRows = 16;     // parts that it reads at once

// The sums of the parts, in an order that depends on their number only.
__global__ void AddPartsKernel(int parts_count, int64_t weights_count, int64_t count, const float* parts,
                               float* weights_gradient, float* bias_gradient) {
  __shared__ float sums[kReduceRows][kReduceColumns];
  const int64_t i = int64_t{blockIdx.x} * kReduceColumns + threadIdx.x;
  float sum = 0;
  if (i < count) {
#pragma unroll 8
    for (int part = static_cast<int>(threadIdx.y); part < parts_count; part += kReduceRows) {
      sum += parts[part * count + i];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || i >= count) return;
  for (int row = 1; row < kReduceRows; ++row) sum += sums[row][threadIdx.x];
  (i < weights_count ? weights_gradient[i] : bias_gradient[i - weights_count]) = sum;
}

__global__ void TurnWeightsKernel(int taps, int channels, int outputs, const float* weights, float* turned) {
  const int64_t count = int64_t{taps} * channels * outputs;
  for (int64_t i = FirstIndex(); i < count; i += IndexStride()) {
    const int64_t channel = i % channels, output = i / channels % outputs, tap = i / channels / outputs;
    turned[i] = weights[((taps - 1 - tap) * channels + channel) * outputs + output];
  }
}

int TilesFor(int64_t size, int tile) { return static_cast<int>((size + tile - 1) / tile); }

constexpr int kForwardRows = 64;

int ColumnsOfTile(const ConvolutionGeometry& g) { return g.outputs <= 32 ? 32 : 64; }

// Of the gradient of the parameters. The more rows, the less often the output's gradient is read.
int RowsOfGradientTile(const ConvolutionGeometry& g) {
  if (g.terms() + 1 <= 32) return 32;
  return ColumnsOfTile(g) == 64 ? 128 : 64;
}

// How the pixels are split for the gradient of the parameters: into enough blocks to fill any GPU, so that
// the split and the bits of the sums do not depend on which one it is.
struct Split {
  int parts;
  int pixels_per_part;
};

// It grows with the samples, so what is enough for many is enough for fewer.
int64_t MostParts(const ConvolutionGeometry& g) {
  const int rows = RowsOfGradientTile(g);
  const int64_t most_blocks = rows == 128 ? 264 : 528;  // two or four on each multiprocessor of an H100
  constexpr int64_t kLeastSteps = 4;                    // of a block
  const int64_t tiles = int64_t{TilesFor(g.terms() + 1, rows)} * TilesFor(g.outputs, ColumnsOfTile(g));
  return std::max<int64_t>(std::min(most_blocks / tiles, TilesFor(g.pixels(), kTileDepth) / kLeastSteps), 1);
}

Split SplitOf(const ConvolutionGeometry& g) {
  const int64_t steps = TilesFor(g.pixels(), kTileDepth), parts = MostParts(g);
  const int64_t steps_per_part = std::max<int64_t>((steps + parts - 1) / parts, 1);
  return {static_cast<int>(std::max<int64_t>((steps + steps_per_part - 1) / steps_per_part, 1)),
          static_cast<int>(steps_per_part * kTileDepth)};
}

// Calls launch(Variant) with the one of this shape that fits.
template <typename Shape, typename Launch>
void ChooseVariant(const ConvolutionGeometry& g, Math math, const Launch& launch) {
  const auto with_inputs = [&]<bool kTensorCores, bool kInFours>() {
    if (g.outputs % 4 == 0) {
      launch(Variant<Shape, kTensorCores, kInFours, true>());
    } else {
      launch(Variant<Shape, kTensorCores, kInFours, false>());
    }
  };
  const auto with_math = [&]<bool kTensorCores>() {
    if (g.channels % 4 == 0) {
      with_inputs.template operator()<kTensorCores, true>();
    } else {
      with_inputs.template operator()<kTensorCores, false>();
    }
  };
  if (math == Math::kFloat32) {
    with_math.template operator()<false>();
  } else {
    with_math.template operator()<true>();
  }
}

}  // namespace

// Kernels count in int, a few tiles past the end.
bool IsTooLarge(const ConvolutionGeometry& g) {
  constexpr int64_t kMost = INT_MAX / 2;
  return g.samples * g.height * g.width * g.channels > kMost || g.pixels() * g.outputs > kMost ||
         (g.terms() + 1) * g.outputs > kMost;
}

ConvolutionGeometry InputGradientGeometry(const ConvolutionGeometry& geometry) {
  ConvolutionGeometry gradient = geometry;
  gradient.height = geometry.output_height;
  gradient.width = geometry.output_width;
  gradient.channels = geometry.outputs;
  gradient.output_height = geometry.height;
  gradient.output_width = geometry.width;
  gradient.outputs = geometry.channels;
  gradient.before = geometry.kernel - 1 - geometry.before;
  return gradient;
}

cudaError_t TurnWeights(const ConvolutionGeometry& geometry, const float* weights, float* turned,
                        cudaStream_t stream) {
  TurnWeightsKernel<<<BlocksFor(geometry.terms() * geometry.outputs), kBlockThreads, 0, stream>>>(
      static_cast<int>(geometry.kernel * geometry.kernel), static_cast<int>(geometry.channels),
      static_cast<int>(geometry.outputs), weights, turned);
  return cudaGetLastError();
}

bool PoolsAtOnce(const ConvolutionGeometry& geometry, int64_t window) {
  return kForwardRows % (window * window) == 0 && geometry.output_height % window == 0 &&
         geometry.output_width % window == 0;
}

cudaError_t ConvolutionPoolForward(const ConvolutionGeometry& geometry, Math math, const float* input,
                                   const float* weights, const float* bias, int64_t window, bool relu,
                                   float* output, uint8_t* winners, cudaStream_t stream) {
  if (IsTooLarge(geometry) || !PoolsAtOnce(geometry, window)) return cudaErrorInvalidValue;
  if (geometry.pixels() == 0) return cudaSuccess;
  const PatchGeometry g(geometry, window);
  const auto launch = [&]<typename V>(V) {
    const dim3 blocks(TilesFor(g.pixels, V::kRows), TilesFor(g.outputs, V::kColumns));
    ForwardKernel<V><<<blocks, kTileThreads, 0, stream>>>(g, input, weights, bias, relu, output, winners);
  };
  if (ColumnsOfTile(geometry) == 32) {
    ChooseVariant<TileShape<kForwardRows, 32, TileOrder::kRowsFirst>>(geometry, math, launch);
  } else {
    ChooseVariant<TileShape<kForwardRows, 64, TileOrder::kRowsFirst>>(geometry, math, launch);
  }
  return cudaGetLastError();
}

cudaError_t ConvolutionForward(const ConvolutionGeometry& geometry, Math math, const float* input,
                               const float* weights, const float* bias, bool relu, float* output,
                               cudaStream_t stream) {
  return ConvolutionPoolForward(geometry, math, input, weights, bias, /*window=*/1, relu, output,
                                /*winners=*/nullptr, stream);
}

int64_t ConvolutionScratchSize(const ConvolutionGeometry& geometry) {
  return MostParts(geometry) * (geometry.terms() + 1) * geometry.outputs;
}

cudaError_t ConvolutionParameterGradient(const ConvolutionGeometry& geometry, Math math, const float* input,
                                         const float* output_gradient, float* scratch,
                                         float* weights_gradient, float* bias_gradient, cudaStream_t stream) {
  if (IsTooLarge(geometry)) return cudaErrorInvalidValue;
  const PatchGeometry g(geometry);
  const Split split = SplitOf(geometry);
  const auto launch = [&]<typename V>(V) {
    const dim3 blocks(TilesFor(g.terms + 1, V::kRows), TilesFor(g.outputs, V::kColumns), split.parts);
    GradientPartsKernel<V>
        <<<blocks, kTileThreads, 0, stream>>>(g, input, output_gradient, split.pixels_per_part, scratch);
  };
  const int rows = RowsOfGradientTile(geometry);
  if (rows == 128) {
    ChooseVariant<TileShape<128, 64, TileOrder::kDepthFirst>>(geometry, math, launch);
  } else if (rows == 64) {
    ChooseVariant<TileShape<64, 32, TileOrder::kDepthFirst>>(geometry, math, launch);
  } else if (ColumnsOfTile(geometry) == 64) {
    ChooseVariant<TileShape<32, 64, TileOrder::kDepthFirst>>(geometry, math, launch);
  } else {
    ChooseVariant<TileShape<32, 32, TileOrder::kDepthFirst>>(geometry, math, launch);
  }
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  const int64_t weights_count = geometry.terms() * geometry.outputs;
  const int64_t count = weights_count + geometry.outputs;
  AddPartsKernel<<<TilesFor(count, kReduceColumns), dim3(kReduceColumns, kReduceRows), 0, stream>>>(
      split.parts, weights_count, count, scratch, weights_gradient, bias_gradient);
  return cudaGetLastError();
}

}  // namespace muster::cuda
