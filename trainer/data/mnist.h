// MNIST (LeCun, Cortes, Burges): 28x28 grey images of the digits 0-9.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/status.h"
#include "trainer/data/dataset.h"

namespace muster {

inline constexpr int64_t kMnistSide = 28;
inline constexpr int64_t kMnistPixels = kMnistSide * kMnistSide;
inline constexpr int64_t kMnistClasses = 10;

/// A data set with 784 bytes a sample, 0 being background. Reads the four standard files from
/// `data_dir`/mnist: train-images-idx3-ubyte, train-labels-idx1-ubyte and
/// t10k-..., each plain or, if there is no plain one, with .gz appended. NotFound names a missing file;
/// InvalidArgument a damaged one with the offset (images that are not 28x28, other counts of images and
/// labels, no samples, labels above 9).
absl::StatusOr<TrainTestData> LoadMnist(const std::filesystem::path& data_dir);

/// The same of the test set, from the two files of that.
absl::StatusOr<Dataset> LoadMnistTestSet(const std::filesystem::path& data_dir);

}  // namespace muster
