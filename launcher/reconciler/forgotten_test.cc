// Transcripts of hosts that come back without knowing of the tasks that ran there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/reconciler/script_testing.h"
#include "launcher/reconciler/task_life.h"

namespace muster::reconcile {
namespace {

using std::chrono::seconds;

// Whatever the first has come to unheard, and whatever another launcher takes that for.
constexpr uint32_t kNext = 1 + 2 * kMostRestarts + 1;

Desired WithRestarts(int most) {
  Desired desired = OnePsOneWorker();
  for (DesiredTask& task : desired.tasks) {
    task.follows_cluster = true;
    task.max_restarts = most;
  }
  return desired;
}

TaskReport Worker(uint32_t incarnation, uint32_t restarts, uint64_t generation) {
  TaskReport report = Script::Task("worker:0", kRunning, generation);
  report.incarnation = incarnation;
  report.restarts = restarts;
  return report;
}

TaskView WorkerOf(const Script& script) { return script.reconciler.GetView().tasks[1]; }

std::string LoseAndReturn(Script& script) {
  script.Lost("b");
  script.Wait(seconds(1));
  return script.Connected("b");
}

/// Of worker:0, which is the only one on b.
std::string SendAgain(Script& script, uint32_t port) {
  EXPECT_EQ(script.Stopped("b", {}), "lease b worker:0\n");
  EXPECT_EQ(script.Ready("b"), "");
  return script.Leased("b", "worker:0", port);
}

TEST(Forgotten, WhatAHostNoLongerKnowsOfIsStoppedThereAndThenStartedAgainAsALaterIncarnation) {
  Script script(WithRestarts(2));
  script.StartAll();
  EXPECT_EQ(LoseAndReturn(script), "persist 1 fixed\ncontents b\nstop b worker:0 v1\n") << "it may still run";
  EXPECT_EQ(WorkerOf(script).state, TaskState::kLost);
  EXPECT_EQ(WorkerOf(script).report->reason, "b no longer knows of worker:0: its folder is gone");
  EXPECT_EQ(SendAgain(script, 20009),
            "persist 2 fixed\n"
            "start a ps:0 2 v1 10.0.0.1:20000 10.0.0.2:20009\n"
            "start b worker:0 2 v1 10.0.0.1:20000 10.0.0.2:20009\n");
  EXPECT_EQ(script.minimum_incarnation, kNext);
  EXPECT_EQ(script.restarts, 1u);
  EXPECT_EQ(script.reconciler.record().base_generation, 1u) << "the others go on";
  EXPECT_EQ(script.Started("b", Worker(kNext, 1, 2)), "");
  EXPECT_EQ(WorkerOf(script).state, kRunning);
  EXPECT_EQ(script.Feed(HostReported{"b", 1, {}}), "") << "of an older connection";
}

TEST(Forgotten, EachTimeIsARestartAndWhenTheyAreUsedUpTheJobFailsForThatReason) {
  Script script(WithRestarts(2));
  script.StartAll();
  script.Report("b", {Worker(2, 1, 1)});  // one by its agent
  LoseAndReturn(script);
  SendAgain(script, 20001);
  EXPECT_EQ(script.restarts, 2u);
  script.Started("a", Script::Task("ps:0", kRunning, 2));
  script.Started("b", Worker(script.minimum_incarnation, 2, 2));
  script.Wait(seconds(1));
  LoseAndReturn(script);
  const std::optional<Outcome>& ending = script.reconciler.record().ending;
  ASSERT_TRUE(ending);
  EXPECT_EQ(ending->exit_code, 69);
  ASSERT_TRUE(ending->first_cause);
  EXPECT_EQ(ending->first_cause->task, "worker:0");
  EXPECT_EQ(ending->first_cause->what,
            "b no longer knows of worker:0: its folder is gone; its 2 restarts are used up");
}

TEST(Forgotten, WithoutRestartsTheJobFails) {
  Script script(WithRestarts(0));
  script.StartAll();
  EXPECT_EQ(LoseAndReturn(script), "persist 1 ending\nstop a all below 2\nstop b all below 2\n");
  EXPECT_EQ(script.reconciler.record().ending->message,
            "worker:0 on b failed: b no longer knows of worker:0: its folder is gone");
}

TEST(Forgotten, AnotherLauncherKnowsWhatRanThereAndCountsOn) {
  Script first(WithRestarts(3));
  first.StartAll();
  first.Report("b", {Worker(2, 1, 1)});
  EXPECT_EQ(first.Wait(seconds(1)), "persist 1 fixed\n");
  Script second(WithRestarts(3), first.reconciler.record());
  second.Feed(Tick{});
  second.Connected("a", {Script::Task("ps:0", kRunning)});
  second.Ready("a");
  EXPECT_EQ(second.Connected("b"), "persist 1 fixed\ncontents b\n")
      << "nothing happens before all hosts are there";
  EXPECT_EQ(WorkerOf(second).report->reason, "b no longer knows of worker:0: its folder is gone");
  EXPECT_EQ(second.Ready("b"), "stop b worker:0 v1\n");

  // Whoever comes next comes to the same.
  Script third(WithRestarts(3), second.reconciler.record());
  third.Feed(Tick{});
  third.Connected("a", {Script::Task("ps:0", kRunning)});
  third.Ready("a");
  third.Connected("b");
  EXPECT_EQ(third.Ready("b"), "stop b worker:0 v1\n");
  EXPECT_EQ(third.Stopped("b", {}), "lease b worker:0\n");
  third.Leased("b", "worker:0", 20001);
  EXPECT_EQ(third.minimum_incarnation, kNext + kMostRestarts + 1);
  EXPECT_EQ(third.restarts, 2u);

  // And if it has fixed the cluster, but nobody has heard of the start, that is not lost once more.
  Script fourth(WithRestarts(3), third.reconciler.record());
  fourth.Feed(Tick{});
  fourth.Connected("a", {Script::Task("ps:0", kRunning, 2)});
  fourth.Ready("a");
  fourth.Connected("b");
  EXPECT_EQ(fourth.Ready("b"), "start b worker:0 2 v1 10.0.0.1:20000 10.0.0.2:20001\n");
  EXPECT_EQ(fourth.minimum_incarnation, kNext + kMostRestarts + 1);
  EXPECT_EQ(fourth.restarts, 2u);
}

// Its folder was on a disk that was only mounted late.
TEST(Forgotten, WhatHasBeenForgottenStaysSoWhateverItsHostSaysLater) {
  Script first(WithRestarts(3));
  first.StartAll();
  LoseAndReturn(first);
  first.Lost("b");
  first.Wait(seconds(1));
  EXPECT_EQ(first.Connected("b", {Worker(1, 0, 1)}), "persist 1 fixed\ncontents b\nstop b worker:0 v1\n");
  const TaskReport stopped = Script::Ended("worker:0", 143, 1, true);
  EXPECT_EQ(first.Stopped("b", {stopped}), "lease b worker:0\n");

  Script second(WithRestarts(3), first.reconciler.record());
  second.Feed(Tick{});
  second.Connected("a", {Script::Task("ps:0", kRunning)});
  second.Ready("a");
  EXPECT_EQ(second.Connected("b", {stopped}), "persist 1 fixed\ncontents b\n")
      << "nobody has stopped the job";
  EXPECT_EQ(second.Ready("b"), "stop b worker:0 v1\n");
  EXPECT_EQ(second.Stopped("b", {stopped}), "lease b worker:0\n");
  EXPECT_EQ(second.Leased("b", "worker:0", 20001),
            "persist 2 fixed\n"
            "start a ps:0 2 v1 10.0.0.1:20000 10.0.0.2:20001\n"
            "start b worker:0 2 v1 10.0.0.1:20000 10.0.0.2:20001\n");
  EXPECT_EQ(second.restarts, 1u) << "of this one loss";
}

TEST(Forgotten, OfAnotherSpecNoRestartsCount) {
  Script first(WithRestarts(1));
  first.StartAll();
  first.Report("b", {Worker(2, 1, 1)});
  first.Wait(seconds(1));
  Desired changed = WithRestarts(1);
  changed.tasks[1].spec_hash = "v2";
  Script second(changed, first.reconciler.record());
  second.Feed(Tick{});
  second.Connected("a", {Script::Task("ps:0", kRunning)});
  second.Ready("a");
  second.Connected("b");
  EXPECT_EQ(second.Ready("b"), "stop b worker:0 v1\n");
  EXPECT_EQ(second.Stopped("b", {}), "lease b worker:0\n");
  second.Leased("b", "worker:0", 20001);
  EXPECT_GT(second.minimum_incarnation, 2u);
  EXPECT_EQ(second.restarts, 0u);
}

TEST(Forgotten, WhatCannotBeStoppedThereIsStartedElsewhere) {
  Desired desired = WithRestarts(1);
  desired.hosts.push_back({"c", "10.0.0.3", {"program"}});
  desired.tasks[1].spares = {"c"};
  Script script(desired);
  script.StartAll();
  LoseAndReturn(script);
  for (int attempt = 0; attempt < 2; ++attempt) {
    script.Stopped("b", {}, /*processes_left=*/1);
    EXPECT_EQ(script.Wait(seconds(2)), "stop b worker:0 v1\n");
  }
  EXPECT_EQ(script.Stopped("b", {}, /*processes_left=*/1), "persist 1 fixed\nconnect c\n");
  EXPECT_EQ(script.Connected("c"), "contents c\nlease c worker:0\n");
  script.Ready("c");
  script.Leased("c", "worker:0", 20001);
  EXPECT_EQ(script.minimum_incarnation, kNext + kMostRestarts + 1);
  EXPECT_EQ(script.restarts, 1u) << "a move is none";
  script.Started("a", Script::Task("ps:0", kRunning, 2));
  script.Started("c", Worker(script.minimum_incarnation, 1, 2));
  script.Wait(seconds(1));
  // At the next contact.
  EXPECT_EQ(script.Wait(seconds(9)), "connect b\n");
  EXPECT_EQ(script.Connected("b"), "persist 2 fixed\nstop b worker:0 v1\n");
}

TEST(Forgotten, WhatAHostThatWasGivenUpForgetsIsStartedThereAgain) {
  Desired desired = WithRestarts(0);
  desired.tasks[0].ends_with_others = false;
  desired.tasks[1].can_be_missing = true;
  desired.max_missing = 1;
  Script script(desired);
  script.StartAll();
  script.Lost("b");
  script.Wait(seconds(61));
  EXPECT_EQ(WorkerOf(script).state, TaskState::kLost);
  script.Wait(seconds(10));
  EXPECT_EQ(script.Connected("b"), "persist 1 fixed\ncontents b\nstop b worker:0 v1\n");
  EXPECT_EQ(SendAgain(script, 20001),
            "persist 2 fixed\n"
            "start a ps:0 2 v1 10.0.0.1:20000 10.0.0.2:20001\n"
            "start b worker:0 2 v1 10.0.0.1:20000 10.0.0.2:20001\n");
  EXPECT_EQ(script.minimum_incarnation, kNext);
}

// Those that others cannot do without are started again where they were; the others, which do not follow
// their cluster, are too, as when a host moves.
TEST(Forgotten, OthersThatDoNotFollowTheirClusterAreStartedAgain) {
  Desired desired = WithRestarts(1);
  desired.tasks[0].follows_cluster = false;
  Script script(desired);
  script.StartAll();
  LoseAndReturn(script);
  EXPECT_EQ(SendAgain(script, 20001),
            "persist 2 fixed\n"
            "stop a ps:0 v1\n"
            "start b worker:0 2 v1 10.0.0.1:20000 10.0.0.2:20001\n");
}

TEST(Forgotten, WhatIsToLeaveIsStoppedWhereItWasHeardOfOnAnOlderConnection) {
  Desired desired = WithRestarts(2);
  desired.elastic = true;
  Desired before = desired;
  before.tasks.push_back(before.tasks.back());
  before.tasks.back().id = "worker:1";
  Script first(before);
  first.StartAll();
  first.Leased("b", "worker:1", 20002);

  Script script(desired, first.reconciler.record());
  script.Feed(Tick{});
  script.Connected("b", {Worker(1, 0, 1), Script::Task("worker:1", kRunning)});
  EXPECT_EQ(LoseAndReturn(script), "persist 1 fixed\ncontents b\n");
  script.Ready("b");
  script.Connected("a", {Script::Task("ps:0", kRunning)});
  EXPECT_EQ(script.Ready("a"), "stop b worker:1 v1 worker:0 v1\n");
}

TEST(Forgotten, WhatHasComeBackToItsFirstHostIsNotForgottenThere) {
  Desired desired = WithRestarts(3);
  desired.hosts.push_back({"c", "10.0.0.3", {"program"}});
  desired.tasks[1].spares = {"b", "c"};
  Script script(desired);
  script.StartAll();
  script.Lost("b");
  script.Wait(seconds(61));
  script.Connected("c");
  script.Leased("c", "worker:0", 20002);
  script.Wait(seconds(10));
  const std::vector<TaskReport> running = {Script::Task("worker:0", kRunning)};
  script.Connected("b", running);
  for (int i = 0; i < 3; ++i) {
    script.Refused("c", "contents", Internal("no space left"));
    script.Wait(seconds(2));
  }
  ASSERT_EQ(WorkerOf(script).host, "b");
  script.Lost("b");
  script.Wait(seconds(1));
  EXPECT_THAT(script.Connected("b", running), testing::Not(testing::HasSubstr("stop")));
  EXPECT_FALSE(script.reconciler.GetView().ending);
}

TEST(Forgotten, AStartWithoutAnAnswerMayHaveBegunWhatIsForgotten) {
  Desired desired = WithRestarts(0);
  desired.tasks[1].follows_cluster = false;
  Script script(desired);
  script.StartAll();
  script.Feed(ServersMoved{});
  EXPECT_EQ(script.Stopped("b", {Script::Ended("worker:0", 143, 1, true)}),
            "start b worker:0 2 v1 10.0.0.1:20000 10.0.0.2:20001\n");
  EXPECT_EQ(LoseAndReturn(script), "persist 2 fixed\ncontents b\nstop b worker:0 v1\n");
  EXPECT_EQ(SendAgain(script, 20001),
            "persist 3 fixed\n"
            "start b worker:0 3 v1 10.0.0.1:20000 10.0.0.2:20001\n");
  EXPECT_GE(script.minimum_incarnation, kNext) << "others may have seen what is forgotten";
  EXPECT_EQ(script.restarts, 0u) << "it was to be started anyway";
}

TEST(Forgotten, AServerThatHadItsOnlyCheckpointsThereDoesNotBeginAnew) {
  Desired desired = WithRestarts(3);
  desired.tasks[1].needs_its_folder = true;
  Script script(desired);
  script.StartAll();
  LoseAndReturn(script);
  const std::optional<Outcome>& ending = script.reconciler.record().ending;
  ASSERT_TRUE(ending);
  EXPECT_EQ(ending->first_cause->what,
            "b no longer knows of worker:0: its folder is gone, and what it had kept there");
}

// A machine that was set back to an older image of its disk.
TEST(Forgotten, AHostThatKnowsOnlyOfAnOlderIncarnationHasLostTheNewerOne) {
  Script script(WithRestarts(3));
  script.StartAll();
  script.Report("b", {Worker(2, 1, 1)});
  script.Lost("b");
  script.Wait(seconds(1));
  EXPECT_EQ(script.Connected("b", {Worker(1, 0, 1)}), "persist 1 fixed\ncontents b\nstop b worker:0 v1\n");
  EXPECT_EQ(script.Stopped("b", {Script::Ended("worker:0", 143, 1, true)}), "lease b worker:0\n");
  EXPECT_FALSE(script.reconciler.GetView().ending);
}

}  // namespace
}  // namespace muster::reconcile
