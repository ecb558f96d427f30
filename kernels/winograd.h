// Convolutions with kernels of 5 x 5 by Winograd's minimal filtering F(2 x 2, 5 x 5): a tile of 2 x 2 outputs
// takes 36 products for each channel instead of 100. For gradients, inside of convolution_winograd.cc alone.
//
// With six points (0, 1, -1, 1/2, -2, infinity) in each dimension, a tile d [6, 6] of an image and weights
// g [5, 5] give y [2, 2] = A^T [(G g G^T) . (B^T d B)] A, where . is by element: over all tiles, channels and
// outputs, a matrix product for each of the 36 pairs of points. The gradient of the weights is the adjoint,
// G^T [(B^T d B) . (A dy A^T)] G; that of the image is a convolution with the weights turned round. Lavin and
// Gray, "Fast algorithms for convolutional neural networks", 2016.
//
// Images are [samples, height, width, channels], weights [5, 5, channels, outputs]. A rounding in a tile
// reaches all of its outputs, enlarged: the worst case is 72 times that of the direct sum, on average it is
// less than twice. With the points 2 and 1/2 instead it would be three times. A NaN reaches all of the tile's
// outputs too. Whole numbers come out exactly if the weights are multiples of 225 and no sum goes beyond
// 2^20.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/aligned_floats.h"

namespace muster {

struct WinogradShape {
  int64_t height = 0;  // of the image
  int64_t width = 0;
  int64_t channels = 0;
  int64_t outputs = 0;
  int64_t zeros = 0;  // rows and columns of them on each side of the image; 2 make outputs of its size
};

/// How the loops walk through images that have their zeros, their channels in whole vectors, and the points
/// of a block of tiles.
struct WinogradTiles {
  int64_t down = 0;  // tiles of one image
  int64_t across = 0;
  int64_t height = 0;  // of the outputs
  int64_t width = 0;
  int64_t channels = 0;
  int64_t outputs = 0;
  int64_t block = 0;  // tiles at a time
  // Floats from one to the next.
  int64_t pixel = 0;
  int64_t row = 0;
  int64_t image = 0;
  int64_t image_point = 0;
  int64_t output_point = 0;
};

/// The loops, compiled for an instruction set.
struct WinogradLoops;

/// A shape, and the layouts for the instruction set, which is the one that oneDNN uses. Any thread may call,
/// with scratch memory of its own; a call runs on one and allocates nothing. The same bits come out for the
/// same inputs, build and instruction set.
class Winograd {
 public:
  static constexpr int64_t kKernel = 5;

  /// What one thread needs for calls with up to `samples`.
  class Scratch {
   public:
    Scratch(const Winograd& winograd, int64_t samples);

   private:
    friend class Winograd;
    AlignedFloats images_;         // with their zeros
    AlignedFloats image_points_;   // of a block of tiles: [36, tiles, channels]
    AlignedFloats output_points_;  // of a block of tiles and a panel of outputs: [36, tiles, panel]
  };

  /// All sizes at least 1, and an output.
  explicit Winograd(const WinogradShape& shape);

  /// Floats of the weights' points, and of their gradient: [panels, 36, channels, panel], a panel being the
  /// outputs in two vectors, the last one filled up with zeros.
  int64_t weight_points_size() const;

  /// weight_points = G g G^T of g = `weights` [5, 5, outputs, channels] turned round, as a convolution from
  /// outputs' gradients to the image's needs them.
  void TransformTurnedWeights(std::span<const float> weights, float* weight_points) const;

  /// output [samples, output height, output width, outputs].
  void Convolve(int64_t samples, const float* images, const float* weight_points, float* output,
                Scratch& scratch) const;

  /// Adds the gradient of the weights' points to `gradient_points`.
  void AddGradient(int64_t samples, const float* images, const float* output_gradient, float* gradient_points,
                   Scratch& scratch) const;

  /// weights_gradient = G^T dg G of the sum that AddGradient made.
  void TransformGradient(const float* gradient_points, std::span<float> weights_gradient) const;

 private:
  template <typename Work>
  void ForEachPanel(const Work& work) const;
  void CopyImages(int64_t samples, const float* images, float* copies) const;

  const WinogradShape shape_;
  const WinogradLoops& loops_;
  const WinogradTiles tiles_;
};

}  // namespace muster
