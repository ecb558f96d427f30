// The real trainer on real hosts while workers, daemons, the launcher and whole hosts are killed.
#include "tests/support/lifecycle_fixture.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ClusterTraining : public LifecycleTest {
 protected:
  /// ps:0 on host-1, worker:0, which is chief, on host-2, worker:1 on host-3.
  std::string TrainingJob(const std::string& name, int steps, const std::string& rest = "", int ps = 1) {
    return cluster_.Write(name + ".yaml", "name: " + name +
                                              "\nmodel: mnist_mlp\nupdate: {mode: sync}\n"
                                              "replicas:\n"
                                              "  ps: {count: " +
                                              std::to_string(ps) +
                                              "}\n"
                                              "  worker: {count: 2, restart: on_failure, max_restarts: 2}\n"
                                              "train: {steps: " +
                                              std::to_string(steps) +
                                              ", batch_size: 20, seed: 3, threads: 1, augment: shift, "
                                              "save_onnx: true}\n" +
                                              rest);
  }

  /// Its event files by name, with what they hold.
  static std::map<std::string, std::string> EventFiles(const std::filesystem::path& folder) {
    std::map<std::string, std::string> files;
    const auto names = ListDirectory(folder / "events");
    EXPECT_TRUE(names.ok()) << names.status();
    for (const std::string& name : names.value_or(std::vector<std::string>()))
      files[name] = ReadFile(folder / "events" / name).value_or("");
    return files;
  }

  /// The folder of the newest job's chief on its host: with one server that is the second one.
  std::filesystem::path ChiefFolder(const std::string& host = "host-2") {
    const std::filesystem::path roots = cluster_.hosts().HomeOf(host) + "/.muster/hosts";
    return roots / ListDirectory(roots)->at(0) / "jobs" / JobFolder().filename() / "worker.0";
  }

  /// The result record of the newest job, as it came back.
  Json Result() {
    const std::filesystem::path folder = JobFolder();
    for (const std::string file : {"model.safetensors", "model.onnx"})
      EXPECT_TRUE(std::filesystem::exists(folder / file)) << file;
    EXPECT_FALSE(EventFiles(folder).empty());
    EXPECT_NE(ReadFile(folder / "metrics.jsonl").value_or(""), "");
    const Json result =
        Json::parse(ReadFile(folder / "result.json").value_or(""), nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(result.is_object());
    return result;
  }

  /// What a run of this many steps leads to if nothing happens to it.
  Json UndisturbedChecksum(int steps) {
    const CommandResult run = RunJob(TrainingJob("undisturbed", steps), {"-q"});
    EXPECT_EQ(run.exit_code, 0) << run.stderr_text;
    return Result()["parameters_crc32c"];
  }
};

constexpr int kSteps = 800;
constexpr int kEndlessSteps = 10'000'000;

TEST_F(ClusterTraining, KilledWorkersChangeNoBitOfTheResult) {
  const Json expected = UndisturbedChecksum(kSteps);
  Process run = StartJob(TrainingJob("disturbed", kSteps), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  KillTask("disturbed", "worker:1", 1);
  ASSERT_TRUE(cluster_.WaitForText("run", "step 300: "));
  KillTask("disturbed", "worker:0", 1);  // the chief
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_EQ(Result()["parameters_crc32c"], expected);
  EXPECT_EQ(Result()["steps"], kSteps);
  EXPECT_EQ(Result()["samples"], kSteps * 40);
  EXPECT_EQ(EventFiles(JobFolder()).size(), 2u) << "one of each start of the chief";
  const CommandResult compared = Muster({"compare", "undisturbed", "disturbed"});
  EXPECT_EQ(compared.exit_code, 0) << compared.stderr_text;
  EXPECT_THAT(compared.stdout_text, testing::ContainsRegex("parameters CRC32C  [0-9a-f]+ .* same\n"));
  EXPECT_EQ(EventFiles(JobFolder()), EventFiles(ChiefFolder()));
  EXPECT_EQ(ShowTask("disturbed", "ps:0")["restarts"], 0);
  EXPECT_EQ(ShowTask("disturbed", "worker:0")["restarts"], 1);
  EXPECT_EQ(ShowTask("disturbed", "worker:1")["restarts"], 1);
}

TEST_F(ClusterTraining, AWorkerThatHangsIsStartedAgainAndNoBitChanges) {
  const auto job = [&](const std::string& name) {
    return cluster_.Write(
        name + ".yaml",
        absl::StrFormat("name: %s\nmodel: mnist_mlp\nupdate: {mode: sync}\nreplicas:\n  ps: {count: 1}\n"
                        "  worker: {count: 2, restart: on_failure, hung_after: 5s}\n"
                        "train: {steps: %d, batch_size: 20, seed: 3, threads: 1}\n",
                        name, kSteps));
  };
  ASSERT_EQ(RunJob(job("undisturbed"), {"-q"}).exit_code, 0);
  const auto checksum = [&] {
    return Json::parse(ReadFile(JobFolder() / "result.json").value_or("{}"))["parameters_crc32c"];
  };
  const Json expected = checksum();
  Process run = StartJob(job("hangs"), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  const JobProcess victim = FirstProcesses("hangs").at("worker:1");
  ASSERT_EQ(::kill(victim.pid, SIGSTOP), 0);
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_EQ(checksum(), expected);
  EXPECT_EQ(ShowTask("hangs", "worker:1")["restarts"], 1);
  EXPECT_EQ(ShowTask("hangs", "worker:0")["restarts"], 0) << "it only waited";
  EXPECT_THAT(cluster_.Text("run"),
              AllOf(HasSubstr("worker:1 has made no progress for "), HasSubstr("T (stopped)")));
  const std::string events = Muster({"events", "hangs"}).stdout_text;
  const size_t ended = events.find("Restarting: no progress for "),
               started = events.find("started again, restart 1");
  ASSERT_NE(ended, std::string::npos) << events;
  ASSERT_NE(started, std::string::npos) << events;
  EXPECT_LT(ended, started) << events;
}

TEST_F(ClusterTraining, KilledWorkersOfAllReduceGetTheParametersFromTheOthers) {
  const std::string job =
      cluster_.Write("elastic.yaml",
                     "name: elastic\nmodel: mnist_mlp\nhidden: [50]\nstrategy: allreduce\n"
                     "replicas: {worker: {count: 3, min: 2}}\n"
                     "train: {steps: 2000, global_batch_size: 2001, seed: 3, threads: 1}\n");
  Process run = StartJob(job, "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  KillTask("elastic", "worker:2", 1);
  ASSERT_TRUE(cluster_.WaitForText("run", "with 3 of 3 workers"));
  KillTask("elastic", "worker:0", 1);  // the chief
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  const Json result = Json::parse(ReadFile(JobFolder() / "result.json").value_or("{}"));
  EXPECT_EQ(result["strategy"], "allreduce");
  EXPECT_EQ(result["workers"], 3);
  EXPECT_EQ(result["steps"], 2000);
  EXPECT_EQ(result["samples"], 2000 * 2001);
  EXPECT_GT(result["test_accuracy"], 0.9);
  EXPECT_EQ(ShowTask("elastic", "worker:0")["restarts"], 1);
  EXPECT_EQ(ShowTask("elastic", "worker:1")["restarts"], 0);
  EXPECT_EQ(ShowTask("elastic", "worker:2")["restarts"], 1);
  const std::string text = cluster_.Text("run");
  EXPECT_THAT(text, HasSubstr("worker:2 ("));
  EXPECT_THAT(text, HasSubstr(") has gone: it hung up"));
  EXPECT_THAT(text, Not(HasSubstr("without TLS")));
}

TEST_F(ClusterTraining, KilledTasksOfAHybridJobComeBack) {
  const std::string job =
      cluster_.Write("hybrid.yaml",
                     "name: hybrid\nmodel: wide_deep\nvariant: minibatch\nstrategy: hybrid\n"
                     "replicas: {ps: {count: 2}, worker: {count: 2}}\ndurability: journal\n"
                     "train: {steps: 4000, global_batch_size: 401, seed: 3, threads: 1}\n");
  Process run = StartJob(job, "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  KillTask("hybrid", "worker:1", 1);
  ASSERT_TRUE(cluster_.WaitForText("run", "step 1000: "));
  KillTask("hybrid", "ps:1", 1);
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  const Json result = Json::parse(ReadFile(JobFolder() / "result.json").value_or("{}"));
  EXPECT_EQ(result["strategy"], "hybrid");
  EXPECT_EQ(result["steps"], 4000);
  EXPECT_EQ(result["samples"], 4000 * 401);
  EXPECT_GT(result["pushes"]["applied"], 0);
  EXPECT_GT(result["test_auc"], 0.7);
  EXPECT_EQ(ShowTask("hybrid", "worker:0")["restarts"], 0);
  EXPECT_EQ(ShowTask("hybrid", "worker:1")["restarts"], 1);
  EXPECT_EQ(ShowTask("hybrid", "ps:1")["restarts"], 1);
  EXPECT_THAT(cluster_.Text("run"), Not(HasSubstr("without TLS")));
}

TEST_F(ClusterTraining, ShowSaysWhatTrainersCountAndTime) {
  constexpr int kFew = 100;
  const CommandResult run = RunJob(TrainingJob("counted", kFew, "checkpoint: {every_steps: 20}\n", /*ps=*/2));
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  EXPECT_FALSE(Show("counted").contains("metrics"));
  const CommandResult show = Muster({"show", "counted", "--metrics", "-o", "json"});
  ASSERT_EQ(show.exit_code, 0) << show.stderr_text;
  const Json metrics = Json::parse(show.stdout_text)["metrics"];
  ASSERT_EQ(metrics["workers"].size(), 2u);
  for (const Json& worker : metrics["workers"]) {
    EXPECT_EQ(worker["step"], kFew);
    EXPECT_EQ(worker["steps"], kFew);
    EXPECT_EQ(worker["samples"], kFew * 20);
    for (const char* part : {"compute", "push", "wait", "pull"}) EXPECT_GT(worker[part], 0) << part;
    EXPECT_GT(worker["sent"], kFew * 300'000);
    EXPECT_GT(worker["memory"], 1'000'000);
  }
  ASSERT_EQ(metrics["shards"].size(), 2u);
  for (const Json& shard : metrics["shards"]) {
    EXPECT_EQ(shard["role"], "primary");
    EXPECT_EQ(shard["step"], kFew);
    EXPECT_EQ(shard["held"], 0);
    EXPECT_GE(shard["checkpoint_age"], 0);
  }
  ASSERT_EQ(metrics["pushes"].size(), 4u);
  for (const Json& pushes : metrics["pushes"]) {
    EXPECT_EQ(pushes["applied"], kFew);
    EXPECT_EQ(pushes["received"], pushes["applied"].get<int>() + pushes["duplicate"].get<int>());
    EXPECT_EQ(pushes["staleness"], "0: " + std::to_string(kFew));
  }
  EXPECT_THAT(Muster({"show", "counted", "-m"}).stdout_text,
              AllOf(HasSubstr("COMPUTE"), HasSubstr("CHECKPOINT AGE"), HasSubstr("STALENESS")));
  // What one task has written can be something else: the others are shown, and nobody calls its host lost.
  ASSERT_TRUE(WriteFileAtomically(ChiefFolder("host-3") / "metrics.prom", "something else\n").ok());
  const CommandResult damaged = Muster({"show", "counted", "--metrics", "-o", "json"});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.stderr_text, HasSubstr("worker:0: metrics.prom: line 1 is no metric"));
  EXPECT_EQ(Json::parse(damaged.stdout_text)["metrics"]["workers"].size(), 1u);
  EXPECT_EQ(Json::parse(damaged.stdout_text)["hosts"][2]["state"], "ok");
}

TEST_F(ClusterTraining, AKilledParameterServerIsNamedBeforeTheWorkersThatMissIt) {
  Process run = StartJob(TrainingJob("job", kEndlessSteps), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  KillTask("job", "ps:0", 1);
  EXPECT_EQ(ExitCodeOf(run), 128 + SIGKILL) << cluster_.Text("run");
  EXPECT_THAT(
      cluster_.Text("run"),
      AllOf(HasSubstr(
                "\n\nps:0 on host-1 failed: killed by signal 9 (Killed) (exit code 137, after 0 restarts)\n"
                "its last words:\n  | "),
            HasSubstr("as a consequence:\n  worker:0 on host-2: stopped\n  worker:1 on host-3: stopped\n")));
}

TEST_F(ClusterTraining, AKilledParameterServerWithCheckpointsChangesNoBitOfTheResult) {
  const Json expected = UndisturbedChecksum(kSteps);
  Process run = StartJob(TrainingJob("durable", kSteps, "checkpoint: {every_steps: 60}\n"), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 200: "));
  KillTask("durable", "ps:0", 1);
  ASSERT_TRUE(cluster_.WaitForText("run", "going on from step "));
  KillTask("durable", "worker:1", 1);
  ASSERT_TRUE(cluster_.WaitForText("run", "step 500: "));
  KillTask("durable", "ps:0", 2);
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_EQ(Result()["parameters_crc32c"], expected);
  EXPECT_EQ(Result()["steps"], kSteps);
  EXPECT_EQ(ShowTask("durable", "ps:0")["restarts"], 2);
  // But for one that happened to stand at the checkpoint, both are told.
  const char* said = "training went back from step [0-9]+ to step [0-9]*0\n";
  EXPECT_THAT(cluster_.Text("run"), testing::ContainsRegex(said));
  EXPECT_THAT(Muster({"events", "durable"}).stdout_text, testing::ContainsRegex(said));
}

TEST_F(ClusterTraining, AKilledParameterServerWithAJournalTakesNobodyBack) {
  const Json expected = UndisturbedChecksum(kSteps);
  Process run = StartJob(TrainingJob("journal", kSteps, "durability: journal\n"), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 200: "));
  KillTask("journal", "ps:0", 1);
  ASSERT_TRUE(cluster_.WaitForText("run", "as its journal says"));
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_THAT(cluster_.Text("run"), Not(HasSubstr("gone back")));
  EXPECT_THAT(cluster_.Text("run"), Not(HasSubstr("went back")));
  EXPECT_EQ(Result()["parameters_crc32c"], expected);
}

TEST_F(ClusterTraining, OfReplicatedParameterServersOneIsNotMissedAndComesBack) {
  const Json expected = UndisturbedChecksum(kSteps);
  Process run = StartJob(TrainingJob("replicated", kSteps, "durability: replicated\n", /*ps=*/2), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  KillTask("replicated", "ps:0", 1);
  ASSERT_TRUE(cluster_.WaitForText("run", "this server speaks for the shard in view"));
  ASSERT_TRUE(cluster_.WaitForText("run", "ps:0 (at ps:1): ps:0 is its backup in view"));
  KillTask("replicated", "worker:1", 1);
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_EQ(Result()["parameters_crc32c"], expected) << cluster_.Text("run");
}

TEST_F(ClusterTraining, WithoutDaemonsAndLauncherItGoesOnAndWaitBringsTheResult) {
  const Json expected = UndisturbedChecksum(kSteps);
  Process run = StartJob(TrainingJob("alone", kSteps), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  const auto tasks = WaitForTasks("alone", 3);
  run.Signal(SIGKILL);
  EXPECT_EQ(ExitCodeOf(run), 128 + SIGKILL);
  const std::vector<pid_t> daemons = AgentProcesses(cluster_.hosts().folder(), "daemon");
  EXPECT_EQ(daemons.size(), 3u);
  for (const pid_t daemon : daemons) EXPECT_EQ(::kill(daemon, SIGKILL), 0);
  EXPECT_EQ(FirstProcesses("alone"), tasks);

  const CommandResult wait = Muster({"wait", "alone"});
  EXPECT_EQ(wait.exit_code, 0) << wait.stderr_text;
  EXPECT_THAT(wait.stdout_text, HasSubstr("MNIST accuracy: 0."));
  EXPECT_THAT(wait.stderr_text, Not(HasSubstr("time to first step"))) << "it has not seen it";
  EXPECT_EQ(Result()["parameters_crc32c"], expected);
  for (const auto& [task, process] : tasks) EXPECT_EQ(ShowTask("alone", task)["restarts"], 0) << task;
}

TEST_F(ClusterTraining, AResultThatCannotBeFetchedIsFetchedLater) {
  const std::string job = TrainingJob("heavy", kSteps);
  const CommandResult run = RunJob(job, {"-d"});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  // In its place is something else.
  const std::filesystem::path model = JobFolder() / "model.safetensors";
  ASSERT_TRUE(MakeDirectories(model / "something").ok());
  ASSERT_TRUE(Eventually([&] {
    return cluster_.Muster({"events", "heavy"}).stdout_text.find("model.safetensors") != std::string::npos;
  }));
  EXPECT_THAT(cluster_.Muster({"list"}).stdout_text, HasSubstr("Fetching"));
  const CommandResult waited = cluster_.Muster({"wait", "heavy"});
  EXPECT_NE(waited.exit_code, 0);
  EXPECT_THAT(waited.stderr_text, HasSubstr("tries again"));
  const CommandResult collected = cluster_.Muster({"gc", "heavy"});
  EXPECT_EQ(collected.exit_code, 2) << collected.stderr_text;
  // Nor is it run again, or given other workers, over what is not here yet.
  const CommandResult rerun = RunJob(job, {"-d"});
  EXPECT_EQ(rerun.exit_code, 1);
  EXPECT_THAT(rerun.stderr_text, HasSubstr("its results are still to be fetched"));
  const CommandResult scaled = cluster_.Muster({"scale", "heavy", "worker=3"});
  EXPECT_EQ(scaled.exit_code, 1);
  EXPECT_THAT(scaled.stderr_text, HasSubstr("has ended"));
  ASSERT_TRUE(RemoveTree(model).ok());
  // Nor is it there any more, until somebody brings it back.
  std::filesystem::path there;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(cluster_.hosts().folder())) {
    if (entry.path().filename() == "model.safetensors") there = entry.path();
  }
  const std::filesystem::path elsewhere = cluster_.Path("elsewhere");
  std::filesystem::rename(there, elsewhere);
  const CommandResult gone = cluster_.Muster({"wait", "heavy"});
  EXPECT_EQ(gone.exit_code, 69);
  EXPECT_THAT(gone.stderr_text, HasSubstr("No such file or directory; `muster wait"));
  std::filesystem::rename(elsewhere, there);
  const CommandResult again = cluster_.Muster({"wait", "heavy"});
  EXPECT_EQ(again.exit_code, 0) << again.stderr_text;
  EXPECT_EQ(Result()["steps"], kSteps);
  EXPECT_THAT(cluster_.Muster({"list"}).stdout_text, HasSubstr("Succeeded"));
}

TEST_F(ClusterTraining, MoreStepsRedeployTheWorkersAndKeepTheParameters) {
  Process first = StartJob(TrainingJob("longer", kEndlessSteps), "first");
  ASSERT_TRUE(cluster_.WaitForText("first", "step 100: "));
  const auto before = WaitForTasks("longer", 3);
  first.Signal(SIGKILL);
  EXPECT_EQ(ExitCodeOf(first), 128 + SIGKILL);

  const std::string job = TrainingJob("longer", 2000);
  EXPECT_THAT(Muster({"plan", job, "-i", cluster_.inventory()}).stderr_text,
              HasSubstr("2 redeploy, 1 unchanged\n"));
  Process second = StartJob(job, "second");
  ASSERT_TRUE(Eventually([&] {
    const auto now = FirstProcesses("longer");
    return now.size() == 3 && now.at("worker:0").pid != before.at("worker:0").pid &&
           now.at("worker:1").pid != before.at("worker:1").pid;
  }));
  EXPECT_EQ(FirstProcesses("longer").at("ps:0"), before.at("ps:0"));
  EXPECT_EQ(ExitCodeOf(second), 0) << cluster_.Text("second");
  EXPECT_THAT(cluster_.Text("second"), HasSubstr("going on from step "));
  EXPECT_GE(Result()["steps"],
            2000);  // the first one's workers may have come further before they were stopped
}

TEST_F(ClusterTraining, ASeedThatTheServersWereToldBeforeRedeploysThemToo) {
  Process first = StartJob(TrainingJob("reseeded", kEndlessSteps), "first");
  ASSERT_TRUE(cluster_.WaitForText("first", "step 100: "));
  first.Signal(SIGKILL);
  EXPECT_EQ(ExitCodeOf(first), 128 + SIGKILL);

  std::string text = *ReadFile(TrainingJob("reseeded", kSteps));
  text.replace(text.find("seed: 3"), 7, "seed: 4");
  const std::string job = cluster_.Write("reseeded.yaml", text);
  EXPECT_THAT(Muster({"plan", job, "-i", cluster_.inventory()}).stderr_text, HasSubstr("3 redeploy\n"));
  const CommandResult second = RunJob(job, {"-q"});
  EXPECT_EQ(second.exit_code, 0) << second.stderr_text;
  EXPECT_EQ(Result()["steps"], kSteps);
  EXPECT_EQ(Result()["seed"], 4);
}

TEST_F(ClusterTraining, CtrlCEndsItAndNoOtherJob) {
  Process other = StartJob(TrainingJob("other", kEndlessSteps), "other");
  ASSERT_TRUE(cluster_.WaitForText("other", "step 100: "));
  const auto other_tasks = WaitForTasks("other", 3);
  Process run = StartJob(TrainingJob("job", kEndlessSteps), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  WaitForTasks("job", 3);

  run.Signal(SIGINT);
  EXPECT_TRUE(Eventually([&] { return ProcessCount("job") == 0; }, std::chrono::seconds(10)));
  EXPECT_EQ(ExitCodeOf(run), 130) << cluster_.Text("run");

  EXPECT_EQ(FirstProcesses("other"), other_tasks);
  const size_t printed = cluster_.Text("other").size();
  EXPECT_TRUE(Eventually([&] { return cluster_.Text("other").size() > printed; })) << "it does not go on";
  const CommandResult stop = Muster({"stop", "other"});
  EXPECT_EQ(stop.exit_code, 0) << stop.stderr_text;
  EXPECT_EQ(ExitCodeOf(other), 130) << cluster_.Text("other");
}

TEST_F(ClusterTraining, AHostThatDoesNotComeBackFailsTheJobAndIsNamed) {
  // Long enough for `show`, which asks the lost host too.
  Process run = StartJob(TrainingJob("job", kEndlessSteps), "run", {"--lost-timeout", "20"});
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  cluster_.hosts().Kill("host-3");
  ASSERT_TRUE(cluster_.WaitForText("run", "\nworker:1 on host-3: Lost"));
  ASSERT_TRUE(cluster_.WaitForText("run", "\nlost: host-3"));
  const Json shown = Show("job");
  std::map<std::string, std::string> states;
  for (const Json& task : shown["tasks"]) states[task["task"]] = task["state"];
  EXPECT_EQ(states["worker:1"], "Lost");
  EXPECT_EQ(states["worker:0"], "Running");
  EXPECT_EQ(ExitCodeOf(run), 69) << cluster_.Text("run");
  EXPECT_THAT(cluster_.Text("run"), AllOf(HasSubstr("\n\nhost lost: host-3"),
                                          HasSubstr("as a consequence:\n  ps:0 on host-1: stopped\n"),
                                          HasSubstr("tasks may still run on host-3: host-3 (")));
  ports_left_ = 1;
}

TEST_F(ClusterTraining, AHostThatComesBackGoesOnWithTheSameBits) {
  const Json expected = UndisturbedChecksum(kSteps);
  Process run = StartJob(TrainingJob("job", kSteps), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  cluster_.hosts().Kill("host-3");
  ASSERT_TRUE(cluster_.WaitForText("run", "\nlost: host-3"));
  cluster_.hosts().Start("host-3");
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_EQ(Result()["parameters_crc32c"], expected);
  EXPECT_EQ(ShowTask("job", "worker:1")["restarts"], 1);
}

}  // namespace
}  // namespace muster
