// Augmentation: training images that are a little different each time they are seen.
#pragma once

#include <cstdint>
#include <span>

namespace muster {

/// How far an image moves: x to the right, y down, in pixels.
struct ImageShift {
  int x = 0;
  int y = 0;
  friend bool operator==(const ImageShift&, const ImageShift&) = default;
};

/// Moves each image by up to kMaxShift pixels in x and in y, all shifts being equally likely; zeros move in.
/// Immutable; any thread.
class ShiftAugmentation {
 public:
  static constexpr int kMaxShift = 2;

  /// For images [height, width, channels].
  ShiftAugmentation(uint64_t seed, int64_t height, int64_t width, int64_t channels);

  /// A pure function of the seed and the position in the training stream, so that a worker that was started
  /// again, or any other number of workers, sees the same images.
  ImageShift ShiftAt(int64_t position) const;

  /// Moves the image [height, width, channels] of that position in place.
  void Apply(int64_t position, std::span<float> image) const;

 private:
  uint64_t seed_;
  int64_t height_;
  int64_t row_size_;  // floats
  int64_t channels_;
};

}  // namespace muster
