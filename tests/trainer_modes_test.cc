// Every way of making updates, with real processes: who is waited for, who is not, and what it costs in
// accuracy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <sstream>

#include "base/file.h"
#include "tests/support/trainers_fixture.h"

namespace muster {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class TrainerModes : public Trainers {
 protected:
  // Of softmax after 1000 steps of 100 samples: sync has 0.915 on the real set. Stale gradients want a lower
  // rate than its 0.5, at which the last iterate swings.
  static constexpr double kFloor = 0.88;
  inline static const std::string kLowRate = "--learning_rate=0.1";

  static bool Eventually(const std::function<bool()>& condition, Process& process) {
    const TimePoint deadline = Now() + std::chrono::minutes(2);
    while (!condition() && Now() < deadline) (void)process.Wait(Now() + std::chrono::milliseconds(5));
    return condition();
  }

  bool Logs(const Started& task, const std::string& text) {
    return ReadFile(task.log).value_or("").find(text) != std::string::npos;
  }
};

TEST_F(TrainerModes, BoundedByZeroHasTheBitsOfSync) {
  const std::vector<std::string> flags = {"--model=mnist_mlp", "--global_batch_size=100", "--train_steps=100",
                                          "--sync_replicas"};
  std::vector<std::string> bounded = flags;
  bounded.back() = "--bounded_staleness=0";
  Run(MakeCluster(2, 3), flags, "sync");
  Run(MakeCluster(2, 3), bounded, "bounded");
  EXPECT_EQ(Result("bounded")["update_mode"], "bounded");
  EXPECT_EQ(Result("bounded")["parameters_crc32c"], Result("sync")["parameters_crc32c"]);
  EXPECT_EQ(Result("bounded")["pushes"], Result("sync")["pushes"]);
}

TEST_F(TrainerModes, BoundedWorkersTrainAsWell) {
  const Json result = Run(MakeCluster(2, 3),
                          {"--model=mnist_softmax", "--global_batch_size=100", "--train_steps=1000",
                           "--bounded_staleness=4", kLowRate},
                          "bounded");
  EXPECT_EQ(result["steps"], 1000);
  EXPECT_EQ(result["samples"], 100'000);
  EXPECT_EQ(result["pushes"]["applied"], 3000);
  EXPECT_EQ(result["pushes"]["received"], 3000);
  EXPECT_GE(result["test_accuracy"], kFloor);
}

// Else the rate of the chief would be less by the steps that the others are still to come for.
TEST_F(TrainerModes, AsynchronousWorkersBeginTogetherIfAskedTo) {
  const std::vector<std::string> flags = {"--model=mnist_softmax", "--data_dir=synthetic", "--device=wait:5",
                                          "--train_steps=100", "--begin_together"};
  const ClusterSpec cluster = MakeCluster(2, 2);
  std::vector<Started> tasks;
  for (const TaskId task : {TaskId{Role::kPs, 0}, {Role::kPs, 1}, {Role::kWorker, 0}}) {
    tasks.push_back(StartTask(cluster, task, flags, "together"));
  }
  EXPECT_TRUE(Eventually([&] { return Logs(tasks[0], "the beginning has waited"); }, tasks[2].process))
      << *ReadFile(tasks[0].log);
  EXPECT_TRUE(Logs(tasks[0], " for worker:1")) << *ReadFile(tasks[0].log);
  tasks.push_back(StartTask(cluster, {Role::kWorker, 1}, flags, "together"));
  WaitForSuccess(tasks);
  const Json result = Result("together");
  EXPECT_GE(result["steps"], 100);
  EXPECT_LT(result["chief_steps"], 100);
}

// Longer than for a server that does not come up, and its name is said.
TEST_F(TrainerModes, OneThatDoesNotComeIsWaitedForUpToTheWorkersTimeout) {
  const std::vector<std::string> flags = {"--model=mnist_softmax", "--data_dir=synthetic",
                                          "--train_steps=20",      "--begin_together",
                                          "--connect_timeout=8",   "--worker_timeout=12"};
  const ClusterSpec cluster = MakeCluster(1, 2);
  auto server = StartTask(cluster, {Role::kPs, 0}, flags, "alone");
  auto worker = StartTask(cluster, {Role::kWorker, 0}, flags, "alone");
  EXPECT_EQ(worker.process.Wait(Now() + std::chrono::minutes(2)).value_or(-1), 0) << *ReadFile(worker.log);
  EXPECT_TRUE(Logs(worker, "the beginning has waited")) << *ReadFile(worker.log);
  EXPECT_TRUE(Logs(worker, " for worker:1")) << *ReadFile(worker.log);
  EXPECT_TRUE(Logs(server, "worker:1 has not joined for ")) << *ReadFile(server.log);
  Kill(server);
}

TEST_F(TrainerModes, ABackupWorkerThatStandsStillHoldsUpNobody) {
  const std::vector<std::string> flags = {"--model=mnist_softmax", "--sync_replicas",
                                          "--replicas_to_aggregate=2", "--batch_size=50",
                                          "--train_steps=2000"};
  const ClusterSpec cluster = MakeCluster(2, 3);
  auto tasks = StartCluster(cluster, flags, "backup");
  ASSERT_TRUE(Eventually([&] { return !Losses("backup").empty(); }, tasks[2].process));
  Started& stopped = tasks[4];
  stopped.process.Signal(SIGSTOP);
  // The chief waits for it at the end only, and it is nobody that others wait for before.
  EXPECT_TRUE(Eventually([&] { return Logs(tasks[0], "worker:1 has finished"); }, tasks[2].process));
  stopped.process.Signal(SIGCONT);
  WaitForSuccess(tasks);
  const Json result = Result("backup");
  EXPECT_EQ(result["steps"], 2000);
  EXPECT_EQ(result["pushes"]["applied"], 4000) << "two gradients to each step";
  EXPECT_EQ(result["samples"], 4000 * 50) << "whoever has seen them";
  EXPECT_GE(result["test_accuracy"], kFloor);
}

TEST_F(TrainerModes, MoreGradientsThanWorkersAreTheSameStep) {
  const std::vector<std::string> common = {"--model=mnist_mlp", "--sync_replicas", "--train_steps=50",
                                           "--log_every=1"};
  std::vector<std::string> whole = common, parts = common;
  whole.push_back("--global_batch_size=100");
  parts.insert(parts.end(), {"--batch_size=20", "--replicas_to_aggregate=5"});
  Run(MakeCluster(1, 1), whole, "whole");
  Run(MakeCluster(2, 2), parts, "parts");
  const std::vector<double> expected = Losses("whole"), losses = Losses("parts");
  ASSERT_EQ(expected.size(), 50u);
  ASSERT_EQ(losses.size(), 50u);
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(losses[step], expected[step], 1e-5 * expected[step]) << "step " << step;
  }
}

TEST_F(TrainerModes, AWorkerThatStandsStillIsNamedAndThenLeftBehind) {
  const std::vector<std::string> flags = {"--model=mnist_softmax", "--sync_replicas", "--train_steps=3000",
                                          "--worker_lease=6"};
  auto tasks = StartCluster(MakeCluster(2, 2), flags, "stall");
  const Started& ps = tasks[0];
  Started& chief = tasks[2];
  Started& stopped = tasks[3];
  ASSERT_TRUE(Eventually([&] { return !Losses("stall").empty(); }, chief.process));
  stopped.process.Signal(SIGSTOP);
  // Its gradient is nowhere, or not at one of the servers if it stood still while it sent it.
  EXPECT_TRUE(Eventually([&] { return Logs(chief, " has waited ") && Logs(chief, " for worker:1 ("); },
                         chief.process))
      << *ReadFile(chief.log);
  EXPECT_TRUE(Eventually([&] { return Logs(ps, "worker:1 has been silent for"); }, chief.process))
      << *ReadFile(ps.log);
  stopped.process.Signal(SIGCONT);
  WaitForSuccess(tasks);
  EXPECT_EQ(Result("stall")["steps"], 3000);
}

TEST_F(TrainerModes, AGradientThatIsNotFiniteIsNamedByServerAndWorker) {
  const std::vector<std::string> flags = {"--model=mnist_mlp", "--sync_replicas", "--data_dir=synthetic",
                                          "--optimizer=sgd", "--learning_rate=1e30"};
  auto tasks = StartCluster(MakeCluster(2, 2), flags, "nan");
  const std::filesystem::path server = tasks[0].log, worker = tasks[2].log;
  const TimePoint deadline = Now() + std::chrono::minutes(1);
  for (Started& task : tasks) {
    EXPECT_EQ(task.process.Wait(deadline).value_or(-1), 1) << task.name << "\n" << *ReadFile(task.log);
    EXPECT_THAT(*ReadFile(task.log), HasSubstr("is not finite")) << "nobody waits for who cannot come back";
  }
  EXPECT_THAT(*ReadFile(worker),
              HasSubstr("the gradient of hidden_0/weights is not finite at step 1: lower the learning"));
  // Whoever of the two is first.
  EXPECT_THAT(*ReadFile(server), ContainsRegex("rank [01]: the gradient of step 1 is not finite"));
}

TEST_F(TrainerModes, WorkersThatEndAtOtherStepsAreNamed) {
  const ClusterSpec cluster = MakeCluster(1, 2);
  const std::vector<std::string> flags = {"--model=mnist_softmax", "--sync_replicas"};
  std::vector<Started> tasks;
  tasks.push_back(StartTask(cluster, {Role::kPs, 0}, flags, "end"));
  for (const int rank : {0, 1}) {
    std::vector<std::string> own = flags;
    own.push_back(absl::StrFormat("--train_steps=%d", rank == 0 ? 30 : 60));
    tasks.push_back(StartTask(cluster, {Role::kWorker, rank}, own, "end"));
  }
  WaitForSuccess(tasks);
  EXPECT_THAT(*ReadFile(tasks[0].log), HasSubstr("to step 30"));
  EXPECT_THAT(*ReadFile(tasks[0].log), HasSubstr("to step 60"));
  EXPECT_THAT(*ReadFile(tasks[0].log), HasSubstr("is --train_steps the same everywhere?"));
}

TEST_F(TrainerModes, AChiefWithNothingLeftToDoSaysWhomItWaitsFor) {
  const ClusterSpec cluster = MakeCluster(1, 2);
  const std::vector<std::string> flags = {"--data_dir=synthetic", "--train_steps=20"};
  std::vector<Started> tasks;
  tasks.push_back(StartTask(cluster, {Role::kPs, 0}, {}, "run"));
  tasks.push_back(StartTask(cluster, {Role::kWorker, 0}, flags, "run"));
  for (const Started& task : tasks) {
    EXPECT_TRUE(Eventually([&] { return Logs(task, " for worker:1 (not joined)\n"); }, tasks[1].process))
        << *ReadFile(task.log);
  }
  tasks.push_back(StartTask(cluster, {Role::kWorker, 1}, flags, "run"));
  WaitForSuccess(tasks);
}

TEST_F(TrainerModes, AsyncCanDropAndScaleWhatIsStale) {
  const Json result = Run(MakeCluster(1, 3),
                          {"--model=mnist_softmax", "--train_steps=1000", "--max_staleness=1",
                           "--scale_rate_by_staleness", kLowRate},
                          "async");
  const Json& pushes = result["pushes"];
  EXPECT_EQ(pushes["received"], pushes["applied"].get<int>() + pushes["stale"].get<int>());
  EXPECT_EQ(pushes["applied"], result["steps"]);
  EXPECT_GE(result["test_accuracy"], kFloor);
}

// Whoever makes the steps.
TEST_F(TrainerModes, AsyncIsEvaluatedByStepsAndCountedBySamples) {
  for (const int workers : {1, 3}) {
    const std::string name = absl::StrFormat("async%d", workers);
    const Json result = Run(MakeCluster(1, workers),
                            {"--model=mnist_softmax", "--train_steps=300", "--batch_size=10",
                             "--eval_every=50", "--log_every=1", kLowRate},
                            name);
    EXPECT_EQ(result["samples"], result["steps"].get<int>() * 10);
    std::istringstream lines(*ReadFile(Path(name + ".jsonl")));
    int before = 0, evaluations = 0;
    for (std::string text; std::getline(lines, text);) {
      const Json line = Json::parse(text);
      const int step = line["step"];
      if (line.contains("begun_at")) before = line["begun_at"];  // others may have begun before the chief
      EXPECT_EQ(line.contains("test_accuracy"), step / 50 > before / 50 || step >= 300) << before << text;
      evaluations += line.contains("test_accuracy");
      before = step;
    }
    if (workers == 1) {  // beside others the chief may come too late for any but the last
      EXPECT_EQ(evaluations, 6);
    }
  }
}

}  // namespace
}  // namespace muster
