// Hosts that are lost for good while a job runs: others take their tasks, or the job does without them. What
// happens where neither can be: tests/cluster_training_test.cc.
#include <fstream>

#include "proto/job_record.pb.h"
#include "tests/support/lifecycle_fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 3200;
constexpr int kEndlessSteps = 10'000'000;

class ClusterLostHosts : public LifecycleTest {
 protected:
  /// As a wiped disk leaves it, but that what runs there goes on.
  void EmptyHost(const std::string& host) {
    const std::filesystem::path home = cluster_.hosts().HomeOf(host), old = home / "old";
    std::filesystem::rename(home / ".muster", old);
    std::filesystem::remove_all(old);
  }
};

TEST_F(ClusterLostHosts, AJobSucceedsWithoutAHostThatItCanDoWithout) {
  Process run = StartJob(ScriptJob("fewer", kWaitForGo, "count: 3, min: 2"), "run", {"--lost-timeout", "2"});
  WaitForTasks("fewer", 3);
  cluster_.hosts().Kill("host-3");
  ASSERT_TRUE(
      cluster_.WaitForText("run", "host-3 stays lost: the job goes on without worker:2 until it is back"));
  Touch("go");
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_THAT(cluster_.Text("run"), HasSubstr("tasks may still run on host-3: host-3 ("));
  EXPECT_THAT(Muster({"events", "fewer"}).stdout_text, HasSubstr("host-3 stays lost"));
  cluster_.hosts().Start("host-3");
  EXPECT_EQ(Muster({"stop", "fewer"}).exit_code, 0);
}

TEST_F(ClusterLostHosts, TasksOfALostHostGoToASpareOneAndAreEndedWhereTheyWere) {
  Process run = StartJob(ScriptJob("spared", kWaitForGo, "count: 2"), "run", {"--lost-timeout", "2"});
  WaitForTasks("spared", 2);
  cluster_.hosts().Kill("host-2");
  ASSERT_TRUE(cluster_.WaitForText("run", "worker:1 goes from host-2 to host-3"));
  ASSERT_TRUE(cluster_.WaitForText("run", "worker:1 on host-3: Running"));
  const JobProcess moved = FirstProcesses("spared").at("worker:1");
  EXPECT_GT(moved.incarnation, 1'000'000)
      << "the one that may only be cut off is older, whatever it comes to";
  // A second launcher knows where it is, and does not put it back. The first one may not have started the
  // other task again, which does not follow its cluster.
  run.Signal(SIGKILL);
  EXPECT_EQ(ExitCodeOf(run), 128 + SIGKILL);
  cluster_.hosts().Start("host-2");
  Process again = StartJob(ScriptJob("spared", kWaitForGo, "count: 2"), "again");
  ASSERT_TRUE(cluster_.WaitForText("again", "worker:1 on host-3: Running"));
  EXPECT_EQ(WaitForTasks("spared", 2).at("worker:1"), moved);
  Touch("go");
  EXPECT_EQ(ExitCodeOf(again), 0) << cluster_.Text("again");
}

TEST_F(ClusterLostHosts, LogsOfATaskThatGoesToASpareHostAreFollowedThere) {
  const std::string job =
      ScriptJob("spared",
                "[ $MUSTER_INCARNATION = 1 ] && echo begun $RANK || echo begun again $RANK\n" +
                    std::string(kWaitForGo) + "echo done $RANK",
                "count: 2");
  ASSERT_EQ(RunJob(job, {"-d", "--lost-timeout", "2"}).exit_code, 0);
  Process all = cluster_.Start({"logs", "-f", "spared"}, "all");
  Process one = cluster_.Start({"logs", "-f", "spared", "worker:1"}, "one");
  ASSERT_TRUE(cluster_.WaitForText("all", "[worker:1@host-2] begun 1\n"));
  ASSERT_TRUE(cluster_.WaitForText("one", "begun 1\n"));
  cluster_.hosts().Kill("host-2");
  EXPECT_TRUE(cluster_.WaitForText("all", "[worker:1@host-3] begun again 1\n")) << cluster_.Text("all");
  EXPECT_TRUE(cluster_.WaitForText("one", "begun again 1\n")) << cluster_.Text("one");
  Touch("go");
  EXPECT_EQ(Muster({"wait", "spared"}).exit_code, 0);
  EXPECT_EQ(ExitCodeOf(all), 0) << "a host is away that has none of its tasks any more";
  EXPECT_EQ(ExitCodeOf(one), 0);
  EXPECT_THAT(cluster_.Text("all"), HasSubstr("[worker:1@host-3] done 1\n"));
  cluster_.hosts().Start("host-2");
  EXPECT_EQ(Muster({"stop", "spared"}).exit_code, 0);
}

TEST_F(ClusterLostHosts, WhatHasSucceededThereIsDoneForWhoeverGoesOnToo) {
  const std::string job = ScriptJob(
      "partly", "echo $MUSTER_TASK >> \"$DIR/ran\"\n[ $RANK = 1 ] && exit 0\n" + std::string(kWaitForGo),
      "count: 2");
  ASSERT_EQ(RunJob(job, {"-d", "--lost-timeout", "2"}).exit_code, 0);
  EXPECT_TRUE(Eventually([&] { return ShowTask("partly", "worker:1")["state"] == "Succeeded"; }));
  const auto before = WaitForTasks("partly", 1);
  cluster_.hosts().Kill("host-2");
  EXPECT_TRUE(Eventually([&] {
    return Muster({"events", "partly"}).stdout_text.find("host-2                lost") != std::string::npos;
  }));
  // Though host-3 is free.
  const CommandResult again = RunJob(job, {"-d", "--lost-timeout", "2"});
  EXPECT_EQ(again.exit_code, 0) << again.stderr_text;
  const CommandResult wait = Muster({"wait", "partly", "--timeout", "6"});
  EXPECT_EQ(wait.exit_code, 124) << wait.stderr_text;
  EXPECT_EQ(FirstProcesses("partly"), before);
  Touch("go");
  const CommandResult end = Muster({"wait", "partly"});
  EXPECT_EQ(end.exit_code, 0) << end.stderr_text;
  std::string ran = cluster_.Text("ran");
  EXPECT_EQ(std::ranges::count(ran, '\n'), 2) << ran;
  cluster_.hosts().Start("host-2");
  EXPECT_EQ(Muster({"stop", "partly"}).exit_code, 0);
}

TEST_F(ClusterLostHosts, AHostThatIsLostIsDoneWithoutUntilItReturns) {
  const std::string job = cluster_.Write(
      "without.yaml", absl::StrFormat("name: without\nmodel: mnist_mlp\nhidden: [50]\nstrategy: allreduce\n"
                                      "replicas: {worker: {count: 3, min: 2}}\n"
                                      "train: {steps: %d, global_batch_size: 2001, seed: 3, threads: 1}\n",
                                      kEndlessSteps));
  Process run = StartJob(job, "run", {"--lost-timeout", "2"});
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  const auto before = FirstProcesses("without");
  cluster_.hosts().Kill("host-3");
  ASSERT_TRUE(
      cluster_.WaitForText("run", "host-3 stays lost: the job goes on without worker:2 until it is back"));
  ASSERT_TRUE(cluster_.WaitForText("run", "with 2 of 3 workers"));
  EXPECT_EQ(ShowTask("without", "worker:2")["state"], "Lost");
  cluster_.hosts().Start("host-3");
  ASSERT_TRUE(cluster_.WaitForText("run", "with 3 of 3 workers"));
  const auto after = FirstProcesses("without");
  for (const char* task : {"worker:0", "worker:1"}) EXPECT_EQ(after.at(task), before.at(task)) << task;
  EXPECT_EQ(Muster({"stop", "without"}).exit_code, 0);
  EXPECT_EQ(ExitCodeOf(run), 130) << cluster_.Text("run");
}

TEST_F(ClusterLostHosts, ADeadHostThatTheInventoryHasNoMoreIsLeftBehind) {
  const std::string job = ScriptJob("fewer", kWaitForGo, "count: 2");
  Process run = StartJob(job, "run");
  WaitForTasks("fewer", 2);
  run.Signal(SIGKILL);
  EXPECT_EQ(ExitCodeOf(run), 128 + SIGKILL);
  cluster_.hosts().Kill("host-2");
  std::string inventory = InventoryText();
  const size_t line = inventory.rfind('\n', inventory.find("host-2:"));
  inventory.erase(line, inventory.find('\n', line + 1) - line);
  Process again = cluster_.Start(
      {"run", job, "-i", cluster_.Write("without.yaml", inventory), "--lost-timeout", "2"}, "again");
  ASSERT_TRUE(cluster_.WaitForText("again", "worker:1 on host-3: Running")) << cluster_.Text("again");
  Touch("go");
  EXPECT_EQ(ExitCodeOf(again), 0) << cluster_.Text("again");
  EXPECT_THAT(cluster_.Text("again"), HasSubstr("tasks may still run on host-2"));
  cluster_.hosts().Start("host-2");
  EXPECT_EQ(Muster({"stop", "fewer"}).exit_code, 0);
}

TEST_F(ClusterLostHosts, WhatAHostNoLongerKnowsOfIsStoppedAndStartedAgainAsItsPolicyHasIt) {
  const std::string job = ScriptJob("emptied", kWaitForGo, "count: 2, restart: on_failure, max_restarts: 1");
  Process run = StartJob(job, "run");
  const JobProcess before = WaitForTasks("emptied", 2).at("worker:1");
  EmptyHost("host-2");
  ASSERT_TRUE(cluster_.WaitForText(
      "run", "worker:1 on host-2: Lost: host-2 no longer knows of worker:1: its folder"));
  ASSERT_TRUE(Eventually([&] { return ShowTask("emptied", "worker:1")["restarts"] == 1; }));
  const JobProcess after = WaitForTasks("emptied", 2).at("worker:1");
  EXPECT_GT(after.incarnation, 1'000'000) << "whatever the first has come to";
  EXPECT_NE(ReadProcessStat(before.pid).value_or(ProcessStat{}).start_ticks, before.start_ticks);
  const std::string events = Muster({"events", "emptied"}).stdout_text;
  EXPECT_THAT(events, HasSubstr("Lost: host-2 no longer knows of worker:1: its folder is gone"));
  EXPECT_THAT(events, HasSubstr("started again, restart 1"));

  // Who goes on with the job knows of it, too.
  ASSERT_TRUE(Eventually([&] {
    record::JobRecord record;
    (void)record.ParseFromString(ReadFile(JobFolder() / "record.pb").value_or(""));
    return std::ranges::any_of(record.cluster().incarnations(), [&](const auto& each) {
      return each.task() == "worker:1" && static_cast<int>(each.number()) == after.incarnation;
    });
  }));
  run.Signal(SIGKILL);
  EXPECT_EQ(ExitCodeOf(run), 128 + SIGKILL);
  EmptyHost("host-2");
  Process again = StartJob(job, "again");
  EXPECT_EQ(ExitCodeOf(again), 69) << cluster_.Text("again");
  EXPECT_THAT(
      cluster_.Text("again"),
      HasSubstr("worker:1 on host-2 failed: host-2 no longer knows of worker:1: its folder is gone; its "
                "1 restarts are used up"));
}

TEST_F(ClusterLostHosts, WhatIsPrintedOnAHostThatWasEmptiedIsShownFromItsBeginning) {
  const std::string script = "if [ $MUSTER_INCARNATION = 1 ]; then printf '%10000s\\n' \"begun $RANK\"\n" +
                             std::string("else echo again $RANK; fi\n") + kWaitForGo;
  Process run =
      StartJob(ScriptJob("emptied", script, "count: 2, restart: on_failure, max_restarts: 1"), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "begun 1"));
  Process logs = cluster_.Start({"logs", "emptied", "-f"}, "logs");
  ASSERT_TRUE(cluster_.WaitForText("logs", "begun 1"));
  EmptyHost("host-2");
  ASSERT_TRUE(cluster_.WaitForText("run", "[worker:1@host-2] again 1\n"));
  ASSERT_TRUE(cluster_.WaitForText("logs", "[worker:1@host-2] again 1\n"));
  Touch("go");
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_EQ(ExitCodeOf(logs), 0);
}

// One host more than the jobs need.
class ClusterSpares : public LifecycleTest {
 protected:
  ClusterSpares() : LifecycleTest(LoopbackCluster::Network::kLoopback, /*hosts=*/4) {}

  std::string Job(const std::string& name, const std::string& rest, int steps = kSteps) {
    return cluster_.Write(name + ".yaml",
                          absl::StrFormat("name: %s\nmodel: mnist_mlp\nhidden: [50]\n%s"
                                          "train: {steps: %d, batch_size: 20, seed: 3, threads: 1}\n",
                                          name, rest, steps));
  }
  Json Result() { return Json::parse(ReadFile(JobFolder() / "result.json").value_or("{}")); }
};

TEST_F(ClusterSpares, AWorkerGoesToASpareHostAndNoBitChanges) {
  const std::string rest =
      "update: {mode: sync}\nreplicas: {ps: {count: 1}, worker: {count: 2, restart: on_failure}}\n";
  ASSERT_EQ(RunJob(Job("undisturbed", rest), {"-q"}).exit_code, 0);
  const Json expected = Result();
  Process run = StartJob(Job("spared", rest), "run", {"--lost-timeout", "2"});
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  cluster_.hosts().Kill("host-3");
  ASSERT_TRUE(cluster_.WaitForText("run", "worker:1 goes from host-3 to host-4"));
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_EQ(Result()["parameters_crc32c"], expected["parameters_crc32c"]);
  EXPECT_EQ(Result()["samples"], expected["samples"]);
  EXPECT_EQ(ShowTask("spared", "worker:1")["host"], "host-4");
  EXPECT_EQ(ShowTask("spared", "ps:0")["restarts"], 0);
  EXPECT_EQ(ShowTask("spared", "worker:0")["restarts"], 0);
  cluster_.hosts().Start("host-3");
  EXPECT_EQ(Muster({"stop", "spared"}).exit_code, 0);
}

TEST_F(ClusterSpares, AWorkerWhoseHostIsEmptiedComesBackThereAndNoBitChanges) {
  const std::string rest =
      "update: {mode: sync}\nreplicas: {ps: {count: 1}, worker: {count: 2, restart: on_failure}}\n";
  ASSERT_EQ(RunJob(Job("undisturbed", rest), {"-q"}).exit_code, 0);
  const Json expected = Result();
  Process run = StartJob(Job("emptied", rest), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  cluster_.hosts().Kill("host-3");
  std::filesystem::remove_all(cluster_.hosts().HomeOf("host-3") + "/.muster");
  cluster_.hosts().Start("host-3");
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_EQ(Result()["parameters_crc32c"], expected["parameters_crc32c"]);
  EXPECT_EQ(Result()["samples"], expected["samples"]);
  EXPECT_EQ(ShowTask("emptied", "worker:1")["host"], "host-3");
  EXPECT_EQ(ShowTask("emptied", "worker:1")["restarts"], 1);
  EXPECT_EQ(ShowTask("emptied", "ps:0")["restarts"], 0);
  EXPECT_EQ(ShowTask("emptied", "worker:0")["restarts"], 0);
}

// It is killed in the middle of a line, which it cuts off when it is back; and it begins another file. Its
// shim stands still while it is dead.
TEST_F(ClusterSpares, TheCurveOfAChiefWhoseHostIsEmptiedIsWhole) {
  Process run = StartJob(
      Job("curve",
          "update: {mode: sync}\nreplicas: {ps: {count: 1}, worker: {count: 1, restart: on_failure}}\n"),
      "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 400: "));
  std::filesystem::path curve;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(cluster_.hosts().HomeOf("host-2") + "/.muster")) {
    if (entry.path().filename() == "metrics.jsonl") curve = entry.path();
  }
  const pid_t chief = FirstProcesses("curve").at("worker:0").pid, shim = ReadProcessStat(chief)->parent;
  const auto is_in = [](pid_t pid, char state) {
    const auto stat = ReadProcessStat(pid);
    return stat.ok() && stat->state == state;
  };
  ASSERT_EQ(::kill(shim, SIGSTOP), 0);
  ASSERT_TRUE(Eventually([&] { return is_in(shim, 'T'); }));
  ASSERT_EQ(::kill(chief, SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] { return is_in(chief, 'Z'); }));
  std::ofstream(curve, std::ios::app) << R"({"step":)";
  ASSERT_EQ(::kill(shim, SIGCONT), 0);
  ASSERT_TRUE(cluster_.WaitForText("run", "step 1600: "));
  cluster_.hosts().Kill("host-2");
  std::filesystem::remove_all(cluster_.hosts().HomeOf("host-2") + "/.muster");
  cluster_.hosts().Start("host-2");
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  std::istringstream lines(ReadFile(JobFolder() / "metrics.jsonl").value_or(""));
  std::vector<uint64_t> begun_at;
  for (std::string line; std::getline(lines, line);) {
    const Json point = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(point.is_object()) << line;
    if (point.contains("begun_at")) begun_at.push_back(point["begun_at"]);
  }
  ASSERT_EQ(begun_at.size(), 3u);
  EXPECT_GE(begun_at[2], 1000u);
}

constexpr char kTwoServers[] =
    "update: {mode: sync}\nreplicas: {ps: {count: 2}, worker: {count: 1, restart: on_failure}}\n";

TEST_F(ClusterSpares, AServerGetsItsPartFromItsBuddyOnASpareHostAndNoBitChanges) {
  const std::string rest = std::string(kTwoServers) + "checkpoint: {every_steps: 50, buddy: true}\n";
  ASSERT_EQ(RunJob(Job("undisturbed", rest), {"-q"}).exit_code, 0);
  const Json expected = Result();
  Process run = StartJob(Job("spared", rest), "run", {"--lost-timeout", "2"});
  ASSERT_TRUE(cluster_.WaitForText("run", "step 200: "));
  cluster_.hosts().Kill("host-2");
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_THAT(cluster_.Text("run"), HasSubstr("ps:1 goes from host-2 to host-4"));
  EXPECT_EQ(Result()["parameters_crc32c"], expected["parameters_crc32c"]);
  cluster_.hosts().Start("host-2");
  EXPECT_EQ(Muster({"stop", "spared"}).exit_code, 0);
}

TEST_F(ClusterSpares, AReplicatedServerIsMadeAnewOnASpareHost) {
  const std::string rest = std::string(kTwoServers) + "durability: replicated\n";
  Process run = StartJob(Job("spared", rest, kEndlessSteps), "run", {"--lost-timeout", "2"});
  ASSERT_TRUE(cluster_.WaitForText("run", "step 200: "));
  cluster_.hosts().Kill("host-2");
  ASSERT_TRUE(cluster_.WaitForText("run", "ps:1 goes from host-2 to host-4"));
  ASSERT_TRUE(cluster_.WaitForText("run", "ps:0: ps:1 is its backup in view 4"));
  EXPECT_EQ(ShowTask("spared", "ps:0")["restarts"], 0);
  EXPECT_EQ(ShowTask("spared", "worker:0")["restarts"], 0);
  cluster_.hosts().Start("host-2");
  EXPECT_EQ(Muster({"stop", "spared"}).exit_code, 0);
  EXPECT_EQ(ExitCodeOf(run), 130) << cluster_.Text("run");
}

}  // namespace
}  // namespace muster
