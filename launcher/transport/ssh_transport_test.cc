// Connecting: what goes wrong with hosts, keys and logins, against real sshds and listeners that misbehave.
#include "launcher/transport/ssh_transport.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <pwd.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "launcher/transport/known_hosts.h"
#include "launcher/transport/ssh_socket.h"
#include "tests/support/eventually.h"
#include "tests/support/loopback_cluster.h"
#include "tests/support/ssh_connecting.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

HostKey PublicKey(const LoopbackCluster& cluster, const std::string& host) {
  std::istringstream words(cluster.Text(host + "/host_key.pub"));
  HostKey key;
  words >> key.type >> key.base64;
  return key;
}

void Write(const std::filesystem::path& path, const std::string& text) {
  const absl::Status status = WriteFileAtomically(path, text, 0600);
  ASSERT_TRUE(status.ok()) << status;
}

// A TCP listener on a port of its own that treats each connection as told, in a thread.
class Listener {
 public:
  explicit Listener(std::function<void(UniqueFd)> on_connection, int backlog = 64)
      : on_connection_(std::move(on_connection)) {
    fd_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(fd_.get(), backlog), 0);
    EXPECT_EQ(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    if (on_connection_) thread_ = std::jthread([this](std::stop_token stop) { Serve(stop); });
  }
  ~Listener() {
    thread_.request_stop();
    ::shutdown(fd_.get(), SHUT_RDWR);  // ends the accept
  }

  SshTarget target() const { return {.name = "listener", .address = "127.0.0.1", .port = port_}; }
  int accepted() const { return accepted_; }

 private:
  void Serve(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      UniqueFd connection(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!connection.valid()) continue;
      ++accepted_;
      on_connection_(std::move(connection));
    }
  }

  const std::function<void(UniqueFd)> on_connection_;
  UniqueFd fd_;
  uint16_t port_ = 0;
  std::atomic<int> accepted_ = 0;
  std::jthread thread_;
};

class SshTransportTest : public testing::Test {
 protected:
  void SetUp() override { std::signal(SIGPIPE, SIG_IGN); }

  // Options for listeners that are no cluster.
  SshOptions BareOptions() const {
    return {.known_hosts = folder_.path() / "known_hosts", .home = folder_.path().string()};
  }

  TemporaryDirectory folder_;
};

// ---------------------------------------------------------------------------------------------- hosts that
// do not answer

TEST_F(SshTransportTest, AHostThatIsDownIsNamedAtOnce) {
  LoopbackCluster cluster(2);
  cluster.Kill("host-2");
  const absl::Status status = ConnectStatus(cluster.targets()[1], cluster.options());
  EXPECT_EQ(ExitCodeFor(status), 69);
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("host-2 (127."), HasSubstr("refused"), HasSubstr("start sshd")));
  EXPECT_TRUE(ConnectStatus(cluster.targets()[0], cluster.options()).ok());
  cluster.Start("host-2");
  EXPECT_TRUE(ConnectStatus(cluster.targets()[1], cluster.options()).ok());
}

TEST_F(SshTransportTest, AHostThatSwallowsPacketsEndsByTheDeadline) {
  Listener listener({}, 0);
  // Linux lets one more connection in than the backlog says; from then on it drops the first packet of each.
  std::vector<UniqueFd> fill;
  for (int i = 0; i < 2; ++i) {
    const UniqueFd& fd = fill.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_in address{.sin_family = AF_INET,
                        .sin_port = htons(listener.target().port),
                        .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    (void)::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  }
  const absl::Status status = ConnectStatus(listener.target(), BareOptions(), Now() + milliseconds(500));
  EXPECT_EQ(ExitCodeFor(status), 69);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("listener (127.0.0.1:"), HasSubstr("connect: no answer")));
}

TEST_F(SshTransportTest, AConnectionLeavesNoDescriptorBehind) {
  LoopbackCluster cluster(1);
  Listener silent({}), rude([](UniqueFd connection) { (void)WriteAll(connection.get(), "SSH-2.0-x\r\n"); });
  const auto count = [] {
    return ListDirectory("/proc/self/fd").value_or(std::vector<std::string>()).size();
  };
  size_t before = 0;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(ConnectStatus(cluster.targets()[0], cluster.options()).ok());
    EXPECT_FALSE(ConnectStatus(silent.target(), BareOptions(), Now() + milliseconds(100)).ok());
    EXPECT_FALSE(ConnectStatus(rude.target(), BareOptions(), Now() + milliseconds(300)).ok());
    if (i == 0) before = count();
  }
  // The listeners' own are closed by their threads.
  EXPECT_TRUE(Eventually([&] { return count() <= before; })) << count() << " and " << before;
}

// Before anybody knows who it is.
TEST_F(SshTransportTest, AHostThatNeverStopsTalkingEndsByTheDeadline) {
  Listener listener([](UniqueFd connection) {
    // A message to be ignored (RFC 4253, section 11.2), again and again.
    const std::string ignore("\0\0\0\x0c\x04\x02\0\0\0\x02xx\0\0\0\0", 16);
    std::string bytes = "SSH-2.0-talker\r\n";
    while (WriteAll(connection.get(), bytes).ok()) bytes = ignore;
  });
  const absl::Status status = ConnectStatus(listener.target(), BareOptions(), Now() + milliseconds(500));
  EXPECT_EQ(ExitCodeFor(status), 69);
  EXPECT_THAT(Message(status), HasSubstr("listener (127.0.0.1:"));
}

TEST_F(SshTransportTest, AHostThatSaysNothingEndsByTheDeadline) {
  Listener listener({});  // the kernel accepts, nobody speaks
  const absl::Status status = ConnectStatus(listener.target(), BareOptions(), Now() + milliseconds(500));
  EXPECT_EQ(ExitCodeFor(status), 69);
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("listener (127.0.0.1:"), HasSubstr("SSH greeting"), HasSubstr("said nothing")));
}

TEST_F(SshTransportTest, AHostThatFallsSilentInTheKeyExchangeEndsByTheDeadline) {
  std::vector<UniqueFd> kept_open;
  Listener listener([&kept_open](UniqueFd connection) {
    EXPECT_TRUE(WriteAll(connection.get(), "SSH-2.0-OpenSSH_9.2\r\n").ok());
    kept_open.push_back(std::move(connection));
  });
  const absl::Status status = ConnectStatus(listener.target(), BareOptions(), Now() + milliseconds(500));
  EXPECT_EQ(ExitCodeFor(status), 69);
  EXPECT_THAT(Message(status), HasSubstr("key exchange: no answer"));
}

TEST_F(SshTransportTest, SomethingThatIsNotSshIsAnErrorAndNoHang) {
  Listener listener([](UniqueFd connection) { (void)WriteAll(connection.get(), std::string(1000, 'x')); });
  SshOptions options = BareOptions();
  options.max_attempts = 1;
  EXPECT_EQ(ExitCodeFor(ConnectStatus(listener.target(), options)), 69);
}

TEST_F(SshTransportTest, AHostThatHangsUpIsTriedAgainAndAgainButNotForEver) {
  Listener listener([](UniqueFd) {});
  SshOptions options = BareOptions();
  options.max_attempts = 4;
  const absl::Status status = ConnectStatus(listener.target(), options);
  EXPECT_EQ(ExitCodeFor(status), 69);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("hung up"), HasSubstr("MaxStartups")));
  EXPECT_EQ(listener.accepted(), 4);
}

TEST_F(SshTransportTest, ANameThatDoesNotResolveIsNamed) {
  SshTarget target{.name = "typo", .address = "no-such-host.invalid"};
  const absl::Status status = ConnectStatus(target, BareOptions(), Now() + seconds(10));
  EXPECT_EQ(ExitCodeFor(status), 69);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("typo (no-such-host.invalid:22)"), HasSubstr("look up")));
}

TEST_F(SshTransportTest, TheUserCanInterruptAConnect) {
  Listener listener({});
  const UniqueFd cancel(::eventfd(0, EFD_CLOEXEC));
  SshOptions options = BareOptions();
  options.cancel_fd = cancel.get();
  std::jthread user([&] {
    const uint64_t one = 1;
    ASSERT_EQ(::write(cancel.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  });
  EXPECT_EQ(ExitCodeFor(ConnectStatus(listener.target(), options)), 130);
}

// -----------------------------------------------------------------------------------------------------------
// host keys

TEST_F(SshTransportTest, AnUnknownKeyIsRefusedWithTheCommandThatAcceptsIt) {
  LoopbackCluster cluster(1, {"LogLevel VERBOSE"});
  SshOptions options = cluster.options();
  options.known_hosts = folder_.path() / "empty";
  options.accept_command = "muster check --accept-new -i mine.yaml";
  const absl::Status status = ConnectStatus(cluster.targets()[0], options);
  EXPECT_EQ(ExitCodeFor(status), 69);
  EXPECT_TRUE(NeedsUser(status));
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("host-1"), HasSubstr(PublicKey(cluster, "host-1").Fingerprint()),
                    HasSubstr("muster check --accept-new -i mine.yaml")));
  EXPECT_FALSE(std::filesystem::exists(options.known_hosts));
  EXPECT_THAT(cluster.Text("host-1/sshd.log"), AllOf(HasSubstr("Connection"), Not(HasSubstr("user"))));
}

TEST_F(SshTransportTest, AnUnknownKeyCanBeAcceptedOnce) {
  LoopbackCluster cluster(1);
  SshOptions options = cluster.options();
  options.known_hosts = folder_.path() / "new" / "known_hosts";
  options.accept_new_keys = true;
  {
    const auto first = SshTransport::Connect(cluster.targets()[0], options, Soon());
    ASSERT_TRUE(first.ok()) << first.status();
    ASSERT_EQ((*first)->accepted_keys().size(), 1u);
    EXPECT_EQ((*first)->accepted_keys()[0].host, "host-1");
    EXPECT_EQ((*first)->accepted_keys()[0].fingerprint, PublicKey(cluster, "host-1").Fingerprint());
  }
  options.accept_new_keys = false;
  const auto second = SshTransport::Connect(cluster.targets()[0], options, Soon());
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE((*second)->accepted_keys().empty());
}

TEST_F(SshTransportTest, AChangedKeyIsRefusedWithBothAndNothingIsSent) {
  LoopbackCluster cluster(2, {"LogLevel VERBOSE"});
  SshOptions options = cluster.options();
  options.known_hosts = folder_.path() / "known_hosts";
  const HostKey expected = PublicKey(cluster, "host-2"), offered = PublicKey(cluster, "host-1");
  const std::string file = "host-1 " + expected.type + " " + expected.base64 + "\n";
  Write(options.known_hosts, file);
  for (const bool accept : {false, true}) {
    options.accept_new_keys = accept;
    const absl::Status status = ConnectStatus(cluster.targets()[0], options);
    EXPECT_EQ(ExitCodeFor(status), 69);
    EXPECT_TRUE(NeedsUser(status));
    EXPECT_THAT(Message(status), AllOf(HasSubstr("host-1"), HasSubstr("CHANGED"),
                                       HasSubstr(expected.Fingerprint()), HasSubstr(offered.Fingerprint())));
  }
  EXPECT_THAT(cluster.Text("host-1/sshd.log"), AllOf(HasSubstr("Connection"), Not(HasSubstr("user"))));
  EXPECT_EQ(*ReadFile(options.known_hosts), file);
}

TEST_F(SshTransportTest, NamesInTheInventoryNeedNotBeHostNames) {
  LoopbackCluster cluster(1);
  SshTarget target = cluster.targets()[0];
  SshOptions options = cluster.options();
  options.known_hosts = folder_.path() / "known_hosts";
  options.accept_new_keys = true;
  for (const char* name : {"gpu_01", "Rack-3.GPU.7", "-dash"}) {
    target.name = name;
    const absl::Status status = ConnectStatus(target, options);
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_F(SshTransportTest, TooManyKeysAreARefusalThatNamesThem) {
  LoopbackCluster cluster(1, {"MaxAuthTries 2"});
  SshTarget target = cluster.targets()[0];
  target.identities.clear();
  for (const char* name : {"a", "b", "c"}) {
    const std::string file = folder_.path() / name;
    const auto made =
        RunCommand({.argv = {"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file}}, Soon());
    ASSERT_TRUE(made.ok() && made->exit_code == 0);
    target.identities.push_back(file);
  }
  const absl::Status status = ConnectStatus(target, cluster.options());
  EXPECT_EQ(ExitCodeFor(status), 69);
  EXPECT_TRUE(NeedsUser(status));
  EXPECT_THAT(Message(status), HasSubstr("Too many authentication failures"));
}

// A host with several keys is asked for the one that is known, so that the others do not look like a change.
TEST_F(SshTransportTest, TheKnownTypeOfSeveralKeysIsAskedFor) {
  const std::string rsa = (folder_.path() / "rsa").string();
  const auto made =
      RunCommand({.argv = {"ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", rsa}}, Soon());
  ASSERT_TRUE(made.ok() && made->exit_code == 0);
  LoopbackCluster cluster(1, {"HostKey " + rsa});
  SshOptions options = cluster.options();
  options.known_hosts = folder_.path() / "known_hosts";
  Write(options.known_hosts, "host-1 " + *ReadFile(rsa + ".pub"));
  const absl::Status status = ConnectStatus(cluster.targets()[0], options);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(SshTransportTest, AKnownHostsFileWithAnErrorIsBadInput) {
  LoopbackCluster cluster(1);
  SshOptions options = cluster.options();
  options.known_hosts = folder_.path() / "known_hosts";
  Write(options.known_hosts, "host-1 nonsense\n");
  const absl::Status status = ConnectStatus(cluster.targets()[0], options);
  EXPECT_EQ(ExitCodeFor(status), 2);
  EXPECT_THAT(Message(status), HasSubstr("known_hosts:1: "));
}

// ------------------------------------------------------------------------------------------------------ many
// connections

TEST_F(SshTransportTest, SixteenThreadsConnectAtATime) {
  LoopbackCluster cluster(4);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&cluster, i] {
      auto transport = SshTransport::Connect(cluster.targets()[i % 4], cluster.options(), Soon());
      ASSERT_TRUE(transport.ok()) << transport.status();
      const auto result =
          RunOnHost(**transport, "cat; exit " + std::to_string(i), "to " + std::to_string(i), Soon());
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->stdout_text, "to " + std::to_string(i));
      EXPECT_EQ(result->exit_code, i);
    });
  }
}

TEST_F(SshTransportTest, LogsInToThirtyTwoHostsAtATimeAndSilentOnesDoNotCount) {
  Listener silent({});
  std::mutex mutex;
  std::vector<UniqueFd> connections;  // guarded by mutex
  Listener greets([&](UniqueFd connection) {
    EXPECT_TRUE(WriteAll(connection.get(), "SSH-2.0-OpenSSH_9.2\r\n").ok());
    const std::lock_guard lock(mutex);
    connections.push_back(std::move(connection));
  });
  // Those whose peer has begun to log in.
  const auto begun = [](const UniqueFd& connection) {
    return WaitForFd(connection.get(), POLLIN, {.deadline = Now()}).ok();
  };
  const auto count_begun = [&] {
    const std::lock_guard lock(mutex);
    return std::ranges::count_if(connections, begun);
  };
  const UniqueFd cancel(::eventfd(0, EFD_CLOEXEC));
  SshOptions options = BareOptions();
  options.cancel_fd = cancel.get();
  options.max_attempts = 1;
  std::vector<std::jthread> launcher;
  for (int i = 0; i < 40; ++i) launcher.emplace_back([&] { (void)ConnectStatus(silent.target(), options); });
  for (int i = 0; i < 40; ++i) launcher.emplace_back([&] { (void)ConnectStatus(greets.target(), options); });
  const TimePoint deadline = Soon();
  while ((greets.accepted() < 40 || count_begun() < 32) && Now() < deadline)
    std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(200));  // for one too many to show itself
  EXPECT_EQ(count_begun(), 32);
  {
    // Hang up on those that had their turn. The first to go makes room, so they are told apart before.
    const std::lock_guard lock(mutex);
    const auto waiting = std::ranges::partition(connections, begun).begin();
    connections.erase(connections.begin(), waiting);
  }
  while (count_begun() < 8 && Now() < deadline) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(count_begun(), 8);
  const uint64_t one = 1;
  EXPECT_EQ(::write(cancel.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
}

TEST_F(SshTransportTest, ConnectionsThatSshdDropsAreTriedAgain) {
  LoopbackCluster cluster(1, {"MaxStartups 1:100:1", "LogLevel VERBOSE"});
  const SshTarget& target = cluster.targets()[0];
  // A connection that never logs in takes the only place, as soon as sshd has greeted it.
  absl::StatusOr<UniqueFd> occupant =
      ConnectTcp(target.address, target.port, seconds(60), {.deadline = Soon()});
  ASSERT_TRUE(occupant.ok()) << occupant.status();
  ASSERT_TRUE(WaitForFd(occupant->get(), POLLIN, {.deadline = Soon()}).ok());
  SshOptions options = cluster.options();
  options.max_attempts = 1000;
  absl::Status status;
  {
    std::jthread connecting([&] { status = ConnectStatus(target, options); });
    const TimePoint deadline = Soon();
    while (cluster.Text("host-1/sshd.log").find("drop connection") == std::string::npos && Now() < deadline) {
      std::this_thread::yield();
    }
    occupant->reset();
  }
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(cluster.Text("host-1/sshd.log"), HasSubstr("drop connection"));
}

TEST_F(SshTransportTest, TheCheapKeyExchangeAndCipherAreChosen) {
  LoopbackCluster cluster(1, {"LogLevel DEBUG1"});
  ASSERT_TRUE(ConnectStatus(cluster.targets()[0], cluster.options()).ok());
  EXPECT_THAT(cluster.Text("host-1/sshd.log"),
              AllOf(HasSubstr("kex: algorithm: curve25519-sha256"),
                    HasSubstr("client->server cipher: aes128-gcm@openssh.com"),
                    HasSubstr("server->client cipher: aes128-gcm@openssh.com")));
}

// ------------------------------------------------------------------------------------------------ once it is
// connected

class ConnectedTest : public SshTransportTest {
 protected:
  void SetUp() override {
    SshTransportTest::SetUp();
    auto connected = SshTransport::Connect(cluster_.targets()[0], cluster_.options(), Soon());
    ASSERT_TRUE(connected.ok()) << connected.status();
    transport_ = *std::move(connected);
  }

  LoopbackCluster cluster_{1};
  std::unique_ptr<SshTransport> transport_;
};

TEST_F(ConnectedTest, ALoginShellThatPrintsOnlyPrintsBefore) {
  Write(cluster_.HomeOf("host-1") + "/.bashrc", "echo welcome to this machine\n");
  const auto result = RunOnHost(*transport_, "echo sentinel", "", Soon());
  ASSERT_TRUE(result.ok()) << result.status();
  const passwd* account = ::getpwuid(::getuid());
  const bool bash = account != nullptr && std::string(account->pw_shell).ends_with("/bash");
  EXPECT_EQ(result->stdout_text, bash ? "welcome to this machine\nsentinel\n" : "sentinel\n");
}

TEST_F(ConnectedTest, AHostThatDiesIsAnErrorOfEachCall) {
  auto channel = transport_->Start("cat", Soon());
  ASSERT_TRUE(channel.ok()) << channel.status();
  cluster_.Kill("host-1");
  char buffer[16];
  const absl::Status read = transport_->Read(**channel, buffer, Soon()).status();
  EXPECT_TRUE(absl::IsUnavailable(read)) << read;
  EXPECT_THAT(Message(read), AllOf(HasSubstr("host-1 (127."), HasSubstr("connection is lost")));
  EXPECT_TRUE(absl::IsUnavailable(transport_->Write(**channel, "x", Soon())));
  EXPECT_TRUE(absl::IsUnavailable(transport_->Wait(**channel, Soon()).status()));
  EXPECT_TRUE(absl::IsUnavailable(transport_->Start("true", Soon()).status()));
}

TEST_F(ConnectedTest, AHostThatStallsEndsByTheDeadline) {
  // $PPID is the sshd of this connection: stopped, it neither reads nor hangs up, like a host that is
  // thrashing.
  auto channel = transport_->Start("kill -STOP $PPID; exec cat >/dev/null", Soon());
  ASSERT_TRUE(channel.ok()) << channel.status();
  const std::string much(64 << 20, 'x');
  EXPECT_TRUE(absl::IsDeadlineExceeded(transport_->Write(**channel, much, Now() + seconds(1))));
  EXPECT_TRUE(absl::IsDeadlineExceeded(transport_->Start("true", Now() + milliseconds(200)).status()));
}

TEST_F(ConnectedTest, ManyCommandsOnOneConnection) {
  for (int i = 0; i < 50; ++i) {
    const auto result = RunOnHost(*transport_, "echo " + std::to_string(i), "", Soon());
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->stdout_text, std::to_string(i) + "\n");
  }
}

TEST_F(ConnectedTest, MoreChannelsThanTheHostAllowsIsAnErrorThatSaysSo) {
  std::vector<std::unique_ptr<CommandChannel>> channels;
  absl::Status refused;
  while (refused.ok() && channels.size() < 100) {  // sshd's MaxSessions is 10 by default
    auto channel = transport_->Start("cat", Soon());
    refused = channel.status();
    if (channel.ok()) channels.push_back(*std::move(channel));
  }
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("MaxSessions"));
  ASSERT_GE(channels.size(), 2u);
  ASSERT_TRUE(channels[0]->CloseInput().ok());
  EXPECT_EQ(transport_->Wait(*channels[0], Soon()).value_or(-1), 0);
}

}  // namespace
}  // namespace muster
