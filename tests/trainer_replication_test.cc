// Parameter servers of which each part is on two: real processes that are killed, stopped, and never seen
// again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/ps_cluster.h"
#include "tests/support/trainers_fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

class TrainerReplication : public Trainers {
 protected:
  static std::vector<std::string> Flags(int steps) {
    return {"--model=mnist_mlp",       "--hidden=300",   "--sync_replicas",
            "--durability=replicated", "--log_every=10", absl::StrFormat("--train_steps=%d", steps)};
  }

  // A cluster of 2 servers and 2 workers in the midst of training, with all backups.
  std::vector<Started> StartWhole(const std::string& run, int steps) {
    auto tasks = StartCluster(MakeCluster(2, 2), Flags(steps), run);
    AwaitLosses(run, 5, tasks[2].process);
    EXPECT_TRUE(AwaitBackups(tasks, 2)) << Logs(tasks);
    return tasks;
  }

  static std::string Logs(const std::vector<Started>& tasks) {
    std::string logs;
    for (const Started& task : tasks) logs += "== " + task.name + "\n" + *ReadFile(task.log);
    return logs;
  }
};

TEST_F(TrainerReplication, KilledServersThatComeBackChangeNoBit) {
  const Json expected = Run(MakeCluster(2, 2), Flags(600), "undisturbed");
  const ClusterSpec cluster = MakeCluster(2, 2);
  auto tasks = StartCluster(cluster, Flags(600), "killed");
  size_t lines = 5;
  for (const int ps : {1, 0, 0, 1}) {
    AwaitLosses("killed", lines, tasks[2].process);
    const auto views = ViewsOf(tasks);
    Kill(tasks[ps]);
    tasks[ps] = StartTask(cluster, {Role::kPs, ps}, Flags(600), "killed");
    ASSERT_TRUE(AwaitBackups(tasks, 2, views)) << Logs(tasks);
    lines = Losses("killed").size() + 3;
  }
  WaitForSuccess(tasks);
  EXPECT_EQ(Result("killed")["parameters_crc32c"], expected["parameters_crc32c"]);
  EXPECT_EQ(Result("killed")["pushes"]["applied"], expected["pushes"]["applied"]);
}

TEST_F(TrainerReplication, AServerThatIsGoneForGoodIsNotMissed) {
  const Json expected = Run(MakeCluster(2, 2), Flags(300), "undisturbed");
  for (const int ps : {0, 1}) {
    const std::string run = absl::StrFormat("without-%d", ps);
    auto tasks = StartWhole(run, 300);
    Kill(tasks[ps]);
    tasks.erase(tasks.begin() + ps);
    WaitForSuccess(tasks);
    EXPECT_EQ(Result(run)["parameters_crc32c"], expected["parameters_crc32c"]) << Logs(tasks);
  }
}

TEST_F(TrainerReplication, AServerThatStoodStillIsRefusedAndBecomesTheBackup) {
  const Json expected = Run(MakeCluster(2, 2), Flags(600), "undisturbed");
  for (const int ps : {0, 1}) {
    const std::string run = absl::StrFormat("stopped-%d", ps);
    auto tasks = StartWhole(run, 600);
    const auto views = ViewsOf(tasks);
    tasks[ps].process.Signal(SIGSTOP);
    AwaitLosses(run, Losses(run).size() + 5, tasks[2].process);
    tasks[ps].process.Signal(SIGCONT);
    ASSERT_TRUE(AwaitBackups(tasks, 2, views)) << Logs(tasks);
    WaitForSuccess(tasks);
    EXPECT_EQ(Result(run)["parameters_crc32c"], expected["parameters_crc32c"]) << Logs(tasks);
    EXPECT_THAT(*ReadFile(tasks[ps].log), HasSubstr("steps down"));
  }
}

// It is needed for the next view, and has nothing under way at the server that another worker waits for.
TEST_F(TrainerReplication, AWorkerThatAsksForNothingLeavesAServerThatStandsStill) {
  const ClusterSpec cluster = MakeCluster(2, 2);
  std::vector<Started> servers;
  for (const int ps : {0, 1}) {
    servers.push_back(StartTask(cluster, {Role::kPs, ps}, {"--durability=replicated"}, "idle"));
  }
  const ParameterLayout layout = TestLayout();
  const UpdateConfig update{.rule = {.mode = UpdateMode::kAsync, .worker_count = 2}};
  const auto options = [&](int rank) {
    return ParameterServerClientOptions{.cluster = cluster,
                                        .task = {Role::kWorker, rank},
                                        .config = MakeJobConfig(layout, kTables, update, kPlainSgd, kSeed),
                                        .layout = layout,
                                        .server_timeout = std::chrono::seconds(20),
                                        .replicated = true};
  };
  ParameterServerClient client(options(0)), idle(options(1));
  std::vector<float> parameters(layout.size()), of_idle(layout.size());
  const std::vector<float> gradient(layout.size(), -1.0f);
  {
    std::jthread other([&] { EXPECT_TRUE(idle.Join(of_idle).ok()); });
    ASSERT_TRUE(client.Join(parameters).ok());
  }
  ASSERT_TRUE(AwaitBackups(servers, 2)) << Logs(servers);
  for (const int ps : {0, 1}) {
    const auto views = ViewsOf(servers);
    servers[ps].process.Signal(SIGSTOP);
    const auto pushed = Push(client, gradient, parameters);
    servers[ps].process.Signal(SIGCONT);
    ASSERT_TRUE(pushed.ok()) << pushed.status() << Logs(servers);
    ASSERT_TRUE(AwaitBackups(servers, 2, views)) << Logs(servers);
  }
  ASSERT_TRUE(Push(idle, gradient, of_idle).ok());
  EXPECT_EQ(BiasesOf(layout, of_idle), std::vector<float>(5, 3.0f));
}

TEST_F(TrainerReplication, AsyncTrainingLosesNothing) {
  std::vector<std::string> flags = {"--model=mnist_softmax", "--train_steps=3000", "--learning_rate=0.1",
                                    "--log_every=10", "--durability=replicated"};
  const ClusterSpec cluster = MakeCluster(3, 2);
  auto tasks = StartCluster(cluster, flags, "async");
  size_t lines = 10;
  for (const int ps : {2, 0, 1}) {
    AwaitLosses("async", lines, tasks[3].process);
    auto views = ViewsOf(tasks);
    views.erase(TaskName({Role::kPs, (ps + 1) % 3}));  // of which nothing is on that server
    Kill(tasks[ps]);
    tasks[ps] = StartTask(cluster, {Role::kPs, ps}, flags, "async");
    ASSERT_TRUE(AwaitBackups(tasks, 3, views)) << Logs(tasks);
    lines = Losses("async").size() + 5;
  }
  WaitForSuccess(tasks);
  const Json result = Result("async"), pushes = result["pushes"];
  EXPECT_EQ(pushes["applied"], result["steps"]);
  EXPECT_GE(result["test_accuracy"], 0.85);
}

}  // namespace
}  // namespace muster
