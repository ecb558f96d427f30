// Real servers and clients over gRPC on loopback.
#include "ps/server.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>
#include <thread>

#include "base/certificates.h"
#include "base/random.h"
#include "kernels/layout_optimizer.h"
#include "ps/client.h"
#include "ps/job_config.h"
#include "ps/row_partition.h"
#include "ps/shard_connection.h"
#include "tests/support/free_port.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

ParameterLayout TestLayout() {
  auto layout = ParameterLayout::Create(
      {{.name = "w", .shape = {37, 5}, .initializer = Initializer::kUniform, .scale = 0.5f},
       {.name = "b", .shape = {5}, .optimizer_group = 1}});
  EXPECT_TRUE(layout.ok());
  return *layout;
}

// Of two optimizer groups, one with fewer rows than a batch has samples.
const std::vector<TableSpec> kTables = {
    {.name = "small",
     .rows = 6,
     .width = 3,
     .initializer = Initializer::kUniform,
     .scale = 0.5f,
     .optimizer_group = 1},
    {.name = "large", .rows = 100'000, .width = 1, .initializer = Initializer::kUniform, .scale = 0.5f}};
constexpr uint64_t kSeed = 7;

RowIndex IndexOf(const std::vector<int32_t>& ids, int64_t samples) {
  const int columns[] = {0, 1};
  RowIndex index(kTables, columns, samples);
  index.Build(ids, 2, samples);
  return index;
}

RowIndex NoRows() { return IndexOf({}, 0); }

// The rows of a batch that is a function of (step, rank): some of them are those of other ranks and steps.
RowIndex RowsOf(uint64_t step, int rank) {
  RandomStream random(step, 100 + static_cast<uint64_t>(rank));
  std::vector<int32_t> ids;
  constexpr int64_t kSamples = 9;
  for (int64_t i = 0; i < kSamples; ++i) {
    ids.push_back(static_cast<int32_t>(random.NextBelow(6)));
    ids.push_back(static_cast<int32_t>(random.NextBelow(20) * 5000));
  }
  return IndexOf(ids, kSamples);
}

class Cluster {
 public:
  Cluster(int ps, int workers, UpdateMode mode, std::vector<OptimizerConfig> optimizers = {{}, {}},
          bool tls = false)
      : mode_(mode), optimizers_(std::move(optimizers)) {
    for (int i = 0; i < ps; ++i) spec.ps.push_back(FreeAddress());
    for (int i = 0; i < workers; ++i) spec.workers.push_back(absl::StrFormat("127.0.0.2:%d", 1000 + i));
    if (tls) authority_ = *MakeAuthority("test");
    servers.resize(ps);
    for (int i = 0; i < ps; ++i) StartServer(i);
  }

  void StartServer(int index, Duration worker_timeout = std::chrono::minutes(10)) {
    servers[index] = nullptr;
    auto server = ParameterServer::Start({.cluster = spec,
                                          .shard_index = index,
                                          .worker_timeout = worker_timeout,
                                          .tls = Identity({Role::kPs, index})});
    ASSERT_TRUE(server.ok()) << server.status();
    servers[index] = *std::move(server);
  }

  std::optional<TlsIdentity> Identity(TaskId task) const {
    if (!authority_) return std::nullopt;
    const auto certificate = IssueCertificate(*authority_, TlsName(task));
    return TlsIdentity{.ca_pem = authority_->certificate_pem,
                       .certificate_pem = certificate->certificate_pem,
                       .key_pem = certificate->key_pem};
  }

  ParameterServerClientOptions ClientOptions(int rank) const {
    return {.cluster = spec,
            .task = {Role::kWorker, rank},
            .config = MakeJobConfig(layout, kTables, mode_, spec.rank_count(), optimizers_, kSeed),
            .layout = layout,
            .connect_timeout = std::chrono::seconds(20),
            .server_timeout = std::chrono::seconds(20),
            .answer_timeout = std::chrono::seconds(60),
            .tls = Identity({Role::kWorker, rank})};
  }

  const ParameterLayout layout = TestLayout();
  ClusterSpec spec;
  std::vector<std::unique_ptr<ParameterServer>> servers;

 private:
  const UpdateMode mode_;
  const std::vector<OptimizerConfig> optimizers_;  // by group
  std::optional<Certificate> authority_;
};

// A gradient that is a function of (step, rank) and the values of the rows, so that any process of the rank
// computes the same one, and a row that is wrong once stays wrong.
std::vector<float> GradientOf(const ParameterLayout& layout, uint64_t step, int rank,
                              std::span<const float> row_values = {}) {
  RandomStream random(step, static_cast<uint64_t>(rank));
  std::vector<float> gradient(layout.size());
  for (float& g : gradient) g = static_cast<float>(random.NextDouble() - 0.5);
  for (const float value : row_values) {
    gradient.push_back(static_cast<float>(random.NextDouble() - 0.5) + 0.5f * value);
  }
  return gradient;
}

RowIndex AllRows() {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 20; ++i) ids.insert(ids.end(), {i % 6, i * 5000});
  return IndexOf(ids, 20);
}

// A push without rows.
absl::StatusOr<PushResult> Push(ParameterServerClient& client, std::span<const float> gradient,
                                std::span<float> parameters) {
  const RowIndex rows = NoRows();
  return client.PushPull({.samples = 1, .gradient = gradient, .rows = rows}, parameters, rows, {});
}

absl::StatusOr<std::vector<float>> TrainRank(const Cluster& cluster, int rank, uint64_t steps) {
  ParameterServerClient client(cluster.ClientOptions(rank));
  std::vector<float> parameters(cluster.layout.size());
  MUSTER_ASSIGN_OR_RETURN(const JoinResult joined, client.Join(parameters));
  RowIndex rows = RowsOf(joined.step, rank);
  std::vector<float> row_values(rows.size());
  MUSTER_RETURN_IF_ERROR(client.PullRows(rows, row_values));
  for (uint64_t step = joined.step; step < steps; ++step) {
    RowIndex next_rows = RowsOf(step + 1, rank);
    const std::vector<float> gradient = GradientOf(cluster.layout, step, rank, row_values);
    row_values.resize(next_rows.size());
    MUSTER_RETURN_IF_ERROR(client
                               .PushPull({.samples = static_cast<uint64_t>(10 + rank),
                                          .loss_sum = 1.0,
                                          .gradient = gradient,
                                          .rows = rows},
                                         parameters, next_rows, row_values)
                               .status());
    rows = std::move(next_rows);
  }
  // All rows that some batch may have named, behind the parameters.
  rows = AllRows();
  parameters.resize(cluster.layout.size() + rows.size());
  MUSTER_RETURN_IF_ERROR(client.PullRows(rows, std::span(parameters).subspan(cluster.layout.size())));
  MUSTER_RETURN_IF_ERROR(client.Finish());
  return parameters;
}

std::vector<float> TrainAll(Cluster& cluster, uint64_t steps) {
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
  for (const auto& server : cluster.servers) EXPECT_TRUE(server->Wait().ok());
  return *results[0];
}

TEST(ParameterServer, SyncGivesTheBitsOfOneProcessForEveryNumberOfShards) {
  const std::vector<OptimizerConfig> optimizers = {
      {.kind = OptimizerKind::kAdam,
       .learning_rate = 0.01f,
       .schedule = {.kind = ScheduleKind::kCosine, .decay_steps = 15, .warmup_steps = 5}},
      {.kind = OptimizerKind::kMomentum, .learning_rate = 0.1f, .weight_decay = 0.01f, .nesterov = true}};
  const uint64_t steps = 20;
  const ParameterLayout layout = TestLayout();
  std::vector<float> expected(layout.size());
  layout.Initialize(7, {0, layout.size()}, expected);
  auto optimizer = LayoutOptimizer::Create(layout, {0, layout.size()}, optimizers);
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  auto tables = MakeTables(kTables, optimizers, kSeed);
  ASSERT_TRUE(tables.ok()) << tables.status();
  const auto read = [&](const RowIndex& rows) {
    std::vector<float> values(rows.size());
    for (const int t : {0, 1}) {
      (*tables)[t].Read(rows.ids(t), std::span(values).subspan(rows.range(t).begin, rows.range(t).size()));
    }
    return values;
  };
  for (uint64_t step = 0; step < steps; ++step) {
    std::vector<float> sum(layout.size());
    std::map<int64_t, std::vector<float>> row_sums[2];
    for (const int rank : {0, 1, 2}) {
      const RowIndex rows = RowsOf(step, rank);
      const std::vector<float> gradient = GradientOf(layout, step, rank, read(rows));
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
      for (const int t : {0, 1}) {
        const int64_t width = kTables[t].width;
        const float* row = gradient.data() + layout.size() + rows.range(t).begin;
        for (const int64_t id : rows.ids(t)) {
          std::vector<float>& row_sum = row_sums[t][id];
          row_sum.resize(width);
          for (int64_t i = 0; i < width; ++i) row_sum[i] += *row++;
        }
      }
    }
    const float scale = 1.0f / (10 + 11 + 12);
    optimizer->Apply(expected, sum, scale, expected);
    for (const int t : {0, 1}) {
      std::vector<int64_t> ids;
      std::vector<float> sums;
      for (const auto& [id, row_sum] : row_sums[t]) {
        ids.push_back(id);
        sums.insert(sums.end(), row_sum.begin(), row_sum.end());
      }
      (*tables)[t].Apply(ids, sums, scale);
    }
  }
  const std::vector<float> rows = read(AllRows());
  expected.insert(expected.end(), rows.begin(), rows.end());
  for (const int shards : {1, 2, 5, 20}) {  // 20: more than there are blocks
    Cluster cluster(shards, 3, UpdateMode::kSync, optimizers);
    const std::vector<float> parameters = TrainAll(cluster, steps);
    ASSERT_EQ(parameters.size(), expected.size());
    EXPECT_EQ(std::memcmp(parameters.data(), expected.data(), expected.size() * sizeof(float)), 0) << shards;
  }
}

TEST(ParameterServer, RowsThatAreNotTheShardsAreRefused) {
  Cluster cluster(2, 1, UpdateMode::kSync);
  auto options = cluster.ClientOptions(0);
  std::vector<float> parameters(cluster.layout.size());
  ParameterServerClient client(options);
  ASSERT_TRUE(client.Join(parameters).ok());
  // A client that thinks that its tables are others.
  const TableSpec larger[] = {{.name = "small", .rows = 7, .width = 3}, kTables[1]};
  const int columns[] = {0, 1};
  RowIndex rows(larger, columns, 1);
  rows.Build(std::vector<int32_t>{6, 0}, 2, 1);
  std::vector<float> values(rows.size());
  EXPECT_THAT(client.PullRows(rows, values).message(), HasSubstr("row 6 of table small, which has 6"));
  const auto connection = ShardConnection::Connect(cluster.spec.ps[1], {Role::kPs, 1}, std::nullopt,
                                                   Now() + std::chrono::seconds(20));
  ASSERT_TRUE(connection.ok()) << connection.status();
  const auto ask = [&](const ps::ClientHeader& header) {
    (*connection)->Send(header, {});
    return *(*connection)->Receive(Now() + std::chrono::seconds(20));
  };
  ps::ClientHeader join;
  join.set_version(kWireVersion);
  join.mutable_join()->set_worker_uuid("u");
  join.mutable_join()->set_shard_index(1);
  join.mutable_join()->set_shard_count(2);
  *join.mutable_join()->mutable_config() = options.config;
  ASSERT_TRUE(ask(join).header.has_join());
  ps::ClientHeader pull;
  pull.set_version(kWireVersion);
  for (int t = 0; t < 2; ++t) pull.mutable_pull_rows()->add_rows();
  int refused = 0;
  for (uint64_t id = 0; id < 6; ++id) {
    pull.mutable_pull_rows()->mutable_rows(0)->clear_ids();
    pull.mutable_pull_rows()->mutable_rows(0)->add_ids(id);
    const ps::ServerHeader reply = ask(pull).header;
    EXPECT_EQ(reply.has_error(), OwnerOfRow(0, id, 2) == 0) << id;
    if (reply.has_error()) {
      ++refused;
      EXPECT_THAT(reply.error().message(), HasSubstr("is not of shard 1"));
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 6);
  pull.mutable_pull_rows()->add_rows();
  EXPECT_THAT(ask(pull).header.error().message(), HasSubstr("rows of 3 tables, the model has 2"));
}

// Against how many floats and ids there are: a header has less than 200 bytes without ids, an id here 3.
TEST(ParameterServer, BytesAreThoseOfWholeFrames) {
  Cluster cluster(2, 1, UpdateMode::kSync);
  ParameterServerClient client(cluster.ClientOptions(0));
  std::vector<float> parameters(cluster.layout.size());
  ASSERT_TRUE(client.Join(parameters).ok());
  constexpr int64_t kIds = 1000;
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < kIds; ++i) ids.insert(ids.end(), {0, 99'999 - i});
  const RowIndex rows = IndexOf(ids, kIds);  // and one of the other table
  std::vector<float> row_values(rows.size());
  struct Bytes {
    uint64_t pushed, pulled;
  };
  const auto bytes_of = [&](const absl::Status& status, const Bytes& before) {
    EXPECT_TRUE(status.ok()) << status;
    return Bytes{client.bytes_pushed() - before.pushed, client.bytes_pulled() - before.pulled};
  };
  const auto now = [&] { return Bytes{client.bytes_pushed(), client.bytes_pulled()}; };
  using testing::AllOf, testing::Ge, testing::Lt;
  const auto is_about = [](int64_t bytes) { return AllOf(Ge(bytes), Lt(bytes + 2 * 200)); };
  const int64_t ids_bytes = 3 * kIds, row_bytes = 4 * rows.size(), dense_bytes = 4 * cluster.layout.size();

  Bytes before = now();
  Bytes bytes = bytes_of(client.PullRows(rows, row_values), before);
  EXPECT_THAT(bytes.pushed, is_about(ids_bytes));
  EXPECT_THAT(bytes.pulled, is_about(row_bytes));

  before = now();
  const std::vector<float> gradient = GradientOf(cluster.layout, 0, 0, row_values);
  const Contribution contribution{.samples = 1, .gradient = gradient, .rows = rows};
  bytes = bytes_of(client.PushPull(contribution, parameters, rows, row_values).status(), before);
  EXPECT_THAT(bytes.pushed, is_about(dense_bytes + row_bytes + 2 * ids_bytes));
  EXPECT_THAT(bytes.pulled, is_about(dense_bytes + row_bytes));
  EXPECT_TRUE(client.Finish().ok());
}

TEST(ParameterServer, AsyncAppliesEveryPushOnce) {
  const OptimizerConfig sgd{.kind = OptimizerKind::kSgd, .learning_rate = 1.0f};
  Cluster cluster(2, 3, UpdateMode::kAsync, {sgd, sgd});
  std::vector<float> initial(cluster.layout.size()), final(cluster.layout.size());
  ParameterServerClient watcher(cluster.ClientOptions(0));
  ASSERT_TRUE(watcher.Join(initial).ok());
  constexpr int kPushes = 50;
  {
    std::vector<std::jthread> threads;
    for (const int rank : {1, 2}) {
      threads.emplace_back([&, rank] {
        ParameterServerClient client(cluster.ClientOptions(rank));
        std::vector<float> parameters(cluster.layout.size());
        ASSERT_TRUE(client.Join(parameters).ok());
        const std::vector<float> ones(cluster.layout.size(), 1.0f);
        for (int i = 0; i < kPushes; ++i) ASSERT_TRUE(Push(client, ones, parameters).ok());
        ASSERT_TRUE(client.Finish().ok());
      });
    }
  }
  const auto summary = watcher.AwaitOthers(final);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->step(), 2u * kPushes);
  EXPECT_EQ(summary->pushes().applied(), 2u * kPushes);
  EXPECT_EQ(summary->pushes().received(), 2u * kPushes);
  // Each push takes exactly 1 from each parameter; the sums of such small numbers are off by their rounding
  // only.
  for (const LayoutTensor& tensor : cluster.layout.tensors()) {
    for (int64_t i = tensor.offset; i < tensor.offset + tensor.size; ++i) {
      ASSERT_NEAR(final[i], initial[i] - 2 * kPushes, 1e-3) << i;
    }
  }
}

// A connection that joins as rank 0 of a cluster with one shard, for pushes that the client would not send.
struct RawWorker {
  RawWorker(const Cluster& cluster, std::string uuid, uint32_t incarnation)
      : cluster(cluster), uuid(std::move(uuid)) {
    auto connected =
        ShardConnection::Connect(cluster.spec.ps[0], {Role::kPs, 0}, cluster.Identity({Role::kWorker, 0}),
                                 Now() + std::chrono::seconds(20));
    EXPECT_TRUE(connected.ok()) << connected.status();
    connection = *std::move(connected);
    ps::ClientHeader header = Header();
    *header.mutable_join()->mutable_config() = cluster.ClientOptions(0).config;
    header.mutable_join()->set_worker_uuid(this->uuid);
    header.mutable_join()->set_incarnation(incarnation);
    header.mutable_join()->set_shard_count(1);
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
    header.mutable_push()->set_samples(1);
    for (size_t t = 0; t < kTables.size(); ++t) header.mutable_push()->add_rows();
    connection->Send(header, {BorrowFloats(gradient)});
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

TEST(ParameterServer, APushSentAgainAfterABrokenStreamIsAppliedOnce) {
  Cluster cluster(1, 1, UpdateMode::kAsync);
  const std::vector<float> gradient(cluster.layout.size(), 1.0f);
  {
    RawWorker worker(cluster, "process", 1);
    ASSERT_TRUE(worker.Receive().has_join());
    worker.Push(1, 0, gradient);
    ASSERT_EQ(worker.Receive().push().outcome(), ps::APPLIED);
  }
  RawWorker again(cluster, "process", 1);
  EXPECT_EQ(again.Receive().join().step(), 1u);
  again.Push(1, 0, gradient);
  EXPECT_EQ(again.Receive().push().outcome(), ps::DUPLICATE);
  again.Push(2, 1, gradient);
  EXPECT_EQ(again.Receive().push().step(), 2u);
}

TEST(ParameterServer, AnOldProcessIsRefusedOnceANewOneHasJoined) {
  Cluster cluster(1, 1, UpdateMode::kAsync);
  const std::vector<float> gradient(cluster.layout.size(), 1.0f);
  RawWorker old_process(cluster, "old", 1);
  ASSERT_TRUE(old_process.Receive().has_join());
  RawWorker new_process(cluster, "new", 2);
  ASSERT_TRUE(new_process.Receive().has_join());
  old_process.Push(1, 0, gradient);
  EXPECT_THAT(old_process.Receive().error().message(), HasSubstr("a newer process"));
  RawWorker late(cluster, "late", 1);
  EXPECT_THAT(late.Receive().error().message(), HasSubstr("incarnation 1 is not the newest"));
}

TEST(ParameterServer, AReplacementWorkerGoesOnWhereTheOldOneDiedBetweenTwoShards) {
  const uint64_t steps = 6;
  Cluster undisturbed(2, 2, UpdateMode::kSync);
  const std::vector<float> expected = TrainAll(undisturbed, steps);

  Cluster cluster(2, 2, UpdateMode::kSync);
  absl::StatusOr<std::vector<float>> other;
  std::jthread rank1([&] { other = TrainRank(cluster, 1, steps); });
  {
    // Rank 0 pushes step 0 to ps:0 alone and dies: ps:0 gets to step 1, ps:1 waits.
    auto connection = ShardConnection::Connect(cluster.spec.ps[0], {Role::kPs, 0}, std::nullopt,
                                               Now() + std::chrono::seconds(20));
    ASSERT_TRUE(connection.ok());
    ps::ClientHeader join;
    join.set_version(kWireVersion);
    *join.mutable_join()->mutable_config() = cluster.ClientOptions(0).config;
    join.mutable_join()->set_worker_uuid("dies");
    join.mutable_join()->set_shard_count(2);
    (*connection)->Send(join, {});
    // What TrainRank pushes at that step.
    const RowIndex rows = RowsOf(0, 0);
    std::vector<float> row_values(rows.size());
    for (const int t : {0, 1}) {
      ParameterTable(kTables[t], t, {}, kSeed)
          .Read(rows.ids(t), std::span(row_values).subspan(rows.range(t).begin, rows.range(t).size()));
    }
    const std::vector<float> gradient = GradientOf(cluster.layout, 0, 0, row_values);
    const LayoutRange range = cluster.layout.Shard(0, 2);
    RowPartition partition(2);
    partition.Build(rows);
    std::vector<float> row_gradients(partition.size(0));
    partition.Gather(0, std::span(gradient).subspan(cluster.layout.size()), row_gradients);
    ps::ClientHeader push;
    push.set_version(kWireVersion);
    push.set_request(1);
    push.mutable_push()->set_sequence(1);
    push.mutable_push()->set_samples(10);
    *push.mutable_push()->mutable_rows() = partition.rows(0);
    (*connection)
        ->Send(push, {BorrowFloats(std::span(gradient).subspan(range.begin, range.size())),
                      BorrowFloats(row_gradients)});
    ASSERT_TRUE((*connection)->Receive(Now() + std::chrono::seconds(20)).ok());
    const auto reply = (*connection)->Receive(Now() + std::chrono::seconds(20));
    ASSERT_TRUE(reply.ok()) << reply.status();
    ASSERT_EQ(reply->header.push().step(), 1u);
  }
  const auto replacement = TrainRank(cluster, 0, steps);
  ASSERT_TRUE(replacement.ok()) << replacement.status();
  rank1.join();
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(*replacement, expected) << "no rollback, the same bits";
  EXPECT_EQ(*other, expected);
}

TEST(ParameterServer, AServerThatStartsAgainHasLostItsParametersAndItIsSaid) {
  Cluster cluster(2, 1, UpdateMode::kSync);
  ParameterServerClient client(cluster.ClientOptions(0));
  std::vector<float> parameters(cluster.layout.size());
  ASSERT_TRUE(client.Join(parameters).ok());
  const std::vector<float> gradient(cluster.layout.size(), 1.0f);
  ASSERT_TRUE(Push(client, gradient, parameters).ok());
  cluster.StartServer(1);
  const auto result = Push(client, gradient, parameters);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("ps:1"));
}

TEST(ParameterServer, WorkersWithAnotherJobAreRefusedWithTheDifference) {
  Cluster cluster(1, 2, UpdateMode::kSync);
  std::vector<float> parameters(cluster.layout.size());
  ParameterServerClient first(cluster.ClientOptions(0));
  ASSERT_TRUE(first.Join(parameters).ok());
  auto options = cluster.ClientOptions(1);
  options.config.mutable_optimizers(0)->set_learning_rate(0.25f);
  const auto joined = ParameterServerClient(options).Join(parameters);
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(joined.status().message()), HasSubstr("learning_rate"));

  options = cluster.ClientOptions(1);
  options.cluster.ps.push_back("127.0.0.1:1");
  options.generation = 0;
  EXPECT_THAT(std::string(ParameterServerClient(options).Join(parameters).status().message()),
              HasSubstr("compare --ps_hosts"));

  options = cluster.ClientOptions(1);
  options.generation = 4;
  EXPECT_THAT(std::string(ParameterServerClient(options).Join(parameters).status().message()),
              HasSubstr("generation 0 of the cluster, the worker to generation 4"));
}

TEST(ParameterServer, AMissingWorkerEndsTheWaitWithItsName) {
  Cluster cluster(1, 2, UpdateMode::kSync);
  cluster.StartServer(0, std::chrono::milliseconds(300));
  absl::StatusOr<PushResult> result;
  std::jthread worker([&] {
    ParameterServerClient client(cluster.ClientOptions(0));
    std::vector<float> parameters(cluster.layout.size());
    ASSERT_TRUE(client.Join(parameters).ok());
    result = Push(client, std::vector<float>(cluster.layout.size()), parameters);
  });
  const absl::Status ended = cluster.servers[0]->Wait();
  worker.join();
  for (const absl::Status& status : {ended, result.status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(status.message()), HasSubstr("waits for rank 1 (not joined"));
  }
}

TEST(ParameterServer, ATakenPortIsItsOwnKindOfFailure) {
  Cluster cluster(1, 1, UpdateMode::kAsync);
  const auto second = ParameterServer::Start({.cluster = cluster.spec, .shard_index = 0});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(cluster.spec.ps[0]));
}

TEST(ParameterServer, MutualTlsLetsOnlyTheNamedTasksIn) {
  Cluster cluster(2, 2, UpdateMode::kSync, {{}, {}}, /*tls=*/true);
  std::vector<float> parameters(cluster.layout.size());

  auto no_certificate = cluster.ClientOptions(0);
  no_certificate.tls = std::nullopt;
  no_certificate.connect_timeout = std::chrono::seconds(1);
  EXPECT_FALSE(ParameterServerClient(no_certificate).Join(parameters).ok());

  auto other_job = cluster.ClientOptions(0);
  const auto authority = MakeAuthority("another job");
  const auto certificate = IssueCertificate(*authority, "worker-0");
  other_job.tls = TlsIdentity{cluster.Identity({Role::kWorker, 0})->ca_pem, certificate->certificate_pem,
                              certificate->key_pem};
  other_job.connect_timeout = std::chrono::seconds(1);
  EXPECT_FALSE(ParameterServerClient(other_job).Join(parameters).ok());

  auto wrong_name = cluster.ClientOptions(0);
  wrong_name.tls = cluster.Identity({Role::kWorker, 1});
  EXPECT_EQ(ParameterServerClient(wrong_name).Join(parameters).status().code(),
            absl::StatusCode::kPermissionDenied);

  TrainAll(cluster, 3);
}

TEST(ParameterServer, UnknownMethodsAndGarbageFramesAreAnsweredAndChangeNothing) {
  Cluster cluster(1, 1, UpdateMode::kSync);
  auto channel = grpc::CreateChannel(cluster.spec.ps[0], grpc::InsecureChannelCredentials());
  grpc::GenericStub stub(channel);
  for (int i = 0; i < 200; ++i) {
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const grpc::Slice slice("x");
    const auto call = stub.PrepareUnaryCall(&context, absl::StrFormat("/no.such.Service/%d", i),
                                            grpc::ByteBuffer(&slice, 1), &queue);
    call->StartCall();
    grpc::ByteBuffer reply;
    grpc::Status status;
    call->Finish(&reply, &status, nullptr);
    void* tag;
    bool ok;
    ASSERT_EQ(queue.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + std::chrono::seconds(20)),
              grpc::CompletionQueue::GOT_EVENT);
    ASSERT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  }
  auto connection = ShardConnection::Connect(cluster.spec.ps[0], {Role::kPs, 0}, std::nullopt,
                                             Now() + std::chrono::seconds(20));
  ASSERT_TRUE(connection.ok());
  ps::ClientHeader not_joined;
  not_joined.set_version(kWireVersion);
  not_joined.mutable_push();
  (*connection)->Send(not_joined, {});
  EXPECT_THAT((*connection)->Receive(Now() + std::chrono::seconds(20))->header.error().message(),
              HasSubstr("the first frame is no join"));
  ps::ClientHeader old_version;
  old_version.set_version(99);
  (*connection)->Send(old_version, {});
  EXPECT_THAT((*connection)->Receive(Now() + std::chrono::seconds(20))->header.error().message(),
              HasSubstr(absl::StrFormat("version %d of the protocol, the client version 99", kWireVersion)));
  connection->reset();
  TrainAll(cluster, 2);
}

}  // namespace
}  // namespace muster
