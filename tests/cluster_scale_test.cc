// Workers that join a job while it runs, and leave it: the others go on.
#include <regex>

#include "tests/support/lifecycle_fixture.h"

namespace muster {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class ClusterScale : public LifecycleTest {
 protected:
  ClusterScale() : LifecycleTest(LoopbackCluster::Network::kLoopback, /*hosts=*/4) {}

  // Until it is stopped.
  std::string Job(const std::string& rest, const std::string& train = "") {
    return cluster_.Write("job.yaml", "name: job\nmodel: mnist_mlp\nhidden: [50]\n" + rest +
                                          "train: {steps: 10000000, batch_size: 500, threads: 1" + train +
                                          "}\n");
  }
  static std::string AllReduce(int workers, const std::string& more = "") {
    return "strategy: allreduce\nreplicas: {worker: {count: " + std::to_string(workers) + more + "}}\n";
  }
  void Begin(const std::string& job) {
    const CommandResult result = RunJob(job, {"-d"});
    ASSERT_EQ(result.exit_code, 0) << result.stderr_text;
  }
  CommandResult Scale(int workers) { return Muster({"scale", "job", "worker=" + std::to_string(workers)}); }
  /// All of `tasks` are the same processes `later`.
  template <typename Processes>
  static void ExpectThatTheyRunOn(const Processes& tasks, const Processes& later) {
    for (const auto& [task, process] : tasks) EXPECT_EQ(later.at(task), process) << task;
  }
  // The task has printed it.
  [[nodiscard]] bool WaitForLog(const std::string& task, const std::string& text) {
    return Eventually([&] {
      return Muster({"logs", "job", task}).stdout_text.find(text) != std::string::npos;
    });
  }
  void ExpectRefused(const std::vector<std::string>& arguments, int exit_code, const std::string& why) {
    const CommandResult result = Muster(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.stderr_text;
    EXPECT_THAT(result.stderr_text, HasSubstr(why));
  }
};

TEST_F(ClusterScale, WorkersOfAnAllReduceJobJoinAndLeave) {
  Begin(Job(AllReduce(2)));
  const auto first = WaitForTasks("job", 2);
  Process logs = cluster_.Start({"logs", "-f", "job"}, "logs");
  ASSERT_TRUE(cluster_.WaitForText("logs", "[worker:1@host-2] "));
  const CommandResult up = Scale(4);
  EXPECT_EQ(up.exit_code, 0) << up.stderr_text;
  EXPECT_THAT(up.stderr_text, HasSubstr("worker:2 on host-3, worker:3 on host-4 join\n"));
  EXPECT_TRUE(cluster_.WaitForText("logs", "[worker:3@host-4] "));
  EXPECT_TRUE(WaitForLog("worker:0", "with 4 of 4 workers"));
  const auto grown = WaitForTasks("job", 4);
  ExpectThatTheyRunOn(first, grown);
  EXPECT_EQ(Scale(4).exit_code, 0) << "as many as there are";
  EXPECT_THAT(Muster({"events", "job"}).stdout_text,
              HasSubstr("scaled: worker:2 on host-3, worker:3 on host-4 join"));

  const CommandResult down = Scale(1);
  EXPECT_EQ(down.exit_code, 0) << down.stderr_text;
  // Of how many, the cluster may say after they have gone.
  EXPECT_TRUE(WaitForLog("worker:0", "with 1 of "));
  EXPECT_EQ(WaitForTasks("job", 1).at("worker:0"), first.at("worker:0"));

  // The same task again, on the same host.
  EXPECT_EQ(Scale(2).exit_code, 0);
  EXPECT_TRUE(WaitForLog("worker:0", "with 2 of 2 workers"));
  EXPECT_EQ(WaitForTasks("job", 2).at("worker:0"), first.at("worker:0"));
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
  EXPECT_EQ(ExitCodeOf(logs), 0) << cluster_.Text("logs");
}

TEST_F(ClusterScale, WorkersOfAsynchronousServersJoinAndLeave) {
  Begin(Job("replicas: {ps: {count: 2}, worker: {count: 1}}\n"));
  const auto first = WaitForTasks("job", 3);
  EXPECT_EQ(Scale(3).exit_code, 0);
  for (const char* server : {"ps:0", "ps:1"}) {
    for (const char* worker : {"worker:1", "worker:2"}) {
      EXPECT_TRUE(WaitForLog(server, std::string(worker) + " has joined at step ")) << server;
    }
  }
  const auto grown = WaitForTasks("job", 5);
  ExpectThatTheyRunOn(first, grown);
  EXPECT_EQ(Scale(2).exit_code, 0);
  EXPECT_TRUE(WaitForLog("ps:0", "worker:2 has left the job"));
  const auto shrunk = WaitForTasks("job", 4);
  ExpectThatTheyRunOn(shrunk, grown);
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

TEST_F(ClusterScale, WorkersOfSynchronousServersShareEachBatch) {
  Begin(Job("update: {mode: sync}\nreplicas: {ps: {count: 2}, worker: {count: 2}}\n"));
  const auto first = WaitForTasks("job", 4);
  const CommandResult up = Scale(4);
  EXPECT_EQ(up.exit_code, 0) << up.stderr_text;
  EXPECT_THAT(up.stderr_text, HasSubstr("worker:2 on host-1, worker:3 on host-2 join\n"));
  EXPECT_TRUE(WaitForLog("ps:0", "each batch is shared by 4"));
  const auto grown = WaitForTasks("job", 6);
  ExpectThatTheyRunOn(first, grown);

  EXPECT_EQ(Scale(1).exit_code, 0);
  EXPECT_TRUE(WaitForLog("ps:0", "each batch is shared by 1"));
  const auto shrunk = WaitForTasks("job", 3);
  ExpectThatTheyRunOn(shrunk, grown);
  EXPECT_THAT(Muster({"events", "job"}).stdout_text, testing::Not(HasSubstr("training went back")));
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

// Those that were there at first are not done before all steps are made; who has just come need not have
// begun.
TEST_F(ClusterScale, AJobSucceedsWithThoseWhoHaveJoinedIt) {
  const std::string job = cluster_.Write(
      "job.yaml",
      "name: job\nmodel: mnist_mlp\nhidden: [50]\nreplicas: {ps: {count: 1}, worker: {count: 1}}\n"
      "train: {steps: 6000, batch_size: 100, threads: 1, device: \"wait:5\"}\n");
  Begin(job);
  WaitForTasks("job", 2);
  const CommandResult up = Scale(3);
  EXPECT_EQ(up.exit_code, 0) << up.stderr_text;
  const CommandResult wait = cluster_.Muster({"wait", "job"}, std::chrono::minutes(4));
  EXPECT_EQ(wait.exit_code, 0) << wait.stderr_text;
  const Json result = Json::parse(ReadFile(JobFolder() / "result.json").value_or("{}"));
  EXPECT_EQ(result["workers"], 3);
  EXPECT_GE(result["steps"], 6000);
}

TEST_F(ClusterScale, TheJobKeepsItsDeadline) {
  ASSERT_EQ(RunJob(Job(AllReduce(1)), {"-d", "--timeout", "20"}).exit_code, 0);
  EXPECT_EQ(Scale(2).exit_code, 0);
  const CommandResult wait = Muster({"wait", "job"});
  EXPECT_EQ(wait.exit_code, 124) << wait.stderr_text;
}

TEST_F(ClusterScale, AnotherCountInTheJobFileDoesTheSame) {
  Begin(Job(AllReduce(2)));
  const auto first = WaitForTasks("job", 2);
  const std::string job = Job(AllReduce(3));
  EXPECT_THAT(Muster({"plan", job, "-i", cluster_.inventory()}).stderr_text,
              HasSubstr("1 start, 2 unchanged\n"));
  Begin(job);
  EXPECT_TRUE(WaitForLog("worker:0", "with 3 of 3 workers"));
  const auto grown = WaitForTasks("job", 3);
  ExpectThatTheyRunOn(first, grown);
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

TEST_F(ClusterScale, AHostThatIsDownIsNotWaitedForAndItsWorkerJoinsWhenItIsBack) {
  Begin(Job(AllReduce(2)));
  const auto first = WaitForTasks("job", 2);
  cluster_.hosts().Kill("host-3");
  const CommandResult up = Scale(4);
  EXPECT_EQ(up.exit_code, 0) << up.stderr_text;
  EXPECT_THAT(up.stderr_text, HasSubstr("host-3 stays lost: the job goes on without worker:2"));
  EXPECT_TRUE(WaitForLog("worker:0", "with 3 of 4 workers"));
  EXPECT_EQ(ShowTask("job", "worker:2")["state"], "Lost");
  cluster_.hosts().Start("host-3");
  EXPECT_TRUE(WaitForLog("worker:0", "with 4 of 4 workers"));
  const auto grown = WaitForTasks("job", 4);
  ExpectThatTheyRunOn(first, grown);
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

TEST_F(ClusterScale, AHostThatWasNeverReachedHasNothingToStopOrRemove) {
  Begin(Job(AllReduce(2)));
  WaitForTasks("job", 2);
  cluster_.hosts().Kill("host-4");
  const CommandResult up = Scale(4);
  EXPECT_EQ(up.exit_code, 0) << up.stderr_text;
  WaitForTasks("job", 3);
  const CommandResult stop = Muster({"stop", "job"});
  EXPECT_EQ(stop.exit_code, 0) << stop.stderr_text;
  EXPECT_THAT(stop.stderr_text,
              testing::AllOf(HasSubstr("host-4 was never reached, and has nothing of job job-"),
                             HasSubstr(": 0 processes, 0 ports on 3 hosts\n")));
  const CommandResult again = Muster({"stop", "job"});
  EXPECT_EQ(again.exit_code, 0) << again.stderr_text;
  // The one that has joined is sought, though it joined as the other was to.
  cluster_.hosts().Kill("host-3");
  const CommandResult half = Muster({"gc", "--connect-timeout", "2"});
  EXPECT_EQ(half.exit_code, 69);
  EXPECT_THAT(half.stderr_text,
              testing::AllOf(HasSubstr("host-3 ("), HasSubstr("1 folder on 3 hosts is left"),
                             testing::Not(HasSubstr("host-4"))));
  cluster_.hosts().Start("host-3");
  const CommandResult gc = Muster({"gc"});
  EXPECT_EQ(gc.exit_code, 0) << gc.stderr_text;
  cluster_.hosts().Start("host-4");
}

TEST_F(ClusterScale, WorkersJoinOnHostsThatTheDiscoveryCommandFinds) {
  std::string address_of_last;  // "host-4 ADDRESS:PORT"
  {
    std::istringstream lines(ReadFile(cluster_.inventory()).value_or(""));
    std::string kept;
    for (std::string line; std::getline(lines, line);) {
      static const std::regex last(R"(\s+host-4: \{ssh: "([^"]+)\".*)");
      std::smatch match;
      if (std::regex_match(line, match, last)) {
        address_of_last = "host-4 " + match[1].str() + "\n";
      } else if (line.find("host-3") == std::string::npos) {
        kept += line + "\n";
      }
    }
    ASSERT_NE(address_of_last, "");
    cluster_.Write("found", "# none yet\n");
    cluster_.Write("inventory.yaml", kept + "discover: {command: cat found, every: 1s}\n");
  }
  const std::string inventory = Path("inventory.yaml");
  const CommandResult run = Muster({"run", Job(AllReduce(2)), "-d", "-i", inventory});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  const auto first = WaitForTasks("job", 2);
  cluster_.Write("found", address_of_last);
  const CommandResult up = Scale(3);
  EXPECT_EQ(up.exit_code, 0) << up.stderr_text;
  EXPECT_THAT(up.stderr_text, HasSubstr("worker:2 on host-4 joins\n"));
  EXPECT_TRUE(WaitForLog("worker:0", "with 3 of 3 workers"));
  for (const auto& [task, process] : first) EXPECT_EQ(WaitForTasks("job", 3).at(task), process) << task;
  cluster_.Write("found", "no such line\n");
  ExpectRefused({"run", Path("job.yaml"), "-i", inventory}, 1,
                "the discovery command `cat found` failed: line 1");
  EXPECT_EQ(FirstProcesses("job").size(), 3);
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

TEST_F(ClusterScale, InterruptedItLeavesTheJobAndGoesOn) {
  Begin(Job(AllReduce(1)));
  WaitForTasks("job", 1);
  cluster_.hosts().Kill("host-2");  // which it tries to reach for a while; no other one is free
  Process scale = cluster_.Start({"scale", "job", "worker=4"}, "scale");
  ASSERT_TRUE(cluster_.WaitForText("scale", "worker:3 on host-4 join"));
  scale.Signal(SIGINT);
  EXPECT_EQ(ExitCodeOf(scale), 130);
  EXPECT_TRUE(WaitForLog("worker:0", "with 3 of 4 workers"));
  cluster_.hosts().Start("host-2");
  EXPECT_TRUE(WaitForLog("worker:0", "with 4 of 4 workers"));
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

TEST_F(ClusterScale, AWorkerThatHasJoinedMayFail) {
  Begin(Job(AllReduce(2, ", restart: never")));
  const auto first = WaitForTasks("job", 2);
  EXPECT_EQ(Scale(3).exit_code, 0);
  EXPECT_TRUE(WaitForLog("worker:0", "with 3 of 3 workers"));
  KillTask("job", "worker:2", 1);
  EXPECT_TRUE(WaitForLog("worker:0", "with 2 of 3 workers"));
  EXPECT_TRUE(Eventually([&] { return ShowTask("job", "worker:2")["state"] == "Failed"; }));
  EXPECT_EQ(WaitForTasks("job", 2), first);
  // Another one may do better.
  EXPECT_EQ(Scale(2).exit_code, 0);
  EXPECT_EQ(Scale(3).exit_code, 0);
  EXPECT_TRUE(Eventually([&] { return FirstProcesses("job").size() == 3; }));
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

// The servers wait for it as long as they would for one that is only silent, and not at the end for ever.
TEST_F(ClusterScale, AsynchronousServersEndWithoutAWorkerThatHasFailed) {
  const std::string job =
      cluster_.Write("job.yaml",
                     "name: job\nmodel: mnist_mlp\nhidden: [50]\ncheckpoint: {every_steps: 500}\n"
                     "replicas: {ps: {count: 2}, worker: {count: 1, restart: never}}\n"
                     "train: {steps: 6000, batch_size: 100, threads: 1, device: \"wait:5\"}\n");
  Begin(job);
  EXPECT_EQ(Scale(2).exit_code, 0);
  for (const char* server : {"ps:0", "ps:1"}) EXPECT_TRUE(WaitForLog(server, "worker:1 has joined"));
  KillTask("job", "worker:1", 1);
  const CommandResult wait = cluster_.Muster({"wait", "job"}, std::chrono::minutes(4));
  EXPECT_EQ(wait.exit_code, 0) << wait.stderr_text;
  for (const char* server : {"ps:0", "ps:1"}) EXPECT_EQ(ShowTask("job", server)["state"], "Succeeded");
}

TEST_F(ClusterScale, WhereverItIsCalledAndWhoeverHasDrivenTheJob) {
  Job(AllReduce(1));
  const CommandResult run = cluster_.Shell("cd '" + Path("") + "' && muster run -d job.yaml -i '" +
                                           cluster_.inventory() + "' && cd / && muster scale job worker=2");
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  const auto first = WaitForTasks("job", 2);
  const pid_t driver = Show("job")["driver"]["pid"];
  ASSERT_EQ(::kill(driver, SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] { return Show("job")["driver"].is_null(); }));
  // Which nobody has seen to.
  const CommandResult again = Scale(2);
  EXPECT_EQ(again.exit_code, 0) << again.stderr_text;
  EXPECT_THAT(again.stderr_text, HasSubstr("goes on as it was"));
  EXPECT_EQ(Show("job")["driver"]["background"], true);
  EXPECT_EQ(WaitForTasks("job", 2), first);
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

TEST_F(ClusterScale, TheJobKeepsItsKnownHostsAsLongAsTheyAreThere) {
  const std::string known = cluster_.hosts().Text("known_hosts");
  const std::string file = cluster_.Write("known_hosts", known.substr(0, known.find('\n') + 1));  // host-1's
  const CommandResult run = RunJob(Job(AllReduce(1)), {"-d", "--known-hosts", file});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  const auto first = WaitForTasks("job", 1);
  const CommandResult refused = Scale(2);
  EXPECT_THAT(refused.stderr_text, HasSubstr("its host key is not known"));
  EXPECT_THAT(refused.stderr_text, ContainsRegex("muster check .*--accept-new.* --known-hosts .*" + file));
  EXPECT_EQ(WaitForTasks("job", 1), first);
  std::filesystem::remove(file);
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

TEST_F(ClusterScale, TheJobIsWhatItWasRunAsWhateverHasBecomeOfItsFile) {
  const std::string job = Job(AllReduce(1), ", seed: 1");
  Begin(job);
  const auto first = WaitForTasks("job", 1);
  Job(AllReduce(1), ", seed: 2");  // for the next run
  const CommandResult changed = Scale(2);
  EXPECT_EQ(changed.exit_code, 0) << changed.stderr_text;
  EXPECT_TRUE(WaitForLog("worker:0", "with 2 of 2 workers"));
  cluster_.Write("job.yaml", "name: [half\n");
  const CommandResult broken = Scale(3);
  EXPECT_EQ(broken.exit_code, 0) << broken.stderr_text;
  EXPECT_TRUE(WaitForLog("worker:0", "with 3 of 3 workers"));
  std::filesystem::remove(job);
  const CommandResult removed = Scale(1);
  EXPECT_EQ(removed.exit_code, 0) << removed.stderr_text;
  // Of how many, the cluster may say after they have gone.
  EXPECT_TRUE(WaitForLog("worker:0", "with 1 of "));
  EXPECT_EQ(WaitForTasks("job", 1), first);
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

TEST_F(ClusterScale, WhatCannotBeIsRefusedAndTheJobGoesOn) {
  const std::string job = Job(AllReduce(2, ", min: 2"), ", seed: 1");
  Begin(job);
  const auto first = WaitForTasks("job", 2);
  ExpectRefused({"scale", "job", "ps=2"}, 2, "only workers join a job that runs");
  ExpectRefused({"scale", "job", "worker=0"}, 2, "expected worker=N");
  ExpectRefused({"scale", "job", "worker=1"}, 2, "job.yaml:5:36: \"min\" is 2 of 1 workers");
  ExpectRefused({"scale", "other", "worker=1"}, 2, "there is no job 'other'");
  ExpectRefused({"scale", "job", "worker=1001"}, 2, "1001 workers cannot share it");
  const std::string inventory = ReadFile(cluster_.inventory()).value_or("");
  cluster_.Write("other.yaml", std::regex_replace(inventory, std::regex("host-2"), "host-9"));
  ASSERT_TRUE(WriteFileAtomically(cluster_.inventory(), cluster_.Text("other.yaml")).ok());
  ExpectRefused({"scale", "job", "worker=3"}, 1, "worker:1 of job job-");
  ASSERT_TRUE(WriteFileAtomically(cluster_.inventory(), inventory).ok());
  EXPECT_EQ(WaitForTasks("job", 2), first);

  // In the foreground.
  ASSERT_EQ(Muster({"stop", "job"}).exit_code, 0);
  Process run = StartJob(job, "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  ExpectRefused({"scale", "job", "worker=3"}, 1, "which is not in the background");
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
  EXPECT_EQ(ExitCodeOf(run), 130) << cluster_.Text("run");
  ExpectRefused({"scale", "job", "worker=3"}, 1, "has ended");

  // Workers that make each step together.
  Begin(Job("update: {mode: bounded, staleness: 1}\nreplicas: {ps: {count: 1}, worker: {count: 2}}\n"));
  ExpectRefused({"scale", "job", "worker=3"}, 1, "with `update: {mode: bounded}` each step is made by all");
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

}  // namespace
}  // namespace muster
