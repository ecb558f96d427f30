#include "kernels/cuda/convolution.h"

#include <climits>
#include <type_traits>

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/tile.h"

// Each pixel of the output is a row of a matrix of patches [pixels, terms]: what lies under the kernel, one
// tap (place in the kernel) after the other, all channels of each. The forward pass multiplies it with the
// weights [terms, outputs]; the gradient of the weights is its transpose times the output's gradient.

namespace muster::cuda {
namespace {

struct Geometry {
  explicit Geometry(const ConvolutionGeometry& g)
      : height(static_cast<int>(g.height)),
        width(static_cast<int>(g.width)),
        channels(static_cast<int>(g.channels)),
        outputs(static_cast<int>(g.outputs)),
        before(static_cast<int>(g.before)),
        pixels(static_cast<int>(g.pixels())),
        terms(static_cast<int>(g.terms())),
        by_channels(channels),
        by_kernel(static_cast<int>(g.kernel)),
        by_output_width(static_cast<int>(g.output_width)),
        by_output_height(static_cast<int>(g.output_height)) {}

  int height, width, channels, outputs, before, pixels, terms;
  Divisor by_channels, by_kernel, by_output_width, by_output_height;
};

// A row of the matrix of patches: where its patch begins, which may be outside of the image.
struct Patch {
  bool exists;
  int y, x;
  const float* image;  // of its sample
};

__device__ Patch PatchOf(const Geometry& g, const float* input, int pixel) {
  if (pixel >= g.pixels) return {false, 0, 0, input};
  uint32_t row, sample;
  const uint32_t x = g.by_output_width.Split(static_cast<uint32_t>(pixel), &row);
  const uint32_t y = g.by_output_height.Split(row, &sample);
  return {true, static_cast<int>(y) - g.before, static_cast<int>(x) - g.before,
          input + static_cast<int64_t>(sample) * g.height * g.width * g.channels};
}

// A column of it: a place in the patch.
struct Term {
  bool exists;
  int y, x, channel;
};

__device__ Term TermOf(const Geometry& g, int index) {
  if (index >= g.terms) return {false, 0, 0, 0};
  uint32_t tap, y;
  const uint32_t channel = g.by_channels.Split(static_cast<uint32_t>(index), &tap);
  const uint32_t x = g.by_kernel.Split(tap, &y);
  return {true, static_cast<int>(y), static_cast<int>(x), static_cast<int>(channel)};
}

// Null where there is a zero.
__device__ const float* PlaceOf(const Geometry& g, const Patch& patch, const Term& term) {
  const int y = patch.y + term.y, x = patch.x + term.x;
  if (!patch.exists || !term.exists || y < 0 || y >= g.height || x < 0 || x >= g.width) return nullptr;
  return patch.image + (static_cast<int64_t>(y) * g.width + x) * g.channels + term.channel;
}

__device__ float4 LoadFour(const float* place) {
  return place == nullptr ? make_float4(0, 0, 0, 0) : *reinterpret_cast<const float4*>(place);
}

using OperandA = float (*)[kTileRows + kTilePadding];

// Patches as the left factor: rows of the tile are pixels, its depth runs over terms. `kQuads`: channels are
// a multiple of four, so that four terms lie side by side.
template <bool kQuads>
class LoadPatches;

template <>
class LoadPatches<true> {
 public:
  __device__ LoadPatches(const Geometry& g, const float* input, int first_pixel) : g_(g) {
#pragma unroll
    for (int i = 0; i < 2; ++i) patches_[i] = PatchOf(g, input, first_pixel + row(i));
  }
  __device__ void Fetch(int step) {
    const Term term = TermOf(g_, step * kTileDepth + depth());
#pragma unroll
    for (int i = 0; i < 2; ++i) values_[i] = LoadFour(PlaceOf(g_, patches_[i], term));
  }
  __device__ void Store(OperandA a) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      a[depth()][row(i)] = values_[i].x;
      a[depth() + 1][row(i)] = values_[i].y;
      a[depth() + 2][row(i)] = values_[i].z;
      a[depth() + 3][row(i)] = values_[i].w;
    }
  }

 private:
  static __device__ int depth() { return static_cast<int>(threadIdx.x) % 4 * 4; }
  static __device__ int row(int i) { return static_cast<int>(threadIdx.x) / 4 + kTileRows / 2 * i; }

  const Geometry& g_;
  Patch patches_[2];
  float4 values_[2];
};

template <>
class LoadPatches<false> {
 public:
  __device__ LoadPatches(const Geometry& g, const float* input, int first_pixel)
      : g_(g), patch_(PatchOf(g, input, first_pixel + row())) {}
  __device__ void Fetch(int step) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float* const place = PlaceOf(g_, patch_, TermOf(g_, step * kTileDepth + depth(i)));
      values_[i] = place == nullptr ? 0 : *place;
    }
  }
  __device__ void Store(OperandA a) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) a[depth(i)][row()] = values_[i];
  }

 private:
  static constexpr int kCount = kTileDepth * kTileRows / kTileThreads;
  static __device__ int row() { return static_cast<int>(threadIdx.x) % kTileRows; }
  static __device__ int depth(int i) {
    return static_cast<int>(threadIdx.x) / kTileRows + kTileThreads / kTileRows * i;
  }

  const Geometry& g_;
  const Patch patch_;
  float values_[kCount];
};

// Their transpose as the left factor: rows of the tile are terms, its depth runs over pixels. Behind the last
// term comes a row of ones, which makes the gradient of the bias: the sum over the pixels.
template <bool kQuads>
class LoadTransposedPatches;

template <>
class LoadTransposedPatches<true> {
 public:
  __device__ LoadTransposedPatches(const Geometry& g, const float* input, int first_term, int first_pixel,
                                   int end_pixel)
      : g_(g),
        input_(input),
        term_(TermOf(g, first_term + row())),
        is_one_(first_term + row() == g.terms),
        first_pixel_(first_pixel),
        end_pixel_(end_pixel) {}
  __device__ void Fetch(int step) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int pixel = first_pixel_ + step * kTileDepth + depth(i);
      if (is_one_) {
        values_[i] = make_float4(pixel < end_pixel_ ? 1 : 0, 0, 0, 0);
      } else {
        values_[i] = pixel < end_pixel_ ? LoadFour(PlaceOf(g_, PatchOf(g_, input_, pixel), term_))
                                        : make_float4(0, 0, 0, 0);
      }
    }
  }
  __device__ void Store(OperandA a) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) *reinterpret_cast<float4*>(&a[depth(i)][row()]) = values_[i];
  }

 private:
  static __device__ int row() { return static_cast<int>(threadIdx.x) % (kTileRows / 4) * 4; }
  static __device__ int depth(int i) {
    return static_cast<int>(threadIdx.x) / (kTileRows / 4) + kTileDepth / 2 * i;
  }

  const Geometry& g_;
  const float* const input_;
  const Term term_;  // the first of four
  const bool is_one_;
  const int first_pixel_, end_pixel_;
  float4 values_[2];
};

template <>
class LoadTransposedPatches<false> {
 public:
  __device__ LoadTransposedPatches(const Geometry& g, const float* input, int first_term, int first_pixel,
                                   int end_pixel)
      : g_(g),
        input_(input),
        term_(TermOf(g, first_term + row())),
        is_one_(first_term + row() == g.terms),
        first_pixel_(first_pixel),
        end_pixel_(end_pixel) {}
  __device__ void Fetch(int step) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int pixel = first_pixel_ + step * kTileDepth + depth(i);
      values_[i] = 0;
      if (pixel >= end_pixel_) continue;
      if (is_one_) values_[i] = 1;
      const float* const place = PlaceOf(g_, PatchOf(g_, input_, pixel), term_);
      if (place != nullptr) values_[i] = *place;
    }
  }
  __device__ void Store(OperandA a) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) a[depth(i)][row()] = values_[i];
  }

 private:
  static constexpr int kCount = kTileDepth * kTileRows / kTileThreads;
  static __device__ int row() { return static_cast<int>(threadIdx.x) % kTileRows; }
  static __device__ int depth(int i) {
    return static_cast<int>(threadIdx.x) / kTileRows + kTileThreads / kTileRows * i;
  }

  const Geometry& g_;
  const float* const input_;
  const Term term_;
  const bool is_one_;
  const int first_pixel_, end_pixel_;
  float values_[kCount];
};

// Rows [begin, end) of a matrix [.., columns] as the right factor; the depth of the tile runs over them.
template <int kColumns, bool kQuads>
class LoadRows {
 public:
  __device__ LoadRows(const float* matrix, int columns, int begin, int end, int first_column)
      : matrix_(matrix), columns_(columns), begin_(begin), end_(end), first_column_(first_column) {}
  __device__ void Fetch(int step) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int row = begin_ + step * kTileDepth + depth(i), column = first_column_ + offset();
      const bool inside = row < end_ && column < columns_;
      const float* const place = matrix_ + static_cast<int64_t>(row) * columns_ + column;
      if constexpr (kQuads) {
        values_[i] = LoadFour(inside ? place : nullptr);
      } else {
        values_[i] = inside ? *place : 0;
      }
    }
  }
  __device__ void Store(float (*b)[kColumns + kTilePadding]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) *reinterpret_cast<Value*>(&b[depth(i)][offset()]) = values_[i];
  }

 private:
  using Value = std::conditional_t<kQuads, float4, float>;
  static constexpr int kWidth = kQuads ? 4 : 1;
  static constexpr int kThreadsAcross = kColumns / kWidth;
  static constexpr int kThreadsDown = kTileThreads / kThreadsAcross;
  static constexpr int kCount = kTileDepth / kThreadsDown;
  static __device__ int offset() { return static_cast<int>(threadIdx.x) % kThreadsAcross * kWidth; }
  static __device__ int depth(int i) {
    return static_cast<int>(threadIdx.x) / kThreadsAcross + kThreadsDown * i;
  }

  const float* const matrix_;
  const int columns_, begin_, end_, first_column_;
  Value values_[kCount];
};

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
    ForwardKernel(const __grid_constant__ Geometry g, const float* input, const float* weights,
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
    GradientPartsKernel(const __grid_constant__ Geometry g, const float* input, const float* output_gradient,
                        int pixels_per_part, float* parts) {
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
  const Geometry g(geometry);
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
  const Geometry g(geometry);
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
