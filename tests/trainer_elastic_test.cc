// Allreduce while workers die, stop and lose their links: real processes, and hosts that are network
// namespaces. The others go on, those that return take part again, and the result is the one of an
// undisturbed run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>

#include "cluster/cluster_file.h"
#include "tests/support/network_hosts.h"
#include "tests/support/trainers_fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

class TrainerElastic : public Trainers {
 protected:
  static constexpr int kSteps = 300;
  // So that there is time for a worker to return.
#ifdef __SANITIZE_ADDRESS__
  static constexpr int kBatch = 2001;
#else
  static constexpr int kBatch = 6001;
#endif

  static std::vector<std::string> Flags(const std::vector<std::string>& more, int steps = kSteps,
                                        int batch = kBatch) {
    std::vector<std::string> flags = {"--model=mnist_mlp", "--hidden=50", "--data_dir=synthetic",
                                      "--global_batch_size=" + std::to_string(batch),
                                      "--train_steps=" + std::to_string(steps)};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }
  static std::vector<std::string> AllReduceFlags(const std::vector<std::string>& more = {},
                                                 int steps = kSteps) {
    std::vector<std::string> flags = Flags({"--strategy=allreduce", "--log_every=1"}, steps);
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }

  static void AwaitLogged(Started& task, const std::string& text) {
    const TimePoint deadline = Now() + std::chrono::minutes(1);
    while (ReadFile(task.log)->find(text) == std::string::npos && Now() < deadline) {
      if (task.process.Wait(Now() + std::chrono::milliseconds(5)).ok()) break;
    }
    EXPECT_THAT(*ReadFile(task.log), HasSubstr(text));
  }

  // What one process computes without any other.
  void ExpectTheResultOfOneProcess(const std::string& run) {
    if (!std::filesystem::exists(Path("local.json"))) {
      auto local = Start("local", Flags({"--job_name=local", "--result_json=" + Path("local.json")}));
      EXPECT_EQ(local.process.Wait(Now() + std::chrono::minutes(2)).value_or(-1), 0);
    }
    const Json expected = Result("local"), result = Result(run);
    EXPECT_EQ(result["steps"], kSteps);
    EXPECT_EQ(result["samples"], kSteps * kBatch);
    for (const char* name : {"train_loss", "test_loss"}) {
      EXPECT_NEAR(result[name], expected[name], 1e-4 * double(expected[name])) << name;
    }
    EXPECT_NEAR(result["test_accuracy"], expected["test_accuracy"], 0.002);
  }
};

TEST_F(TrainerElastic, TheOthersGoOnWithoutAKilledWorker) {
  const ClusterSpec cluster = MakeCluster(0, 3);
  auto tasks = StartCluster(cluster, AllReduceFlags({"--min_workers=1"}), "killed");
  AwaitLosses("killed", 20, tasks[0].process);
  Kill(tasks[1]);
  tasks.erase(tasks.begin() + 1);
  WaitForSuccess(tasks);
  const std::string name = "worker:1 (" + cluster.workers[1] + ") has gone";
  for (const Started& task : tasks) EXPECT_THAT(*ReadFile(task.log), HasSubstr(name));
  EXPECT_THAT(*ReadFile(tasks[0].log), HasSubstr("with 2 of 3 workers"));
  ExpectTheResultOfOneProcess("killed");
}

TEST_F(TrainerElastic, TooFewWaitForTheReturn) {
  const ClusterSpec cluster = MakeCluster(0, 3);
  auto tasks = StartCluster(cluster, AllReduceFlags(), "returns");
  AwaitLosses("returns", 20, tasks[0].process);
  Kill(tasks[2]);
  tasks[2] = StartTask(cluster, {Role::kWorker, 2}, AllReduceFlags(), "returns");
  WaitForSuccess(tasks);
  EXPECT_EQ(TimesLogged(tasks, "with 2 of 3 workers"), 0);
  EXPECT_GE(TimesLogged(tasks, "with 3 of 3 workers"), 1);
  ExpectTheResultOfOneProcess("returns");
}

TEST_F(TrainerElastic, AndEndWithItsNameWhenItDoesNotReturn) {
  const ClusterSpec cluster = MakeCluster(0, 3);
  auto tasks = StartCluster(cluster, AllReduceFlags({"--worker_timeout=2"}, 1000000), "few");
  AwaitLosses("few", 1, tasks[0].process);
  Kill(tasks[1]);
  for (const int survivor : {0, 2}) {
    EXPECT_EQ(tasks[survivor].process.Wait(Now() + std::chrono::minutes(1)).value_or(-1), 124);
    EXPECT_THAT(*ReadFile(tasks[survivor].log),
                HasSubstr("worker:1 (" + cluster.workers[1] + ") has gone: it hung up: waited 2s in vain"));
  }
}

TEST_F(TrainerElastic, WorkersJoinAndLeaveAndTheBatchStaysTheSame) {
  const ClusterSpec all = MakeCluster(0, 4);
  const auto some = [&](int workers) {
    return ClusterSpec{.workers = {all.workers.begin(), all.workers.begin() + workers}};
  };
  uint64_t generation = 0;
  const auto tell = [&](int workers) {
    const ClusterFile file{.generation = ++generation, .cluster = some(workers)};
    EXPECT_TRUE(WriteFileAtomically(Path("cluster.json"), FormatClusterFile(file)).ok());
  };
  const std::vector<std::string> flags =
      AllReduceFlags({"--cluster_file=" + Path("cluster.json"), "--first_workers=2"});
  tell(2);
  auto tasks = StartCluster(some(2), flags, "scaled");
  AwaitLosses("scaled", 10, tasks[0].process);
  tell(4);
  for (const int worker : {2, 3}) {
    tasks.push_back(StartTask(all, {Role::kWorker, worker}, flags, "scaled"));
  }
  AwaitLogged(tasks[0], "with 4 of 4 workers");
  AwaitLosses("scaled", Losses("scaled").size() + 10, tasks[0].process);
  tell(1);
  // Who is alone has a larger part of each batch than it had at first.
  AwaitLogged(tasks[0], "with 1 of 1 workers");
  for (const int leaver : {1, 2, 3}) {
    EXPECT_EQ(tasks[leaver].process.Wait(Now() + std::chrono::minutes(1)).value_or(-1), 1);
    EXPECT_THAT(*ReadFile(tasks[leaver].log), HasSubstr("this task has no part in the job any more"));
    EXPECT_THAT(*ReadFile(tasks[0].log), HasSubstr(TaskName({Role::kWorker, leaver}) + " (" +
                                                   all.workers[leaver] + ") leaves the job"));
  }
  tasks.erase(tasks.begin() + 1, tasks.end());
  WaitForSuccess(tasks);
  ExpectTheResultOfOneProcess("scaled");
  EXPECT_EQ(Result("scaled")["workers"], 1);
}

TEST_F(TrainerElastic, WorkersOfAsynchronousServersJoinAndLeave) {
  const ClusterSpec all = MakeCluster(2, 4);
  const auto some = [&](int workers) {
    return ClusterSpec{.ps = all.ps, .workers = {all.workers.begin(), all.workers.begin() + workers}};
  };
  uint64_t generation = 0;
  const auto tell = [&](int workers, const std::string& name) {
    const ClusterFile file{.generation = ++generation, .cluster = some(workers)};
    EXPECT_TRUE(WriteFileAtomically(Path(name), FormatClusterFile(file)).ok());
  };
  // Of at least 4 ms each, so that there is time to come and go.
  const auto with = [&](const std::string& name) {
    return Flags({"--first_workers=2", "--log_every=1", "--device=wait:4", "--cluster_file=" + Path(name)},
                 /*steps=*/4000, /*batch=*/101);
  };
  tell(2, "all");
  tell(4, "early");
  auto tasks = StartCluster(some(2), with("all"), "scaled");
  Started& chief = tasks[2];
  AwaitLosses("scaled", 10, chief.process);
  // One that is there before the servers know it waits for that.
  std::vector<Started> late;
  late.push_back(StartTask(all, {Role::kWorker, 3}, with("early"), "scaled"));
  AwaitLosses("scaled", Losses("scaled").size() + 10, chief.process);
  EXPECT_EQ(TimesLogged(tasks, "worker:3 has joined"), 0);
  tell(4, "all");
  late.push_back(StartTask(all, {Role::kWorker, 2}, with("all"), "scaled"));
  for (const int server : {0, 1}) {
    for (const char* worker : {"worker:2", "worker:3"}) {
      AwaitLogged(tasks[server], absl::StrFormat("ps:%d: %s has joined at step ", server, worker));
    }
  }
  AwaitLosses("scaled", Losses("scaled").size() + 10, chief.process);
  for (const char* name : {"all", "early"}) tell(1, name);
  AwaitLogged(tasks[0], "worker:1 has left the job");
  for (Started* const leaver : {&tasks[3], &late[0], &late[1]}) {
    EXPECT_EQ(leaver->process.Wait(Now() + std::chrono::minutes(1)).value_or(-1), 1) << leaver->name;
    EXPECT_THAT(*ReadFile(leaver->log), HasSubstr("this task has no part in the job any more"));
  }
  tasks.erase(tasks.begin() + 3);
  WaitForSuccess(tasks);
  const Json result = Result("scaled");
  EXPECT_EQ(result["workers"], 1);
  EXPECT_GE(result["steps"], 4000);
}

TEST_F(TrainerElastic, AChiefThatReturnsGetsTheParametersOfTheOthers) {
  const ClusterSpec cluster = MakeCluster(0, 3);
  auto tasks = StartCluster(cluster, AllReduceFlags(), "chief");
  AwaitLosses("chief", 20, tasks[0].process);
  Kill(tasks[0]);
  tasks[0] = StartTask(cluster, {Role::kWorker, 0}, AllReduceFlags(), "chief");
  WaitForSuccess(tasks);
  EXPECT_THAT(*ReadFile(tasks[0].log), HasSubstr("going on from step "));
  EXPECT_THAT(*ReadFile(tasks[1].log), HasSubstr("worker:0 (" + cluster.workers[0] + ") has gone"));
  ExpectTheResultOfOneProcess("chief");
}

// Of three workers, so that the order in which they come again may be another one.
TEST_F(TrainerElastic, WhenAllAreLostTrainingGoesOnFromACheckpoint) {
  const ClusterSpec cluster = MakeCluster(0, 3);
  std::vector<Started> tasks;
  const auto start = [&] {
    tasks.clear();
    for (int worker = 0; worker < 3; ++worker) {
      const std::string folder = absl::StrFormat("--checkpoint_dir=%s.%d", Path("checkpoints"), worker);
      tasks.push_back(StartTask(cluster, {Role::kWorker, worker},
                                AllReduceFlags({folder, "--checkpoint_every=10"}), "all"));
    }
  };
  start();
  AwaitLosses("all", 25, tasks[0].process);
  for (Started& task : tasks) Kill(task);
  start();
  WaitForSuccess(tasks);
  EXPECT_EQ(TimesLogged(tasks, "there is a checkpoint of step "), 1) << "one of them writes";
  EXPECT_THAT(*ReadFile(tasks[2].log), HasSubstr("going on from step "));
  EXPECT_GE(Losses("all").size(), kSteps) << "the lines of before are still there";
  ExpectTheResultOfOneProcess("all");
}

// By hand, where nobody says that it is another start.
TEST_F(TrainerElastic, OrAnewWithAWord) {
  const ClusterSpec cluster = MakeCluster(0, 1);
  auto first = StartCluster(cluster, AllReduceFlags(), "anew");
  AwaitLosses("anew", 5, first[0].process);
  Kill(first[0]);
  std::vector<Started> again;
  again.push_back(StartTask(cluster, {Role::kWorker, 0}, AllReduceFlags(), "anew",
                            {"/usr/bin/env", "MUSTER_INCARNATION=2"}));
  WaitForSuccess(again);
  EXPECT_THAT(*ReadFile(again[0].log), HasSubstr("no worker has any parameters left"));
  ExpectTheResultOfOneProcess("anew");
}

TEST_F(TrainerElastic, AWorkerThatDivergesEndsAllWithItsName) {
  auto tasks = StartCluster(MakeCluster(0, 3), AllReduceFlags({"--optimizer=sgd", "--learning_rate=1e30"}),
                            "diverges");
  for (Started& task : tasks) {
    EXPECT_EQ(task.process.Wait(Now() + std::chrono::minutes(1)).value_or(-1), 1) << task.name;
    EXPECT_THAT(*ReadFile(task.log), HasSubstr("is not finite at step ")) << task.name;
  }
}

TEST_F(TrainerElastic, OneOfTwoThatDoNotReachEachOtherStaysOut) {
  NetworkHosts hosts(3);
  if (!hosts.status().ok()) GTEST_SKIP() << hosts.status().message();
  ClusterSpec cluster;
  for (int i = 0; i < 3; ++i) cluster.workers.push_back(hosts.Address(i) + ":2222");
  std::vector<Started> tasks;
  for (int i = 0; i < 3; ++i) {
    tasks.push_back(
        StartTask(cluster, {Role::kWorker, i}, AllReduceFlags({"--min_workers=2"}), "parted", hosts.On(i)));
  }
  AwaitLosses("parted", 20, tasks[0].process);
  hosts.Part(1, 2);
  const size_t before = Losses("parted").size();
  AwaitLosses("parted", before + 20, tasks[0].process);
  hosts.Join(1, 2);
  WaitForSuccess(tasks);
  EXPECT_GE(TimesLogged(tasks, "worker:1 (" + cluster.workers[1] + ") does not reach worker:2"), 1);
  EXPECT_GE(TimesLogged(tasks, "with 2 of 3 workers"), 1);
  ExpectTheResultOfOneProcess("parted");
}

// At random steps: a worker is killed and started again, stopped and continued, or its host's link is cut and
// mended. MUSTER_FAULT_SEEDS: how many runs.
TEST_F(TrainerElastic, AnyWorkerMayDieStopOrBeCutOffAtAnyStep) {
  const char* const given = std::getenv("MUSTER_FAULT_SEEDS");
  const uint64_t seeds = given == nullptr ? 3 : std::strtoull(given, nullptr, 10);
  NetworkHosts hosts(3);
  if (!hosts.status().ok()) GTEST_SKIP() << hosts.status().message();
  for (uint64_t seed = 0; seed < seeds && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const std::string run = "run" + std::to_string(seed);
    ClusterSpec cluster;
    for (int i = 0; i < 3; ++i) cluster.workers.push_back(hosts.Address(i) + ":2222");
    const std::vector<std::string> flags = AllReduceFlags({"--min_workers=1"});
    const auto start = [&](int worker) {
      return StartTask(cluster, {Role::kWorker, worker}, flags, run, hosts.On(worker));
    };
    std::vector<Started> tasks;
    for (int i = 0; i < 3; ++i) tasks.push_back(start(i));
    AwaitLosses(run, 1 + random() % 100, tasks[0].process);
    const int kind = static_cast<int>(seed % 3);
    // Without rank 0 all wait for it, and a chief that is killed counts its lines anew.
    const int victim = static_cast<int>(kind == 0 ? random() % 3 : 1 + random() % 2);
    const std::string name = "worker:" + std::to_string(victim) + " (" + cluster.workers[victim] + ")";
    const size_t before = Losses(run).size();
    const TimePoint fault = Now();
    if (kind == 0) Kill(tasks[victim]);
    if (kind == 1) tasks[victim].process.Signal(SIGSTOP);
    if (kind == 2) hosts.Cut(victim);
    if (victim != 0) {
      AwaitLosses(run, std::min<size_t>(kSteps, before + 10), tasks[0].process);
      std::printf("seed %d: %s of %s, %.2f s to ten steps\n", static_cast<int>(seed),
                  kind == 0   ? "the death"
                  : kind == 1 ? "a stop"
                              : "the isolation",
                  name.c_str(), ToSeconds(Now() - fault));
    }
    if (kind == 0) tasks[victim] = start(victim);
    if (kind == 1) tasks[victim].process.Signal(SIGCONT);
    if (kind == 2) hosts.Mend(victim);
    WaitForSuccess(tasks);
    int named = 0;
    for (const Started& task : tasks)
      named += ReadFile(task.log)->find(name + " has gone") != std::string::npos;
    EXPECT_GE(named, 1);
    ExpectTheResultOfOneProcess(run);
  }
}

}  // namespace
}  // namespace muster
