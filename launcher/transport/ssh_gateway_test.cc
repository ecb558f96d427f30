// Through jump hosts, over real sshds.
#include "launcher/transport/ssh_gateway.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <csignal>
#include <thread>

#include "base/random.h"
#include "base/sha256.h"
#include "tests/support/loopback_cluster.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

TimePoint Soon() { return Now() + seconds(60); }

int CountOf(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class SshGatewayTest : public testing::Test {
 protected:
  void SetUp() override { std::signal(SIGPIPE, SIG_IGN); }

  static SshTarget Behind(const LoopbackCluster& cluster, int host, const std::vector<int>& jumps) {
    SshTarget target = cluster.targets()[host - 1];
    for (const int jump : jumps) target.jumps.push_back(cluster.targets()[jump - 1]);
    return target;
  }
  static SshOptions Shared(const LoopbackCluster& cluster) {
    SshOptions options = cluster.options();
    options.gateways = std::make_shared<SshGateways>();
    return options;
  }
};

std::string RandomBytes(size_t size) {
  RandomStream random(7);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random.Next());
  return bytes;
}

TEST_F(SshGatewayTest, BytesArriveThroughOneAndTwoJumpHosts) {
  LoopbackCluster cluster(3);
  const std::string bytes = RandomBytes(8 << 20);  // more than all windows and buffers together
  for (const std::vector<int>& jumps : {std::vector{1}, std::vector{1, 2}}) {
    for (const SshOptions& options : {cluster.options(), Shared(cluster)}) {
      const auto transport = SshTransport::Connect(Behind(cluster, 3, jumps), options, Soon());
      ASSERT_TRUE(transport.ok()) << transport.status();
      EXPECT_EQ((*transport)->peer_address(), cluster.targets()[2].address);
      const auto result = RunOnHost(**transport, "cat; exit 7", bytes, Soon());
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->exit_code, 7);
      EXPECT_TRUE(result->stdout_text == bytes);
    }
  }
  EXPECT_THAT(cluster.Text("host-1/sshd.log"), HasSubstr("Accepted publickey"));
  EXPECT_THAT(cluster.Text("host-2/sshd.log"), HasSubstr("Accepted publickey"));
}

TEST_F(SshGatewayTest, HostsShareALoginAtTheirJumpHost) {
  LoopbackCluster cluster(4);
  const SshOptions options = Shared(cluster);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 12; ++i) {
    threads.emplace_back([&, i] {
      const auto transport = SshTransport::Connect(Behind(cluster, 2 + i % 3, {1}), options, Soon());
      ASSERT_TRUE(transport.ok()) << transport.status();
      const std::string bytes = RandomBytes(300'000 + i);
      const auto result = RunOnHost(**transport, "cat", bytes, Soon());
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_TRUE(result->stdout_text == bytes);
    });
  }
  // So long as one of them is there, nobody logs in again.
  const auto first = SshTransport::Connect(Behind(cluster, 2, {1}), options, Soon());
  threads.clear();
  const auto last = SshTransport::Connect(Behind(cluster, 3, {1}), options, Soon());
  ASSERT_TRUE(last.ok()) << last.status();
  // sshd runs nothing before it has logged who came.
  const auto result = RunOnHost(**last, "true", "", Soon());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(CountOf(cluster.Text("host-1/sshd.log"), "Accepted publickey"), 1);
  EXPECT_EQ(CountOf(cluster.Text("host-3/sshd.log"), "Accepted publickey"), 5);
}

TEST_F(SshGatewayTest, AJumpHostThatIsDownIsNamedAndTriedAgain) {
  LoopbackCluster cluster(2);
  const SshOptions options = Shared(cluster);
  cluster.Kill("host-1");
  const auto status = SshTransport::Connect(Behind(cluster, 2, {1}), options, Soon()).status();
  EXPECT_EQ(ExitCodeFor(status), 69);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("host-2 (127."), HasSubstr("through host-1 (127."), HasSubstr("refused")));
  cluster.Start("host-1");
  auto transport = SshTransport::Connect(Behind(cluster, 2, {1}), options, Soon());
  ASSERT_TRUE(transport.ok()) << transport.status();
  // Lost with all that it carries; what is made afterwards goes through a new one.
  cluster.Kill("host-1");
  EXPECT_TRUE(absl::IsUnavailable(RunOnHost(**transport, "cat", "", Soon()).status()));
  cluster.Start("host-1");
  EXPECT_TRUE(SshTransport::Connect(Behind(cluster, 2, {1}), options, Soon()).ok());
}

TEST_F(SshGatewayTest, AHostThatIsDownIsNamedByItsJumpHost) {
  LoopbackCluster cluster(3);
  const SshOptions options = Shared(cluster);
  cluster.Kill("host-2");
  const auto status = SshTransport::Connect(Behind(cluster, 2, {1}), options, Soon()).status();
  EXPECT_EQ(ExitCodeFor(status), 69);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("host-2"), HasSubstr("through host-1: it cannot connect to 127.")));
  EXPECT_TRUE(SshTransport::Connect(Behind(cluster, 3, {1}), options, Soon()).ok());
}

TEST_F(SshGatewayTest, AJumpHostThatForwardsNothingSaysSo) {
  LoopbackCluster cluster(2, {"AllowTcpForwarding no"});
  const auto status = SshTransport::Connect(Behind(cluster, 2, {1}), cluster.options(), Soon()).status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("through host-1"), HasSubstr("AllowTcpForwarding")));
}

TEST_F(SshGatewayTest, KeysOfJumpHostsAreChecked) {
  LoopbackCluster cluster(3);
  SshOptions options = Shared(cluster);
  const TemporaryDirectory folder;
  options.known_hosts = folder.path() / "known_hosts";
  const auto refused = SshTransport::Connect(Behind(cluster, 3, {1, 2}), options, Soon()).status();
  EXPECT_TRUE(NeedsUser(refused));
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("through host-1"), HasSubstr("its host key is not known")));
  options.accept_new_keys = true;
  options.gateways = std::make_shared<SshGateways>();
  const auto transport = SshTransport::Connect(Behind(cluster, 3, {1, 2}), options, Soon());
  ASSERT_TRUE(transport.ok()) << transport.status();
  std::vector<std::string> names;
  for (const AcceptedKey& key : (*transport)->accepted_keys()) names.push_back(key.host);
  EXPECT_THAT(names, testing::UnorderedElementsAre("host-1", "host-2", "host-3"));
}

TEST_F(SshGatewayTest, EachHasItsOwnTimeForTheLoginOfAJumpHost) {
  LoopbackCluster cluster(2);
  // The kernel accepts for it, and it says nothing.
  const UniqueFd silent(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(silent.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(silent.get(), 64), 0);
  ASSERT_EQ(::getsockname(silent.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  SshTarget target = Behind(cluster, 2, {1});
  target.jumps[0].address = "127.0.0.1";
  target.jumps[0].port = ntohs(address.sin_port);
  const SshOptions options = Shared(cluster);
  bool is_new = false;
  {
    // Whoever gives up is not held up by one who does not.
    const auto patient = options.gateways->Get(target.jumps, options, Now() + std::chrono::hours(1), &is_new);
    const auto status = SshTransport::Connect(target, options, Now() + milliseconds(300)).status();
    EXPECT_EQ(ExitCodeFor(status), 69);
    EXPECT_THAT(std::string(status.message()), HasSubstr("through host-1: no answer before the deadline"));
  }
  // And who does not give up is not sent away because another did.
  const auto hasty = options.gateways->Get(target.jumps, options, Now() + milliseconds(300), &is_new);
  const TimePoint deadline = Now() + seconds(2);
  EXPECT_EQ(ExitCodeFor(SshTransport::Connect(target, options, deadline).status()), 69);
  EXPECT_GE(Now(), deadline);
}

TEST_F(SshGatewayTest, HostsWithOtherKeysHaveLoginsOfTheirOwn) {
  LoopbackCluster cluster(2);
  const SshOptions options = Shared(cluster);
  SshTarget wrong = Behind(cluster, 2, {1});
  wrong.jumps[0].identities = {cluster.folder() + "/host-1/host_key"};
  bool is_new = false;
  const auto refused = options.gateways->Get(wrong.jumps, options, Soon(), &is_new);
  EXPECT_TRUE(SshTransport::Connect(Behind(cluster, 2, {1}), options, Soon()).ok());
  EXPECT_TRUE(NeedsUser(SshTransport::Connect(wrong, options, Soon()).status()));
}

TEST_F(SshGatewayTest, KeysThatAreExchangedAgainLoseNothing) {
  LoopbackCluster cluster(2, {"RekeyLimit 4M"});
  const auto transport = SshTransport::Connect(Behind(cluster, 2, {1}), cluster.options(), Soon());
  ASSERT_TRUE(transport.ok()) << transport.status();
  const std::string bytes = RandomBytes(48 << 20);
  const auto result = RunOnHost(**transport, "sha256sum", bytes, Soon());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->stdout_text, testing::StartsWith(Sha256Hex(bytes)));
}

// Larger than what libssh reads at once, while other channels open and talk: nothing may lie there unread.
TEST_F(SshGatewayTest, TunnelsDoNotWaitForOneAnother) {
  LoopbackCluster cluster(4);
  const SshOptions options = Shared(cluster);
  std::vector<std::unique_ptr<SshTransport>> transports;
  for (int i = 0; i < 6; ++i) {
    auto transport = SshTransport::Connect(Behind(cluster, 2 + i % 3, {1}), options, Soon());
    ASSERT_TRUE(transport.ok()) << transport.status();
    transports.push_back(*std::move(transport));
  }
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < transports.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 60; ++round) {
        const std::string size = std::to_string(4000 + 700 * ((round + i) % 16));
        const auto result =
            RunOnHost(*transports[i], "head -c " + size + " /dev/zero", "", Now() + seconds(20));
        ASSERT_TRUE(result.ok()) << result.status();
        ASSERT_EQ(std::to_string(result->stdout_text.size()), size);
      }
    });
  }
}

// TCP to the jump host goes on, and says nothing of the host behind.
TEST_F(SshGatewayTest, AHostBehindThatFallsSilentIsNoticed) {
  if (!LoopbackCluster::CanMakeNamespaces()) GTEST_SKIP() << "needs namespaces";
  LoopbackCluster cluster(2, {}, LoopbackCluster::Network::kNamespaces);
  SshOptions options = Shared(cluster);
  options.silence_limit = seconds(6);  // half of it for an answer
  const auto transport = SshTransport::Connect(Behind(cluster, 2, {1}), options, Soon());
  ASSERT_TRUE(transport.ok()) << transport.status();
  const auto seen = RunOnHost(**transport, "echo $SSH_CONNECTION", "", Soon());
  ASSERT_TRUE(seen.ok()) << seen.status();
  EXPECT_THAT(seen->stdout_text, testing::StartsWith(cluster.targets()[0].address + " "));
  // One that is idle, for longer than that, is not silent.
  const auto idle = (*transport)->Start("sleep 8; echo done", Soon());
  ASSERT_TRUE(idle.ok()) << idle.status();
  char byte;
  EXPECT_EQ(*(*transport)->Read(**idle, {&byte, 1}, Soon()), 1u);
  const auto endless = (*transport)->Start("sleep 1000", Soon());
  ASSERT_TRUE(endless.ok()) << endless.status();
  cluster.Cut("host-2");
  const auto lost = (*transport)->Wait(**endless, Soon()).status();
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("has not answered for 3 s"));
}

// Else whoever tries again would wait for it for ever.
TEST_F(SshGatewayTest, AJumpHostBehindAnotherThatFallsSilentIsMadeAnew) {
  if (!LoopbackCluster::CanMakeNamespaces()) GTEST_SKIP() << "needs namespaces";
  LoopbackCluster cluster(3, {}, LoopbackCluster::Network::kNamespaces);
  SshOptions options = Shared(cluster);
  options.silence_limit = milliseconds(1000);
  const SshTarget target = Behind(cluster, 3, {1, 2});
  bool is_new = false;
  const auto held = options.gateways->Get(target.jumps, options, Soon(), &is_new);  // somebody always tries
  ASSERT_TRUE(SshTransport::Connect(target, options, Soon()).ok());
  cluster.Cut("host-2");
  EXPECT_EQ(ExitCodeFor(SshTransport::Connect(target, options, Now() + seconds(3)).status()), 69);
  EXPECT_FALSE(held->works());
  cluster.Join("host-2");
  const TimePoint deadline = Soon();
  absl::Status status;
  do {
    status = SshTransport::Connect(target, options, Now() + seconds(10)).status();
  } while (!status.ok() && Now() < deadline);
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace muster
