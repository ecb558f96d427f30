#include "bench/simulator/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/random.h"
#include "bench/simulator/compute_times.h"

namespace muster::simulator {
namespace {

using testing::HasSubstr;

constexpr double kRounding = 1e-9;
constexpr uint64_t kSeeds = 150;
constexpr Strategy kStrategies[] = {Strategy::kAsyncServers, Strategy::kSyncServers, Strategy::kAllReduce,
                                    Strategy::kHybrid};

Prediction Predict(const Scenario& scenario) {
  const auto prediction = Simulate(scenario);
  EXPECT_TRUE(prediction.ok()) << prediction.status();
  return prediction.value_or(Prediction());
}

Scenario RandomScenario(uint64_t seed, Strategy strategy) {
  RandomStream random(seed, static_cast<uint64_t>(strategy));
  const int workers = 2 + static_cast<int>(random.NextBelow(12));
  Scenario scenario = {.strategy = strategy,
                       .cluster = {.workers = workers,
                                   .servers = 1 + static_cast<int>(random.NextBelow(6)),
                                   .servers_on_workers = random.NextBelow(2) == 0,
                                   .link_bytes_per_second = std::exp2(27 + 3 * random.NextDouble()),
                                   .latency_seconds = 1e-3 * random.NextDouble(),
                                   .message_seconds = 1e-4 * random.NextDouble(),
                                   .sum_seconds_per_byte = 1e-9 * random.NextDouble(),
                                   .update_seconds_per_byte = 1e-9 * random.NextDouble(),
                                   .worker_update_seconds_per_byte = 1e-9 * random.NextDouble()},
                       .traffic = {.dense_bytes = std::exp2(14 + 12 * random.NextDouble()),
                                   .hybrid_order = random.NextBelow(2) == 0 ? HybridOrder::kTogether
                                                                            : HybridOrder::kDenseThenRows,
                                   .sums_on_arrival = random.NextBelow(2) == 0},
                       .compute = {.sample_seconds = std::vector<double>(20),
                                   .straggler_probability = 0.3 * random.NextDouble(),
                                   .straggler_factor = 1 + 5 * random.NextDouble(),
                                   .slow_workers = static_cast<int>(random.NextBelow(3)),
                                   .slow_factor = 1 + random.NextDouble()},
                       .steps = 30,
                       .seed = random.Next()};
  for (double& seconds : scenario.compute.sample_seconds) seconds = 0.02 * (0.5 + random.NextDouble());
  if (strategy != Strategy::kAllReduce) {
    scenario.traffic.sparse_push_bytes = 1e6 * random.NextDouble();
    scenario.traffic.sparse_pull_bytes = 1e6 * random.NextDouble();
  }
  if (random.NextBelow(2) == 0) {
    scenario.traffic.buckets = {{.share = 0.25, .ready_fraction = 0.5}, {.share = 0.75, .ready_fraction = 1}};
  }
  return scenario;
}

void ForRandomScenarios(std::initializer_list<Strategy> strategies,
                        const std::function<void(const Scenario&)>& check) {
  for (const Strategy strategy : strategies) {
    for (uint64_t seed = 0; seed < kSeeds && !testing::Test::HasFailure(); ++seed) {
      SCOPED_TRACE(testing::Message() << "strategy " << static_cast<int>(strategy) << ", seed " << seed);
      check(RandomScenario(seed, strategy));
    }
  }
}

TEST(Simulator, TheSameSeedGivesTheSame) {
  for (const Strategy strategy : kStrategies) {
    const Scenario scenario = RandomScenario(1, strategy);
    Scenario other = scenario;
    ++other.seed;
    EXPECT_EQ(Predict(scenario).mean_step_seconds, Predict(scenario).mean_step_seconds);
    EXPECT_NE(Predict(scenario).mean_step_seconds, Predict(other).mean_step_seconds);
  }
}

TEST(Simulator, WhereAStepsTimeGoesAddsUp) {
  ForRandomScenarios(
      {Strategy::kAsyncServers, Strategy::kSyncServers, Strategy::kAllReduce, Strategy::kHybrid},
      [](const Scenario& scenario) {
        const Prediction prediction = Predict(scenario);
        EXPECT_GT(prediction.compute_seconds, 0);
        EXPECT_GE(prediction.communication_seconds, 0);
        EXPECT_GE(prediction.straggler_seconds, 0);
        EXPECT_NEAR(
            prediction.compute_seconds + prediction.communication_seconds + prediction.straggler_seconds,
            prediction.mean_step_seconds, kRounding);
        EXPECT_LE(prediction.p50_step_seconds, prediction.p99_step_seconds);
        EXPECT_LE(prediction.busiest_link_utilisation, 1 + kRounding);
      });
}

TEST(Simulator, BytesThatAreSentAreReceived) {
  ForRandomScenarios({Strategy::kAsyncServers, Strategy::kSyncServers}, [](const Scenario& scenario) {
    const Prediction prediction = Predict(scenario);
    const Traffic& traffic = scenario.traffic;
    const double workers = scenario.cluster.workers;
    const double servers = scenario.cluster.servers;
    EXPECT_NEAR(prediction.worker_bytes_per_step.sent * workers,
                prediction.server_bytes_per_step.received * servers, 1);
    EXPECT_NEAR(prediction.worker_bytes_per_step.received * workers,
                prediction.server_bytes_per_step.sent * servers, 1);
    // Asynchronous: an update is of one worker; the last pushes of some are under way, or their updates.
    const bool is_async = scenario.strategy == Strategy::kAsyncServers;
    const double pushes = is_async ? 1 : workers;
    EXPECT_NEAR(prediction.server_bytes_per_step.received * servers /
                    (pushes * (traffic.dense_bytes + traffic.sparse_push_bytes)),
                1, is_async ? 1.0 / scenario.steps : kRounding);
  });
}

TEST(Simulator, MoreBandwidthIsNeverSlower) {
  ForRandomScenarios(
      {Strategy::kSyncServers, Strategy::kAllReduce, Strategy::kHybrid}, [](const Scenario& scenario) {
        Scenario faster = scenario;
        faster.cluster.link_bytes_per_second *= 1.3;
        EXPECT_LE(Predict(faster).mean_step_seconds, Predict(scenario).mean_step_seconds * (1 + kRounding));
      });
}

TEST(Simulator, MoreLatencyIsNeverFaster) {
  ForRandomScenarios(
      {Strategy::kSyncServers, Strategy::kAllReduce, Strategy::kHybrid}, [](const Scenario& scenario) {
        Scenario slower = scenario;
        slower.cluster.latency_seconds += 1e-3;
        EXPECT_GE(Predict(slower).mean_step_seconds, Predict(scenario).mean_step_seconds * (1 - kRounding));
      });
}

// Where nobody shares a link or a processor: who is late leaves his share to others, and a last one that is
// alone cannot use all that the servers' links have.
TEST(Simulator, MoreStragglersAreNeverFaster) {
  ForRandomScenarios(
      {Strategy::kSyncServers, Strategy::kAllReduce, Strategy::kHybrid}, [](Scenario scenario) {
        scenario.cluster.servers = scenario.cluster.workers;
        scenario.cluster.servers_on_workers = false;
        scenario.cluster.message_seconds = 0;
        scenario.traffic.sums_on_arrival = false;
        Scenario slower = scenario;
        slower.compute.straggler_probability += 0.1;
        EXPECT_GE(Predict(slower).mean_step_seconds, Predict(scenario).mean_step_seconds * (1 - kRounding));
      });
}

// Where nobody shares a link or a processor: else what a late worker pushes for nothing holds up the others.
TEST(Simulator, BackupWorkersAreNeverSlower) {
  ForRandomScenarios({Strategy::kSyncServers}, [](Scenario scenario) {
    scenario.cluster.servers = scenario.cluster.workers;
    scenario.cluster.servers_on_workers = false;
    scenario.cluster.message_seconds = 0;
    scenario.cluster.sum_seconds_per_byte = 0;
    Scenario backup = scenario;
    for (int workers = 1; workers < scenario.cluster.workers; ++workers) {
      backup.traffic.backup_workers = workers;
      EXPECT_LE(Predict(backup).mean_step_seconds, Predict(scenario).mean_step_seconds * (1 + kRounding));
    }
  });
}

// On hosts of their own (bounds.h), and where an update takes no longer than the sum that it is instead of.
TEST(Simulator, AsynchronousWorkersMakeNoFewerGradients) {
  ForRandomScenarios({Strategy::kSyncServers}, [](Scenario scenario) {
    scenario.cluster.servers_on_workers = false;
    scenario.cluster.update_seconds_per_byte =
        std::min(scenario.cluster.update_seconds_per_byte, scenario.cluster.sum_seconds_per_byte);
    Scenario async = scenario;
    async.strategy = Strategy::kAsyncServers;
    EXPECT_GE(Predict(async).gradients_per_second, Predict(scenario).gradients_per_second);
  });
}

TEST(Simulator, OneOfManyWorkersIsLate) {
  // 100 workers, one of which takes 3 s in each hundredth step: nearly 2 of 3 steps wait for somebody.
  Scenario scenario = {
      .cluster = {.workers = 100, .servers = 100, .link_bytes_per_second = 1e12},
      .traffic = {.dense_bytes = 1},
      .compute = {.sample_seconds = {1}, .straggler_probability = 0.01, .straggler_factor = 3},
      .steps = 2000};
  // 1 - 0.99^100 = 0.634, with a deviation of 0.011 in 2000 draws: four of them.
  EXPECT_NEAR(Predict(scenario).mean_step_seconds, 1 + 2 * 0.634, 2 * 0.044);
  EXPECT_NEAR(Predict(scenario).p50_step_seconds, 3, 1e-6);
  EXPECT_NEAR(Predict(scenario).compute_seconds, 1.02, 0.004);
  // With backup workers nobody waits for 3 s as long as enough others are in step: who comes late and gets
  // the parameters just before a step is made is late for that one, too, and stays behind until others have
  // to wait.
  scenario.traffic.backup_workers = 12;
  EXPECT_LT(Predict(scenario).mean_step_seconds, 1.2);
  EXPECT_NEAR(Predict(scenario).p50_step_seconds, 1, 1e-6);
  EXPECT_GT(Predict(scenario).stale_share, 0.01);
}

TEST(Simulator, TenThousandWorkers) {
  // Every one of a hundred servers receives 1e4 parts of 1 MB at 1 GB/s: 10 s, and as much to answer.
  Scenario scenario = {.cluster = {.workers = 10000, .servers = 100, .link_bytes_per_second = 1e9},
                       .traffic = {.dense_bytes = 1e8},
                       .compute = {.sample_seconds = {0.1}},
                       .steps = 5};
  EXPECT_NEAR(Predict(scenario).mean_step_seconds, 20.1, 1e-6);
  // The ring: twice 1e8 bytes, and 2e4 rounds of a latency that is longer than their parts.
  scenario.strategy = Strategy::kAllReduce;
  scenario.cluster.latency_seconds = 1e-4;
  scenario.traffic.ring_forward_bytes = 0;
  EXPECT_NEAR(Predict(scenario).mean_step_seconds, 0.1 + 19998 * 1e-4 + 1e-5, 1e-6);
}

TEST(ComputeTimes, AreAFunctionOfSeedWorkerAndStep) {
  const Compute compute = {.sample_seconds = {1, 2, 3, 4, 5, 6, 7, 8}, .slow_workers = 1, .slow_factor = 10};
  const ComputeTimes times(compute, 7);
  EXPECT_EQ(times.Seconds(3, 5), ComputeTimes(compute, 7).Seconds(3, 5));
  EXPECT_EQ(times.MeanSampleSeconds(), 4.5);
  double sum = 0;
  double slow_sum = 0;
  for (int step = 0; step < 1000; ++step) {
    sum += times.Seconds(1, step) / 1000;
    slow_sum += times.Seconds(0, step) / 1000;
  }
  // Standard deviation of a sample 2.3, of the mean 0.072: four of them.
  EXPECT_NEAR(sum, 4.5, 0.29);
  EXPECT_NEAR(slow_sum, 45, 2.9);
}

TEST(Scenario, SaysWhatIsWrong) {
  const auto message_of = [](const std::function<void(Scenario&)>& spoil) {
    Scenario scenario = RandomScenario(1, Strategy::kSyncServers);
    EXPECT_TRUE(Validate(scenario).ok()) << Validate(scenario);
    spoil(scenario);
    EXPECT_EQ(Validate(scenario).code(), absl::StatusCode::kInvalidArgument);
    return std::string(Validate(scenario).message());
  };
  EXPECT_THAT(message_of([](Scenario& s) { s.steps = 0; }), HasSubstr("steps is 0"));
  EXPECT_THAT(message_of([](Scenario& s) { s.cluster.workers = 0; }), HasSubstr("workers is 0"));
  EXPECT_THAT(message_of([](Scenario& s) { s.cluster.servers = 0; }), HasSubstr("servers is 0"));
  EXPECT_THAT(message_of([](Scenario& s) { s.cluster.link_bytes_per_second = 0; }),
              HasSubstr("link_bytes_per_second is 0"));
  EXPECT_THAT(message_of([](Scenario& s) { s.cluster.latency_seconds = -1; }),
              HasSubstr("latency_seconds is -1"));
  EXPECT_THAT(message_of([](Scenario& s) { s.traffic.dense_bytes = std::nan(""); }),
              HasSubstr("dense_bytes is nan"));
  EXPECT_THAT(message_of([](Scenario& s) { s.traffic.backup_workers = s.cluster.workers; }),
              HasSubstr("backup_workers is"));
  EXPECT_THAT(message_of([](Scenario& s) {
                s.strategy = Strategy::kHybrid;
                s.traffic.backup_workers = 1;
              }),
              HasSubstr("only synchronous servers"));
  EXPECT_THAT(message_of([](Scenario& s) { s.strategy = Strategy::kAllReduce; }),
              HasSubstr("no rows of tables"));
  EXPECT_THAT(message_of([](Scenario& s) { s.traffic.buckets = {{.share = 0.5}}; }),
              HasSubstr("add up to 0.5"));
  EXPECT_THAT(message_of([](Scenario& s) { s.traffic.buckets = {{.ready_fraction = 0.5}}; }),
              HasSubstr("ready_fraction is 0.5"));
  EXPECT_THAT(message_of([](Scenario& s) { s.compute.sample_seconds.clear(); }), HasSubstr("is empty"));
  EXPECT_THAT(message_of([](Scenario& s) { s.compute.straggler_probability = 2; }),
              HasSubstr("straggler_probability is 2"));
}

TEST(Simulator, RefusesWhatTakesNoTime) {
  const auto prediction = Simulate({.strategy = Strategy::kAllReduce});
  EXPECT_THAT(prediction.status().message(), HasSubstr("take no time"));
}

}  // namespace
}  // namespace muster::simulator
