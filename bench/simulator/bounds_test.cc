#include "bench/simulator/bounds.h"

#include <gtest/gtest.h>

#include "bench/simulator/simulator.h"

namespace muster::simulator {
namespace {

// Times are sums of a few hundred terms.
constexpr double kRounding = 1e-9;

ServerTraffic Servers(int workers, int servers, bool on_workers, double push_bytes, double pull_bytes) {
  return {.workers = workers,
          .servers = servers,
          .servers_on_workers = on_workers,
          .push_bytes = push_bytes,
          .pull_bytes = pull_bytes,
          .link_bytes_per_second = 1};
}

TEST(Bounds, ByHand) {
  EXPECT_DOUBLE_EQ(RingBoundSeconds(4, 8, 2), 6);
  EXPECT_DOUBLE_EQ(RingBoundSeconds(1, 8, 2), 0);
  // Eight workers into two servers: each receives eight halves.
  EXPECT_DOUBLE_EQ(PushBoundSeconds(Servers(8, 2, false, 6, 0)), 24);
  // Two workers, eight servers: a worker sends all of it.
  EXPECT_DOUBLE_EQ(PushBoundSeconds(Servers(2, 8, false, 6, 0)), 6);
  EXPECT_DOUBLE_EQ(PullBoundSeconds(Servers(8, 2, false, 0, 6)), 24);
  EXPECT_DOUBLE_EQ(SyncServersBoundSeconds(Servers(8, 2, false, 6, 3)), 36);
  EXPECT_DOUBLE_EQ(EarlyServersBoundSeconds(Servers(8, 2, false, 6, 3)), 24);
  EXPECT_DOUBLE_EQ(AsyncServersBoundSeconds(Servers(8, 2, false, 6, 3)), 24);
  EXPECT_DOUBLE_EQ(EarlyServersBoundSeconds(Servers(1, 2, false, 6, 3)), 6);
  EXPECT_DOUBLE_EQ(AsyncServersBoundSeconds(Servers(1, 2, false, 6, 3)), 9);
}

TEST(Bounds, OnTheWorkersHostsByHand) {
  // As many as workers: what a ring takes.
  for (const int count : {1, 2, 3, 10}) {
    const ServerTraffic traffic = Servers(count, count, true, 5, 5);
    EXPECT_DOUBLE_EQ(SyncServersBoundSeconds(traffic), RingBoundSeconds(count, 5, 1));
    EXPECT_DOUBLE_EQ(EarlyServersBoundSeconds(traffic), RingBoundSeconds(count, 5, 1));
  }
  // One server for four workers: three others push into its host.
  EXPECT_DOUBLE_EQ(PushBoundSeconds(Servers(4, 1, true, 5, 5)), 15);
  // Three servers for two workers: host 0 has two thirds, which the other worker sends it.
  EXPECT_DOUBLE_EQ(PushBoundSeconds(Servers(2, 3, true, 6, 6)), 4);
  // Four of each, 8 bytes: 6 of pushes and 6 of answers reach each host.
  EXPECT_DOUBLE_EQ(AsyncServersBoundSeconds(Servers(4, 4, true, 8, 8)), 12);
  // Two for four workers: a host with one receives three halves of a push, and half of its worker's pull.
  EXPECT_DOUBLE_EQ(AsyncServersBoundSeconds(Servers(4, 2, true, 8, 4)), 14);
  EXPECT_DOUBLE_EQ(AsyncServersBoundSeconds(Servers(4, 2, true, 4, 8)), 14);  // the same, sent
  // One for two: a push and a pull of the other worker.
  EXPECT_DOUBLE_EQ(AsyncServersBoundSeconds(Servers(2, 1, true, 8, 4)), 12);
}

// Of workers of whom the slowest is left out of each step.
TEST(Bounds, WhoIsLeftOutMakesNoStepLonger) {
  const auto without_one = [](int workers, int servers, bool on_workers) {
    ServerTraffic traffic = Servers(workers, servers, on_workers, 8, 8);
    traffic.contributors = workers - 1;
    return traffic;
  };
  // Three pushes into two servers.
  EXPECT_DOUBLE_EQ(PushBoundSeconds(without_one(4, 2, false)), 12);
  // Its own host has a quarter as well, which the three others send it.
  EXPECT_DOUBLE_EQ(SyncServersBoundSeconds(without_one(4, 4, true)), 12);
  // One that has none: two others push into that of the server.
  EXPECT_DOUBLE_EQ(PushBoundSeconds(without_one(4, 1, true)), 16);
  for (int workers = 2; workers <= 9; ++workers) {
    for (int servers = 1; servers <= 20; ++servers) {
      for (const bool on_workers : {false, true}) {
        EXPECT_LE(SyncServersBoundSeconds(without_one(workers, servers, on_workers)),
                  SyncServersBoundSeconds(Servers(workers, servers, on_workers, 8, 8)) * (1 + kRounding))
            << workers << " workers, " << servers << " servers";
      }
    }
  }
}

struct Load {
  double dense_bytes;
  double sparse_push_bytes;
  double sparse_pull_bytes;
  double link_bytes_per_second;
};
constexpr Load kLoads[] = {{1, 0, 0, 1}, {4e8, 0, 0, 1.25e9}, {1e6, 3e6, 1e5, 1e8}};

Scenario ScenarioOf(Strategy strategy, int workers, int servers, bool on_workers, const Load& load) {
  return {.strategy = strategy,
          .cluster = {.workers = workers,
                      .servers = servers,
                      .servers_on_workers = on_workers,
                      .link_bytes_per_second = load.link_bytes_per_second},
          .traffic = {.dense_bytes = load.dense_bytes,
                      .sparse_push_bytes = load.sparse_push_bytes,
                      .sparse_pull_bytes = load.sparse_pull_bytes,
                      .doubling_bytes = 0,
                      .ring_forward_bytes = 0},
          .steps = 10};
}

ServerTraffic TrafficOf(const Scenario& scenario) {
  ServerTraffic traffic =
      Servers(scenario.cluster.workers, scenario.cluster.servers, scenario.cluster.servers_on_workers,
              scenario.traffic.dense_bytes + scenario.traffic.sparse_push_bytes,
              scenario.traffic.dense_bytes + scenario.traffic.sparse_pull_bytes);
  traffic.link_bytes_per_second = scenario.cluster.link_bytes_per_second;
  return traffic;
}

TEST(Bounds, AreWhatASynchronousStepTakesWhereNothingElseCosts) {
  for (const Load& load : kLoads) {
    for (const bool on_workers : {false, true}) {
      for (const int workers : {1, 2, 3, 5, 8, 50}) {
        for (const int servers : {1, 2, 3, 7, 8, 100}) {
          if (on_workers && workers == 1) continue;  // takes no time
          const Scenario scenario = ScenarioOf(Strategy::kSyncServers, workers, servers, on_workers, load);
          const auto prediction = Simulate(scenario);
          ASSERT_TRUE(prediction.ok()) << prediction.status();
          const double bound = SyncServersBoundSeconds(TrafficOf(scenario));
          EXPECT_NEAR(prediction->mean_step_seconds / bound, 1, kRounding)
              << workers << " workers, " << servers << " servers, on workers: " << on_workers;
        }
      }
    }
  }
}

TEST(Bounds, AreWhatAnswersInManyPartsComeCloseTo) {
  constexpr int kParts = 1000;
  for (const Load& load : kLoads) {
    for (const int workers : {1, 2, 5, 50}) {
      for (const int servers : {1, 3, 8, 100}) {
        Scenario scenario = ScenarioOf(Strategy::kSyncServers, workers, servers, false, load);
        scenario.traffic.answer_parts = kParts;
        scenario.steps = 1000;  // the first one has no parameters to begin with
        const auto prediction = Simulate(scenario);
        ASSERT_TRUE(prediction.ok()) << prediction.status();
        const double ratio = prediction->mean_step_seconds / EarlyServersBoundSeconds(TrafficOf(scenario));
        EXPECT_GE(ratio, 1 - kRounding) << workers << " workers, " << servers << " servers";
        EXPECT_LE(ratio, 1 + 5.0 / kParts) << workers << " workers, " << servers << " servers";
      }
    }
  }
}

TEST(Bounds, AreWhatARingTakesWhereNothingElseCosts) {
  for (const int workers : {2, 3, 8, 1000}) {
    const Scenario scenario = ScenarioOf(Strategy::kAllReduce, workers, 0, false, kLoads[1]);
    const auto prediction = Simulate(scenario);
    ASSERT_TRUE(prediction.ok()) << prediction.status();
    const double bound =
        RingBoundSeconds(workers, scenario.traffic.dense_bytes, scenario.cluster.link_bytes_per_second);
    EXPECT_NEAR(prediction->mean_step_seconds / bound, 1, kRounding) << workers;
    EXPECT_NEAR(prediction->busiest_link_utilisation, 1, kRounding) << workers;
  }
}

// A step of hybrid with a link that rows and ring share without a gap: what both together put on it.
TEST(Bounds, AddUpForHybrid) {
  for (const HybridOrder order : {HybridOrder::kTogether, HybridOrder::kDenseThenRows}) {
    for (const bool on_workers : {false, true}) {
      Scenario scenario = ScenarioOf(Strategy::kHybrid, 4, 4, on_workers, kLoads[2]);
      scenario.traffic.hybrid_order = order;
      ServerTraffic rows = TrafficOf(scenario);
      rows.push_bytes = scenario.traffic.sparse_push_bytes;
      rows.pull_bytes = scenario.traffic.sparse_pull_bytes;
      const auto prediction = Simulate(scenario);
      ASSERT_TRUE(prediction.ok()) << prediction.status();
      const double bound =
          SyncServersBoundSeconds(rows) + RingBoundSeconds(4, scenario.traffic.dense_bytes, 1e8);
      EXPECT_NEAR(prediction->mean_step_seconds / bound, 1, kRounding) << on_workers;
    }
  }
}

TEST(Bounds, AreNeverUndercutByAsynchronousWorkers) {
  for (const Load& load : kLoads) {
    for (const bool on_workers : {false, true}) {
      for (const int workers : {2, 3, 5, 8, 50}) {
        for (const int servers : {1, 2, 3, 7, 8, 50}) {
          // A worker with the only server beside it makes any number of updates, none of which travels.
          if (on_workers && servers == 1) continue;
          const Scenario scenario = ScenarioOf(Strategy::kAsyncServers, workers, servers, on_workers, load);
          const auto prediction = Simulate(scenario);
          ASSERT_TRUE(prediction.ok()) << prediction.status();
          const double bound = AsyncServersBoundSeconds(TrafficOf(scenario));
          const double round = workers / prediction->gradients_per_second;
          // The first update that counts may come as much early, the last as much late, as one round.
          EXPECT_GE(round, bound * (1 - 1.0 / scenario.steps)) << workers << ", " << servers;
          EXPECT_LE(round, 2 * SyncServersBoundSeconds(TrafficOf(scenario))) << workers << ", " << servers;
          // Alone on their links they are at it.
          if (!on_workers && workers <= servers) {
            EXPECT_NEAR(round / bound, 1, kRounding);
          }
        }
      }
    }
  }
}

TEST(Bounds, AreReachedByManyAsynchronousWorkers) {
  Scenario scenario = ScenarioOf(Strategy::kAsyncServers, 400, 2, false, kLoads[0]);
  // With compute times that differ, about as long as a push and a pull of one worker at the full rate.
  scenario.compute.sample_seconds = {1, 2, 3};
  scenario.steps = 50;
  const auto prediction = Simulate(scenario);
  ASSERT_TRUE(prediction.ok()) << prediction.status();
  const double bound = AsyncServersBoundSeconds(TrafficOf(scenario));
  // Both directions are idle only when all workers are in the other one.
  EXPECT_NEAR(400 / prediction->gradients_per_second / bound, 1, 0.02);
}

}  // namespace
}  // namespace muster::simulator
