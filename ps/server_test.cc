// Who may join a server, and what it makes of what it is sent.
#include "ps/server.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <limits>

#include "ps/row_partition.h"
#include "tests/support/ps_cluster.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

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
  EXPECT_THAT(client.PullRows(rows, values).status().message(),
              HasSubstr("row 6 of table small, which has 6"));
  const auto connection = ShardConnection::Connect(cluster.spec.ps[1], {Role::kPs, 1}, std::nullopt,
                                                   Transport::kTcp, Now() + std::chrono::seconds(20));
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
  for (int t = 0; t < 2; ++t) pull.mutable_pull()->add_rows();
  int refused = 0;
  for (uint64_t id = 0; id < 6; ++id) {
    pull.mutable_pull()->mutable_rows(0)->clear_ids();
    pull.mutable_pull()->mutable_rows(0)->add_ids(id);
    const ps::ServerHeader reply = ask(pull).header;
    EXPECT_EQ(reply.has_error(), OwnerOfRow(0, id, 2) == 0) << id;
    if (reply.has_error()) {
      ++refused;
      EXPECT_THAT(reply.error().message(), HasSubstr("is not of shard 1"));
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 6);
  pull.mutable_pull()->add_rows();
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
  Bytes bytes = bytes_of(client.PullRows(rows, row_values).status(), before);
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

TEST(ParameterServer, AGradientThatIsNotFiniteIsRefusedWithItsSender) {
  Cluster cluster(1, 1, UpdateMode::kAsync);
  RawWorker worker(cluster, "process", 1);
  ASSERT_TRUE(worker.Receive().has_join());
  std::vector<float> gradient(cluster.layout.size(), 1.0f);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    gradient.back() = bad;
    worker.Push(1, 0, gradient);
    EXPECT_THAT(worker.Receive().error().message(),
                HasSubstr("rank 0: the gradient of step 0 is not finite"));
  }
  gradient.back() = 0;
  worker.Push(1, 0, gradient);
  EXPECT_EQ(worker.Receive().push().step(), 1u);
}

TEST(ParameterServer, AHeartbeatTellsWhatIsUnknown) {
  Cluster cluster(1, 2, UpdateMode::kSync);
  RawWorker worker(cluster, "process", 1);
  ASSERT_TRUE(worker.Receive().has_join());
  const std::vector<float> gradient(cluster.layout.size(), 1.0f);
  worker.Push(1, 0, gradient);
  const uint64_t push = worker.request;
  for (const uint64_t awaiting : {push, push + 1}) {
    ps::ClientHeader header = worker.Header();
    header.mutable_heartbeat()->set_awaiting(awaiting);
    worker.connection->Send(header, {});
    const ps::ServerHeader reply = worker.Receive();
    ASSERT_TRUE(reply.has_heartbeat());
    EXPECT_EQ(reply.heartbeat().awaiting(), awaiting);
    EXPECT_EQ(reply.heartbeat().unknown(), awaiting != push);
  }
}

// Without which its sender would not ask again if the one answer were lost.
TEST(ParameterServer, WhatHasComeTwiceIsAnsweredOnce) {
  Cluster cluster(1, 2, UpdateMode::kSync);
  RawWorker worker(cluster, "a", 1), other(cluster, "b", 1, /*rank=*/1);
  for (RawWorker* each : {&worker, &other}) ASSERT_TRUE(each->Receive().has_join());
  const auto is_unknown = [&](uint64_t request) {
    ps::ClientHeader header = worker.Header();
    header.mutable_heartbeat()->set_awaiting(request);
    worker.connection->Send(header, {});
    const ps::ServerHeader reply = worker.Receive();
    EXPECT_TRUE(reply.has_heartbeat()) << reply.ShortDebugString();
    return reply.heartbeat().unknown();
  };
  const std::vector<float> gradient(cluster.layout.size(), 1.0f);
  for (int i = 0; i < 2; ++i) {
    worker.request = 10;
    worker.Push(1, 0, gradient);
  }
  EXPECT_FALSE(is_unknown(11));
  other.Push(1, 0, gradient);
  EXPECT_EQ(worker.Receive().push().step(), 1u);
  EXPECT_TRUE(is_unknown(11));
  EXPECT_EQ(other.Receive().push().step(), 1u);

  for (int i = 0; i < 2; ++i) {
    worker.request = 20;
    ps::ClientHeader await = worker.Header();
    await.mutable_await_finished();
    worker.connection->Send(await, {});
  }
  EXPECT_FALSE(is_unknown(21));
  ps::ClientHeader finish = other.Header();
  finish.mutable_finish()->set_next_step(1);
  other.connection->Send(finish, {});
  EXPECT_TRUE(worker.Receive().has_await_finished());
  EXPECT_TRUE(is_unknown(21));
}

TEST(ParameterServer, AShardThatJoinsAfterTheEndHearsOfIt) {
  Cluster cluster(2, 1, UpdateMode::kSync);
  TrainAll(cluster, 2);
  cluster.StartServer(1);
  const absl::Status end = cluster.AwaitEnd(1);
  EXPECT_TRUE(end.ok()) << end;
}

TEST(ParameterServer, AShardOfAnotherClusterIsRefused) {
  Cluster cluster(2, 1, UpdateMode::kSync);
  const auto connection = ShardConnection::Connect(cluster.spec.ps[0], {Role::kPs, 0}, std::nullopt,
                                                   Transport::kTcp, Now() + std::chrono::seconds(20));
  ASSERT_TRUE(connection.ok()) << connection.status();
  const auto error = [&](uint32_t index, uint32_t count, uint64_t generation) {
    ps::ClientHeader header;
    header.set_version(kWireVersion);
    header.mutable_shard_join()->set_shard_index(index);
    header.mutable_shard_join()->set_shard_count(count);
    header.mutable_shard_join()->set_generation(generation);
    (*connection)->Send(header, {});
    return (*connection)->Receive(Now() + std::chrono::seconds(20))->header.error().message();
  };
  EXPECT_THAT(error(1, 3, 0), HasSubstr("ps:1 of 3 has joined a cluster of 2"));
  EXPECT_THAT(error(0, 2, 0), HasSubstr("ps:0 of 2 has joined"));
  EXPECT_THAT(error(1, 2, 7), HasSubstr("ps:1 to generation 7"));
  ps::ClientHeader report;
  report.set_version(kWireVersion);
  report.mutable_shard_report()->add_held()->set_rank(0xFFFFFFFF);
  (*connection)->Send(report, {});  // nothing comes of it before the shard has joined, and the job is known
  EXPECT_THAT(error(1, 3, 0), HasSubstr("ps:1 of 3 has joined a cluster of 2"));
}

TEST(ParameterServer, AJobWithANumberThatMakesNoSenseIsRefused) {
  Cluster cluster(1, 1, UpdateMode::kSync);
  auto options = cluster.ClientOptions(0);
  options.config.mutable_optimizers(1)->set_learning_rate(std::numeric_limits<float>::quiet_NaN());
  std::vector<float> parameters(cluster.layout.size());
  const auto joined = ParameterServerClient(options).Join(parameters);
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(joined.status().message()), HasSubstr("optimizer group 1"));
}

TEST(ParameterServer, ATakenPortIsItsOwnKindOfFailure) {
  Cluster cluster(1, 1, UpdateMode::kAsync);
  const auto second = ParameterServer::Start({.cluster = cluster.spec, .shard_index = 0});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(cluster.spec.ps[0]));
}

TEST(ParameterServer, MutualTlsLetsOnlyTheNamedTasksIn) {
  for (const Transport transport : {Transport::kTcp, Transport::kAuto}) {
    Cluster cluster(2, 2, UpdateMode::kSync, {{}, {}}, /*tls=*/true);
    cluster.transport = transport;
    cluster.StartAgain();
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
                                             Transport::kTcp, Now() + std::chrono::seconds(20));
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

// Once for each stream, however often it has asked: as while another server is not there yet.
TEST(ParameterServer, OfTheJoinsOfAStreamThatWaitTheLastIsAnswered) {
  Cluster cluster(2, 1, UpdateMode::kSync);
  for (const int server : {1, 0}) cluster.StopServer(server);
  cluster.StartServer(0);  // which has never heard of the other one
  auto connection = ShardConnection::Connect(cluster.spec.ps[0], {Role::kPs, 0}, std::nullopt,
                                             Transport::kTcp, Now() + std::chrono::seconds(20));
  ASSERT_TRUE(connection.ok()) << connection.status();
  ps::ClientHeader header;
  header.set_version(kWireVersion);
  for (const uint64_t request : {1, 2, 3}) {
    header.set_request(request);
    *header.mutable_join()->mutable_config() = cluster.ClientOptions(0).config;
    header.mutable_join()->set_worker_uuid("worker");
    header.mutable_join()->set_incarnation(1);
    header.mutable_join()->set_shard_count(2);
    (*connection)->Send(header, {});
  }
  header.mutable_heartbeat()->set_awaiting(3);
  (*connection)->Send(header, {});
  EXPECT_TRUE((*connection)->Receive(Now() + std::chrono::seconds(20))->header.has_heartbeat());
  cluster.StartServer(1);
  const auto answer = (*connection)->Receive(Now() + std::chrono::seconds(20));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->header.request(), 3u);
  EXPECT_TRUE(answer->header.has_join()) << answer->header.error().message();
}

// So that it keeps no descriptor for long.
TEST(ParameterServer, AStrangerWhoSaysNothingIsHungUpOn) {
  const Cluster cluster(1, 1, UpdateMode::kSync);
  const int port = std::stoi(cluster.spec.ps[0].substr(cluster.spec.ps[0].rfind(':') + 1));
  const UniqueFd stranger(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address{.sin_family = AF_INET,
                            .sin_port = htons(static_cast<uint16_t>(port)),
                            .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  ASSERT_EQ(::connect(stranger.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const timeval patience = {.tv_sec = 60, .tv_usec = 0};  // gRPC's own is two minutes
  ASSERT_EQ(::setsockopt(stranger.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
  char room[512];
  ssize_t got = 0;
  while ((got = ::recv(stranger.get(), room, sizeof room, 0)) > 0) {
  }
  EXPECT_TRUE(got == 0 || errno == ECONNRESET) << std::strerror(errno);
}

// From such that fit into one HTTP/2 window to such that take half a gigabyte, past the network and over it.
TEST(ParameterServer, TensorsOfAnySizeTravelWhole) {
  for (const Transport transport : {Transport::kTcp, Transport::kAuto}) {
    Cluster cluster(1, 1, UpdateMode::kAsync, kPlainSgd);
    cluster.transport = transport;
    for (const int64_t bytes : {3'900'000, 4'100'000, 64'000'000, 600'000'000}) {
      cluster.layout = *ParameterLayout::Create({{.name = "w", .shape = {bytes / 4}}});
      cluster.StartAgain();
      std::vector<float> parameters(cluster.layout.size()), gradient(cluster.layout.size());
      for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = static_cast<float>(i % 1021);
      ParameterServerClient client(cluster.ClientOptions(0));
      ASSERT_TRUE(client.Join(parameters).ok());
      for (int push = 1; push <= 2; ++push) {
        const auto result = Push(client, gradient, parameters);
        ASSERT_TRUE(result.ok()) << bytes << ": " << result.status();
        size_t wrong = 0;
        for (int64_t i = 0; i < bytes / 4; ++i) wrong += parameters[i] != -gradient[i] * push;
        ASSERT_EQ(wrong, 0u) << bytes;
      }
      EXPECT_TRUE(client.Finish().ok());
    }
  }
}

}  // namespace
}  // namespace muster
