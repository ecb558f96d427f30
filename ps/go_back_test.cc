// Servers that are lost and come back: all go back to a checkpoint, and end with the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <set>
#include <string>
#include <thread>

#include "ps/checkpoint_store.h"
#include "ps/coordinator_link.h"
#include "tests/support/ps_cluster.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSteps = 40;

std::vector<float> Undisturbed(UpdateConfig update = {.rule = {.mode = UpdateMode::kSync}}) {
  Cluster cluster(2, 2, update);
  return TrainAll(cluster, kSteps);
}

// Until there is one, of this step or a later one: its step.
uint64_t AwaitCheckpoint(const Cluster& cluster, uint64_t at_least = 1) {
  const CheckpointStore store(cluster.checkpoints.path());
  const TimePoint deadline = Now() + std::chrono::seconds(30);
  uint64_t newest = 0;
  while (newest < at_least && Now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const auto steps = store.List();
    newest = steps.ok() && !steps->empty() ? steps->front() : 0;
  }
  EXPECT_GE(newest, at_least);
  return newest;
}

TEST(GoBack, AReplacedShardTakesAllToTheCheckpointAndNoBitChanges) {
  const std::vector<float> expected = Undisturbed();
  for (const int shard : {1, 0}) {
    Cluster cluster(2, 2, UpdateMode::kSync);
    cluster.KeepCheckpoints(10);
    EXPECT_EQ(TrainWithFault(cluster, kSteps, 25,
                             [&] {
                               AwaitCheckpoint(cluster);
                               cluster.StartServer(shard);
                             }),
              expected)
        << "ps:" << shard;
  }
}

// MUSTER_SIMULATION_SEEDS: how many.
TEST(GoBack, ServersThatAreReplacedAtAnyTimeChangeNoBit) {
  const char* const seeds = std::getenv("MUSTER_SIMULATION_SEEDS");
  for (const UpdateConfig& update : kReproducibleUpdates) {
    const std::vector<float> expected = Undisturbed(update);
    for (uint64_t seed = 1; seed <= (seeds != nullptr ? std::stoul(seeds) : 3); ++seed) {
      RandomStream random(seed, 5);
      Cluster cluster(2, 2, update);
      cluster.KeepCheckpoints(1 + random.NextBelow(10));
      std::jthread killer([&](const std::stop_token& stop) {
        for (int i = 0; i < 5; ++i) {
          const TimePoint until = Now() + std::chrono::microseconds(random.NextBelow(60'000));
          while (Now() < until && !stop.stop_requested())
            std::this_thread::sleep_for(std::chrono::microseconds(100));
          if (stop.stop_requested()) return;
          cluster.StartServer(static_cast<int>(random.NextBelow(2)));
        }
      });
      EXPECT_EQ(TrainWithFault(cluster, kSteps, 0, [] {}), expected) << "seed " << seed;
    }
  }
}

// A push of async training counts as often as the checkpoint has it, and what came after the checkpoint is
// all that is lost.
TEST(GoBack, AsyncServersLoseNoMoreThanWhatCameAfterTheCheckpoint) {
  Cluster cluster(2, 1, UpdateMode::kAsync);
  cluster.KeepCheckpoints(10);
  ParameterServerClient client(cluster.ClientOptions(0));
  std::vector<float> parameters(cluster.layout.size()), gradient(cluster.layout.size(), 1.0f);
  ASSERT_TRUE(client.Join(parameters).ok());
  const std::vector<float> initial = parameters;
  for (int i = 0; i < 25; ++i) ASSERT_TRUE(Push(client, gradient, parameters).ok());
  AwaitCheckpoint(cluster, 20);  // so that both have the one before
  cluster.StartServer(1);
  absl::StatusOr<PushResult> result = Push(client, gradient, parameters);
  ASSERT_TRUE(IsGoneBack(result.status())) << result.status();
  const auto joined = client.Join(parameters);
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(joined->pushes, joined->step);
  EXPECT_THAT(joined->step, testing::AllOf(testing::Ge(10u), testing::Le(25u)));
}

// Its heartbeats are those of the epoch before.
TEST(GoBack, AWorkerThatIsComputingMeanwhileIsWaitedFor) {
  const std::vector<float> expected = Undisturbed();
  Cluster cluster(2, 2, UpdateMode::kSync);
  cluster.worker_lease = std::chrono::seconds(1);
  cluster.KeepCheckpoints(10);
  EXPECT_EQ(TrainWithFault(cluster, kSteps, 25,
                           [&] {
                             AwaitCheckpoint(cluster);
                             cluster.StartServer(1);
                             std::this_thread::sleep_for(3 * cluster.worker_lease);  // it computes
                           }),
            expected);
}

// One that stood still while another took its place, say.
TEST(GoBack, AnOlderProcessOfAServerIsRefused) {
  Cluster cluster(2, 1, UpdateMode::kSync);
  cluster.StopServer(1);
  const auto connect = [&](uint64_t incarnation, std::promise<absl::Status>* lost) {
    return std::make_unique<CoordinatorLink>(
        CoordinatorLinkOptions{.view = std::make_shared<ClusterView>(cluster.spec, TaskId{Role::kPs, 1}),
                               .shard_index = 1},
        CoordinatorLink::Callbacks{
            .join =
                [incarnation](const std::stop_token&) {
                  ps::ShardJoin join;
                  join.set_shard_index(1);
                  join.set_shard_count(2);
                  join.set_server_uuid(std::to_string(incarnation));
                  join.set_incarnation(incarnation);
                  return join;
                },
            .on_coordination = [](const ps::Coordination&) {},
            .on_lost = [lost](const absl::Status& status) { lost->set_value(status); }});
  };
  std::promise<absl::Status> newer_lost, older_lost;
  std::future<absl::Status> newer = newer_lost.get_future(), older = older_lost.get_future();
  const auto newer_link = connect(2, &newer_lost), older_link = connect(1, &older_lost);
  // Whichever was first, only one of the two can stay.
  const auto is_refused = [](std::future<absl::Status>& lost) {
    return lost.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  };
  ASSERT_TRUE(is_refused(older));
  EXPECT_THAT(std::string(older.get().message()), HasSubstr("a newer process of this task has joined"));
  EXPECT_NE(newer.wait_for(std::chrono::seconds(0)), std::future_status::ready);
}

// While a worker waits for the one, the other one says why nobody will come.
TEST(GoBack, WhereThereIsNoGoingBackWorkersHearIt) {
  Cluster cluster(2, 1, UpdateMode::kSync);
  ParameterServerClientOptions options = cluster.ClientOptions(0);
  options.server_timeout = std::chrono::seconds(30);
  ParameterServerClient client(options);
  std::vector<float> parameters(cluster.layout.size());
  ASSERT_TRUE(client.Join(parameters).ok());
  cluster.StartServer(1);
  EXPECT_TRUE(absl::IsDataLoss(cluster.AwaitEnd(1)));
  cluster.StopServer(1);
  const auto pushed = Push(client, std::vector<float>(parameters.size()), parameters);
  EXPECT_THAT(std::string(pushed.status().message()),
              HasSubstr("ps:1 has started again and lost its parameters, without a checkpoint"));
}

TEST(GoBack, WithoutACheckpointYetTheyBeginAgain) {
  const std::vector<float> expected = Undisturbed();
  Cluster cluster(2, 2, UpdateMode::kSync);
  cluster.KeepCheckpoints(1000);
  EXPECT_EQ(TrainWithFault(cluster, kSteps, 25, [&] { cluster.StartServer(1); }), expected);
}

// A disk that was full for a moment: the next one is made in its turn, and the last one holds nobody up.
TEST(GoBack, ACheckpointThatOneServerCannotWriteIsLeftOut) {
  Cluster cluster(2, 2, UpdateMode::kSync);
  cluster.own_folders = true;
  cluster.KeepCheckpoints(10);
  const CheckpointStore store(cluster.CheckpointsOf(1));
  for (const uint64_t step : {10, 1000}) {
    std::filesystem::create_directories(store.PathOf(step, CheckpointStore::ShardFileName(1, 2)) /
                                        "in the way");
  }
  (void)TrainAll(cluster, 1000);  // and awaits their end
  for (const int server : {0, 1}) {
    const auto steps = CheckpointStore(cluster.CheckpointsOf(server)).List();
    ASSERT_TRUE(steps.ok()) << steps.status();
    EXPECT_THAT(*steps, testing::AllOf(testing::Not(testing::IsEmpty()), testing::Each(testing::Gt(10)),
                                       testing::Each(testing::Lt(1000))));
  }
}

// The job has ended well; whether it can be gone on from is said apart.
TEST(GoBack, AllServersKnowThatTheLastCheckpointIsNotThere) {
  constexpr uint64_t kEnd = 20;
  for (const UpdateMode mode : {UpdateMode::kSync, UpdateMode::kAsync}) {
    for (const int at_fault : {0, 1, -1}) {
      Cluster cluster(2, 1, mode);
      cluster.own_folders = true;
      cluster.KeepCheckpoints(100);
      std::filesystem::path file;
      if (at_fault >= 0) {
        file = CheckpointStore(cluster.CheckpointsOf(at_fault))
                   .PathOf(kEnd, CheckpointStore::ShardFileName(at_fault, 2));
        std::filesystem::create_directories(file / "in the way");
      }
      {
        std::vector<float> parameters(cluster.layout.size());
        const std::vector<float> gradient(cluster.layout.size(), 1.0f);
        ParameterServerClient client(cluster.ClientOptions(0));
        ASSERT_TRUE(client.Join(parameters).ok());
        for (uint64_t i = 0; i < kEnd; ++i) ASSERT_TRUE(Push(client, gradient, parameters).ok());
        ASSERT_TRUE(client.Finish().ok());
      }
      for (const int server : {0, 1}) {
        const absl::Status end = cluster.AwaitEnd(server);
        ASSERT_TRUE(end.ok()) << end;
        const absl::Status kept = cluster.servers[server]->last_checkpoint();
        EXPECT_EQ(kept.ok(), at_fault < 0) << kept;
        if (at_fault < 0) continue;
        EXPECT_THAT(std::string(kept.message()), HasSubstr("the checkpoint of step 20"));
        EXPECT_THAT(std::string(kept.message()),
                    HasSubstr(server == at_fault ? file.string() : "not all parameter servers"));
      }
    }
  }
}

// Else its disk's trouble would be that of all others, too, in time.
TEST(GoBack, WhatOneServerCannotWriteDoesNotPileUpAtTheOthers) {
  constexpr uint64_t kEvery = 10;
  for (const UpdateMode mode : {UpdateMode::kSync, UpdateMode::kAsync}) {
    Cluster cluster(2, 1, mode);
    cluster.own_folders = true;
    cluster.KeepCheckpoints(kEvery);
    ASSERT_TRUE(MakeDirectories(cluster.CheckpointsOf(1).parent_path()).ok());
    std::filesystem::remove_all(cluster.CheckpointsOf(1));
    ASSERT_TRUE(WriteFileAtomically(cluster.CheckpointsOf(1), "in the way").ok());
    ParameterServerClient client(cluster.ClientOptions(0));
    std::vector<float> parameters(cluster.layout.size()), gradient(cluster.layout.size(), 1.0f);
    ASSERT_TRUE(client.Join(parameters).ok());
    std::set<std::string> seen;
    size_t most = 0;
    // As many as there were time for: each is begun when the one before has failed.
    const bool all = Eventually([&] {
      for (uint64_t i = 0; i < kEvery; ++i) EXPECT_TRUE(Push(client, gradient, parameters).ok());
      const auto names = ListDirectory(cluster.CheckpointsOf(0));
      if (!names.ok()) return false;
      seen.insert(names->begin(), names->end());
      most = std::max(most, names->size());
      return seen.size() > 30;
    });
    EXPECT_TRUE(all) << seen.size();
    // The newest, those under way, and what is not heard yet.
    EXPECT_LT(most, 10u);
  }
}

// One server's process has ended before it had the newest one, which others have.
TEST(GoBack, OfOnlyOneCheckpointThatIsKeptTheOneBeforeIsUsedAsLongAsOthersNeedIt) {
  Cluster undisturbed(2, 2, UpdateMode::kSync);
  const std::vector<float> expected = TrainAll(undisturbed, 40);
  Cluster cluster(2, 2, UpdateMode::kSync);
  cluster.own_folders = true;
  TrainBeyondTheFirstOfOneCheckpoint(cluster);
  for (const int shard : {0, 1}) cluster.StopServer(shard);
  const CheckpointStore store(cluster.CheckpointsOf(1));
  ASSERT_EQ(*store.List(), (std::vector<uint64_t>{30, 20}));
  ASSERT_TRUE(RemoveTree(store.PathOf(30, "manifest").parent_path()).ok());
  ASSERT_EQ(*store.List(), (std::vector<uint64_t>{20}));
  for (const int shard : {0, 1}) cluster.StartServer(shard);
  EXPECT_EQ(TrainAll(cluster, 40), expected);
}

// The first one, which only one server had heard of: it is neither forgotten nor in anybody's way.
TEST(GoBack, ServersThatAllEndWhileTheyMakeACheckpointGoOnFromIt) {
  const std::vector<float> expected = Undisturbed();
  for (const int without : {0, 1}) {
    Cluster cluster(2, 2, UpdateMode::kSync);
    cluster.own_folders = true;
    cluster.KeepCheckpoints(10);
    TrainAndVanish(cluster, 15);
    ASSERT_TRUE(AwaitCheckpoints(cluster, [](const auto& steps) { return steps.front() == 10; }));
    for (const int shard : {0, 1}) cluster.StopServer(shard);
    const CheckpointStore store(cluster.CheckpointsOf(without));
    ASSERT_TRUE(RemoveTree(store.PathOf(10, "manifest")).ok());
    for (const int shard : {0, 1}) cluster.StartServer(shard);
    EXPECT_TRUE(AwaitCheckpoints(cluster, [](const auto& steps) { return steps.front() == 10; }))
        << "ps:" << without;
    EXPECT_EQ(TrainAll(cluster, kSteps), expected) << "ps:" << without;
  }
}

TEST(GoBack, AWholeJobGoesOnWithTheSameBits) {
  const std::vector<float> expected = Undisturbed();
  Cluster cluster(2, 2, UpdateMode::kSync);
  cluster.KeepCheckpoints(10);
  TrainAll(cluster, 20);
  AwaitCheckpoint(cluster, 20);  // what the job ended with
  cluster.KeepCheckpoints(10);
  EXPECT_EQ(TrainAll(cluster, kSteps), expected);
}

}  // namespace
}  // namespace muster
