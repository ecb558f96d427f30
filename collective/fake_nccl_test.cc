// How a group by NCCL fails and ends, with a made-up NCCL; the suite over all backends runs with it, too.
#include "collective/fake_nccl.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "collective/elastic_group.h"
#include "collective/nccl.h"
#include "tests/support/free_port.h"

namespace muster {
namespace {

using testing::HasSubstr;

class FakeNccl : public testing::Test {
 protected:
  ~FakeNccl() override { FailFakeNccl(0, ncclSuccess); }

  absl::StatusOr<std::unique_ptr<CollectiveBackend>> Meet(int rank,
                                                          Duration timeout = std::chrono::seconds(20)) {
    const auto gpu = MakeNccl(rank);
    return (*gpu)->Meet({.rank = rank,
                         .names = {"worker:0", "worker:1"},
                         .connect_timeout = timeout,
                         .operation_timeout = timeout},
                        id_, interrupts_[rank]);
  }

  void OnBoth(const std::function<void(int)>& body) {
    std::jthread other([&] { body(1); });
    body(0);
  }

  const GpuGroupId id_ = *(*MakeNccl(0))->MakeGroupId();
  Interrupt interrupts_[2];
  std::vector<float> values_ = {1, 2};
};

TEST_F(FakeNccl, GpusAreNamedByTheirPlace) { EXPECT_EQ((*MakeNccl(3))->gpu(), "0000:03:00.0"); }

TEST_F(FakeNccl, WhoDoesNotComeIsNamed) {
  const auto group = Meet(0, std::chrono::milliseconds(100));
  EXPECT_TRUE(absl::IsDeadlineExceeded(group.status())) << group.status();
  EXPECT_THAT(std::string(group.status().message()), HasSubstr("NCCL has waited for 0.1 s for worker:1"));
  EXPECT_EQ(FakeCommunicators(), 0);
}

TEST_F(FakeNccl, AnInterruptEndsTheMeeting) {
  std::jthread sets([&] { interrupts_[0].Set(); });
  EXPECT_TRUE(absl::IsCancelled(Meet(0).status()));
  EXPECT_EQ(FakeCommunicators(), 0);
}

TEST_F(FakeNccl, AnInterruptEndsAnOperation) {
  std::latch have_met(2), has_failed(1);
  OnBoth([&](int rank) {
    const auto group = Meet(rank);
    have_met.arrive_and_wait();
    if (rank == 1) {
      interrupts_[0].Set();
      has_failed.wait();
      return interrupts_[1].Set();
    }
    std::vector<float> sum = values_;
    const absl::Status status = group.ok() ? (*group)->Perform(AllReduce(values_, sum)) : group.status();
    has_failed.count_down();
    ASSERT_TRUE(group.ok()) << group.status();
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
    EXPECT_EQ(sum, values_);
    EXPECT_EQ((*group)->Perform(Barrier()), status);
  });
  EXPECT_EQ(FakeCommunicators(), 0);
}

class FakeNcclFails : public FakeNccl,
                      public testing::WithParamInterface<std::pair<ncclResult_t, absl::StatusCode>> {};

TEST_P(FakeNcclFails, AsTheNetworkOrAsThisHost) {
  const auto [result, code] = GetParam();
  std::latch have_met(2), has_failed(1);
  OnBoth([&, result = result, code = code](int rank) {
    const auto group = Meet(rank);
    have_met.arrive_and_wait();
    if (rank == 1) return has_failed.wait();
    FailFakeNccl(0, result);
    const absl::Status status = group.ok() ? (*group)->Perform(Barrier()) : group.status();
    interrupts_[1].Set();
    has_failed.count_down();
    EXPECT_EQ(status, absl::Status(code, "NCCL: made up (by a test); NCCL_DEBUG=INFO says more"));
  });
  EXPECT_EQ(FakeCommunicators(), 0);
}

INSTANTIATE_TEST_SUITE_P(Results, FakeNcclFails,
                         testing::Values(std::pair(ncclRemoteError, absl::StatusCode::kUnavailable),
                                         std::pair(ncclSystemError, absl::StatusCode::kUnavailable),
                                         std::pair(ncclUnhandledCudaError, absl::StatusCode::kInternal)));

TEST_F(FakeNccl, MemoryOfTheGpuIsNotCopied) {
  OnBoth([&](int rank) {
    const auto group = Meet(rank);
    ASSERT_TRUE(group.ok()) << group.status();
    void* memory = nullptr;
    ASSERT_EQ(cudaMalloc(&memory, 2 * sizeof(float)), cudaSuccess);
    const std::span on_gpu(static_cast<float*>(memory), 2);  // which is the host's here
    std::copy(values_.begin(), values_.end(), on_gpu.begin());
    EXPECT_EQ((*group)->Perform(AllReduce(on_gpu, on_gpu)), absl::OkStatus());
    EXPECT_EQ(on_gpu[1], 4);
    cudaFree(memory);
  });
}

TEST_F(FakeNccl, WhatTravelsIsCountedAsRoundARing) {
  OnBoth([&](int rank) {
    const auto group = Meet(rank);
    ASSERT_TRUE(group.ok()) << group.status();
    EXPECT_EQ((*group)->traffic().sent_bytes, 0u);
    std::vector<float> sum(1000);
    EXPECT_EQ((*group)->Perform(AllReduce(sum, sum)), absl::OkStatus());
    EXPECT_EQ((*group)->traffic().sent_bytes, 4000u);
    EXPECT_EQ((*group)->Perform(Broadcast(std::as_writable_bytes(std::span(sum)), 1)), absl::OkStatus());
    EXPECT_EQ((*group)->traffic().sent_bytes, rank == 1 ? 8000u : 4000u);
    EXPECT_EQ((*group)->traffic().received_bytes, rank == 0 ? 8000u : 4000u);
  });
}

class ElasticGroupByNccl : public testing::Test {
 protected:
  ElasticGroupByNccl() {
    for (int rank = 0; rank < 3; ++rank) all_.members.push_back({{Role::kWorker, rank}, FreeAddress()});
  }
  ~ElasticGroupByNccl() override { FailFakeNccl(0, ncclSuccess); }

  std::unique_ptr<ElasticGroup> Make(int rank, uint64_t incarnation = 1,
                                     CollectiveChoice choice = CollectiveChoice::kNccl) {
    ElasticGroupOptions options{.all = all_,
                                .incarnation = incarnation,
                                .min_ranks = 1,
                                .connect_timeout = std::chrono::seconds(20),
                                .operation_timeout = std::chrono::seconds(20),
                                .gpus = {.choice = choice, .gpus = *MakeNccl(rank)}};
    options.all.rank = rank;
    return std::make_unique<ElasticGroup>(options,
                                          *PeerListener::Listen(all_.members[rank].address, nullptr));
  }

  // Until the group is over.
  static absl::Status CountOn(ElasticGroup& group, float expected) {
    for (const TimePoint deadline = Now() + std::chrono::seconds(20); Now() < deadline;) {
      float value = 1;
      MUSTER_RETURN_IF_ERROR(group.Run(AllReduce({&value, 1}, {&value, 1})));
      EXPECT_EQ(value, expected);
    }
    return absl::OkStatus();
  }

  GroupIdentity all_;
};

TEST_F(ElasticGroupByNccl, TheRestGoOnByNcclAndTakeBackWhoReturns) {
  std::latch are_two(2);
  const auto stays = [&](int rank) {
    const auto group = Make(rank);
    ASSERT_TRUE(group->Join({}).ok());
    EXPECT_TRUE(absl::IsCancelled(CountOn(*group, 3)));
    ASSERT_TRUE(group->Join(ParametersVersion{}).ok());
    are_two.count_down();
    EXPECT_TRUE(absl::IsCancelled(CountOn(*group, 2)));
    const auto place = group->Join(ParametersVersion{});
    ASSERT_TRUE(place.ok()) << place.status();
    float value = 1;
    EXPECT_EQ(group->Run(AllReduce({&value, 1}, {&value, 1})), absl::OkStatus());
    EXPECT_EQ(value, 3);
    EXPECT_EQ(group->Finish(9), absl::OkStatus());
  };
  const auto leaves = [&] {
    auto group = Make(2);
    ASSERT_TRUE(group->Join({}).ok());
    group = nullptr;
    are_two.wait();
    EXPECT_EQ(FakeCommunicators(), 2);
    group = Make(2, 2);
    ASSERT_TRUE(group->Join({}).ok());
    float value = 1;
    EXPECT_EQ(group->Run(AllReduce({&value, 1}, {&value, 1})), absl::OkStatus());
    EXPECT_EQ(group->Finish(9), absl::OkStatus());
  };
  {
    std::jthread second([&] { stays(1); }), third(leaves);
    stays(0);
  }
  EXPECT_EQ(FakeCommunicators(), 0);
}

// As the network, or as this host's library.
class ElasticGroupWhereNcclFails : public ElasticGroupByNccl,
                                   public testing::WithParamInterface<ncclResult_t> {};

INSTANTIATE_TEST_SUITE_P(Results, ElasticGroupWhereNcclFails,
                         testing::Values(ncclRemoteError, ncclInternalError));

TEST_P(ElasticGroupWhereNcclFails, TheyGoOnWithoutItThoughAllAreThere) {
  std::latch have_met(3);
  const auto goes_on = [&](int rank) {
    const auto group = Make(rank, 1, CollectiveChoice::kAuto);
    const absl::Status joined = group->Join({}).status();
    have_met.arrive_and_wait();
    ASSERT_EQ(joined, absl::OkStatus());
    if (rank == 1) FailFakeNccl(1, GetParam());
    const absl::Status over = CountOn(*group, 3);
    EXPECT_TRUE(absl::IsCancelled(over)) << over;
    ASSERT_TRUE(group->Join(ParametersVersion{}).ok());
    EXPECT_EQ(FakeCommunicators(), 0);
    float value = 1;
    EXPECT_EQ(group->Run(AllReduce({&value, 1}, {&value, 1})), absl::OkStatus());
    EXPECT_EQ(value, 3);
    EXPECT_EQ(group->Finish(9), absl::OkStatus());
  };
  std::jthread second([&] { goes_on(1); }), third([&] { goes_on(2); });
  goes_on(0);
}

}  // namespace
}  // namespace muster
