// Transcripts of hosts that stay lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/reconciler/script_testing.h"
#include "launcher/reconciler/task_life.h"

namespace muster::reconcile {
namespace {

using std::chrono::seconds;

// A worker that the job cannot be without on host a, one that can be missing on host b.
Desired OneCanBeMissing() {
  Desired desired = OnePsOneWorker();
  for (DesiredTask& task : desired.tasks) task.follows_cluster = true;
  desired.tasks[0].ends_with_others = false;
  desired.tasks[1].can_be_missing = true;
  desired.max_missing = 1;
  return desired;
}

HostState StateOf(const Script& script, const HostId& host) {
  for (const HostView& view : script.reconciler.GetView().hosts) {
    if (view.host == host) return view.state;
  }
  return HostState::kConnecting;
}

TEST(LostHosts, TheJobGoesOnAndSucceedsWithoutAHostThatItCanDoWithout) {
  Script script(OneCanBeMissing());
  script.StartAll();
  script.Lost("b");
  script.Wait(seconds(59));
  EXPECT_EQ(StateOf(script, "b"), HostState::kLost);
  script.Wait(seconds(2));
  EXPECT_EQ(StateOf(script, "b"), HostState::kGivenUp);
  EXPECT_FALSE(script.reconciler.GetView().ending);
  EXPECT_EQ(script.Report("a", {Script::Ended("ps:0", 0)}), "persist 1 ending\n");
  script.Wait(seconds(20));
  script.Wait(seconds(20));
  EXPECT_EQ(script.outcome->exit_code, 0);
  EXPECT_EQ(script.outcome->left_behind, std::vector<HostId>{"b"});
}

TEST(LostHosts, TasksThatAreDoneWithoutGoToASpareHostOnceThereIsOne) {
  Script script(OneCanBeMissing());
  script.StartAll();
  script.Lost("b");
  script.Wait(seconds(61));
  ASSERT_EQ(StateOf(script, "b"), HostState::kGivenUp);
  Desired more = OneCanBeMissing();
  more.hosts.push_back({"c", "10.0.0.3", {"program"}});
  more.tasks[1].spares = {"c"};
  EXPECT_EQ(script.Feed(MoreDesired{more}), "persist 1 fixed\nconnect c\n");
  EXPECT_EQ(script.Connected("c"), "contents c\nlease c worker:0\n");
  EXPECT_EQ(script.Ready("c"), "");
  EXPECT_EQ(script.Leased("c", "worker:0", 20002),
            "persist 2 fixed\n"
            "start a ps:0 2 v1 10.0.0.1:20000 10.0.0.3:20002\n"
            "start c worker:0 2 v1 10.0.0.1:20000 10.0.0.3:20002\n");
}

TEST(LostHosts, AHostThatReturnsIsLetInAfterAPauseThatGrowsAndItsTasksGoOn) {
  Script script(OneCanBeMissing());
  script.StartAll();
  for (const int cooldown : {10, 20, 40}) {
    script.Lost("b");
    // The first attempts, all of which fail.
    std::string actions = script.Wait(seconds(1));
    EXPECT_EQ(actions, "connect b\n");
    script.Lost("b");
    script.Wait(seconds(60));
    ASSERT_EQ(StateOf(script, "b"), HostState::kGivenUp);
    EXPECT_EQ(script.Feed(HostSighted{"b"}), "") << "it waits for its turn";
    EXPECT_EQ(script.Wait(seconds(cooldown - 1)), "");
    EXPECT_EQ(script.Wait(seconds(1)), "connect b\n");
    EXPECT_EQ(script.Connected("b", {Script::Task("worker:0", kRunning)}), "contents b\n");
    EXPECT_EQ(script.Ready("b"), "");
    EXPECT_EQ(StateOf(script, "b"), HostState::kReady);
  }
}

TEST(LostHosts, WhatDiedOnAHostThatReturnsIsStartedAgainAsALaterIncarnation) {
  Script script(OneCanBeMissing());
  script.StartAll();
  script.Lost("b");
  script.Wait(seconds(61));
  script.Wait(seconds(10));
  EXPECT_EQ(script.Connected("b", {Script::Ended("worker:0", 137)}),
            "persist 2 fixed\n"
            "start a ps:0 2 v1 10.0.0.1:20000 10.0.0.2:20001\n"
            "contents b\n");
  EXPECT_EQ(script.Ready("b"), "start b worker:0 2 v1 10.0.0.1:20000 10.0.0.2:20001\n");
  EXPECT_EQ(script.minimum_incarnation, 2u);
  EXPECT_EQ(script.reconciler.record().base_generation, 1u);
  TaskReport again = Script::Task("worker:0", kRunning, 2);
  again.incarnation = 2;
  EXPECT_EQ(script.Started("b", again), "");
  EXPECT_EQ(script.reconciler.GetView().tasks[1].state, kRunning);
}

TEST(LostHosts, WithMoreLostThanCanBeMissingTheJobFails) {
  Desired desired = OneCanBeMissing();
  desired.max_missing = 0;
  Script script(desired);
  script.StartAll();
  script.Lost("b");
  EXPECT_EQ(script.Wait(seconds(61)), "persist 1 ending\nconnect b\nstop a all below 2\n");
  EXPECT_EQ(script.reconciler.GetView().ending->exit_code, 69);
}

TEST(LostHosts, ALauncherThatComesBackGoesOnWithoutTheHostToo) {
  Script first(OneCanBeMissing());
  first.StartAll();
  Script second(OneCanBeMissing(), first.reconciler.record());
  second.Feed(Tick{});
  second.Connected("a", {Script::Task("ps:0", kRunning)});
  second.Ready("a");
  second.Lost("b");
  second.Wait(seconds(61));
  EXPECT_EQ(StateOf(second, "b"), HostState::kGivenUp);
  EXPECT_FALSE(second.reconciler.GetView().ending);
  // And acts: a task that ended while nobody looked is the end of the job.
  EXPECT_EQ(second.Report("a", {Script::Ended("ps:0", 0)}), "persist 1 ending\n");
}

// As OneCanBeMissing, but that nothing can be, and what was on b can be on c or d.
Desired OneHasSpares() {
  Desired desired = OneCanBeMissing();
  desired.max_missing = 0;
  for (const char* id : {"c", "d"}) desired.hosts.push_back({id, absl::StrFormat("10.0.1.%s", id), {"p"}});
  desired.hosts[2].data_address = "10.0.0.3";
  desired.hosts[3].data_address = "10.0.0.4";
  desired.tasks[1].spares = {"b", "c", "d"};
  return desired;
}

// Of OneHasSpares: host b is lost, and its task has been told to start on c.
void PlaceOnSpare(Script& script) {
  script.StartAll();
  script.Lost("b");
  script.Wait(seconds(61));
  script.Connected("c");
  script.Leased("c", "worker:0", 20009);
  script.Ready("c");
}

// As c reports it then.
TaskReport OnSpare() {
  TaskReport report = Script::Task("worker:0", kRunning, 2);
  report.incarnation = kMostRestarts + 2;
  return report;
}

// Of a task that somebody had started again since.
TEST(LostHosts, RestartsOfAnotherSpecAreNotCounted) {
  Desired desired = OneHasSpares();
  Script first(desired);
  first.StartAll();
  TaskReport restarted = Script::Task("worker:0", kRunning);
  restarted.incarnation = 3;
  restarted.restarts = 2;
  first.Report("b", {restarted});
  first.Wait(seconds(1));
  Record record = first.reconciler.record();
  auto cluster = std::make_shared<Cluster>(*record.cluster);
  cluster->at(1).restarts = 2;
  record.cluster = cluster;
  for (Incarnation& last : record.incarnations) {
    if (last.task == "worker:0") last = {"worker:0", "v1+1", 4, 0, false};
  }
  desired.tasks[1].spec_hash = restarted.spec_hash = "v1+1";
  restarted.incarnation = 4;
  restarted.restarts = 0;
  Script script(desired, record);
  script.Feed(Tick{});
  script.Connected("a", {Script::Task("ps:0", kRunning)});
  script.Ready("a");
  script.Connected("b", {restarted});
  script.Ready("b");
  script.Lost("b");
  script.Wait(seconds(61));
  script.Connected("c");
  script.Leased("c", "worker:0", 20002);
  EXPECT_THAT(script.Ready("c"), testing::HasSubstr("start c worker:0 2 v1+1 "));
  EXPECT_EQ(script.restarts, 0u);
}

TEST(LostHosts, TasksOfALostHostGoToASpareOneAndTheOthersFollow) {
  Script script(OneHasSpares());
  script.StartAll();
  EXPECT_EQ(script.reconciler.GetView().hosts.size(), 2u) << "spares are not contacted before";
  script.Lost("b");
  EXPECT_EQ(script.Wait(seconds(61)), "persist 1 fixed\nconnect c\n");
  EXPECT_EQ(script.reconciler.record().strays, (std::vector<HostId>{"b", "c"}));
  EXPECT_EQ(script.Connected("c"), "contents c\nlease c worker:0\n");
  EXPECT_EQ(script.Leased("c", "worker:0", 20009), "");
  EXPECT_EQ(script.Ready("c"),
            "persist 2 fixed\n"
            "start a ps:0 2 v1 10.0.0.1:20000 10.0.0.3:20009\n"
            "start c worker:0 2 v1 10.0.0.1:20000 10.0.0.3:20009\n");
  EXPECT_EQ(script.minimum_incarnation, 1u + kMostRestarts + 1) << "whatever its old host has come to";
  EXPECT_EQ(script.reconciler.record().base_generation, 1u);
  EXPECT_EQ(script.reconciler.record().cluster->at(1).host, "c");
  TaskReport moved = OnSpare();
  EXPECT_EQ(script.Started("c", moved), "");
  EXPECT_EQ(script.Started("a", Script::Task("ps:0", kRunning, 2)), "");

  // The old one comes back: what runs there is stopped, and nobody minds how it ends.
  EXPECT_EQ(script.Wait(seconds(10)), "connect b\npersist 2 fixed\n");
  EXPECT_EQ(script.Connected("b", {Script::Task("worker:0", kRunning)}), "stop b worker:0 v1\n");
  EXPECT_EQ(script.Stopped("b", {Script::Ended("worker:0", 143, 1, true)}), "");
  EXPECT_FALSE(script.reconciler.GetView().ending);
}

// The inventory has it no more, and `run` places all tasks anew.
TEST(LostHosts, AHostThatIsWantedNoMoreIsLeftBehindIfItStaysLost) {
  Script first(OneHasSpares());
  first.StartAll();
  Desired without = OneHasSpares();
  without.tasks[1].host = "c";
  without.tasks[1].spares = {"c", "d"};
  std::erase_if(without.hosts, [](const DesiredHost& host) { return host.id == "b"; });
  Script script(without, first.reconciler.record());
  script.Feed(Tick{});
  EXPECT_EQ(script.Connected("a", {Script::Task("ps:0", kRunning)}), "contents a\nstop a all below 2\n");
  script.Ready("a");
  EXPECT_EQ(script.Stopped("a", {Script::Ended("ps:0", 143, 1, true)}), "lease a ps:0\n");
  script.Leased("a", "ps:0", 20000);
  script.Connected("c");
  script.Ready("c");
  script.Stopped("c", {});
  script.Leased("c", "worker:0", 20002);
  script.Lost("b");
  EXPECT_FALSE(script.reconciler.record().fixed) << "what it runs is stopped first, if it can be";
  script.Wait(seconds(61));
  ASSERT_FALSE(script.reconciler.record().ending) << script.reconciler.record().ending->message;
  EXPECT_TRUE(script.reconciler.record().fixed);
  EXPECT_EQ(script.reconciler.record().strays, (std::vector<HostId>{"c", "b"}));
  script.Started("a", Script::Task("ps:0", kRunning, 2));
  script.Started("c", Script::Task("worker:0", kRunning, 2));
  // At the next contact.
  EXPECT_EQ(script.Wait(seconds(10)), "connect b\npersist 2 fixed\n");
  EXPECT_EQ(script.Connected("b", {Script::Task("worker:0", kRunning)}), "stop b worker:0 v1\n");
}

TEST(LostHosts, ASpareHostThatDoesNotAnswerIsPassedOver) {
  Script script(OneHasSpares());
  script.StartAll();
  script.Lost("b");
  script.Wait(seconds(61));
  script.Lost("c");
  EXPECT_EQ(script.Wait(seconds(16)), "persist 1 fixed\nconnect b\nconnect d\n");
  script.Lost("d");
  EXPECT_EQ(script.Wait(seconds(16)), "persist 1 ending\nstop a all below 2\n");
  EXPECT_EQ(script.reconciler.GetView().ending->exit_code, 69);
}

TEST(LostHosts, AJobThatEndsNamesTheHostOnWhichAReplacedTaskMayStillRun) {
  Script script(OneHasSpares());
  PlaceOnSpare(script);
  // A launcher that goes on knows of it too.
  Desired desired = OneHasSpares();
  desired.tasks[1].host = "c";
  Script second(desired, script.reconciler.record());
  EXPECT_EQ(second.Feed(Tick{}), "connect a\nconnect c\nconnect b\n");
  second.Connected("a", {Script::Task("ps:0", kRunning, 2)});
  second.Ready("a");
  TaskReport moved = OnSpare();
  second.Connected("c", {moved});
  second.Ready("c");
  TaskReport done = Script::Ended("ps:0", 0);
  done.generation = 2;
  second.Report("a", {done});
  moved.state = TaskState::kSucceeded;
  second.Report("c", {moved});
  second.Wait(seconds(11));
  second.Wait(seconds(11));
  ASSERT_TRUE(second.outcome);
  EXPECT_EQ(second.outcome->exit_code, 0);
  EXPECT_EQ(second.outcome->left_behind, std::vector<HostId>{"b"});
}

TEST(LostHosts, WhatHasSucceededOnAHostThatIsGoneIsKnownToWhoeverGoesOn) {
  Desired desired = OneHasSpares();
  desired.tasks[0].ends_with_others = false;
  Script script(desired);
  script.StartAll();
  EXPECT_EQ(script.Report("b", {Script::Ended("worker:0", 0)}), "");
  EXPECT_EQ(script.Lost("b"), "persist 1 fixed\n");
  EXPECT_EQ(script.Wait(seconds(1)), "connect b\n") << "once";

  Script second(desired, script.reconciler.record());
  EXPECT_EQ(second.Feed(Tick{}), "connect a\nconnect b\n");
  second.Connected("a", {Script::Task("ps:0", kRunning)});
  second.Ready("a");
  second.Lost("b");
  for (int i = 0; i < 8; ++i) {
    const std::string done = second.Wait(seconds(10));
    EXPECT_TRUE(done.empty() || done == "connect b\n") << done;
    second.Lost("b");
  }
  EXPECT_FALSE(second.reconciler.GetView().ending);
  EXPECT_EQ(second.Report("a", {Script::Ended("ps:0", 0)}), "persist 1 ending\n");
  second.Wait(seconds(30));
  ASSERT_TRUE(second.outcome);
  EXPECT_EQ(second.outcome->exit_code, 0);
  EXPECT_EQ(second.outcome->left_behind, std::vector<HostId>{"b"}) << "as it has not been heard";

  // As another task it has not succeeded.
  desired.tasks[1].spec_hash = "v2";
  Script third(desired, script.reconciler.record());
  third.Feed(Tick{});
  EXPECT_EQ(third.reconciler.record().successes.size(), 0u);
}

// Which was given to the job by a launcher whose record is gone.
TEST(LostHosts, WhoIsToStopAJobThatHasGoneOnWithoutItStopsItOnSpareHostsToo) {
  Script script(OneHasSpares());
  script.StartAll();
  Script second(OneHasSpares(), script.reconciler.record());
  EXPECT_EQ(second.Feed(StopRequested{}), "persist 1 ending\nconnect a\nconnect b\n");
  EXPECT_EQ(second.Connected("a", {Script::Task("ps:0", kRunning, 2)}),
            "stop a all below 3\nconnect c\nconnect d\n");
  EXPECT_EQ(second.Connected("b"), "stop b all below 3\n");
  EXPECT_EQ(second.Stopped("b", {}), "");
  EXPECT_EQ(second.Connected("c", {OnSpare()}), "stop c all below 3\n");
  EXPECT_EQ(second.Stopped("c", {}), "");
  // Another one that still goes on has begun the next one.
  EXPECT_EQ(second.Stopped("a", {Script::Task("ps:0", kRunning, 3)}),
            "stop a all below 4\n"
            "stop b all below 4\n"
            "stop c all below 4\n");
  for (const HostId host : {"a", "b", "c"}) second.Stopped(host, {});
  second.Wait(seconds(30));
  ASSERT_TRUE(second.outcome);
  EXPECT_EQ(second.outcome->left_behind, std::vector<HostId>{"d"});
}

TEST(LostHosts, AHostThatIsGivenUpIsNotTheCauseOfALaterFailure) {
  Script script(OneCanBeMissing());
  script.StartAll();
  script.Lost("b");
  script.Wait(seconds(61));
  script.Report("a", {Script::Ended("ps:0", 7)});
  script.Wait(seconds(10));
  script.Wait(seconds(10));
  ASSERT_TRUE(script.outcome);
  EXPECT_EQ(script.outcome->exit_code, 7);
  EXPECT_EQ(script.outcome->first_cause->task, "ps:0");
}

// A server on host a, the chief on b, for which there is a spare host.
Desired ServerEndsLast() {
  Desired desired = OnePsOneWorker();
  desired.hosts.push_back({"c", "10.0.0.3", {"program"}});
  for (DesiredTask& task : desired.tasks) task.follows_cluster = true;
  desired.tasks[0].ends_last = true;
  desired.tasks[1].spares = {"b", "c"};
  return desired;
}

TEST(LostHosts, WhatHasDoneItsWorkIsNotRunElsewhereAndIsWaitedFor) {
  Script script(ServerEndsLast());
  script.StartAll();
  script.Report("a", {Script::Ended("ps:0", 0)});
  script.Lost("b");
  EXPECT_EQ(script.Wait(seconds(59)), "connect b\n");
  EXPECT_EQ(script.Connected("b", {Script::Ended("worker:0", 0)}),
            "persist 1 ending\npersist 1 ending\nfinish 0: all tasks succeeded\n");
}

TEST(LostHosts, AJobWhoseWorkIsDoneHasSucceededThoughAHostStaysLost) {
  Script script(ServerEndsLast());
  script.StartAll();
  script.Report("a", {Script::Ended("ps:0", 0)});
  script.Lost("b");
  script.Wait(seconds(59));
  script.Lost("b");
  EXPECT_EQ(script.Wait(seconds(2)), "persist 1 ending\nconnect b\n");
  script.Lost("b");
  script.Wait(seconds(20));
  script.Wait(seconds(20));
  ASSERT_TRUE(script.outcome);
  EXPECT_EQ(script.outcome->exit_code, 0);
  EXPECT_EQ(script.outcome->message, "all tasks succeeded, as ps:0 says");
  EXPECT_EQ(script.outcome->left_behind, std::vector<HostId>{"b"});
  // Whoever looks again finds what was made there.
  Script second(ServerEndsLast(), script.reconciler.record());
  second.Feed(Tick{});
  second.Connected("a", {Script::Ended("ps:0", 0)});
  second.Connected("b", {Script::Ended("worker:0", 0)});
  ASSERT_TRUE(second.outcome);
  EXPECT_EQ(second.outcome->exit_code, 0);
  EXPECT_THAT(second.outcome->left_behind, testing::IsEmpty());
}

TEST(LostHosts, AHostThatRefusesIsDoneWithoutAndLetInLater) {
  Script script(OneCanBeMissing());
  script.StartAll();
  script.Lost("b");
  script.Wait(seconds(61));
  script.Wait(seconds(10));
  script.Connected("b", {Script::Ended("worker:0", 137)});
  for (int i = 0; i < 3; ++i) {
    script.Refused("b", "contents", Internal("the disk is full"));
    if (i < 2) script.Wait(seconds(5));
  }
  EXPECT_EQ(StateOf(script, "b"), HostState::kGivenUp);
  EXPECT_FALSE(script.reconciler.GetView().ending);
  EXPECT_EQ(script.Wait(seconds(20)), "connect b\n");
  EXPECT_EQ(script.Connected("b", {Script::Ended("worker:0", 137)}).substr(0, 10), "persist 3 ");
}

TEST(LostHosts, WhatIsOnASpareHostIsNotWaitedForWhereItWas) {
  Script script(OneHasSpares());
  PlaceOnSpare(script);
  TaskReport moved = OnSpare();
  script.Started("c", moved);
  script.Started("a", Script::Task("ps:0", kRunning, 2));
  script.Wait(seconds(10));
  script.Connected("b");
  script.Lost("b");
  script.Wait(seconds(100));
  EXPECT_FALSE(script.reconciler.GetView().ending);
  // A new cluster does not need it either.
  TaskReport lost = Script::Ended("ps:0", kPortLostExitCode);
  lost.generation = 2;
  script.Report("a", {lost});
  script.Wait(seconds(1));
  EXPECT_FALSE(script.reconciler.GetView().ending);
  script.Stopped("a", {});
  script.Stopped("c", {});
  script.Leased("a", "ps:0", 20002);
  EXPECT_EQ(script.Leased("c", "worker:0", 20009).substr(0, 16), "persist 3 fixed\n");
}

}  // namespace
}  // namespace muster::reconcile
