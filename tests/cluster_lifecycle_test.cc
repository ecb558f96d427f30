// The life of a job on real hosts: how it ends, restarts, stops; detached, left by its launcher or its
// daemons. The jobs are shell scripts, so that each fault is exact; tests/cluster_training_test.cc does it to
// the real trainer.
#include "tests/support/lifecycle_fixture.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ClusterLifecycle : public LifecycleTest {};

// ---- How a job ends

TEST_F(ClusterLifecycle, TheJobExitsAsItsFailedTaskDid) {
  const std::string job = ScriptJob("fails", "[ $RANK != 1 ] || exit 3\nexec sleep 600");
  const CommandResult failed = RunJob(job);
  EXPECT_EQ(failed.exit_code, 3) << failed.stderr_text;
  EXPECT_THAT(failed.stderr_text, HasSubstr("\nworker:1 on host-2 failed: exited with code 3"));
  EXPECT_THAT(failed.stderr_text, HasSubstr("as a consequence:\n  worker:0 on host-1: stopped\n"));

  const std::string killed_job = ScriptJob("killed", "[ $RANK != 2 ] || kill -TERM $$\nexec sleep 600");
  const CommandResult killed = RunJob(killed_job);
  EXPECT_EQ(killed.exit_code, 128 + SIGTERM) << killed.stderr_text;
  EXPECT_THAT(killed.stderr_text, HasSubstr("\nworker:2 on host-3 failed: killed by signal 15"));
}

TEST_F(ClusterLifecycle, WhatFailedFirstIsReportedWithItsLastWords) {
  const std::string job =
      ScriptJob("report",
                "[ $RANK = 1 ] || exec sleep 600\nseq 5000\necho 'cannot open the \"door\"'\n"
                "exit 3");
  const CommandResult run = RunJob(job, {"-q"});
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.stderr_text, HasSubstr("its last words:\n  | 4992\n"));
  EXPECT_THAT(run.stderr_text, HasSubstr("  | 5000\n  | cannot open the \"door\"\nas a consequence:\n"));
  const std::string events = Muster({"events", "report"}).stdout_text;
  EXPECT_THAT(events, ContainsRegex("worker:1@host-2 +first cause: exited with code 3"));
  EXPECT_THAT(events, ContainsRegex("worker:1@host-2 +\\| cannot open the \"door\"\n"));
  EXPECT_THAT(events, ContainsRegex("worker:0@host-1 +as a consequence: stopped\n"));

  // Whoever only waits hears the same of it, then and later.
  const CommandResult wait = Muster({"wait", "report"});
  EXPECT_EQ(wait.exit_code, 3);
  const std::string cause =
      "\nworker:1 on host-2 failed: exited with code 3 (exit code 3, after 0 restarts)\n";
  EXPECT_EQ(wait.stderr_text, cause + run.stderr_text.substr(run.stderr_text.find("its last words:\n")));
}

TEST_F(ClusterLifecycle, AtItsDeadlineTheJobIsStopped) {
  const CommandResult result = RunJob(ScriptJob("endless", "exec sleep 600"), {"--timeout", "1.5"});
  EXPECT_EQ(result.exit_code, 124) << result.stderr_text;
  EXPECT_THAT(result.stderr_text, HasSubstr("the job did not end within its deadline"));
}

TEST_F(ClusterLifecycle, AWorkerThatIsKilledTooOftenFailsTheJobAndIsNamedFirst) {
  const std::string job =
      ScriptJob("victim", "exec sleep 600", "count: 3, restart: on_failure, max_restarts: 2");
  Process run = StartJob(job, "run");
  for (int incarnation = 1; incarnation <= 3; ++incarnation) KillTask("victim", "worker:1", incarnation);
  EXPECT_EQ(ExitCodeOf(run), 128 + SIGKILL) << cluster_.Text("run");
  EXPECT_THAT(
      cluster_.Text("run"),
      HasSubstr("\n\nworker:1 on host-2 failed: killed by signal 9 (Killed); its 2 restarts are used up "
                "(exit code 137, after 2 restarts)\n"
                "as a consequence:\n  worker:0 on host-1: stopped\n  worker:2 on host-3: stopped\n"));
  EXPECT_EQ(ShowTask("victim", "worker:1")["state"], "Failed");
  EXPECT_EQ(ShowTask("victim", "worker:1")["restarts"], 2);
  EXPECT_EQ(ShowTask("victim", "worker:0")["restarts"], 0);
}

TEST_F(ClusterLifecycle, RestartPolicies) {
  struct Case {
    const char* name;
    const char* script;
    const char* policy;
    int exit_code;
    int restarts;
  };
  const Case cases[] = {
      {"never", "exit 4", "never", 4, 0},
      {"failure", "[ $MUSTER_INCARNATION = 3 ] || exit 4", "on_failure, max_restarts: 5", 0, 2},
      {"always", "exit 0", "always, max_restarts: 2", 0, 2},
      {"permanent", "exit 5", "exit_code, max_restarts: 3", 5, 0},
      {"retryable", "exit 200", "exit_code, max_restarts: 2", 200, 2},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const CommandResult result =
        RunJob(ScriptJob(c.name, c.script, std::string("count: 1, restart: ") + c.policy));
    EXPECT_EQ(result.exit_code, c.exit_code) << result.stderr_text;
    EXPECT_EQ(ShowTask(c.name, "worker:0")["restarts"], c.restarts);
  }
}

// ---- Stopping

TEST_F(ClusterLifecycle, CtrlCStopsTheJobAndNoOther) {
  const std::string other_file = ScriptJob("other", kWaitForGo);
  Process other = StartJob(other_file, "other");
  const auto other_tasks = WaitForTasks("other", 3);
  Process run = StartJob(ScriptJob("job", "trap '' TERM\nsleep 600"), "run");
  WaitForTasks("job", 3);

  run.Signal(SIGINT);
  EXPECT_TRUE(Eventually([&] { return ProcessCount("job") == 0; }));
  EXPECT_EQ(ExitCodeOf(run), 130) << cluster_.Text("run");
  EXPECT_THAT(cluster_.Text("run"),
              AllOf(HasSubstr("\nworker:1 on host-2: stopped\n"), HasSubstr("\nstopped on request\n"),
                    testing::Not(HasSubstr("consequence"))));

  EXPECT_EQ(FirstProcesses("other"), other_tasks);
  Touch("go");
  EXPECT_EQ(ExitCodeOf(other), 0) << cluster_.Text("other");
}

TEST_F(ClusterLifecycle, ASecondCtrlCEndsAtOnceAndSaysWhatIsLeft) {
  // The tasks ignore TERM, so the first one is still busy when the second one comes.
  Process run =
      StartJob(ScriptJob("stubborn", "trap '' TERM\ntouch $DIR/$RANK\nwhile :; do sleep 0.1; done"), "run");
  for (const char* rank : {"0", "1", "2"}) ASSERT_TRUE(WaitForFile(rank));
  run.Signal(SIGINT);
  run.Signal(SIGTERM);
  EXPECT_EQ(ExitCodeOf(run), 130);
  EXPECT_THAT(cluster_.Text("run"), AllOf(HasSubstr("interrupted again: tasks of job stubborn-"),
                                          HasSubstr("`muster stop stubborn-")));
  EXPECT_EQ(Muster({"stop", "stubborn"}).exit_code, 0);
}

TEST_F(ClusterLifecycle, RunAfterAStopThatWasGivenUpEndsWhatIsLeftFirst) {
  Process run =
      StartJob(ScriptJob("again", "trap '' TERM\ntouch $DIR/$RANK\nwhile :; do sleep 0.1; done"), "run");
  for (const char* rank : {"0", "1", "2"}) ASSERT_TRUE(WaitForFile(rank));
  run.Signal(SIGINT);
  ASSERT_TRUE(cluster_.WaitForText("run", "stopping the job: "));
  run.Signal(SIGKILL);
  EXPECT_EQ(ExitCodeOf(run), 128 + SIGKILL);

  const CommandResult second =
      RunJob(ScriptJob("again", "ps -e -o args | grep -c \"[t]ouch $DIR\"; exit 0"), {"-q"});
  EXPECT_EQ(second.exit_code, 0) << second.stderr_text;
  EXPECT_EQ(Json::parse(Muster({"list", "-o", "json"}).stdout_text).size(), 1u);
  for (const char* task : {"worker:0", "worker:1", "worker:2"})
    EXPECT_EQ(Muster({"logs", "again", task}).stdout_text, "0\n");
}

// A task's child that ignores TERM, and one that has left its session and its parent.
constexpr char kFamily[] =
    "sh -c 'trap \"\" TERM; sleep 600 & touch $DIR/child$RANK; while :; do sleep 0.1; done' &\n"
    "setsid sh -c 'trap \"\" TERM; (sleep 600 & sleep 600 & touch $DIR/daemon$RANK) &' &\n"
    "wait\n"
    "sleep 600";

TEST_F(ClusterLifecycle, StopFromAnotherShellEndsTheWholeTree) {
  for (const bool launcher_killed : {false, true}) {
    SCOPED_TRACE(launcher_killed ? "the launcher was killed" : "the launcher runs");
    Process other = StartJob(ScriptJob("other", kWaitForGo, "count: 3"), "other");
    const auto other_tasks = WaitForTasks("other", 3);
    const size_t other_ports = LeasedPorts();
    Process run = StartJob(ScriptJob("family", kFamily), "run");
    for (const char* rank : {"0", "1", "2"}) {
      ASSERT_TRUE(WaitForFile(std::string("child") + rank));
      ASSERT_TRUE(WaitForFile(std::string("daemon") + rank));
    }
    EXPECT_GT(ProcessCount("family"), 3u * 4);
    EXPECT_GT(LeasedPorts(), other_ports);
    if (launcher_killed) {
      run.Signal(SIGKILL);
      EXPECT_EQ(ExitCodeOf(run), 128 + SIGKILL);
    }

    const CommandResult stop = Muster({"stop", "family"});
    EXPECT_EQ(stop.exit_code, 0) << stop.stderr_text;
    EXPECT_THAT(stop.stderr_text, HasSubstr(": 0 processes, 0 ports on 3 hosts\n"));
    EXPECT_EQ(ProcessCount("family"), 0u);
    EXPECT_EQ(LeasedPorts(), other_ports);
    if (!launcher_killed) {
      EXPECT_EQ(ExitCodeOf(run), 130) << cluster_.Text("run");
      EXPECT_THAT(cluster_.Text("run"), HasSubstr("was stopped by another command"));
    }
    EXPECT_EQ(Show("family")["state"], "Stopped");

    EXPECT_EQ(FirstProcesses("other"), other_tasks);
    Touch("go");
    EXPECT_EQ(ExitCodeOf(other), 0) << cluster_.Text("other");
    for (const auto& entry : std::filesystem::directory_iterator(Path("")))
      if (entry.is_regular_file()) std::filesystem::remove(entry);
  }
}

// Programs that tidy up end with 0, as if they had done their work.
TEST_F(ClusterLifecycle, ATaskThatEndsWellWhenItIsStoppedIsStopped) {
  Process run =
      StartJob(ScriptJob("tidy", "trap 'exit 0' TERM\ntouch $DIR/$RANK\nwhile :; do sleep 0.1; done"), "run");
  for (const char* rank : {"0", "1", "2"}) ASSERT_TRUE(WaitForFile(rank));
  const CommandResult stop = Muster({"stop", "tidy"});
  EXPECT_EQ(stop.exit_code, 0) << stop.stderr_text;
  EXPECT_EQ(ExitCodeOf(run), 130) << cluster_.Text("run");
  EXPECT_THAT(cluster_.Text("run"), HasSubstr("was stopped by another command"));
  EXPECT_EQ(Show("tidy")["state"], "Stopped");
}

// ---- Detached

TEST_F(ClusterLifecycle, ADetachedJobIsListedShownAndWaitedFor) {
  const CommandResult run =
      RunJob(ScriptJob("away", std::string(kWaitForGo) + "exit $((RANK * 7))", "count: 2"), {"-d"});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  EXPECT_EQ(FirstProcesses("away").size(), 2u);
  const Json list = Json::parse(Muster({"list", "-o", "json"}).stdout_text);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0]["state"], "Running");
  EXPECT_THAT(std::string(list[0]["job"]), StartsWith("away-"));
  const Json shown = Show("away");
  EXPECT_EQ(shown["tasks"][1]["state"], "Running");
  EXPECT_EQ(shown["tasks"][1]["host"], "host-2");

  Process wait = cluster_.Start({"wait", "away"}, "wait");
  Touch("go");
  EXPECT_EQ(ExitCodeOf(wait), 7) << cluster_.Text("wait");
  // Again, of a job whose end is written down.
  const CommandResult again = Muster({"wait", "away"});
  EXPECT_EQ(again.exit_code, 7);
  EXPECT_THAT(again.stderr_text, HasSubstr("worker:1 on host-2 failed: exited with code 7"));

  ASSERT_EQ(RunJob(ScriptJob("fine", "exit 0"), {"-d"}).exit_code, 0);
  EXPECT_EQ(Muster({"wait", "fine"}).exit_code, 0);
}

TEST_F(ClusterLifecycle, CtrlCOfWaitOnlyEndsTheWaiting) {
  ASSERT_EQ(RunJob(ScriptJob("away", kWaitForGo), {"-d"}).exit_code, 0);
  const auto tasks = WaitForTasks("away", 3);
  Process wait = cluster_.Start({"wait", "away"}, "wait");
  ASSERT_TRUE(cluster_.WaitForText("wait", " is driven by process "));
  wait.Signal(SIGINT);
  EXPECT_EQ(ExitCodeOf(wait), 128 + SIGINT);
  EXPECT_EQ(FirstProcesses("away"), tasks);
  Touch("go");
  EXPECT_EQ(Muster({"wait", "away"}).exit_code, 0);
}

TEST_F(ClusterLifecycle, ADetachedJobIsDrivenInTheBackground) {
  const CommandResult run = RunJob(ScriptJob("away", std::string(kWaitForGo) + "exit $((RANK * 7))"), {"-d"});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  const Json driver = Show("away")["driver"];
  EXPECT_EQ(driver["background"], true);
  EXPECT_EQ(::getsid(driver["pid"]), driver["pid"]) << "it is in a session of its own";
  // Its failure ends the others, though nobody waits.
  Touch("go");
  EXPECT_TRUE(Eventually([&] { return Show("away")["state"] == "Failed"; }));
  EXPECT_TRUE(Eventually([&] { return Show("away")["driver"].is_null(); }));
  EXPECT_EQ(FirstProcesses("away").size(), 0u);
  EXPECT_THAT(ReadFile(JobFolder() / "controller.log").value_or(""),
              ContainsRegex("20[0-9-]*T[0-9:]*Z stopping the job: worker:[12] on host-[23] failed"));
}

bool HasEnded(pid_t pid) {
  const auto stat = ReadProcessStat(pid);
  return !stat.ok() || stat->state == 'Z';
}

TEST_F(ClusterLifecycle, WhoRunsADetachedJobAgainTakesItOver) {
  const std::string job = ScriptJob("passed", kWaitForGo);
  ASSERT_EQ(RunJob(job, {"-d"}).exit_code, 0);
  const auto tasks = WaitForTasks("passed", 3);
  const pid_t first = Show("passed")["driver"]["pid"];
  const CommandResult again = RunJob(job, {"-d"});
  ASSERT_EQ(again.exit_code, 0) << again.stderr_text;
  const pid_t second = Show("passed")["driver"]["pid"];
  EXPECT_NE(second, first);
  EXPECT_TRUE(HasEnded(first));
  EXPECT_EQ(FirstProcesses("passed"), tasks);
  // One that has died is found out of the way.
  ASSERT_EQ(::kill(second, SIGKILL), 0);
  EXPECT_TRUE(Eventually([&] { return Show("passed")["driver"].is_null(); }));
  Process foreground = StartJob(job, "foreground");
  ASSERT_TRUE(cluster_.WaitForText("foreground", "worker:2 on host-3: Running"));
  EXPECT_EQ(Show("passed")["driver"]["background"], false);
  EXPECT_EQ(FirstProcesses("passed"), tasks);
  Touch("go");
  EXPECT_EQ(ExitCodeOf(foreground), 0) << cluster_.Text("foreground");
  const std::string events = Muster({"events", "passed"}).stdout_text;
  EXPECT_THAT(events, HasSubstr("tasks start, generation 1\n"));
  EXPECT_EQ(events.find("tasks start"), events.rfind("tasks start")) << events;
}

TEST_F(ClusterLifecycle, EventsTellWhatHappenedWhoeverDroveTheJob) {
  const std::string job = ScriptJob("told", std::string(kWaitForGo) + "exit $((RANK * 3))", "count: 2");
  ASSERT_EQ(RunJob(job, {"-d"}).exit_code, 0);
  Process events = cluster_.Start({"events", "-f", "told"}, "events");
  ASSERT_TRUE(cluster_.WaitForText("events", "  worker:1@host-2       started\n"));
  ASSERT_EQ(::kill(Show("told")["driver"]["pid"], SIGKILL), 0);
  Process wait = cluster_.Start({"wait", "told"}, "wait");
  ASSERT_TRUE(cluster_.WaitForText("wait", "worker:1 on host-2: Running"));
  Touch("go");
  EXPECT_EQ(ExitCodeOf(wait), 3);
  EXPECT_EQ(ExitCodeOf(events), 0);
  std::vector<std::string> told;
  std::istringstream lines(Muster({"events", "told", "-o", "json"}).stdout_text);
  for (std::string line; std::getline(lines, line);) {
    const Json event = Json::parse(line);
    told.push_back(event.value("task", event.value("host", "job")) + ": " + std::string(event["what"]));
  }
  const auto once = [&](const std::string& what) {
    EXPECT_EQ(std::count(told.begin(), told.end(), what), 1) << what << "\n" << cluster_.Text("events");
  };
  for (const char* what : {"worker:0: started", "worker:1: started", "worker:1: Failed: exited with code 3",
                           "job: the job has ended: worker:1 on host-2 failed: exited with code 3 (exit code "
                           "3, after 0 restarts)"}) {
    once(what);
  }
  EXPECT_EQ(
      std::count_if(told.begin(), told.end(),
                    [](const std::string& what) { return what.starts_with("job: driven by process "); }),
      2);
  EXPECT_THAT(told.back(), StartsWith("worker:1: first cause: exited with code 3")) << "it has said nothing";
}

TEST_F(ClusterLifecycle, StopEndsADetachedJobAndItsController) {
  ASSERT_EQ(RunJob(ScriptJob("stopped", "exec sleep 600"), {"-d"}).exit_code, 0);
  const pid_t controller = Show("stopped")["driver"]["pid"];
  const CommandResult stop = Muster({"stop", "stopped"});
  EXPECT_EQ(stop.exit_code, 0) << stop.stderr_text;
  EXPECT_THAT(stop.stderr_text, HasSubstr("0 processes, 0 ports on 3 hosts"));
  EXPECT_TRUE(HasEnded(controller));
  EXPECT_EQ(Show("stopped")["state"], "Stopped");
}

TEST_F(ClusterLifecycle, CtrlCBeforeEverythingRunsStopsADetachedJob) {
  const pid_t sshd = std::stoi(cluster_.hosts().Text("host-3/sshd.pid"));
  ASSERT_EQ(::kill(sshd, SIGSTOP), 0);
  Process run = StartJob(ScriptJob("early", "exec sleep 600"), "run", {"-d"});
  ASSERT_TRUE(cluster_.WaitForText("run", "host-1: connected"));
  run.Signal(SIGINT);
  // Said as the stop begins, or as the end when no host had been asked for anything yet.
  ASSERT_TRUE(cluster_.WaitForText("run", "stopped on request")) << cluster_.Text("run");
  ASSERT_EQ(::kill(sshd, SIGCONT), 0);
  EXPECT_EQ(ExitCodeOf(run), 130) << cluster_.Text("run");
  EXPECT_EQ(FirstProcesses("early").size(), 0u);
}

TEST_F(ClusterLifecycle, ASecondRunOfAJobThatIsDrivenIsRefused) {
  const std::string job = ScriptJob("once", kWaitForGo);
  Process run = StartJob(job, "run");
  const auto tasks = WaitForTasks("once", 3);
  const CommandResult second = RunJob(job);
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.stderr_text,
              AllOf(HasSubstr("is driven by another muster (process " + std::to_string(run.pid())),
                    HasSubstr("`muster logs -f once-"), HasSubstr("`muster stop once-")));
  EXPECT_EQ(FirstProcesses("once"), tasks);
  Touch("go");
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
}

TEST_F(ClusterLifecycle, OfManyRunsAtTheSameMomentOneStartsTheJob) {
  const std::string job = ScriptJob("twins", kWaitForGo);
  constexpr int kRuns = 6;
  std::vector<Process> runs;
  for (int i = 0; i < kRuns; ++i) runs.push_back(StartJob(job, "run" + std::to_string(i)));
  WaitForTasks("twins", 3);
  const auto refused = [&] {
    int count = 0;
    for (int i = 0; i < kRuns; ++i)
      count +=
          cluster_.Text("run" + std::to_string(i)).find("is driven by another muster") != std::string::npos;
    return count;
  };
  EXPECT_TRUE(Eventually([&] { return refused() == kRuns - 1; })) << refused();
  EXPECT_EQ(Json::parse(Muster({"list", "-o", "json"}).stdout_text).size(), 1u);
  Touch("go");
  int succeeded = 0;
  for (Process& run : runs) succeeded += ExitCodeOf(run) == 0;
  EXPECT_EQ(succeeded, 1);
}

// ---- Launcher and daemons killed

// Prints line 1 to 300, and waits for the test in between.
constexpr char kTalker[] =
    "i=0\n"
    "while [ $i -lt 300 ]; do\n"
    "  i=$((i + 1)); echo line $i\n"
    "  [ $i != 100 ] || while [ ! -e $DIR/go1 ]; do sleep 0.02; done\n"
    "  [ $i != 200 ] || while [ ! -e $DIR/go2 ]; do sleep 0.02; done\n"
    "done\n"
    "exit ${CODE:-0}";

TEST_F(ClusterLifecycle, AfterTheLauncherWasKilledOthersFindTheJob) {
  Process run = StartJob(ScriptJob("orphan", kTalker, "count: 2", "CODE: \"9\""), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "[worker:1@host-2] line 100\n"));
  const auto tasks = WaitForTasks("orphan", 2);
  run.Signal(SIGKILL);
  EXPECT_EQ(ExitCodeOf(run), 128 + SIGKILL);

  EXPECT_EQ(ShowTask("orphan", "worker:1")["state"], "Running");
  Process logs = cluster_.Start({"logs", "-f", "orphan", "worker:1"}, "logs");
  ASSERT_TRUE(cluster_.WaitForText("logs", "line 100\n"));
  Process wait = cluster_.Start({"wait", "orphan"}, "wait");
  ASSERT_TRUE(cluster_.WaitForText("wait", "worker:1 on host-2: Running"));
  EXPECT_EQ(FirstProcesses("orphan"), tasks);
  // Both tasks exit with 9, so nothing stops worker:1 before it has printed everything but the other's end:
  // let it be first.
  Touch("go1");
  ASSERT_TRUE(cluster_.WaitForText("logs", "line 200\n"));
  EXPECT_EQ(FirstProcesses("orphan"), tasks);
  Touch("go2");
  EXPECT_EQ(ExitCodeOf(wait), 9) << cluster_.Text("wait");
  EXPECT_EQ(ExitCodeOf(logs), 0);
  EXPECT_THAT(cluster_.Text("logs"), StartsWith(Lines(1, 200)));
  EXPECT_EQ(Show("orphan")["state"], "Failed");
}

TEST_F(ClusterLifecycle, LogsOfATaskThatHasNotBegunAreFollowedFromItsBeginning) {
  // A host that is stopped keeps the others, which are ready, from starting.
  const pid_t sshd = std::stoi(cluster_.hosts().Text("host-3/sshd.pid"));
  ASSERT_EQ(::kill(sshd, SIGSTOP), 0);
  Process run = StartJob(ScriptJob("late", "echo line 1"), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "host-1: connected"));
  Process logs = cluster_.Start({"logs", "-f", "late", "worker:0"}, "logs");
  EXPECT_TRUE(absl::IsDeadlineExceeded(logs.Wait(Now() + std::chrono::seconds(2)).status()));
  ASSERT_EQ(::kill(sshd, SIGCONT), 0);
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_EQ(ExitCodeOf(logs), 0);
  EXPECT_EQ(cluster_.Text("logs"), Lines(1, 1));
}

TEST_F(ClusterLifecycle, OfALongLogTheNewestStaysOnTheHost) {
  // 588,895 bytes, of which at most two pieces, 60 KB, have not been printed by whoever follows them.
  const std::string script =
      "for i in $(seq 20); do\n"
      "  until [ $i -le 2 ] || grep -q \"\\] $((i * 5000 - 10000))\\$\" \"$DIR/printed\"; do sleep 0.02; "
      "done\n"
      "  seq $((i * 5000 - 4999)) $((i * 5000))\n"
      "done";
  const std::string job = ScriptJob("long", script, "count: 1, max_log_bytes: 200000");
  const CommandResult run =
      cluster_.Shell("muster run " + job + " -i " + cluster_.inventory() + " >" + Path("printed"));
  EXPECT_EQ(run.exit_code, 0) << run.stderr_text;
  EXPECT_THAT(run.stderr_text, Not(HasSubstr("missing")));
  std::string all;
  for (int i = 1; i <= 100'000; ++i) all += absl::StrFormat("[worker:0@host-1] %d\n", i);
  EXPECT_TRUE(cluster_.Text("printed") == all);
  const CommandResult none = Muster({"logs", "long", "worker"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.stderr_text, HasSubstr(" has no task 'worker'; it has worker:0\n"));
  const CommandResult logs = Muster({"logs", "long", "worker:0"});
  EXPECT_EQ(logs.exit_code, 0) << logs.stderr_text;
  EXPECT_THAT(logs.stderr_text,
              ContainsRegex("worker:0: [0-9]{6} bytes of what it printed are missing here"));
  EXPECT_LE(logs.stdout_text.size(), 200'000u);
  EXPECT_THAT(logs.stdout_text, testing::EndsWith("99999\n100000\n"));
}

TEST_F(ClusterLifecycle, RunAgainAdoptsWhatTheKilledLauncherLeft) {
  const std::string job = ScriptJob("adopted", kWaitForGo, "count: 3, restart: on_failure, max_restarts: 1");
  Process first = StartJob(job, "first");
  const auto tasks = WaitForTasks("adopted", 3);
  first.Signal(SIGKILL);
  EXPECT_EQ(ExitCodeOf(first), 128 + SIGKILL);

  EXPECT_THAT(Muster({"plan", job, "-i", cluster_.inventory()}).stderr_text, StartsWith("3 unchanged\n"));
  Process second = StartJob(job, "second");
  ASSERT_TRUE(cluster_.WaitForText("second", "worker:2 on host-3: Running"));
  ASSERT_TRUE(cluster_.WaitForText("second", "worker:0 on host-1: Running"));
  EXPECT_EQ(FirstProcesses("adopted"), tasks);
  Touch("go");
  EXPECT_EQ(ExitCodeOf(second), 0) << cluster_.Text("second");
  EXPECT_EQ(ShowTask("adopted", "worker:2")["restarts"], 0);
  EXPECT_EQ(Json::parse(Muster({"list", "-o", "json"}).stdout_text).size(), 1u);
}

TEST_F(ClusterLifecycle, RunWithAChangedFileRedeploysWhatChanged) {
  const std::string text =
      "name: changed\nprogram: [sh, -c, 'while [ ! -e \"$DIR/go\" ]; do sleep 0.02; done']\nenv: {DIR: \"" +
      Path("") + "\"}\nreplicas:\n  ps: {count: 1}\n  worker: {count: 2, restart: RESTART}\n";
  const auto file = [&](const std::string& restart) {
    std::string out = text;
    return cluster_.Write("changed.yaml", out.replace(out.find("RESTART"), 7, restart));
  };
  ASSERT_EQ(RunJob(file("never"), {"-d"}).exit_code, 0);
  const auto before = WaitForTasks("changed", 3);
  const std::string job = file("on_failure, max_restarts: 1");

  const CommandResult plan = Muster({"plan", job, "-i", cluster_.inventory(), "-o", "json"});
  const Json actions = Json::parse(plan.stdout_text);
  ASSERT_EQ(actions.size(), 3u);
  for (const Json& row : actions)
    EXPECT_EQ(row["action"], row["task"] == "ps:0" ? "unchanged" : "redeploy") << row;

  ASSERT_EQ(RunJob(job, {"-d"}).exit_code, 0);
  const auto after = WaitForTasks("changed", 3);
  EXPECT_EQ(after.at("ps:0"), before.at("ps:0"));
  EXPECT_EQ(LeasedPorts(), 3u) << "their addresses are still theirs";
  for (const char* worker : {"worker:0", "worker:1"}) {
    EXPECT_NE(after.at(worker).pid, before.at(worker).pid);
    EXPECT_EQ(after.at(worker).job, before.at(worker).job);
  }
  // What came is what was asked for.
  KillTask("changed", "worker:1", after.at("worker:1").incarnation);
  EXPECT_TRUE(Eventually([&] {
    const auto now = FirstProcesses("changed");
    return now.contains("worker:1") && now.at("worker:1").incarnation == after.at("worker:1").incarnation + 1;
  }));
  Touch("go");
  EXPECT_EQ(Muster({"wait", "changed"}).exit_code, 0);
  EXPECT_EQ(ShowTask("changed", "worker:1")["restarts"], 1);
}

TEST_F(ClusterLifecycle, AfterARestartALostConnectionOrDaemonCostsNothing) {
  Process run =
      StartJob(ScriptJob("again", kWaitForGo, "count: 3, restart: on_failure, max_restarts: 1"), "run");
  WaitForTasks("again", 3);
  KillTask("again", "worker:1", 1);
  ASSERT_TRUE(cluster_.WaitForText("run", "worker:1 on host-2: Running, restarts 1"));
  const auto tasks = WaitForTasks("again", 3);
  for (const char* role : {"bridge", "daemon"}) {
    for (const pid_t pid : AgentProcesses(cluster_.hosts().HomeOf("host-2"), role)) ::kill(pid, SIGKILL);
    ASSERT_TRUE(Eventually([&] { return ShowTask("again", "worker:1")["state"] == "Running"; }));
  }
  EXPECT_EQ(FirstProcesses("again"), tasks);
  EXPECT_EQ(ShowTask("again", "worker:1")["restarts"], 1);
  Touch("go");
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
}

TEST_F(ClusterLifecycle, AKilledDaemonCostsNeitherTasksNorOutput) {
  Process run = StartJob(ScriptJob("steady", kTalker), "run");
  for (const char* task : {"worker:0@host-1", "worker:1@host-2", "worker:2@host-3"})
    ASSERT_TRUE(cluster_.WaitForText("run", std::string("[") + task + "] line 100\n"));
  const auto tasks = WaitForTasks("steady", 3);
  Process logs = cluster_.Start({"logs", "-f", "steady", "worker:1"}, "logs");
  Process all_logs = cluster_.Start({"logs", "-f", "steady"}, "all_logs");
  ASSERT_TRUE(cluster_.WaitForText("logs", "line 100\n"));
  ASSERT_TRUE(cluster_.WaitForText("all_logs", "[worker:1@host-2] line 100\n"));

  const std::vector<pid_t> daemons = AgentProcesses(cluster_.hosts().HomeOf("host-2"), "daemon");
  ASSERT_EQ(daemons.size(), 1u);
  ASSERT_EQ(::kill(daemons[0], SIGKILL), 0);
  Touch("go1");
  // Through new connections, while the tasks still run: worker:0's follower does not have to end first.
  for (const char* output : {"run", "all_logs"})
    ASSERT_TRUE(cluster_.WaitForText(output, "[worker:1@host-2] line 200\n")) << output;
  ASSERT_TRUE(cluster_.WaitForText("logs", "line 200\n"));
  EXPECT_EQ(FirstProcesses("steady"), tasks);
  Process new_logs = cluster_.Start({"logs", "-f", "steady", "worker:1"}, "new_logs");
  ASSERT_TRUE(cluster_.WaitForText("new_logs", "line 200\n"));
  Touch("go2");

  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  for (Process* follower : {&logs, &all_logs, &new_logs}) EXPECT_EQ(ExitCodeOf(*follower), 0);
  EXPECT_EQ(cluster_.Text("logs"), Lines(1, 300));
  EXPECT_EQ(cluster_.Text("new_logs"), Lines(1, 300));
  for (const char* output : {"run", "all_logs"}) {
    std::istringstream lines(cluster_.Text(output));
    const std::string prefix = "[worker:1@host-2] ";
    std::string of_worker;
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with(prefix)) of_worker += line.substr(prefix.size()) + "\n";
    EXPECT_EQ(of_worker, Lines(1, 300)) << output;
  }
}

}  // namespace
}  // namespace muster
