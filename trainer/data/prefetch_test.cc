#include "trainer/data/prefetch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"

namespace muster {
namespace {

constexpr int64_t kLargest = 64;

// 100 images of 4 x 5 bytes.
Dataset Images() {
  Dataset dataset{.feature_count = 20};
  RandomStream random(3);
  for (int i = 0; i < 100 * 20; ++i) dataset.bytes.push_back(static_cast<uint8_t>(random.NextBelow(256)));
  for (int i = 0; i < 100; ++i) dataset.labels.push_back(static_cast<uint8_t>(i));
  return dataset;
}

class PrefetcherTest : public testing::TestWithParam<bool> {
 protected:
  PrefetcherTest() { buffer_.set_augmentation({/*seed=*/5, /*height=*/4, /*width=*/5, /*channels=*/1}); }

  Prefetcher MakePrefetcher() { return {dataset_, order_, buffer_, /*with_thread=*/GetParam()}; }

  void ExpectSamples(const Batch& batch, SampleRange positions) {
    const Batch expected = buffer_.Fill(dataset_, order_, positions);
    EXPECT_EQ(batch.position, positions.begin);
    EXPECT_TRUE(std::ranges::equal(batch.features, expected.features)) << positions.begin;
    EXPECT_TRUE(std::ranges::equal(batch.labels, expected.labels)) << positions.begin;
  }

  const Dataset dataset_ = Images();
  const SampleOrder order_{7, dataset_.size()};
  BatchBuffer buffer_{kLargest, dataset_.feature_count};
};

// In steps enough for all that can happen: the thread has not begun, is filling, or is done. Where a batch
// lies, it must not write; the thread sanitizer sees that too.
TEST_P(PrefetcherTest, GivesTheSamplesThatAreAskedFor) {
  const SampleRange ranges[] = {{0, 64}, {0, 63}, {1, 64}, {80, 144}};
  Prefetcher batches = MakePrefetcher();
  RandomStream random(11);
  SampleRange guess;
  for (int step = 0; step < 2000; ++step) {
    const SampleRange positions = random.NextBelow(2) == 0 ? guess : ranges[random.NextBelow(4)];
    guess = ranges[random.NextBelow(4)];
    const Batch batch = batches.Take(positions, guess);
    if (random.NextBelow(4) > 0) ExpectSamples(batch, positions);
    ASSERT_FALSE(HasFailure()) << step;
  }
}

TEST_P(PrefetcherTest, EndsBeforeTheFirstBatchAndBehindAny) {
  for (int round = 0; round < 200; ++round) {
    Prefetcher batches = MakePrefetcher();
    for (int64_t step = 0; step < round % 3; ++step) batches.Take({step, step + 1}, {step + 1, step + 2});
  }
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutAThread, PrefetcherTest, testing::Bool());

}  // namespace
}  // namespace muster
