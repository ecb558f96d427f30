// Real parameter servers that are killed while frames to and from their workers are lost, doubled and late:
// each push counts once.
#include <absl/cleanup/cleanup.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/ps_cluster.h"
#include "tests/support/trainers_fixture.h"

namespace muster {
namespace {

class TrainerFaults : public Trainers {
 protected:
  static constexpr int kWorkers = 40;
  static constexpr int kPushes = 10'000;  // of all workers together
  static constexpr int kKills = 5;

  // One worker's part of them: each adds 1 to every parameter of both servers.
  absl::Status PushAll(const ParameterServerClientOptions& options, std::atomic<int>* pushed,
                       std::vector<float>* result) {
    ParameterServerClient client(options);
    std::vector<float> parameters(options.layout.size());
    const std::vector<float> gradient(options.layout.size(), -1.0f);
    MUSTER_RETURN_IF_ERROR(client.Join(parameters).status());
    for (int i = 0; i < kPushes / kWorkers; ++i) {
      MUSTER_RETURN_IF_ERROR(Push(client, gradient, parameters).status());
      ++*pushed;
    }
    if (options.task.index == 0) {
      MUSTER_ASSIGN_OR_RETURN(const ps::AwaitFinishedReply reply, client.AwaitOthers(parameters));
      EXPECT_EQ(reply.pushes().applied(), static_cast<uint64_t>(kPushes));
      *result = parameters;
    }
    return client.Finish();
  }

  // All deadlines together are shorter than the test's time: what did not come is named.
  void KillServersWhilePushing(std::vector<std::string> flags, bool replicated) {
    const ClusterSpec cluster = MakeCluster(2, kWorkers);
    const ParameterLayout layout = TestLayout();
    UpdateConfig update{.rule = {.mode = UpdateMode::kAsync, .worker_count = kWorkers}};
    std::vector<Started> servers;
    // That a worker has failed, servers and workers hear before the test's time is over.
    flags.insert(flags.end(), {"--worker_lease=20", "--worker_timeout=60"});
    for (int i : {0, 1}) servers.push_back(StartTask(cluster, {Role::kPs, i}, flags, "faults"));
    ShardConnection::InjectFaults(FrameFaultOptions{
        .lost = 0.1, .doubled = 0.1, .late = 0.1, .latest = std::chrono::milliseconds(200), .seed = 11});
    const absl::Cleanup heal = [] { ShardConnection::InjectFaults(std::nullopt); };
    std::vector<float> parameters;
    std::atomic<int> pushed = 0, failed = 0;
    {
      std::vector<std::jthread> workers;
      for (int rank = 0; rank < kWorkers; ++rank) {
        workers.emplace_back([&, rank] {
          const ParameterServerClientOptions options{
              .cluster = cluster,
              .task = {Role::kWorker, rank},
              .config = MakeJobConfig(layout, kTables, update, kPlainSgd, kSeed),
              .layout = layout,
              .connect_timeout = std::chrono::minutes(1),
              .answer_timeout = std::chrono::minutes(1),
              .replicated = replicated};
          const absl::Status status = PushAll(options, &pushed, &parameters);
          if (status.ok()) return;
          // At once: the others wait for it.
          ADD_FAILURE() << "worker:" << rank << ": " << status;
          ++failed;
        });
      }
      const TimePoint deadline = Now() + std::chrono::minutes(2);
      std::map<std::string, ShardView> views;
      for (int kill = 0; kill < kKills; ++kill) {
        while (pushed < (kill + 1) * kPushes / (kKills + 2) && failed == 0 && Now() < deadline) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        if (failed > 0) break;
        const bool is_late = Now() >= deadline;
        if (is_late || (replicated && !AwaitBackups(servers, 2, views, deadline))) {
          ADD_FAILURE() << "after " << kill << " kills and " << pushed << " pushes "
                        << (is_late ? "the time is over" : "a shard has no backup");
          break;
        }
        views = ViewsOf(servers);
        Kill(servers[kill % 2]);
        servers[kill % 2] = StartTask(cluster, {Role::kPs, kill % 2}, flags, "faults");
      }
    }
    WaitForSuccess(servers, std::chrono::minutes(1));
    if (HasFailure()) {
      for (const Started& server : servers)
        std::cerr << "== " << server.name << "\n" << *ReadFile(server.log);
    }
    ASSERT_EQ(parameters.size(), static_cast<size_t>(layout.size()));
    EXPECT_EQ(BiasesOf(layout, parameters), std::vector<float>(5, static_cast<float>(kPushes)));
    const std::vector<float> initial = [&] {
      std::vector<float> values(layout.size());
      layout.Initialize(kSeed, {0, layout.size()}, values);
      return values;
    }();
    EXPECT_NEAR(parameters[0] - initial[0], kPushes, 0.01) << "of the first server";
  }
};

TEST_F(TrainerFaults, PushesCountOnceWithAJournal) {
  KillServersWhilePushing(
      {"--durability=journal", "--checkpoint_dir=" + Path("c"), "--checkpoint_every=3000"},
      /*replicated=*/false);
}

TEST_F(TrainerFaults, PushesCountOnceOnTwoServers) {
  KillServersWhilePushing({"--durability=replicated"}, /*replicated=*/true);
}

}  // namespace
}  // namespace muster
