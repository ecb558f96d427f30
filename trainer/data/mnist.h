// MNIST (LeCun, Cortes, Burges): 28x28 grey images of the digits 0-9.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/status.h"

namespace muster {

inline constexpr int64_t kMnistSide = 28;
inline constexpr int64_t kMnistPixels = kMnistSide * kMnistSide;
inline constexpr int64_t kMnistClasses = 10;

/// Images with their labels. Immutable once made: any thread may read it.
struct MnistDataset {
  std::vector<uint8_t> images;  // [size, 28, 28], 0 is background
  std::vector<uint8_t> labels;  // [size], 0-9
  int64_t size() const { return static_cast<int64_t>(labels.size()); }
  std::span<const uint8_t> image(int64_t index) const {
    return std::span(images).subspan(index * kMnistPixels, kMnistPixels);
  }
};

struct Mnist {
  MnistDataset train;
  MnistDataset test;
};

/// Reads the four standard files from `data_dir`/mnist: train-images-idx3-ubyte, train-labels-idx1-ubyte and
/// t10k-..., each plain or, if there is no plain one, with .gz appended. NotFound names a missing file;
/// InvalidArgument a damaged one with the offset (images that are not 28x28, other counts of images and
/// labels, no samples, labels above 9).
absl::StatusOr<Mnist> LoadMnist(const std::filesystem::path& data_dir);

}  // namespace muster
