#include "ps/early_update.h"

#include <absl/cleanup/cleanup.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>

#include "tests/support/ps_cluster.h"

namespace muster {
namespace {

// Two ranks, ten floats, and nobody checks who computed them: their values are their places.
class EarlyUpdateParts : public testing::Test {
 protected:
  void Arrive(int rank, uint64_t arrival, int64_t begin, int64_t end, bool takes_parts = true) {
    std::vector<float> values;
    for (int64_t i = begin; i < end; ++i) values.push_back(static_cast<float>(100 * rank + i));
    EarlyUpdate::Push push{.arrival = arrival, .rank = rank, .samples = arrival};
    if (takes_parts) push.recipient = EarlyUpdate::Recipient{arrival, 7};
    const auto floats = std::make_shared<std::vector<float>>(std::move(values));
    update_.Add(push, begin, FloatPayload({ShareFloats(floats)}, 0));
  }

  // What there is to be made, and what of.
  void ExpectNext(int64_t begin, int64_t end) {
    const auto part = update_.Next();
    ASSERT_TRUE(part.has_value());
    EXPECT_EQ(part->range.begin, begin);
    EXPECT_EQ(part->range.end, end);
    ASSERT_EQ(part->gradients.size(), ranks_.size());
    for (size_t i = 0; i < ranks_.size(); ++i) {
      std::vector<float> values(end - begin);
      part->gradients[i].CopyTo(values);
      for (int64_t j = begin; j < end; ++j) {
        EXPECT_EQ(values[j - begin], static_cast<float>(100 * ranks_[i] + j));
      }
    }
  }

  EarlyUpdateParts() { update_.Begin(4, ranks_); }

  const std::vector<int> ranks_ = {1, 2};
  EarlyUpdate update_{10};
};

TEST_F(EarlyUpdateParts, WhatAllHaveSentIsMadeOnce) {
  EXPECT_EQ(update_.step(), 4u);
  Arrive(1, 11, 0, 6);
  EXPECT_FALSE(update_.Next()) << "rank 2 has sent nothing";
  Arrive(2, 12, 0, 3);
  ExpectNext(0, 3);
  EXPECT_FALSE(update_.Next());
  Arrive(2, 12, 3, 5);
  ExpectNext(3, 5);
  Arrive(2, 12, 5, 9);
  ExpectNext(5, 6);
  Arrive(1, 11, 6, 14) /* with rows behind it */;
  ExpectNext(6, 9);
  Arrive(2, 12, 9, 10);
  ExpectNext(9, 10);
  Arrive(2, 12, 10, 12);
  EXPECT_FALSE(update_.Next());
  EXPECT_EQ(update_.made(), 10);
  const uint64_t arrivals[] = {11, 12};
  EXPECT_TRUE(update_.IsOf(arrivals));
  update_.End();
  EXPECT_EQ(update_.SentTo({11, 7}), 10);
  EXPECT_EQ(update_.SentTo({11, 8}), 0) << "another request";
}

TEST_F(EarlyUpdateParts, CountsSamplesOfAllAndLeavesOthersOut) {
  Arrive(3, 13, 0, 10);
  Arrive(1, 11, 0, 10);
  Arrive(2, 12, 0, 10);
  const auto part = update_.Next();
  ASSERT_TRUE(part.has_value());
  EXPECT_EQ(part->samples, 23u);
  EXPECT_EQ(part->gradients.size(), 2u);
}

TEST_F(EarlyUpdateParts, NothingIsMadeForNobody) {
  Arrive(1, 11, 0, 10, /*takes_parts=*/false);
  Arrive(2, 12, 0, 10, /*takes_parts=*/false);
  EXPECT_FALSE(update_.Next());
  EXPECT_EQ(update_.made(), 0);
}

TEST_F(EarlyUpdateParts, AnotherPushOfARankTakesThePlaceOfOneThatNothingIsMadeOf) {
  Arrive(1, 11, 0, 4);
  Arrive(1, 21, 0, 10);
  Arrive(2, 12, 0, 10);
  ExpectNext(0, 10);
  const uint64_t lost[] = {11, 12}, both[] = {21, 12}, one[] = {21};
  EXPECT_FALSE(update_.IsOf(lost));
  EXPECT_FALSE(update_.IsOf(one)) << "the step is made without rank 2";
  EXPECT_TRUE(update_.IsOf(both));
}

TEST_F(EarlyUpdateParts, AndOtherwiseTheStepIsGivenUp) {
  Arrive(1, 11, 0, 4);
  Arrive(2, 12, 0, 10);
  ExpectNext(0, 4);
  Arrive(1, 21, 0, 10);
  EXPECT_FALSE(update_.Next());
  EXPECT_EQ(update_.made(), 0);
  EXPECT_EQ(update_.SentTo({12, 7}), 0);
  const uint64_t both[] = {21, 12};
  EXPECT_FALSE(update_.IsOf(both));
  Arrive(2, 22, 0, 10);
  EXPECT_FALSE(update_.Next()) << "until the next one begins";
  update_.Begin(5, ranks_);
  Arrive(1, 31, 0, 10);
  Arrive(2, 32, 0, 10);
  ExpectNext(0, 10);
}

TEST_F(EarlyUpdateParts, AGapGivesTheStepUp) {
  Arrive(1, 11, 0, 4);
  Arrive(2, 12, 0, 10);
  Arrive(1, 11, 5, 10);
  EXPECT_FALSE(update_.Next());
}

// Whole trainings. A shard that sends in parts of one block answers before it has everything.

constexpr uint64_t kSteps = 12;
constexpr int64_t kPartBytes = 256;

const std::vector<OptimizerConfig> kOptimizers = {
    {.kind = OptimizerKind::kAdam, .learning_rate = 0.01f},
    {.kind = OptimizerKind::kMomentum, .learning_rate = 0.1f, .weight_decay = 0.01f}};

std::vector<float> TrainWhole(int workers) {
  Cluster cluster(1, workers, UpdateMode::kSync, kOptimizers);
  std::vector<float> parameters = TrainAll(cluster, kSteps);
  EXPECT_EQ(cluster.floats_early, 0u) << "it is too small for parts";
  return parameters;
}

TEST(EarlyUpdate, GivesTheSameBits) {
  for (const int workers : {1, 3}) {
    const std::vector<float> expected = TrainWhole(workers);
    for (const int shards : {1, 2, 3}) {
      for (const bool tls : {false, true}) {
        Cluster cluster(shards, workers, {.rule = {.mode = UpdateMode::kSync}}, kOptimizers, tls);
        cluster.part_bytes = kPartBytes;
        cluster.StartAgain();
        EXPECT_EQ(TrainAll(cluster, kSteps), expected);
        EXPECT_GT(cluster.floats_early, 0u);
      }
    }
  }
}

TEST(EarlyUpdate, WhoSendsWholePushesIsPartOfTheStepToo) {
  const std::vector<float> expected = TrainWhole(2);
  Cluster cluster(1, 2, UpdateMode::kSync, kOptimizers);
  cluster.part_bytes = kPartBytes;
  cluster.transport = Transport::kAuto;
  cluster.StartAgain();
  cluster.transport = Transport::kTcp;
  absl::StatusOr<std::vector<float>> local;
  std::jthread rank1([&] {
    ParameterServerClientOptions options = cluster.ClientOptions(1);
    options.transport = Transport::kAuto;
    ParameterServerClient client(std::move(options));
    local = TrainRankOnce(cluster, client, 1, kSteps, false, nullptr);
    EXPECT_EQ(client.floats_early(), 0u);
  });
  const auto remote = TrainRank(cluster, 0, kSteps);
  rank1.join();
  ASSERT_TRUE(remote.ok()) << remote.status();
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_EQ(*remote, expected);
  EXPECT_EQ(*local, expected);
  EXPECT_GT(cluster.floats_early, 0u);
}

TEST(EarlyUpdate, CompressedAndPartialStepsTravelWhole) {
  const auto floats_early = [](UpdateConfig update) {
    update.rule.mode = UpdateMode::kSync;
    Cluster cluster(1, 2, update, kOptimizers);
    cluster.part_bytes = kPartBytes;
    cluster.StartAgain();
    TrainAll(cluster, 2);
    return cluster.floats_early.load();
  };
  EXPECT_GT(floats_early({}), 0u);
  EXPECT_EQ(floats_early({.aggregate = 1}), 0u);
  EXPECT_EQ(floats_early({.compression = {.wire_type = ps::FLOAT16}}), 0u);
  EXPECT_EQ(floats_early({.compression = {.top_k = 0.1}}), 0u);
}

TEST(EarlyUpdate, FramesThatAreLostDoubledAndLateChangeNothing) {
  const std::vector<float> expected = TrainWhole(2);
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    ShardConnection::InjectFaults(FrameFaultOptions{
        .lost = 0.03, .doubled = 0.05, .late = 0.05, .latest = std::chrono::milliseconds(20), .seed = seed});
    const absl::Cleanup heal = [] { ShardConnection::InjectFaults(std::nullopt); };
    Cluster cluster(2, 2, UpdateMode::kSync, kOptimizers);
    cluster.part_bytes = kPartBytes;
    cluster.StartAgain();
    EXPECT_EQ(TrainAll(cluster, kSteps), expected) << seed;
  }
}

// Parts of the first step are made of a gradient that never comes as a whole, and that is not the one that
// the worker's replacement sends.
TEST(EarlyUpdate, WhatWasMadeOfALostPushIsDropped) {
  const std::vector<float> expected = TrainWhole(2);
  Cluster cluster(1, 2, UpdateMode::kSync, kOptimizers);
  cluster.part_bytes = kPartBytes;
  cluster.StartAgain();
  absl::StatusOr<std::vector<float>> other;
  std::jthread rank1([&] { other = TrainRank(cluster, 1, kSteps); });
  {
    RawWorker dies(cluster, "dies", 0);
    ASSERT_TRUE(dies.Receive().has_join());
    const std::vector<float> half(cluster.layout.size() / 2, 1.0f);
    ps::ClientHeader header = dies.Header();
    header.mutable_push()->set_samples(10);
    header.mutable_push()->set_floats(cluster.layout.size());
    for (size_t t = 0; t < kTables.size(); ++t) header.mutable_push()->add_rows();
    dies.connection->Send(header, {BorrowFloats(half, dies.connection->Lease())});
    EXPECT_TRUE(dies.Receive().has_part());
  }
  const auto replacement = TrainRank(cluster, 0, kSteps);
  rank1.join();
  ASSERT_TRUE(replacement.ok()) << replacement.status();
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(*replacement, expected);
  EXPECT_EQ(*other, expected);
}

// Refused as a whole one would be, and no later.
TEST(EarlyUpdate, PartsThatAreNoneAreRefused) {
  Cluster cluster(1, 1, UpdateMode::kSync, kOptimizers);
  cluster.part_bytes = kPartBytes;
  cluster.StartAgain();
  const auto refusal = [&](uint64_t all, size_t first, size_t second, float value) {
    RawWorker worker(cluster, "raw", 0);
    EXPECT_TRUE(worker.Receive().has_join());
    const std::vector<float> values(std::max(first, second), value);
    ps::ClientHeader header = worker.Header();
    header.mutable_push()->set_samples(1);
    header.mutable_push()->set_floats(all);
    for (size_t t = 0; t < kTables.size(); ++t) header.mutable_push()->add_rows();
    worker.connection->Send(header,
                            {BorrowFloats(std::span(values).first(first), worker.connection->Lease())});
    ps::ClientHeader part;
    part.set_version(kWireVersion);
    part.set_request(header.request());
    part.mutable_part()->set_begin(first);
    worker.connection->Send(part,
                            {BorrowFloats(std::span(values).first(second), worker.connection->Lease())});
    ps::ServerHeader answer = worker.Receive();
    while (answer.has_part()) answer = worker.Receive();
    return answer.error().message();
  };
  EXPECT_THAT(refusal(100, 64, 64, 0), testing::HasSubstr("a part of 256 bytes of a push of 100 floats"));
  EXPECT_THAT(refusal(64 + 8, 64, 8, 0), testing::HasSubstr("a gradient of 288 bytes for a shard of"));
  const size_t all = cluster.layout.size();
  EXPECT_THAT(refusal(all, 64, all - 64, NAN), testing::HasSubstr("is not finite"));
}

// The other server of a shard, and a process that comes back, make the same of whole pushes.
TEST(EarlyUpdate, ALostServerChangesNothing) {
  const std::vector<float> expected = TrainWhole(2);
  const auto train = [&](const std::function<void(Cluster&)>& prepare) {
    Cluster cluster(2, 2, UpdateMode::kSync, kOptimizers);
    cluster.part_bytes = kPartBytes;
    prepare(cluster);
    const std::vector<float> parameters = TrainWithFault(cluster, kSteps, 7, [&] {
      EXPECT_TRUE(!cluster.replicated || cluster.AwaitBackups());
      cluster.StartServer(1);
    });
    EXPECT_GT(cluster.floats_early, 0u);
    return parameters;
  };
  EXPECT_EQ(train([](Cluster& cluster) { cluster.KeepCheckpoints(3); }), expected);
  const auto keep_journal = [](Cluster& cluster) {
    cluster.keeps_journal = true;
    cluster.KeepCheckpoints(3);
  };
  EXPECT_EQ(train(keep_journal), expected);
  EXPECT_EQ(train([](Cluster& cluster) { cluster.Replicate(); }), expected);
}

// At any moment, also in the middle of a push. MUSTER_FAULT_SEEDS: how many jobs.
TEST(EarlyUpdate, AServerMayBeLostAtAnyMoment) {
  const char* const given = std::getenv("MUSTER_FAULT_SEEDS");
  const uint64_t seeds = given == nullptr ? 6 : std::strtoull(given, nullptr, 10);
  const std::vector<float> expected = TrainWhole(3);
  for (uint64_t seed = 0; seed < seeds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed);
    Cluster cluster(2, 3, UpdateMode::kSync, kOptimizers);
    cluster.part_bytes = kPartBytes;
    const bool replicated = seed % 3 == 2;
    cluster.keeps_journal = seed % 3 == 1;
    replicated ? cluster.Replicate() : cluster.KeepCheckpoints(3);
    std::atomic<bool> has_begun = false;
    std::vector<absl::StatusOr<std::vector<float>>> results(3);
    {
      std::vector<std::jthread> workers;
      for (int rank = 0; rank < 3; ++rank) {
        workers.emplace_back([&, rank] {
          results[rank] = TrainRank(cluster, rank, kSteps, false, [&](uint64_t) { has_begun = true; });
        });
      }
      const TimePoint deadline = Now() + std::chrono::seconds(20);
      while (!has_begun && Now() < deadline) std::this_thread::yield();
      EXPECT_TRUE(!replicated || cluster.AwaitBackups());
      std::this_thread::sleep_for(std::chrono::microseconds(random.NextBelow(8000)));
      cluster.StartServer(static_cast<int>(random.NextBelow(2)));
    }
    for (const auto& result : results) {
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(*result, expected);
    }
  }
}

}  // namespace
}  // namespace muster
