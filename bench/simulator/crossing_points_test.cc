#include "bench/simulator/crossing_points.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace muster::simulator {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

SweepPoint Point(double at, double first, double second) {
  SweepPoint point{.at = at};
  point.first.gradients_per_second = first;
  point.second.gradients_per_second = second;
  return point;
}

TEST(CrossingPoints, WhereTheFasterOneChanges) {
  const std::vector<SweepPoint> sweep = {Point(1, 10, 5), Point(4, 10, 20), Point(8, 10, 20),
                                         Point(16, 40, 5)};
  const std::vector<CrossingPoint> crossings = CrossingPoints(sweep);
  ASSERT_THAT(crossings, SizeIs(2));
  EXPECT_EQ(crossings[0].before, 1);
  EXPECT_EQ(crossings[0].after, 4);
  EXPECT_TRUE(crossings[0].second_is_faster);
  EXPECT_NEAR(crossings[0].between, 2, 1e-12);  // from half to twice as fast while what is varied is fourfold
  EXPECT_EQ(crossings[1].before, 8);
  EXPECT_EQ(crossings[1].after, 16);
  EXPECT_FALSE(crossings[1].second_is_faster);
  EXPECT_NEAR(crossings[1].between, 8 * std::pow(2, 0.25), 1e-12);  // from twice to an eighth
}

TEST(CrossingPoints, NobodyIsAheadInBetween) {
  EXPECT_THAT(CrossingPoints(std::vector{Point(1, 2, 1), Point(2, 1, 1), Point(3, 2, 1)}), IsEmpty());
  const auto crossings = CrossingPoints(std::vector{Point(1, 2, 1), Point(2, 1, 1), Point(4, 1, 2)});
  ASSERT_THAT(crossings, SizeIs(1));
  EXPECT_EQ(crossings[0].before, 1);
  EXPECT_EQ(crossings[0].after, 4);
  EXPECT_NEAR(crossings[0].between, 2, 1e-12);
}

TEST(CrossingPoints, ByNumberOfWorkers) {
  const auto scenario_of = [](Strategy strategy) {
    return [strategy](double workers) {
      return Scenario{.strategy = strategy,
                      .cluster = {.workers = static_cast<int>(workers),
                                  .servers = static_cast<int>(workers),
                                  .link_bytes_per_second = 1,
                                  .latency_seconds = 1},
                      .traffic = {.dense_bytes = 8, .doubling_bytes = 0, .ring_forward_bytes = 8},
                      .steps = 3};
    };
  };
  // 8 bytes at 1 byte/s. As many servers as workers: push and pull take 16 s; they and the servers' agreement
  // 4 latencies. The ring, whose parts go on as a whole: 8 + 2, 10 2/3 + 4, 12 + 6, 12.8 + 8 s, and so on.
  const auto sweep = Sweep(std::vector<double>{2, 3, 4, 5, 6}, scenario_of(Strategy::kSyncServers),
                           scenario_of(Strategy::kAllReduce));
  ASSERT_TRUE(sweep.ok()) << sweep.status();
  EXPECT_NEAR((*sweep)[0].first.mean_step_seconds, 20, 1e-9);
  EXPECT_NEAR((*sweep)[3].second.mean_step_seconds, 20.8, 1e-9);
  const std::vector<CrossingPoint> crossings = CrossingPoints(*sweep);
  ASSERT_THAT(crossings, SizeIs(1));
  EXPECT_EQ(crossings[0].before, 4);
  EXPECT_EQ(crossings[0].after, 5);
  EXPECT_FALSE(crossings[0].second_is_faster);
}

TEST(CrossingPoints, SaysWhatASweepCannotRun) {
  const auto fails = [](double) { return Scenario{.cluster = {.workers = 0}}; };
  EXPECT_EQ(Sweep(std::vector<double>{2}, fails, fails).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster::simulator
