#include "trainer/data/augment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <vector>

#include "trainer/data/batch.h"
#include "trainer/data/synthetic_digits.h"

namespace muster {
namespace {

// The image moved, pixel by pixel.
std::vector<float> Moved(const std::vector<float>& image, int64_t height, int64_t width, int64_t channels,
                         ImageShift shift) {
  std::vector<float> moved(image.size());
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const int64_t from_y = y - shift.y, from_x = x - shift.x;
      if (from_y < 0 || from_y >= height || from_x < 0 || from_x >= width) continue;
      for (int64_t c = 0; c < channels; ++c) {
        moved[(y * width + x) * channels + c] = image[(from_y * width + from_x) * channels + c];
      }
    }
  }
  return moved;
}

TEST(ShiftAugmentation, MovesImagesAndLetsZerosIn) {
  struct Shape {
    int64_t height, width, channels;
  };
  for (const auto& [height, width, channels] : {Shape{28, 28, 1}, Shape{3, 5, 2}, Shape{7, 3, 1}}) {
    const ShiftAugmentation augmentation(1, height, width, channels);
    std::vector<float> image(height * width * channels);
    std::iota(image.begin(), image.end(), 1.0f);
    for (int64_t position = 0; position < 200; ++position) {
      std::vector<float> moved = image;
      augmentation.Apply(position, moved);
      const ImageShift shift = augmentation.ShiftAt(position);
      ASSERT_EQ(moved, Moved(image, height, width, channels, shift)) << shift.x << " " << shift.y;
    }
  }
}

TEST(ShiftAugmentation, AllShiftsOccurEquallyOften) {
  const ShiftAugmentation augmentation(3, 28, 28, 1);
  constexpr int kPositions = 25'000;
  std::map<std::pair<int, int>, int> counts;
  for (int64_t position = 0; position < kPositions; ++position) {
    const ImageShift shift = augmentation.ShiftAt(position);
    ++counts[{shift.x, shift.y}];
  }
  double chi_squared = 0;
  for (int y = -2; y <= 2; ++y) {
    for (int x = -2; x <= 2; ++x) {
      const double count = counts[{x, y}];
      chi_squared += (count - 1000) * (count - 1000) / 1000;
    }
  }
  EXPECT_EQ(counts.size(), 25u);
  EXPECT_NEAR(chi_squared, 24, 5 * 6.93);  // 24 degrees of freedom, deviation sqrt(48)
}

TEST(ShiftAugmentation, DependsOnTheSeedAndThePositionOnly) {
  const auto shifts = [](uint64_t seed) {
    const ShiftAugmentation augmentation(seed, 28, 28, 1);
    std::vector<std::pair<int, int>> all;
    for (int64_t position = 0; position < 100; ++position) {
      all.emplace_back(augmentation.ShiftAt(position).x, augmentation.ShiftAt(position).y);
    }
    return all;
  };
  EXPECT_EQ(shifts(1), shifts(1));
  EXPECT_NE(shifts(1), shifts(2));
}

class AugmentedBatches : public ::testing::Test {
 protected:
  AugmentedBatches() { augmented_.set_augmentation(augmentation_); }

  static std::vector<float> Image(const Batch& batch, int64_t i) {
    const auto image = batch.features.subspan(i * kMnistPixels, kMnistPixels);
    return {image.begin(), image.end()};
  }

  const ShiftAugmentation augmentation_{5, kMnistSide, kMnistSide, 1};
  const Dataset dataset_ = MakeSyntheticDigits(1, 40);
  const SampleOrder order_{9, 40};
  BatchBuffer plain_{32, kMnistPixels};
  BatchBuffer augmented_{32, kMnistPixels};
};

TEST_F(AugmentedBatches, TrainingSeesEachSampleMovedByItsPosition) {
  const Batch plain = plain_.Fill(dataset_, order_, {30, 62});  // over the end of an epoch
  const Batch augmented = augmented_.Fill(dataset_, order_, {30, 62});
  ASSERT_EQ(augmented.size(), 32);
  int moved = 0;
  for (int64_t i = 0; i < augmented.size(); ++i) {
    const ImageShift shift = augmentation_.ShiftAt(30 + i);
    ASSERT_EQ(Image(augmented, i), Moved(Image(plain, i), kMnistSide, kMnistSide, 1, shift)) << i;
    ASSERT_EQ(augmented.labels[i], plain.labels[i]);
    moved += shift != ImageShift{};
  }
  EXPECT_GT(moved, 20);
}

TEST_F(AugmentedBatches, ABatchInPartsIsTheSame) {
  const std::vector<float> whole = Image(augmented_.Fill(dataset_, order_, {100, 110}), 7);
  EXPECT_EQ(Image(augmented_.Fill(dataset_, order_, {107, 110}), 0), whole);
}

TEST_F(AugmentedBatches, EvaluationSeesTheImagesAsTheyAre) {
  const Batch plain = plain_.FillInOrder(dataset_, {0, 32});
  const Batch augmented = augmented_.FillInOrder(dataset_, {0, 32});
  EXPECT_TRUE(std::ranges::equal(plain.features, augmented.features));
}

}  // namespace
}  // namespace muster
