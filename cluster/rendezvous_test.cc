#include "cluster/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>

#include "base/random.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::_;
using testing::ElementsAre;
using testing::HasSubstr;

class RendezvousTest : public testing::Test {
 protected:
  static std::vector<std::string> Names(int ranks) {
    std::vector<std::string> names;
    for (int rank = 0; rank < ranks; ++rank) names.push_back("worker:" + std::to_string(rank));
    return names;
  }
  void Make(int ranks, std::optional<int> min_ranks) {
    rendezvous_.emplace(RendezvousOptions{.rank_names = Names(ranks), .min_ranks = min_ranks}, now_);
    states_.assign(ranks, {});
  }
  void Resize(int ranks) {
    rendezvous_->Resize(Names(ranks), now_);
    states_.resize(ranks);
  }
  void Come(int rank, RankState state = {}) {
    states_[rank] = state;
    if (group().is_over) states_[rank].over = group().number;
    rendezvous_->Connect(rank, ++last_process_, now_);
    Report(rank);
  }
  // Its connection has broken, and it makes another one.
  void Reconnect(int rank) {
    rendezvous_->Disconnect(rank, "it has connected anew", now_);
    rendezvous_->Connect(rank, last_process_, now_);
    Report(rank);
  }
  void Report(int rank) { rendezvous_->Report(rank, states_[rank], now_); }
  void Enter() {
    for (const int rank : group().ranks) {
      states_[rank] = {.group = group().number, .is_in_it = true, .has_met = true};
      Report(rank);
    }
  }
  // With the parameters of a step that was made in this group.
  void Leave(int rank, uint64_t step, std::optional<int> unreachable = {}) {
    states_[rank].is_in_it = false;
    states_[rank].parameters = {.step = step, .group = states_[rank].group};
    states_[rank].unreachable = unreachable;
    Report(rank);
  }
  // In an operation in which it has waited so long for the others, and has given up, or been interrupted.
  void LeaveWaiting(int rank, uint64_t step, Duration waited, bool has_timed_out = false) {
    states_[rank].waited = waited;
    states_[rank].has_timed_out = has_timed_out;
    Leave(rank, step);
  }
  // All meet, and make no step, since one of them takes longer than others wait.
  void Stall(int late, uint64_t step) {
    Enter();
    const std::vector<int> ranks = group().ranks;
    Pass(seconds(5));
    for (const int rank : ranks) {
      if (rank != late) LeaveWaiting(rank, step, seconds(5), /*has_timed_out=*/true);
    }
    LeaveWaiting(late, step, {});
  }
  // With signs of life of all who are live.
  void Pass(Duration time) {
    const TimePoint until = now_ + time;
    while (now_ < until) {
      now_ = std::min(until, now_ + milliseconds(250));
      for (size_t rank = 0; rank < states_.size(); ++rank) {
        if (rendezvous_->is_live(rank)) Report(rank);
      }
      rendezvous_->Tick(now_);
    }
  }
  const RankGroup& group() const { return rendezvous_->group(); }
  std::string End() const { return rendezvous_->end() ? rendezvous_->end()->ToString() : ""; }

  TimePoint now_ = TimePoint() + std::chrono::hours(1);
  uint64_t last_process_ = 0;
  std::optional<Rendezvous> rendezvous_;
  std::vector<RankState> states_;
};

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

TEST_F(RendezvousTest, AnotherProcessOfWhoIsLateIsWelcome) {
  Make(2, 1);
  Come(0);
  Come(1);
  Stall(1, 4);
  EXPECT_THAT(group().ranks, ElementsAre(0));
  Enter();
  Come(1);
  Leave(0, 6);
  EXPECT_THAT(group().ranks, ElementsAre(0, 1));
}

TEST_F(RendezvousTest, WhoIsLateAndConnectsAnewIsNot) {
  Make(2, 1);
  Come(0);
  Come(1);
  Stall(1, 4);
  EXPECT_THAT(group().ranks, ElementsAre(0));
  Enter();
  Reconnect(1);
  Leave(0, 6);
  EXPECT_THAT(group().ranks, ElementsAre(0));
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

// Ranks that die, stop, come back, lose their links and complain, at random. What they have is the step of
// their parameters; a group makes steps while all of its ranks are in it.
class Simulation {
 public:
  // Elastic: ranks join the job, and leave it, too.
  Simulation(int ranks, std::optional<int> min_ranks, bool is_elastic, uint64_t seed)
      : random_(seed), is_elastic_(is_elastic), processes_(ranks) {
    options_ = {.rank_names = Names(ranks), .min_ranks = min_ranks};
    rendezvous_.emplace(options_, now_);
    for (int rank = 0; rank < ranks; ++rank) Start(rank);
  }

  void Run(int events) {
    for (int i = 0; i < events && !testing::Test::HasFailure(); ++i) {
      now_ += milliseconds(random_() % 100);
      Disturb();
      GoOn();
    }
    // Without disturbances all are soon in one group.
    is_calm_ = true;
    for (Process& process : processes_) process.is_stopped = false;
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      if (!processes_[rank].is_up) Start(static_cast<int>(rank));
    }
    for (int i = 0; i < 300 && !testing::Test::HasFailure(); ++i) {
      now_ += milliseconds(100);
      GoOn();
    }
    const RankGroup& group = rendezvous_->group();
    EXPECT_FALSE(rendezvous_->end().has_value()) << *rendezvous_->end();
    EXPECT_FALSE(group.is_over) << group.why;
    EXPECT_EQ(group.ranks.size(), processes_.size());
    for (const Process& process : processes_) EXPECT_EQ(process.state.group, group.number);
    EXPECT_EQ(processes_[0].parameters, processes_[1].parameters);
  }

  uint64_t groups() const { return formed_.size(); }

 private:
  struct Process {
    bool is_up = false, is_stopped = false;
    std::optional<ParametersVersion> parameters;
    uint64_t bits = 0;  // a digest of the steps that were made, and in which groups
    RankState state;
  };

  static std::vector<std::string> Names(size_t ranks) {
    std::vector<std::string> names;
    for (size_t rank = 0; rank < ranks; ++rank) names.push_back("worker:" + std::to_string(rank));
    return names;
  }

  void Resize(size_t ranks) {
    processes_.resize(ranks);
    options_.rank_names = Names(ranks);
    rendezvous_->Resize(Names(ranks), now_);
  }

  void Start(int rank) {
    processes_[rank] = {.is_up = true};
    if (rank == 0) {
      // The coordinator goes with it: whoever is left comes again.
      options_.first_number += 1'000'000;
      rendezvous_.emplace(options_, now_);
      for (size_t other = 1; other < processes_.size(); ++other) {
        if (!processes_[other].is_up) continue;
        Leave(other);
        rendezvous_->Connect(static_cast<int>(other), ++last_process_, now_);
      }
    }
    rendezvous_->Connect(rank, ++last_process_, now_);
  }

  void Leave(size_t rank) {
    Process& process = processes_[rank];
    process.state.is_in_it = false;
    process.state.parameters = process.parameters;
  }

  void Disturb() {
    const int rank = static_cast<int>(random_() % processes_.size());
    Process& process = processes_[rank];
    switch (random_() % 40) {
      case 0:
        if (!process.is_up) break;
        process.is_up = false;
        if (rank == 0) {
          Start(0);
        } else {
          rendezvous_->Disconnect(rank, "its connection was closed", now_);
        }
        break;
      case 1:
      case 2:
        if (!process.is_up) Start(rank);
        break;
      case 3:
        if (rank > 0) process.is_stopped = true;
        break;
      case 4:
      case 5:
        process.is_stopped = false;
        break;
      case 6:
        if (!process.is_up || process.is_stopped || !process.state.is_in_it) break;
        Leave(rank);
        process.state.unreachable = static_cast<int>(random_() % processes_.size());
        break;
      case 7:
        if (is_elastic_) Resize(2 + random_() % 5);
        break;
      default:
        break;
    }
  }

  void GoOn() {
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      Process& process = processes_[rank];
      if (!process.is_up || process.is_stopped) continue;
      rendezvous_->Report(static_cast<int>(rank), process.state, now_);
      Obey(rank);
    }
    rendezvous_->Tick(now_);
    Check();
    Train();
  }

  void Obey(size_t rank) {
    const RankGroup& group = rendezvous_->group();
    Process& process = processes_[rank];
    if (process.state.is_in_it && (group.is_over || group.number != process.state.group)) Leave(rank);
    if (group.is_over) process.state.over = group.number;
    if (process.state.is_in_it || group.is_over || group.number <= process.state.group) return;
    if (!std::binary_search(group.ranks.begin(), group.ranks.end(), rank)) return;
    process.state = {.group = group.number, .is_in_it = true, .has_met = true, .over = process.state.over};
    if (group.source || process.parameters) return;
    process.parameters = {.step = 0, .group = group.number};
    process.bits = 0;
  }

  // All in the group: they have got the parameters, and some make a step that others may miss.
  void Train() {
    const RankGroup& group = rendezvous_->group();
    if (group.is_over) return;
    for (const int rank : group.ranks) {
      const Process& process = processes_[rank];
      if (!process.is_up || process.is_stopped || !process.state.is_in_it ||
          process.state.group != group.number) {
        return;
      }
    }
    const Process source = processes_[group.source.value_or(group.ranks[0])];
    ASSERT_TRUE(source.parameters.has_value());
    for (const int rank : group.ranks) {
      Process& process = processes_[rank];
      if (group.source && random_() % 8 == 0 && !is_calm_) return Leave(rank);  // before it has got them
      if (group.source) {
        process.bits = source.bits;
      } else {
        EXPECT_EQ(process.bits, source.bits);
      }
      process.parameters = {.step = source.parameters->step, .group = group.number};
    }
    const bool is_whole = is_calm_ || random_() % 4 != 0;
    for (const int rank : group.ranks) {
      if (!is_whole && random_() % 2 == 0) continue;
      ++processes_[rank].parameters->step;
      processes_[rank].bits = Mix64(source.bits ^ group.number);
    }
    if (!is_whole) Leave(group.ranks[random_() % group.ranks.size()]);
  }

  void Check() {
    const RankGroup& group = rendezvous_->group();
    if (group.number == 0 || group.is_over) return;
    EXPECT_TRUE(std::is_sorted(group.ranks.begin(), group.ranks.end()));
    const auto [place, is_new] = formed_.emplace(group.number, group.ranks);
    const int min_ranks = std::min(options_.min_ranks.value_or(1), rendezvous_->rank_count());
    EXPECT_TRUE(!is_new || static_cast<int>(group.ranks.size()) >= min_ranks);
    EXPECT_EQ(place->second, group.ranks) << "two groups with the number " << group.number;
    EXPECT_TRUE(!is_new || formed_.rbegin()->first == group.number) << "a number below an earlier one";
  }

  std::mt19937_64 random_;
  const bool is_elastic_;
  TimePoint now_ = TimePoint() + std::chrono::hours(1);
  uint64_t last_process_ = 0;
  RendezvousOptions options_;
  std::optional<Rendezvous> rendezvous_;
  std::vector<Process> processes_;
  bool is_calm_ = false;
  std::map<uint64_t, std::vector<int>> formed_;
};

// MUSTER_SIMULATION_SEEDS: how many.
void Simulate(bool is_elastic) {
  const char* const given = std::getenv("MUSTER_SIMULATION_SEEDS");
  const uint64_t seeds = given == nullptr ? 1000 : std::strtoull(given, nullptr, 10);
  uint64_t groups = 0;
  for (uint64_t seed = 0; seed < seeds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const int ranks = 2 + static_cast<int>(seed % 5);
    std::optional<int> min_ranks = 1 + static_cast<int>(seed % ranks);
    if (is_elastic && seed % 3 == 0) min_ranks.reset();
    Simulation simulation(ranks, min_ranks, is_elastic, seed);
    simulation.Run(500);
    groups += simulation.groups();
  }
  EXPECT_GT(groups, 10 * seeds);
}

TEST(RendezvousSimulation, AllEndUpInOneGroup) { Simulate(/*is_elastic=*/false); }

TEST(RendezvousSimulation, AlsoWhenRanksJoinTheJobAndLeaveIt) { Simulate(/*is_elastic=*/true); }

}  // namespace
}  // namespace muster
