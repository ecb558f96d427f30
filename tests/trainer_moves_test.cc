// Hosts change their addresses in the middle of training, and the cluster files of all tasks are replaced a
// moment later: real processes, and hosts that are network namespaces. Nothing is started again, no step is
// lost, and what has the same bits in every run has those of an undisturbed one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/certificates.h"
#include "cluster/cluster_file.h"
#include "cluster/tls_identity.h"
#include "tests/support/network_hosts.h"
#include "tests/support/trainers_fixture.h"

namespace muster {
namespace {

// The hosts of a job's tasks; several tasks of one host have different ports, the first of each the same one,
// so that who finds another host at an address finds a task that listens there.
struct Layout {
  std::vector<int> ps, workers, chief;
};

// One host: to an address that no host had. Two: to each other's.
using Move = std::vector<int>;

class TrainerMoves : public Trainers {
 protected:
  static constexpr int kHosts = 4;
  static constexpr int kSteps = 120;
  static constexpr int kAsynchronousSteps = 300;  // of all together
  // From the moment that the first host has another address until all tasks are told.
  static constexpr Duration kUntold = std::chrono::milliseconds(300);

  void SetUp() override {
    hosts_ = std::make_unique<NetworkHosts>(kHosts);
    if (!hosts_->status().ok()) GTEST_SKIP() << hosts_->status().message();
    for (int i = 0; i < kHosts; ++i) addresses_.push_back(hosts_->Address(i));
    authority_ = *MakeAuthority("test");
  }

  ClusterSpec ClusterOf(const Layout& layout) const {
    std::vector<int> ports(kHosts, 2222);
    const auto of = [&](const std::vector<int>& hosts) {
      std::vector<std::string> addresses;
      for (const int host : hosts) {
        addresses.push_back(addresses_[host] + ":" + std::to_string(ports[host]++));
      }
      return addresses;
    };
    ClusterSpec cluster;
    cluster.ps = of(layout.ps);
    cluster.chief = of(layout.chief);
    cluster.workers = of(layout.workers);
    return cluster;
  }

  static std::vector<std::pair<TaskId, int>> TasksOf(const Layout& layout) {
    std::vector<std::pair<TaskId, int>> tasks;
    const auto add = [&](Role role, const std::vector<int>& hosts) {
      for (size_t i = 0; i < hosts.size(); ++i) tasks.push_back({{role, static_cast<int>(i)}, hosts[i]});
    };
    add(Role::kPs, layout.ps);
    add(Role::kChief, layout.chief);
    add(Role::kWorker, layout.workers);
    return tasks;
  }

  std::string FileOf(const std::string& run, TaskId task) {
    return Path(run + "-" + TaskName(task) + ".cluster");
  }
  void TellAll(const std::string& run, const Layout& layout, uint64_t generation) {
    const std::string text = FormatClusterFile({.generation = generation, .cluster = ClusterOf(layout)});
    for (const auto& [task, host] : TasksOf(layout)) {
      EXPECT_TRUE(WriteFileAtomically(FileOf(run, task), text).ok());
    }
  }

  Started StartOn(int host, const ClusterSpec& cluster, TaskId task, std::vector<std::string> flags,
                  const std::string& run) {
    flags.push_back("--cluster_file=" + FileOf(run, task));
    flags.push_back("--tls_dir=" + TlsDirectory(task));
    return StartTask(cluster, task, flags, run, hosts_->On(host));
  }

  std::string TlsDirectory(TaskId task) {
    const std::filesystem::path directory = Path("tls-" + TaskName(task));
    if (std::filesystem::create_directories(directory)) {
      const Certificate own = *IssueCertificate(authority_, TlsName(task));
      EXPECT_TRUE(WriteFileAtomically(directory / "ca.pem", authority_.certificate_pem).ok());
      EXPECT_TRUE(WriteFileAtomically(directory / "cert.pem", own.certificate_pem).ok());
      EXPECT_TRUE(WriteFileAtomically(directory / "key.pem", own.key_pem).ok());
    }
    return directory.string();
  }

  std::vector<Started> StartAll(const Layout& layout, const std::vector<std::string>& flags,
                                const std::string& run) {
    const ClusterSpec cluster = ClusterOf(layout);
    std::vector<Started> tasks;
    for (const auto& [task, host] : TasksOf(layout)) {
      tasks.push_back(StartOn(host, cluster, task, flags, run));
    }
    return tasks;
  }

  static Started& ChiefOf(std::vector<Started>& tasks, const Layout& layout) {
    return tasks[layout.ps.size()];  // the chief, or the first worker
  }

  void Readdress(const Move& move) {
    if (move.size() == 2) {
      // Each address is free before the other host has it.
      const std::string first = addresses_[move[0]], second = addresses_[move[1]];
      const std::string between = hosts_->FreeAddress();
      hosts_->Readdress(move[0], first, between);
      hosts_->Readdress(move[1], second, first);
      hosts_->Readdress(move[0], between, second);
      std::swap(addresses_[move[0]], addresses_[move[1]]);
      return;
    }
    const std::string after = hosts_->FreeAddress();
    hosts_->Readdress(move[0], addresses_[move[0]], after);
    addresses_[move[0]] = after;
  }

  Json Undisturbed(const Layout& layout, const std::vector<std::string>& flags) {
    auto tasks = StartAll(layout, flags, "undisturbed");
    WaitForSuccess(tasks);
    return Result("undisturbed");
  }

  /// `files_before`: tasks have a file from the start, else that comes with the move.
  Json RunWithAMove(const Layout& layout, const std::vector<std::string>& flags, const Move& move,
                    bool files_before = true) {
    std::string run = "move";
    for (const int host : move) run += "-" + std::to_string(host);
    if (files_before) TellAll(run, layout, 7);
    auto tasks = StartAll(layout, flags, run);
    AwaitLosses(run, 30, ChiefOf(tasks, layout).process);
    Readdress(move);
    (void)ChiefOf(tasks, layout).process.Wait(Now() + kUntold);
    const size_t before = Losses(run).size();
    const TimePoint told = Now();
    TellAll(run, layout, 8);
    // What was on its way may still be logged. Without an asynchronous chief the others may have made all
    // steps.
    Process& chief = ChiefOf(tasks, layout).process;
    const TimePoint deadline = told + std::chrono::minutes(2);
    while (Losses(run).size() < before + 3 && Now() < deadline) {
      if (chief.Wait(Now() + std::chrono::milliseconds(5)).ok()) break;
    }
    std::printf("%s: training goes on %.2f s after the files were replaced\n", run.c_str(),
                ToSeconds(Now() - told));
    std::fflush(stdout);
    WaitForSuccess(tasks);
    if (HasFailure() || std::getenv("MUSTER_TEST_LOGS") != nullptr) {
      for (const Started& task : tasks)
        std::printf("%s\n%s\n", task.name.c_str(), ReadFile(task.log)->c_str());
    }
    return Result(run);
  }

  void ExpectSameBits(const Layout& layout, const std::vector<std::string>& flags,
                      const std::vector<Move>& moves) {
    const Json expected = Undisturbed(layout, flags);
    for (const Move& move : moves) {
      SCOPED_TRACE(testing::PrintToString(move));
      const Json result = RunWithAMove(layout, flags, move, /*files_before=*/move.size() == 1);
      // Not `samples`: of a step whose answer was on its way a worker only hears that it was made.
      for (const char* name : {"parameters_crc32c", "steps"}) {
        EXPECT_EQ(result[name], expected[name]) << name;
      }
      if (HasFailure()) return;
    }
  }

  static std::vector<std::string> Flags(const std::vector<std::string>& more, int steps = kSteps) {
    std::vector<std::string> flags = {"--model=mnist_mlp",
                                      "--hidden=50",
                                      "--data_dir=synthetic",
                                      "--batch_size=1000",
                                      "--log_every=1",
                                      "--deterministic",
                                      "--train_steps=" + std::to_string(steps)};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }

  std::unique_ptr<NetworkHosts> hosts_;
  std::vector<std::string> addresses_;  // of the hosts, now
  Certificate authority_;
};

const Layout kServers{.ps = {0, 1}, .workers = {3}, .chief = {2}};

TEST_F(TrainerMoves, SynchronousServersAndWorkersKeepTheirBits) {
  ExpectSameBits(kServers, Flags({"--sync_replicas"}), {{0}, {1}, {2}, {3}});
}

TEST_F(TrainerMoves, SynchronousServersAndWorkersSwapAddresses) {
  ExpectSameBits(kServers, Flags({"--sync_replicas"}), {{0, 1}, {0, 3}, {1, 2}});
}

TEST_F(TrainerMoves, TasksOfOneHostMoveTogether) {
  ExpectSameBits({.ps = {0, 1}, .workers = {0, 1}, .chief = {}}, Flags({"--sync_replicas"}),
                 {{0}, {1}, {0, 1}});
}

TEST_F(TrainerMoves, AsynchronousTasksMakeAllSteps) {
  for (const Move& move : std::vector<Move>{{0}, {2}, {3}, {0, 3}}) {
    SCOPED_TRACE(testing::PrintToString(move));
    const Json result = RunWithAMove(kServers, Flags({}, kAsynchronousSteps), move);
    EXPECT_GE(result["steps"], kAsynchronousSteps);
    EXPECT_GE(result["pushes"]["applied"], kAsynchronousSteps);
    if (HasFailure()) return;
  }
}

TEST_F(TrainerMoves, ReplicatedServersKeepTheirBits) {
  ExpectSameBits(kServers, Flags({"--sync_replicas", "--durability=replicated"}), {{0}, {1}, {3}, {0, 1}});
}

TEST_F(TrainerMoves, WorkersThatSumByThemselvesKeepTheirBits) {
  ExpectSameBits({.ps = {}, .workers = {0, 1, 2}, .chief = {}}, Flags({"--strategy=allreduce"}),
                 {{0}, {1}, {2}});
}

TEST_F(TrainerMoves, WorkersThatSumByThemselvesSwapAddresses) {
  ExpectSameBits({.ps = {}, .workers = {0, 1, 2}, .chief = {}}, Flags({"--strategy=allreduce"}),
                 {{0, 1}, {1, 2}});
}

TEST_F(TrainerMoves, AndThoseWithTablesOnServers) {
  const std::vector<std::string> flags = {
      "--model=wide_deep",        "--variant=tutorial", "--data_dir=synthetic", "--strategy=hybrid",
      "--global_batch_size=1000", "--log_every=1",      "--deterministic",      "--train_steps=200"};
  ExpectSameBits({.ps = {0, 1}, .workers = {2, 3}, .chief = {}}, flags, {{0}, {2}, {3}, {0, 2}});
}

// Its agent starts it again with the flags that it had, and it moves with a file that is newer.
TEST_F(TrainerMoves, AProcessThatIsStartedAgainGoesByTheFile) {
  const std::vector<std::string> flags = Flags({"--sync_replicas"});
  const Json expected = Undisturbed(kServers, flags);
  const ClusterSpec before = ClusterOf(kServers);
  auto tasks = StartAll(kServers, flags, "again");
  AwaitLosses("again", 30, ChiefOf(tasks, kServers).process);
  Started& worker = tasks.back();
  Kill(worker);
  Readdress({0});
  Readdress({3});
  TellAll("again", kServers, 8);
  worker = StartOn(3, before, {Role::kWorker, 0}, flags, "again");
  WaitForSuccess(tasks);
  EXPECT_EQ(Result("again")["parameters_crc32c"], expected["parameters_crc32c"]);
}

}  // namespace
}  // namespace muster
