// Transcripts: events in, and what has changed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/rendezvous_testing.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::_;
using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(RendezvousTest, TheFirstGroupIsOfAll) {
  Make(3, std::nullopt);
  Come(0);
  Come(2);
  Pass(seconds(299));
  EXPECT_TRUE(group().is_over);
  Come(1);
  EXPECT_FALSE(group().is_over);
  EXPECT_EQ(group().number, 1u);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1, 2));
  EXPECT_EQ(group().source, std::nullopt);
}

TEST_F(RendezvousTest, WhereFewerAreEnoughTheOthersAreWaitedForLessLong) {
  Make(4, 2);
  Come(0);
  Pass(seconds(100));
  EXPECT_TRUE(group().is_over);
  Come(2);
  Pass(seconds(20));
  Come(3);
  Pass(seconds(29));
  EXPECT_TRUE(group().is_over);
  Pass(seconds(1));
  EXPECT_THAT(group().ranks, ElementsAre(0, 2, 3));
  const std::string missing = "waiting for others: worker:1 has not connected";
  EXPECT_THAT(rendezvous_->TakeNotices(),
              ElementsAre(missing + "; worker:2 has not connected; worker:3 has not connected", _, _, _,
                          HasSubstr("with 3 of 4 workers")));
  Enter();
  Come(1);
  for (const int rank : {0, 2, 3}) Leave(rank, 5);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1, 2, 3));
}

TEST_F(RendezvousTest, OrTheJobEndsWithTheNamesOfTheOthers) {
  Make(3, 3);
  Come(0);
  Pass(seconds(301));
  EXPECT_TRUE(group().is_over);
  EXPECT_THAT(End(), HasSubstr("DEADLINE_EXCEEDED: worker:1 has not connected; worker:2 has not connected"));
}

// A process that an earlier job has left behind is told, and makes room for the one that belongs here.
TEST_F(RendezvousTest, WhoIsRefusedEndsNothingIfAnotherOfItsTaskComes) {
  Make(2, std::nullopt);
  Come(0);
  rendezvous_->Refuse(1, "its hash is another", now_);
  Pass(seconds(9));
  EXPECT_EQ(End(), "");
  EXPECT_THAT(rendezvous_->TakeNotices(),
              ElementsAre("waiting for others: worker:1 was refused: its hash is another"));
  Come(1);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1));
  Pass(seconds(60));
  EXPECT_EQ(End(), "");
}

// Who mistyped its flags is started with them again.
TEST_F(RendezvousTest, OtherwiseItEndsWhatHasNotBegun) {
  Make(2, std::nullopt);
  Come(0);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(End(), "");
    rendezvous_->Refuse(1, "its hash is another", now_);
    Pass(seconds(3));
  }
  EXPECT_EQ(End(), "FAILED_PRECONDITION: worker:1 was refused: its hash is another");
}

TEST_F(RendezvousTest, WhoIsNotNeededIsRefusedAndThatIsAll) {
  Make(3, 2);
  for (const int rank : {0, 1}) Come(rank);
  rendezvous_->Refuse(2, "its hash is another", now_);
  Pass(seconds(60));
  EXPECT_THAT(group().ranks, ElementsAre(0, 1));
  // It has begun under another rank 0.
  Make(2, std::nullopt);
  Come(0);
  rendezvous_->Refuse(0, "its hash is another", now_);  // by who is there already
  Come(1, {.group = 8, .parameters = ParametersVersion{.step = 5, .group = 8}});
  EXPECT_THAT(group().ranks, ElementsAre(0, 1));
  Make(3, std::nullopt);
  Come(0);
  Come(1, {.group = 8, .parameters = ParametersVersion{.step = 5, .group = 8}});
  rendezvous_->Refuse(2, "its hash is another", now_);
  Pass(seconds(60));
  EXPECT_EQ(End(), "");
  Pass(seconds(600));
  EXPECT_EQ(End(), "DEADLINE_EXCEEDED: worker:2 was refused: its hash is another: waited 10m00s in vain");
}

// Else it would go on from less than there is, and what there is be overwritten.
TEST_F(RendezvousTest, NoJobBeginsWithoutWhatSomebodyStillReads) {
  Make(3, 1);
  for (const int rank : {0, 1}) Come(rank);
  rendezvous_->Connect(2, ++last_process_, now_);
  Pass(seconds(60));
  EXPECT_EQ(group().number, 0u);
  EXPECT_THAT(rendezvous_->TakeNotices(),
              testing::Contains("waiting for others: worker:2 has connected, but is not ready yet"));
  states_[2].parameters = ParametersVersion{.is_live = false, .step = 20, .group = 0xab};
  Report(2);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1, 2));
  EXPECT_EQ(group().source, 2);
  // Nor where all that it began with are there, and one that has joined since reads.
  rendezvous_.emplace(RendezvousOptions{.rank_names = Names(3), .first_ranks = 2}, now_);
  states_.assign(3, {});
  for (const int rank : {0, 1}) Come(rank);
  rendezvous_->Connect(2, ++last_process_, now_);
  Pass(seconds(60));
  EXPECT_EQ(group().number, 0u);
  Report(2);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1, 2));
}

TEST_F(RendezvousTest, WhoDiesWhileItReadsIsNotWaitedFor) {
  Make(2, 2);
  Come(0);
  rendezvous_->Connect(1, ++last_process_, now_);
  rendezvous_->Disconnect(1, "it hung up", now_);
  Pass(seconds(301));
  EXPECT_THAT(End(), HasSubstr("DEADLINE_EXCEEDED: worker:1 has gone: it hung up: waited 5m00s in vain"));
  Make(2, 1);
  Come(0);
  rendezvous_->Connect(1, ++last_process_, now_);
  Pass(seconds(60));
  EXPECT_EQ(group().number, 0u);
  rendezvous_->Disconnect(1, "it hung up", now_);
  EXPECT_EQ(group().number, 0u);
  Pass(seconds(3));
  EXPECT_THAT(group().ranks, ElementsAre(0));
}

TEST_F(RendezvousTest, WhoConnectsAnewWhileItReadsIsWaitedFor) {
  Make(2, 1);
  Come(0);
  rendezvous_->Connect(1, /*process=*/7, now_);
  Pass(seconds(60));
  rendezvous_->Disconnect(1, "it has connected anew", now_);
  rendezvous_->Connect(1, /*process=*/7, now_);
  Pass(seconds(60));
  EXPECT_EQ(group().number, 0u);
}

TEST_F(RendezvousTest, WhoComesAtTheLastMomentMayReadForLonger) {
  for (const std::optional<int> min_ranks : {std::optional<int>(), std::optional(2)}) {
    Make(3, min_ranks);
    for (const int rank : {0, 1}) Come(rank);
    rendezvous_->Connect(2, ++last_process_, now_);
    Pass(seconds(20));
    rendezvous_->Disconnect(2, "it has connected anew", now_);
    rendezvous_->Connect(2, last_process_, now_);
    Pass(seconds(290));
    EXPECT_EQ(End(), "");
    EXPECT_EQ(group().number, 0u);
    Report(2);
    EXPECT_THAT(group().ranks, ElementsAre(0, 1, 2));
  }
}

TEST_F(RendezvousTest, WhoIsToReportHasTakenThePlaceOfOneThatWasRefused) {
  Make(2, std::nullopt);
  Come(0);
  rendezvous_->Refuse(1, "its hash is another", now_);
  rendezvous_->Connect(1, ++last_process_, now_);
  rendezvous_->Refuse(1, "its hash is another", now_);
  Pass(seconds(60));
  EXPECT_EQ(End(), "");
  Report(1);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1));
}

TEST_F(RendezvousTest, TheRestGoOnWithTheHighestStep) {
  Make(3, 2);
  for (int rank = 0; rank < 3; ++rank) Come(rank);
  Enter();
  rendezvous_->Disconnect(1, "its connection was closed", now_);
  EXPECT_TRUE(group().is_over);
  EXPECT_EQ(group().why, "worker:1 has gone: its connection was closed");
  Leave(0, 7);
  EXPECT_TRUE(group().is_over) << "rank 2 has not left";
  Leave(2, 8);
  EXPECT_EQ(group().number, 2u);
  EXPECT_THAT(group().ranks, ElementsAre(0, 2));
  EXPECT_EQ(group().source, 2);
  Enter();
  // It comes back with nothing.
  Come(1);
  EXPECT_TRUE(group().is_over);
  Leave(0, 9);
  Leave(2, 9);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1, 2));
  EXPECT_EQ(group().source, 0);
  EXPECT_EQ(group().number, 3u);
}

TEST_F(RendezvousTest, NobodyIsASourceWhereAllHaveTheSame) {
  Make(2, 1);
  Come(0);
  Come(1);
  Enter();
  Leave(0, 4);
  EXPECT_EQ(group().why, "worker:0 has left the group: its log says why");
  Leave(1, 4);
  EXPECT_EQ(group().number, 2u);
  EXPECT_EQ(group().source, std::nullopt);
}

TEST_F(RendezvousTest, WhoIsSilentIsLostWithinTwoSeconds) {
  Make(2, 1);
  Come(0);
  Come(1);
  Enter();
  for (int i = 0; i < 6; ++i) {
    EXPECT_FALSE(group().is_over);
    now_ += milliseconds(250);
    Report(0);
    rendezvous_->Tick(now_);
  }
  EXPECT_TRUE(group().is_over);
  EXPECT_THAT(group().why, HasSubstr("worker:1 has gone: nothing was heard of it"));
  Leave(0, 3);
  EXPECT_THAT(group().ranks, ElementsAre(0));
  // It was only stopped, and takes its old group for the present one.
  Enter();
  Report(1);
  EXPECT_FALSE(group().is_over) << "it still has to leave";
  Leave(1, 3);
  Leave(0, 5);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1));
  EXPECT_EQ(group().source, 0);
}

TEST_F(RendezvousTest, TooFewWaitForTheReturn) {
  Make(3, 3);
  for (int rank = 0; rank < 3; ++rank) Come(rank);
  Enter();
  rendezvous_->Disconnect(2, "its connection was closed", now_);
  Leave(0, 5);
  Leave(1, 5);
  Pass(seconds(590));
  EXPECT_TRUE(group().is_over);
  EXPECT_EQ(End(), "");
  Come(2);
  EXPECT_FALSE(group().is_over);
  EXPECT_EQ(group().source, 0);
  Enter();
  rendezvous_->Disconnect(2, "its connection was closed", now_);
  Leave(0, 6);
  Leave(1, 6);
  Pass(seconds(601));
  EXPECT_THAT(End(), HasSubstr("worker:2 has gone: its connection was closed: waited 10m"));
}

TEST_F(RendezvousTest, AFirstGroupThatFormsLateIsTriedAgain) {
  Make(2, 2);
  rendezvous_.emplace(
      RendezvousOptions{.rank_names = Names(2), .connect_timeout = seconds(60), .return_timeout = seconds(5)},
      now_);
  Come(0);
  Pass(seconds(30));
  Come(1);
  EXPECT_EQ(group().number, 1u);
  rendezvous_->Disconnect(1, "its connection was closed", now_);
  Pass(seconds(4));
  EXPECT_EQ(End(), "");
  states_[0].over = 1;
  Report(0);
  Come(1);
  EXPECT_EQ(group().number, 2u);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1));
  rendezvous_->Disconnect(1, "its connection was closed", now_);
  Pass(seconds(1));
  EXPECT_THAT(End(), HasSubstr("worker:1 has gone: its connection was closed: tried for 5s in vain"));
}

TEST_F(RendezvousTest, AReplacedRankZeroWaitsForTheOthersToFindIt) {
  Make(3, 1);
  Come(0);
  Come(1, {.group = 8, .parameters = {{.step = 40, .group = 8}}});
  EXPECT_TRUE(group().is_over);
  Pass(seconds(2));
  EXPECT_TRUE(group().is_over);
  Pass(seconds(1));
  EXPECT_EQ(group().number, 9u);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1));
  EXPECT_EQ(group().source, 1);
}

TEST_F(RendezvousTest, ACheckpointIsTheSourceWhereNobodyHasAnythingElse) {
  const auto checkpoint = [](uint64_t step, uint64_t digest) {
    return RankState{.parameters = ParametersVersion{.is_live = false, .step = step, .group = digest}};
  };
  Make(3, std::nullopt);
  Come(0);
  Come(1, checkpoint(40, 123));
  Come(2, checkpoint(30, 456));
  EXPECT_THAT(group().ranks, ElementsAre(0, 1, 2));
  EXPECT_EQ(group().source, 1);

  Make(2, std::nullopt);
  for (const int rank : {0, 1}) Come(rank, checkpoint(40, 123));
  EXPECT_FALSE(group().is_over);
  EXPECT_EQ(group().source, std::nullopt) << "they have the same";

  // What training has come to is worth more than a file that is of later, as of a group that there was.
  Make(2, std::nullopt);
  Come(0, checkpoint(40, 123));
  Come(1, {.group = 8, .parameters = {{.step = 35, .group = 8}}});
  Pass(seconds(5));
  EXPECT_EQ(group().source, 1);
}

TEST_F(RendezvousTest, ThoseWithoutParametersWaitForOneWhoHasThem) {
  Make(3, 1);
  Come(0);
  Come(1, {.group = 8});
  Pass(seconds(20));
  EXPECT_TRUE(group().is_over);
  Come(2, {.group = 8, .parameters = {{.step = 40, .group = 8}}});
  EXPECT_THAT(group().ranks, ElementsAre(0, 1, 2));
  EXPECT_EQ(group().source, 2);
}

TEST_F(RendezvousTest, OfTwoThatDoNotReachEachOtherTheHigherOneStaysOut) {
  Make(3, 2);
  for (int rank = 0; rank < 3; ++rank) Come(rank);
  Enter();
  Leave(1, 5, 2);
  EXPECT_EQ(group().why, "worker:1 does not reach worker:2");
  Leave(2, 5, 1);
  Leave(0, 5);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1));
  Enter();
  Pass(seconds(9));
  EXPECT_FALSE(group().is_over);
  Pass(seconds(2));
  EXPECT_TRUE(group().is_over) << "it may try again";
  Leave(0, 9);
  Leave(1, 9);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1, 2));
}

TEST_F(RendezvousTest, UnlessThereWouldBeTooFew) {
  Make(2, 2);
  Come(0);
  Come(1);
  Enter();
  Leave(0, 5, 1);
  Leave(1, 5, 0);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1));
  EXPECT_EQ(group().number, 2u);
}

TEST_F(RendezvousTest, ThoseWhoNeverMeetDoNotTryForEver) {
  Make(2, 2);
  Come(0);
  Come(1);
  for (int i = 0; i < 601 / 5; ++i) {
    EXPECT_EQ(End(), "");
    for (const int rank : {0, 1}) states_[rank] = {.group = group().number, .is_in_it = true};
    Pass(seconds(5));
    Leave(0, 0, 1);
    Leave(1, 0);
  }
  EXPECT_THAT(End(), HasSubstr("worker:0 does not reach worker:1: tried for 10m"));
}

TEST_F(RendezvousTest, NewRanksAreNotWaitedForAndTakePartOnceTheyAreThere) {
  Make(2, {});
  Come(0);
  Come(1);
  Enter();
  Resize(4);
  Pass(seconds(1000));
  EXPECT_FALSE(group().is_over);
  Come(3);
  EXPECT_EQ(group().why, "worker:3 takes part from now on");
  Leave(0, 7);
  Leave(1, 7);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1, 3));
  EXPECT_EQ(group().source, 0);
  EXPECT_THAT(rendezvous_->TakeNotices(), ElementsAre(HasSubstr("from step 7 with 3 of 4 workers")));
  Enter();
  Come(2);
  for (const int rank : {0, 1, 3}) Leave(rank, 9);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1, 2, 3));
}

TEST_F(RendezvousTest, WithoutAnotherWordThoseThatTheJobBeganWithAreWaitedFor) {
  Make(2, {});
  Come(0);
  Come(1);
  Enter();
  Resize(4);
  Come(2);
  Leave(0, 7);
  Leave(1, 7);
  Enter();
  ASSERT_THAT(group().ranks, ElementsAre(0, 1, 2));
  rendezvous_->Disconnect(2, "its connection was closed", now_);
  Leave(0, 8);
  Leave(1, 8);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1)) << "worker:2 has joined later";
  Enter();
  rendezvous_->Disconnect(1, "its connection was closed", now_);
  Leave(0, 9);
  Come(2);
  EXPECT_TRUE(group().is_over);
  Come(1);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1, 2));
}

TEST_F(RendezvousTest, ForTheFirstGroupToo) {
  rendezvous_.emplace(RendezvousOptions{.rank_names = Names(2), .min_ranks = 1}, now_);
  states_.assign(2, {});
  Resize(4);
  Come(0);
  Come(3);
  EXPECT_TRUE(group().is_over);
  Come(1);
  EXPECT_TRUE(group().is_over) << "if this is another rank 0, others know of earlier groups";
  Pass(seconds(3));
  EXPECT_THAT(group().ranks, ElementsAre(0, 1, 3)) << "worker:2 is about to come, or not";
}

TEST_F(RendezvousTest, ByAReplacedRankZeroThoseThatTheJobBeganWith) {
  rendezvous_.emplace(RendezvousOptions{.rank_names = Names(4), .first_ranks = 2}, now_);
  states_.assign(4, {});
  Come(0);
  Come(3, {.group = 8, .parameters = {{.step = 40, .group = 8}}});
  Pass(seconds(5));
  EXPECT_TRUE(group().is_over);
  Come(1, {.group = 8, .parameters = {{.step = 40, .group = 8}}});
  EXPECT_THAT(group().ranks, ElementsAre(0, 1, 3)) << "worker:2 has never come";
}

TEST_F(RendezvousTest, AReplacedRankZeroDoesNotBeginAloneWhereOthersHaveJoined) {
  rendezvous_.emplace(RendezvousOptions{.rank_names = Names(3), .first_ranks = 1}, now_);
  states_.assign(3, {});
  Come(0);
  Pass(seconds(1));
  EXPECT_TRUE(group().is_over);
  for (const int rank : {1, 2}) Come(rank, {.group = 8, .parameters = {{.step = 40, .group = 8}}});
  EXPECT_THAT(group().ranks, ElementsAre(0, 1, 2));
  EXPECT_EQ(group().source, 1);
}

TEST_F(RendezvousTest, WhoHasLeftTheJobOnceIsNotWaitedForWhenItIsToComeBack) {
  Make(3, {});
  for (int rank = 0; rank < 3; ++rank) Come(rank);
  Enter();
  Resize(2);
  Leave(0, 4);
  Leave(1, 4);
  Enter();
  Resize(3);
  rendezvous_->Disconnect(1, "its connection was closed", now_);
  Leave(0, 5);
  Come(1);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1)) << "worker:2 has not come back";
}

TEST_F(RendezvousTest, WhoLeavesTheJobIsNotWaitedFor) {
  Make(3, 3);
  for (int rank = 0; rank < 3; ++rank) Come(rank);
  Enter();
  Resize(2);
  EXPECT_EQ(group().why, "worker:2 leaves the job");
  Leave(1, 4);
  Leave(0, 5);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1));
  EXPECT_EQ(group().source, 0);
  Enter();
  Resize(3);
  EXPECT_FALSE(group().is_over);
  EXPECT_FALSE(rendezvous_->is_live(2));
}

TEST_F(RendezvousTest, NothingIsFormedWhenAllIsDone) {
  Make(2, 1);
  Come(0);
  Come(1);
  Enter();
  rendezvous_->Conclude(100);
  Leave(1, 100);
  Leave(0, 100);
  Pass(seconds(1000));
  EXPECT_EQ(group().number, 1u);
  EXPECT_EQ(End(), "");
}

// They may still be at the last thing that all do together.
TEST_F(RendezvousTest, WhoHangsUpWhenAllIsDoneEndsNoGroupOfOthers) {
  Make(2, std::nullopt);
  Come(0);
  Come(1);
  Enter();
  rendezvous_->Conclude(100);
  rendezvous_->Disconnect(0, "it hung up", now_);
  EXPECT_FALSE(group().is_over);
}

}  // namespace
}  // namespace muster
