#include "bench/simulator/allreduce_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "base/random.h"
#include "bench/simulator/bounds.h"

namespace muster::simulator {
namespace {

using testing::DoubleNear;
using testing::Pointwise;

// Sums of a few thousand terms, each rounded to 2^-53 of itself.
constexpr double kRounding = 1e-11;

std::vector<double> Ring(const Cluster& cluster, double bytes, double forward_bytes,
                         std::vector<double> times) {
  RunRing(cluster, bytes, forward_bytes, &times);
  return times;
}

std::vector<double> Doubling(const Cluster& cluster, double bytes, std::vector<double> times) {
  RunDoubling(cluster, bytes, &times);
  return times;
}

TEST(RingTimes, NobodyIsLate) {
  // Two ranks, parts of 4 s. Part 0 leaves 0..4; part 1 has come, but for its last byte, when part 0 has
  // left, and goes on 4..8. The other one has it a latency of 1 s later.
  const Cluster two = {.link_bytes_per_second = 1, .latency_seconds = 1};
  EXPECT_THAT(Ring(two, 8, 0, {0, 0}), Pointwise(DoubleNear(kRounding), {9, 9}));
  // Only when all of it is there may a part go on: 2 rounds of 4 + 1 s.
  EXPECT_THAT(Ring(two, 8, 4, {0, 0}), Pointwise(DoubleNear(kRounding), {10, 10}));
  // Latency of 10 s, parts of 1 s, 4 ranks, 6 rounds: the first byte of a part is a latency behind that of
  // the one before. The last part leaves at 50, and is there at 61.
  const Cluster far = {.link_bytes_per_second = 1, .latency_seconds = 10};
  EXPECT_THAT(Ring(far, 4, 0, {0, 0, 0, 0}), Pointwise(DoubleNear(kRounding), {61, 61, 61, 61}));
  // Parts of 3 s, and 1 s of a processor for each end of a message: a part every 4 s, the last is there 1 + 2
  // s after it has left: 2 * 4 + 2 + 1.
  const Cluster busy = {.link_bytes_per_second = 1, .latency_seconds = 2, .message_seconds = 1};
  EXPECT_THAT(Ring(busy, 6, 0, {0, 0}), Pointwise(DoubleNear(kRounding), {11, 11}));
}

TEST(RingTimes, OneRankIsLate) {
  // Three ranks, parts of 4 s, latency 1 s, rank 1 begins at 10. Four rounds; beginnings of parts by round:
  //   rank 0: 0, 4 (rank 2's first is there at 1), 8, and its last when that of rank 2 is there: 12
  //   rank 1: 10, 14, 18, 22, since all that it waits for is there by then
  //   rank 2: 0, 11 (rank 1 began at 10), 15, 19
  //   rank 0's third one: rank 2's second comes from 12 on: 12; its last: rank 2's third, from 16 on: 16
  // Each ends when its own last part has left, 4 s later, and the neighbour's is there, 5 s later:
  //   rank 0: max(20, 19 + 5), rank 1: max(26, 16 + 5), rank 2: max(23, 22 + 5).
  const Cluster cluster = {.link_bytes_per_second = 1, .latency_seconds = 1};
  EXPECT_THAT(Ring(cluster, 12, 0, {0, 10, 0}), Pointwise(DoubleNear(kRounding), {24, 26, 27}));
}

// Cells of parts, one after the other, from what each of them has to wait for: its own rank's cell before it,
// and the same cell on the rank before.
std::vector<double> RingOfCells(const Cluster& cluster, int cells, double cell_seconds,
                                const std::vector<double>& begins) {
  const int count = static_cast<int>(begins.size());
  std::vector<double> free = begins;  // when the rank can do something else
  std::vector<std::vector<double>> came(count, std::vector<double>(cells, 0));
  for (int round = 0; round < 2 * (count - 1); ++round) {
    std::vector<std::vector<double>> leaves(count, std::vector<double>(cells));
    for (int rank = 0; rank < count; ++rank) {
      for (int cell = 0; cell < cells; ++cell) {
        const double begin =
            std::max(free[rank], came[rank][cell]) + (cell == 0 ? cluster.message_seconds : 0);
        free[rank] = leaves[rank][cell] = begin + cell_seconds;
      }
    }
    for (int rank = 0; rank < count; ++rank) {
      for (int cell = 0; cell < cells; ++cell) {
        came[(rank + 1) % count][cell] =
            leaves[rank][cell] + cluster.latency_seconds + cluster.message_seconds;
      }
    }
  }
  for (int rank = 0; rank < count; ++rank) free[rank] = std::max(free[rank], came[rank].back());
  return free;
}

TEST(RingTimes, AreThoseOfCellsThatWaitForEachOther) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    RandomStream random(seed);
    const int count = 2 + static_cast<int>(random.NextBelow(12));
    const int cells = 1 + static_cast<int>(random.NextBelow(6));
    const Cluster cluster = {
        .link_bytes_per_second = 1,
        .latency_seconds = random.NextDouble() * static_cast<double>(random.NextBelow(8)),
        .message_seconds = random.NextBelow(2) == 0 ? 0 : random.NextDouble()};
    std::vector<double> begins(count);
    for (double& begin : begins) begin = random.NextDouble() * static_cast<double>(random.NextBelow(40));
    // A cell takes a second.
    EXPECT_THAT(Ring(cluster, count * cells, 1, begins),
                Pointwise(DoubleNear(kRounding), RingOfCells(cluster, cells, 1, begins)))
        << "seed " << seed;
  }
}

TEST(RingTimes, AreTheBoundWithoutLatency) {
  for (const int count : {2, 3, 8, 1000, 10000}) {
    for (const double bytes : {1e5, 1e9}) {
      const Cluster cluster = {.link_bytes_per_second = 1.25e8};
      const double bound = RingBoundSeconds(count, bytes, 1.25e8);
      for (const double time : Ring(cluster, bytes, 0, std::vector<double>(count, 0))) {
        ASSERT_NEAR(time / bound, 1, kRounding) << count;
      }
    }
  }
}

TEST(DoublingTimes, ByHand) {
  const Cluster cluster = {.link_bytes_per_second = 1, .latency_seconds = 1};
  // Two exchanges of 2 + 1 s.
  EXPECT_THAT(Doubling(cluster, 2, {0, 0, 0, 0}), Pointwise(DoubleNear(kRounding), {6, 6, 6, 6}));
  // Rank 2 gives its bytes to rank 0, where they are at 3. Then both are sent to rank 1, until 5, there at 6;
  // rank 1's are there since 3. So rank 0 has the sum at 5, and has returned it at 7; it is there at 8.
  EXPECT_THAT(Doubling(cluster, 2, {0, 0, 0}), Pointwise(DoubleNear(kRounding), {7, 6, 8}));
  // Rank 1 is late by 10: rank 0 has its bytes at 13, and rank 1, whose partner's are there, has sent at 12.
  EXPECT_THAT(Doubling(cluster, 2, {0, 10}), Pointwise(DoubleNear(kRounding), {13, 12}));
}

// Rank by rank from what the last exchange needs, down to the first.
double DoneBy(const Cluster& cluster, double bytes, const std::vector<double>& begins, int rank,
              int distance) {
  const int doubled = static_cast<int>(std::bit_floor(begins.size()));
  const double send = cluster.message_seconds + bytes / cluster.link_bytes_per_second;
  const double arrive = send + cluster.latency_seconds + cluster.message_seconds;
  if (distance == 0) {
    const size_t follower = rank + doubled;
    return follower < begins.size() ? std::max(begins[rank], begins[follower] + arrive) : begins[rank];
  }
  return std::max(DoneBy(cluster, bytes, begins, rank, distance / 2) + send,
                  DoneBy(cluster, bytes, begins, rank ^ distance, distance / 2) + arrive);
}

TEST(DoublingTimes, AreThoseOfTheExchangesBefore) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    RandomStream random(seed);
    const int count = 2 + static_cast<int>(random.NextBelow(20));
    const int doubled = static_cast<int>(std::bit_floor(static_cast<unsigned>(count)));
    const Cluster cluster = {.link_bytes_per_second = 1,
                             .latency_seconds = random.NextDouble(),
                             .message_seconds = random.NextDouble()};
    std::vector<double> begins(count);
    for (double& begin : begins) begin = 10 * random.NextDouble();
    const std::vector<double> times = Doubling(cluster, 2, begins);
    const double send = cluster.message_seconds + 2;
    const double arrive = send + cluster.latency_seconds + cluster.message_seconds;
    for (int rank = 0; rank < count; ++rank) {
      const double sum = DoneBy(cluster, 2, begins, rank % doubled, doubled / 2);
      const bool has_follower = rank + doubled < count;
      const double expected = rank >= doubled ? std::max(begins[rank] + send, sum + arrive)
                              : has_follower  ? sum + send
                                              : sum;
      EXPECT_NEAR(times[rank], expected, kRounding) << "seed " << seed << " rank " << rank;
    }
  }
}

TEST(Buckets, BeginWhenTheyAreReadyAndTheOneBeforeIsDone) {
  // Two ranks without latency, 10 s of backward pass. The first bucket, 2 s, is ready at 5 and done at 7, the
  // second, 4 s, is done at 11 of which 7..10 are hidden; the last, 2 s, at 13. Then 8 bytes are updated.
  const Cluster cluster = {.workers = 2, .link_bytes_per_second = 1, .worker_update_seconds_per_byte = 0.125};
  Traffic traffic = {.dense_bytes = 8,
                     .buckets = {{.share = 0.25, .ready_fraction = 0.5},
                                 {.share = 0.5, .ready_fraction = 0.5},
                                 {.share = 0.25, .ready_fraction = 1}},
                     .doubling_bytes = 0};
  EXPECT_THAT(ReduceBuckets(cluster, traffic, {0, 0}, {10, 10}), Pointwise(DoubleNear(kRounding), {14, 14}));
  // One bucket, ready at the end.
  traffic.buckets = {{}};
  EXPECT_THAT(ReduceBuckets(cluster, traffic, {0, 0}, {10, 10}), Pointwise(DoubleNear(kRounding), {19, 19}));
  // As small ones both ranks send all 8 bytes.
  traffic.doubling_bytes = 8;
  EXPECT_THAT(ReduceBuckets(cluster, traffic, {0, 1}, {10, 10}), Pointwise(DoubleNear(kRounding), {20, 20}));
}

TEST(ReducedBytes, OfARingAndOfDoubling) {
  Traffic traffic = {.dense_bytes = 12, .doubling_bytes = 0};
  EXPECT_DOUBLE_EQ(ReducedTraffic({.workers = 3}, traffic).mean, 16);
  EXPECT_DOUBLE_EQ(ReducedTraffic({.workers = 1}, traffic).mean, 0);
  // Of 3 ranks two exchange 12; rank 2 sends 12 and gets 12 back from rank 0.
  traffic.doubling_bytes = 12;
  EXPECT_DOUBLE_EQ(ReducedTraffic({.workers = 3}, traffic).mean, 4 * 12 / 3.0);
  EXPECT_DOUBLE_EQ(ReducedTraffic({.workers = 3}, traffic).busiest, 24);
  EXPECT_DOUBLE_EQ(ReducedTraffic({.workers = 8}, traffic).mean, 36);
}

}  // namespace
}  // namespace muster::simulator
