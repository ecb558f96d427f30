#include "launcher/host_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <csignal>
#include <future>

#include "cluster/listening.h"
#include "tests/support/checkout.h"
#include "tests/support/free_port.h"
#include "tests/support/job_processes.h"
#include "tests/support/loopback_cluster.h"

namespace muster {
namespace {

TEST(NamesOf, TakesNamesOfFilesAndNoOtherPath) {
  agent::ListFilesResponse response;
  EXPECT_THAT(*NamesOf(response), testing::IsEmpty());
  response.add_names("events.out.tfevents.1.host-1");
  response.add_names("..a b");
  EXPECT_THAT(*NamesOf(response), testing::ElementsAre("events.out.tfevents.1.host-1", "..a b"));
  for (const std::string name : {"", ".", "..", "../record.pb", "a/b", "/etc/passwd", "a/"}) {
    agent::ListFilesResponse bad = response;
    bad.add_names(name);
    EXPECT_EQ(NamesOf(bad).status().code(), absl::StatusCode::kDataLoss) << name;
  }
}

void AwaitDial(const UniqueFd& listening) {
  pollfd dialed{.fd = listening.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&dialed, 1, 60'000), 1);
}

template <typename T>
std::optional<T> Eventual(std::promise<T>& promise) {
  auto future = promise.get_future();
  if (future.wait_for(std::chrono::seconds(60)) != std::future_status::ready) return std::nullopt;
  return future.get();
}

// Where nobody says a word is given up as soon as the host is seen elsewhere, and that is tried next.
TEST(HostSession, GoesWhereItsHostWasSeenDuringAnAttempt) {
  const std::string silent = FreeAddress(), closed = FreeAddress();
  const UniqueFd listening = *ListenTcp(silent);
  const auto port_of = [](const std::string& address) {
    return static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  };
  const TemporaryDirectory folder;
  const AgentProgram agent;
  std::promise<absl::Status> first, second;
  record::Host host;
  host.set_name("a");
  host.set_ssh_address("127.0.0.1");
  host.set_ssh_port(port_of(silent));
  HostSession session({.host = host,
                       .job = "j",
                       .connect = {.ssh = {.known_hosts = folder.path() / "known_hosts"}, .agent = &agent},
                       .sink = [&](const SessionEvent& event) {
                         const auto& failed =
                             std::get<reconcile::HostFailed>(std::get<reconcile::Event>(event));
                         (failed.connection == 1 ? first : second).set_value(failed.status);
                       }});
  session.Execute(
      reconcile::Connect{.host = "a", .connection = 1, .deadline = Now() + std::chrono::hours(1)});
  ASSERT_NO_FATAL_FAILURE(AwaitDial(listening));
  EXPECT_TRUE(session.Relocate({.host = "a", .ssh_address = "127.0.0.1", .ssh_port = port_of(closed)}));
  EXPECT_EQ(Eventual(first).value().code(), absl::StatusCode::kUnavailable);
  session.Execute(
      reconcile::Connect{.host = "a", .connection = 2, .deadline = Now() + std::chrono::seconds(4)});
  EXPECT_THAT(std::string(Eventual(second).value().message()), testing::HasSubstr("connect: refused: "));
}

record::Host HostAt(const SshTarget& target, const std::string& address, uint16_t port) {
  record::Host host;
  host.set_name(target.name);
  host.set_ssh_address(address);
  host.set_ssh_port(port);
  host.add_identities(target.identities[0]);
  host.set_data_address("127.0.0.1");
  host.set_dir("~/.muster");
  return host;
}

// The inventory first names its new place, and then, while it is dialed there, its new address for data.
TEST(HostSession, HasTheAddressForDataThatWasSaidLast) {
  std::signal(SIGPIPE, SIG_IGN);
  LoopbackCluster cluster(1);
  const SshTarget target = cluster.targets()[0];
  cluster.Kill(target.name);
  std::optional<UniqueFd> listening = *ListenTcp(target.address + ":" + std::to_string(target.port));
  const auto agent = LoadAgentProgram({.agent = BuildPath("bin/muster-agent"), .trainer = ""});
  ASSERT_TRUE(agent.ok()) << agent.status();
  std::promise<absl::Status> first;
  std::promise<std::string> connected;
  HostSession session({.host = HostAt(target, "127.0.0.1", 1),
                       .job = "j",
                       .connect = {.ssh = cluster.options(), .agent = &*agent},
                       .sink = [&](const SessionEvent& event) {
                         const auto* change = std::get_if<reconcile::Event>(&event);
                         if (change == nullptr) return;
                         if (const auto* failed = std::get_if<reconcile::HostFailed>(change);
                             failed != nullptr && failed->connection == 1) {
                           first.set_value(failed->status);
                         }
                         if (const auto* there = std::get_if<reconcile::HostConnected>(change)) {
                           connected.set_value(there->data_address);
                         }
                       }});
  const auto relocate = [&](const std::string& data_address) {
    return session.Relocate({.host = target.name,
                             .ssh_address = target.address,
                             .ssh_port = target.port,
                             .data_address = data_address});
  };
  EXPECT_TRUE(relocate("127.0.0.2"));
  session.Execute(
      reconcile::Connect{.host = target.name, .connection = 1, .deadline = Now() + std::chrono::hours(1)});
  ASSERT_NO_FATAL_FAILURE(AwaitDial(*listening));
  EXPECT_TRUE(relocate("127.0.0.3"));
  EXPECT_FALSE(relocate("127.0.0.3"));
  EXPECT_EQ(Eventual(first).value().code(), absl::StatusCode::kUnavailable);
  listening.reset();
  cluster.Start(target.name);
  session.Execute(
      reconcile::Connect{.host = target.name, .connection = 2, .deadline = Now() + std::chrono::minutes(1)});
  EXPECT_EQ(Eventual(connected), "127.0.0.3");
}

// SSH reaches the host, and its bridge lives.
TEST(HostSession, ADaemonThatHangsIsLostWithItsHost) {
  std::signal(SIGPIPE, SIG_IGN);
  LoopbackCluster cluster(1);
  const SshTarget target = cluster.targets()[0];
  const auto agent = LoadAgentProgram({.agent = BuildPath("bin/muster-agent"), .trainer = ""});
  ASSERT_TRUE(agent.ok()) << agent.status();
  std::promise<void> reported;
  std::promise<absl::Status> lost;
  HostSession session({.host = HostAt(target, target.address, target.port),
                       .job = "j",
                       .connect = {.ssh = cluster.options(), .agent = &*agent},
                       .agent_silence_limit = std::chrono::seconds(8),
                       .sink = [&](const SessionEvent& event) {
                         const auto* change = std::get_if<reconcile::Event>(&event);
                         if (change == nullptr) return;
                         if (std::holds_alternative<reconcile::HostReported>(*change)) reported.set_value();
                         if (const auto* failed = std::get_if<reconcile::HostFailed>(change)) {
                           lost.set_value(failed->status);
                         }
                       }});
  session.Execute(
      reconcile::Connect{.host = target.name, .connection = 1, .deadline = Now() + std::chrono::minutes(1)});
  ASSERT_EQ(reported.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  auto is_lost = lost.get_future();
  // As long as it answers, however rarely.
  EXPECT_EQ(is_lost.wait_for(std::chrono::seconds(10)), std::future_status::timeout);
  const std::vector<pid_t> daemons = AgentProcesses(cluster.HomeOf(target.name), "daemon");
  ASSERT_EQ(daemons.size(), 1u);
  ::kill(daemons[0], SIGSTOP);
  const bool is_noticed = is_lost.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
  ::kill(daemons[0], SIGCONT);
  ASSERT_TRUE(is_noticed);
  EXPECT_THAT(std::string(is_lost.get().message()), testing::HasSubstr("the daemon of its agent has not"));
}

}  // namespace
}  // namespace muster
