#include "launcher/host_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <future>

#include "cluster/listening.h"
#include "tests/support/free_port.h"

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
  const auto outcome_of = [](std::promise<absl::Status>& promise) {
    auto future = promise.get_future();
    const bool has_come = future.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
    return has_come ? future.get() : absl::DeadlineExceededError("it goes on");
  };
  session.Execute(
      reconcile::Connect{.host = "a", .connection = 1, .deadline = Now() + std::chrono::hours(1)});
  pollfd dialed{.fd = listening.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&dialed, 1, 60'000), 1);
  EXPECT_TRUE(session.Relocate({.host = "a", .ssh_address = "127.0.0.1", .ssh_port = port_of(closed)}));
  EXPECT_EQ(outcome_of(first).code(), absl::StatusCode::kUnavailable);
  session.Execute(
      reconcile::Connect{.host = "a", .connection = 2, .deadline = Now() + std::chrono::seconds(4)});
  EXPECT_THAT(std::string(outcome_of(second).message()), testing::HasSubstr("connect: refused: "));
}

}  // namespace
}  // namespace muster
