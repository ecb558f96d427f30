// Wide & deep with its tables on parameter servers and all else by allreduce, with real processes: the
// results of synchronous servers alone, also when workers and servers are killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>

#include "tests/support/network_hosts.h"
#include "tests/support/trainers_fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

class TrainerHybrid : public Trainers {
 protected:
  static std::vector<std::string> With(std::vector<std::string> flags, const std::vector<std::string>& more) {
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }
  // 61 samples: the parts of a batch are unequal, the last batch of an epoch goes on into the next.
  static std::vector<std::string> Flags(const std::string& variant, int steps) {
    return {"--model=wide_deep",      "--variant=" + variant,
            "--global_batch_size=61", "--train_steps=" + std::to_string(steps),
            "--log_every=1",          "--data_dir=synthetic"};
  }

  Json RunOnServersAlone(const std::string& variant, int workers, int steps) {
    const std::string run = "servers" + std::to_string(workers);
    const Json result = Run(MakeCluster(2, workers), With(Flags(variant, steps), {"--sync_replicas"}), run);
    EXPECT_EQ(Losses(run).size(), static_cast<size_t>(steps));
    return result;
  }

  // Sums of the same numbers in another order: their rounding, carried on.
  void ExpectSameResult(const std::string& run, const std::string& other) {
    const Json result = Result(run), expected = Result(other);
    for (const char* name : {"train_loss", "test_loss", "test_auc"}) {
      EXPECT_NEAR(result[name], expected[name], 1e-5 * double(expected[name])) << run << ": " << name;
    }
    EXPECT_EQ(result["steps"], expected["steps"]);
    EXPECT_EQ(result["samples"], expected["samples"]);
  }
  void ExpectSameLosses(const std::string& run, const std::string& other) {
    const std::vector<double> a = Losses(run), b = Losses(other);
    ASSERT_EQ(a.size(), b.size()) << run;
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_NEAR(a[i], b[i], 1e-5 * std::abs(b[i])) << run << " and " << other << " at line " << i;
    }
  }
};

TEST_F(TrainerHybrid, TheLossesAreThoseOfServersAlone) {
  for (const std::string variant : {"minibatch", "tutorial"}) {
    for (const int workers : {1, 2, 4}) {
      RunOnServersAlone(variant, workers, 200);
      const std::string servers = "servers" + std::to_string(workers);
      for (const int ps : {1, 3}) {
        const std::string run = variant + std::to_string(workers) + "-" + std::to_string(ps);
        const Json result =
            Run(MakeCluster(ps, workers), With(Flags(variant, 200), {"--strategy=hybrid"}), run);
        EXPECT_EQ(result["strategy"], "hybrid");
        EXPECT_EQ(result["update_mode"], "sync");
        EXPECT_EQ(result["ps"], ps);
        EXPECT_EQ(result["pushes"]["applied"], 200 * workers);
        ExpectSameLosses(run, servers);
        ExpectSameResult(run, servers);
      }
    }
  }
}

TEST_F(TrainerHybrid, ServersHaveOnlyRows) {
  const Json servers = RunOnServersAlone("tutorial", 2, 100);
  const Json hybrid = Run(MakeCluster(2, 2),
                          With(Flags("tutorial", 100), {"--strategy=hybrid", "--transport=tcp"}), "hybrid");
  ExpectSameResult("hybrid", "servers2");
  // Each of two ranks sends all of the dense gradient to the other one, and all of the dense parameters come
  // back from nobody.
  EXPECT_LT(hybrid["bytes_pulled"], servers["bytes_pulled"]);
  EXPECT_GT(hybrid["bytes_pulled"], 0);
}

TEST_F(TrainerHybrid, AModelWithoutTablesIsRefused) {
  EXPECT_EQ(ExitCode(Start("mlp", {"--strategy=hybrid", "--model=mnist_mlp", "--job_name=worker",
                                   "--task_index=0", "--worker_hosts=a:1", "--ps_hosts=b:1"})),
            2);
  EXPECT_THAT(*ReadFile(Path("mlp.log")), HasSubstr("mnist_mlp has no tables"));
}

TEST_F(TrainerHybrid, ServersThatHaveLostTheTablesEndAllWithACause) {
  const std::vector<std::string> flags =
      With(Flags("tutorial", 1'000'000), {"--strategy=hybrid", "--server_timeout=10"});
  const ClusterSpec cluster = MakeCluster(1, 2);
  auto tasks = StartCluster(cluster, flags, "lost");
  AwaitLosses("lost", 5, tasks[1].process);
  Kill(tasks[0]);
  tasks[0] = StartTask(cluster, {Role::kPs, 0}, flags, "lost");
  for (const int worker : {1, 2}) {
    EXPECT_EQ(tasks[worker].process.Wait(Now() + std::chrono::minutes(1)).value_or(-1), 1);
    EXPECT_THAT(*ReadFile(tasks[worker].log),
                HasSubstr("the tables are at step 0, the dense parameters at "));
  }
  tasks[0].process.Signal(SIGKILL);
}

// At random steps any worker or server is killed and started again, several times in one job.
// MUSTER_FAULT_SEEDS: how many jobs.
TEST_F(TrainerHybrid, AnyTaskMayBeKilledAtAnyStep) {
  const char* const given = std::getenv("MUSTER_FAULT_SEEDS");
  const uint64_t seeds = given == nullptr ? 4 : std::strtoull(given, nullptr, 10);
  constexpr int kSteps = 2000;
  RunOnServersAlone("minibatch", 3, kSteps);
  for (uint64_t seed = 0; seed < seeds && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const std::string run = "run" + std::to_string(seed);
    const ClusterSpec cluster = MakeCluster(2, 3);
    const bool replicated = seed % 2 == 1;
    std::vector<std::string> flags = With(Flags("minibatch", kSteps), {"--strategy=hybrid"});
    if (replicated) flags.push_back("--durability=replicated");
    const auto start = [&](TaskId task) {
      std::vector<std::string> all = flags;
      if (task.role == Role::kPs && !replicated) {
        all = With(all, {"--durability=journal", "--checkpoint_dir=" + Path(run), "--checkpoint_every=300"});
      }
      return StartTask(cluster, task, all, run);
    };
    const std::vector<TaskId> names = {
        {Role::kPs, 0}, {Role::kPs, 1}, {Role::kWorker, 0}, {Role::kWorker, 1}, {Role::kWorker, 2}};
    std::vector<Started> tasks;
    for (const TaskId& task : names) tasks.push_back(start(task));
    for (int kill = 0; kill < 3; ++kill) {
      // A chief that is killed counts its lines anew from where it goes on.
      const size_t before = Losses(run).size();
      AwaitLosses(run, before + 1 + random() % 150, tasks[2].process);
      // Two losses at once are one too many for replicated servers.
      ASSERT_TRUE(!replicated || AwaitBackups(tasks, 2));
      const size_t victim = random() % tasks.size();
      Kill(tasks[victim]);
      tasks[victim] = start(names[victim]);
    }
    WaitForSuccess(tasks);
    ExpectSameResult(run, "servers3");
    for (const Started& task : tasks) {
      if (HasFailure()) std::cerr << "== " << task.name << "\n" << *ReadFile(task.log);
    }
  }
}

// Until the others have noticed, of a worker, or for as long as that would take, of a server, whose clients
// wait for it.
TEST_F(TrainerHybrid, AnyTaskMayStopOrBeCutOffAtAnyStep) {
  const char* const given = std::getenv("MUSTER_FAULT_SEEDS");
  const uint64_t seeds = given == nullptr ? 4 : std::strtoull(given, nullptr, 10);
  constexpr int kSteps = 1000;
  constexpr int kServers = 2, kTasks = 5;
  NetworkHosts hosts(kTasks);
  if (!hosts.status().ok()) GTEST_SKIP() << hosts.status().message();
  RunOnServersAlone("minibatch", 3, kSteps);
  for (uint64_t seed = 0; seed < seeds && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const std::string run = "run" + std::to_string(seed);
    ClusterSpec cluster;
    for (int i = 0; i < kTasks; ++i) {
      (i < kServers ? cluster.ps : cluster.workers).push_back(hosts.Address(i) + ":2222");
    }
    const auto name_of = [](int i) {
      return i < kServers ? TaskId{Role::kPs, i} : TaskId{Role::kWorker, i - kServers};
    };
    std::vector<Started> tasks;
    for (int i = 0; i < kTasks; ++i) {
      tasks.push_back(StartTask(cluster, name_of(i), With(Flags("minibatch", kSteps), {"--strategy=hybrid"}),
                                run, hosts.On(i)));
    }
    AwaitLosses(run, 1 + random() % 400, tasks[kServers].process);
    const bool is_stopped = seed % 2 == 0;
    const int victim = static_cast<int>(seed / 2 % 2 == 0 ? kServers + random() % 3 : random() % kServers);
    is_stopped ? tasks[victim].process.Signal(SIGSTOP) : hosts.Cut(victim);
    const std::string gone = TaskName(name_of(victim)) + " (" + hosts.Address(victim) + ":2222) has gone";
    const auto noticed = [&] {
      for (int i = kServers; i < kTasks; ++i) {
        if (i != victim && ReadFile(tasks[i].log)->find(gone) != std::string::npos) return true;
      }
      return false;
    };
    const TimePoint deadline = Now() + std::chrono::seconds(victim < kServers ? 4 : 60);
    while (!noticed() && Now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(victim < kServers || noticed()) << gone;
    is_stopped ? tasks[victim].process.Signal(SIGCONT) : hosts.Mend(victim);
    WaitForSuccess(tasks);
    ExpectSameResult(run, "servers3");
    for (const Started& task : tasks) {
      if (HasFailure()) std::cerr << "== " << task.name << "\n" << *ReadFile(task.log);
    }
  }
}

}  // namespace
}  // namespace muster
