// Transcripts of a coordinator that has workers share each batch, and lets them come and go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/coordinator.h"

namespace muster {
namespace {

using std::chrono::seconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Two shards, each at the step that it last said.
class Sharing {
 public:
  explicit Sharing(int ranks) : coordinator_(Options(ranks), now) {
    for (int shard = 0; shard < 2; ++shard) coordinator_.ShardJoin(shard, "first", 0, {}, now);
    for (int rank = 0; rank < ranks; ++rank) coordinator_.Join(rank, now);
    Report();
  }

  static std::vector<std::string> Names(int ranks) {
    std::vector<std::string> names;
    for (int rank = 0; rank < ranks; ++rank) names.push_back(absl::StrFormat("worker:%d", rank));
    return names;
  }

  Coordinator* operator->() { return &coordinator_; }

  void Report(std::vector<HeldPart> held = {}) {
    for (int shard = 0; shard < 2; ++shard) {
      coordinator_.Report(shard, {.epoch = coordinator_.epoch().number, .step = steps[shard], .held = held},
                          now);
    }
  }
  /// All of these contribute to the step that is next, which both shards then make if it is chosen.
  void MakeStep(const std::vector<int>& ranks) {
    const uint64_t step = coordinator_.next_step();
    std::vector<HeldPart> held;
    for (const int rank : ranks) held.push_back({step, rank});
    Report(held);
    if (coordinator_.next_step() == step) return;
    steps[0] = steps[1] = step + 1;
    Report();
  }

  TimePoint now{};
  uint64_t steps[2] = {};

 private:
  static CoordinatorOptions Options(int ranks) {
    return {.rank_names = Names(ranks),
            .shard_count = 2,
            .aggregate = ranks,
            .shares = true,
            .worker_timeout = seconds(100),
            .lease = seconds(10),
            .may_go_back = true};
  }

  Coordinator coordinator_;
};

TEST(BatchShares, WhoJoinsTakesPartFromTheStepThatIsNext) {
  Sharing job(2);
  EXPECT_THAT(job->participants(), ElementsAre(0, 1));
  job.MakeStep({0, 1});
  job->SetRanks(Sharing::Names(3));
  job.MakeStep({0, 1});
  EXPECT_EQ(job->next_step(), 2u) << "worker:2 has not joined yet, and nobody waits for it";
  const Epoch before = job->epoch();

  job->Join(2, job.now);
  EXPECT_EQ(job->epoch(), (Epoch{.number = before.number + 1, .step = 2, .goes_on = true}));
  EXPECT_THAT(job->participants(), ElementsAre(0, 1, 2));
  job.MakeStep({0, 1});
  EXPECT_EQ(job->next_step(), 2u) << "a third of the batch is missing";
  job.MakeStep({0, 1, 2});
  EXPECT_EQ(job->next_step(), 3u);
}

TEST(BatchShares, AStepThatIsChosenIsMadeByAllShardsFirst) {
  Sharing job(2);
  job->SetRanks(Sharing::Names(3));
  const uint64_t number = job->epoch().number;
  job.Report({{0, 0}, {0, 1}});
  ASSERT_EQ(job->next_step(), 1u);
  job.steps[0] = 1;
  job.Report({{1, 0}, {1, 1}});
  EXPECT_EQ(job->next_step(), 2u);
  job.steps[0] = 2;
  job.Report();
  job->Join(2, job.now);
  job.Report({{2, 0}, {2, 1}});
  EXPECT_EQ(job->next_step(), 2u) << "no step is chosen any more";
  EXPECT_EQ(job->epoch().number, number) << "one shard is at step 0";
  EXPECT_EQ(job->decisions().size(), 2u) << "and may have to hear of its steps again";
  job.steps[1] = 2;
  job.Report();
  EXPECT_EQ(job->epoch(), (Epoch{.number = number + 1, .step = 2, .goes_on = true}));
  EXPECT_THAT(job->decisions(), IsEmpty());
}

TEST(BatchShares, AShardThatHasNotBegunAnEpochIsWaitedForBeforeTheNextOne) {
  Sharing job(2);
  job->SetRanks(Sharing::Names(4));
  const uint64_t number = job->epoch().number;
  job->Join(2, job.now);
  job->Join(3, job.now);
  EXPECT_EQ(job->epoch().number, number + 1);
  EXPECT_THAT(job->participants(), ElementsAre(0, 1, 2));
  job.Report();
  EXPECT_EQ(job->epoch().number, number + 2);
  EXPECT_THAT(job->participants(), ElementsAre(0, 1, 2, 3));
}

TEST(BatchShares, WhoLeavesAndWhoIsLostLeaveTheirPartToTheOthers) {
  Sharing job(3);
  job.MakeStep({0, 1, 2});
  job->SetRanks(Sharing::Names(2));
  job->Tick(job.now);
  EXPECT_EQ(job->epoch().step, 1u);
  EXPECT_THAT(job->participants(), ElementsAre(0, 1));
  job.Report({{1, 2}});  // that was on its way
  job.MakeStep({0, 1});
  EXPECT_EQ(job->next_step(), 2u);

  job.now += seconds(11);
  job->Heard(1, job.now);
  job->Tick(job.now);
  EXPECT_EQ(job->state(0), MemberState::kLost);
  EXPECT_THAT(job->participants(), ElementsAre(1));
  job.MakeStep({1});
  EXPECT_EQ(job->next_step(), 3u);

  job->Heard(0, job.now);
  job->Tick(job.now);
  EXPECT_THAT(job->participants(), ElementsAre(0, 1)) << "it was only slow";
}

TEST(BatchShares, AnotherProcessOfTheSameRankChangesNothing) {
  Sharing job(2);
  const Epoch epoch = job->epoch();
  job->Join(1, job.now);
  EXPECT_EQ(job->epoch(), epoch);
}

TEST(BatchShares, WhoJoinsAtTheEndIsLetInAndWaitedFor) {
  Sharing job(2);
  job.MakeStep({0, 1});
  job->SetRanks(Sharing::Names(3));
  const Epoch epoch = job->epoch();
  job->Await(0, 1, job.now);
  const uint64_t version = job->version();
  job->Join(2, job.now);
  EXPECT_GT(job->version(), version) << "the other shards are to hear of it";
  EXPECT_EQ(job->epoch(), epoch);
  EXPECT_THAT(job->participants(), ElementsAre(0, 1, 2));
  job->Finish(1, 1, job.now);
  EXPECT_FALSE(job->AllOthersDone(0));
  job->Finish(2, 1, job.now);
  EXPECT_TRUE(job->AllOthersDone(0));
  job->Finish(0, 1, job.now);
  EXPECT_EQ(job->end(), absl::OkStatus());
}

TEST(BatchShares, OfWhoIsLostTheOthersMakeAllAndEndWithoutIt) {
  Sharing job(2);
  job.MakeStep({0, 1});
  for (int i = 0; i < 20; ++i) {  // longer than anybody would be waited for
    job.now += seconds(10);
    job->Pushed(0, job.now);
    job->Tick(job.now);
  }
  ASSERT_EQ(job->state(1), MemberState::kLost);
  job.MakeStep({0});
  EXPECT_EQ(job->next_step(), 2u);
  EXPECT_FALSE(job->end().has_value());
  job->Finish(0, 2, job.now);
  EXPECT_EQ(job->end(), absl::OkStatus());
}

// It writes the result, which nobody else has.
TEST(BatchShares, TheEndWaitsForAChiefThatIsLost) {
  Sharing job(2);
  job.MakeStep({0, 1});
  job.now += seconds(11);
  job->Heard(1, job.now);
  job->Tick(job.now);
  ASSERT_EQ(job->state(0), MemberState::kLost);
  job.MakeStep({1});
  for (int i = 0; i < 30; ++i) {  // longer than anybody is waited for, but it can still come back
    job.now += seconds(10);
    job->Pushed(1, job.now);
    job->Tick(job.now);
  }
  job->Finish(1, 2, job.now);
  Sharing without = job;
  without.now += seconds(99);
  without->Tick(without.now);
  EXPECT_FALSE(without->end().has_value());
  EXPECT_EQ(without->DescribeEnd(without.now),
            "the end has waited 1m39s for worker:0 (lost, silent for 6m50s)");
  without.now += seconds(1);
  without->Tick(without.now);
  ASSERT_TRUE(without->end().has_value());
  EXPECT_EQ(*without->end(),
            absl::DeadlineExceededError("no worker is left that could go on: worker:0 (silent for 6m51s)"));
  EXPECT_EQ(without->DescribeEnd(without.now), "");
  job->Join(0, job.now);
  job->Finish(0, 2, job.now);
  EXPECT_EQ(job->end(), absl::OkStatus());
}

TEST(BatchShares, WhereAllAreLostTheStepWaitsForAnyOfThem) {
  Sharing job(2);
  job.Report({{0, 0}});
  job.now += seconds(11);
  job->Tick(job.now);
  EXPECT_FALSE(job->end().has_value());
  EXPECT_EQ(job->next_step(), 0u);
  EXPECT_EQ(job->DescribeWait(job.now), "step 0 has waited 11s for any worker");
  job->Join(1, job.now);
  EXPECT_THAT(job->participants(), ElementsAre(1));
  job.MakeStep({1});
  EXPECT_EQ(job->next_step(), 1u);
}

TEST(BatchShares, AReplacedShardTakesAllWhoAreThereBack) {
  Sharing job(2);
  job->SetRanks(Sharing::Names(3));
  job.MakeStep({0, 1});
  job->Join(2, job.now);
  ASSERT_TRUE(job->epoch().goes_on);
  const uint64_t number = job->epoch().number;
  job->ShardJoin(1, "first", number - 1, {}, job.now);
  EXPECT_EQ(job->epoch().number, number) << "it has no checkpoint of that step, and needs none";
  job->ShardJoin(1, "second", 0, {}, job.now);
  EXPECT_EQ(job->epoch(), (Epoch{.number = number + 1}));
  EXPECT_THAT(job->participants(), ElementsAre(0, 1, 2));
}

TEST(BatchShares, WhereTheyAreFixedThereAreNone) {
  Coordinator fixed({.rank_names = Sharing::Names(2), .aggregate = 2}, TimePoint{});
  fixed.ShardJoin(0, "first", 0, {}, TimePoint{});
  EXPECT_THAT(fixed.participants(), IsEmpty());
}

}  // namespace
}  // namespace muster
