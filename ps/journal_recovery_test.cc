// Servers with a journal that are ended at any time: nothing that they acknowledged is lost, and nobody goes
// back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "ps/checkpoint_store.h"
#include "tests/support/ps_cluster.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

uint64_t SeedCount() {
  const char* const seeds = std::getenv("MUSTER_SIMULATION_SEEDS");
  return seeds != nullptr ? std::stoul(seeds) : 3;
}

// Replaces servers at random times until it is stopped, at most `times`.
class Killer {
 public:
  Killer(Cluster& cluster, uint64_t seed, int times)
      : thread_([&cluster, seed, times](const std::stop_token& stop) {
          RandomStream random(seed, 5);
          for (int i = 0; i < times; ++i) {
            const TimePoint until = Now() + std::chrono::microseconds(random.NextBelow(60'000));
            while (Now() < until && !stop.stop_requested())
              std::this_thread::sleep_for(std::chrono::microseconds(100));
            if (stop.stop_requested()) return;
            cluster.StartServer(static_cast<int>(random.NextBelow(cluster.servers.size())));
          }
        }) {}

 private:
  std::jthread thread_;
};

// MUSTER_SIMULATION_SEEDS: how many.
TEST(JournalRecovery, SynchronousTrainingHasTheSameBitsAndNobodyGoesBack) {
  constexpr uint64_t kSteps = 60;
  for (const UpdateConfig& update : kReproducibleUpdates) {
    Cluster undisturbed(2, 2, update);
    const std::vector<float> expected = TrainAll(undisturbed, kSteps);
    for (uint64_t seed = 1; seed <= SeedCount(); ++seed) {
      Cluster cluster(2, 2, update);
      cluster.keeps_journal = true;
      cluster.KeepCheckpoints(1 + RandomStream(seed, 6).NextBelow(25));
      absl::StatusOr<std::vector<float>> results[2];
      {
        const Killer killer(cluster, seed, 8);
        const auto train = [&](int rank) {
          ParameterServerClient client(cluster.ClientOptions(rank));
          results[rank] = TrainRankOnce(cluster, client, rank, kSteps, false, nullptr);
        };
        std::jthread rank1([&] { train(1); });
        train(0);
      }
      for (const auto& result : results) {
        ASSERT_TRUE(result.ok()) << "seed " << seed << ": " << result.status();
        EXPECT_EQ(*result, expected) << "seed " << seed;
      }
    }
  }
}

void MakeSteps(const Cluster& cluster, ParameterServerClient& client, uint64_t steps) {
  std::vector<float> parameters(cluster.layout.size());
  const std::vector<float> gradient(cluster.layout.size(), 1.0f);
  ASSERT_TRUE(client.Join(parameters).ok());
  for (uint64_t step = 0; step < steps; ++step) ASSERT_TRUE(Push(client, gradient, parameters).ok());
}

// ps:0 has told the worker of the end when it is replaced, but not ps:1, which is away. The worker has not
// hung up: it waits for that.
TEST(JournalRecovery, TheEndIsNotForgottenUntilAllHaveHeardOfIt) {
  constexpr uint64_t kSteps = 5;
  for (const UpdateMode mode : {UpdateMode::kSync, UpdateMode::kAsync}) {
    Cluster cluster(2, 1, mode);
    cluster.keeps_journal = true;
    cluster.KeepCheckpoints(kSteps);
    ParameterServerClient client(cluster.ClientOptions(0));
    ASSERT_NO_FATAL_FAILURE(MakeSteps(cluster, client, kSteps));
    const CheckpointStore store(cluster.CheckpointsOf(0));
    const TimePoint deadline = Now() + std::chrono::seconds(30);
    while (!store.ReadManifest(kSteps).ok()) {
      ASSERT_LT(Now(), deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    cluster.StopServer(1);
    auto finished = std::async(std::launch::async, [&] { return client.Finish(); });
    ASSERT_TRUE(cluster.AwaitEnd(0).ok());

    for (const int server : {0, 1}) cluster.StartServer(server);
    const absl::Status status = finished.get();
    EXPECT_TRUE(status.ok()) << status;
    for (const int server : {0, 1}) EXPECT_TRUE(cluster.AwaitEnd(server).ok());

    // It is another job that begins there next.
    cluster.StartAgain();
    const auto trained = TrainRank(cluster, 0, 2 * kSteps);
    EXPECT_TRUE(trained.ok()) << trained.status();
  }
}

// Killed when everybody has heard of the end, but before it has ended itself: the others do not come back.
TEST(JournalRecovery, AServerThatIsKilledAtTheEndNeedsNoOther) {
  constexpr uint64_t kSteps = 5;
  Cluster cluster(2, 1, UpdateMode::kSync);
  cluster.keeps_journal = true;
  cluster.KeepCheckpoints(kSteps);
  {
    ParameterServerClient client(cluster.ClientOptions(0));
    ASSERT_NO_FATAL_FAILURE(MakeSteps(cluster, client, kSteps));
    ASSERT_TRUE(client.Finish().ok());
    for (const int server : {0, 1}) cluster.StopServer(server);  // the client has not hung up
  }
  for (const int server : {0, 1}) {
    cluster.StartServer(server);
    const absl::Status end = cluster.AwaitEnd(server);
    EXPECT_TRUE(end.ok()) << end;
    cluster.StopServer(server);
  }
}

// In async mode ps:1 cannot know that there is no more to come.
TEST(JournalRecovery, AServerThatNeedsAPs0ThatIsGoneSaysSo) {
  constexpr uint64_t kSteps = 5;
  Cluster cluster(2, 1, UpdateMode::kAsync);
  cluster.keeps_journal = true;
  cluster.server_timeout = std::chrono::seconds(1);
  cluster.KeepCheckpoints(kSteps);
  {
    ParameterServerClient client(cluster.ClientOptions(0));
    ASSERT_NO_FATAL_FAILURE(MakeSteps(cluster, client, kSteps));
    ASSERT_TRUE(client.Finish().ok());
    for (const int server : {0, 1}) cluster.StopServer(server);
  }
  cluster.StartServer(1);
  const absl::Status end = cluster.AwaitEnd(1);
  EXPECT_EQ(end.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(end.message()), HasSubstr("ps:0 at " + cluster.spec.ps[0]));
}

// ps:0 knows at once that there will be none.
TEST(JournalRecovery, ALastCheckpointThatCannotBeMadeHoldsNobodyUp) {
  constexpr uint64_t kSteps = 5;
  Cluster cluster(2, 1, UpdateMode::kSync);
  cluster.keeps_journal = true;
  cluster.KeepCheckpoints(100);
  {
    ParameterServerClient client(cluster.ClientOptions(0));
    ASSERT_NO_FATAL_FAILURE(MakeSteps(cluster, client, kSteps));
    const CheckpointStore store(cluster.CheckpointsOf(0));
    std::filesystem::create_directories(store.PathOf(kSteps, "manifest") / "in the way");
    ASSERT_TRUE(client.Finish().ok());
  }
  for (const int server : {0, 1}) {
    const absl::Status end = cluster.AwaitEnd(server);
    EXPECT_TRUE(end.ok()) << end;
  }
}

// Workers that are ahead leave parts and decisions of several steps behind.
TEST(JournalRecovery, BoundedTrainingMakesEveryStepOnce) {
  constexpr uint64_t kSteps = 80;
  for (uint64_t seed = 1; seed <= SeedCount(); ++seed) {
    Cluster cluster(2, 2, UpdateConfig{.rule = {.mode = UpdateMode::kBounded, .staleness = 3}});
    cluster.keeps_journal = true;
    cluster.KeepCheckpoints(1 + RandomStream(seed, 6).NextBelow(10));
    const Killer killer(cluster, seed, 8);
    ParameterServerClient first(cluster.ClientOptions(0));
    absl::StatusOr<std::vector<float>> other;
    std::jthread rank1([&] {
      ParameterServerClient client(cluster.ClientOptions(1));
      other = TrainRankOnce(cluster, client, 1, kSteps, false, nullptr);
    });
    std::vector<float> parameters(cluster.layout.size());
    ASSERT_TRUE(first.Join(parameters).ok());
    for (uint64_t step = 0; step < kSteps; ++step) {
      const std::vector<float> gradient = GradientOf(cluster.layout, step, 0);
      const auto result = Push(first, gradient, parameters);
      ASSERT_TRUE(result.ok()) << "seed " << seed << ": " << result.status();
      ASSERT_EQ(result->step, step + 1) << "seed " << seed;
    }
    const auto summary = first.AwaitOthers(parameters);
    ASSERT_TRUE(summary.ok()) << "seed " << seed << ": " << summary.status();
    EXPECT_EQ(summary->step(), kSteps);
    EXPECT_EQ(summary->pushes().applied(), 2 * kSteps);
    ASSERT_TRUE(first.Finish().ok());
    rank1.join();
    EXPECT_TRUE(other.ok()) << "seed " << seed << ": " << other.status();
  }
}

TEST(JournalRecovery, TenThousandPushesAreTenThousand) {
  Cluster cluster(2, 1, UpdateMode::kAsync, kPlainSgd);
  cluster.keeps_journal = true;
  cluster.KeepCheckpoints(3000);
  std::optional<Killer> killer;
  PushOnes(cluster, 10'000, [&](int i) {
    if (i == 0) killer.emplace(cluster, /*seed=*/7, /*times=*/5);
  });
}

TEST(JournalRecovery, AWholeJobGoesOnWhereItWas) {
  Cluster undisturbed(2, 2, UpdateMode::kSync);
  const std::vector<float> expected = TrainAll(undisturbed, 40);
  Cluster cluster(2, 2, UpdateMode::kSync);
  cluster.keeps_journal = true;
  cluster.KeepCheckpoints(1000);
  TrainAndVanish(cluster, 20);
  for (const int shard : {0, 1}) cluster.StartServer(shard);
  EXPECT_EQ(TrainAll(cluster, 40), expected);
}

// Its folder is another one, or empty: that is no reason for all to forget what they have.
TEST(JournalRecovery, AServerWithoutItsFilesIsNoReasonToBeginAnew) {
  for (const bool is_whole_job : {true, false}) {
    Cluster cluster(3, 2, UpdateMode::kSync);
    cluster.keeps_journal = cluster.own_folders = true;
    TrainBeyondTheFirstOfOneCheckpoint(cluster);
    const CheckpointStore store(cluster.CheckpointsOf(1));
    const std::vector<uint64_t> before = *store.List();
    for (const int shard : {0, 1, 2}) {
      if (is_whole_job || shard != 1) cluster.StopServer(shard);
    }
    ASSERT_TRUE(RemoveTree(cluster.CheckpointsOf(2)).ok());
    for (const int shard : {0, 1, 2}) {
      if (is_whole_job || shard != 1) cluster.StartServer(shard);
    }
    ParameterServerClient client(cluster.ClientOptions(0));
    std::vector<float> parameters(cluster.layout.size());
    EXPECT_THAT(std::string(client.Join(parameters).status().message()),
                HasSubstr("no checkpoint in common"));
    EXPECT_THAT(std::string(cluster.AwaitEnd(0).message()), HasSubstr("no checkpoint in common"));
    EXPECT_EQ(*store.List(), before);
  }
}

}  // namespace
}  // namespace muster
