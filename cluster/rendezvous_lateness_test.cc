// Groups that make no step, and ranks that others wait for in vain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/rendezvous_testing.h"

namespace muster {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(RendezvousTest, NorThoseWhoMeetAndMakeNoStep) {
  Make(2, {});
  Come(0);
  Come(1);
  Enter();
  for (const int rank : {0, 1}) Leave(rank, 7);
  for (uint64_t groups = 2; End().empty(); ++groups) {
    ASSERT_EQ(group().number, groups);
    ASSERT_LE(groups, 4u + 600 / 50);
    Enter();
    Pass(seconds(50));
    for (const int rank : {0, 1}) Leave(rank, 7);
  }
  EXPECT_EQ(End(),
            "DEADLINE_EXCEEDED: worker:0 has left the group: its log says why: tried for 10m00s in vain");
}

TEST_F(RendezvousTest, AStepMayTakeLongerThanTheyTry) {
  Make(2, {});
  Come(0);
  Come(1);
  for (uint64_t step = 0; step < 5; ++step) {
    Enter();
    Pass(seconds(700));
    for (const int rank : {0, 1}) Leave(rank, step);
    EXPECT_FALSE(group().is_over);
    Enter();
    Pass(seconds(700));
    rendezvous_->Disconnect(1, "its connection was closed", now_);
    Leave(0, step);
    Come(1);
  }
  EXPECT_EQ(End(), "");
}

TEST_F(RendezvousTest, WhoIsWaitedForInVainIsNamedAtTheEnd) {
  Make(3, {});
  rendezvous_.emplace(RendezvousOptions{.rank_names = Names(3), .return_timeout = seconds(5)}, now_);
  for (int rank = 0; rank < 3; ++rank) Come(rank);
  Stall(1, 0);
  EXPECT_EQ(End(), "");
  EXPECT_THAT(rendezvous_->TakeNotices(),
              ElementsAre("others have waited 5s in vain for worker:1, which lives",
                          HasSubstr("with 3 of 3 workers")));
  Stall(1, 0);
  EXPECT_EQ(
      End(),
      "DEADLINE_EXCEEDED: others have waited 5s in vain for worker:1, which lives: tried for 5s in vain");
}

TEST_F(RendezvousTest, WhoComputesForEverIsNamedToo) {
  Make(2, {});
  Come(0);
  Come(1);
  Enter();
  LeaveWaiting(0, 3, seconds(600), /*has_timed_out=*/true);
  EXPECT_EQ(group().why, "worker:0 has waited in vain for others: its log says for whom");
  Pass(seconds(590));
  EXPECT_EQ(End(), "");
  Pass(seconds(10));
  EXPECT_EQ(
      End(),
      "DEADLINE_EXCEEDED: worker:1 is still busy with its step or an evaluation: waited 10m00s in vain");
}

// In a ring rank 0 waits for rank 2, which waits for rank 1.
TEST_F(RendezvousTest, TheOthersGoOnWithoutWhoIsLateForEverLonger) {
  Make(3, 1);
  rendezvous_.emplace(RendezvousOptions{.rank_names = Names(3), .min_ranks = 1, .return_timeout = seconds(5)},
                      now_);
  for (int rank = 0; rank < 3; ++rank) Come(rank);
  Enter();
  LeaveWaiting(0, 0, seconds(5), /*has_timed_out=*/true);
  LeaveWaiting(2, 0, seconds(4));
  EXPECT_TRUE(group().is_over) << "rank 1 may be about to say that it waits, too";
  Pass(seconds(2));
  EXPECT_THAT(group().ranks, ElementsAre(0, 2));
  EXPECT_THAT(
      rendezvous_->TakeNotices(),
      ElementsAre("others have waited 5s in vain for worker:1, which lives: they go on without for 10s",
                  HasSubstr("with 2 of 3 workers")));
  Leave(1, 0);
  uint64_t step = 0;
  for (const int pause : {10, 20, 40}) {
    Enter();
    Pass(seconds(pause - 3));
    EXPECT_FALSE(group().is_over);
    Pass(seconds(3));
    EXPECT_EQ(group().why, "worker:1 takes part from now on");
    step += 10;
    for (const int rank : {0, 2}) Leave(rank, step);
    EXPECT_THAT(group().ranks, ElementsAre(0, 1, 2));
    Stall(1, step);
    EXPECT_THAT(group().ranks, ElementsAre(0, 2));
  }
  // Once it has kept up that is forgiven.
  Enter();
  Pass(seconds(80));
  for (const int rank : {0, 2}) Leave(rank, step);
  Stall(1, step + 1);
  EXPECT_THAT(group().ranks, ElementsAre(0, 2));
  Enter();
  Pass(seconds(10));
  EXPECT_EQ(group().why, "worker:1 takes part from now on");
  EXPECT_EQ(End(), "");
}

TEST_F(RendezvousTest, WhoIsLateIsTakenBackWhereThereWouldBeTooFew) {
  Make(3, 2);
  for (int rank = 0; rank < 3; ++rank) Come(rank);
  Stall(0, 4);
  EXPECT_THAT(group().ranks, ElementsAre(1, 2));
  Enter();
  rendezvous_->Disconnect(2, "its connection was closed", now_);
  Leave(1, 6);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1));
  EXPECT_EQ(group().source, 1);
}

TEST_F(RendezvousTest, OnlyAnotherProcessOfWhoIsLateIsWelcome) {
  for (const bool is_another : {true, false}) {
    Make(2, 1);
    Come(0);
    Come(1);
    Stall(1, 4);
    EXPECT_THAT(group().ranks, ElementsAre(0));
    Enter();
    is_another ? Come(1) : Reconnect(1);
    Leave(0, 6);
    EXPECT_EQ(group().ranks, is_another ? std::vector<int>({0, 1}) : std::vector<int>({0}));
  }
}

// Rank 2 came late as well, after an evaluation, say, and has waited for rank 1 since then.
TEST_F(RendezvousTest, WhoHasWaitedForWhoIsLateIsNotToBlame) {
  Make(3, 2);
  for (int rank = 0; rank < 3; ++rank) Come(rank);
  Enter();
  LeaveWaiting(0, 4, seconds(600), /*has_timed_out=*/true);
  LeaveWaiting(2, 4, seconds(240));
  Pass(seconds(2));
  EXPECT_THAT(group().ranks, ElementsAre(0, 2));
}

// Rank 1 hangs, so that rank 2 is needed, however late it was.
TEST_F(RendezvousTest, WhoHasNotComeBackIsNoneOfEnough) {
  Make(3, 2);
  for (int rank = 0; rank < 3; ++rank) Come(rank);
  Enter();
  for (const int rank : {0, 2}) LeaveWaiting(rank, 4, seconds(600), /*has_timed_out=*/rank == 0);
  Pass(seconds(700));
  ASSERT_THAT(group().ranks, ElementsAre(0, 2));
  Enter();
  LeaveWaiting(0, 9, seconds(600), /*has_timed_out=*/true);
  LeaveWaiting(2, 9, {});
  EXPECT_THAT(group().ranks, ElementsAre(0, 2));
  EXPECT_FALSE(group().is_over);
}

// Only it can say that all is done.
TEST_F(RendezvousTest, Rank0StaysOutForAShortTime) {
  Make(2, 1);
  Come(0);
  Come(1);
  for (int i = 0; i < 4; ++i) {
    Stall(0, 4);
    ASSERT_THAT(group().ranks, ElementsAre(1));
    Enter();
    Pass(seconds(11));
    EXPECT_EQ(group().why, "worker:0 takes part from now on");
    Leave(1, 4);
    ASSERT_THAT(group().ranks, ElementsAre(0, 1));
  }
}

// Their steps may take longer than that.
TEST_F(RendezvousTest, AConnectionThatBreaksAgainIsNoReasonToEnd) {
  Make(2, {});
  Come(0);
  Come(1);
  for (int i = 0; i < 3; ++i) {  // the first one has made steps
    Enter();
    Pass(seconds(700));
    for (const int rank : {0, 1}) Leave(rank, 4);
    EXPECT_EQ(End(), "");
    ASSERT_THAT(group().ranks, ElementsAre(0, 1));
  }
}

// It is their network, or there is nobody to blame.
TEST_F(RendezvousTest, WhereAllWaitForEachOtherNobodyStaysOut) {
  Make(2, 1);
  Come(0);
  Come(1);
  Enter();
  LeaveWaiting(0, 4, seconds(600), /*has_timed_out=*/true);
  LeaveWaiting(1, 4, seconds(590));
  EXPECT_THAT(group().ranks, ElementsAre(0, 1));
}

}  // namespace
}  // namespace muster
