// A rank's connection to the rendezvous, by itself.
#include "collective/rendezvous_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "cluster/listening.h"
#include "collective/rendezvous_server.h"
#include "tests/support/eventually.h"
#include "tests/support/free_port.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

// A group that falls apart while it is made sets the interrupt itself, and what its links have said is not
// yet who was the first to go.
TEST(RendezvousClientTest, WhoHasGoneIsHeardAlsoWhereTheGroupIsTornDownAlready) {
  std::vector<std::unique_ptr<PeerListener>> listeners;
  GroupIdentity all;
  for (int rank = 0; rank < 2; ++rank) {
    listeners.push_back(*PeerListener::Listen("127.0.0.1:0", nullptr));
    all.members.push_back({{Role::kWorker, rank}, listeners.back()->address()});
  }
  const RendezvousServer server(all, {.min_ranks = 1}, *listeners[0]);
  const auto make = [&](int rank) {
    GroupIdentity identity = all;
    identity.rank = rank;
    return std::make_unique<RendezvousClient>(RendezvousClientOptions{.all = identity}, nullptr);
  };
  auto first = make(0), second = make(1);
  const auto interrupt = std::make_shared<Interrupt>();
  std::jthread joins([&] { EXPECT_TRUE(second->Join({}, {}, std::make_shared<Interrupt>()).ok()); });
  ASSERT_TRUE(first->Join({}, {}, interrupt).ok());
  joins.join();
  interrupt->Set();
  // Until it is known, that is said.
  EXPECT_THAT(std::string(first->Explain(Unavailable("worker:7: it hung up")).message()),
              HasSubstr("worker:7: it hung up; who was the first to go is not known"));
  second = nullptr;
  const auto is_named = [&] {
    const absl::Status why = first->Explain(Unavailable("worker:7: it hung up"));
    EXPECT_TRUE(absl::IsCancelled(why)) << why;
    return std::string(why.message()).starts_with(Describe(all.members[1]) + " has gone");
  };
  EXPECT_TRUE(Eventually(is_named, seconds(20)));
}

// Another program has the port that rank 0 had.
TEST(RendezvousClientTest, WhoDoesNotSpeakTheProtocolIsAskedEverySoOften) {
  const std::string address = FreeAddress();
  const UniqueFd listening = *ListenTcp(address);
  std::atomic<int> dialed = 0;
  const std::jthread other([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      pollfd fd{.fd = listening.get(), .events = POLLIN, .revents = 0};
      if (::poll(&fd, 1, 20) <= 0) continue;
      const UniqueFd taken(::accept(listening.get(), nullptr, nullptr));
      ++dialed;
      char room[256];
      (void)::recv(taken.get(), room, sizeof room, 0);
      (void)::send(taken.get(), "HTTP/1.1 400\r\n\r\n", 16, MSG_NOSIGNAL);
    }
  });
  const GroupIdentity all{.members = {{{Role::kWorker, 0}, address}, {{Role::kWorker, 1}, "127.0.0.1:1"}},
                          .rank = 1};
  RendezvousClient client({.all = all, .connect_timeout = milliseconds(500)}, nullptr);
  const absl::Status status = client.Join({}, {}, std::make_shared<Interrupt>()).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("waited 500ms in vain"));
  EXPECT_GE(dialed, 1);
  EXPECT_LE(dialed, 11) << "a pause of 50 ms each";
}

}  // namespace
}  // namespace muster
