// What a parameter server holds when its workers are faster than it is: a real process, which gets a tenth of
// a core.
#include <absl/strings/str_join.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "ps/client.h"
#include "ps/job_config.h"
#include "tests/support/trainers_fixture.h"

namespace muster {
namespace {

class ServerMemory : public Trainers {
 protected:
  static constexpr int kWorkers = 16;
#ifdef __SANITIZE_ADDRESS__  // which keeps what is freed, so that there is no bound to hold to
  static constexpr int64_t kParameters = 1'000'000 / 4;
#else
  static constexpr int64_t kParameters = 13'000'000 / 4;
#endif
  static constexpr int64_t kModelBytes = 4 * kParameters;
  static constexpr int kPushesOfEach = 4;

  // Lets the process run for a tenth of the time, until it is told to stop.
  static std::jthread Throttle(Process& process) {
    return std::jthread([&process](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        process.Signal(SIGSTOP);
        std::this_thread::sleep_for(std::chrono::milliseconds(90));
        process.Signal(SIGCONT);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
  }

  // All workers push as fast as they can.
  static void PushFromAll(const ClusterSpec& cluster, UpdateMode mode) {
    const ParameterLayout layout = *ParameterLayout::Create({{.name = "w", .shape = {kParameters}}});
    const UpdateConfig update{.rule = {.mode = mode, .worker_count = kWorkers}};
    const std::vector<OptimizerConfig> sgd = {{.kind = OptimizerKind::kSgd, .learning_rate = 1}};
    std::vector<std::jthread> workers;
    for (int rank = 0; rank < kWorkers; ++rank) {
      workers.emplace_back([&, rank] {
        std::vector<float> parameters(layout.size()), gradient(layout.size(), -1.0f);
        RowIndex no_rows(std::span<const TableSpec>(), std::span<const int>(), 1);
        ParameterServerClient client({.cluster = cluster,
                                      .task = {Role::kWorker, rank},
                                      .config = MakeJobConfig(layout, {}, update, sgd, 1),
                                      .layout = layout,
                                      .transport = Transport::kTcp});
        absl::Status status = client.Join(parameters).status();
        for (int i = 0; i < kPushesOfEach && status.ok(); ++i) {
          status =
              client.PushPull({.samples = 1, .gradient = gradient, .rows = no_rows}, parameters, no_rows, {})
                  .status();
        }
        if (status.ok() && rank == 0) {
          status = client.AwaitOthers(parameters).status();
          EXPECT_EQ(parameters[7], kPushesOfEach * (mode == UpdateMode::kAsync ? kWorkers : 1));
        }
        if (status.ok()) status = client.Finish();
        EXPECT_TRUE(status.ok()) << status;
      });
    }
  }

  // The most memory of a server to which all workers push, in bytes.
  int64_t PeakOf(UpdateMode mode);
};

int64_t ServerMemory::PeakOf(UpdateMode mode) {
  ClusterSpec cluster = MakeCluster(1, 0);
  for (int i = 0; i < kWorkers; ++i) cluster.workers.push_back("127.0.0.2:" + std::to_string(1000 + i));
  Started server = Start("ps", {"--job_name=ps", "--task_index=0", "--ps_hosts=" + cluster.ps[0],
                                "--worker_hosts=" + absl::StrJoin(cluster.workers, ","), "--transport=tcp"});
  std::atomic<int64_t> peak = 0;
  {
    const std::jthread throttle = Throttle(server.process);
    const std::jthread watch([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        peak = std::max<int64_t>(peak, MemoryOf(server.process.pid(), "VmHWM:"));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    });
    PushFromAll(cluster, mode);
  }
  const std::string log = *ReadFile(server.log);
  EXPECT_EQ(ExitCode(std::move(server)), 0) << log;
  RecordProperty("peak_mib", static_cast<int>(peak >> 20));
  EXPECT_GT(peak, kModelBytes);
  return peak;
}

TEST_F(ServerMemory, WorkersThatAreFasterThanAServerDoNotFillItsMemory) {
  [[maybe_unused]] const int64_t peak = PeakOf(UpdateMode::kAsync);
#ifndef __SANITIZE_ADDRESS__
  EXPECT_LE(peak, kModelBytes + (64 << 20));
#endif
}

TEST_F(ServerMemory, OfSynchronousPushesThereAreNoMoreThanAStepNeeds) {
  [[maybe_unused]] const int64_t peak = PeakOf(UpdateMode::kSync);
#ifndef __SANITIZE_ADDRESS__
  EXPECT_LE(peak, (1 + kWorkers) * kModelBytes + (64 << 20));
#endif
}

}  // namespace
}  // namespace muster
