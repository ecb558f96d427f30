#include "trainer/gradient_buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <utility>

namespace muster {
namespace {

using testing::ElementsAre;

constexpr int64_t kMiB = (1 << 20) / sizeof(float);

TEST(GradientBuckets, AreCutFromTheEnd) {
  EXPECT_THAT(CutIntoBuckets(100, 16),
              ElementsAre(LayoutRange{84, 100}, LayoutRange{68, 84}, LayoutRange{52, 68}, LayoutRange{36, 52},
                          LayoutRange{20, 36}, LayoutRange{0, 20}));
  EXPECT_THAT(CutIntoBuckets(32, 16), ElementsAre(LayoutRange{16, 32}, LayoutRange{0, 16}));
  EXPECT_THAT(CutIntoBuckets(31, 16), ElementsAre(LayoutRange{0, 31}));
  EXPECT_THAT(CutIntoBuckets(16, int64_t{1} << 40), ElementsAre(LayoutRange{0, 16}));
}

// Steps of a model whose time is a function of the number of buckets; what the tuner comes to.
size_t CountChosen(BucketTuner& tuner, const std::function<float(size_t)>& seconds_with) {
  float before = 0;  // of the step before, which nobody knows when the first one ends
  for (int step = 0; step < 100; ++step) {
    const float seconds = seconds_with(tuner.buckets().size());
    tuner.Add(before);
    before = seconds;
  }
  return tuner.buckets().size();
}

TEST(BucketTuner, TakesTheFastest) {
  for (const size_t best : {1, 3, 12}) {
    BucketTuner tuner(12 * kMiB + 160, std::nullopt);
    EXPECT_EQ(CountChosen(tuner, [&](size_t count) { return count == best ? 0.5f : 1.0f; }), best);
    EXPECT_EQ(tuner.median_seconds(), 0.5f);
  }
}

TEST(BucketTuner, TakesFewBucketsWhereMoreAreHardlyFaster) {
  BucketTuner tuner(12 * kMiB, std::nullopt);
  EXPECT_EQ(CountChosen(tuner, [&](size_t count) { return 1 - 0.001f * static_cast<float>(count); }), 1u);
}

TEST(BucketTuner, IsNotMovedByOneSlowStep) {
  BucketTuner tuner(12 * kMiB, std::nullopt);
  bool was_slow = false;
  EXPECT_EQ(CountChosen(tuner,
                        [&](size_t count) {
                          if (count != 12) return 1.0f;
                          return std::exchange(was_slow, true) ? 0.5f : 100.0f;
                        }),
            12u);
}

TEST(BucketTuner, SaysOnceThatItIsDone) {
  BucketTuner tuner(12 * kMiB, std::nullopt);
  int done = 0, steps_until = 0;
  for (int step = 1; step <= 100; ++step) {
    if (!tuner.Add(1)) continue;
    ++done;
    steps_until = step;
  }
  EXPECT_EQ(done, 1);
  EXPECT_EQ(steps_until, 3 * 7 + 1) << "three candidates, seven steps of each, whose times come one later";
}

TEST(BucketTuner, DoesNotTryWhatIsGivenOrTooSmall) {
  BucketTuner given(12 * kMiB, 4 * kMiB);
  BucketTuner small(2 * kMiB - 16, std::nullopt);
  for (int step = 0; step < 100; ++step) {
    EXPECT_EQ(given.buckets().size(), 3u);
    EXPECT_EQ(small.buckets().size(), 1u);
    EXPECT_FALSE(given.Add(1));
    EXPECT_FALSE(small.Add(1));
  }
}

}  // namespace
}  // namespace muster
