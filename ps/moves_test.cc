// Servers and workers whose addresses change, on loopback, where every 127.x.y.z is one of this machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/certificates.h"
#include "ps/server.h"
#include "ps/shard_connection.h"
#include "tests/support/fault_hosts.h"
#include "tests/support/free_port.h"
#include "tests/support/ps_cluster.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

constexpr TaskId kServer{Role::kPs, 0}, kWorker{Role::kWorker, 0};

ClusterSpec At(const std::string& ps, const std::string& worker = "127.0.0.1:1") {
  return {.ps = {ps}, .workers = {worker}};
}

class Moves : public testing::TestWithParam<bool> {
 protected:
  std::optional<TlsIdentity> IdentityOf(TaskId task) {
    if (!GetParam()) return std::nullopt;
    const Certificate own = *IssueCertificate(authority_, TlsName(task));
    return TlsIdentity{
        .ca_pem = authority_.certificate_pem, .certificate_pem = own.certificate_pem, .key_pem = own.key_pem};
  }
  std::unique_ptr<ParameterServer> StartServer(const std::string& bind_host = "") {
    auto server = ParameterServer::Start(
        {.cluster = At(first_), .view = server_view_, .bind_host = bind_host, .tls = IdentityOf(kServer)});
    EXPECT_TRUE(server.ok()) << server.status();
    return *std::move(server);
  }
  // Until it is reached, or for long enough.
  std::unique_ptr<ShardConnection> Reach(const std::string& address) {
    const TimePoint deadline = Now() + std::chrono::seconds(30);
    while (true) {
      auto connection = ShardConnection::Connect(address, kServer, IdentityOf(kWorker), Transport::kTcp,
                                                 Now() + std::chrono::seconds(5));
      if (connection.ok() || Now() > deadline) {
        EXPECT_TRUE(connection.ok()) << connection.status();
        return connection.ok() ? *std::move(connection) : nullptr;
      }
    }
  }
  // What a server says to who is no worker: it lives.
  static void ExpectAnAnswer(ShardConnection& connection) {
    ps::ClientHeader header;
    header.set_version(kWireVersion + 1);
    connection.Send(header, {});
    const auto reply = connection.Receive(Now() + std::chrono::seconds(30));
    EXPECT_FALSE(absl::IsDeadlineExceeded(reply.status())) << reply.status();
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_TRUE(reply->header.has_error());
  }
  static void ExpectBroken(ShardConnection& connection) {
    const auto reply = connection.Receive(Now() + std::chrono::seconds(30));
    EXPECT_TRUE(absl::IsUnavailable(reply.status())) << reply.status();
  }

  const Certificate authority_ = *MakeAuthority("test");
  const std::string first_ = FreeAddress("127.0.0.1"), second_ = FreeAddress("127.0.0.2");
  const std::shared_ptr<ClusterView> server_view_ = std::make_shared<ClusterView>(At(first_), kServer);
  const std::shared_ptr<ClusterView> worker_view_ = std::make_shared<ClusterView>(At(first_), kWorker);
};

TEST_P(Moves, AServerListensAtItsNewAddressAsWell) {
  const auto server = StartServer();
  ASSERT_TRUE(*server_view_->Update({.generation = 1, .cluster = At(second_)}));
  const auto there = Reach(second_);
  ASSERT_NE(there, nullptr);
  ExpectAnAnswer(*there);
  const auto here = Reach(first_);  // where those look who have not been told yet
  ASSERT_NE(here, nullptr);
  ExpectAnAnswer(*here);
}

TEST_P(Moves, AHostToBindToStays) {
  const auto server = StartServer("127.0.0.1");
  const std::string moved = FreeAddress("127.0.0.1");
  ASSERT_TRUE(
      *server_view_->Update({.generation = 1, .cluster = At("192.0.2.1" + moved.substr(moved.rfind(':')))}));
  const auto there = Reach(moved);
  ASSERT_NE(there, nullptr);
  ExpectAnAnswer(*there);
}

TEST_P(Moves, AConnectionBreaksWhenItsServerHasAnotherAddress) {
  const auto server = StartServer();
  const auto connection = ShardConnection::Connect(worker_view_, kServer, IdentityOf(kWorker),
                                                   Transport::kAuto, Now() + std::chrono::seconds(30));
  ASSERT_TRUE(connection.ok()) << connection.status();
  ASSERT_TRUE(*worker_view_->Update({.generation = 1, .cluster = At(second_)}));
  const auto reply = (*connection)->Receive(Now() + std::chrono::seconds(30));
  EXPECT_THAT(std::string(reply.status().message()), HasSubstr("has another address now"));
}

TEST_P(Moves, AndWhenWhoConnectedHas) {
  const auto server = StartServer();
  const auto connection = ShardConnection::Connect(worker_view_, kServer, IdentityOf(kWorker),
                                                   Transport::kTcp, Now() + std::chrono::seconds(30));
  ASSERT_TRUE(connection.ok()) << connection.status();
  ASSERT_TRUE(*worker_view_->Update({.generation = 1, .cluster = At(first_, "127.0.0.9:1")}));
  ExpectBroken(**connection);
}

TEST_P(Moves, AnAttemptAtAnOldAddressEnds) {
  const BlackHole nowhere;
  const auto view = std::make_shared<ClusterView>(At("127.0.0.1:" + std::to_string(nowhere.port())), kWorker);
  std::jthread mover([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(*view->Update({.generation = 1, .cluster = At(second_)}));
  });
  const auto connection = ShardConnection::Connect(view, kServer, IdentityOf(kWorker), Transport::kTcp,
                                                   Now() + std::chrono::hours(1));
  EXPECT_TRUE(absl::IsUnavailable(connection.status())) << connection.status();
}

// The server ends when it has heard that, and nobody could ask it again.
TEST(MovesOfWorkers, AWorkerThatHasMovedSaysItsLastWordOverANewConnection) {
  for (int i = 0; i < 5; ++i) {
    Cluster cluster(1, 1, UpdateMode::kSync);
    std::jthread stopper([&] {
      EXPECT_TRUE(cluster.AwaitEnd(0).ok());
      cluster.servers[0] = nullptr;
    });
    ParameterServerClientOptions options = cluster.ClientOptions(0);
    options.server_timeout = std::chrono::seconds(2);
    const auto view = std::make_shared<ClusterView>(cluster.spec, kWorker);
    options.view = view;
    ParameterServerClient client(options);
    std::vector<float> parameters(cluster.layout.size());
    ASSERT_TRUE(client.Join(parameters).ok());
    ClusterSpec moved = cluster.spec;
    moved.workers[0] = "127.0.0.9:1";
    ASSERT_TRUE(*view->Update({.generation = 1, .cluster = moved}));
    EXPECT_TRUE(client.Finish().ok());
  }
}

INSTANTIATE_TEST_SUITE_P(, Moves, testing::Bool(),
                         [](const auto& test) { return test.param ? "Tls" : "Plain"; });

}  // namespace
}  // namespace muster
