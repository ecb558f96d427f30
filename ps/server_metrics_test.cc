#include "ps/server_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/ps_cluster.h"

namespace muster {
namespace {

using ::testing::Gt;

void ExpectToAddUp(const ShardMetrics& shard) {
  for (const PushTally& worker : shard.workers) {
    const PushCounts& counts = worker.counts;
    EXPECT_EQ(counts.received, counts.applied + counts.stale + counts.duplicate + counts.rejected);
    EXPECT_EQ(worker.staleness.count(), counts.applied);
  }
}

TEST(ServerMetrics, EachWorkersPushesAreCounted) {
  for (const UpdateMode mode : {UpdateMode::kAsync, UpdateMode::kSync, UpdateMode::kBounded}) {
    Cluster cluster(2, 2, mode);
    EXPECT_FALSE(cluster.servers[0]->metrics().shards.at(0).checkpoint_age);
    {
      std::jthread other([&] { EXPECT_TRUE(TrainRank(cluster, 1, 20).ok()); });
      EXPECT_TRUE(TrainRank(cluster, 0, 20).ok());
    }
    for (int i = 0; i < 2; ++i) {
      const ServerMetrics metrics = cluster.servers[i]->metrics();
      ASSERT_EQ(metrics.shards.size(), 1u);
      const ShardMetrics& shard = metrics.shards[0];
      EXPECT_EQ(shard.shard, i);
      EXPECT_TRUE(shard.serves);
      ASSERT_EQ(shard.workers.size(), 2u);
      uint64_t applied = 0;
      for (const PushTally& worker : shard.workers) applied += worker.counts.applied;
      EXPECT_EQ(applied, mode == UpdateMode::kAsync ? shard.step : 2 * shard.step);
      EXPECT_THAT(shard.step, Gt(0u));
      ExpectToAddUp(shard);
      const auto floats = static_cast<uint64_t>(cluster.layout.Shard(i, 2).size());
      EXPECT_THAT(metrics.received_bytes, Gt(applied * floats * sizeof(float)));
      EXPECT_THAT(metrics.sent_bytes, Gt(applied * floats * sizeof(float)));
    }
  }
}

TEST(ServerMetrics, WhoIsWaitedForIsNamed) {
  Cluster cluster(2, 2, UpdateMode::kSync);
  std::promise<void> may_go_on;
  std::jthread late([&] {
    EXPECT_TRUE(TrainRank(cluster, 1, 5, false, [&](uint64_t step) {
                  if (step == 3) may_go_on.get_future().wait_for(std::chrono::minutes(1));
                }).ok());
  });
  std::jthread first([&] { EXPECT_TRUE(TrainRank(cluster, 0, 5).ok()); });
  const TimePoint deadline = Now() + std::chrono::seconds(30);
  ShardMetrics shard;
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    shard = cluster.servers[0]->metrics().shards.at(0);
  } while ((shard.step < 3 || shard.awaited.empty()) && Now() < deadline);
  may_go_on.set_value();
  EXPECT_EQ(shard.awaited, std::vector<int>{1});
  EXPECT_EQ(shard.step, 3u);
  EXPECT_EQ(shard.held_pushes, 1);
  ExpectToAddUp(shard);
  EXPECT_GE(shard.waiting, std::chrono::seconds(2));
  late.join();
  first.join();
  EXPECT_THAT(cluster.servers[0]->metrics().shards.at(0).awaited, testing::IsEmpty());
}

TEST(ServerMetrics, CountsGoOnWhereAllGoBack) {
  Cluster cluster(2, 2, UpdateMode::kSync);
  cluster.KeepCheckpoints(5);
  const auto has_checkpoint = [](const auto& server) {
    return server->metrics().shards.at(0).checkpoint_age.has_value();
  };
  std::atomic<bool> done = false;
  std::jthread watch([&] {
    uint64_t received = 0;
    while (!done) {
      const uint64_t now = cluster.servers[0]->metrics().shards.at(0).workers[0].counts.received;
      EXPECT_GE(now, std::exchange(received, now)) << "a counter never goes down";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  TrainWithFault(cluster, 30, 18, [&] {
    const TimePoint deadline = Now() + std::chrono::seconds(30);
    while (!std::all_of(cluster.servers.begin(), cluster.servers.end(), has_checkpoint) && Now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    cluster.StartServer(1);
  });
  done = true;
  const ShardMetrics kept = cluster.servers[0]->metrics().shards.at(0);
  const ShardMetrics replaced = cluster.servers[1]->metrics().shards.at(0);
  EXPECT_EQ(kept.step, 30u);
  EXPECT_THAT(kept.table_rows, Gt(0));
  EXPECT_EQ(replaced.step, 30u);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(kept.workers[rank].counts.applied, Gt(30u)) << "some steps were made twice";
    EXPECT_LT(replaced.workers[rank].counts.applied, 30u) << "by the process before it";
  }
  ExpectToAddUp(kept);
  ExpectToAddUp(replaced);
  ASSERT_TRUE(kept.checkpoint_age);
  EXPECT_LT(*kept.checkpoint_age, std::chrono::minutes(5));
}

TEST(ServerMetrics, ABackupThatTakesOverCountsFromThere) {
  Cluster cluster(2, 2, UpdateMode::kSync);
  cluster.Replicate();
  TrainWithFault(cluster, 30, 15, [&] {
    EXPECT_TRUE(cluster.AwaitBackups());
    const ShardMetrics backup = cluster.servers[0]->metrics().shards.at(1);
    EXPECT_EQ(backup.shard, 1);
    EXPECT_FALSE(backup.serves);
    EXPECT_THAT(backup.step, Gt(0u));
    EXPECT_EQ(backup.workers[0].counts.received, 0u);
    cluster.StopServer(1);
  });
  const ServerMetrics metrics = cluster.servers[0]->metrics();
  ASSERT_EQ(metrics.shards.size(), 2u);
  for (const ShardMetrics& shard : metrics.shards) {
    EXPECT_TRUE(shard.serves);
    EXPECT_EQ(shard.step, 30u);
    ExpectToAddUp(shard);
  }
  EXPECT_EQ(metrics.shards[0].workers[0].counts.applied, 30u);
  EXPECT_LT(metrics.shards[1].workers[0].counts.applied, 30u);
  EXPECT_THAT(metrics.shards[1].workers[0].counts.applied, Gt(0u));
}

}  // namespace
}  // namespace muster
