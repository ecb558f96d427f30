// What comes to a listener, and who dials it, by themselves.
#include "collective/peer_listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <barrier>
#include <fstream>
#include <thread>

#include "base/certificates.h"
#include "base/descriptor_limit.h"
#include "cluster/listening.h"
#include "tests/support/fault_hosts.h"
#include "tests/support/own_network.h"

namespace muster {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

// More ranks than a listener has room for at a time.
class CrowdTest : public testing::Test {
 protected:
  static constexpr int kRanks = 600, kMoreThanFit = 270;

  CrowdTest() : authority_(*MakeAuthority("test")) {
    RaiseDescriptorLimit();
    listener_ = *PeerListener::Listen("127.0.0.1:0", TlsOf(0));
    tls_ = TlsOf(1);
  }

  std::shared_ptr<TlsContext> TlsOf(int rank) const {
    const Certificate own = *IssueCertificate(authority_, TlsName({Role::kWorker, rank}));
    return *TlsContext::Create({authority_.certificate_pem, own.certificate_pem, own.key_pem});
  }

  const Certificate authority_;
  std::unique_ptr<PeerListener> listener_;
  std::shared_ptr<TlsContext> tls_;  // of those who dial
};

TEST_F(CrowdTest, AllAreTaken) {
  listener_->SetRendezvous([](PeerListener::Arrival arrival) {
    arrival.messages.Queue(collective::PeerHelloReply());
    EXPECT_TRUE(*arrival.messages.Flush());
  });
  const GroupMember member{{Role::kWorker, 0}, listener_->address()};
  collective::PeerHello hello = MakeHello({.members = {member, member}, .rank = 1});
  hello.set_is_to_rendezvous(true);
  const Interrupt never;
  std::barrier all_are_there(kRanks);
  std::vector<std::jthread> ranks;
  for (int i = 0; i < kRanks; ++i) {
    ranks.emplace_back([&] {
      all_are_there.arrive_and_wait();
      const absl::Status status = Dial(member, hello, tls_.get(), Now() + seconds(60), never).status();
      EXPECT_TRUE(status.ok()) << status;
    });
  }
}

// A greeting of TLS takes two turns.
TEST_F(CrowdTest, WhoHasBegunToGreetMakesNoRoomForOthers) {
  const std::string& address = listener_->address();
  const auto port = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  std::vector<std::unique_ptr<PeerStream>> ranks;
  std::vector<pollfd> fds;
  const TimePoint start = Now();
  for (int i = 0; i < kMoreThanFit; ++i) {
    UniqueFd fd = BeginConnect("127.0.0.1", port);
    fds.push_back({.fd = fd.get(), .events = POLLOUT, .revents = 0});
    ASSERT_EQ(::poll(&fds.back(), 1, 20'000), 1);
    fds.back().events = POLLIN;
    ranks.push_back(*OpenPeerStream(std::move(fd), tls_.get(), StreamEnd::kDialed));
    ASSERT_TRUE(ranks.back()->Greet().ok());
  }
  // Until nobody more hears anything.
  for (int heard = 0, before = -1; heard != before;) {
    (void)::poll(nullptr, 0, 100);
    before = std::exchange(heard, ::poll(fds.data(), fds.size(), 0));
  }
  const auto hung_up = std::ranges::count_if(ranks, [](const auto& rank) {
    std::byte byte[1];
    return !rank->Receive(byte).ok();
  });
  if (Now() - start > seconds(2)) GTEST_SKIP() << "who is silent for so long does make room";
  EXPECT_EQ(hung_up, 0);
}

// Where the port is one of those that the kernel gives to clients.
TEST(DialTest, WhoIsConnectedToItselfIsConnectedToNobody) {
  std::jthread([] {
    if (const absl::Status entered = EnterOwnNetwork(); !entered.ok()) GTEST_SKIP() << entered;
    std::ofstream("/proc/sys/net/ipv4/ip_local_port_range") << "40000 40001";
    const GroupMember nobody{{Role::kWorker, 0}, "127.0.0.1:40000"};
    const GroupIdentity own{.members = {nobody, nobody}, .rank = 1};
    const Interrupt never;
    const absl::Status status = Dial(nobody, MakeHello(own), nullptr, Now() + seconds(1), never).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("cannot be reached: nobody listens there"));
    // And whoever is to listen there finds the port free.
    const absl::Status listens = ListenTcp(nobody.address).status();
    EXPECT_TRUE(listens.ok()) << listens;
  }).join();
}

}  // namespace
}  // namespace muster
