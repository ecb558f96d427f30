// With real network namespaces: what links let through, what commands see, and what is left.
#include "launcher/virtual_hosts.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "base/file.h"
#include "base/process.h"
#include "launcher/transport/transport.h"

namespace muster {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr LinkRate kRate{.bits_per_second = 100'000'000};

class VirtualHostsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const absl::Status may = CheckMayMakeNamespaces(); !may.ok()) GTEST_SKIP() << may.message();
  }

  std::unique_ptr<VirtualHosts> Make(int count, LinkRate rate = {}) {
    auto hosts = VirtualHosts::Create({.count = count, .rate = rate, .folder = folder_.path()});
    EXPECT_TRUE(hosts.ok()) << hosts.status();
    return hosts.ok() ? *std::move(hosts) : nullptr;
  }

  HostCommandResult Run(const VirtualHosts& hosts, int host, const std::string& command) {
    const auto transport = MakeLocalTransport(hosts.local_hosts().at(VirtualHosts::Name(host)));
    auto result = RunOnHost(*transport, command, "", Now() + seconds(60));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(HostCommandResult{.exit_code = -1});
  }

  // What there is of this process: namespaces, and folders of homes.
  std::vector<std::string> LeftBy(pid_t owner) {
    std::vector<std::string> left;
    for (const std::string& folder : {std::string("/run/netns"), folder_.path().string()}) {
      for (const std::string& name : ListDirectory(folder).value_or(std::vector<std::string>())) {
        const auto found = OwnerOfName(name);
        if (found && found->pid == owner) left.push_back(folder + "/" + name);
      }
    }
    return left;
  }

  TemporaryDirectory folder_;
};

bool Lives(pid_t pid) {
  const auto stat = ReadProcessStat(pid);
  return stat.ok() && stat->state != 'Z';
}

// Of the namespace, whichever thread uses it.
UniqueFd SocketIn(const NetworkNamespace& network) {
  UniqueFd made;
  std::jthread([&] {
    const UniqueFd file(::open(network.path().c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(::setns(file.get(), CLONE_NEWNET), 0);
    made.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }).join();
  const timeval a_minute{.tv_sec = 60, .tv_usec = 0};
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    EXPECT_EQ(::setsockopt(made.get(), SOL_SOCKET, option, &a_minute, sizeof a_minute), 0);
  }
  return made;
}

struct Connection {
  UniqueFd sender, receiver;
};

Connection Connect(const VirtualHosts& hosts, int from, int to) {
  const UniqueFd listener = SocketIn(hosts.network(to));
  sockaddr_in address{.sin_family = AF_INET};
  ::inet_pton(AF_INET, VirtualHosts::Address(to).c_str(), &address.sin_addr);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(listener.get(), any, size), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), any, &size), 0);
  Connection connection{.sender = SocketIn(hosts.network(from))};
  EXPECT_EQ(::connect(connection.sender.get(), any, size), 0);
  connection.receiver.reset(::accept(listener.get(), nullptr, nullptr));
  EXPECT_TRUE(connection.receiver.valid());
  return connection;
}

// How long it takes until all of the connections have moved so many bytes, at the same time.
double SecondsToSend(const std::vector<Connection>& connections, size_t bytes) {
  const TimePoint start = Now();
  std::vector<std::jthread> threads;
  for (const Connection& connection : connections) {
    threads.emplace_back([&connection, bytes] {
      const std::vector<char> block(bytes);
      ASSERT_TRUE(WriteAll(connection.sender.get(), {block.data(), block.size()}).ok());
    });
    threads.emplace_back([&connection, bytes] {
      std::vector<char> block(1 << 16);
      for (size_t received = 0; received < bytes;) {
        const ssize_t n = ::read(connection.receiver.get(), block.data(), block.size());
        ASSERT_GT(n, 0) << received;
        received += n;
      }
    });
  }
  threads.clear();  // joins
  return ToSeconds(Now() - start);
}

constexpr size_t kBytes = 5'000'000;

// What a link of kRate needs for so many bytes, of which the bucket takes the first at once.
double SecondsAtRate(size_t bytes) {
  return 8.0 * static_cast<double>(bytes - ShapingFor(kRate).burst_bytes) / kRate.bits_per_second;
}

// The least of a few times, since other work on this machine can only add to them.
double LeastSecondsToSend(const std::vector<Connection>& connections, double enough) {
  double least = SecondsToSend(connections, kBytes);
  for (int again = 0; again < 4 && least > enough; ++again)
    least = std::min(least, SecondsToSend(connections, kBytes));
  return least;
}

TEST_F(VirtualHostsTest, ALinkLetsItsRateThrough) {
  const auto hosts = Make(2, kRate);
  ASSERT_NE(hosts, nullptr);
  std::vector<Connection> connections;
  connections.push_back(Connect(*hosts, 0, 1));
  const double enough = 2 * SecondsAtRate(kBytes);
  const double took = LeastSecondsToSend(connections, enough);
  EXPECT_GE(took, SecondsAtRate(kBytes));
  EXPECT_LT(took, enough);
}

TEST_F(VirtualHostsTest, ItsDirectionsDoNotShareIt) {
  const auto hosts = Make(2, kRate);
  ASSERT_NE(hosts, nullptr);
  std::vector<Connection> connections;
  connections.push_back(Connect(*hosts, 0, 1));
  connections.push_back(Connect(*hosts, 1, 0));
  const double if_shared = SecondsAtRate(2 * kBytes);
  const double enough = 0.8 * if_shared;
  const double took = LeastSecondsToSend(connections, enough);
  EXPECT_GE(took, SecondsAtRate(kBytes));
  EXPECT_LT(took, enough);
}

TEST_F(VirtualHostsTest, SendersShareTheLinkOfTheReceiver) {
  const auto hosts = Make(3, kRate);
  ASSERT_NE(hosts, nullptr);
  std::vector<Connection> connections;
  for (const int sender : {1, 2}) connections.push_back(Connect(*hosts, sender, 0));
  EXPECT_GE(SecondsToSend(connections, kBytes), SecondsAtRate(2 * kBytes));
}

TEST_F(VirtualHostsTest, ReceiversShareTheLinkOfTheSender) {
  const auto hosts = Make(3, kRate);
  ASSERT_NE(hosts, nullptr);
  std::vector<Connection> connections;
  for (const int receiver : {1, 2}) connections.push_back(Connect(*hosts, 0, receiver));
  EXPECT_GE(SecondsToSend(connections, kBytes), SecondsAtRate(2 * kBytes));
}

TEST_F(VirtualHostsTest, LatencyIsAddedOrRefusedWithWhatItNeeds) {
  constexpr Duration kLatency = std::chrono::milliseconds(50);
  for (const LinkRate rate : {kRate, LinkRate{}}) {
    const auto hosts =
        VirtualHosts::Create({.count = 2, .rate = rate, .latency = kLatency, .folder = folder_.path()});
    if (absl::IsFailedPrecondition(hosts.status())) {
      EXPECT_THAT(std::string(hosts.status().message()), HasSubstr("CONFIG_NET_SCH_NETEM"));
      EXPECT_THAT(LeftBy(::getpid()), IsEmpty());
      continue;
    }
    ASSERT_TRUE(hosts.ok()) << hosts.status();
    const TimePoint start = Now();
    Connect(**hosts, 0, 1);
    EXPECT_GE(Now() - start, 2 * kLatency);
  }
}

TEST_F(VirtualHostsTest, ACommandSeesTheAddressesOfItsHostOnly) {
  const auto hosts = Make(2);
  ASSERT_NE(hosts, nullptr);
  for (int host = 0; host < 2; ++host) {
    EXPECT_EQ(Run(*hosts, host, "ip -o -4 address | awk '{print $2, $4}'").stdout_text,
              "lo 127.0.0.1/8\neth0 " + VirtualHosts::Address(host) + "/24\n");
    EXPECT_EQ(Run(*hosts, host, "echo $HOME; pwd").stdout_text,
              hosts->home(host).string() + "\n" + hosts->home(host).string() + "\n");
  }
  EXPECT_NE(hosts->home(0), hosts->home(1));
}

TEST_F(VirtualHostsTest, TheInventoryHasThemAll) {
  const auto hosts =
      VirtualHosts::Create({.count = 2, .labels = {"cpu", "virtual"}, .folder = folder_.path()});
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  const Inventory inventory = (*hosts)->inventory();
  ASSERT_THAT(inventory.hosts, SizeIs(2));
  for (int i = 0; i < 2; ++i) {
    const Host& host = inventory.hosts[i];
    EXPECT_EQ(host.name, "host-" + std::to_string(i + 1));
    EXPECT_TRUE(host.local);
    EXPECT_EQ(host.data_address, VirtualHosts::Address(i));
    EXPECT_THAT(host.labels, ElementsAre("cpu", "virtual"));
    EXPECT_TRUE((*hosts)->local_hosts().contains(host.name));
  }
}

TEST_F(VirtualHostsTest, NothingIsLeftOfThem) {
  const auto others = Make(1);
  ASSERT_NE(others, nullptr);
  auto hosts = Make(2);
  ASSERT_NE(hosts, nullptr);
  EXPECT_THAT(LeftBy(::getpid()), SizeIs(2 + 1 + 3 + 1));
  // One that has left its shell and its session.
  const pid_t sleeper = std::stoi(Run(*hosts, 1, "setsid sleep 1000 >/dev/null 2>&1 & echo $!").stdout_text);
  EXPECT_TRUE(Lives(sleeper));
  EXPECT_EQ(Run(*hosts, 0, "echo text > file").exit_code, 0);
  const absl::Status removed = hosts->Remove();
  EXPECT_TRUE(removed.ok()) << removed;
  EXPECT_FALSE(Lives(sleeper));
  EXPECT_THAT(LeftBy(::getpid()), SizeIs(2 + 1));
  EXPECT_EQ(Run(*others, 0, "echo $HOME").stdout_text, others->home(0).string() + "\n");
}

TEST_F(VirtualHostsTest, WhatAKilledOwnerLeftIsRemovedAndNothingElse) {
  const auto own = Make(1);
  ASSERT_NE(own, nullptr);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const pid_t owner = ::fork();
  if (owner == 0) {
    const auto hosts = Make(2);
    std::vector<std::string> argv = hosts->network(1).command_prefix();
    argv.insert(argv.end(), {"sleep", "1000"});
    const pid_t sleeper = Process::Spawn({.argv = argv})->Release();
    (void)!::write(writer.get(), &sleeper, sizeof sleeper);
    for (;;) ::pause();
  }
  writer.reset();
  pid_t sleeper = 0;
  ASSERT_EQ(::read(reader.get(), &sleeper, sizeof sleeper), static_cast<ssize_t>(sizeof sleeper));

  ASSERT_TRUE(RemoveAbandonedHosts(folder_.path()).ok());
  EXPECT_THAT(LeftBy(owner), SizeIs(3 + 1)) << "its owner lives";
  EXPECT_TRUE(Lives(sleeper));

  ::kill(owner, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, owner, &info, WEXITED | WNOWAIT), 0);  // not reaped: it has gone all the same
  const absl::Status removed = RemoveAbandonedHosts(folder_.path());
  EXPECT_TRUE(removed.ok()) << removed;
  EXPECT_THAT(LeftBy(owner), IsEmpty());
  EXPECT_FALSE(Lives(sleeper));
  EXPECT_THAT(LeftBy(::getpid()), SizeIs(2 + 1)) << "this owner lives";
  EXPECT_EQ(::waitpid(owner, nullptr, 0), owner);
}

TEST(NamespaceNamesTest, SayWhoseTheyAre) {
  const auto self = Owner::ThisProcess();
  ASSERT_TRUE(self.ok()) << self.status();
  EXPECT_FALSE(self->HasGone());
  const auto read = OwnerOfName(NamePrefix(*self) + "1-host-1");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->pid, ::getpid());
  EXPECT_FALSE(read->HasGone());
  Owner other = *self;
  ++other.start_ticks;  // the number was another process's before
  EXPECT_TRUE(other.HasGone());
  other = *self;
  ++other.pid_namespace;  // who knows?
  other.pid = 1 << 30;
  EXPECT_FALSE(other.HasGone());
  for (const char* name : {"", "muster-", "muster-1-2", "muster-1-2-3", "muster-1--2-3-x", "muster-01-2-3-x",
                           "muster-1-2-x-3", "other-1-2-3-x", "muster-1-0-3-x"}) {
    EXPECT_FALSE(OwnerOfName(name)) << name;
  }
}

TEST_F(VirtualHostsTest, BadOptionsAreRefused) {
  for (const int count : {-1, 0, kMaxVirtualHosts + 1}) {
    EXPECT_TRUE(absl::IsInvalidArgument(VirtualHosts::Create({.count = count}).status())) << count;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(VirtualHosts::Create({.latency = seconds(-1)}).status()));
  const auto nowhere = VirtualHosts::Create({.folder = folder_.path() / "nowhere"});
  EXPECT_THAT(std::string(nowhere.status().message()), HasSubstr("nowhere"));
  EXPECT_THAT(LeftBy(::getpid()), IsEmpty());
}

TEST_F(VirtualHostsTest, WhoIsNotRootIsToldSo) {
  constexpr uid_t kNobody = 65534;
  const auto refused = [] {
    if (::setuid(kNobody) != 0) return 2;
    const auto hosts = VirtualHosts::Create({});
    return absl::IsPermissionDenied(hosts.status()) &&
                   hosts.status().message().find("CAP_SYS_ADMIN") != std::string::npos
               ? 0
               : 1;
  };
  EXPECT_EXIT(::_exit(refused()), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace muster
