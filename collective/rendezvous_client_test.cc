// A rank's connection to the rendezvous, by itself.
#include "collective/rendezvous_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <future>
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

// It may read a checkpoint for minutes, and the group is not to begin without.
TEST(RendezvousClientTest, WhoHasNotJoinedIsNotTakenForOneWithoutParameters) {
  const auto listener = *PeerListener::Listen("127.0.0.1:0", nullptr);
  GroupIdentity all{
      .members = {{{Role::kWorker, 0}, listener->address()}, {{Role::kWorker, 1}, "127.0.0.1:1"}}};
  const RendezvousServer server(all, {}, *listener);
  RendezvousClient first({.all = all}, nullptr);
  std::jthread joins([&] {
    const auto orders = first.Join({}, {}, std::make_shared<Interrupt>());
    ASSERT_TRUE(orders.ok()) << orders.status();
    EXPECT_EQ(orders->group.source, 1);
  });
  // It looks there whenever it has heard something.
  std::atomic<int> looks = 0;
  all.rank = 1;
  all.members[0].where = [&] {
    ++looks;
    return listener->address();
  };
  RendezvousClient second({.all = all}, nullptr);
  ASSERT_TRUE(Eventually([&] { return looks >= 10; }));
  const auto orders = second.Join(ParametersVersion{.is_live = false, .step = 20, .group = 0xab}, {},
                                  std::make_shared<Interrupt>());
  ASSERT_TRUE(orders.ok()) << orders.status();
  EXPECT_EQ(orders->group.source, 1);
  joins.join();  // before this group is over
}

// So that whoever tells all ranks need not wait until they end.
TEST(RendezvousClientTest, WhoKnowsThatAllIsDoneHangsUp) {
  const auto listener = *PeerListener::Listen("127.0.0.1:0", nullptr);
  std::promise<MessageStream> came;
  listener->SetRendezvous([&](PeerListener::Arrival arrival) {
    arrival.messages.Queue(collective::PeerHelloReply());
    EXPECT_TRUE(*arrival.messages.Flush());
    came.set_value(std::move(arrival.messages));
  });
  RendezvousClient client({.all = {.members = {{{Role::kWorker, 0}, listener->address()}}}}, nullptr);
  MessageStream messages = came.get_future().get();
  collective::GroupOrders orders;
  orders.set_concluded(7);
  const auto has_hung_up = [&] {
    messages.Queue(orders);
    collective::RankReport report;
    return !messages.Flush().ok() || !messages.Receive(report).ok();
  };
  EXPECT_TRUE(Eventually(has_hung_up));
  EXPECT_EQ(client.AwaitConclusion(), absl::OkStatus());
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
