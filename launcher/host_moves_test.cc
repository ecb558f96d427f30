#include "launcher/host_moves.h"

#include <absl/strings/match.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using reconcile::HostState;
using reconcile::TaskState;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// ps:0 on a, worker:0 on b.
reconcile::View ViewOf(uint64_t generation, const std::string& address_of_b) {
  const auto task = [&](const std::string& name, const std::string& host) {
    return reconcile::TaskView{
        .task = name,
        .host = host,
        .state = TaskState::kRunning,
        .report = reconcile::TaskReport{
            .task = name, .state = TaskState::kRunning, .generation = generation, .incarnation = 1}};
  };
  return {.phase = reconcile::Phase::kRunning,
          .generation = generation,
          .hosts = {{.host = "a", .state = HostState::kReady, .data_address = "10.0.0.1"},
                    {.host = "b", .state = HostState::kReady, .data_address = address_of_b}},
          .tasks = {task("ps:0", "a"), task("worker:0", "b")}};
}

reconcile::View Lost(reconcile::View view) {
  view.hosts[1].state = HostState::kLost;
  view.hosts[1].attempts = 1;
  return view;
}

// As lines.
class Moves {
 public:
  // Those that are over.
  std::vector<std::string> On(const reconcile::View& view, milliseconds at) {
    std::vector<std::string> lines;
    for (const HostMove& move : moves_.OnView(view, TimePoint() + at)) {
      (absl::StrContains(move.what, "rejoined") ? lines : begun).push_back(move.host + " " + move.what);
    }
    return lines;
  }

  size_t kept_states() const { return moves_.kept_states(); }

  std::vector<std::string> begun;  // all so far

 private:
  HostMoves moves_;
};

TEST(HostMoves, AreOverOnceAllTasksRunInTheNewestCluster) {
  Moves moves;
  EXPECT_THAT(moves.On(ViewOf(3, "10.0.0.2"), milliseconds(0)), IsEmpty());
  EXPECT_THAT(moves.On(Lost(ViewOf(3, "10.0.0.2")), milliseconds(1000)), IsEmpty());
  EXPECT_THAT(moves.On(Lost(ViewOf(3, "10.0.0.2")), milliseconds(1500)), IsEmpty());
  reconcile::View told = ViewOf(4, "10.0.0.7");
  told.tasks[0].report->generation = 3;
  EXPECT_THAT(moves.On(told, milliseconds(2000)), IsEmpty());
  EXPECT_THAT(moves.On(ViewOf(4, "10.0.0.7"), milliseconds(2800)),
              ElementsAre("b moved 10.0.0.2 -> 10.0.0.7, worker:0 rejoined after 1.8 s, 0 steps lost"));
  EXPECT_THAT(moves.On(ViewOf(4, "10.0.0.7"), milliseconds(3000)), IsEmpty());
  EXPECT_THAT(moves.begun, ElementsAre("b moved 10.0.0.2 -> 10.0.0.7"));
}

TEST(HostMoves, SayHowManyTasksWereStartedAgain) {
  Moves moves;
  EXPECT_THAT(moves.On(ViewOf(1, "10.0.0.2"), milliseconds(0)), IsEmpty());
  reconcile::View again = ViewOf(2, "10.0.0.7");
  again.tasks[1].report->incarnation = 2;
  again.tasks[1].state = TaskState::kRestarting;
  EXPECT_THAT(moves.On(again, milliseconds(100)), IsEmpty());
  again.tasks[1].state = TaskState::kRunning;
  EXPECT_THAT(
      moves.On(again, milliseconds(400)),
      ElementsAre("b moved 10.0.0.2 -> 10.0.0.7, worker:0 rejoined after 0.3 s, 1 of 2 tasks started again"));
  again = Lost(again);
  EXPECT_THAT(moves.On(again, milliseconds(500)), IsEmpty());
  again = ViewOf(3, "10.0.0.8");
  again.tasks[1].report->incarnation = 2;
  EXPECT_THAT(moves.On(again, milliseconds(900)),
              ElementsAre("b moved 10.0.0.7 -> 10.0.0.8, worker:0 rejoined after 0.4 s, 0 steps lost"));
}

TEST(HostMoves, AHostThatMovesTwiceBeforeItsTasksRunHasMovedOnce) {
  Moves moves;
  EXPECT_THAT(moves.On(ViewOf(1, "10.0.0.2"), milliseconds(0)), IsEmpty());
  reconcile::View view = ViewOf(2, "10.0.0.7");
  view.tasks[0].report->generation = 1;
  EXPECT_THAT(moves.On(view, milliseconds(100)), IsEmpty());
  EXPECT_THAT(moves.On(ViewOf(3, "10.0.0.8"), milliseconds(600)),
              ElementsAre("b moved 10.0.0.2 -> 10.0.0.8, worker:0 rejoined after 0.5 s, 0 steps lost"));
  EXPECT_THAT(moves.begun, ElementsAre("b moved 10.0.0.2 -> 10.0.0.7", "b moved 10.0.0.7 -> 10.0.0.8"));
}

TEST(HostMoves, ManyLostHostsKeepOneStateOfTheTasks) {
  Moves moves;
  const auto view_of = [](int lost) {
    reconcile::View view = ViewOf(1, "10.0.0.2");
    for (int i = 0; i < 100; ++i) {
      view.hosts.push_back({.host = "h" + std::to_string(i),
                            .state = i < lost ? HostState::kLost : HostState::kReady,
                            .data_address = "10.0.1." + std::to_string(i),
                            .attempts = i < lost ? 1 : 0});
    }
    return view;
  };
  EXPECT_THAT(moves.On(view_of(0), milliseconds(0)), IsEmpty());
  for (const int lost : {30, 60, 100}) EXPECT_THAT(moves.On(view_of(lost), milliseconds(lost)), IsEmpty());
  EXPECT_EQ(moves.kept_states(), 1u);
  // Another one is begun with the next start.
  reconcile::View again = Lost(view_of(100));
  again.tasks[1].report->incarnation = 2;
  EXPECT_THAT(moves.On(view_of(100), milliseconds(200)), IsEmpty());
  EXPECT_THAT(moves.On(again, milliseconds(300)), IsEmpty());
  EXPECT_EQ(moves.kept_states(), 2u);
}

// By whoever goes on with a job in the middle of a move.
TEST(HostMoves, SayNothingOfStepsWhereNobodyKnowsWhatRanBefore) {
  Moves moves;
  reconcile::View view = Lost(ViewOf(1, "10.0.0.2"));
  for (reconcile::TaskView& task : view.tasks) task.report.reset();
  view.tasks[0].state = view.tasks[1].state = TaskState::kPending;
  EXPECT_THAT(moves.On(view, milliseconds(0)), IsEmpty());
  EXPECT_THAT(moves.On(ViewOf(2, "10.0.0.7"), milliseconds(700)),
              ElementsAre("b moved 10.0.0.2 -> 10.0.0.7, worker:0 rejoined after 0.7 s"));
}

TEST(HostMoves, WhatIsKnownBetterThanByThePlanHasNotMoved) {
  Moves moves;
  EXPECT_THAT(moves.On(ViewOf(0, "10.0.0.2"), milliseconds(0)), IsEmpty());
  EXPECT_THAT(moves.On(ViewOf(1, "10.0.0.7"), milliseconds(100)), IsEmpty());
  EXPECT_THAT(moves.On(ViewOf(1, "10.0.0.7"), milliseconds(200)), IsEmpty());
}

}  // namespace
}  // namespace muster
