#include "trainer/data/augment.h"

#include <algorithm>

#include "base/random.h"
#include "base/status.h"

namespace muster {
namespace {

// Keeps these numbers apart from those that the order of samples takes from the same seed.
constexpr uint64_t kSeedOffset = 0x6175676d656e7421u;

}  // namespace

ShiftAugmentation::ShiftAugmentation(uint64_t seed, int64_t height, int64_t width, int64_t channels)
    : seed_(seed + kSeedOffset), height_(height), row_size_(width * channels), channels_(channels) {
  MUSTER_CHECK(height > kMaxShift && width > kMaxShift && channels > 0);
}

ImageShift ShiftAugmentation::ShiftAt(int64_t position) const {
  constexpr int kShifts = 2 * kMaxShift + 1;
  const int choice =
      static_cast<int>(RandomStream(seed_, static_cast<uint64_t>(position)).NextBelow(kShifts * kShifts));
  return {.x = choice % kShifts - kMaxShift, .y = choice / kShifts - kMaxShift};
}

void ShiftAugmentation::Apply(int64_t position, std::span<float> image) const {
  MUSTER_CHECK(static_cast<int64_t>(image.size()) == height_ * row_size_);
  const ImageShift shift = ShiftAt(position);
  // In memory the image moves by `distance` as a whole; then what is no part of it is cleared.
  const int64_t columns = shift.x * channels_;
  const int64_t distance = shift.y * row_size_ + columns;
  if (distance > 0) {
    std::copy_backward(image.begin(), image.end() - distance, image.end());
  } else {
    std::copy(image.begin() - distance, image.end(), image.begin());
  }
  for (int64_t y = 0; y < height_; ++y) {
    const std::span<float> row = image.subspan(y * row_size_, row_size_);
    if (y < shift.y || y >= height_ + shift.y) {
      std::ranges::fill(row, 0.0f);
    } else if (columns > 0) {
      std::ranges::fill(row.first(columns), 0.0f);
    } else {
      std::ranges::fill(row.last(-columns), 0.0f);
    }
  }
}

}  // namespace muster
