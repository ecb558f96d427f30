// Whoever drives a job, and others that would stop it, or go on with it, meanwhile.
#include <random>
#include <regex>

#include "tests/support/fault_hosts.h"
#include "tests/support/lifecycle_fixture.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ClusterDrivers : public LifecycleTest {
 protected:
  explicit ClusterDrivers(LoopbackCluster::Network network = LoopbackCluster::Network::kLoopback)
      : LifecycleTest(network, /*hosts=*/4) {}
};

// By another muster, say, which takes the job over.
TEST_F(ClusterDrivers, ThatTheProcessInTheBackgroundWasEndedIsSaid) {
  const pid_t sshd = std::stoi(cluster_.hosts().Text("host-3/sshd.pid"));
  ASSERT_EQ(::kill(sshd, SIGSTOP), 0);
  Process run = StartJob(ScriptJob("ended", "exec sleep 600"), "run", {"-d"});
  ASSERT_TRUE(cluster_.WaitForText("run", ": 3 tasks on 3 hosts\n")) << cluster_.Text("run");
  const pid_t driver = std::atoi(ReadFile(JobFolder() / "lock").value_or("").c_str());
  ASSERT_GT(driver, 0);
  ASSERT_EQ(::kill(driver, SIGKILL), 0);
  EXPECT_EQ(ExitCodeOf(run), 128 + SIGKILL);
  EXPECT_THAT(cluster_.Text("run"), HasSubstr("was ended by a signal (Killed)"));
  ASSERT_EQ(::kill(sshd, SIGCONT), 0);
  EXPECT_EQ(Muster({"stop", "ended"}).exit_code, 0);
}

// That of this machine: the job's record cannot be written.
TEST_F(ClusterDrivers, AFullDiskCostsNoDriverAndKeepsNobodyFromStoppingTheJob) {
  std::filesystem::create_directories(cluster_.home());
  const SmallDisk disk(cluster_.home(), 4 << 20);
  if (!disk.mounted()) GTEST_SKIP() << "cannot mount a tmpfs here: needs root";
  const std::string job = cluster_.Write(
      "job.yaml",
      "name: job\nmodel: mnist_mlp\nhidden: [50]\nstrategy: allreduce\nreplicas: {worker: {count: 2}}\n"
      "train: {steps: 10000000, batch_size: 500, threads: 1}\n");
  const CommandResult run = RunJob(job, {"-d"});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  const auto tasks = WaitForTasks("job", 2);
  const Json driver = Show("job")["driver"];
  ASSERT_TRUE(driver["pid"].is_number()) << driver;
  const std::string full = cluster_.home() / "full";
  cluster_.Shell("cat /dev/zero >'" + full + "'");

  const CommandResult scaled = Muster({"scale", "job", "worker=3"});
  EXPECT_EQ(scaled.exit_code, 1);
  EXPECT_THAT(scaled.stderr_text, AllOf(HasSubstr("goes on as it is"), HasSubstr("No space left on device")));
  EXPECT_EQ(Show("job")["driver"], driver);
  const CommandResult again = RunJob(job, {"-d"});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.stderr_text, AllOf(HasSubstr("goes on as it is"), HasSubstr("No space left on device")));
  EXPECT_EQ(Show("job")["driver"], driver);
  EXPECT_EQ(FirstProcesses("job"), tasks);

  const CommandResult stop = Muster({"stop", "job"});
  EXPECT_EQ(stop.exit_code, 1);
  EXPECT_THAT(stop.stderr_text,
              AllOf(HasSubstr("0 processes, 0 ports on 2 hosts\n"), HasSubstr("is not written down"),
                    HasSubstr("No space left on device")));
  EXPECT_THAT(JobProcesses(cluster_.hosts().folder()), IsEmpty());
  std::filesystem::remove(full);
  const CommandResult stop_again = Muster({"stop", "job"});
  EXPECT_EQ(stop_again.exit_code, 0) << stop_again.stderr_text;
  EXPECT_EQ(Show("job")["state"], "Stopped");
}

// A host that has been started again may let people in before their homes are mounted.
TEST_F(ClusterDrivers, ALoginThatIsRefusedForAWhileCostsNoRunningJob) {
  Process run = StartJob(ScriptJob("refused", kWaitForGo, "count: 2"), "run");
  const auto tasks = WaitForTasks("refused", 2);
  ASSERT_TRUE(cluster_.WaitForText("run", "worker:1 on host-2: Running"));
  const std::string keys = cluster_.hosts().folder() + "/authorized_keys";
  std::filesystem::rename(keys, keys + ".away");
  cluster_.hosts().Move("host-2", cluster_.hosts().targets()[1].address);  // which ends its connections
  EXPECT_TRUE(Eventually([&] {
    return std::regex_search(cluster_.Text("run"), std::regex("lost: host-2 .*: login as .* failed"));
  })) << cluster_.Text("run");
  EXPECT_EQ(FirstProcesses("refused"), tasks);
  std::filesystem::rename(keys + ".away", keys);
  EXPECT_TRUE(Eventually([&] { return ShowTask("refused", "worker:1")["state"] == "Running"; }));
  Touch("go");
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
}

class ClusterDriversSlow : public ClusterDrivers {
 protected:
  ClusterDriversSlow() : ClusterDrivers(LoopbackCluster::Network::kNamespaces) {}

  // Which nothing makes smaller.
  void WriteBytes(const std::string& name, size_t size) {
    std::mt19937_64 random(7);
    std::string bytes(size, '\0');
    for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
      const uint64_t word = random();
      std::memcpy(&bytes[i], &word, sizeof word);
    }
    cluster_.Write(name, bytes);
  }

  // A job whose data takes minutes to a host at kRate.
  std::string JobWithData(const std::string& name, const std::string& replicas) {
    std::filesystem::create_directories(Path("data"));
    WriteBytes("data/bytes", 16 << 20);
    ScriptJob(name, "exec sleep 600", replicas);
    return cluster_.Write(name + ".yaml", cluster_.Text(name + ".yaml") + "data: \"" + Path("data") + "\"\n");
  }
  static constexpr uint64_t kRate = 1'000'000;  // bits a second
};

TEST_F(ClusterDriversSlow, WhatDoesNotRunYetIsStoppedByWhoBringsItAbout) {
  ASSERT_EQ(RunJob(ScriptJob("first", "true", "count: 2")).exit_code, 0);  // which brings the agents there
  cluster_.hosts().Slow("host-2", kRate);
  Process run = StartJob(JobWithData("slow", "count: 2"), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", ": 2 tasks on 2 hosts\n")) << cluster_.Text("run");
  const CommandResult stop = Muster({"stop", "slow"});
  EXPECT_EQ(stop.exit_code, 0) << stop.stderr_text;
  EXPECT_THAT(stop.stderr_text, HasSubstr(": 0 processes, 0 ports on "));
  EXPECT_EQ(ExitCodeOf(run), 130) << cluster_.Text("run");
  EXPECT_THAT(cluster_.Text("run"), HasSubstr("was stopped by another command"));
  EXPECT_EQ(Show("slow")["state"], "Stopped");
}

// They take longer than an answer may, and than a stop may.
TEST_F(ClusterDriversSlow, FilesThatComeSlowlyWithAStartAreWaitedFor) {
  constexpr size_t kBytes = 2 << 20;
  constexpr uint64_t kSeconds = 15;
  ASSERT_EQ(RunJob(ScriptJob("first", "true", "count: 2")).exit_code, 0);  // which brings the agents there
  WriteBytes("weights", kBytes);
  for (const std::string host : {"host-1", "host-2"}) cluster_.hosts().Slow(host, kBytes * 8 / kSeconds);
  const std::string job = ScriptJob("files", "wc -c < weights", "count: 2");
  cluster_.Write("files.yaml", cluster_.Text("files.yaml") + "files: [weights]\n");
  const CommandResult run = RunJob(job);
  EXPECT_EQ(run.exit_code, 0) << run.stderr_text;
  EXPECT_THAT(run.stdout_text,
              AllOf(HasSubstr("[worker:0@host-1] 2097152\n"), HasSubstr("[worker:1@host-2] 2097152\n")));
  // (TCP itself may give up where a narrow link drops packets four times in a row, and is begun again.)
  EXPECT_THAT(run.stderr_text, Not(HasSubstr("no answer")));

  Process stopped = StartJob(job, "stopped");
  ASSERT_TRUE(cluster_.WaitForText("stopped", "host-1: ready\n")) << cluster_.Text("stopped");
  ASSERT_TRUE(cluster_.WaitForText("stopped", "host-2: ready\n")) << cluster_.Text("stopped");
  stopped.Signal(SIGINT);
  EXPECT_EQ(ExitCodeOf(stopped), 130) << cluster_.Text("stopped");
  EXPECT_THAT(cluster_.Text("stopped"), Not(HasSubstr("tasks may still run")));
}

TEST_F(ClusterDriversSlow, CtrlCWhileItGetsTheJobStopsThat) {
  const auto run_on_head = [&](const std::string& job) {
    return std::vector<std::string>{"run", job, "-i", InventoryWithHead(), "-d", "--on", "host-3"};
  };
  ASSERT_EQ(Muster(run_on_head(ScriptJob("first", "true", "count: 2, on: cpu"))).exit_code, 0);
  ASSERT_EQ(Muster({"wait", "first"}).exit_code, 0);
  cluster_.hosts().Slow("host-3", kRate);
  for (const int signal : {SIGINT, SIGTERM}) {
    Process run = cluster_.Start(run_on_head(JobWithData("slow", "count: 2, on: cpu")), "run");
    ASSERT_TRUE(cluster_.WaitForText("run", "host-3 gets what the job needs\n")) << cluster_.Text("run");
    run.Signal(signal);
    EXPECT_EQ(ExitCodeOf(run), 130) << cluster_.Text("run");
    EXPECT_THAT(JobProcesses(cluster_.hosts().folder()), IsEmpty());
    EXPECT_EQ(Show("slow")["state"], "Stopped");
  }
}

}  // namespace
}  // namespace muster
