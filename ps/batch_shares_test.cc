// Synchronous workers come and go: whoever is there shares each batch, and the result is that of one worker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>

#include "tests/support/ps_cluster.h"

namespace muster {
namespace {

constexpr int kSamples = 12;  // of each batch; one for each worker at least

// What a sample of a step adds to all parameters, if one batch has the mean of it: a whole number, so that
// sums are exact however they are made.
int ValueOf(uint64_t step, int sample) { return static_cast<int>((step * 7 + sample * 3) % 5); }

float SumOf(uint64_t steps) {
  int sum = 0;
  for (uint64_t step = 0; step < steps; ++step) {
    for (int sample = 0; sample < kSamples; ++sample) sum += ValueOf(step, sample);
  }
  return static_cast<float>(sum);
}

/// A worker that has joined, and what it knows.
struct Worker {
  explicit Worker(const Cluster& cluster, int rank)
      : client(cluster.ClientOptions(rank)), parameters(cluster.layout.size()) {}

  absl::Status Join() {
    auto result = client.Join(parameters);
    while (IsGoneBack(result.status())) result = client.Join(parameters);
    if (result.ok()) joined = *result;
    return result.status();
  }

  /// Its part of the next step, or a join where that is asked for.
  absl::Status Step() {
    float sum = 0;
    uint64_t samples = 0;
    for (int sample = joined.share_place; sample < kSamples; sample += joined.share_count, ++samples) {
      sum -= static_cast<float>(kSamples * ValueOf(joined.step, sample));
    }
    const std::vector<float> gradient(parameters.size(), sum);
    const RowIndex rows = NoRows();
    const auto result =
        client.PushPull({.samples = samples, .gradient = gradient, .rows = rows}, parameters, rows, {});
    if (IsGoneBack(result.status())) return Join();
    MUSTER_RETURN_IF_ERROR(result.status());
    joined.step = result->step;
    return absl::OkStatus();
  }

  /// DeadlineExceeded: that takes too long.
  absl::Status StepUntilSharedBy(int count) {
    for (const TimePoint deadline = Now() + std::chrono::minutes(1); joined.share_count != count;) {
      MUSTER_RETURN_IF_ERROR(Step());
      if (Now() >= deadline) return DeadlineExceeded("the batches are shared by %d", joined.share_count);
    }
    return absl::OkStatus();
  }

  /// From the join to the end, which may come to be known meanwhile.
  absl::Status Train(const std::atomic<uint64_t>& steps) {
    absl::Status status = Join();
    while (status.ok()) {
      while (status.ok() && joined.step < steps) status = Step();
      if (status.ok()) status = client.AwaitOthers(parameters).status();
      if (status.ok()) status = client.Finish();
      if (!IsGoneBack(status)) break;
      status = Join();
    }
    return status;
  }

  ParameterServerClient client;
  std::vector<float> parameters;
  JoinResult joined;
};

TEST(BatchShares, AreThoseOfWhoIsThere) {
  Cluster cluster(2, 2, UpdateMode::kSync, kPlainSgd);
  cluster.LetWorkersComeAndGo();
  std::atomic<int> left = 0;
  std::vector<std::jthread> others;
  const auto start = [&](int rank) {
    others.emplace_back([&, rank] {
      Worker worker(cluster, rank);
      const absl::Status end = worker.Train(std::atomic<uint64_t>(UINT64_MAX));
      EXPECT_THAT(std::string(end.message()), testing::HasSubstr(kHasLeft));
      ++left;
    });
  };
  start(1);
  Worker first(cluster, 0);
  ASSERT_TRUE(first.Join().ok());
  EXPECT_EQ(first.joined.share_count, 2);
  const auto train_until_shared_by = [&](int count) {
    ASSERT_EQ(first.StepUntilSharedBy(count), absl::OkStatus());
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(first.Step().ok());
  };
  cluster.SetWorkers(4);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(first.Step().ok()) << "nobody waits for who has not come";
  start(3);
  train_until_shared_by(3);
  EXPECT_EQ(first.joined.share_place, 0);
  start(2);
  train_until_shared_by(4);
  cluster.SetWorkers(2);
  train_until_shared_by(2);
  EXPECT_TRUE(Eventually([&] { return left == 2; }));
  cluster.SetWorkers(1);
  train_until_shared_by(1);
  ASSERT_TRUE(first.client.AwaitOthers(first.parameters).ok());
  EXPECT_EQ(BiasesOf(cluster.layout, first.parameters), std::vector<float>(5, SumOf(first.joined.step)));
  ASSERT_TRUE(first.client.Finish().ok());
  for (const int server : {0, 1}) EXPECT_EQ(cluster.AwaitEnd(server), absl::OkStatus());
}

TEST(BatchShares, OfALostWorkerGoToTheOthersAndBackToIt) {
  Cluster cluster(2, 2, UpdateMode::kSync, kPlainSgd);
  cluster.worker_lease = std::chrono::seconds(1);
  cluster.LetWorkersComeAndGo();
  Worker first(cluster, 0);
  auto second = std::make_unique<Worker>(cluster, 1);
  std::jthread joins([&] { EXPECT_TRUE(second->Join().ok()); });
  ASSERT_TRUE(first.Join().ok());
  joins.join();
  {
    std::jthread steps([&] { EXPECT_TRUE(second->Step().ok()); });
    ASSERT_TRUE(first.Step().ok());
  }
  second = nullptr;
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(first.Step().ok());
  EXPECT_EQ(first.joined.share_count, 1);
  std::atomic<uint64_t> steps = UINT64_MAX;
  std::jthread again([&] { EXPECT_EQ(Worker(cluster, 1).Train(steps), absl::OkStatus()); });
  ASSERT_EQ(first.StepUntilSharedBy(2), absl::OkStatus());
  steps = first.joined.step + 5;
  while (first.joined.step < steps) ASSERT_TRUE(first.Step().ok());
  ASSERT_TRUE(first.client.AwaitOthers(first.parameters).ok());
  EXPECT_EQ(BiasesOf(cluster.layout, first.parameters), std::vector<float>(5, SumOf(steps)));
  EXPECT_TRUE(first.client.Finish().ok());
}

// Servers that are started again know those as the first that the cluster has then.
TEST(BatchShares, AreAlsoOfWhoComesBeforeTheFirst) {
  Cluster cluster(1, 1, UpdateMode::kSync, kPlainSgd);
  cluster.LetWorkersComeAndGo();
  cluster.SetWorkers(2);
  constexpr uint64_t kSteps = 5;
  std::jthread second(
      [&] { EXPECT_EQ(Worker(cluster, 1).Train(std::atomic<uint64_t>(kSteps)), absl::OkStatus()); });
  ASSERT_TRUE(Eventually([&] { return cluster.servers[0]->metrics().received_bytes > 0; }));
  Worker first(cluster, 0);
  ASSERT_TRUE(Eventually([&] { return first.Join().ok() && first.joined.share_count == 2; }));
  while (first.joined.step < kSteps) ASSERT_TRUE(first.Step().ok());
  ASSERT_TRUE(first.client.AwaitOthers(first.parameters).ok());
  EXPECT_EQ(BiasesOf(cluster.layout, first.parameters), std::vector<float>(5, SumOf(kSteps)));
  EXPECT_TRUE(first.client.Finish().ok());
}

// MUSTER_SIMULATION_SEEDS: how many.
TEST(BatchShares, WorkersThatComeAndGoAndServersThatAreLostAtAnyTimeChangeNothing) {
  const char* const seeds = std::getenv("MUSTER_SIMULATION_SEEDS");
  constexpr uint64_t kSteps = 150;
  for (uint64_t seed = 1; seed <= (seeds != nullptr ? std::stoul(seeds) : 3); ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed, 11);
    Cluster cluster(1 + static_cast<int>(random.NextBelow(3)), 2, UpdateMode::kSync, kPlainSgd);
    cluster.checkpoint_every = 1 + random.NextBelow(20);
    cluster.LetWorkersComeAndGo();
    std::atomic<int> count = 2;
    std::atomic<bool> is_over = false;
    std::vector<std::jthread> others;
    for (int rank = 1; rank < 4; ++rank) {
      others.emplace_back([&, rank] {
        while (!is_over) {
          absl::Status end = absl::AbortedError("");
          if (rank < count) end = Worker(cluster, rank).Train(std::atomic<uint64_t>(kSteps));
          if (end.ok()) return;
          // Servers may not have heard yet that it is back, or the job is over.
          EXPECT_TRUE(absl::IsAborted(end) || absl::IsFailedPrecondition(end) || is_over)
              << rank << ": " << end;
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      });
    }
    std::jthread changes([&](const std::stop_token& stop) {
      for (int i = 0; i < 8; ++i) {
        const TimePoint until = Now() + std::chrono::microseconds(random.NextBelow(60'000));
        while (Now() < until && !stop.stop_requested()) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        if (stop.stop_requested()) return;
        if (random.NextBelow(4) == 0) {
          cluster.StartServer(static_cast<int>(random.NextBelow(cluster.servers.size())));
          continue;
        }
        count = 1 + static_cast<int>(random.NextBelow(4));
        cluster.SetWorkers(count);
      }
    });
    Worker first(cluster, 0);
    EXPECT_EQ(first.Train(std::atomic<uint64_t>(kSteps)), absl::OkStatus());
    is_over = true;
    changes.request_stop();
    changes.join();
    cluster.SetWorkers(1);  // who has just come may have missed the end
    EXPECT_EQ(BiasesOf(cluster.layout, first.parameters), std::vector<float>(5, SumOf(kSteps)));
  }
}

}  // namespace
}  // namespace muster
