// Tasks of a job that runs are started again because somebody asks for it.
#include "proto/job_record.pb.h"
#include "tests/support/lifecycle_fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

class ClusterRestart : public LifecycleTest {
 protected:
  using Processes = std::map<std::string, JobProcess>;

  // Each start of a task is a line of the file "starts.RANK".
  std::string CountedJob(const std::string& script) {
    return ScriptJob("job", "echo started >> \"$DIR/starts.$RANK\"\n" + script);
  }
  int StartsOf(int rank) {
    const std::string starts = cluster_.Text("starts." + std::to_string(rank));
    return static_cast<int>(std::ranges::count(starts, '\n'));
  }
  record::JobRecord RecordOfJob() {
    record::JobRecord record;
    record.ParseFromString(ReadFile(JobFolder() / "record.pb").value_or(""));
    return record;
  }
  CommandResult Restart(std::vector<std::string> tasks = {}) {
    tasks.insert(tasks.begin(), {"restart", "job"});
    return Muster(tasks);
  }
  void ExpectRestarted(const std::vector<std::string>& tasks, const std::string& said) {
    const CommandResult result = Restart(tasks);
    EXPECT_EQ(result.exit_code, 0) << result.stderr_text;
    EXPECT_THAT(result.stderr_text, HasSubstr(said));
  }
  void ExpectRefused(const std::vector<std::string>& tasks, int exit_code, const std::string& why) {
    const CommandResult result = Restart(tasks);
    EXPECT_EQ(result.exit_code, exit_code) << result.stderr_text;
    EXPECT_THAT(result.stderr_text, HasSubstr(why));
  }
  void ExpectOthersRunOn(const Processes& before, const Processes& after, const std::string& restarted) {
    for (const auto& [task, process] : before) {
      EXPECT_EQ(after.at(task) == process, task != restarted) << task;
    }
  }
  bool WaitForEvent(const std::string& text) {
    return Eventually([&] { return Muster({"events", "job"}).stdout_text.find(text) != std::string::npos; });
  }
};

TEST_F(ClusterRestart, OneTaskOrAllOfThem) {
  const std::string job = CountedJob(kWaitForGo);
  ASSERT_EQ(RunJob(job, {"-d"}).exit_code, 0);
  const Processes first = WaitForTasks("job", 3);
  ExpectRestarted({"worker:1"}, "worker:1 on host-2 is started again\n");
  const Processes second = WaitForTasks("job", 3);
  ExpectOthersRunOn(first, second, "worker:1");
  EXPECT_EQ(second.at("worker:1").incarnation, 2);
  EXPECT_EQ(ShowTask("job", "worker:1")["restarts"], 0) << "it has not failed";
  EXPECT_TRUE(WaitForEvent("restart: worker:1 on host-2 is started again"));
  EXPECT_EQ(LeasedPorts(), 3u) << "their addresses are still theirs";

  // To the job file it is what it was, and stays started.
  EXPECT_THAT(Muster({"plan", job, "-i", cluster_.inventory()}).stderr_text, HasSubstr("3 unchanged\n"));
  ASSERT_EQ(RunJob(job, {"-d"}).exit_code, 0);
  EXPECT_EQ(WaitForTasks("job", 3), second);

  ExpectRestarted({"worker:1"}, "worker:1 on host-2 is started again\n");
  EXPECT_EQ(WaitForTasks("job", 3).at("worker:1").incarnation, 3);
  ExpectRestarted({}, "all tasks are started again\n");
  WaitForTasks("job", 3);
  EXPECT_EQ(std::vector({StartsOf(0), StartsOf(1), StartsOf(2)}), std::vector({2, 4, 2}));
  Touch("go");
  EXPECT_EQ(Muster({"wait", "job"}).exit_code, 0);
  ExpectRefused({}, 1, " has ended\n");
}

TEST_F(ClusterRestart, WhoFollowsTheLogsSeesWhatStartedTasksPrint) {
  const std::string job = CountedJob("echo incarnation $MUSTER_INCARNATION\n" + std::string(kWaitForGo));
  ASSERT_EQ(RunJob(job, {"-d"}).exit_code, 0);
  Process logs = cluster_.Start({"logs", "-f", "job"}, "logs");
  ASSERT_TRUE(cluster_.WaitForText("logs", "[worker:1@host-2] incarnation 1\n"));
  ExpectRestarted({"worker:1"}, "worker:1 on host-2 is started again\n");
  EXPECT_TRUE(cluster_.WaitForText("logs", "[worker:1@host-2] incarnation 2\n")) << cluster_.Text("logs");
  ExpectRestarted({}, "all tasks are started again\n");
  EXPECT_TRUE(cluster_.WaitForText("logs", "[worker:0@host-1] incarnation 2\n")) << cluster_.Text("logs");
  Touch("go");
  EXPECT_EQ(Muster({"wait", "job"}).exit_code, 0);
  EXPECT_EQ(ExitCodeOf(logs), 0);
}

TEST_F(ClusterRestart, WhatCannotBeIsRefusedAndTheJobGoesOn) {
  ASSERT_EQ(RunJob(CountedJob("[ $RANK = 0 ] && exit\n" + std::string(kWaitForGo)), {"-d"}).exit_code, 0);
  // Which the record says within a second.
  ASSERT_TRUE(Eventually([&] { return RecordOfJob().cluster().successes_size() == 1; }));
  const Processes first = WaitForTasks("job", 2);
  ExpectRefused({"worker:1", "worker:7"}, 2, "has no task 'worker:7'; it has worker:0, worker:1, worker:2\n");
  ExpectRefused({"worker:0"}, 1, "has succeeded: it is not started again alone");
  EXPECT_EQ(WaitForTasks("job", 2), first);
  // Who has it all begin again has that begin again too.
  ExpectRestarted({}, "all tasks are started again\n");
  EXPECT_TRUE(Eventually([&] { return StartsOf(0) == 2; }));
  Touch("go");
  EXPECT_EQ(Muster({"wait", "job"}).exit_code, 0);
}

TEST_F(ClusterRestart, OthersThanOnAHostThatIsAway) {
  const std::string job = ScriptJob("job", kWaitForGo, "count: 3, restart: on_failure, max_restarts: 2");
  ASSERT_EQ(RunJob(job, {"-d"}).exit_code, 0);
  const Processes first = WaitForTasks("job", 3);
  cluster_.hosts().Kill("host-3");
  const CommandResult refused = Muster({"restart", "job", "--connect-timeout", "2"});
  EXPECT_EQ(refused.exit_code, 69);
  EXPECT_THAT(refused.stderr_text, HasSubstr("goes on as it is, since all tasks would wait for: host-3 ("));
  EXPECT_EQ(FirstProcesses("job").at("worker:0"), first.at("worker:0"));
  cluster_.hosts().Start("host-3");
  ExpectRestarted({"worker:0"}, "worker:0 on host-1 is started again\n");
  Touch("go");
  EXPECT_EQ(Muster({"wait", "job"}).exit_code, 0);
}

TEST_F(ClusterRestart, NotOfAJobInTheForeground) {
  Process run = StartJob(CountedJob(kWaitForGo), "run");
  const Processes first = WaitForTasks("job", 3);
  ExpectRefused({"worker:1"}, 1, "is not in the background");
  EXPECT_EQ(WaitForTasks("job", 3), first);
  Touch("go");
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
}

TEST_F(ClusterRestart, OnTheHostThatDrivesTheJob) {
  const std::string job = ScriptJob("job", kWaitForGo, "count: 2");
  const CommandResult run = RunJob(job, {"-d", "--on", "host-3"});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  const Processes first = WaitForTasks("job", 2);
  ExpectRestarted({"worker:0"}, "worker:0 on host-1 is started again\n");
  EXPECT_TRUE(Eventually([&] {
    const Processes now = FirstProcesses("job");
    return now.contains("worker:0") && now.at("worker:0").incarnation == 2;
  }));
  ExpectOthersRunOn(first, WaitForTasks("job", 2), "worker:0");
  EXPECT_EQ(Show("job")["driver"], Json({{"host", "host-3"}}));
  Touch("go");
  EXPECT_EQ(Muster({"wait", "job"}).exit_code, 0);
}

class ClusterRestartOfTraining : public ClusterRestart {
 protected:
  static constexpr char kServers[] = "update: {mode: sync}\nreplicas: {ps: {count: 1}, worker: {count: 2}}\n";

  // Until it is stopped.
  std::string Training(const std::string& more, const std::string& strategy = kServers) {
    return cluster_.Write("job.yaml", "name: job\nmodel: mnist_softmax\n" + strategy + more +
                                          "train: {steps: 10000000, batch_size: 100, threads: 1}\n");
  }
  uint64_t StepsOf(const std::string& task) {
    const CommandResult shown = Muster({"show", "job", "--metrics", "-o", "json"});
    const Json json = Json::parse(shown.stdout_text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return 0;
    for (const Json& row : json["metrics"]["workers"]) {
      if (row["task"] == task) return row["steps"];
    }
    return 0;
  }
};

TEST_F(ClusterRestartOfTraining, AWorkerJoinsAgainAndAServerGoesBackToTheCheckpoint) {
  ASSERT_EQ(RunJob(Training("checkpoint: {every_steps: 50}\n"), {"-d"}).exit_code, 0);
  const Processes first = WaitForTasks("job", 3);
  ExpectRestarted({"worker:1"}, "worker:1 on ");
  const Processes second = WaitForTasks("job", 3);
  ExpectOthersRunOn(first, second, "worker:1");
  EXPECT_TRUE(Eventually([&] { return StepsOf("worker:1") > 100; }));
  ExpectRestarted({"ps:0"}, "ps:0 on ");
  ExpectOthersRunOn(second, WaitForTasks("job", 3), "ps:0");
  EXPECT_TRUE(WaitForEvent("training went back from step "));
  ExpectRestarted({}, "all tasks are started again\n");
  EXPECT_TRUE(Eventually([&] { return StepsOf("worker:1") > 0; }));
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

TEST_F(ClusterRestartOfTraining, WorkersThatHaveAllParametersGoOnFromTheCheckpoint) {
  const std::string job =
      Training("checkpoint: {every_steps: 50}\n", "strategy: allreduce\nreplicas: {worker: {count: 2}}\n");
  ASSERT_EQ(RunJob(job, {"-d"}).exit_code, 0);
  WaitForTasks("job", 2);
  EXPECT_TRUE(Eventually([&] { return StepsOf("worker:1") > 200; }));
  ExpectRestarted({}, "all tasks are started again\n");
  WaitForTasks("job", 2);
  EXPECT_TRUE(Eventually([&] {
    return Muster({"logs", "job", "worker:1"}).stdout_text.find("going on from step ") != std::string::npos;
  })) << Muster({"logs", "job"}).stdout_text;
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

TEST_F(ClusterRestartOfTraining, WhatNothingKeepsIsNotThrownAwayWithAServer) {
  ASSERT_EQ(RunJob(Training(""), {"-d"}).exit_code, 0);
  const Processes first = WaitForTasks("job", 3);
  ExpectRefused({"ps:0"}, 1, "what job job-");
  EXPECT_EQ(WaitForTasks("job", 3), first);
  ExpectRestarted({}, "all tasks are started again\n");
  EXPECT_TRUE(Eventually([&] { return StepsOf("worker:1") > 0; }));
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

}  // namespace
}  // namespace muster
