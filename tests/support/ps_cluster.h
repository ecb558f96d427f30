// Parameter servers in this process, over gRPC on loopback, and a job for them whose gradients are functions
// of step and rank.
#pragma once

#include <gtest/gtest.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/certificates.h"
#include "base/file.h"
#include "base/random.h"
#include "ps/checkpoint_store.h"
#include "ps/client.h"
#include "ps/job_config.h"
#include "ps/server.h"
#include "ps/shard_connection.h"
#include "tests/support/eventually.h"
#include "tests/support/free_port.h"

namespace muster {

// Threads of gRPC may outlive main, and would find OpenSSL taken apart below them; what they hold of it would
// be out of everybody's reach.
inline const int kOpenSslStays = ::OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);

inline ParameterLayout TestLayout() {
  auto layout = ParameterLayout::Create(
      {{.name = "w", .shape = {37, 5}, .initializer = Initializer::kUniform, .scale = 0.5f},
       {.name = "b", .shape = {5}, .optimizer_group = 1}});
  EXPECT_TRUE(layout.ok());
  return *layout;
}

// Of two optimizer groups, one with fewer rows than a batch has samples.
inline const std::vector<TableSpec> kTables = {
    {.name = "small",
     .rows = 6,
     .width = 3,
     .initializer = Initializer::kUniform,
     .scale = 0.5f,
     .optimizer_group = 1},
    {.name = "large", .rows = 100'000, .width = 1, .initializer = Initializer::kUniform, .scale = 0.5f}};
constexpr uint64_t kSeed = 7;

inline RowIndex IndexOf(const std::vector<int32_t>& ids, int64_t samples) {
  const int columns[] = {0, 1};
  RowIndex index(kTables, columns, samples);
  index.Build(ids, 2, samples);
  return index;
}

inline RowIndex NoRows() { return IndexOf({}, 0); }

// The rows of a batch that is a function of (step, rank): some of them are those of other ranks and steps.
inline RowIndex RowsOf(uint64_t step, int rank) {
  RandomStream random(step, 100 + static_cast<uint64_t>(rank));
  std::vector<int32_t> ids;
  constexpr int64_t kSamples = 9;
  for (int64_t i = 0; i < kSamples; ++i) {
    ids.push_back(static_cast<int32_t>(random.NextBelow(6)));
    ids.push_back(static_cast<int32_t>(random.NextBelow(20) * 5000));
  }
  return IndexOf(ids, kSamples);
}

// With which training has the same bits in every run. Of the rows that a job drops, some come again.
inline const std::vector<UpdateConfig> kReproducibleUpdates = {
    {.rule = {.mode = UpdateMode::kSync}},
    {.rule = {.mode = UpdateMode::kBounded, .staleness = 0}},
    {.rule = {.mode = UpdateMode::kSync}, .eviction = {.every = 2, .after = 1}}};

/// Without an authority there is no TLS.
inline std::optional<TlsIdentity> IdentityFrom(const std::optional<Certificate>& authority, TaskId task) {
  if (!authority) return std::nullopt;
  const auto certificate = IssueCertificate(*authority, TlsName(task));
  return TlsIdentity{.ca_pem = authority->certificate_pem,
                     .certificate_pem = certificate->certificate_pem,
                     .key_pem = certificate->key_pem};
}

class Cluster {
 public:
  Cluster(int ps, int workers, UpdateConfig update, std::vector<OptimizerConfig> optimizers = {{}, {}},
          bool tls = false)
      : update_(update), optimizers_(std::move(optimizers)) {
    update_.rule.worker_count = workers;
    for (int i = 0; i < ps; ++i) spec.ps.push_back(FreeAddress());
    for (int i = 0; i < workers; ++i) spec.workers.push_back(absl::StrFormat("127.0.0.2:%d", 1000 + i));
    if (tls) authority_ = *MakeAuthority("test");
    servers.resize(ps);
    waits_.resize(ps);
    for (int i = 0; i < ps; ++i) StartServer(i);
  }

  Cluster(int ps, int workers, UpdateMode mode, std::vector<OptimizerConfig> optimizers = {{}, {}},
          bool tls = false)
      : Cluster(ps, workers, UpdateConfig{.rule = {.mode = mode}}, std::move(optimizers), tls) {}

  void StartServer(int index, Duration worker_timeout = std::chrono::minutes(10)) {
    StopServer(index);
    auto server =
        ParameterServer::Start({.cluster = spec,
                                .view = ViewOf({Role::kPs, index}),
                                .shard_index = index,
                                .worker_timeout = worker_timeout,
                                .worker_lease = worker_lease,
                                .server_timeout = server_timeout,
                                .tls = Identity({Role::kPs, index}),
                                .transport = transport,
                                .push_budget_bytes = push_budget_bytes,
                                .part_bytes = part_bytes,
                                .checkpoint_dir = checkpoint_every > 0 ? CheckpointsOf(index).string() : "",
                                .checkpoint_every = std::max<uint64_t>(1, checkpoint_every),
                                .keep_checkpoints = keep_checkpoints,
                                .checkpoint_buddy = checkpoint_buddy,
                                .journal = keeps_journal,
                                .replicated = replicated,
                                .replica_silence = replica_silence});
    ASSERT_TRUE(server.ok()) << server.status();
    servers[index] = *std::move(server);
    waits_[index] = std::async(std::launch::async, [this, index] { return servers[index]->Wait(); });
  }

  /// As if its process had been killed.
  void StopServer(int index) {
    if (waits_[index].valid()) {
      servers[index]->Kill();
      waits_[index].wait();
      waits_[index] = {};
    }
    servers[index] = nullptr;
  }

  /// How a server has ended; once for each start. DeadlineExceeded: it has not.
  absl::Status AwaitEnd(int index) {
    if (waits_[index].wait_for(std::chrono::minutes(1)) == std::future_status::ready) {
      return waits_[index].get();
    }
    return DeadlineExceeded("ps:%d has not ended", index);
  }

  ~Cluster() {
    for (int i = 0; i < static_cast<int>(servers.size()); ++i) StopServer(i);
  }

  /// Starts all servers again, as another job: none of them has seen one of those before.
  void StartAgain() {
    for (int i = 0; i < static_cast<int>(servers.size()); ++i) StopServer(i);
    for (int i = 0; i < static_cast<int>(servers.size()); ++i) StartServer(i);
  }

  /// Starts all servers again, with one folder of checkpoints.
  void KeepCheckpoints(uint64_t every) {
    checkpoint_every = every;
    StartAgain();
  }

  /// Starts all servers again, each with a folder of checkpoints of its own, and copies at another one.
  void KeepCopiesOfCheckpoints(uint64_t every) {
    checkpoint_buddy = true;
    KeepCheckpoints(every);
  }

  std::filesystem::path CheckpointsOf(int server) const {
    return checkpoint_buddy || own_folders ? checkpoints.path() / std::to_string(server) : checkpoints.path();
  }

  /// Starts all servers again, each shard on two of them.
  void Replicate() {
    replicated = true;
    StartAgain();
  }

  /// All shards have a backup, as both of their servers say: one of them may not have seen yet that the other
  /// one is gone.
  bool HasBackups() const {
    int shards = 0;
    for (const auto& server : servers) shards += server->shards_in_touch();
    return shards == 2 * static_cast<int>(servers.size());
  }

  /// False: not for a long time.
  bool AwaitBackups(const std::stop_token& stop = {}) const {
    const TimePoint deadline = Now() + std::chrono::seconds(30);
    while (Now() < deadline && !stop.stop_requested()) {
      if (HasBackups()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  std::optional<TlsIdentity> Identity(TaskId task) const { return IdentityFrom(authority_, task); }

  /// Starts all servers again: workers may come and go, as of SetWorkers.
  void LetWorkersComeAndGo() {
    workers_come_and_go_ = true;
    StartAgain();
  }

  /// So many are in the cluster from now on, of which all hear. Any thread.
  void SetWorkers(int count) {
    const std::lock_guard lock(mutex_);
    spec.workers.resize(count);
    for (int i = 0; i < count; ++i) spec.workers[i] = absl::StrFormat("127.0.0.2:%d", 1000 + i);
    ++generation_;
    for (const auto& view : views_)
      ASSERT_TRUE(view->Update({.generation = generation_, .cluster = spec}).ok());
  }

  ParameterServerClientOptions ClientOptions(int rank) const {
    return {.cluster = Spec(),
            .view = ViewOf({Role::kWorker, rank}),
            .task = {Role::kWorker, rank},
            .config = MakeJobConfig(layout, kTables, update_, optimizers_, kSeed),
            .layout = layout,
            .connect_timeout = std::chrono::seconds(20),
            .server_timeout = std::chrono::seconds(20),
            .answer_timeout = std::chrono::seconds(60),
            .tls = Identity({Role::kWorker, rank}),
            .transport = transport,
            .replicated = replicated};
  }

  ParameterLayout layout = TestLayout();  // of the clients
  ClusterSpec spec;
  TemporaryDirectory checkpoints;
  uint64_t checkpoint_every = 0;  // steps; 0: none
  bool keeps_journal = false;     // beside the checkpoints
  bool own_folders = false;       // each server has one of its own, also without copies
  int keep_checkpoints = 3;
  bool checkpoint_buddy = false;
  bool replicated = false;
  Duration replica_silence = ParameterServerOptions().replica_silence;
  Transport transport = Transport::kTcp;
  int64_t push_budget_bytes = 20 << 20;
  std::optional<int64_t> part_bytes;
  mutable std::atomic<uint64_t> floats_early = 0;  // to workers of TrainRank that have ended
  Duration worker_lease = std::chrono::seconds(60);
  Duration server_timeout = std::chrono::seconds(60);
  std::vector<std::unique_ptr<ParameterServer>> servers;

 private:
  ClusterSpec Spec() const {
    const std::lock_guard lock(mutex_);
    return spec;
  }

  // Of one more process of the task; null: all stay where they are.
  std::shared_ptr<const ClusterView> ViewOf(TaskId task) const {
    if (!workers_come_and_go_) return nullptr;
    const std::lock_guard lock(mutex_);
    views_.push_back(std::make_shared<ClusterView>(spec, task, ClusterView::Workers::kMayComeAndGo));
    return views_.back();
  }

  std::atomic<bool> workers_come_and_go_ = false;
  mutable std::mutex mutex_;  // guards spec where workers come and go, and the following
  uint64_t generation_ = 0;
  mutable std::vector<std::shared_ptr<ClusterView>> views_;
  std::vector<std::future<absl::Status>> waits_;  // for the servers' ends, each on a thread of its own
  UpdateConfig update_;
  const std::vector<OptimizerConfig> optimizers_;  // by group
  std::optional<Certificate> authority_;
};

// A gradient that is a function of (step, rank) and the values of the rows, so that any process of the rank
// computes the same one, and a row that is wrong once stays wrong.
inline std::vector<float> GradientOf(const ParameterLayout& layout, uint64_t step, int rank,
                                     std::span<const float> row_values = {}) {
  RandomStream random(step, static_cast<uint64_t>(rank));
  std::vector<float> gradient(layout.size());
  for (float& g : gradient) g = static_cast<float>(random.NextDouble() - 0.5);
  for (const float value : row_values) {
    gradient.push_back(static_cast<float>(random.NextDouble() - 0.5) + 0.5f * value);
  }
  return gradient;
}

inline RowIndex AllRows() {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 20; ++i) ids.insert(ids.end(), {i % 6, i * 5000});
  return IndexOf(ids, 20);
}

// A push without rows.
inline absl::StatusOr<PushResult> Push(ParameterServerClient& client, std::span<const float> gradient,
                                       std::span<float> parameters) {
  const RowIndex rows = NoRows();
  return client.PushPull({.samples = 1, .gradient = gradient, .rows = rows}, parameters, rows, {});
}

/// Of every group: an update is the gradient, with its sign changed.
inline const std::vector<OptimizerConfig> kPlainSgd(2, {.kind = OptimizerKind::kSgd, .learning_rate = 1});

/// They begin at zero, and are the last server's.
inline std::vector<float> BiasesOf(const ParameterLayout& layout, std::span<const float> parameters) {
  const auto begin = parameters.begin() + layout.tensors()[1].offset;
  return {begin, begin + 5};
}

/// The only worker of an asynchronous cluster with kPlainSgd adds 1 to all parameters, `count` times: each
/// counts once.
inline void PushOnes(Cluster& cluster, int count, const std::function<void(int)>& before_push) {
  std::vector<float> parameters(cluster.layout.size());
  const std::vector<float> gradient(cluster.layout.size(), -1.0f);
  ParameterServerClient client(cluster.ClientOptions(0));
  ASSERT_TRUE(client.Join(parameters).ok());
  for (int i = 0; i < count; ++i) {
    before_push(i);
    const auto result = Push(client, gradient, parameters);
    ASSERT_TRUE(result.ok()) << i << ": " << result.status();
  }
  const auto summary = client.AwaitOthers(parameters);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->step(), static_cast<uint64_t>(count));
  EXPECT_EQ(summary->pushes().applied(), static_cast<uint64_t>(count));
  EXPECT_EQ(BiasesOf(cluster.layout, parameters), std::vector<float>(5, static_cast<float>(count)));
}

/// As PushOnes, of all workers at a time, `count` times each.
inline void PushOnesFromAll(Cluster& cluster, int count) {
  const int worker_count = static_cast<int>(cluster.spec.workers.size());
  std::vector<absl::Status> results(worker_count);
  {
    std::vector<std::jthread> workers;
    for (int rank = 0; rank < worker_count; ++rank) {
      workers.emplace_back([&, rank] {
        std::vector<float> parameters(cluster.layout.size()), gradient(cluster.layout.size(), -1.0f);
        ParameterServerClient client(cluster.ClientOptions(rank));
        results[rank] = client.Join(parameters).status();
        for (int i = 0; i < count && results[rank].ok(); ++i) {
          results[rank] = Push(client, gradient, parameters).status();
        }
        if (results[rank].ok() && rank == 0) {
          results[rank] = client.AwaitOthers(parameters).status();
          EXPECT_EQ(BiasesOf(cluster.layout, parameters),
                    std::vector<float>(5, static_cast<float>(worker_count * count)));
        }
        if (results[rank].ok()) results[rank] = client.Finish();
      });
    }
  }
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
}

/// Called by a rank before each step that it contributes to.
using StepHook = std::function<void(uint64_t step)>;

// From the join to the end, or to an error.
inline absl::StatusOr<std::vector<float>> TrainRankOnce(const Cluster& cluster, ParameterServerClient& client,
                                                        int rank, uint64_t steps, bool await_others,
                                                        const StepHook& before_step) {
  std::vector<float> parameters(cluster.layout.size());
  MUSTER_ASSIGN_OR_RETURN(const JoinResult joined, client.Join(parameters));
  RowIndex rows = RowsOf(joined.step, rank);
  std::vector<float> row_values(rows.size());
  MUSTER_RETURN_IF_ERROR(client.PullRows(rows, row_values).status());
  for (uint64_t step = joined.step; step < steps; ++step) {
    if (before_step) before_step(step);
    RowIndex next_rows = RowsOf(step + 1, rank);
    const std::vector<float> gradient = GradientOf(cluster.layout, step, rank, row_values);
    row_values.resize(next_rows.size());
    const auto result = client.PushPull(
        {.samples = static_cast<uint64_t>(10 + rank), .loss_sum = 1.0, .gradient = gradient, .rows = rows},
        parameters, next_rows, row_values);
    MUSTER_RETURN_IF_ERROR(result.status());
    rows = std::move(next_rows);
    if (result->step == step + 1) continue;
    step = result->step - 1;  // the others have gone on
    rows = RowsOf(step + 1, rank);
    row_values.resize(rows.size());
    MUSTER_RETURN_IF_ERROR(client.PullRows(rows, row_values).status());
  }
  // All rows that some batch may have named, behind the parameters.
  rows = AllRows();
  parameters.resize(cluster.layout.size() + rows.size());
  if (await_others) {
    MUSTER_RETURN_IF_ERROR(client.AwaitOthers(std::span(parameters).first(cluster.layout.size())).status());
  }
  MUSTER_RETURN_IF_ERROR(
      client.PullRows(rows, std::span(parameters).subspan(cluster.layout.size())).status());
  MUSTER_RETURN_IF_ERROR(client.Finish());
  return parameters;
}

inline absl::StatusOr<std::vector<float>> TrainRank(const Cluster& cluster, int rank, uint64_t steps,
                                                    bool await_others = false,
                                                    const StepHook& before_step = nullptr) {
  ParameterServerClient client(cluster.ClientOptions(rank));
  while (true) {
    auto result = TrainRankOnce(cluster, client, rank, steps, await_others, before_step);
    if (IsGoneBack(result.status())) continue;
    cluster.floats_early += client.floats_early();
    return result;
  }
}

inline std::vector<float> TrainAll(Cluster& cluster, uint64_t steps) {
  std::vector<absl::StatusOr<std::vector<float>>> results(cluster.spec.workers.size());
  {
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < results.size(); ++rank) {
      threads.emplace_back([&, rank] { results[rank] = TrainRank(cluster, static_cast<int>(rank), steps); });
    }
  }
  for (const auto& result : results) {
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return {};
    EXPECT_EQ(*result, *results[0]) << "workers end with different parameters";
  }
  for (size_t i = 0; i < cluster.servers.size(); ++i) {
    const absl::Status end = cluster.AwaitEnd(static_cast<int>(i));
    EXPECT_TRUE(end.ok()) << end;
  }
  return *results[0];
}

/// Trains with two workers; before rank 0's step for the first time, what is to happen there does.
inline std::vector<float> TrainWithFaults(Cluster& cluster, uint64_t steps,
                                          std::map<uint64_t, std::function<void()>> faults) {
  absl::StatusOr<std::vector<float>> results[2];
  {
    std::jthread rank1([&] { results[1] = TrainRank(cluster, 1, steps); });
    results[0] = TrainRank(cluster, 0, steps, false, [&](uint64_t step) {
      if (const auto fault = faults.extract(step)) fault.mapped()();
    });
  }
  EXPECT_TRUE(faults.empty());
  for (const auto& result : results) EXPECT_TRUE(result.ok()) << result.status();
  if (!results[0].ok() || !results[1].ok()) return {};
  EXPECT_EQ(*results[0], *results[1]);
  return *results[0];
}

inline std::vector<float> TrainWithFault(Cluster& cluster, uint64_t steps, uint64_t at,
                                         const std::function<void()>& fault) {
  return TrainWithFaults(cluster, steps, {{at, fault}});
}

// A connection that joins as a rank of a cluster with one shard, for pushes that the client would not send.
struct RawWorker {
  RawWorker(const Cluster& cluster, std::string uuid, uint32_t incarnation, int rank = 0)
      : cluster(cluster), uuid(std::move(uuid)) {
    auto connected =
        ShardConnection::Connect(cluster.spec.ps[0], {Role::kPs, 0}, cluster.Identity({Role::kWorker, rank}),
                                 cluster.transport, Now() + std::chrono::seconds(20));
    EXPECT_TRUE(connected.ok()) << connected.status();
    connection = *std::move(connected);
    ps::ClientHeader header = Header();
    header.mutable_join()->set_rank(static_cast<uint32_t>(rank));
    *header.mutable_join()->mutable_config() = cluster.ClientOptions(rank).config;
    header.mutable_join()->set_worker_uuid(this->uuid);
    header.mutable_join()->set_incarnation(incarnation);
    header.mutable_join()->set_shard_count(static_cast<uint32_t>(cluster.spec.ps.size()));
    connection->Send(header, {});
  }
  ps::ClientHeader Header() {
    ps::ClientHeader header;
    header.set_version(kWireVersion);
    header.set_request(++request);
    return header;
  }
  void Push(uint64_t sequence, uint64_t step, std::span<const float> gradient) {
    ps::ClientHeader header = Header();
    header.mutable_push()->set_sequence(sequence);
    header.mutable_push()->set_step(step);
    header.mutable_push()->set_version(step);
    header.mutable_push()->set_samples(1);
    for (size_t t = 0; t < kTables.size(); ++t) header.mutable_push()->add_rows();
    connection->Send(header,
                     {ShareFloats(std::make_shared<std::vector<float>>(gradient.begin(), gradient.end()))});
  }
  ps::ServerHeader Receive() {
    auto reply = connection->Receive(Now() + std::chrono::seconds(20));
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? reply->header : ps::ServerHeader();
  }
  const Cluster& cluster;
  std::string uuid;
  std::unique_ptr<ShardConnection> connection;
  uint64_t request = 0;
};

// Two workers make so many steps, and are gone without a word. `before`: called by each before each.
inline void TrainAndVanish(Cluster& cluster, uint64_t steps,
                           const std::function<void(uint64_t step)>& before = nullptr) {
  std::jthread threads[2];
  for (const int rank : {0, 1}) {
    threads[rank] = std::jthread([&, rank] {
      ParameterServerClient client(cluster.ClientOptions(rank));
      std::vector<float> parameters(cluster.layout.size());
      ASSERT_TRUE(client.Join(parameters).ok());
      for (uint64_t step = 0; step < steps; ++step) {
        if (before) before(step);
        const RowIndex rows = RowsOf(step, rank), next = RowsOf(step + 1, rank);
        std::vector<float> values(rows.size()), next_values(next.size());
        ASSERT_TRUE(client.PullRows(rows, values).ok());
        const std::vector<float> gradient = GradientOf(cluster.layout, step, rank, values);
        ASSERT_TRUE(client
                        .PushPull({.samples = static_cast<uint64_t>(10 + rank),
                                   .loss_sum = 1.0,
                                   .gradient = gradient,
                                   .rows = rows},
                                  parameters, next, next_values)
                        .ok());
      }
    });
  }
}

// Until this holds of the steps of every server's checkpoints, the newest first. False: that takes too long.
inline bool AwaitCheckpoints(const Cluster& cluster,
                             const std::function<bool(const std::vector<uint64_t>& steps)>& holds) {
  return Eventually([&] {
    for (int server = 0; server < static_cast<int>(cluster.servers.size()); ++server) {
      const auto steps = CheckpointStore(cluster.CheckpointsOf(server)).List();
      if (!steps.ok() || steps->empty() || !holds(*steps)) return false;
    }
    return true;
  });
}

// Makes 35 steps and checkpoints of 10, 20 and 30, of which the first is kept no more: all have got beyond
// it, and know that.
inline void TrainBeyondTheFirstOfOneCheckpoint(Cluster& cluster) {
  cluster.keep_checkpoints = 1;
  cluster.KeepCheckpoints(10);
  TrainAndVanish(cluster, 35, [&](uint64_t step) {
    if (step != 15 && step != 25) return;
    EXPECT_TRUE(AwaitCheckpoints(cluster, [&](const auto& steps) { return steps.front() == step - 5; }));
  });
  EXPECT_TRUE(AwaitCheckpoints(cluster, [](const auto& steps) {
    return steps.front() == 30 && std::ranges::count(steps, uint64_t{10}) == 0;
  }));
}

}  // namespace muster
