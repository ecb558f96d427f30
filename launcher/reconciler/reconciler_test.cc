// Transcripts: an event, then the exact actions it leads to.
#include "launcher/reconciler/reconciler.h"

#include <gtest/gtest.h>

#include <map>

namespace muster::reconcile {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Desired OnePsOneWorker() {
  return {.hosts = {{"a", "10.0.0.1", {"program"}}, {"b", "10.0.0.2", {"program"}}},
          .tasks = {{"ps:0", "a", "v1", true, true}, {"worker:0", "b", "v1", true, false}}};
}

/// Plays the driver: remembers the requests, so that a test can answer them by name.
class Script {
 public:
  explicit Script(Desired desired, Record record = {}, Options options = {})
      : reconciler(desired, std::move(record), options, now_) {}

  std::string Feed(const Event& event) {
    std::string lines;
    for (const Action& action : reconciler.Step(event, now_)) lines += Line(action) + "\n";
    return lines;
  }
  std::string Wait(Duration duration) {
    now_ += duration;
    return Feed(Tick{});
  }
  std::string Connected(const HostId& host, std::vector<TaskReport> tasks = {}) {
    const std::string none = Feed(HostConnected{host, connections_[host]});
    return none + Report(host, std::move(tasks));
  }
  std::string ConnectedAt(const HostId& host, const std::string& data_address) {
    return Feed(HostConnected{host, connections_[host], data_address});
  }
  std::string Report(const HostId& host, std::vector<TaskReport> tasks) {
    return Feed(HostReported{host, connections_[host], std::move(tasks)});
  }
  std::string Lost(const HostId& host) { return Lost(host, Unavailable("%s: connection reset", host)); }
  std::string Lost(const HostId& host, const absl::Status& status) {
    return Feed(HostFailed{host, connections_[host], status});
  }
  std::string Ready(const HostId& host) { return Feed(ContentsReady{host, requests_[host + " contents"]}); }
  std::string Leased(const HostId& host, const TaskId& task, uint32_t port) {
    return Feed(PortLeased{host, requests_[host + " lease " + task], port});
  }
  std::string Started(const HostId& host, const TaskReport& task) {
    return Feed(TaskStarted{host, requests_[host + " start " + task.task], task});
  }
  std::string Refused(const HostId& host, const std::string& what, const absl::Status& status) {
    return Feed(RequestFailed{host, requests_[host + " " + what], status});
  }
  std::string Stopped(const HostId& host, std::vector<TaskReport> tasks, uint32_t processes_left = 0,
                      uint32_t ports_left = 0) {
    return Feed(TasksStopped{host, requests_[host + " stop"], processes_left, ports_left, std::move(tasks)});
  }

  /// Both hosts there, contents and ports too, and both tasks running under generation 1.
  void StartAll() {
    Feed(Tick{});
    for (const HostId host : {"a", "b"}) {
      Connected(host);
      Ready(host);
    }
    Leased("a", "ps:0", 20000);
    Leased("b", "worker:0", 20001);
    Started("a", Task("ps:0", TaskState::kRunning));
    Started("b", Task("worker:0", TaskState::kRunning));
  }

  static TaskReport Task(const TaskId& task, TaskState state, uint64_t generation = 1,
                         const std::string& spec_hash = "v1") {
    return {.task = task, .state = state, .generation = generation, .spec_hash = spec_hash, .incarnation = 1};
  }
  static TaskReport Ended(const TaskId& task, int exit_code, int64_t ended_micros = 1, bool stopped = false) {
    TaskReport report = Task(task, exit_code == 0 ? TaskState::kSucceeded : TaskState::kFailed);
    report.exit_code = exit_code;
    report.ended_micros = ended_micros;
    report.stopped = stopped;
    report.reason = "exited";
    return report;
  }

  std::optional<Outcome> outcome;
  uint32_t minimum_incarnation = 0;  // of the newest start that has one

 private:
  std::string Line(const Action& action) {
    if (const auto* connect = std::get_if<Connect>(&action)) {
      connections_[connect->host] = connect->connection;
      return "connect " + connect->host;
    }
    if (const auto* contents = std::get_if<EnsureContents>(&action)) {
      requests_[contents->host + " contents"] = contents->request;
      return "contents " + contents->host;
    }
    if (const auto* lease = std::get_if<LeasePort>(&action)) {
      requests_[lease->host + " lease " + lease->task] = lease->request;
      std::string line = "lease " + lease->host + " " + lease->task;
      for (const uint32_t port : lease->avoid) line += absl::StrFormat(" not %d", port);
      return line;
    }
    if (const auto* persist = std::get_if<PersistRecord>(&action)) {
      const Record& record = persist->record;
      return absl::StrFormat("persist %d%s", record.generation,
                             record.ending  ? " ending"
                             : record.fixed ? " fixed"
                                            : " open");
    }
    if (const auto* start = std::get_if<StartTask>(&action)) {
      requests_[start->host + " start " + start->task] = start->request;
      if (start->minimum_incarnation > 0) minimum_incarnation = start->minimum_incarnation;
      std::string line =
          absl::StrFormat("start %s %s %d %s", start->host, start->task, start->generation, start->spec_hash);
      for (const Member& member : *start->cluster) line += " " + Address(member);
      return line;
    }
    if (const auto* stop = std::get_if<StopTasks>(&action)) {
      requests_[stop->host + " stop"] = stop->request;
      std::string line = "stop " + stop->host;
      for (const Deployment& target : stop->targets) line += " " + target.task + " " + target.spec_hash;
      return stop->targets.empty() ? absl::StrFormat("%s all below %d", line, stop->minimum_generation)
                                   : line;
    }
    outcome = std::get<Finish>(action).outcome;
    return absl::StrFormat("finish %d: %s", outcome->exit_code, outcome->message);
  }

  TimePoint now_{};
  std::map<HostId, ConnectionId> connections_;
  std::map<std::string, RequestId> requests_;

 public:
  Reconciler reconciler;
};

constexpr TaskState kRunning = TaskState::kRunning;

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
  EXPECT_EQ(script.Wait(seconds(4)), "persist 1 ending\nstop a all below 2\n");
  EXPECT_EQ(script.Stopped("a", {}), "persist 1 ending\nfinish 69: host lost: b: no route\n");
  EXPECT_EQ(script.outcome->first_cause->task, "worker:0");
  EXPECT_EQ(script.outcome->left_behind, std::vector<HostId>{"b"});
}

TEST(ReconcilerTest, AHostThatIsAnotherMachineWhenItReturnsFailsTheJobAtOnce) {
  Script script(OnePsOneWorker());
  script.StartAll();
  EXPECT_EQ(script.Lost("b", PermissionDenied("b: host key changed")),
            "persist 1 ending\nstop a all below 2\n");
  EXPECT_EQ(script.Stopped("a", {}), "persist 1 ending\nfinish 69: host lost: b: host key changed\n");
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
  script.Feed(Tick{});
  for (const HostId host : {"a", "b"}) {
    script.Connected(host);
    script.Ready(host);
  }
  script.Leased("a", "ps:0", 20000);
  script.Leased("b", "worker:0", 20001);
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

TEST(ReconcilerTest, TheJobGoesOnAndSucceedsWithoutAHostThatItCanDoWithout) {
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

TEST(ReconcilerTest, AHostThatReturnsIsLetInAfterAPauseThatGrowsAndItsTasksGoOn) {
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

TEST(ReconcilerTest, WhatDiedOnAHostThatReturnsIsStartedAgainAsALaterIncarnation) {
  for (const bool has_its_disk : {true, false}) {
    Script script(OneCanBeMissing());
    script.StartAll();
    script.Lost("b");
    script.Wait(seconds(61));
    script.Wait(seconds(10));
    const std::string actions =
        has_its_disk ? script.Connected("b", {Script::Ended("worker:0", 137)}) : script.Connected("b");
    EXPECT_EQ(actions,
              "persist 2 fixed\n"
              "start a ps:0 2 v1 10.0.0.1:20000 10.0.0.2:20001\n"
              "contents b\n")
        << "the program may have gone with the disk";
    EXPECT_EQ(script.Ready("b"), "start b worker:0 2 v1 10.0.0.1:20000 10.0.0.2:20001\n");
    EXPECT_EQ(script.minimum_incarnation, 2u) << "of the last of them";
    EXPECT_EQ(script.reconciler.record().base_generation, 1u);
    TaskReport again = Script::Task("worker:0", kRunning, 2);
    again.incarnation = 2;
    EXPECT_EQ(script.Started("b", again), "");
    EXPECT_EQ(script.reconciler.GetView().tasks[1].state, kRunning);
  }
}

TEST(ReconcilerTest, WithMoreLostThanCanBeMissingTheJobFails) {
  Desired desired = OneCanBeMissing();
  desired.max_missing = 0;
  Script script(desired);
  script.StartAll();
  script.Lost("b");
  EXPECT_EQ(script.Wait(seconds(61)), "persist 1 ending\nstop a all below 2\n");
  EXPECT_EQ(script.reconciler.GetView().ending->exit_code, 69);
}

TEST(ReconcilerTest, ALauncherThatComesBackGoesOnWithoutTheHostToo) {
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
  desired.tasks[1].max_restarts = 3;
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
  report.incarnation = 5;
  return report;
}

TEST(ReconcilerTest, TasksOfALostHostGoToASpareOneAndTheOthersFollow) {
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
  EXPECT_EQ(script.minimum_incarnation, 1u + 3 + 1) << "its old host can come to 4 by itself";
  EXPECT_EQ(script.reconciler.record().base_generation, 1u);
  EXPECT_EQ(script.reconciler.record().cluster->at(1).host, "c");
  TaskReport moved = OnSpare();
  EXPECT_EQ(script.Started("c", moved), "");
  EXPECT_EQ(script.Started("a", Script::Task("ps:0", kRunning, 2)), "");

  // The old one comes back: what runs there is stopped, and nobody minds how it ends.
  EXPECT_EQ(script.Wait(seconds(10)), "connect b\n");
  EXPECT_EQ(script.Connected("b", {Script::Task("worker:0", kRunning)}), "stop b worker:0 v1\n");
  EXPECT_EQ(script.Stopped("b", {Script::Ended("worker:0", 143, 1, true)}), "");
  EXPECT_FALSE(script.reconciler.GetView().ending);
}

TEST(ReconcilerTest, ASpareHostThatDoesNotAnswerIsPassedOver) {
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

TEST(ReconcilerTest, AJobThatEndsNamesTheHostOnWhichAReplacedTaskMayStillRun) {
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

TEST(ReconcilerTest, AHostThatIsGivenUpIsNotTheCauseOfALaterFailure) {
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

TEST(ReconcilerTest, AHostThatRefusesIsDoneWithoutAndLetInLater) {
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

TEST(ReconcilerTest, WhatIsOnASpareHostIsNotWaitedForWhereItWas) {
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

TEST(ReconcilerTest, AStartRefusedAgainAndAgainFailsTheJob) {
  Script script(OnePsOneWorker());
  script.StartAll();
  Script fresh(OnePsOneWorker(), script.reconciler.record());
  fresh.Feed(Tick{});
  for (const HostId host : {"a", "b"}) {
    fresh.Connected(host, {Script::Task(host == "a" ? "ps:0" : "other:0", kRunning)});
    fresh.Ready(host);
  }
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_EQ(fresh.Refused("b", "start worker:0", NotFound("no such program")), "");
    EXPECT_EQ(fresh.Wait(seconds(1)), "start b worker:0 1 v1 10.0.0.1:20000 10.0.0.2:20001\n");
  }
  EXPECT_EQ(fresh.Refused("b", "start worker:0", NotFound("no such program")).substr(0, 17),
            "persist 1 ending\n");
  EXPECT_EQ(fresh.reconciler.record().ending->message,
            "b could not start worker:0: no such program (3 attempts)");
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
            "persist 1 ending\nfinish 124: the job did not end within its deadline of 1m00s\n");
}

TEST(ReconcilerTest, AnEndBeforeTheFirstGenerationReleasesThePorts) {
  Script script(OnePsOneWorker(), {}, {.run_deadline = seconds(5)});
  script.Feed(Tick{});
  EXPECT_EQ(script.Connected("a"), "contents a\npersist 0 open\nlease a ps:0\n");
  // b was not asked for anything, and is not looked for.
  EXPECT_EQ(script.Wait(seconds(5)), "persist 0 ending\nstop a all below 1\n");
  EXPECT_EQ(script.Stopped("a", {}),
            "persist 0 ending\nfinish 124: the job did not end within its deadline of 5s\n");
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

TEST(ReconcilerTest, ARecordThatCannotBeWrittenEndsTheJob) {
  Script script(OnePsOneWorker());
  script.StartAll();
  EXPECT_EQ(script.Feed(RecordFailed{Internal("disk full")}),
            "persist 1 ending\nstop a all below 2\nstop b all below 2\n");
  EXPECT_EQ(script.reconciler.record().ending->message, "the job record cannot be written: disk full");
}

}  // namespace
}  // namespace muster::reconcile
