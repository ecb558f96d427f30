// The matrices that a convolution multiplies, as tiles are read out of images. For .cu files.
//
// Each pixel of the output is a row of a matrix of patches [pixels, terms]: what lies under the kernel, one
// tap (place in the kernel) after the other, all channels of each. The forward pass multiplies it with the
// weights [terms, outputs]; the gradient of the weights is its transpose times the output's gradient.
//
// Loaders are told of no step: each call of Next is the one after the call before, so that they move by
// additions and need no division.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/convolution.h"
#include "kernels/cuda/device_code.h"
#include "kernels/cuda/tile.h"

namespace muster::cuda {

/// ConvolutionGeometry as kernels count in it.
struct PatchGeometry {
  /// `pool_window`: of a pooling behind the convolution, whose windows cover the output; the pixels of each
  /// are next to one another.
  explicit PatchGeometry(const ConvolutionGeometry& g, int64_t pool_window = 1)
      : height(static_cast<int>(g.height)),
        width(static_cast<int>(g.width)),
        channels(static_cast<int>(g.channels)),
        output_height(static_cast<int>(g.output_height)),
        output_width(static_cast<int>(g.output_width)),
        outputs(static_cast<int>(g.outputs)),
        kernel(static_cast<int>(g.kernel)),
        before(static_cast<int>(g.before)),
        pixels(static_cast<int>(g.pixels())),
        terms(static_cast<int>(g.terms())),
        window(static_cast<int>(pool_window)),
        by_channels(channels),
        by_kernel(kernel),
        by_window(window),
        by_windows_across(output_width / window),
        by_windows_down(output_height / window) {}

  int height, width, channels, output_height, output_width, outputs, kernel, before, pixels, terms, window;
  Divisor by_channels, by_kernel, by_window, by_windows_across, by_windows_down;
};

/// A row of the matrix of patches: a pixel of the output.
class Patch {
 public:
  __device__ Patch(const PatchGeometry& g, int pixel) : g_(&g) {
    uint32_t rest, sample;
    const auto in_window_x = static_cast<int>(g.by_window.Split(static_cast<uint32_t>(pixel), &rest));
    const auto in_window_y = static_cast<int>(g.by_window.Split(rest, &rest));
    x_ = static_cast<int>(g.by_windows_across.Split(rest, &rest)) * g.window + in_window_x;
    y_ = static_cast<int>(g.by_windows_down.Split(rest, &sample)) * g.window + in_window_y;
    image_ = static_cast<int>(sample) * g.height * g.width * g.channels;
  }
  /// To the patch `pixels` further on, where the window is one pixel.
  __device__ void Advance(int pixels) {
    x_ += pixels;
    while (x_ >= g_->output_width) {
      x_ -= g_->output_width;
      if (++y_ < g_->output_height) continue;
      y_ = 0;
      image_ += g_->height * g_->width * g_->channels;
    }
  }
  /// Of its first value, which may be outside of the image.
  __device__ int y() const { return y_ - g_->before; }
  __device__ int x() const { return x_ - g_->before; }
  __device__ int offset() const { return image_ + (y() * g_->width + x()) * g_->channels; }

 private:
  const PatchGeometry* g_;
  int y_, x_;
  int image_;  // where its sample begins
};

/// A column of it: a place in a patch.
class Term {
 public:
  __device__ Term(const PatchGeometry& g, int index) : g_(&g) {
    uint32_t tap, y;
    channel_ = static_cast<int>(g.by_channels.Split(static_cast<uint32_t>(index), &tap));
    x_ = static_cast<int>(g.by_kernel.Split(tap, &y));
    y_ = static_cast<int>(y);
  }
  __device__ void Advance(int terms) {
    channel_ += terms;
    while (channel_ >= g_->channels) {
      channel_ -= g_->channels;
      if (++x_ < g_->kernel) continue;
      x_ = 0;
      ++y_;
    }
  }
  __device__ bool exists() const { return y_ < g_->kernel; }
  __device__ int y() const { return y_; }
  __device__ int x() const { return x_; }
  /// From the patch's first value.
  __device__ int offset() const { return (y_ * g_->width + x_) * g_->channels + channel_; }

 private:
  const PatchGeometry* g_;
  int y_, x_, channel_;
};

/// Whether there is a value, or the zeros around the image.
__device__ inline bool IsInImage(const PatchGeometry& g, int y, int x) {
  return static_cast<unsigned>(y) < static_cast<unsigned>(g.height) &&
         static_cast<unsigned>(x) < static_cast<unsigned>(g.width);
}

/// Patches as the left factor: rows of the tile are pixels, its depth runs over terms. `kWidth`: 4 if
/// channels are a multiple of four, so that four terms lie side by side; else 1.
template <typename Shape, int kWidth>
class LoadPatches {
 public:
  __device__ LoadPatches(const PatchGeometry& g, const float* input, int first_pixel)
      : g_(g), input_(input), term_(g, depth()) {
#pragma unroll
    for (int i = 0; i < kPatches; ++i) {
      const int pixel = first_pixel + row(i);
      const Patch patch(g, pixel);
      rows_[i] = {.y = pixel < g.pixels ? patch.y() : kOutside, .x = patch.x(), .offset = patch.offset()};
    }
  }
  __device__ void Next(float (*a)[Shape::kPitchOfA]) {
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
      const bool exists = term_.exists();
#pragma unroll
      for (int i = 0; i < kPatches; ++i) {
        const bool is_value = exists && IsInImage(g_, rows_[i].y + term_.y(), rows_[i].x + term_.x());
        CopyAsync<kWidth>(&a[row(i)][depth() + term], input_ + (rows_[i].offset + term_.offset()), is_value);
      }
      if (term + 1 < kTerms) term_.Advance(1);
    }
    term_.Advance(kTileDepth - kTerms + 1);
  }

 private:
  static_assert(Shape::kRowsFirst);
  struct Row {
    int y, x, offset;
  };
  static constexpr int kOutside = -(1 << 29);  // of every image, wherever the term is
  static constexpr int kThreadsAcross = kWidth == 4 ? kTileDepth / 4 : 2;
  static constexpr int kThreadsDown = kTileThreads / kThreadsAcross;
  static constexpr int kTerms = kTileDepth / kThreadsAcross / kWidth;  // of a thread, next to one another
  static constexpr int kPatches = Shape::kRows / kThreadsDown;
  static_assert(kPatches >= 1);
  static __device__ int depth() { return static_cast<int>(threadIdx.x) % kThreadsAcross * kTerms * kWidth; }
  static __device__ int row(int i) {
    return static_cast<int>(threadIdx.x) / kThreadsAcross + kThreadsDown * i;
  }

  const PatchGeometry& g_;
  const float* const input_;
  Term term_;  // the first of the next step
  Row rows_[kPatches];
};

__device__ const float4 kOneAndZeros = {1, 0, 0, 0};

/// Their transpose as the left factor: rows of the tile are terms, its depth runs over pixels. Behind the
/// last term comes a row of ones, which makes the gradient of the bias: the sum over the pixels.
template <typename Shape, int kWidth>
class LoadTransposedPatches {
 public:
  __device__ LoadTransposedPatches(const PatchGeometry& g, const float* input, int first_term,
                                   int first_pixel, int end_pixel)
      : g_(g),
        input_(input),
        patch_(g, first_pixel + depth(0)),
        pixel_(first_pixel + depth(0)),
        end_pixel_(end_pixel),
        is_one_(first_term + row() == g.terms),
        exists_(first_term + row() < g.terms) {
    const Term term(g, first_term + row());
    y_ = term.y();
    x_ = term.x();
    offset_ = term.offset();
  }
  __device__ void Next(float (*a)[Shape::kPitchOfA]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const bool is_value = is_one_ || (exists_ && IsInImage(g_, patch_.y() + y_, patch_.x() + x_));
      const float* const place = is_one_ ? &kOneAndZeros.x : input_ + (patch_.offset() + offset_);
      CopyAsync<kWidth>(&a[depth(i)][row()], place, is_value && pixel_ < end_pixel_);
      patch_.Advance(kThreadsDown);
      pixel_ += kThreadsDown;
    }
  }

 private:
  static_assert(!Shape::kRowsFirst);
  static constexpr int kThreadsAcross = Shape::kRows / kWidth;
  static constexpr int kThreadsDown = kTileThreads / kThreadsAcross;
  static constexpr int kCount = kTileDepth / kThreadsDown;
  static __device__ int row() { return static_cast<int>(threadIdx.x) % kThreadsAcross * kWidth; }
  static __device__ int depth(int i) {
    return static_cast<int>(threadIdx.x) / kThreadsAcross + kThreadsDown * i;
  }

  const PatchGeometry& g_;
  const float* const input_;
  Patch patch_;  // the next one
  int pixel_;    // the same
  const int end_pixel_;
  const bool is_one_, exists_;
  int y_, x_, offset_;  // of its term, with kWidth 4 the first of four
};

/// Rows [begin, end) of a matrix [.., columns] as the right factor; the depth of the tile runs over them.
/// `kWidth`: 4 if columns are a multiple of four, else 1.
template <typename Shape, int kWidth>
class LoadRows {
 public:
  __device__ LoadRows(const float* matrix, int columns, int begin, int end, int first_column)
      : columns_(columns),
        row_(begin + depth(0)),
        end_(end),
        exists_(first_column + offset() < columns),
        place_(matrix + (static_cast<int64_t>(row_) * columns + first_column + offset())) {}
  __device__ void Next(float (*b)[Shape::kPitchOfB]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      CopyAsync<kWidth>(&b[depth(i)][offset()], place_, exists_ && row_ < end_);
      row_ += kThreadsDown;
      place_ += kThreadsDown * columns_;
    }
  }

 private:
  static constexpr int kThreadsAcross = Shape::kColumns / kWidth;
  static constexpr int kThreadsDown = kTileThreads / kThreadsAcross;
  static constexpr int kCount = kTileDepth / kThreadsDown;
  static __device__ int offset() { return static_cast<int>(threadIdx.x) % kThreadsAcross * kWidth; }
  static __device__ int depth(int i) {
    return static_cast<int>(threadIdx.x) / kThreadsAcross + kThreadsDown * i;
  }

  const int columns_;
  int row_;  // the next one
  const int end_;
  const bool exists_;
  const float* place_;
};

}  // namespace muster::cuda
