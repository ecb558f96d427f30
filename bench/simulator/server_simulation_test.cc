#include "bench/simulator/server_simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/random.h"
#include "bench/simulator/time_slices.h"

namespace muster::simulator {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Pointwise;

constexpr double kRounding = 1e-9;

StepLog RunJob(const Scenario& scenario) { return ServerSimulation(scenario).Run(); }

// Two workers, one server, 4 bytes, 1 byte/s, latency 1 s, compute 10 s; the second worker takes 12.
Scenario TwoWorkers() {
  return {.strategy = Strategy::kSyncServers,
          .cluster = {.workers = 2, .servers = 1, .link_bytes_per_second = 1, .latency_seconds = 1},
          .traffic = {.dense_bytes = 4},
          .compute = {.sample_seconds = {12}, .slow_workers = 1, .slow_factor = 10.0 / 12},
          .steps = 2};
}

TEST(ServerSimulation, ASynchronousStepOfTwoWorkers) {
  // Both pull at half the rate: 8 + 1. They have computed at 19 and 21. The first pushes alone from 19 to 21,
  // then both share until it has sent its other 2 bytes, at 25; the second has 2 left and ends at 27. There
  // at 28, when the step is made. The next one is the same.
  const StepLog log = RunJob(TwoWorkers());
  EXPECT_THAT(log.step_seconds, Pointwise(DoubleNear(kRounding), {28, 28}));
  EXPECT_EQ(log.gradients, 4);
  EXPECT_NEAR(log.compute_seconds, 44, kRounding);
  EXPECT_NEAR(log.waiting_seconds, 4, kRounding);  // of the first worker
  EXPECT_THAT(log.pushes, ElementsAre(2, 2));
  EXPECT_THAT(log.pulls, ElementsAre(2, 2));
}

TEST(ServerSimulation, AServersProcessor) {
  Scenario scenario = TwoWorkers();
  scenario.cluster.sum_seconds_per_byte = 0.5;
  scenario.cluster.update_seconds_per_byte = 0.25;
  scenario.steps = 1;
  // Once both are there, at 28: two sums of 4 bytes, one update.
  EXPECT_THAT(RunJob(scenario).step_seconds, Pointwise(DoubleNear(kRounding), {28 + 4 + 1}));
  // The first one came at 26: its sum of 2 s is made meanwhile.
  scenario.traffic.sums_on_arrival = true;
  EXPECT_THAT(RunJob(scenario).step_seconds, Pointwise(DoubleNear(kRounding), {28 + 2 + 1}));
}

TEST(ServerSimulation, Messages) {
  Scenario scenario = TwoWorkers();
  scenario.cluster.message_seconds = 1;
  scenario.steps = 1;
  // The server begins to answer at 1 and at 2. Worker 0 has 1 byte at 2, 4 bytes at 8, and takes 1 + 1 s
  // until it has read them: it has computed at 20, and sends from 21 on. Worker 1 has 3 bytes at 8, 4 at 9;
  // computes from 11 to 23, and sends from 24 on. By then 3 bytes of the first are gone; it ends at 26, and
  // is read at
  // 28. The second has 1 byte at 26, all at 29, and is read at 31.
  EXPECT_THAT(RunJob(scenario).step_seconds, Pointwise(DoubleNear(kRounding), {31}));
}

TEST(ServerSimulation, AnswersInParts) {
  Scenario scenario = TwoWorkers();
  scenario.traffic.answer_parts = 4;
  scenario.compute = {.sample_seconds = {10}};
  scenario.steps = 3;
  // Both have pulled at 9, computed at 19 and pushed at 27: there at 28. The first parts are there at 22, so
  // that the answers end at 30, at 31 with the latency; the last ones, made at 28, take 1 + 2. So they begin
  // again at 31, 22 after the step before.
  EXPECT_THAT(RunJob(scenario).step_seconds, Pointwise(DoubleNear(kRounding), {28, 22, 22}));
  // The second computes until 23, when the first one has pushed, and has pushed alone at 27. The answers
  // begin at 26, after a fourth of what two pushes take, and end at 34: both begin again at 35, and so on.
  scenario.compute = {.sample_seconds = {14}, .slow_workers = 1, .slow_factor = 10.0 / 14};
  EXPECT_THAT(RunJob(scenario).step_seconds, Pointwise(DoubleNear(kRounding), {28, 26, 26}));
}

TEST(ServerSimulation, SeveralServersAgreeFirst) {
  Scenario scenario = TwoWorkers();
  scenario.cluster.servers = 2;
  scenario.steps = 1;
  // Nobody shares a link: 4 + 1, 12, 4 + 1, then 1 + 1 there and back.
  EXPECT_THAT(RunJob(scenario).step_seconds, Pointwise(DoubleNear(kRounding), {24}));
  // On the workers' hosts half of it stays there: 2 + 1, 12, 2 + 1, 2.
  scenario.cluster.servers_on_workers = true;
  EXPECT_THAT(RunJob(scenario).step_seconds, Pointwise(DoubleNear(kRounding), {20}));
}

TEST(ServerSimulation, TheServerBesideAWorker) {
  Scenario scenario = TwoWorkers();
  scenario.cluster.servers_on_workers = true;
  scenario.steps = 1;
  // The server is on the first worker's host; the other worker has the link alone: 4 + 1, 12, 4 + 1.
  const StepLog log = RunJob(scenario);
  EXPECT_THAT(log.step_seconds, Pointwise(DoubleNear(kRounding), {22}));
  EXPECT_NEAR(log.waiting_seconds, 17 - 10, kRounding);
}

TEST(ServerSimulation, ABackupWorkerIsNotWaitedFor) {
  Scenario scenario = TwoWorkers();
  scenario.traffic.backup_workers = 1;
  scenario.compute = {.sample_seconds = {1}, .slow_workers = 1, .slow_factor = 40};
  scenario.cluster.servers = 2;
  scenario.cluster.latency_seconds = 0;
  scenario.steps = 6;
  // Both pull until 4. Worker 1: 1 + 4 s, the step is made at 9; then it pulls, computes and pushes again in
  // 9 s. Worker 0 has computed at 44 and pushed at 48, when step 4 (of 0, 1, ...) is open, made at 54 and 45.
  // It is stale, and computes for that one.
  const StepLog log = RunJob(scenario);
  EXPECT_THAT(log.step_seconds, Pointwise(DoubleNear(kRounding), {9, 9, 9, 9, 9, 9}));
  EXPECT_EQ(log.stale, 1);
  EXPECT_EQ(log.gradients, 6);
  EXPECT_THAT(log.pushes, ElementsAre(1, 6));
  EXPECT_NEAR(log.compute_seconds, 6, kRounding);
  EXPECT_NEAR(log.waiting_seconds, 0, kRounding);
}

TEST(ServerSimulation, WhatComesTooLateIsNotAddedUp) {
  Scenario scenario = TwoWorkers();
  scenario.traffic.backup_workers = 1;
  scenario.traffic.sums_on_arrival = true;
  scenario.compute = {.sample_seconds = {1}, .slow_workers = 1, .slow_factor = 44.5};
  scenario.cluster.servers = 2;
  scenario.cluster.latency_seconds = 0;
  scenario.cluster.sum_seconds_per_byte = 1;
  scenario.steps = 6;
  // Worker 1: 4 + 1 + 4 s and 2 for the sum. Worker 0's first gradient comes at 52.5, and worker 1's fifth
  // at 53.
  const StepLog log = RunJob(scenario);
  EXPECT_THAT(log.step_seconds, Pointwise(DoubleNear(kRounding), {11, 11, 11, 11, 11, 11}));
  EXPECT_EQ(log.stale, 1);
}

TEST(ServerSimulation, AnAsynchronousCycle) {
  Scenario scenario = TwoWorkers();
  scenario.strategy = Strategy::kAsyncServers;
  scenario.cluster.workers = 1;
  scenario.cluster.message_seconds = 1;
  scenario.cluster.update_seconds_per_byte = 0.25;
  // 10 of computing, then 4 + 1 each way, four ends of messages, and 1 for the update.
  EXPECT_THAT(RunJob(scenario).step_seconds, Pointwise(DoubleNear(kRounding), {25, 25}));
}

TEST(ServerSimulation, AsynchronousWorkersDoNotWait) {
  Scenario scenario = TwoWorkers();
  scenario.strategy = Strategy::kAsyncServers;
  scenario.cluster.servers = 4;  // nobody shares
  scenario.cluster.update_seconds_per_byte = 0;
  scenario.compute = {.sample_seconds = {1}, .slow_workers = 1, .slow_factor = 40};
  scenario.steps = 100;
  // 10 s of exchange: one worker has a cycle of 50, the other of 11 s. 200 updates come at 1/50 + 1/11 each
  // second; the last ones may be up to a cycle of the slow one early or late.
  const StepLog log = RunJob(scenario);
  EXPECT_EQ(log.updates, 200);
  EXPECT_NEAR(log.update_seconds, 200 / (1.0 / 50 + 1.0 / 11), 50);
  for (const double seconds : log.step_seconds) {
    EXPECT_TRUE(std::abs(seconds - 11) < kRounding || std::abs(seconds - 50) < kRounding) << seconds;
  }
  EXPECT_EQ(log.waiting_seconds, 0);
}

// Two workers, one server; computing takes 8 s, a push and a pull 4 s each.
TEST(ServerSimulation, AsynchronousWorkersThatMeetComeApart) {
  Scenario scenario = TwoWorkers();
  scenario.strategy = Strategy::kAsyncServers;
  scenario.cluster.latency_seconds = 0;
  scenario.compute = {.sample_seconds = {8}};
  scenario.steps = 1000;
  int met = 0;
  for (scenario.seed = 1; scenario.seed <= 10; ++scenario.seed) {
    SCOPED_TRACE(scenario.seed);
    // One that is behind the other by d < 4 s holds up its push by 4 - d, and its pull; and is held up itself
    // by as much. So it stays behind by d, and both take 8 + 2 * (8 - d).
    scenario.cluster.large_share = 1;
    const double behind = std::abs(AsyncStartSeconds(scenario, 0) - AsyncStartSeconds(scenario, 1));
    const double apart = std::min(behind, 16 - behind);
    StepLog log = RunJob(scenario);
    for (const double seconds : log.step_seconds) {
      ASSERT_NEAR(seconds, apart < 4 ? 24 - 2 * apart : 16, kRounding * 1000);
    }
    met += apart < 4;
    // Two pulls that begin together end 2 2/3 s after each other if one has three times the share: a third of
    // 4 s is missing to what is apart. From then on what is missing becomes a third, or three times as much,
    // but never more than 4: it is nearly nothing most of the time, and both take 16.
    scenario.cluster.large_share = 3;
    log = RunJob(scenario);
    EXPECT_NEAR(log.update_seconds / static_cast<double>(log.updates), 8, 0.1 * 8);
  }
  EXPECT_GT(met, 0);
}

TEST(ServerSimulation, AHybridStepHasBoth) {
  Scenario scenario = TwoWorkers();
  scenario.strategy = Strategy::kHybrid;
  scenario.cluster.latency_seconds = 0;
  scenario.traffic = {.dense_bytes = 6,
                      .sparse_push_bytes = 1,
                      .sparse_pull_bytes = 1,
                      .doubling_bytes = 0,
                      .ring_forward_bytes = 0,
                      .hybrid_order = HybridOrder::kDenseThenRows};
  scenario.cluster.update_seconds_per_byte = 0.5;
  // 12 s until the last has computed, 6 s of ring; both push and pull 1 byte at half the rate: 2 + 2 s,
  // between which both's rows are updated.
  EXPECT_THAT(RunJob(scenario).step_seconds, Pointwise(DoubleNear(kRounding), {23, 23}));
  // Together: 2 of 8 bytes of a link are rows, so the ring takes 6 / 0.75 s after 12. The first worker's rows
  // leave from 10 to 14, at a quarter; the second's from 12 to 16 (the server's link has room for both);
  // updated at 17, both are back at 21. The ring was done at 20.
  scenario.traffic.hybrid_order = HybridOrder::kTogether;
  EXPECT_THAT(RunJob(scenario).step_seconds, Pointwise(DoubleNear(kRounding), {21, 21}));
  // Then all wait until the 6 bytes are updated.
  scenario.cluster.worker_update_seconds_per_byte = 1;
  EXPECT_THAT(RunJob(scenario).step_seconds, Pointwise(DoubleNear(kRounding), {26, 26}));
}

Scenario RandomScenario(RandomStream& random, Strategy strategy, bool on_workers) {
  const int workers = 1 + static_cast<int>(random.NextBelow(6));
  Scenario scenario = {.strategy = strategy,
                       .cluster = {.workers = workers,
                                   .servers = 1 + static_cast<int>(random.NextBelow(4)),
                                   .servers_on_workers = on_workers,
                                   .link_bytes_per_second = 1,
                                   .latency_seconds = 0.1 * random.NextDouble(),
                                   .large_share = 1 + 3 * random.NextDouble(),
                                   .sum_seconds_per_byte = 0.1 * random.NextDouble(),
                                   .update_seconds_per_byte = 0.1 * random.NextDouble()},
                       .traffic = {.dense_bytes = random.NextDouble(),
                                   .sparse_push_bytes = random.NextDouble(),
                                   .sparse_pull_bytes = random.NextDouble()},
                       .compute = {.sample_seconds = std::vector<double>(1000),
                                   .straggler_probability = 0.2,
                                   .straggler_factor = 3},
                       .steps = 4,
                       .seed = random.Next()};
  for (double& seconds : scenario.compute.sample_seconds) seconds = 2 * random.NextDouble();
  if (strategy == Strategy::kSyncServers) {
    scenario.traffic.backup_workers = static_cast<int>(random.NextBelow(workers));
  }
  return scenario;
}

// From time 0 to the last update of a run. Slices add up to one in each of seven stages of each update, as
// each may hold up all others. Where two things happen within that of each other, they may change places, and
// what follows is another history: then smaller slices keep them apart.
void ExpectTheSameTime(const Scenario& scenario, double tolerance, uint64_t seed) {
  const StepLog log = RunJob(scenario);
  const auto updates = static_cast<int>(log.all_updates);
  double sliced = 0;
  double error = 0;
  for (const double slice_seconds : {5e-4, 1e-4, 2e-5, 1e-5}) {
    sliced = TimeSlices(scenario, slice_seconds).Run(updates).back();
    error = 7 * slice_seconds * (updates + scenario.cluster.workers) + tolerance * sliced;
    if (std::abs(sliced - log.all_seconds) <= error) return;
  }
  EXPECT_NEAR(sliced, log.all_seconds, error)
      << "seed " << seed << ", " << scenario.cluster.workers << " workers, " << scenario.cluster.servers
      << " servers, backup " << scenario.traffic.backup_workers;
}

TEST(ServerSimulation, TakesAsLongAsInSlicesOfTime) {
  for (uint64_t seed = 0; seed < 25; ++seed) {
    RandomStream random(seed);
    ExpectTheSameTime(RandomScenario(random, Strategy::kSyncServers, false), 0, seed);
    ExpectTheSameTime(RandomScenario(random, Strategy::kAsyncServers, false), 0, seed);
  }
}

// There flows by themselves are faster: those of a worker that do not meet others end before the rest, which
// then has its link alone.
TEST(ServerSimulation, TakesNearlyAsLongAsInSlicesOfTimeOnTheWorkersHosts) {
  for (uint64_t seed = 0; seed < 25; ++seed) {
    RandomStream random(seed);
    ExpectTheSameTime(RandomScenario(random, Strategy::kSyncServers, true), 1.0 / 6, seed);
    ExpectTheSameTime(RandomScenario(random, Strategy::kAsyncServers, true), 1.0 / 6, seed);
  }
}

}  // namespace
}  // namespace muster::simulator
