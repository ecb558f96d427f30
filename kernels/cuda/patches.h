// The matrices that a convolution multiplies, as tiles are read out of images. For .cu files.
//
// Each pixel of the output is a row of a matrix of patches [pixels, terms]: what lies under the kernel, one
// tap (place in the kernel) after the other, all channels of each. The forward pass multiplies it with the
// weights [terms, outputs]; the gradient of the weights is its transpose times the output's gradient.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/convolution.h"
#include "kernels/cuda/device_code.h"
#include "kernels/cuda/tile.h"

namespace muster::cuda {

/// ConvolutionGeometry as kernels count in it.
struct PatchGeometry {
  explicit PatchGeometry(const ConvolutionGeometry& g)
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

__device__ inline Patch PatchOf(const PatchGeometry& g, const float* input, int pixel) {
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

__device__ inline Term TermOf(const PatchGeometry& g, int index) {
  if (index >= g.terms) return {false, 0, 0, 0};
  uint32_t tap, y;
  const uint32_t channel = g.by_channels.Split(static_cast<uint32_t>(index), &tap);
  const uint32_t x = g.by_kernel.Split(tap, &y);
  return {true, static_cast<int>(y), static_cast<int>(x), static_cast<int>(channel)};
}

// Null where there is a zero.
__device__ inline const float* PlaceOf(const PatchGeometry& g, const Patch& patch, const Term& term) {
  const int y = patch.y + term.y, x = patch.x + term.x;
  if (!patch.exists || !term.exists || y < 0 || y >= g.height || x < 0 || x >= g.width) return nullptr;
  return patch.image + (static_cast<int64_t>(y) * g.width + x) * g.channels + term.channel;
}

__device__ inline float4 LoadFour(const float* place) {
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
  __device__ LoadPatches(const PatchGeometry& g, const float* input, int first_pixel) : g_(g) {
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

  const PatchGeometry& g_;
  Patch patches_[2];
  float4 values_[2];
};

template <>
class LoadPatches<false> {
 public:
  __device__ LoadPatches(const PatchGeometry& g, const float* input, int first_pixel)
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

  const PatchGeometry& g_;
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
  __device__ LoadTransposedPatches(const PatchGeometry& g, const float* input, int first_term,
                                   int first_pixel, int end_pixel)
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

  const PatchGeometry& g_;
  const float* const input_;
  const Term term_;  // the first of four
  const bool is_one_;
  const int first_pixel_, end_pixel_;
  float4 values_[2];
};

template <>
class LoadTransposedPatches<false> {
 public:
  __device__ LoadTransposedPatches(const PatchGeometry& g, const float* input, int first_term,
                                   int first_pixel, int end_pixel)
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

  const PatchGeometry& g_;
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

}  // namespace muster::cuda
