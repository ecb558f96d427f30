// Whole trainings over real servers, in every mode, with workers that are late, lost and replaced.
#include <absl/cleanup/cleanup.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <map>
#include <thread>

#include "kernels/layout_optimizer.h"
#include "ps/row_partition.h"
#include "tests/support/ps_cluster.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

// What TrainAll has to end with for three workers, computed one after the other.
std::vector<float> TrainInOneProcess(std::span<const OptimizerConfig> optimizers, RowEviction eviction,
                                     uint64_t steps) {
  const ParameterLayout layout = TestLayout();
  std::vector<float> expected(layout.size());
  layout.Initialize(7, {0, layout.size()}, expected);
  auto optimizer = LayoutOptimizer::Create(layout, {0, layout.size()}, optimizers);
  auto tables = MakeTables(kTables, optimizers, kSeed, eviction);
  const auto read = [&](const RowIndex& rows) {
    std::vector<float> values(rows.size());
    for (const int t : {0, 1}) {
      (*tables)[t].Read(rows.ids(t), std::span(values).subspan(rows.range(t).begin, rows.range(t).size()));
    }
    return values;
  };
  for (uint64_t step = 0; step < steps; ++step) {
    std::vector<float> sum(layout.size());
    std::map<int64_t, std::vector<float>> row_sums[2];
    for (const int rank : {0, 1, 2}) {
      const RowIndex rows = RowsOf(step, rank);
      const std::vector<float> gradient = GradientOf(layout, step, rank, read(rows));
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
      for (const int t : {0, 1}) {
        const int64_t width = kTables[t].width;
        const float* row = gradient.data() + layout.size() + rows.range(t).begin;
        for (const int64_t id : rows.ids(t)) {
          std::vector<float>& row_sum = row_sums[t][id];
          row_sum.resize(width);
          for (int64_t i = 0; i < width; ++i) row_sum[i] += *row++;
        }
      }
    }
    const float scale = 1.0f / (10 + 11 + 12);
    optimizer->Apply(expected, sum, scale, expected);
    for (const int t : {0, 1}) {
      std::vector<int64_t> ids;
      std::vector<float> sums;
      for (const auto& [id, row_sum] : row_sums[t]) {
        ids.push_back(id);
        sums.insert(sums.end(), row_sum.begin(), row_sum.end());
      }
      (*tables)[t].Apply(ids, sums, scale);
    }
  }
  const std::vector<float> rows = read(AllRows());
  expected.insert(expected.end(), rows.begin(), rows.end());
  return expected;
}

TEST(ParameterServer, SyncGivesTheBitsOfOneProcessForEveryNumberOfShards) {
  const std::vector<OptimizerConfig> optimizers = {
      {.kind = OptimizerKind::kAdam,
       .learning_rate = 0.01f,
       .schedule = {.kind = ScheduleKind::kCosine, .decay_steps = 15, .warmup_steps = 5}},
      {.kind = OptimizerKind::kMomentum, .learning_rate = 0.1f, .weight_decay = 0.01f, .nesterov = true}};
  const uint64_t steps = 20;
  std::vector<std::vector<float>> results;
  for (const RowEviction eviction : {RowEviction{}, RowEviction{.every = 1, .after = 1}}) {
    const std::vector<float>& expected = results.emplace_back(TrainInOneProcess(optimizers, eviction, steps));
    for (const int shards : {1, 2, 5, 20}) {  // 20: more than there are blocks
      const UpdateConfig update{.rule = {.mode = UpdateMode::kSync}, .eviction = eviction};
      Cluster cluster(shards, 3, update, optimizers);
      const std::vector<float> parameters = TrainAll(cluster, steps);
      ASSERT_EQ(parameters.size(), expected.size());
      EXPECT_EQ(std::memcmp(parameters.data(), expected.data(), expected.size() * sizeof(float)), 0)
          << shards;
    }
  }
  EXPECT_NE(results[0], results[1]);
}

TEST(ParameterServer, AsyncAppliesEveryPushOnce) {
  const OptimizerConfig sgd{.kind = OptimizerKind::kSgd, .learning_rate = 1.0f};
  Cluster cluster(2, 3, UpdateMode::kAsync, {sgd, sgd});
  std::vector<float> initial(cluster.layout.size()), final(cluster.layout.size());
  ParameterServerClient watcher(cluster.ClientOptions(0));
  ASSERT_TRUE(watcher.Join(initial).ok());
  constexpr int kPushes = 50;
  {
    std::vector<std::jthread> threads;
    for (const int rank : {1, 2}) {
      threads.emplace_back([&, rank] {
        ParameterServerClient client(cluster.ClientOptions(rank));
        std::vector<float> parameters(cluster.layout.size());
        ASSERT_TRUE(client.Join(parameters).ok());
        const std::vector<float> ones(cluster.layout.size(), 1.0f);
        for (int i = 0; i < kPushes; ++i) ASSERT_TRUE(Push(client, ones, parameters).ok());
        ASSERT_TRUE(client.Finish().ok());
      });
    }
  }
  const auto summary = watcher.AwaitOthers(final);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->step(), 2u * kPushes);
  EXPECT_EQ(summary->pushes().applied(), 2u * kPushes);
  EXPECT_EQ(summary->pushes().received(), 2u * kPushes);
  // Each push takes exactly 1 from each parameter; the sums of such small numbers are off by their rounding
  // only.
  for (const LayoutTensor& tensor : cluster.layout.tensors()) {
    for (int64_t i = tensor.offset; i < tensor.offset + tensor.size; ++i) {
      ASSERT_NEAR(final[i], initial[i] - 2 * kPushes, 1e-3) << i;
    }
  }
}

// Rank 0 contributes to a step at one shard and dies.
void DieBetweenTwoShards(const Cluster& cluster) {
  auto connection = ShardConnection::Connect(cluster.spec.ps[0], {Role::kPs, 0}, std::nullopt,
                                             Transport::kTcp, Now() + std::chrono::seconds(20));
  ASSERT_TRUE(connection.ok());
  ps::ClientHeader join;
  join.set_version(kWireVersion);
  *join.mutable_join()->mutable_config() = cluster.ClientOptions(0).config;
  join.mutable_join()->set_worker_uuid("dies");
  join.mutable_join()->set_shard_count(2);
  (*connection)->Send(join, {});
  ASSERT_TRUE((*connection)->Receive(Now() + std::chrono::seconds(20))->header.has_join());
  // What TrainRank pushes at that step.
  const RowIndex rows = RowsOf(0, 0);
  std::vector<float> row_values(rows.size());
  for (const int t : {0, 1}) {
    ParameterTable(kTables[t], t, {}, kSeed)
        .Read(rows.ids(t), std::span(row_values).subspan(rows.range(t).begin, rows.range(t).size()));
  }
  const std::vector<float> gradient = GradientOf(cluster.layout, 0, 0, row_values);
  const LayoutRange range = cluster.layout.Shard(0, 2);
  RowPartition partition(2);
  partition.Build(rows);
  std::vector<float> row_gradients(partition.size(0));
  partition.Gather(0, std::span(gradient).subspan(cluster.layout.size()), row_gradients);
  ps::ClientHeader push;
  push.set_version(kWireVersion);
  push.set_request(1);
  push.mutable_push()->set_sequence(1);
  push.mutable_push()->set_samples(10);
  *push.mutable_push()->mutable_rows() = partition.rows(0);
  (*connection)
      ->Send(push, {BorrowFloats(std::span(gradient).subspan(range.begin, range.size())),
                    BorrowFloats(row_gradients)});
  // Frames of a stream are taken in order: when this one has its answer, the push is held.
  ps::ClientHeader heartbeat;
  heartbeat.set_version(kWireVersion);
  heartbeat.mutable_heartbeat()->set_awaiting(1);
  (*connection)->Send(heartbeat, {});
  const auto reply = (*connection)->Receive(Now() + std::chrono::seconds(20));
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_TRUE(reply->header.has_heartbeat());
  ASSERT_FALSE(reply->header.heartbeat().unknown());
}

TEST(ParameterServer, AReplacementWorkerGoesOnWhereTheOldOneDiedBetweenTwoShards) {
  const uint64_t steps = 6;
  Cluster undisturbed(2, 2, UpdateMode::kSync);
  const std::vector<float> expected = TrainAll(undisturbed, steps);

  Cluster cluster(2, 2, UpdateMode::kSync);
  absl::StatusOr<std::vector<float>> other;
  std::jthread rank1([&] { other = TrainRank(cluster, 1, steps); });
  DieBetweenTwoShards(cluster);
  if (HasFatalFailure()) return;
  const auto replacement = TrainRank(cluster, 0, steps);
  ASSERT_TRUE(replacement.ok()) << replacement.status();
  rank1.join();
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(*replacement, expected) << "no rollback, the same bits";
  EXPECT_EQ(*other, expected);
}

// A job that is to make fewer steps than it has made already, after one of its workers had contributed to the
// next one: who waits for the others has no part of that, and the step is made without.
TEST(ParameterServer, AStepIsMadeWithoutWhoOnlyWaitsForTheOthers) {
  for (const UpdateMode mode : {UpdateMode::kSync, UpdateMode::kBounded}) {
    Cluster cluster(1, 2, mode);
    {
      RawWorker killed(cluster, "killed", 0, /*rank=*/1);
      ASSERT_TRUE(killed.Receive().has_join());
      killed.Push(1, 0, std::vector<float>(cluster.layout.size(), 1.0f));
      ps::ClientHeader heartbeat = killed.Header();
      heartbeat.mutable_heartbeat()->set_awaiting(2);
      killed.connection->Send(heartbeat, {});
      ASSERT_FALSE(killed.Receive().heartbeat().unknown()) << "the push is there";
    }
    absl::StatusOr<std::vector<float>> chief;
    std::jthread rank0([&] { chief = TrainRank(cluster, 0, 0, /*await_others=*/true); });
    const auto other = TrainRank(cluster, 1, 0);
    rank0.join();
    ASSERT_TRUE(other.ok()) << other.status();
    ASSERT_TRUE(chief.ok()) << chief.status();
    EXPECT_EQ(*chief, *other);
  }
}

TEST(ParameterServer, BoundedByZeroGivesTheBitsOfSync) {
  Cluster sync(2, 3, UpdateMode::kSync);
  Cluster bounded(2, 3, UpdateMode::kBounded);
  EXPECT_EQ(TrainAll(bounded, 12), TrainAll(sync, 12));
}

TEST(ParameterServer, ABoundedWorkerRunsAheadByTheBound) {
  Cluster cluster(2, 2, UpdateConfig{.rule = {.mode = UpdateMode::kBounded, .staleness = 2}});
  std::vector<float> parameters(cluster.layout.size());
  const std::vector<float> initial = [&] {
    std::vector<float> values(cluster.layout.size());
    cluster.layout.Initialize(kSeed, {0, cluster.layout.size()}, values);
    return values;
  }();
  auto ahead = std::make_unique<ParameterServerClient>(cluster.ClientOptions(0));
  ASSERT_TRUE(ahead->Join(parameters).ok());
  const std::vector<float> gradient(cluster.layout.size(), 1.0f);
  for (uint64_t step = 0; step < 2; ++step) {
    const auto result = Push(*ahead, gradient, parameters);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->outcome, PushOutcome::kHeld);
    EXPECT_EQ(result->step, step + 1);
    EXPECT_EQ(parameters, initial) << "no step is made without the other worker";
  }
  auto third = std::async(std::launch::async, [&] { return Push(*ahead, gradient, parameters); });
  // It waits for step 1, and so for this one.
  auto behind = std::make_unique<ParameterServerClient>(cluster.ClientOptions(1));
  std::vector<float> others(cluster.layout.size());
  ASSERT_TRUE(behind->Join(others).ok());
  ASSERT_EQ(third.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  for (uint64_t step = 0; step < 3; ++step) {
    const auto result = Push(*behind, gradient, others);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->step, step + 1);
  }
  const auto result = third.get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->step, 3u);
  ASSERT_TRUE(ahead->Finish().ok());
  const auto summary = behind->AwaitOthers(others);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->step(), 3u);
  EXPECT_EQ(summary->pushes().applied(), 6u);
  EXPECT_EQ(summary->pushes().received(), 6u);
  ASSERT_TRUE(behind->Finish().ok());
  ahead = nullptr;
  behind = nullptr;
  for (const int server : {0, 1}) EXPECT_TRUE(cluster.AwaitEnd(server).ok());
}

TEST(ParameterServer, AllBoundedWorkersEndWithTheSameParameters) {
  Cluster cluster(3, 4, UpdateConfig{.rule = {.mode = UpdateMode::kBounded, .staleness = 3}});
  std::vector<absl::StatusOr<std::vector<float>>> results(4);
  {
    std::vector<std::jthread> threads;
    for (int rank = 1; rank < 4; ++rank) {
      threads.emplace_back([&, rank] { results[rank] = TrainRank(cluster, rank, 30); });
    }
    results[0] = TrainRank(cluster, 0, 30, /*await_others=*/true);
  }
  for (const auto& result : results) ASSERT_TRUE(result.ok()) << result.status();
  for (const int server : {0, 1, 2}) EXPECT_TRUE(cluster.AwaitEnd(server).ok());
}

TEST(ParameterServer, ABackupWorkerThatIsLateIsToldWhereTheOthersAre) {
  const uint64_t steps = 5;
  Cluster cluster(2, 3, UpdateConfig{.rule = {.mode = UpdateMode::kSync}, .aggregate = 2});
  std::vector<float> parameters(cluster.layout.size());
  auto late = std::make_unique<ParameterServerClient>(cluster.ClientOptions(2));
  ASSERT_TRUE(late->Join(parameters).ok());
  absl::StatusOr<std::vector<float>> results[2];
  {
    std::jthread rank1([&] { results[1] = TrainRank(cluster, 1, steps); });
    results[0] = TrainRank(cluster, 0, steps);
  }
  for (const auto& result : results) ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(*results[0], *results[1]);
  const auto result = Push(*late, std::vector<float>(cluster.layout.size(), 1.0f), parameters);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->outcome, PushOutcome::kStale);
  EXPECT_EQ(result->step, steps);
  EXPECT_TRUE(std::equal(parameters.begin(), parameters.end(), results[0]->begin()));
  ASSERT_TRUE(late->Finish().ok());
  late = nullptr;
  for (const int server : {0, 1}) EXPECT_TRUE(cluster.AwaitEnd(server).ok());
}

TEST(ParameterServer, WithBackupsEveryStepHasTheNumberOfGradients) {
  const uint64_t steps = 30;
  Cluster cluster(2, 4, UpdateConfig{.rule = {.mode = UpdateMode::kSync}, .aggregate = 3});
  std::vector<absl::StatusOr<std::vector<float>>> results(4);
  std::jthread others[3];
  for (int rank = 1; rank < 4; ++rank) {
    others[rank - 1] = std::jthread([&, rank] { results[rank] = TrainRank(cluster, rank, steps); });
  }
  ParameterServerClient chief(cluster.ClientOptions(0));
  std::vector<float> parameters(cluster.layout.size());
  auto joined = chief.Join(parameters);
  ASSERT_TRUE(joined.ok()) << joined.status();
  for (uint64_t step = joined->step; step < steps;) {
    const auto result = Push(chief, std::vector<float>(cluster.layout.size(), 1.0f), parameters);
    ASSERT_TRUE(result.ok()) << result.status();
    step = result->step;
  }
  const auto summary = chief.AwaitOthers(parameters);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->step(), steps);
  EXPECT_EQ(summary->pushes().applied(), 3 * steps);
  EXPECT_EQ(summary->pushes().received(), summary->pushes().applied() + summary->pushes().stale());
  EXPECT_TRUE(chief.Finish().ok());
  for (std::jthread& thread : others) thread.join();
  for (int rank = 1; rank < 4; ++rank) ASSERT_TRUE(results[rank].ok()) << results[rank].status();
}

// Whose part of each batch nobody else makes.
TEST(ParameterServer, AMissingWorkerIsNotWaitedForForEver) {
  Cluster cluster(1, 2, UpdateMode::kBounded);
  cluster.StartServer(0, std::chrono::milliseconds(1500));
  auto client = std::make_unique<ParameterServerClient>(cluster.ClientOptions(0));
  std::vector<float> parameters(cluster.layout.size());
  ASSERT_TRUE(client->Join(parameters).ok());
  const auto result = Push(*client, std::vector<float>(cluster.layout.size()), parameters);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->step, 1u);
  const auto summary = client->AwaitOthers(parameters);
  ASSERT_TRUE(summary.ok()) << summary.status();
  ASSERT_TRUE(client->Finish().ok());
  client = nullptr;
  const absl::Status status = cluster.AwaitEnd(0);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded)
      << "one of the job's workers never did anything";
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker:1"));
}

TEST(ParameterServer, AsyncDropsWhatIsTooStale) {
  Cluster cluster(1, 2, UpdateConfig{.rule = {.mode = UpdateMode::kAsync, .max_staleness = 1}});
  std::vector<float> parameters(cluster.layout.size());
  ParameterServerClient slow(cluster.ClientOptions(0)), fast(cluster.ClientOptions(1));
  ASSERT_TRUE(slow.Join(parameters).ok());
  ASSERT_TRUE(fast.Join(parameters).ok());
  const std::vector<float> gradient(cluster.layout.size(), 1.0f);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Push(fast, gradient, parameters).ok());
  const std::vector<float> after = parameters;
  const auto dropped = Push(slow, gradient, parameters);
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_EQ(dropped->outcome, PushOutcome::kStale);
  EXPECT_EQ(parameters, after);
  EXPECT_EQ(Push(slow, gradient, parameters)->outcome, PushOutcome::kApplied);
}

TEST(ParameterServer, AsyncScalesTheRateOfWhatIsStale) {
  const OptimizerConfig sgd{.kind = OptimizerKind::kSgd, .learning_rate = 1.0f};
  Cluster cluster(1, 2, UpdateConfig{.rule = {.mode = UpdateMode::kAsync, .scale_rate = true}}, {sgd, sgd});
  std::vector<float> parameters(cluster.layout.size());
  ParameterServerClient slow(cluster.ClientOptions(0)), fast(cluster.ClientOptions(1));
  ASSERT_TRUE(slow.Join(parameters).ok());
  ASSERT_TRUE(fast.Join(parameters).ok());
  const float begin = parameters[0];
  const std::vector<float> gradient(cluster.layout.size(), 1.0f);
  ASSERT_TRUE(Push(fast, gradient, parameters).ok());
  EXPECT_FLOAT_EQ(parameters[0], begin - 1.0f);
  ASSERT_TRUE(Push(slow, gradient, parameters).ok());
  EXPECT_FLOAT_EQ(parameters[0], begin - 1.5f);
}

// Of two that ask the second one waits until the first has sent, or is gone, and hears whom for.
TEST(AsyncUpdates, LargePushesTakeTurns) {
  Cluster cluster(1, 2, UpdateMode::kAsync, kPlainSgd);
  cluster.push_budget_bytes = 300;
  cluster.StartServer(0);
  const std::vector<float> gradient(cluster.layout.size(), 1.0f);
  RawWorker second(cluster, "second", 1, /*rank=*/1);
  ASSERT_EQ(second.Receive().join().ask_above(), 300u);
  const auto ask = [&](RawWorker& worker) {
    ps::ClientHeader header = worker.Header();
    header.mutable_ask()->set_bytes(gradient.size() * sizeof(float));
    worker.connection->Send(header, {});
  };
  const auto beat = [](RawWorker& worker, bool asking) {
    ps::ClientHeader header;
    header.set_version(kWireVersion);
    header.mutable_heartbeat()->set_awaiting(worker.request);
    header.mutable_heartbeat()->set_asking(asking);
    worker.connection->Send(header, {});
    return worker.Receive();
  };
  {
    RawWorker first(cluster, "first", 1);
    ASSERT_TRUE(first.Receive().has_join());
    ask(first);
    ASSERT_TRUE(first.Receive().has_go_ahead());
    EXPECT_TRUE(beat(first, /*asking=*/true).has_go_ahead()) << "the first may have been lost";
    ask(second);
    const ps::ServerHeader waits = beat(second, /*asking=*/true);
    EXPECT_FALSE(waits.heartbeat().unknown());
    EXPECT_EQ(waits.heartbeat().waits_for(), "worker:0 may send first");
    EXPECT_TRUE(beat(second, /*asking=*/false).heartbeat().unknown()) << "it was never sent";
    EXPECT_TRUE(beat(first, /*asking=*/false).heartbeat().unknown());
    first.Push(1, 0, gradient);
    EXPECT_EQ(first.Receive().push().step(), 1u);
    EXPECT_TRUE(second.Receive().has_go_ahead());
    ask(first);
    EXPECT_FALSE(beat(first, /*asking=*/true).heartbeat().unknown());
    second.Push(1, 0, gradient);
    EXPECT_EQ(second.Receive().push().step(), 2u);
    ASSERT_TRUE(first.Receive().has_go_ahead());
    ask(second);
  }
  EXPECT_TRUE(second.Receive().has_go_ahead()) << "the first is gone";
}

// Questions and answers get lost as well, on the way to one server or to the two of a shard.
class TurnsOverABadNetwork : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(AsyncUpdates, TurnsOverABadNetwork, testing::Bool());

TEST_P(TurnsOverABadNetwork, LoseNothing) {
  Cluster cluster(2, 3, UpdateMode::kAsync, kPlainSgd);
  cluster.push_budget_bytes = 300;
  cluster.replicated = GetParam();
  cluster.StartAgain();
  ShardConnection::InjectFaults(FrameFaultOptions{
      .lost = 0.05, .doubled = 0.1, .late = 0.1, .latest = std::chrono::milliseconds(20), .seed = 9});
  const absl::Cleanup heal = [] { ShardConnection::InjectFaults(std::nullopt); };
  PushOnesFromAll(cluster, 40);
}

TEST(AsyncUpdates, WhatFitsAtOnceIsNotAskedFor) {
  Cluster cluster(1, 2, UpdateMode::kAsync, kPlainSgd);
  RawWorker worker(cluster, "process", 1);
  EXPECT_EQ(worker.Receive().join().ask_above(), 0u);
  Cluster sync(1, 2, UpdateMode::kSync, kPlainSgd);
  sync.push_budget_bytes = 300;
  sync.StartServer(0);
  RawWorker of_sync(sync, "process", 1);
  EXPECT_EQ(of_sync.Receive().join().ask_above(), 0u) << "a step needs all of them";
}

}  // namespace
}  // namespace muster
