#include "kernels/winograd.h"

#include <algorithm>

#include "base/status.h"
#include "kernels/dense.h"

namespace muster {

struct WinogradLoops {
  int64_t lanes = 0;
  int64_t tile_rows = 0;
  int64_t panel = 0;
  void (*weights_to_points)(const double* weights, float* points, int64_t point) = nullptr;
  void (*points_to_weights)(const float* points, int64_t point, double* weights) = nullptr;
  void (*convolve)(const WinogradTiles&, int64_t samples, const float* images, const float* weight_points,
                   float* output, float* image_points, float* output_points) = nullptr;
  void (*add_gradient)(const WinogradTiles&, int64_t samples, const float* images, const float* gradient,
                       float* gradient_points, float* image_points, float* output_points) = nullptr;
};

namespace {

constexpr int64_t kKernel = Winograd::kKernel, kTaps = kKernel * kKernel;
constexpr int64_t kSide = 6, kPoints = kSide * kSide;  // kSide points in each dimension
constexpr int64_t kLargestPanel = 32;

namespace baseline {
constexpr int kLanes = 4;
constexpr int kTileRows = 6;
#include "kernels/winograd_inl.h"
}  // namespace baseline

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
constexpr int kLanes = 8;
constexpr int kTileRows = 6;
#include "kernels/winograd_inl.h"
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,fma")
namespace avx512 {
constexpr int kLanes = 16;
constexpr int kTileRows = 12;
#include "kernels/winograd_inl.h"
}  // namespace avx512
#pragma GCC pop_options
#endif

// As oneDNN chooses, so that an instruction set that is pinned holds here too.
const WinogradLoops& Choose() {
#if defined(__x86_64__)
  const std::string name = InstructionSetName();
  if (name.starts_with("avx512")) return avx512::kLoops;
  if (name.starts_with("avx2")) return avx2::kLoops;
#endif
  return baseline::kLoops;
}

// Points of a block of tiles: a third of a second-level cache of 512 KiB, which holds those of the weights
// and of a panel of outputs besides.
constexpr int64_t kBlockFloats = 48 << 10;

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

WinogradTiles TilesOf(const WinogradShape& shape, const WinogradLoops& loops) {
  WinogradTiles tiles = {.height = shape.height + 2 * shape.zeros - kKernel + 1,
                         .width = shape.width + 2 * shape.zeros - kKernel + 1,
                         .channels = shape.channels,
                         .outputs = shape.outputs};
  tiles.down = (tiles.height + 1) / 2;
  tiles.across = (tiles.width + 1) / 2;
  tiles.pixel = RoundUp(shape.channels, loops.lanes);
  tiles.row = (2 * tiles.across + kKernel - 1) * tiles.pixel;
  tiles.image = (2 * tiles.down + kKernel - 1) * tiles.row;
  const int64_t block = kBlockFloats / kPoints / tiles.pixel / loops.tile_rows * loops.tile_rows;
  tiles.block = std::max(block, loops.tile_rows);
  // A cache line more, since points a power of two apart would share few sets of the first-level cache.
  tiles.image_point = tiles.block * tiles.pixel + 16;
  tiles.output_point = tiles.block * loops.panel + 16;
  return tiles;
}

}  // namespace

Winograd::Scratch::Scratch(const Winograd& winograd, int64_t samples)
    : images_(samples * winograd.tiles_.image),
      image_points_(kPoints * winograd.tiles_.image_point),
      output_points_(kPoints * winograd.tiles_.output_point) {}

Winograd::Winograd(const WinogradShape& shape)
    : shape_(shape), loops_(Choose()), tiles_(TilesOf(shape, loops_)) {
  MUSTER_CHECK(shape.channels >= 1 && shape.outputs >= 1 && shape.zeros >= 0 && tiles_.height >= 1 &&
               tiles_.width >= 1);
}

int64_t Winograd::weight_points_size() const {
  return RoundUp(shape_.outputs, loops_.panel) * kPoints * shape_.channels;
}

// Calls work(channel, first output, outputs, points) for each channel and panel: `points` is where theirs
// begin.
template <typename Work>
void Winograd::ForEachPanel(const Work& work) const {
  for (int64_t o = 0; o < shape_.outputs; o += loops_.panel) {
    const int64_t count = std::min(loops_.panel, shape_.outputs - o);
    for (int64_t c = 0; c < shape_.channels; ++c) {
      work(c, o, count, o * kPoints * shape_.channels + c * loops_.panel);
    }
  }
}

void Winograd::TransformTurnedWeights(std::span<const float> weights, float* weight_points) const {
  double taps[kTaps * kLargestPanel] = {};
  ForEachPanel([&](int64_t c, int64_t o, int64_t count, int64_t points) {
    for (int64_t tap = 0; tap < kTaps; ++tap) {
      const float* const from =
          weights.data() + ((kTaps - 1 - tap) * shape_.outputs + o) * shape_.channels + c;
      for (int64_t i = 0; i < loops_.panel; ++i) {
        taps[tap * loops_.panel + i] = i < count ? from[i * shape_.channels] : 0;
      }
    }
    loops_.weights_to_points(taps, weight_points + points, shape_.channels * loops_.panel);
  });
}

void Winograd::TransformGradient(const float* gradient_points, std::span<float> weights_gradient) const {
  double taps[kTaps * kLargestPanel];
  ForEachPanel([&](int64_t c, int64_t o, int64_t count, int64_t points) {
    loops_.points_to_weights(gradient_points + points, shape_.channels * loops_.panel, taps);
    for (int64_t tap = 0; tap < kTaps; ++tap) {
      float* const to = weights_gradient.data() + (tap * shape_.channels + c) * shape_.outputs + o;
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(taps[tap * loops_.panel + i]);
    }
  });
}

// Between zeros, which the copies have from the beginning.
void Winograd::CopyImages(int64_t samples, const float* images, float* copies) const {
  for (int64_t sample = 0; sample < samples; ++sample) {
    for (int64_t y = 0; y < shape_.height; ++y) {
      float* to =
          copies + sample * tiles_.image + (y + shape_.zeros) * tiles_.row + shape_.zeros * tiles_.pixel;
      for (int64_t x = 0; x < shape_.width; ++x, images += shape_.channels, to += tiles_.pixel) {
        std::copy_n(images, shape_.channels, to);
      }
    }
  }
}

void Winograd::Convolve(int64_t samples, const float* images, const float* weight_points, float* output,
                        Scratch& scratch) const {
  CopyImages(samples, images, scratch.images_.data());
  loops_.convolve(tiles_, samples, scratch.images_.data(), weight_points, output,
                  scratch.image_points_.data(), scratch.output_points_.data());
}

void Winograd::AddGradient(int64_t samples, const float* images, const float* output_gradient,
                           float* gradient_points, Scratch& scratch) const {
  CopyImages(samples, images, scratch.images_.data());
  loops_.add_gradient(tiles_, samples, scratch.images_.data(), output_gradient, gradient_points,
                      scratch.image_points_.data(), scratch.output_points_.data());
}

}  // namespace muster
