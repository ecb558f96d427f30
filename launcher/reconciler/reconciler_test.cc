// Transcripts: an event, then the exact actions it leads to. Of hosts that stay lost: lost_hosts_test.cc.
#include "launcher/reconciler/reconciler.h"

#include <gtest/gtest.h>

#include "launcher/reconciler/script_testing.h"

namespace muster::reconcile {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ReconcilerTest, FirstStartWaitsForTheGangAndPersistsBeforeItStarts) {
  Script script(OnePsOneWorker());
  EXPECT_EQ(script.Feed(Tick{}), "connect a\nconnect b\n");
  EXPECT_EQ(script.Connected("a"), "contents a\npersist 0 open\nlease a ps:0\n");
  EXPECT_EQ(script.Ready("a"), "");
  EXPECT_EQ(script.Leased("a", "ps:0", 20000), "");
  EXPECT_EQ(script.Connected("b"), "contents b\nlease b worker:0\n");
  EXPECT_EQ(script.Leased("b", "worker:0", 20001), "");
  EXPECT_EQ(script.Ready("b"),
            "persist 1 fixed\n"
            "start a ps:0 1 v1 10.0.0.1:20000 10.0.0.2:20001\n"
            "start b worker:0 1 v1 10.0.0.1:20000 10.0.0.2:20001\n");
}

TEST(ReconcilerTest, SuccessWaitsForTheServersToEndByThemselves) {
  Script script(OnePsOneWorker());
  script.StartAll();
  EXPECT_EQ(script.Report("b", {Script::Ended("worker:0", 0)}), "persist 1 ending\n");
  EXPECT_EQ(script.Report("a", {Script::Ended("ps:0", 0)}),
            "persist 1 ending\nfinish 0: all tasks succeeded\n");
  EXPECT_EQ(script.reconciler.NextDeadline(), TimePoint::max());
}

TEST(ReconcilerTest, ServersThatStayAfterSuccessAreStopped) {
  Script script(OnePsOneWorker());
  script.StartAll();
  script.Report("b", {Script::Ended("worker:0", 0)});
  EXPECT_EQ(script.Wait(seconds(9)), "");
  EXPECT_EQ(script.Wait(seconds(1)), "stop a all below 2\n");
  EXPECT_EQ(script.Stopped("a", {Script::Ended("ps:0", 143, 2, true)}),
            "persist 1 ending\nfinish 0: all tasks succeeded\n");
}

TEST(ReconcilerTest, ATaskThatFailedForGoodIsTheFirstCauseAndTheOthersAreConsequences) {
  Script script(OnePsOneWorker());
  script.StartAll();
  EXPECT_EQ(script.Report("b", {Script::Ended("worker:0", 137)}),
            "persist 1 ending\nstop a all below 2\nstop b all below 2\n");
  EXPECT_EQ(script.Stopped("b", {}), "");
  EXPECT_EQ(script.Stopped("a", {Script::Ended("ps:0", 143, 2, true)}),
            "persist 1 ending\n"
            "finish 137: worker:0 on b failed: exited (exit code 137, after 0 restarts)\n");
  EXPECT_EQ(script.outcome->first_cause->task, "worker:0");
  EXPECT_EQ(script.outcome->consequences, (std::vector<Casualty>{{"ps:0", "a", "stopped"}}));
}

TEST(ReconcilerTest, TheFirstCauseIsWhoDiedFirstNotWhoWasHeardFirst) {
  Script script(OnePsOneWorker());
  script.StartAll();
  script.Report("b", {Script::Ended("worker:0", 1, /*ended_micros=*/200)});
  script.Stopped("b", {});
  EXPECT_EQ(script.Stopped("a", {Script::Ended("ps:0", 139, /*ended_micros=*/100)}),
            "persist 1 ending\n"
            "finish 139: ps:0 on a failed: exited (exit code 139, after 0 restarts)\n");
  EXPECT_EQ(script.outcome->consequences,
            (std::vector<Casualty>{{"worker:0", "b", "exited (exit code 1, after 0 restarts)"}}));
}

TEST(ReconcilerTest, AHostThatIsLostWhileTheJobEndsIsNotTheFirstCause) {
  Desired desired = OnePsOneWorker();
  desired.hosts.push_back({"c", "10.0.0.3", {"program"}});
  desired.tasks.push_back({"worker:1", "c", "v1", true, false});
  Script script(desired);
  script.StartAll();
  script.Connected("c");
  script.Ready("c");
  script.Leased("c", "worker:1", 20002);
  script.Started("a", Script::Task("ps:0", TaskState::kRunning));
  script.Started("b", Script::Task("worker:0", TaskState::kRunning));
  script.Started("c", Script::Task("worker:1", TaskState::kRunning));
  script.Report("b", {Script::Ended("worker:0", 1, /*ended_micros=*/200)});
  script.Stopped("b", {});
  script.Wait(seconds(1));
  script.Lost("c");
  script.Wait(seconds(1));
  // The first that died is heard of only now, after the loss.
  script.Stopped("a", {Script::Ended("ps:0", 139, /*ended_micros=*/100)});
  script.Lost("c");
  script.Wait(seconds(10));
  script.Wait(seconds(10));
  ASSERT_TRUE(script.outcome);
  EXPECT_EQ(script.outcome->exit_code, 139) << script.outcome->message;
  EXPECT_EQ(script.outcome->first_cause->task, "ps:0");
  EXPECT_EQ(script.outcome->left_behind, std::vector<HostId>{"c"});
}

TEST(ReconcilerTest, RestartsOnAHostAreTheAgents) {
  Script script(OnePsOneWorker());
  script.StartAll();
  TaskReport restarting = Script::Task("worker:0", TaskState::kRestarting);
  restarting.exit_code = 137;
  EXPECT_EQ(script.Report("b", {restarting}), "");
  EXPECT_EQ(script.reconciler.GetView().tasks[1].state, TaskState::kRestarting);
}

TEST(ReconcilerTest, ALostConnectionAfterARestartIsNoLossOfState) {
  Script script(OnePsOneWorker());
  script.StartAll();
  TaskReport report = Script::Task("worker:0", TaskState::kRestarting);
  EXPECT_EQ(script.Report("b", {report}), "");
  report.incarnation = 2;
  for (const TaskState state : {TaskState::kPending, TaskState::kRunning}) {
    report.state = state;
    EXPECT_EQ(script.Report("b", {report}), "");
    EXPECT_EQ(script.reconciler.GetView().tasks[1].state, state);
  }
  script.Wait(seconds(1));
  // An agent that was killed and adopts what runs starts with less than its predecessor knew.
  for (const TaskState state : {TaskState::kRunning, TaskState::kPending}) {
    EXPECT_EQ(script.Lost("b"), "");
    EXPECT_EQ(script.Wait(seconds(1)), "connect b\n");
    report.state = state;
    EXPECT_EQ(script.Connected("b", {report}), "");
    script.Ready("b");
    EXPECT_EQ(script.reconciler.GetView().phase, Phase::kRunning);
  }
}

TEST(ReconcilerTest, StopEndsWith130) {
  Script script(OnePsOneWorker());
  script.StartAll();
  EXPECT_EQ(script.Feed(StopRequested{}), "persist 1 ending\nstop a all below 2\nstop b all below 2\n");
  EXPECT_EQ(script.Feed(StopRequested{}), "");
  script.Stopped("a", {Script::Ended("ps:0", 143, 2, true)});
  EXPECT_EQ(script.Stopped("b", {Script::Ended("worker:0", 143, 2, true)}),
            "persist 1 ending\nfinish 130: stopped on request\n");
  EXPECT_TRUE(script.outcome->consequences.empty()) << "that they stopped is what was asked for";
}

TEST(ReconcilerTest, AStopThatLeavesSomethingIsTriedAgainAndNamesTheHost) {
  for (const auto& [processes, ports] : {std::pair(1u, 0u), std::pair(0u, 1u)}) {
    Script script(OnePsOneWorker());
    script.StartAll();
    script.Feed(StopRequested{});
    script.Stopped("b", {});
    EXPECT_EQ(script.Stopped("a", {}, processes, ports), "");
    EXPECT_EQ(script.Wait(seconds(1)), "stop a all below 2\n");
    script.Wait(seconds(10));
    EXPECT_EQ(script.outcome->left_behind, std::vector<HostId>{"a"});
  }
}

TEST(ReconcilerTest, StopIsBoundedAndNamesWhoCouldNotBeReached) {
  Script script(OnePsOneWorker());
  script.StartAll();
  script.Feed(StopRequested{});
  script.Stopped("a", {});
  EXPECT_EQ(script.Wait(seconds(10)), "persist 1 ending\nfinish 130: stopped on request\n");
  EXPECT_EQ(script.outcome->left_behind, std::vector<HostId>{"b"});
}

TEST(ReconcilerTest, HostsNotReachedAreAllNamedAndNothingIsStarted) {
  Script script(OnePsOneWorker());
  script.Feed(Tick{});
  EXPECT_EQ(script.Lost("a", PermissionDenied("a: host key changed")), "");  // b may be wrong too
  EXPECT_EQ(script.Lost("b"), "");
  EXPECT_EQ(script.Wait(milliseconds(400)), "connect b\n");
  EXPECT_EQ(script.Lost("b", PermissionDenied("b: no such user")),
            "persist 0 ending\npersist 0 ending\n"
            "finish 69: nothing was started, because a host was not reached: a: host key changed; b: no such "
            "user\n");
}

TEST(ReconcilerTest, ASpareHostThatNobodyHasTriedIsNotNamed) {
  Desired desired = OnePsOneWorker();
  desired.hosts.push_back({"c", "10.0.0.3", {"program"}});
  desired.tasks[1].spares = {"c"};
  Script script(desired);
  script.Feed(Tick{});
  script.Lost("a", PermissionDenied("a: host key changed"));
  script.Lost("b", PermissionDenied("b: no such user"));
  EXPECT_EQ(script.outcome->message,
            "nothing was started, because a host was not reached: a: host key changed; b: no such user");
}

TEST(ReconcilerTest, ABlackHoleIsNamedAtTheConnectDeadline) {
  Script script(OnePsOneWorker());
  script.Feed(Tick{});
  script.Connected("a");
  script.Ready("a");
  script.Leased("a", "ps:0", 20000);
  EXPECT_EQ(script.Wait(seconds(10)), "");  // the first attempt is over
  EXPECT_EQ(script.Wait(seconds(1)), "connect b\n");
  EXPECT_EQ(script.Wait(seconds(4)),
            "persist 0 ending\nstop a all below 1\n");  // for its port
  EXPECT_EQ(script.Stopped("a", {}),
            "persist 0 ending\nfinish 69: nothing was started, because a host was not reached: b: no "
            "connection within its deadline\n");
}

TEST(ReconcilerTest, AHostOnItsWayHasAsLongAsItTakes) {
  Script script(OnePsOneWorker());
  script.Feed(Tick{});
  script.Connected("a");
  script.Ready("a");
  script.Leased("a", "ps:0", 20000);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(script.Wait(seconds(9)), "");
    EXPECT_EQ(script.Coming("b"), "");
  }
  // One that gets nowhere any more is tried again, and given up then.
  EXPECT_EQ(script.Wait(seconds(10)), "");
  EXPECT_EQ(script.Wait(seconds(1)), "connect b\n");
  EXPECT_EQ(script.Wait(seconds(4)), "persist 0 ending\nstop a all below 1\n");
}

// While another one takes longer.
TEST(ReconcilerTest, AHostThatIsLateForTheFirstStartIsNotMissed) {
  Script script(OnePsOneWorker());
  script.Feed(Tick{});
  EXPECT_EQ(script.Wait(seconds(9)), "");
  EXPECT_EQ(script.Coming("b"), "");
  EXPECT_EQ(script.Wait(seconds(3)), "");  // the first attempt is over
  EXPECT_EQ(script.Wait(seconds(1)), "connect a\n");
  EXPECT_EQ(script.ConnectedAt("a", ""), "");
  EXPECT_EQ(script.Coming("b"), "");
  EXPECT_EQ(script.Wait(seconds(4)), "");  // later than its time
  EXPECT_NE(script.Report("a", {}), "");
  script.Ready("a");
  script.Leased("a", "ps:0", 20000);
  script.Connected("b");
  script.Ready("b");
  const std::string all = script.Leased("b", "worker:0", 20001);
  EXPECT_NE(all.find("start b worker:0"), std::string::npos) << all;
}

// An end waits for it, however often it is asked for.
TEST(ReconcilerTest, AnEndWaitsForAHostOnItsWay) {
  Script script(OnePsOneWorker());
  script.StartAll();
  script.Lost("b");
  EXPECT_EQ(script.Wait(seconds(1)), "connect b\n");
  EXPECT_EQ(script.Feed(StopRequested{}), "persist 1 ending\nstop a all below 2\n");
  EXPECT_EQ(script.Stopped("a", {Script::Ended("ps:0", 143)}), "");
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(script.Wait(seconds(3)), "");
    EXPECT_EQ(script.Coming("b"), "");
    EXPECT_EQ(script.Feed(StopRequested{}), "");
  }
  EXPECT_EQ(script.Connected("b"), "stop b all below 2\n");
  EXPECT_EQ(script.Stopped("b", {Script::Ended("worker:0", 143)}),
            "persist 1 ending\nfinish 130: stopped on request\n");
}

TEST(ReconcilerTest, AHostThatReturnsInTimeGoesOn) {
  Script script(OnePsOneWorker());
  script.StartAll();
  EXPECT_EQ(script.Lost("b"), "");
  EXPECT_EQ(script.reconciler.GetView().tasks[1].state, TaskState::kLost);
  EXPECT_EQ(script.Wait(seconds(1)), "connect b\n");
  EXPECT_EQ(script.Connected("b", {Script::Task("worker:0", kRunning)}), "");
  EXPECT_EQ(script.reconciler.GetView().tasks[1].state, kRunning);
}

TEST(ReconcilerTest, AHostLostForTooLongFailsTheJob) {
  Script script(OnePsOneWorker(), {}, {.lost_deadline = seconds(5)});
  script.StartAll();
  script.Lost("b");
  EXPECT_EQ(script.Wait(seconds(1)), "connect b\n");
  script.Lost("b", Unavailable("b: no route"));
  EXPECT_EQ(script.Wait(seconds(4)), "persist 1 ending\nconnect b\nstop a all below 2\n");
  EXPECT_EQ(script.Stopped("a", {}), "");
  // It gets one more chance.
  script.Lost("b", Unavailable("b: no route"));
  EXPECT_EQ(script.Wait(seconds(4)), "connect b\n");
  EXPECT_EQ(script.Wait(seconds(1)), "persist 1 ending\nfinish 69: host lost: b: no route\n");
  EXPECT_EQ(script.outcome->first_cause->task, "worker:0");
  EXPECT_EQ(script.outcome->left_behind, std::vector<HostId>{"b"});
}

// sshd lets everybody in, and the agent's daemon hangs.
TEST(ReconcilerTest, AHostThatLetsOneInAndSaysNothingMoreIsLost) {
  Script script(OnePsOneWorker(), {}, {.lost_deadline = seconds(20)});
  script.StartAll();
  script.Lost("b");
  const auto seconds_until = [&](const std::string& wanted) {
    for (int second = 1; second <= 300; ++second) {
      const std::string lines = script.Wait(seconds(1));
      if (lines.find(wanted) != std::string::npos) return second;
      if (lines.find("connect b\n") != std::string::npos) script.LoggedIn("b");
    }
    return 1000;
  };
  const Options usual;
  EXPECT_LE(seconds_until("persist 1 ending\n"), 20 + usual.connect_attempt / seconds(1));
  EXPECT_EQ(script.Stopped("a", {}), "");
  EXPECT_LE(seconds_until("finish 69: host lost: b: "), usual.stop_deadline / seconds(1));
}

TEST(ReconcilerTest, AHostThatIsGoneWithADeadTasksServerIsTheFirstCause) {
  Script script(OnePsOneWorker());
  script.StartAll();
  script.Lost("a", Unavailable("a: no route"));
  script.Wait(milliseconds(100));
  script.Report("b", {Script::Ended("worker:0", 1)});
  script.Stopped("b", {});
  EXPECT_EQ(script.Wait(seconds(1)), "connect a\n");
  script.Lost("a", Unavailable("a: no route"));
  script.Wait(seconds(9));
  EXPECT_EQ(script.outcome->exit_code, 69);
  EXPECT_EQ(script.outcome->first_cause->task, "ps:0");
  EXPECT_EQ(script.outcome->consequences.size(), 1u);
}

TEST(ReconcilerTest, AHostWithoutItsStateHasLostItsTasks) {
  Script script(OnePsOneWorker());
  script.StartAll();
  script.Lost("b");
  script.Wait(seconds(1));
  EXPECT_EQ(script.Connected("b", {}), "persist 1 ending\nstop a all below 2\nstop b all below 2\n");
  EXPECT_EQ(script.reconciler.record().ending->exit_code, 69);
}

TEST(ReconcilerTest, ALostAnswerToAStartIsAskedForAgain) {
  Script script(OnePsOneWorker());
  script.GatherAll();
  script.Lost("a");
  script.Wait(seconds(1));
  EXPECT_EQ(script.Connected("a", {}), "start a ps:0 1 v1 10.0.0.1:20000 10.0.0.2:20001\n");
}

TEST(ReconcilerTest, OldAndDoubledMessagesChangeNothing) {
  Script script(OnePsOneWorker());
  script.StartAll();
  EXPECT_EQ(script.Ready("a"), "");
  EXPECT_EQ(script.Leased("a", "ps:0", 20007), "");
  EXPECT_EQ(script.Feed(HostFailed{"a", 0, Unavailable("an older connection")}), "");
  TaskReport second = Script::Task("worker:0", kRunning);
  second.incarnation = 2;
  EXPECT_EQ(script.Report("b", {second}), "");
  EXPECT_EQ(script.Report("b", {Script::Ended("worker:0", 1)}), "");  // of incarnation 1
  EXPECT_EQ(script.Feed(HostConnected{"nobody", 1}), "");
}

TEST(ReconcilerTest, ANewLauncherAdoptsWhatRunsAndRedeploysOnlyWhatChanged) {
  Script first(OnePsOneWorker());
  first.StartAll();
  Desired changed = OnePsOneWorker();
  changed.tasks[1].spec_hash = "v2";
  Script second(changed, first.reconciler.record());
  second.Feed(Tick{});
  EXPECT_EQ(second.Connected("b", {Script::Task("worker:0", kRunning)}), "contents b\n");
  second.Connected("a", {Script::Task("ps:0", kRunning)});
  second.Ready("b");
  EXPECT_EQ(second.Ready("a"), "stop b worker:0 v1\n");
  EXPECT_EQ(second.Stopped("b", {Script::Ended("worker:0", 143, 1, true)}),
            "start b worker:0 1 v2 10.0.0.1:20000 10.0.0.2:20001\n");
}

TEST(ReconcilerTest, AMovedTaskMakesANewGeneration) {
  Script first(OnePsOneWorker());
  first.StartAll();
  Desired moved = OnePsOneWorker();
  moved.tasks[1].host = "a";
  Script second(moved, first.reconciler.record());
  EXPECT_EQ(second.Feed(Tick{}), "persist 1 open\nconnect a\nconnect b\n");  // b too: something may run there
  EXPECT_EQ(second.Connected("a", {Script::Task("ps:0", kRunning)}), "contents a\nstop a all below 2\n");
  EXPECT_EQ(second.Connected("b", {Script::Task("worker:0", kRunning)}), "stop b all below 2\n");
  second.Ready("a");
  second.Stopped("b", {});
  EXPECT_EQ(second.Stopped("a", {}), "lease a ps:0\nlease a worker:0\n");
  second.Leased("a", "ps:0", 20002);
  EXPECT_EQ(second.Leased("a", "worker:0", 20003),
            "persist 2 fixed\n"
            "start a ps:0 2 v1 10.0.0.1:20002 10.0.0.1:20003\n"
            "start a worker:0 2 v1 10.0.0.1:20002 10.0.0.1:20003\n");
}

TEST(ReconcilerTest, AHostAtAnotherAddressKeepsItsPortsAndTellsWhoFollows) {
  Desired desired = OnePsOneWorker();
  desired.tasks[0].follows_cluster = true;
  Script script(desired);
  script.StartAll();
  EXPECT_EQ(script.Lost("b"), "");
  EXPECT_EQ(script.Feed(HostSighted{"b"}), "connect b\n");
  // The server goes on, the worker has to be stopped: its flags are old.
  EXPECT_EQ(script.ConnectedAt("b", "10.0.0.9"),
            "persist 2 fixed\nstart a ps:0 2 v1 10.0.0.1:20000 10.0.0.9:20001\n");
  EXPECT_EQ(script.Report("b", {Script::Task("worker:0", TaskState::kRunning)}), "stop b worker:0 v1\n");
  EXPECT_EQ(script.Started("a", Script::Task("ps:0", TaskState::kRunning, 2)), "");
  EXPECT_EQ(script.Stopped("b", {Script::Ended("worker:0", 143, 1, true)}),
            "start b worker:0 2 v1 10.0.0.1:20000 10.0.0.9:20001\n");
  EXPECT_EQ(script.reconciler.record().base_generation, 1u);
  // At the same address again: nothing.
  EXPECT_EQ(script.Started("b", Script::Task("worker:0", TaskState::kRunning, 2)), "");
  script.Lost("b");
  script.Feed(HostSighted{"b"});
  EXPECT_EQ(script.ConnectedAt("b", "10.0.0.9"), "");
}

// Only its agent knows whether what ended with 0 had done its work: where it says so, it is not done again.
TEST(ReconcilerTest, WhatHasDoneItsWorkByTheTimeItIsStoppedHasSucceeded) {
  Script script(OnePsOneWorker());
  script.StartAll();
  script.Lost("b");
  script.Feed(HostSighted{"b"});
  EXPECT_EQ(script.ConnectedAt("b", "10.0.0.9"), "persist 2 fixed\nstop a ps:0 v1\n");
  EXPECT_EQ(script.Report("b", {Script::Task("worker:0", TaskState::kRunning)}), "stop b worker:0 v1\n");
  EXPECT_EQ(script.Stopped("b", {Script::Ended("worker:0", 0, 1, true)}), "persist 2 ending\n");
  EXPECT_EQ(script.reconciler.record().ending->result, Result::kSucceeded);
}

// Who follows its cluster goes on under the next generation, which says where they are.
TEST(ReconcilerTest, ServersOfOthersThatMoveMakeAnotherGeneration) {
  Desired desired = OnePsOneWorker();
  for (DesiredTask& task : desired.tasks) task.follows_cluster = true;
  Script script(desired);
  EXPECT_EQ(script.Feed(ServersMoved{}), "connect a\nconnect b\n") << "there is no cluster yet";
  script.StartAll();
  EXPECT_EQ(script.Feed(ServersMoved{}),
            "persist 2 fixed\n"
            "start a ps:0 2 v1 10.0.0.1:20000 10.0.0.2:20001\n"
            "start b worker:0 2 v1 10.0.0.1:20000 10.0.0.2:20001\n");
  EXPECT_EQ(script.reconciler.record().base_generation, 1u);
}

TEST(ReconcilerTest, ALostPortMakesANewGenerationThatAvoidsIt) {
  Script script(OnePsOneWorker());
  script.StartAll();
  EXPECT_EQ(script.Report("a", {Script::Ended("ps:0", kPortLostExitCode)}),
            "persist 1 open\nstop a all below 2\nstop b all below 2\n");
  EXPECT_EQ(script.Stopped("a", {}), "lease a ps:0 not 20000\n");
  script.Leased("a", "ps:0", 20002);
  EXPECT_EQ(script.Stopped("b", {Script::Ended("worker:0", 143, 1, true)}), "lease b worker:0\n");
  EXPECT_EQ(script.Leased("b", "worker:0", 20001),
            "persist 2 fixed\n"
            "start a ps:0 2 v1 10.0.0.1:20002 10.0.0.2:20001\n"
            "start b worker:0 2 v1 10.0.0.1:20002 10.0.0.2:20001\n");
}

TEST(ReconcilerTest, PortsLostTooOftenFailTheJob) {
  Script script(OnePsOneWorker(), {}, {.max_retries = 0});
  script.StartAll();
  script.Report("a", {Script::Ended("ps:0", kPortLostExitCode)});
  EXPECT_EQ(script.reconciler.record().ending->exit_code, kPortLostExitCode);
}

TEST(ReconcilerTest, AnEndingIsGoneOnWithNotTakenBack) {
  Script first(OnePsOneWorker());
  first.StartAll();
  first.Feed(StopRequested{});
  Script second(OnePsOneWorker(), first.reconciler.record());
  EXPECT_EQ(second.Feed(Tick{}), "connect a\nconnect b\n");
  EXPECT_EQ(second.Connected("a", {Script::Task("ps:0", kRunning)}), "stop a all below 2\n");
  EXPECT_EQ(second.Connected("b", {}), "stop b all below 2\n");  // a start may still be under way
  second.Stopped("a", {});
  EXPECT_EQ(second.Stopped("b", {}), "persist 1 ending\nfinish 130: stopped on request\n");

  Script again(OnePsOneWorker(), NextRun(second.reconciler.record()));
  again.Feed(Tick{});
  EXPECT_EQ(again.Connected("a", {}), "contents a\nstop a all below 2\n");
}

// Of a job whose launcher was killed before it heard of the worker's start.
Record RecordOfNoStarts() {
  Script script(OnePsOneWorker());
  script.StartAll();
  Record record = script.reconciler.record();
  record.incarnations.pop_back();
  return record;
}

// Who goes on with a job is about to start worker:0 again.
void FindOnlyTheServer(Script& fresh) {
  fresh.Feed(Tick{});
  for (const HostId host : {"a", "b"}) {
    fresh.Connected(host, {Script::Task(host == "a" ? "ps:0" : "other:0", kRunning)});
    fresh.Ready(host);
  }
}

TEST(ReconcilerTest, AStartRefusedAgainAndAgainFailsTheJob) {
  Script fresh(OnePsOneWorker(), RecordOfNoStarts());
  FindOnlyTheServer(fresh);
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_EQ(fresh.Refused("b", "start worker:0", Internal("no such program")), "");
    EXPECT_EQ(fresh.Wait(seconds(1)), "start b worker:0 1 v1 10.0.0.1:20000 10.0.0.2:20001\n");
  }
  EXPECT_EQ(fresh.Refused("b", "start worker:0", Internal("no such program")).substr(0, 17),
            "persist 1 ending\n");
  EXPECT_EQ(fresh.reconciler.record().ending->message,
            "b could not start worker:0: no such program (3 attempts)");
}

TEST(ReconcilerTest, WhatWasTakenFromAHostBeforeAStartIsSentAgain) {
  Script fresh(OnePsOneWorker(), RecordOfNoStarts());
  FindOnlyTheServer(fresh);
  EXPECT_EQ(fresh.Refused("b", "start worker:0", NotFound("its program is gone")), "contents b\n");
  EXPECT_EQ(fresh.Wait(seconds(1)), "");
  EXPECT_EQ(fresh.Ready("b"), "start b worker:0 1 v1 10.0.0.1:20000 10.0.0.2:20001\n");
}

TEST(ReconcilerTest, AnotherLauncherWithANewerGenerationIsLeftAlone) {
  Script script(OnePsOneWorker());
  script.StartAll();
  const std::string actions = script.Report("a", {Script::Task("ps:0", kRunning, 2)});
  EXPECT_EQ(actions.find("stop"), std::string::npos);
  EXPECT_EQ(script.outcome->exit_code, 1);
}

TEST(ReconcilerTest, TheRunDeadlineExitsWith124) {
  Script script(OnePsOneWorker(), {}, {.run_deadline = seconds(60)});
  script.StartAll();
  EXPECT_EQ(script.Wait(seconds(60)), "persist 1 ending\nstop a all below 2\nstop b all below 2\n");
  script.Stopped("a", {});
  EXPECT_EQ(script.Stopped("b", {}),
            "persist 1 ending\nfinish 124: the job did not end within its deadline\n");
}

TEST(ReconcilerTest, AJobThatHasEndedBeforeSomebodyGoesOnWithItHasNotMissedItsDeadline) {
  Record record;
  {
    Script script(OnePsOneWorker());
    script.StartAll();
    record = script.reconciler.record();
  }
  Script done(OnePsOneWorker(), record, {.run_deadline = seconds(0)});
  EXPECT_EQ(done.Feed(Tick{}), "connect a\nconnect b\n");
  done.Connected("a", {Script::Task("ps:0", kRunning)});
  done.Connected("b", {Script::Ended("worker:0", 0)});
  ASSERT_TRUE(done.reconciler.record().ending.has_value());
  EXPECT_EQ(done.reconciler.record().ending->result, Result::kSucceeded);

  for (const bool are_all_heard : {true, false}) {
    Script late(OnePsOneWorker(), record, {.run_deadline = seconds(0)});
    late.Feed(Tick{});
    late.Connected("a", {Script::Task("ps:0", kRunning)});
    late.Ready("a");
    EXPECT_FALSE(late.reconciler.record().ending);
    if (are_all_heard) {
      late.Connected("b", {Script::Task("worker:0", kRunning)});
      late.Ready("b");
    } else {
      late.Wait(seconds(21));
    }
    ASSERT_TRUE(late.reconciler.record().ending.has_value());
    EXPECT_EQ(late.reconciler.record().ending->exit_code, 124);
  }
}

TEST(ReconcilerTest, AnEndBeforeTheFirstGenerationReleasesThePorts) {
  Script script(OnePsOneWorker(), {}, {.run_deadline = seconds(5)});
  script.Feed(Tick{});
  EXPECT_EQ(script.Connected("a"), "contents a\npersist 0 open\nlease a ps:0\n");
  // b was not asked for anything, and is not looked for.
  EXPECT_EQ(script.Wait(seconds(5)), "persist 0 ending\nstop a all below 1\n");
  EXPECT_EQ(script.Stopped("a", {}),
            "persist 0 ending\nfinish 124: the job did not end within its deadline\n");
}

TEST(ReconcilerTest, WhoStopsAJobThatWasGatheringReleasesThePorts) {
  Script gathering(OnePsOneWorker());
  gathering.Feed(Tick{});
  gathering.Connected("a");
  Script stop(OnePsOneWorker(), gathering.reconciler.record());
  EXPECT_EQ(stop.Feed(StopRequested{}), "persist 0 ending\nconnect a\nconnect b\n");
  EXPECT_EQ(stop.Connected("a"), "stop a all below 1\n");
  EXPECT_EQ(stop.Connected("b"), "stop b all below 1\n");
}

}  // namespace
}  // namespace muster::reconcile
