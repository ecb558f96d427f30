// Transcripts: events in, and what has changed.
#include "cluster/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const TimePoint kStart{};

class Cluster {
 public:
  Cluster(int ranks, int shards, int aggregate)
      : coordinator_({.rank_names = Names(ranks),
                      .shard_count = shards,
                      .aggregate = aggregate,
                      .worker_timeout = seconds(100),
                      .lease = seconds(10),
                      .may_go_back = true},
                     kStart) {
    for (int shard = 0; shard < shards; ++shard) coordinator_.ShardJoin(shard, "first", 0, {}, kStart);
  }

  static std::vector<std::string> Names(int ranks) {
    std::vector<std::string> names;
    for (int rank = 0; rank < ranks; ++rank) names.push_back(absl::StrFormat("worker:%d", rank));
    return names;
  }

  Coordinator* operator->() { return &coordinator_; }

  void JoinAll(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) coordinator_.Join(rank, now);
    coordinator_.TakeNotices();
  }
  void Hold(int shard, std::vector<HeldPart> parts, uint64_t step = 0) {
    coordinator_.Report(shard, {.epoch = coordinator_.epoch().number, .step = step, .held = std::move(parts)},
                        now);
  }
  void Tick() { coordinator_.Tick(now); }

  /// "0:[0 2]" for each decision.
  std::vector<std::string> Decisions() {
    std::vector<std::string> texts;
    for (const auto& [step, ranks] : coordinator_.decisions()) {
      std::string text;
      for (const int rank : ranks) text += absl::StrFormat("%s%d", text.empty() ? "" : " ", rank);
      texts.push_back(absl::StrFormat("%d:[%s]", step, text));
    }
    return texts;
  }
  std::vector<std::string> Notices() {
    std::vector<std::string> texts;
    for (const MembershipNotice& notice : coordinator_.TakeNotices()) texts.push_back(notice.text);
    return texts;
  }

  TimePoint now = kStart;

 private:
  Coordinator coordinator_;
};

TEST(Coordinator, RanksThatAreNewAreNotWaitedForBeforeTheyHaveJoined) {
  Cluster cluster(2, 1, 2);
  cluster.JoinAll(2);
  cluster->Finish(0, 0, cluster.now);
  cluster->SetRanks(Cluster::Names(4));
  EXPECT_EQ(cluster->state(3), MemberState::kAbsent);
  EXPECT_FALSE(cluster->AllOthersDone(0));
  cluster->Join(3, cluster.now);
  EXPECT_THAT(cluster.Notices(), testing::Not(testing::Contains(testing::HasSubstr("is back"))));
  cluster->Finish(1, 0, cluster.now);
  EXPECT_FALSE(cluster->AllOthersDone(0)) << "worker:3 has joined";
  EXPECT_FALSE(cluster->end().has_value());
  cluster->Finish(3, 0, cluster.now);
  EXPECT_TRUE(cluster->AllOthersDone(0)) << "worker:2 has never come";
  EXPECT_EQ(cluster->end(), absl::OkStatus());
}

TEST(Coordinator, ALostRankThatCameLaterIsNotWaitedFor) {
  for (const bool finishes_first : {false, true}) {
    SCOPED_TRACE(finishes_first);
    Cluster cluster(1, 1, 1);
    cluster.JoinAll(1);
    cluster->SetRanks(Cluster::Names(2));
    cluster->Join(1, cluster.now);
    if (finishes_first) cluster->Finish(0, 0, cluster.now);
    EXPECT_FALSE(cluster->end().has_value());
    cluster.now += seconds(61);
    cluster->Heard(0, cluster.now);
    cluster.Tick();
    EXPECT_EQ(cluster->state(1), MemberState::kLost);
    if (!finishes_first) cluster->Finish(0, 0, cluster.now);
    EXPECT_EQ(cluster->end(), absl::OkStatus());
  }
}

TEST(Coordinator, WhoHasLeftTheJobIsNotWaitedFor) {
  Cluster cluster(3, 1, 3);
  cluster.JoinAll(3);
  cluster->Finish(0, 0, cluster.now);
  cluster->SetRanks(Cluster::Names(2));
  EXPECT_THAT(cluster.Notices(), testing::Contains("worker:2 has left the job"));
  EXPECT_FALSE(cluster->end().has_value());
  cluster->SetRanks(Cluster::Names(1));
  EXPECT_EQ(cluster->end(), absl::OkStatus());
}

TEST(Coordinator, AStepIsChosenWhenEveryShardHoldsEveryonesPart) {
  Cluster cluster(2, 2, 2);
  cluster.JoinAll(2);
  cluster.Hold(0, {{0, 0}, {0, 1}});
  cluster.Hold(1, {{0, 1}});
  EXPECT_THAT(cluster.Decisions(), IsEmpty());
  const uint64_t before = cluster->version();
  cluster.Hold(1, {{0, 0}, {0, 1}});
  EXPECT_THAT(cluster.Decisions(), ElementsAre("0:[0 1]"));
  EXPECT_GT(cluster->version(), before);
  cluster.Hold(1, {{0, 0}, {0, 1}});
  cluster.Hold(0, {}, 1);
  EXPECT_THAT(cluster.Decisions(), ElementsAre("0:[0 1]")) << "kept until all shards have applied it";
  cluster.Hold(1, {}, 1);
  EXPECT_THAT(cluster.Decisions(), IsEmpty());
  cluster.Hold(1, {{0, 0}, {0, 1}});
  EXPECT_THAT(cluster.Decisions(), IsEmpty()) << "an old report, late";
}

TEST(Coordinator, BackupsAreLeftOutOnceEnoughAreComplete) {
  Cluster cluster(3, 2, 2);
  cluster.JoinAll(3);
  cluster.Hold(0, {{0, 0}, {0, 1}, {0, 2}});
  cluster.Hold(1, {{0, 2}});
  EXPECT_THAT(cluster.Decisions(), IsEmpty());
  cluster.Hold(1, {{0, 1}, {0, 2}});
  EXPECT_THAT(cluster.Decisions(), ElementsAre("0:[1 2]"));
}

TEST(Coordinator, ASilentWorkerIsLostAfterItsLeaseAndTheOthersGoOn) {
  Cluster cluster(3, 1, 3);
  cluster.JoinAll(3);
  cluster.Hold(0, {{0, 0}, {0, 1}});
  EXPECT_EQ(cluster->needed(), 3);
  EXPECT_EQ(cluster->next_deadline(), kStart + seconds(10));
  cluster.now = kStart + seconds(9);
  cluster->Heard(0, cluster.now);
  cluster->Heard(1, cluster.now);
  cluster.Tick();
  EXPECT_THAT(cluster.Decisions(), IsEmpty());
  EXPECT_EQ(cluster->DescribeWait(cluster.now),
            "step 0 has waited 9s for worker:2 (no gradient yet, silent for 9s)");
  cluster.now = kStart + seconds(10);
  cluster.Tick();
  EXPECT_THAT(cluster.Notices(),
              ElementsAre("worker:2 has been silent for 10s: the others go on without it"));
  EXPECT_THAT(cluster.Decisions(), ElementsAre("0:[0 1]"));
  EXPECT_EQ(cluster->needed(), 2);
  cluster->Heard(2, cluster.now);
  EXPECT_THAT(cluster.Notices(), ElementsAre("worker:2 is heard again"));
  EXPECT_EQ(cluster->needed(), 3);
}

TEST(Coordinator, AWorkerThatLivesAndContributesNothingIsWaitedForLonger) {
  Cluster cluster(2, 1, 2);
  cluster.JoinAll(2);
  cluster.Hold(0, {{0, 0}});
  for (int second = 5; second < 100; second += 5) {
    cluster.now = kStart + seconds(second);
    cluster->Heard(0, cluster.now);
    cluster->Heard(1, cluster.now);
    cluster.Tick();
    ASSERT_THAT(cluster.Decisions(), IsEmpty()) << second;
  }
  cluster.now = kStart + seconds(100);
  cluster.Tick();
  EXPECT_THAT(cluster.Notices(),
              ElementsAre("worker:1 lives, but has not contributed for 1m40s: the others go on without it"));
  EXPECT_THAT(cluster.Decisions(), ElementsAre("0:[0]"));
  cluster->Heard(1, cluster.now);
  EXPECT_THAT(cluster.Notices(), IsEmpty()) << "a sign of life is not enough";
  cluster->Pushed(1, cluster.now);
  EXPECT_THAT(cluster.Notices(), ElementsAre("worker:1 contributes again"));
}

TEST(Coordinator, SaysWhichServersTheBeginningWaitsFor) {
  Coordinator coordinator({.rank_names = {"worker:0"}, .shard_count = 3}, kStart);
  coordinator.ShardJoin(1, "b", 0, {}, kStart);
  EXPECT_EQ(coordinator.beginning_awaited_since(), kStart);
  EXPECT_EQ(coordinator.DescribeBeginning(kStart + seconds(4)), "the beginning has waited 4s for ps:0, ps:2");
  for (const int shard : {0, 2}) coordinator.ShardJoin(shard, "a", 0, {}, kStart);
  EXPECT_EQ(coordinator.beginning_awaited_since(), TimePoint::max());
  EXPECT_EQ(coordinator.DescribeBeginning(kStart + seconds(4)), "");
}

TEST(Coordinator, BeginsWhenAllWorkersAreThereIfAskedTo) {
  const CoordinatorOptions options{.rank_names = Cluster::Names(4),
                                   .first_ranks = 3,
                                   .shard_count = 1,
                                   .begins_together = true,
                                   .worker_timeout = seconds(100),
                                   .lease = seconds(10),
                                   .may_go_back = true};
  Coordinator coordinator(options, kStart);
  coordinator.Join(1, kStart);
  coordinator.ShardJoin(0, "a", 0, {}, kStart);
  EXPECT_EQ(coordinator.epoch().number, 0u);
  EXPECT_EQ(coordinator.DescribeBeginning(kStart + seconds(4)),
            "the beginning has waited 4s for worker:0, worker:2");
  coordinator.Join(0, kStart + seconds(5));
  EXPECT_EQ(coordinator.epoch().number, 0u);
  coordinator.Join(2, kStart + seconds(6));
  EXPECT_GT(coordinator.epoch().number, 0u);
  EXPECT_EQ(coordinator.DescribeBeginning(kStart + seconds(9)), "");

  // One that does not come is waited for as it is for a step.
  Coordinator without(options, kStart);
  without.ShardJoin(0, "a", 0, {}, kStart);
  for (const int rank : {0, 1}) without.Join(rank, kStart + seconds(99));
  EXPECT_EQ(without.next_deadline(), kStart + seconds(100));
  without.Tick(kStart + seconds(99));
  EXPECT_EQ(without.epoch().number, 0u);
  without.Tick(kStart + seconds(100));
  EXPECT_GT(without.epoch().number, 0u);
  EXPECT_EQ(without.state(2), MemberState::kLost);

  // A job that has begun is not held up by a new coordinator.
  Coordinator again(options, kStart);
  again.ShardJoin(0, "a", 7, {}, kStart);
  EXPECT_NE(again.epoch().number, 0u);
  Coordinator restored(options, kStart);
  restored.ShardJoin(0, "a", 0, {{100, 1}}, kStart);
  EXPECT_EQ(restored.epoch().step, 100u);
}

TEST(Coordinator, OneThatGoesOnWaitsForAllShardsBeforeItGoesBack) {
  Coordinator coordinator({.rank_names = {"worker:0"}, .shard_count = 3, .may_go_back = true}, kStart);
  coordinator.Resume({.number = 7}, 430, {}, 400);
  coordinator.ShardJoin(0, "a", 7, {{400, 1}}, kStart);
  coordinator.ShardJoin(1, "b", 0, {{400, 1}}, kStart);  // has lost its journal
  EXPECT_EQ(coordinator.end(), std::nullopt);
  EXPECT_EQ(coordinator.epoch().number, 7u);
  coordinator.ShardJoin(2, "c", 7, {{400, 1}}, kStart);
  EXPECT_EQ(coordinator.end(), std::nullopt);
  EXPECT_EQ(coordinator.epoch(), (Epoch{.number = 8, .step = 400}));
}

TEST(Coordinator, SaysWhomTheEndWaitsFor) {
  Cluster cluster(3, 1, 3);
  for (const int rank : {0, 1}) cluster->Join(rank, cluster.now);
  EXPECT_EQ(cluster->DescribeEnd(cluster.now), "");
  EXPECT_EQ(cluster->end_awaited_since(), TimePoint::max());
  cluster->Await(0, 0, cluster.now);
  cluster.now = kStart + seconds(4);
  EXPECT_EQ(cluster->end_awaited_since(), kStart);
  EXPECT_EQ(cluster->DescribeEnd(cluster.now),
            "the end has waited 4s for worker:1 (at work, silent for 4s), worker:2 (not joined)");
  cluster->Join(2, cluster.now);
  for (const int rank : {1, 2}) cluster->Finish(rank, 0, cluster.now);
  EXPECT_EQ(cluster->DescribeEnd(cluster.now), "");
}

TEST(Coordinator, OneThatNeverJoinsIsLostAndMayStillCome) {
  Cluster cluster(2, 2, 2);
  cluster->Join(0, cluster.now);
  cluster.Hold(0, {{0, 0}});
  cluster.now = kStart + seconds(4);
  EXPECT_EQ(cluster->DescribeWait(cluster.now),
            "step 0 has waited 4s for worker:0 (not at ps:1, silent for 4s), worker:1 (not joined)");
  cluster.Hold(1, {{0, 0}});
  cluster.now = kStart + seconds(100);
  cluster->Heard(0, cluster.now);
  cluster.Tick();
  EXPECT_THAT(cluster.Notices(),
              ElementsAre("worker:1 has not joined for 1m40s: the others go on without it"));
  EXPECT_THAT(cluster.Decisions(), ElementsAre("0:[0]"));
  cluster->Join(1, cluster.now);
  EXPECT_THAT(cluster.Notices(), ElementsAre("worker:1 is back"));
  cluster.Hold(0, {{1, 0}}, 1);
  cluster.Hold(1, {{1, 0}}, 1);
  EXPECT_THAT(cluster.Decisions(), IsEmpty());
}

TEST(Coordinator, AStepDoesNotWaitForWhoHasFinished) {
  Cluster cluster(2, 1, 2);
  cluster.JoinAll(2);
  cluster.Hold(0, {{0, 0}});
  EXPECT_FALSE(cluster->AllOthersDone(0));
  cluster->Finish(1, 0, cluster.now);
  EXPECT_THAT(cluster.Decisions(), ElementsAre("0:[0]"));
  EXPECT_TRUE(cluster->AllOthersDone(0));
  EXPECT_FALSE(cluster->end());
  cluster->Finish(0, 1, cluster.now);
  ASSERT_TRUE(cluster->end());
  EXPECT_TRUE(cluster->end()->ok());
}

TEST(Coordinator, ThoseWhoAwaitEachOtherAreAllDone) {
  Cluster cluster(3, 1, 3);
  cluster.JoinAll(3);
  cluster->Await(0, 0, cluster.now);
  cluster->Await(1, 0, cluster.now);
  EXPECT_FALSE(cluster->AllOthersDone(0)) << "worker:2 is at work";
  EXPECT_TRUE(cluster->AllOthersDone(2));
  cluster->Await(2, 0, cluster.now);
  for (const int rank : {0, 1, 2}) EXPECT_TRUE(cluster->AllOthersDone(rank));
  EXPECT_FALSE(cluster->end()) << "they are still to say that they have finished";
  cluster->Join(1, cluster.now);
  EXPECT_FALSE(cluster->AllOthersDone(0)) << "it has begun again";
}

TEST(Coordinator, AStepDoesNotWaitForWhoOnlyAwaitsTheOthers) {
  for (const uint64_t next_step : {0, 1}) {
    Cluster cluster(2, 1, 2);
    cluster.JoinAll(2);
    cluster.Hold(0, {{0, 1}});
    const uint64_t before = cluster->version();
    cluster->Await(0, next_step, cluster.now);
    EXPECT_GT(cluster->version(), before) << "how many parts are needed has changed";
    if (next_step == 0) {
      EXPECT_THAT(cluster.Decisions(), ElementsAre("0:[1]"));
      continue;
    }
    EXPECT_THAT(cluster.Decisions(), IsEmpty()) << "its part is on its way";
    EXPECT_THAT(cluster->AwaitedRanks(), ElementsAre(0));
    cluster.Hold(0, {{0, 0}, {0, 1}});
    EXPECT_THAT(cluster.Decisions(), ElementsAre("0:[0 1]"));
  }
  // Who contributes again after all, as when all have gone back, is counted on again.
  Cluster cluster(2, 1, 2);
  cluster.JoinAll(2);
  cluster->Await(0, 0, cluster.now);
  cluster->Pushed(0, cluster.now);
  cluster.Hold(0, {{0, 1}});
  EXPECT_THAT(cluster.Decisions(), IsEmpty());
}

TEST(Coordinator, WhoFinishedAheadIsStillWaitedForUntilItsPartsAreHere) {
  Cluster cluster(2, 1, 2);
  cluster.JoinAll(2);
  cluster->Finish(1, /*next_step=*/2, cluster.now);
  cluster.Hold(0, {{0, 0}, {1, 0}});
  EXPECT_THAT(cluster.Decisions(), IsEmpty()) << "its parts were sent before it finished, and come later";
  cluster.Hold(0, {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}});
  EXPECT_THAT(cluster.Decisions(), ElementsAre("0:[0 1]", "1:[0 1]", "2:[0]"));
}

TEST(Coordinator, WhenNobodyIsLeftTheJobEndsAfterTheWorkerTimeout) {
  Cluster cluster(2, 1, 2);
  cluster.JoinAll(2);
  cluster->Finish(0, 0, cluster.now);
  cluster.now = kStart + seconds(10);
  cluster.Tick();
  EXPECT_FALSE(cluster->end()) << "it may come back";
  EXPECT_EQ(cluster->next_deadline(), kStart + seconds(100));
  cluster.now = kStart + seconds(100);
  cluster.Tick();
  ASSERT_TRUE(cluster->end());
  EXPECT_EQ(cluster->end()->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(cluster->end()->message()),
            "no worker is left that could go on: worker:1 (silent for 1m40s)");
  EXPECT_EQ(cluster->next_deadline(), TimePoint::max());
}

TEST(Coordinator, WhoWaitsForTheOthersToFinishDoesNotWaitForOneThatDoesNothing) {
  Cluster cluster(3, 1, 3);  // asynchronous: no steps are reported
  cluster.JoinAll(3);
  for (int second = 5; second <= 200; second += 5) {
    cluster.now = kStart + seconds(second);
    for (const int rank : {0, 1, 2}) cluster->Heard(rank, cluster.now);
    if (second < 150) cluster->Pushed(2, cluster.now);
    if (second == 50) cluster->Await(0, 0, cluster.now);
    cluster.Tick();
    ASSERT_EQ(cluster->state(1), second < 100 ? MemberState::kLive : MemberState::kLost) << second;
    ASSERT_EQ(cluster->state(0), MemberState::kLive) << "it has done its part";
    ASSERT_EQ(cluster->state(2), MemberState::kLive);
  }
}

TEST(Coordinator, WhenNobodyDoesAnythingTheJobEnds) {
  Cluster cluster(2, 1, 2);
  cluster.JoinAll(2);
  for (int second = 5; second < 200; second += 5) {
    cluster.now = kStart + seconds(second);
    for (const int rank : {0, 1}) cluster->Heard(rank, cluster.now);
    cluster.Tick();
    ASSERT_FALSE(cluster->end()) << second;
  }
  cluster.now = kStart + seconds(200);
  for (const int rank : {0, 1}) cluster->Heard(rank, cluster.now);
  cluster.Tick();
  ASSERT_TRUE(cluster->end());
  EXPECT_EQ(std::string(cluster->end()->message()),
            "no worker is left that could go on: worker:0 (nothing done for 3m20s), worker:1 (nothing done "
            "for 3m20s)");
}

TEST(Coordinator, AShardThatDoesNotApplyIsNamed) {
  Cluster cluster(1, 2, 1);
  cluster.JoinAll(1);
  EXPECT_EQ(cluster->DescribeWait(cluster.now), "");
  cluster.Hold(0, {{0, 0}});
  cluster.Hold(1, {{0, 0}});
  cluster.Hold(0, {}, 1);
  cluster.now += seconds(7);
  EXPECT_EQ(cluster->DescribeWait(cluster.now), "step 0 has waited 7s for ps:1 (has not applied it)");
}

std::set<CheckpointId> Of(const std::vector<uint64_t>& steps) {
  std::set<CheckpointId> ids;
  for (const uint64_t step : steps) ids.insert({.step = step, .digest = static_cast<uint32_t>(step + 1)});
  return ids;
}

TEST(CoordinatorEpochs, BeginWithTheNewestCheckpointThatAllShardsHave) {
  Coordinator coordinator({.rank_names = {"worker:0"}, .shard_count = 2, .may_go_back = true}, kStart);
  coordinator.ShardJoin(0, "a", 0, Of({100, 200, 300}), kStart);
  EXPECT_EQ(coordinator.epoch(), Epoch());
  coordinator.ShardJoin(1, "b", 0, Of({100, 200}), kStart);
  EXPECT_EQ(coordinator.epoch(), (Epoch{.number = 1, .step = 200}));
  coordinator.ShardJoin(1, "b", 1, Of({100, 200, 300}), kStart);
  EXPECT_EQ(coordinator.epoch().number, 1u) << "nothing has happened";
}

TEST(CoordinatorEpochs, AReplacedShardTakesAllBack) {
  Cluster cluster(2, 2, 2);
  cluster.JoinAll(2);
  for (const int shard : {0, 1}) cluster.Hold(shard, {{0, 0}, {0, 1}});
  EXPECT_THAT(cluster.Decisions(), ElementsAre("0:[0 1]"));
  for (const int shard : {0, 1}) cluster.Hold(shard, {{1, 0}}, 1);
  cluster->Finish(1, 1, cluster.now);
  cluster->ShardJoin(1, "second", 0, {}, cluster.now);
  EXPECT_EQ(cluster->epoch(), (Epoch{.number = 2}));
  EXPECT_THAT(cluster.Notices(), testing::Contains("ps:1 has started again: all go back to step 0"));
  EXPECT_THAT(cluster.Decisions(), IsEmpty());
  cluster->Report(0, {.epoch = 1, .step = 1, .held = {{1, 0}}}, cluster.now);
  cluster->Report(1, {.epoch = 1, .step = 1, .held = {{1, 0}}}, cluster.now);
  EXPECT_THAT(cluster.Decisions(), IsEmpty()) << "reports of the epoch before";
  for (const int shard : {0, 1}) cluster.Hold(shard, {{0, 0}});
  EXPECT_THAT(cluster.Decisions(), IsEmpty()) << "who had finished has to do it again";
  for (const int shard : {0, 1}) cluster.Hold(shard, {{0, 0}, {0, 1}});
  EXPECT_THAT(cluster.Decisions(), ElementsAre("0:[0 1]"));
}

TEST(CoordinatorEpochs, AShardThatCannotReadItsPartTakesAllToTheOneBefore) {
  Coordinator coordinator({.rank_names = {"worker:0"}, .shard_count = 2, .may_go_back = true}, kStart);
  coordinator.ShardJoin(0, "a", 0, Of({100, 200}), kStart);
  coordinator.ShardJoin(1, "b", 0, Of({100, 200}), kStart);
  EXPECT_EQ(coordinator.epoch().step, 200u);
  coordinator.ShardJoin(1, "b", 0, Of({100}), kStart);
  EXPECT_EQ(coordinator.epoch(), (Epoch{.number = 2, .step = 100}));
}

TEST(CoordinatorEpochs, AReplacedCoordinatorGoesOnWithHigherNumbers) {
  Coordinator coordinator({.rank_names = {"worker:0"}, .shard_count = 2, .may_go_back = true}, kStart);
  coordinator.ShardJoin(0, "new", 0, Of({100}), kStart);
  coordinator.ShardJoin(1, "b", 7, Of({100}), kStart);
  EXPECT_EQ(coordinator.epoch(), (Epoch{.number = 8, .step = 100}));
}

TEST(CoordinatorEpochs, AnotherCheckpointOfTheSameStepIsNotTheSame) {
  Coordinator coordinator({.rank_names = {"worker:0"}, .shard_count = 2, .may_go_back = true}, kStart);
  coordinator.ShardJoin(0, "a", 0, {{100, 1}, {200, 2}}, kStart);
  coordinator.ShardJoin(1, "b", 0, {{100, 1}, {200, 3}}, kStart);
  EXPECT_EQ(coordinator.epoch().step, 100u);
}

TEST(CoordinatorEpochs, ServersDoNotBeginAnewBesideCheckpointsThatTheyCannotUse) {
  Coordinator coordinator({.rank_names = {"worker:0"}, .shard_count = 2, .may_go_back = true}, kStart);
  coordinator.ShardJoin(0, "a", 0, Of({100, 200}), kStart);
  coordinator.ShardJoin(1, "b", 0, {}, kStart);
  ASSERT_TRUE(coordinator.end());
  EXPECT_EQ(coordinator.end()->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(coordinator.end()->message()),
              testing::HasSubstr("(ps:0 has up to step 200, ps:1 has none)"));
  EXPECT_EQ(coordinator.epoch(), Epoch());
}

TEST(CoordinatorEpochs, AJobInTrainingDoesNotBeginAnewEither) {
  Coordinator coordinator({.rank_names = {"worker:0"}, .shard_count = 2, .may_go_back = true}, kStart);
  coordinator.ShardJoin(0, "a", 0, {}, kStart);
  coordinator.ShardJoin(1, "b", 0, {}, kStart);
  coordinator.ShardJoin(0, "a", 1, Of({100}), kStart);
  coordinator.ShardJoin(1, "c", 0, {}, kStart);
  EXPECT_EQ(coordinator.epoch(), (Epoch{.number = 2})) << "there was none of all yet";
  for (const int shard : {0, 1}) coordinator.ShardJoin(shard, shard == 0 ? "a" : "c", 2, Of({100}), kStart);
  EXPECT_EQ(coordinator.newest_common(), 100u);
  coordinator.ShardJoin(1, "d", 0, {}, kStart);
  ASSERT_TRUE(coordinator.end());
  EXPECT_EQ(coordinator.end()->code(), absl::StatusCode::kFailedPrecondition);
}

TEST(CoordinatorEpochs, ACoordinatorThatIsReplacedBeforeTheFirstCheckpointOfAllBeginsAnew) {
  for (const uint64_t newest_common : {0, 100}) {
    Coordinator coordinator({.rank_names = {"worker:0"}, .shard_count = 2, .may_go_back = true}, kStart);
    coordinator.ShardJoin(1, "b", 7, Of({100}), kStart, newest_common);
    coordinator.ShardJoin(0, "new", 0, {}, kStart);
    EXPECT_EQ(coordinator.epoch(), newest_common == 0 ? Epoch{.number = 8} : Epoch());
    EXPECT_EQ(coordinator.end().has_value(), newest_common != 0) << "it had it, and it is gone";
  }
}

// Its journal says that there was a checkpoint of all.
TEST(CoordinatorEpochs, ACoordinatorThatGoesOnKnowsThatTheFirstCheckpointIsBehindIt) {
  for (const uint64_t newest_common : {0, 100}) {
    Coordinator coordinator({.rank_names = {"worker:0"}, .shard_count = 2, .may_go_back = true}, kStart);
    coordinator.Resume({.number = 7}, 130, {}, newest_common);
    coordinator.ShardJoin(0, "a", 7, Of({100}), kStart);
    coordinator.ShardJoin(1, "without its folder", 0, {}, kStart);
    EXPECT_EQ(coordinator.end().has_value(), newest_common != 0);
  }
}

TEST(CoordinatorEpochs, AShardThatIsReplacedAfterTheLastStepTakesAllBack) {
  Cluster cluster(2, 2, 2);
  cluster.JoinAll(2);
  for (const int rank : {0, 1}) cluster->Finish(rank, 5, cluster.now);
  ASSERT_TRUE(cluster->end());
  cluster->ShardJoin(1, "second", 0, {}, cluster.now);
  EXPECT_FALSE(cluster->end());
  EXPECT_EQ(cluster->epoch(), (Epoch{.number = 2}));
  EXPECT_EQ(cluster->state(0), MemberState::kExpected);
}

// However long ago the job began.
TEST(CoordinatorEpochs, WhoHadFinishedHasItsTimeToComeBack) {
  Cluster cluster(2, 2, 2);
  cluster.JoinAll(2);
  cluster.now += seconds(1000);
  cluster->Heard(0, cluster.now);
  cluster->Finish(1, 5, cluster.now);
  cluster->ShardJoin(1, "second", 0, {}, cluster.now);
  cluster.now += seconds(9);
  cluster.Tick();
  EXPECT_EQ(cluster->state(0), MemberState::kLive);
  EXPECT_EQ(cluster->state(1), MemberState::kExpected);
}

TEST(CoordinatorEpochs, WhoHasAJournalTakesNobodyBack) {
  Cluster cluster(2, 2, 2);
  cluster.JoinAll(2);
  for (const int shard : {0, 1}) cluster.Hold(shard, {{0, 0}, {0, 1}});
  cluster->ShardJoin(1, "second", 1, {}, cluster.now);
  EXPECT_EQ(cluster->epoch().number, 1u);
  EXPECT_THAT(cluster.Decisions(), ElementsAre("0:[0 1]"));
}

TEST(CoordinatorEpochs, ACoordinatorWithAJournalGoesOnWithItsDecisions) {
  Coordinator coordinator(
      {.rank_names = {"worker:0", "worker:1"}, .shard_count = 2, .aggregate = 2, .may_go_back = true},
      kStart);
  coordinator.Resume({.number = 5, .step = 10}, 13, {{12, {0, 1}}}, 10);
  for (const int shard : {0, 1}) coordinator.ShardJoin(shard, "new", 5, {}, kStart);
  EXPECT_EQ(coordinator.epoch(), (Epoch{.number = 5, .step = 10}));
  EXPECT_EQ(coordinator.decisions().at(12), (std::vector<int>{0, 1}));
  for (const int shard : {0, 1}) {
    coordinator.Report(shard, {.epoch = 5, .step = 12, .held = {{12, 0}, {13, 0}, {13, 1}}}, kStart);
  }
  EXPECT_EQ(coordinator.decisions().at(13), (std::vector<int>{0, 1})) << "and chooses no step again";
  EXPECT_EQ(coordinator.decisions().size(), 2u);
  coordinator.ShardJoin(1, "newer", 0, {}, kStart);
  EXPECT_EQ(coordinator.epoch().number, 6u) << "without its journal";
}

TEST(CoordinatorEpochs, WithoutCheckpointsAReplacedShardIsTheEnd) {
  Coordinator coordinator({.rank_names = {"worker:0"}, .shard_count = 2}, kStart);
  coordinator.ShardJoin(0, "a", 0, {}, kStart);
  coordinator.ShardJoin(1, "b", 0, {}, kStart);
  EXPECT_FALSE(coordinator.end());
  coordinator.ShardJoin(1, "c", 0, {}, kStart);
  ASSERT_TRUE(coordinator.end());
  EXPECT_EQ(coordinator.end()->code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace muster
