// Hosts that the inventory gains while a job runs: workers join there by themselves, or they are spare.
#include <csignal>
#include <regex>

#include "tests/support/lifecycle_fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ClusterGrowth : public LifecycleTest {
 protected:
  ClusterGrowth() : LifecycleTest(LoopbackCluster::Network::kLoopback, /*hosts=*/4) {}

  void SetUp() override {
    LifecycleTest::SetUp();
    whole_ = ReadFile(cluster_.inventory()).value_or("");
  }

  // From now on the inventory names these hosts only, and what else is given.
  void Name(const std::set<int>& hosts, const std::string& more = "") {
    std::istringstream lines(whole_);
    std::string kept;
    for (std::string line; std::getline(lines, line);) {
      std::smatch match;
      static const std::regex entry(R"(\s+host-(\d): .*)");
      if (!std::regex_match(line, match, entry) || hosts.contains(std::stoi(match[1]))) kept += line + "\n";
    }
    ASSERT_TRUE(WriteFileAtomically(cluster_.inventory(), kept + more).ok());
  }
  // What the file `found` says.
  std::string Discover() const {
    return "discover: {command: [cat, \"" + Path("found") + "\"], every: 300ms}\n";
  }
  // As a discovery command names it.
  std::string LineOf(int host) const {
    std::smatch match;
    const std::regex entry("host-" + std::to_string(host) + R"(: \{ssh: "([^"]+)\")");
    EXPECT_TRUE(std::regex_search(whole_, match, entry)) << whole_;
    return "host-" + std::to_string(host) + " " + match[1].str() + "\n";
  }
  // Until it is stopped, if no steps are given.
  std::string Job(const std::string& rest, int steps = 10'000'000) {
    return cluster_.Write("job.yaml", absl::StrFormat("name: job\nmodel: mnist_mlp\nhidden: [50]\n%s"
                                                      "train: {steps: %d, batch_size: 500, threads: 1}\n",
                                                      rest, steps));
  }
  bool WaitForLog(const std::string& task, const std::string& text) {
    return Eventually([&] {
      return Muster({"logs", "job", task}).stdout_text.find(text) != std::string::npos;
    });
  }
  bool WaitForEvent(const std::string& text) {
    return Eventually([&] { return Muster({"events", "job"}).stdout_text.find(text) != std::string::npos; });
  }
  static size_t Count(const std::string& text, const std::string& part) {
    size_t count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
    return count;
  }

  std::string whole_;  // the inventory with all hosts
};

constexpr char kAllReduce[] = "strategy: allreduce\nreplicas: {worker: {count: 1, max: 3}}\n";

TEST_F(ClusterGrowth, WorkersJoinOnHostsThatTheInventoryHasAndGains) {
  Name({1, 2});
  const auto plan = [&] { return Muster({"plan", Job(kAllReduce), "-i", cluster_.inventory()}).stderr_text; };
  EXPECT_THAT(plan(), HasSubstr("1 start; up to 2 more join (max: 3)\n"));
  Process run = StartJob(Job(kAllReduce), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "worker:1 on host-2 joins\n"));
  ASSERT_TRUE(cluster_.WaitForText("run", "with 2 of 2 workers"));
  const auto first = WaitForTasks("job", 2);
  EXPECT_THAT(plan(), HasSubstr("2 unchanged; up to 1 more join (max: 3)\n"));
  Name({1, 2, 3, 4});
  ASSERT_TRUE(cluster_.WaitForText("run", "worker:2 on host-3 joins; host-4 is a spare host from now on\n"));
  ASSERT_TRUE(cluster_.WaitForText("run", "with 3 of 3 workers"));
  const auto grown = WaitForTasks("job", 3);
  EXPECT_THAT(plan(), HasSubstr("3 unchanged\n"));
  for (const auto& [task, process] : first) EXPECT_EQ(grown.at(task), process) << task;
  // What is followed goes on where it was.
  const std::string text = cluster_.Text("run");
  EXPECT_EQ(Count(text, " step 100: "), 1) << text;
  EXPECT_THAT(text, Not(HasSubstr("goes from")));
  EXPECT_THAT(Muster({"events", "job"}).stdout_text, HasSubstr("worker:2 on host-3 joins"));
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
  EXPECT_EQ(ExitCodeOf(run), 130) << cluster_.Text("run");
}

TEST_F(ClusterGrowth, AJobInTheBackgroundGrowsByItsDiscoveryCommandUntilSomebodyScalesIt) {
  cluster_.Write("found", LineOf(2));
  Name({1}, Discover());
  const std::string job = Job("replicas: {ps: {count: 1}, worker: {count: 1, max: 4}}\n");
  ASSERT_EQ(RunJob(job, {"-d"}).exit_code, 0);
  const auto first = WaitForTasks("job", 2);
  cluster_.Write("found", LineOf(2) + LineOf(3));
  EXPECT_TRUE(WaitForEvent("worker:1 on host-3 joins"));
  EXPECT_TRUE(WaitForLog("ps:0", "worker:1 has joined at step "));
  const auto grown = WaitForTasks("job", 3);
  for (const auto& [task, process] : first) EXPECT_EQ(grown.at(task), process) << task;

  // Whoever runs the file again does not send it away, though the file says that it begins with one.
  EXPECT_THAT(Muster({"plan", job, "-i", cluster_.inventory()}).stderr_text,
              HasSubstr("3 unchanged; up to 2 more join (max: 4)\n"));
  ASSERT_EQ(RunJob(job, {"-d"}).exit_code, 0);
  EXPECT_EQ(WaitForTasks("job", 3), grown);

  const CommandResult down = Muster({"scale", "job", "worker=1"});
  EXPECT_EQ(down.exit_code, 0) << down.stderr_text;
  cluster_.Write("found", LineOf(2) + LineOf(3) + LineOf(4));
  EXPECT_TRUE(WaitForEvent("host-4 is a spare host from now on"));
  EXPECT_EQ(WaitForTasks("job", 2), first);
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

// In place of one that the discovery command, which knows those only that are up, does not name any more.
TEST_F(ClusterGrowth, AHostThatTheInventoryGainsTakesTheTasksOfOneThatIsLost) {
  cluster_.Write("found", LineOf(2) + LineOf(3));
  Name({1}, Discover());
  const std::string job =
      Job("update: {mode: sync}\nreplicas: {ps: {count: 1}, worker: {count: 2, restart: on_failure}}\n",
          /*steps=*/1500);
  Process run = StartJob(job, "run", {"--lost-timeout", "10"});
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  cluster_.hosts().Kill("host-3");
  cluster_.Write("found", LineOf(2) + LineOf(4));
  ASSERT_TRUE(cluster_.WaitForText("run", "host-4 is a spare host from now on"));
  ASSERT_TRUE(cluster_.WaitForText("run", "worker:1 goes from host-3 to host-4"));
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_EQ(ShowTask("job", "ps:0")["restarts"], 0);
  EXPECT_EQ(ShowTask("job", "worker:0")["restarts"], 0);
  cluster_.hosts().Start("host-3");
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

TEST_F(ClusterGrowth, AHostWhoseKeyNobodyKnowsCostsNothingUntilItIsKnown) {
  const std::string known = cluster_.hosts().Text("known_hosts");
  const std::string file = cluster_.Write("known_hosts", known.substr(0, known.find('\n') + 1));  // host-1's
  Name({1});
  Process run = StartJob(Job(kAllReduce), "run", {"--known-hosts", file});
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  const auto first = WaitForTasks("job", 1);
  Name({1, 2});
  ASSERT_TRUE(cluster_.WaitForText("run", "worker:1 on host-2 joins\n"));
  ASSERT_TRUE(cluster_.WaitForText("run", "its host key is not known"));
  ASSERT_TRUE(cluster_.WaitForText("run", "the job goes on without worker:1"));
  EXPECT_EQ(WaitForTasks("job", 1), first);
  cluster_.Write("known_hosts", known);
  ASSERT_TRUE(cluster_.WaitForText("run", "with 2 of 2 workers"));
  EXPECT_EQ(WaitForTasks("job", 2).at("worker:0"), first.at("worker:0"));
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
  EXPECT_EQ(ExitCodeOf(run), 130) << cluster_.Text("run");
}

// One whose name means nothing, and one whose name means each host itself.
TEST_F(ClusterGrowth, HostsThatNobodyReachesKeepNobodyElseOut) {
  Name({1});
  ASSERT_EQ(RunJob(Job(kAllReduce), {"-d"}).exit_code, 0);
  Name({1, 2}, "  typo: {ssh: no-such-host.invalid}\n  self: {ssh: localhost}\n");
  EXPECT_TRUE(WaitForEvent("worker:1 on host-2 joins"));
  EXPECT_TRUE(WaitForLog("worker:0", "with 2 of 2 workers"));
  EXPECT_TRUE(WaitForEvent("the job does not use self, typo yet: "));
  const std::string events = Muster({"events", "job"}).stdout_text;
  EXPECT_THAT(events, HasSubstr("host typo: look up no-such-host.invalid: "));
  EXPECT_THAT(events, HasSubstr("host self: its address is 127.0.0.1, which other hosts cannot reach"));
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

// What was changed in the file meanwhile is for the next `run`.
TEST_F(ClusterGrowth, WhatCannotBePlannedIsSaidAndTheJobGoesOn) {
  Name({1});
  ASSERT_EQ(RunJob(Job(kAllReduce), {"-d"}).exit_code, 0);
  const auto first = WaitForTasks("job", 1);
  Name({2, 3}, "discover: {command: exit 3}\n");
  EXPECT_TRUE(WaitForEvent("the job does not use host-2, host-3 yet: " + cluster_.inventory() + ":"));
  EXPECT_TRUE(WaitForEvent(": the discovery command `exit 3` failed"));
  Name({2});
  EXPECT_TRUE(WaitForEvent("worker:1 on host-2 joins"));
  EXPECT_TRUE(WaitForLog("worker:0", "with 2 of 2 workers"));
  EXPECT_EQ(WaitForTasks("job", 2).at("worker:0"), first.at("worker:0"))
      << "where it runs is good for it, though the inventory names that host no more";
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

// Which has neither the job file nor what was packed here, and goes by the job as it was.
TEST_F(ClusterGrowth, AHostThatDrivesAJobGrowsItToo) {
  cluster_.Write("found", "");
  Name({1, 3}, Discover());
  const std::string job = Job(kAllReduce);
  ASSERT_EQ(RunJob(job, {"-d", "--on", "host-3"}).exit_code, 0);
  EXPECT_TRUE(WaitForEvent("worker:1 on host-3 joins"));
  const auto first = WaitForTasks("job", 2);
  cluster_.Write("job.yaml", "name: another\n");
  cluster_.Write("found", LineOf(4));
  EXPECT_TRUE(WaitForEvent("worker:2 on host-4 joins"));
  cluster_.Write("found", "");  // nobody here finds it
  EXPECT_TRUE(WaitForLog("worker:0", "with 3 of 3 workers"));
  const auto grown = WaitForTasks("job", 3);
  for (const auto& [task, process] : first) EXPECT_EQ(grown.at(task), process) << task;
  EXPECT_EQ(Show("job")["driver"], Json({{"host", "host-3"}}));
  const CommandResult stopped = Muster({"stop", "job"});
  EXPECT_EQ(stopped.exit_code, 0) << stopped.stderr_text;
  EXPECT_THAT(stopped.stderr_text, HasSubstr("0 processes, 0 ports on 3 hosts\n"));
}

TEST_F(ClusterGrowth, WhoWaitsForAJobThatNobodyDroveGrowsItToo) {
  Name({1});
  ASSERT_EQ(RunJob(Job(kAllReduce), {"-d"}).exit_code, 0);
  const auto first = WaitForTasks("job", 1);
  ASSERT_EQ(::kill(Show("job")["driver"]["pid"], SIGKILL), 0);
  Name({1, 2});
  Process wait = cluster_.Start({"wait", "job"}, "wait");
  EXPECT_TRUE(WaitForEvent("worker:1 on host-2 joins"));
  EXPECT_TRUE(WaitForLog("worker:0", "with 2 of 2 workers"));
  EXPECT_EQ(WaitForTasks("job", 2).at("worker:0"), first.at("worker:0"));
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
  EXPECT_EQ(ExitCodeOf(wait), 130) << cluster_.Text("wait");
}

TEST_F(ClusterGrowth, WhatAWorkerThatHasLeftPrintedCanStillBeRead) {
  ASSERT_EQ(RunJob(Job("strategy: allreduce\nreplicas: {worker: {count: 2}}\n"), {"-d"}).exit_code, 0);
  const auto log = [&] { return Muster({"logs", "job", "worker:1"}); };
  ASSERT_TRUE(Eventually([&] { return !log().stdout_text.empty(); }));
  const std::string before = log().stdout_text;
  ASSERT_EQ(Muster({"scale", "job", "worker=1"}).exit_code, 0);
  WaitForTasks("job", 1);
  const CommandResult logs = log();
  EXPECT_EQ(logs.exit_code, 0) << logs.stderr_text;
  EXPECT_THAT(logs.stdout_text, ::testing::StartsWith(before));
  EXPECT_EQ(Muster({"logs", "job", "worker:2"}).exit_code, 2) << "there was none";
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

}  // namespace
}  // namespace muster
