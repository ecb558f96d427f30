#include "trainer/allreduce_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "tests/support/free_port.h"
#include "tests/support/replica_elsewhere.h"

namespace muster {
namespace {

using testing::HasSubstr;

class AllReduceExchangeTest : public testing::Test {
 protected:
  AllReduceExchangeTest() : layout_(*ParameterLayout::Create({{.name = "w", .shape = {40}}})) {}

  // A gradient comes as a backward pass makes it: from its end, a block at a time.
  static void Say(GradientExchange& exchange, std::span<float> gradient) {
    for (auto begin = static_cast<int64_t>(gradient.size()); begin > 0; begin -= kBlockFloats) {
      exchange.GradientReady(begin - kBlockFloats);
    }
  }

  // `body` for each worker, on a thread of its own. Those that have a replica elsewhere are given it.
  void OnAllWorkers(int workers,
                    const std::function<void(int, absl::StatusOr<std::unique_ptr<GradientExchange>>)>& body) {
    ClusterSpec cluster;
    for (int i = 0; i < workers; ++i) cluster.workers.push_back(FreeAddress());
    std::vector<std::jthread> threads;
    for (int i = 0; i < workers; ++i) {
      threads.emplace_back([&, i] {
        body(i, MakeAllReduceExchange(layout_, optimizers_, 1,
                                      {.cluster = cluster,
                                       .task = {Role::kWorker, i},
                                       .replica = replicas_[i].get(),
                                       .fingerprint = static_cast<uint64_t>(7 + fingerprint_step_ * i),
                                       .bucket_floats = bucket_floats_,
                                       .connect_timeout = std::chrono::seconds(20),
                                       .operation_timeout = std::chrono::seconds(20)}));
      });
    }
  }

  const ParameterLayout layout_;
  const std::vector<OptimizerConfig> optimizers_ = {{.kind = OptimizerKind::kSgd, .learning_rate = 1}};
  const RowIndex no_rows_;
  std::unique_ptr<ReplicaElsewhere> replicas_[4];  // by worker; null: with the host
  int fingerprint_step_ = 0;
  std::optional<int64_t> bucket_floats_;
};

TEST_F(AllReduceExchangeTest, TheUpdateIsTheMeanOverAllSamples) {
  OnAllWorkers(3, [&](int worker, auto exchange) {
    std::vector<float> parameters(layout_.size(), -1);
    ASSERT_TRUE(exchange.ok()) << exchange.status();
    ASSERT_TRUE((*exchange)->Start(parameters).ok());
    const std::span<float> gradient = (*exchange)->MakeGradientBuffer(layout_.size());
    for (uint64_t step = 1; step <= 3; ++step) {
      std::fill(gradient.begin(), gradient.begin() + 40, static_cast<float>(worker));
      const auto result = (*exchange)->Exchange({.samples = static_cast<uint64_t>(2 * worker),
                                                 .loss_sum = 10.0 * worker,
                                                 .gradient = gradient,
                                                 .rows = no_rows_},
                                                parameters, no_rows_, {});
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->step, step);
      EXPECT_EQ(result->samples, 6u);
      EXPECT_EQ(result->mean_loss, 5);
      EXPECT_EQ(parameters[39], -0.5f * static_cast<float>(step));
      EXPECT_EQ(parameters[40], 0) << "padding";
    }
    const auto summary = (*exchange)->AwaitOthers(parameters);
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_EQ(summary->step, 3u);
    EXPECT_EQ((*exchange)->Finish(), absl::OkStatus());
  });
}

TEST_F(AllReduceExchangeTest, InBucketsTheUpdateIsTheSame) {
  bucket_floats_ = kBlockFloats;
  OnAllWorkers(3, [&](int worker, auto exchange) {
    std::vector<float> parameters(layout_.size());
    ASSERT_TRUE((*exchange)->Start(parameters).ok());
    const std::span<float> gradient = (*exchange)->MakeGradientBuffer(layout_.size());
    for (uint64_t step = 1; step <= 20; ++step) {
      for (size_t i = 0; i < 40; ++i) gradient[i] = static_cast<float>(worker * 100 + i + step);
      if (step % 2 == 1) Say(**exchange, gradient);  // and without a word before the end
      const std::vector<float> before = parameters;
      const auto result = (*exchange)->Exchange(
          {.samples = 1, .loss_sum = 1.0 * worker, .gradient = gradient, .rows = no_rows_}, parameters,
          no_rows_, {});
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->samples, 3u);
      EXPECT_EQ(result->mean_loss, 1);
      for (size_t i = 0; i < 40; ++i) {
        ASSERT_FLOAT_EQ(parameters[i], before[i] - static_cast<float>(100 + i + step)) << i;
      }
    }
    EXPECT_EQ((*exchange)->Finish(), absl::OkStatus());
  });
}

TEST_F(AllReduceExchangeTest, WhereTheParametersLieChangesNothing) {
  bucket_floats_ = kBlockFloats;
  for (const int i : {0, 2}) replicas_[i] = std::make_unique<ReplicaElsewhere>(layout_, optimizers_);
  OnAllWorkers(3, [&](int worker, auto exchange) {
    std::vector<float> parameters(layout_.size());
    ASSERT_TRUE((*exchange)->Start(parameters).ok());
    const std::span<float> buffer = (*exchange)->MakeGradientBuffer(layout_.size());
    std::vector<float> expected = parameters;
    for (uint64_t step = 1; step <= 20; ++step) {
      const std::span<float> gradient = replicas_[worker] != nullptr ? replicas_[worker]->gradient() : buffer;
      for (size_t i = 0; i < 40; ++i) {
        gradient[i] = static_cast<float>(worker * 100 + i + step);
        expected[i] -= static_cast<float>(100 + i + step);
      }
      if (step % 2 == 1) Say(**exchange, gradient);  // and without a word before the end
      const auto result = (*exchange)->Exchange(
          {.samples = 1, .loss_sum = 1.0 * worker, .gradient = buffer, .rows = no_rows_}, parameters,
          no_rows_, {});
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->samples, 3u);
      EXPECT_EQ(result->mean_loss, 1);
    }
    ASSERT_TRUE((*exchange)->AwaitOthers(parameters).ok());
    EXPECT_EQ(parameters, expected);
    EXPECT_EQ((*exchange)->Finish(), absl::OkStatus());
  });
}

TEST_F(AllReduceExchangeTest, WhatIsNotFiniteElsewhereIsThereForItsOwnerToSayWhere) {
  replicas_[1] = std::make_unique<ReplicaElsewhere>(layout_, optimizers_);
  OnAllWorkers(2, [&](int worker, auto exchange) {
    std::vector<float> parameters(layout_.size());
    absl::Status status = (*exchange)->Start(parameters).status();  // the other may be further
    const std::span<float> buffer = (*exchange)->MakeGradientBuffer(layout_.size());
    if (worker == 1) replicas_[1]->gradient()[20] = NAN;
    if (status.ok()) {
      status = (*exchange)
                   ->Exchange({.samples = 1, .loss_sum = 1, .gradient = buffer, .rows = no_rows_}, parameters,
                              no_rows_, {})
                   .status();
    }
    EXPECT_TRUE(worker == 1 ? absl::IsInvalidArgument(status) : absl::IsFailedPrecondition(status)) << status;
    EXPECT_EQ(std::isnan(buffer[20]), worker == 1);
    if (worker == 0) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("worker:1: "));
    }
  });
}

TEST_F(AllReduceExchangeTest, ABucketThatIsNotFiniteIsNotSent) {
  bucket_floats_ = kBlockFloats;
  for (const size_t place : {0, 20, 39}) {
    OnAllWorkers(2, [&](int worker, auto exchange) {
      std::vector<float> parameters(layout_.size());
      absl::Status status = (*exchange)->Start(parameters).status();  // the other may be further
      const std::vector<float> before = parameters;
      const std::span<float> gradient = (*exchange)->MakeGradientBuffer(layout_.size());
      if (worker == 1) gradient[place] = INFINITY;
      if (status.ok()) {
        Say(**exchange, gradient);
        status = (*exchange)
                     ->Exchange({.samples = 1, .loss_sum = 1, .gradient = gradient, .rows = no_rows_},
                                parameters, no_rows_, {})
                     .status();
      }
      EXPECT_EQ(parameters, before);
      EXPECT_EQ(std::isinf(gradient[place]), worker == 1);
      EXPECT_TRUE(worker == 1 ? absl::IsInvalidArgument(status) : absl::IsFailedPrecondition(status))
          << status;
      if (worker == 0) {
        EXPECT_THAT(std::string(status.message()), HasSubstr("worker:1: "));
      }
    });
  }
}

TEST_F(AllReduceExchangeTest, WhoseGradientOrLossIsNotFiniteIsNamedByAll) {
  for (const bool is_loss : {false, true}) {
    OnAllWorkers(4, [&](int worker, auto exchange) {
      std::vector<float> parameters(layout_.size());
      const std::span<float> gradient = (*exchange)->MakeGradientBuffer(layout_.size());
      absl::Status status = (*exchange)->Start(parameters).status();  // the others may be further
      const std::vector<float> before = parameters;
      if (worker == 2 && !is_loss) gradient[3] = NAN;
      const double loss = worker == 2 && is_loss ? INFINITY : 1;
      if (status.ok()) {
        status = (*exchange)
                     ->Exchange({.samples = 1, .loss_sum = loss, .gradient = gradient, .rows = no_rows_},
                                parameters, no_rows_, {})
                     .status();
      }
      EXPECT_EQ(parameters, before);
      if (worker == 2) {
        EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
        EXPECT_EQ(std::isnan(gradient[3]), !is_loss) << "it stays as it was";
      } else {
        EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr("worker:2: "));
      }
    });
  }
}

TEST_F(AllReduceExchangeTest, WorkersWithOtherBitsAreFound) {
  OnAllWorkers(2, [&](int worker, auto exchange) {
    std::vector<float> parameters(layout_.size());
    ASSERT_TRUE((*exchange)->Start(parameters).ok());
    if (worker == 1) parameters[0] = 1;  // as if it had computed something else
    const absl::Status status =
        worker == 0 ? (*exchange)->AwaitOthers(parameters).status() : (*exchange)->Finish();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(worker == 0 ? "worker:1" : "worker:0"));
  });
}

TEST_F(AllReduceExchangeTest, AnotherJobIsRefused) {
  fingerprint_step_ = 1;
  OnAllWorkers(2, [&](int, auto exchange) {
    std::vector<float> parameters(layout_.size());
    const absl::Status status = (*exchange)->Start(parameters).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("0000000000000007"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("0000000000000008"));
  });
}

TEST_F(AllReduceExchangeTest, APortThatIsTakenIsSaid) {
  const std::string address = FreeAddress();
  const AllReduceOptions options{.cluster = {.workers = {address}}, .task = {Role::kWorker, 0}};
  const std::vector<OptimizerConfig> optimizers(1);
  const auto first = MakeAllReduceExchange(layout_, optimizers, 1, options);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status second = MakeAllReduceExchange(layout_, optimizers, 1, options).status();
  EXPECT_TRUE(absl::IsAlreadyExists(second)) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr(address));
}

}  // namespace
}  // namespace muster
