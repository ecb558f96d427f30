// How ranks choose between NCCL and the group that they have met as; GPUs are made up here.
#include "collective/gpu_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "collective/in_process.h"

namespace muster {
namespace {

using testing::HasSubstr;
using enum CollectiveChoice;

const std::vector<std::string> kNames = {"worker:0", "worker:1", "worker:2"};

GpuCard Card(const std::string& host, const std::string& gpu) {
  return {.has_gpu = true, .may_be_read = true, .host = host, .gpu = gpu};
}

TEST(GpuGroup, ItTakesAGpuOfItsOwnForEachRank) {
  const std::vector<GpuCard> own = {Card("a", "1"), Card("a", "2"), Card("b", "1")};
  EXPECT_EQ(WhyNotNccl(own, kNames), "");
  std::vector<GpuCard> shared = own;
  shared[2].host = "a";
  EXPECT_EQ(WhyNotNccl(shared, kNames),
            "worker:0 and worker:2 are on one GPU (1), of which NCCL takes one rank: give each its own with "
            "--device=cuda:N or CUDA_VISIBLE_DEVICES");
  std::vector<GpuCard> without = own;
  without[1] = {.may_be_read = true, .host = "a", .why_none = "it computes on the CPU"};
  EXPECT_EQ(WhyNotNccl(without, kNames), "worker:1 has no GPU for it: it computes on the CPU");
  std::vector<GpuCard> unwilling = own;
  unwilling[1].choice = kNative;
  EXPECT_EQ(WhyNotNccl(unwilling, kNames), "worker:1 was started with --collective=native");
}

TEST(GpuGroup, BetweenHostsItNeedsATrustedNetwork) {
  std::vector<GpuCard> cards = {Card("a", "1"), Card("a", "2"), Card("a", "3")};
  cards[1].may_be_read = false;
  EXPECT_EQ(WhyNotNccl(cards, kNames), "");
  cards[2].host = "b";
  EXPECT_THAT(WhyNotNccl(cards, kNames), HasSubstr("`trusted_network: true`"));
}

// Of one rank of `groups`, in which those who have the same id meet.
class MadeUpGpu final : public GpuCollectives {
 public:
  struct Groups {
    std::mutex mutex;
    std::vector<std::unique_ptr<Collective>> ranks;
    int ids = 0;
  };
  MadeUpGpu(Groups& groups, int number, absl::Status failure)
      : groups_(groups), gpu_(std::to_string(number)), failure_(std::move(failure)) {}

  const std::string& gpu() const override { return gpu_; }
  absl::StatusOr<GpuGroupId> MakeGroupId() override {
    const std::lock_guard lock(groups_.mutex);
    GpuGroupId id{};
    id[100] = static_cast<std::byte>(++groups_.ids);
    return id;
  }
  absl::StatusOr<std::unique_ptr<CollectiveBackend>> Meet(const GpuGroupOptions& options,
                                                          const GpuGroupId& id, const Interrupt&) override {
    EXPECT_EQ(id[100], std::byte{1});
    if (!failure_.ok()) return failure_;
    const std::lock_guard lock(groups_.mutex);
    return std::make_unique<Backend>(std::move(groups_.ranks[options.rank]));
  }

 private:
  class Backend final : public CollectiveBackend {
   public:
    explicit Backend(std::unique_ptr<Collective> group) : group_(std::move(group)) {}
    int rank() const override { return group_->rank(); }
    int size() const override { return group_->size(); }
    absl::Status Perform(const Operation& operation) override { return group_->Run(operation); }
    void Stop() override { group_->Abort(Cancelled("stopped")); }

   private:
    const std::unique_ptr<Collective> group_;
  };

  Groups& groups_;
  const std::string gpu_;
  const absl::Status failure_;
};

class PreferGpusTest : public testing::Test {
 protected:
  PreferGpusTest() : preferences_(3) {
    groups_.ranks = MakeInProcess(3);
    for (int rank = 0; rank < 3; ++rank) SetGpu(rank, rank, absl::OkStatus());
  }

  void SetGpu(int rank, int number, absl::Status failure) {
    preferences_[rank].gpus = std::make_shared<MadeUpGpu>(groups_, number, std::move(failure));
  }

  void OnAllRanks(const std::function<void(absl::StatusOr<bool> by_gpus)>& body) {
    auto met = MakeInProcess(3);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        const Interrupt interrupt;
        const auto chosen =
            PreferGpus(std::move(met[rank]), preferences_[rank], {.rank = rank, .names = kNames}, interrupt);
        if (!chosen.ok()) return body(chosen.status());
        float sum = 1;
        EXPECT_EQ(chosen->group->Run(AllReduce({&sum, 1}, {&sum, 1})), absl::OkStatus());
        EXPECT_EQ(sum, 3);
        EXPECT_EQ(chosen->group->rank(), rank);
        EXPECT_EQ(chosen->group->size(), 3);
        body(chosen->is_by_gpus);
      });
    }
  }
  void Expect(bool by_gpus) {
    OnAllRanks([&](const absl::StatusOr<bool>& is_by_gpus) {
      ASSERT_TRUE(is_by_gpus.ok()) << is_by_gpus.status();
      EXPECT_EQ(*is_by_gpus, by_gpus);
    });
  }
  void ExpectFailure(const std::string& text) {
    OnAllRanks([&](const absl::StatusOr<bool>& by_gpus) {
      EXPECT_EQ(by_gpus.status(), FailedPrecondition("--collective=nccl is not possible: %s", text));
    });
  }

  MadeUpGpu::Groups groups_;
  std::vector<GpuPreference> preferences_;  // by rank
};

TEST_F(PreferGpusTest, WhereAllHaveOneAllUseThem) { Expect(true); }

TEST_F(PreferGpusTest, WhereOneHasNoneNobodyUsesThem) {
  preferences_[2] = {.why_none = "it computes on the CPU"};
  Expect(false);
  preferences_[0].choice = kNccl;
  ExpectFailure("worker:2 has no GPU for it: it computes on the CPU");
}

TEST_F(PreferGpusTest, WhoIsDoneIsNoObstacle) {
  preferences_[0].choice = kNccl;
  preferences_[2] = {};
  Expect(false);
}

TEST_F(PreferGpusTest, TwoOnOneGpuGoOnWithoutThem) {
  SetGpu(1, 0, absl::OkStatus());
  Expect(false);
}

TEST_F(PreferGpusTest, WhereTheyDoNotMeetItIsNotTriedAgain) {
  SetGpu(0, 0, DeadlineExceeded("it has waited"));
  SetGpu(1, 1, Internal("broken"));
  Expect(false);
  EXPECT_EQ(groups_.ids, 1);
  for (const GpuPreference& preference : preferences_) {
    EXPECT_EQ(preference.gpus, nullptr);
    EXPECT_EQ(preference.why_none, "NCCL did not work before: worker:1: broken");
  }
  Expect(false);
  EXPECT_EQ(groups_.ids, 1);
}

TEST_F(PreferGpusTest, WhoInsistsFailsWhereTheyDoNotMeet) {
  SetGpu(1, 1, Internal("broken"));
  preferences_[2].choice = kNccl;
  ExpectFailure("worker:1: broken");
}

TEST_F(PreferGpusTest, ARankAloneUsesItsGpuIfItInsists) {
  for (const bool insists : {false, true}) {
    GpuPreference preference{.choice = insists ? kNccl : kAuto, .gpus = preferences_[0].gpus};
    groups_.ranks = MakeInProcess(1);
    groups_.ids = 0;
    const Interrupt interrupt;
    const auto chosen = PreferGpus(MakeSingleRank(), preference, {.names = {"worker:0"}}, interrupt);
    ASSERT_TRUE(chosen.ok()) << chosen.status();
    EXPECT_EQ(chosen->is_by_gpus, insists);
  }
}

}  // namespace
}  // namespace muster
