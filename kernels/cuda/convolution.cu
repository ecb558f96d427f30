#include "kernels/cuda/convolution.h"

#include <climits>
#include <type_traits>

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/patches.h"
#include "kernels/cuda/tile.h"

namespace muster::cuda {
namespace {

// What is different between kernels of one operation: the width of the tile, the kind of product, and whether
// the channels of input and output come in fours.
template <int kTileColumns, bool kUseTensorCores, bool kInputQuads, bool kOutputQuads>
struct Variant {
  static constexpr int kColumns = kTileColumns;
  static constexpr bool kInFours = kInputQuads, kOutFours = kOutputQuads;
  using Sums = std::conditional_t<kUseTensorCores, TensorCoreSums<kTileColumns>, FloatSums<kTileColumns>>;
};

template <typename V>
__global__ void __launch_bounds__(kTileThreads)
    ForwardKernel(const __grid_constant__ PatchGeometry g, const float* input, const float* weights,
                  const float* bias, bool relu, float* output) {
  __shared__ __align__(128) TileMemory<V::kColumns> memory;
  const int first_pixel = static_cast<int>(blockIdx.x) * kTileRows;
  const int first_column = static_cast<int>(blockIdx.y) * V::kColumns;
  LoadPatches<V::kInFours> load_a(g, input, first_pixel);
  LoadRows<V::kColumns, V::kOutFours> load_b(weights, g.outputs, 0, g.terms, first_column);
  MultiplyTiles<typename V::Sums>((g.terms + kTileDepth - 1) / kTileDepth, load_a, load_b, memory);
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * V::kColumns; i += kTileThreads) {
    const int row = i / V::kColumns, column = i % V::kColumns;
    const int pixel = first_pixel + row, channel = first_column + column;
    if (pixel >= g.pixels || channel >= g.outputs) continue;
    float value = memory.sums[row][column];
    if (bias != nullptr) value += bias[channel];
    if (relu) value = value < 0 ? 0 : value;
    output[static_cast<int64_t>(pixel) * g.outputs + channel] = value;
  }
}

// Block z adds up `pixels_per_part` pixels: parts [parts, terms + 1, outputs], the last row for the bias.
template <typename V>
__global__ void __launch_bounds__(kTileThreads)
    GradientPartsKernel(const __grid_constant__ PatchGeometry g, const float* input,
                        const float* output_gradient, int pixels_per_part, float* parts) {
  __shared__ __align__(128) TileMemory<V::kColumns> memory;
  const int first_term = static_cast<int>(blockIdx.x) * kTileRows;
  const int first_column = static_cast<int>(blockIdx.y) * V::kColumns;
  const int begin = min(static_cast<int>(blockIdx.z) * pixels_per_part, g.pixels);
  const int end = min(begin + pixels_per_part, g.pixels);
  LoadTransposedPatches<V::kInFours> load_a(g, input, first_term, begin, end);
  LoadRows<V::kColumns, V::kOutFours> load_b(output_gradient, g.outputs, begin, end, first_column);
  MultiplyTiles<typename V::Sums>((end - begin + kTileDepth - 1) / kTileDepth, load_a, load_b, memory);
  float* const part = parts + static_cast<int64_t>(blockIdx.z) * (g.terms + 1) * g.outputs;
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * V::kColumns; i += kTileThreads) {
    const int term = first_term + i / V::kColumns, channel = first_column + i % V::kColumns;
    if (term > g.terms || channel >= g.outputs) continue;
    part[static_cast<int64_t>(term) * g.outputs + channel] = memory.sums[i / V::kColumns][i % V::kColumns];
  }
}

constexpr int kReduceColumns = 32;  // values of a block
constexpr int kReduceRows = 8;      // parts that it reads at once

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

// How the pixels are split for the gradient of the parameters: into enough blocks to fill any GPU, so that
// the split and the bits of the sums do not depend on which one it is.
struct Split {
  int parts;
  int pixels_per_part;
};

int ColumnsOfTile(const ConvolutionGeometry& g) { return g.outputs <= 32 ? 32 : 64; }

Split SplitOf(const ConvolutionGeometry& g) {
  constexpr int64_t kBlocks = 512;
  constexpr int64_t kLeastSteps = 4;  // of a block
  const int64_t tiles = int64_t{TilesFor(g.terms() + 1, kTileRows)} * TilesFor(g.outputs, ColumnsOfTile(g));
  const int64_t steps = TilesFor(g.pixels(), kTileDepth);
  int64_t parts = (kBlocks + tiles - 1) / tiles;
  if (parts > steps / kLeastSteps) parts = steps / kLeastSteps;
  if (parts < 1) parts = 1;
  const int64_t steps_per_part = steps == 0 ? 1 : (steps + parts - 1) / parts;
  return {static_cast<int>(parts), static_cast<int>(steps_per_part * kTileDepth)};
}

// Kernels count in int, a few tiles past the end.
bool IsTooLarge(const ConvolutionGeometry& g) {
  constexpr int64_t kMost = INT_MAX / 2;
  return g.samples * g.height * g.width * g.channels > kMost || g.pixels() * g.outputs > kMost ||
         (g.terms() + 1) * g.outputs > kMost;
}

// Calls launch(Variant) with the one that fits.
template <typename Launch>
void ChooseVariant(const ConvolutionGeometry& g, Math math, const Launch& launch) {
  const auto with_outputs = [&]<int kColumns, bool kTensorCores, bool kInFours>() {
    if (g.outputs % 4 == 0) {
      launch(Variant<kColumns, kTensorCores, kInFours, true>());
    } else {
      launch(Variant<kColumns, kTensorCores, kInFours, false>());
    }
  };
  const auto with_inputs = [&]<int kColumns, bool kTensorCores>() {
    if (g.channels % 4 == 0) {
      with_outputs.template operator()<kColumns, kTensorCores, true>();
    } else {
      with_outputs.template operator()<kColumns, kTensorCores, false>();
    }
  };
  const auto with_columns = [&]<int kColumns>() {
    if (math == Math::kFloat32) {
      with_inputs.template operator()<kColumns, false>();
    } else {
      with_inputs.template operator()<kColumns, true>();
    }
  };
  if (ColumnsOfTile(g) == 32) {
    with_columns.template operator()<32>();
  } else {
    with_columns.template operator()<64>();
  }
}

}  // namespace

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

cudaError_t ConvolutionForward(const ConvolutionGeometry& geometry, Math math, const float* input,
                               const float* weights, const float* bias, bool relu, float* output,
                               cudaStream_t stream) {
  if (IsTooLarge(geometry)) return cudaErrorInvalidValue;
  if (geometry.pixels() == 0) return cudaSuccess;
  const PatchGeometry g(geometry);
  ChooseVariant(geometry, math, [&]<typename V>(V) {
    const dim3 blocks(TilesFor(g.pixels, kTileRows), TilesFor(g.outputs, V::kColumns));
    ForwardKernel<V><<<blocks, kTileThreads, 0, stream>>>(g, input, weights, bias, relu, output);
  });
  return cudaGetLastError();
}

int64_t ConvolutionScratchSize(const ConvolutionGeometry& geometry) {
  return SplitOf(geometry).parts * (geometry.terms() + 1) * geometry.outputs;
}

cudaError_t ConvolutionParameterGradient(const ConvolutionGeometry& geometry, Math math, const float* input,
                                         const float* output_gradient, float* scratch,
                                         float* weights_gradient, float* bias_gradient, cudaStream_t stream) {
  if (IsTooLarge(geometry)) return cudaErrorInvalidValue;
  const PatchGeometry g(geometry);
  const Split split = SplitOf(geometry);
  ChooseVariant(geometry, math, [&]<typename V>(V) {
    const dim3 blocks(TilesFor(g.terms + 1, kTileRows), TilesFor(g.outputs, V::kColumns), split.parts);
    GradientPartsKernel<V>
        <<<blocks, kTileThreads, 0, stream>>>(g, input, output_gradient, split.pixels_per_part, scratch);
  });
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  const int64_t weights_count = geometry.terms() * geometry.outputs;
  const int64_t count = weights_count + geometry.outputs;
  AddPartsKernel<<<TilesFor(count, kReduceColumns), dim3(kReduceColumns, kReduceRows), 0, stream>>>(
      split.parts, weights_count, count, scratch, weights_gradient, bias_gradient);
  return cudaGetLastError();
}

}  // namespace muster::cuda
