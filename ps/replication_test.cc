// Shards on two servers each: whichever server is lost, nothing that was acknowledged is, and nobody goes
// back.
#include <absl/cleanup/cleanup.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "tests/support/ps_cluster.h"

namespace muster {
namespace {

uint64_t SeedCount() {
  const char* const seeds = std::getenv("MUSTER_SIMULATION_SEEDS");
  return seeds != nullptr ? std::stoul(seeds) : 3;
}

// Loses one server after the other while training goes on: each time when all shards have a backup again.
class Killer {
 public:
  Killer(Cluster& cluster, uint64_t seed)
      : thread_([this, &cluster, seed](const std::stop_token& stop) {
          RandomStream random(seed, 5);
          while (!stop.stop_requested()) {
            if (!cluster.AwaitBackups(stop)) return;
            std::this_thread::sleep_for(std::chrono::microseconds(random.NextBelow(20'000)));
            if (stop.stop_requested()) return;
            cluster.StartServer(static_cast<int>(random.NextBelow(cluster.servers.size())));
            ++kills_;
          }
        }) {}
  int kills() const { return kills_; }

 private:
  std::atomic<int> kills_ = 0;
  std::jthread thread_;
};

TEST(Replication, AnUndisturbedTrainingHasTheSameBits) {
  for (const UpdateMode mode : {UpdateMode::kSync, UpdateMode::kBounded}) {
    Cluster alone(3, 2, mode);
    const std::vector<float> expected = TrainAll(alone, 30);
    Cluster cluster(3, 2, mode);
    cluster.Replicate();
    EXPECT_EQ(TrainAll(cluster, 30), expected);
  }
}

// MUSTER_SIMULATION_SEEDS: how many.
TEST(Replication, LostServersChangeNoBit) {
  constexpr uint64_t kSteps = 150;
  for (const UpdateConfig& update : {UpdateConfig{.rule = {.mode = UpdateMode::kSync}},
                                     UpdateConfig{.rule = {.mode = UpdateMode::kBounded, .staleness = 0}}}) {
    Cluster undisturbed(2, 2, update);
    const std::vector<float> expected = TrainAll(undisturbed, kSteps);
    for (uint64_t seed = 1; seed <= SeedCount(); ++seed) {
      Cluster cluster(2, 2, update);
      cluster.Replicate();
      absl::StatusOr<std::vector<float>> results[2];
      int kills = 0;
      {
        std::optional<Killer> killer(std::in_place, cluster, seed);
        const auto train = [&](int rank) {
          ParameterServerClient client(cluster.ClientOptions(rank));
          results[rank] = TrainRankOnce(cluster, client, rank, kSteps, false, [&](uint64_t step) {
            if (rank == 0 && step == kSteps - 50) {
              kills = killer->kills();
              killer.reset();
            }
          });
        };
        std::jthread rank1([&] { train(1); });
        train(0);
      }
      EXPECT_GT(kills, 0);
      for (const auto& result : results) {
        ASSERT_TRUE(result.ok()) << "seed " << seed << ": " << result.status();
        EXPECT_EQ(*result, expected) << "seed " << seed;
      }
    }
  }
}

TEST(Replication, TenThousandPushesAreTenThousand) {
  constexpr int kPushes = 10'000;
  Cluster cluster(
      2, 1, UpdateMode::kAsync,
      {{.kind = OptimizerKind::kSgd, .learning_rate = 1}, {.kind = OptimizerKind::kSgd, .learning_rate = 1}});
  cluster.Replicate();
  std::vector<float> parameters(cluster.layout.size()), gradient(cluster.layout.size(), -1.0f);
  ParameterServerClient client(cluster.ClientOptions(0));
  ASSERT_TRUE(client.Join(parameters).ok());
  for (int i = 0; i < kPushes; ++i) {
    if (i % 1500 == 700) {
      ASSERT_TRUE(cluster.AwaitBackups());
      cluster.StartServer(i / 1500 % 2);
    }
    const auto result = Push(client, gradient, parameters);
    ASSERT_TRUE(result.ok()) << i << ": " << result.status();
  }
  const auto summary = client.AwaitOthers(parameters);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->step(), static_cast<uint64_t>(kPushes));
  EXPECT_EQ(summary->pushes().applied(), static_cast<uint64_t>(kPushes));
  // The biases begin at zero.
  const auto begin = parameters.begin() + cluster.layout.tensors()[1].offset;
  const std::vector<float> biases(begin, begin + 5);
  EXPECT_THAT(biases, testing::Each(static_cast<float>(kPushes)));
}

// What is lost, doubled and late on the streams of workers, and between servers.
TEST(Replication, NothingIsLostOverABadNetwork) {
  constexpr int kWorkers = 4, kPushes = 50;
  Cluster cluster(
      2, kWorkers, UpdateMode::kAsync,
      {{.kind = OptimizerKind::kSgd, .learning_rate = 1}, {.kind = OptimizerKind::kSgd, .learning_rate = 1}});
  ShardConnection::InjectFaults(FrameFaultOptions{
      .lost = 0.1, .doubled = 0.1, .late = 0.1, .latest = std::chrono::milliseconds(200), .seed = 3});
  const absl::Cleanup heal = [] { ShardConnection::InjectFaults(std::nullopt); };
  cluster.Replicate();
  std::vector<absl::Status> results(kWorkers);
  {
    std::vector<std::jthread> workers;
    for (int rank = 0; rank < kWorkers; ++rank) {
      workers.emplace_back([&, rank] {
        std::vector<float> parameters(cluster.layout.size()), gradient(cluster.layout.size(), -1.0f);
        ParameterServerClient client(cluster.ClientOptions(rank));
        results[rank] = client.Join(parameters).status();
        for (int i = 0; i < kPushes && results[rank].ok(); ++i) {
          results[rank] = Push(client, gradient, parameters).status();
        }
        if (results[rank].ok() && rank == 0) {
          results[rank] = client.AwaitOthers(parameters).status();
          const auto begin = parameters.begin() + cluster.layout.tensors()[1].offset;
          EXPECT_THAT(std::vector<float>(begin, begin + 5),
                      testing::Each(static_cast<float>(kWorkers * kPushes)));
        }
        if (results[rank].ok()) results[rank] = client.Finish();
      });
    }
  }
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
}

}  // namespace
}  // namespace muster
