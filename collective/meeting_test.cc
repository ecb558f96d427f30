// How ranks find each other, and who is refused.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <future>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "base/certificates.h"
#include "base/local_socket.h"
#include "base/logging.h"
#include "collective/local_group.h"
#include "collective/message_stream.h"
#include "collective/native.h"
#include "collective/peer_links.h"
#include "collective/rendezvous_server.h"
#include "tests/support/fault_hosts.h"
#include "tests/support/forbidden_calls.h"
#include "tests/support/free_port.h"

namespace muster {
namespace {

// Takes the time that slow.test needs to be looked up, which is 127.0.0.1.
std::function<void()> slow_lookup;

}  // namespace
}  // namespace muster

// In front of the C library's.
extern "C" int getaddrinfo(const char* host, const char* port, const addrinfo* hints, addrinfo** found) {
  static auto* const next = reinterpret_cast<decltype(&::getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (host == nullptr || std::string(host) != "slow.test") return next(host, port, hints, found);
  muster::slow_lookup();
  return next("127.0.0.1", port, hints, found);
}

namespace muster {
namespace {

using testing::HasSubstr;

// Made before there are threads: the library is not instrumented, so that ThreadSanitizer does not see that
// who comes second finds the logger whole.
[[maybe_unused]] const auto* const kLogger = spdlog::default_logger_raw();

class MeetingTest : public testing::Test {
 protected:
  struct Rank {
    std::unique_ptr<PeerListener> listener;
    GroupIdentity identity;
  };

  MeetingTest() : ranks_(2), authority_(*MakeAuthority("test")) { Listen(); }

  void Listen(bool with_tls = false) {
    const int count = static_cast<int>(ranks_.size());
    std::vector<GroupMember> members;
    for (int rank = 0; rank < count; ++rank) {
      ranks_[rank].listener = *PeerListener::Listen("127.0.0.1:0", with_tls ? Tls(rank) : nullptr);
      members.push_back({{Role::kWorker, rank}, ranks_[rank].listener->address()});
    }
    for (int rank = 0; rank < count; ++rank) {
      ranks_[rank].identity = {.members = members, .rank = rank, .generation = 1, .fingerprint = 0xab};
    }
  }

  std::shared_ptr<TlsContext> Tls(int rank) {
    const auto certificate = IssueCertificate(authority_, TlsName({Role::kWorker, rank}));
    return *TlsContext::Create(
        {authority_.certificate_pem, certificate->certificate_pem, certificate->key_pem});
  }

  absl::Status Meet(int rank, Duration timeout = std::chrono::seconds(20)) {
    Interrupt interrupt;
    return Meet(rank, timeout, interrupt);
  }
  absl::Status Meet(int rank, Duration timeout, Interrupt& interrupt) {
    return MakeNative({.identity = ranks_[rank].identity, .connect_timeout = timeout}, *ranks_[rank].listener,
                      interrupt)
        .status();
  }

  std::vector<absl::Status> MeetBoth(Duration timeout = std::chrono::seconds(20)) {
    auto other = std::async(std::launch::async, [&] { return Meet(1, timeout); });
    std::vector<absl::Status> both = {Meet(0, timeout)};
    both.push_back(other.get());
    return both;
  }

  std::vector<Rank> ranks_;
  const Certificate authority_;
};

// The two ends of a TCP connection.
std::pair<UniqueFd, UniqueFd> Connected() {
  const UniqueFd listening(::socket(AF_INET, SOCK_STREAM, 0));
  UniqueFd dialed(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{.sin_family = AF_INET};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const to = reinterpret_cast<sockaddr*>(&address);
  MUSTER_CHECK(::bind(listening.get(), to, size) == 0 && ::listen(listening.get(), 1) == 0);
  MUSTER_CHECK(::getsockname(listening.get(), to, &size) == 0);
  MUSTER_CHECK(::connect(dialed.get(), to, size) == 0);
  return {std::move(dialed), UniqueFd(::accept(listening.get(), nullptr, nullptr))};
}

TEST(PeerStreamTest, WhoDiesHasHungUpWhateverItHadRead) {
  for (const bool has_unread : {false, true}) {
    auto [own, other] = Connected();
    if (has_unread) {
      ASSERT_EQ(::send(own.get(), "xyz", 3, 0), 3);
      char byte = 0;  // that it has come
      ASSERT_EQ(::recv(other.get(), &byte, 1, MSG_PEEK), 1);
    }
    const auto stream = OpenPeerStream(std::move(own), nullptr, StreamEnd::kDialed);
    ASSERT_TRUE(stream.ok()) << stream.status();
    other = UniqueFd();
    Interrupt never;
    std::byte room[1];
    absl::StatusOr<size_t> got = (*stream)->Receive(room);
    while (got.ok() && AwaitStream(**stream, POLLIN, Now() + std::chrono::seconds(20), never).ok()) {
      got = (*stream)->Receive(room);
    }
    EXPECT_TRUE(absl::IsUnavailable(got.status())) << got.status();
    EXPECT_EQ(std::string(got.status().message()), "it hung up") << has_unread;
  }
}

// Linux asks a full window ever more rarely, at last every two minutes.
TEST(PeerStreamTest, WhoHasNoRoomForSoLongIsNotSilent) {
  auto [dialed, accepted] = Connected();
  const int fd = dialed.get();
  const auto stream = OpenPeerStream(std::move(dialed), nullptr, StreamEnd::kDialed);
  ASSERT_TRUE(stream.ok()) << stream.status();
  const std::vector<std::byte> bytes(1 << 20);
  const auto info = [&] {
    tcp_info known{};
    socklen_t size = sizeof known;
    EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &known, &size), 0);
    return known;
  };
  // The kernel's patience, not this test's: after six seconds it asks every six.
  const TimePoint deadline = Now() + std::chrono::seconds(60);
  while (info().tcpi_last_ack_recv < 3500 && Now() < deadline) {
    const auto sent = (*stream)->Send(bytes);
    ASSERT_TRUE(sent.ok()) << sent.status();
    EXPECT_LT(SilenceOf(**stream), std::chrono::seconds(3));
    (void)::poll(nullptr, 0, 20);
  }
  ASSERT_GE(info().tcpi_last_ack_recv, 3500u);
  EXPECT_EQ(SilenceOf(**stream), Duration::zero());
}

TEST_F(MeetingTest, AnotherConfigurationIsRefusedWithBothHashes) {
  ranks_[1].identity.fingerprint = 0xcd;
  for (const absl::Status& status : MeetBoth()) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("00000000000000ab"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("00000000000000cd"));
  }
}

TEST_F(MeetingTest, AnotherNumberOfRanksIsRefused) {
  ranks_[1].identity.members.push_back({{Role::kWorker, 2}, "127.0.0.1:1"});
  for (const absl::Status& status : MeetBoth()) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("one of 2 ranks, the other rank one of 3"));
  }
}

TEST_F(MeetingTest, TheRendezvousRefusesARankThatTheJobDoesNotHave) {
  const auto ask = [&](const GroupIdentity& identity) {
    const Interrupt interrupt;
    collective::PeerHello hello = MakeHello(identity);
    hello.set_is_to_rendezvous(true);
    return Dial(ranks_[0].identity.members[0], hello, nullptr, Now() + std::chrono::seconds(20), interrupt)
        .status();
  };
  const RendezvousServer server(ranks_[0].identity, {}, *ranks_[0].listener);
  GroupIdentity third = ranks_[1].identity;
  third.rank = 2;
  const absl::Status nonsense = ask(third);
  EXPECT_TRUE(absl::IsFailedPrecondition(nonsense)) << nonsense;
  EXPECT_THAT(std::string(nonsense.message()), HasSubstr("there is no rank 2 of 2"));
  third.members.push_back({{Role::kWorker, 2}, "127.0.0.1:1"});
  const absl::Status refused = ask(third);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("one of 2 ranks, the other rank one of 3"));
  third.generation = 0;
  const absl::Status older = ask(third);
  EXPECT_TRUE(absl::IsFailedPrecondition(older)) << older;
  EXPECT_THAT(std::string(older.message()), HasSubstr("of generation 1 of the cluster, the other rank of 0"));
}

TEST_F(MeetingTest, WhoDoesNotComeIsNamed) {
  const std::string name = Describe(ranks_[0].identity.members[1]);
  const absl::Status accepts = Meet(0, std::chrono::milliseconds(100));
  EXPECT_TRUE(absl::IsDeadlineExceeded(accepts)) << accepts;
  EXPECT_THAT(std::string(accepts.message()), HasSubstr(name));
  ranks_[0].listener = nullptr;
  const absl::Status dials = Meet(1, std::chrono::milliseconds(100));
  EXPECT_TRUE(absl::IsUnavailable(dials)) << dials;
  EXPECT_THAT(std::string(dials.message()), HasSubstr("worker:0"));
}

// Who is said not to be reached is left out of the next group.
TEST_F(MeetingTest, WhoHasNoDescriptorsLeftSaysSoAndBlamesNobody) {
  auto meets = std::async(std::launch::async, [&]() -> absl::Status {
    MUSTER_RETURN_IF_ERROR(ForbidSockets());
    return Meet(1, std::chrono::milliseconds(100));
  });
  const absl::Status status = meets.get();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(UnreachablePosition(status), std::nullopt);
}

TEST_F(MeetingTest, AnOldGenerationIsNotMistakenForTheNewOne) {
  // The older one of rank 1 waits there, and its connection is not taken.
  std::jthread old([&, identity = ranks_[1].identity]() {
    Interrupt interrupt;
    (void)MakeNative({.identity = identity, .connect_timeout = std::chrono::milliseconds(300)},
                     *ranks_[1].listener, interrupt);
  });
  ranks_[0].identity.generation = ranks_[1].identity.generation = 2;
  old.join();
  for (const absl::Status& status : MeetBoth()) EXPECT_EQ(status, absl::OkStatus());
}

TEST_F(MeetingTest, RanksOfAHostThatDoNotFindEachOtherThereUseTcp) {
  ranks_.resize(4);  // with four, ranks that are not beside each other in a ring meet afterwards
  Listen();
  std::vector<std::future<absl::Status>> all;
  for (int rank = 0; rank < 4; ++rank) {
    all.push_back(std::async(std::launch::async, [&, rank] {
      if (rank == 3) MUSTER_RETURN_IF_ERROR(ForbidLocalConnections());
      return Meet(rank, std::chrono::seconds(2));  // less than the others wait for it in vain
    }));
  }
  for (auto& met : all) EXPECT_EQ(met.get(), absl::OkStatus());
}

LocalGroupOptions OfTwo(int index) { return {.index = index, .names = {"worker:0", "worker:1"}}; }

TEST(LocalGroupTest, ALeaderThatFailsIsNotWaitedFor) {
  LocalMeetingPlace place = *MakeLocalMeetingPlace();
  const std::string secret = place.secret;
  Interrupt never;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 64 << 10, .rlim_max = before.rlim_max};
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto led = LocalGroup::Lead(OfTwo(0), std::move(place), Now() + std::chrono::seconds(5), never);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(led.ok());
  const auto followed = LocalGroup::Follow(OfTwo(1), secret, Now() + std::chrono::seconds(5), never);
  EXPECT_TRUE(absl::IsUnavailable(followed.status())) << followed.status();
}

TEST(LocalGroupTest, ALeaderThatCannotTakeAConnectionFails) {
  LocalMeetingPlace place = *MakeLocalMeetingPlace();
  const UniqueFd follower = *ConnectLocal("muster-group-" + place.secret);
  Interrupt interrupt;
  auto leads = std::async(std::launch::async, [&]() -> absl::Status {
    MUSTER_RETURN_IF_ERROR(ForbidToAccept());
    return LocalGroup::Lead(OfTwo(0), std::move(place), Now() + std::chrono::seconds(20), interrupt).status();
  });
  (void)leads.wait_for(std::chrono::seconds(5));
  interrupt.Set();
  const absl::Status status = leads.get();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST(LocalGroupTest, ALeaderTakesNobodyAfterItsDeadline) {
  LocalMeetingPlace place = *MakeLocalMeetingPlace();
  const UniqueFd follower = *ConnectLocal("muster-group-" + place.secret);
  const uint32_t index = 1;
  ASSERT_EQ(SendLocal(follower, {reinterpret_cast<const char*>(&index), sizeof index}), 0);
  Interrupt never;
  const auto led = LocalGroup::Lead(OfTwo(0), std::move(place), Now(), never);
  EXPECT_TRUE(absl::IsDeadlineExceeded(led.status())) << led.status();
}

TEST_F(MeetingTest, AnInterruptEndsTheMeeting) {
  Interrupt interrupt;
  std::jthread interrupts([&] { interrupt.Set(); });
  EXPECT_TRUE(absl::IsCancelled(Meet(0, std::chrono::seconds(20), interrupt)));
}

// Also where it is on its way to one that swallows connections, or does not answer them.
TEST_F(MeetingTest, AnInterruptEndsTheMeetingOfWhoDials) {
  const BlackHole nowhere;
  const SilentHost silent;
  for (const uint16_t port : {nowhere.port(), silent.port()}) {
    Interrupt interrupt;
    std::latch is_dialing(1);
    std::atomic<bool> has_asked = false;
    ranks_[1].identity.members[0].where = [&] {
      if (!has_asked.exchange(true)) is_dialing.count_down();
      return "127.0.0.1:" + std::to_string(port);
    };
    std::jthread interrupts([&] {
      is_dialing.wait();
      interrupt.Set();
    });
    const absl::Status status = Meet(1, std::chrono::seconds(60), interrupt);
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
  }
}

TEST_F(MeetingTest, ANameThatTakesLongerThanAMeetingIsLookedUpOnce) {
  constexpr Duration kMeeting = std::chrono::seconds(2);
  const GroupIdentity& theirs = ranks_[0].identity;
  const std::string address = theirs.members[0].address;
  const GroupMember member{{Role::kWorker, 0}, "slow.test" + address.substr(address.rfind(':'))};
  Interrupt never;
  int lookups = 0;
  slow_lookup = [&] {
    if (++lookups > 1) return;
    for (const TimePoint end = Now() + kMeeting; Now() < end;)
      (void)::poll(nullptr, 0, MillisecondsUntil(end));
  };
  for (int times = 0; times < 2; ++times) {
    auto accepts = std::async(std::launch::async, [&] {
      return ranks_[0].listener->Accept(theirs, 1, Now() + std::chrono::seconds(60), never).status();
    });
    const auto dialed = Dial(member, MakeHello(ranks_[1].identity), nullptr, Now() + kMeeting, never);
    EXPECT_TRUE(dialed.ok()) << dialed.status();
    EXPECT_EQ(accepts.get(), absl::OkStatus());
    EXPECT_EQ(lookups, 1);
  }
  // Whoever does not answer there may have another address.
  ranks_[0].listener = nullptr;
  for (int times = 2; times < 4; ++times) {
    EXPECT_FALSE(Dial(member, MakeHello(ranks_[1].identity), nullptr, Now(), never).ok());
  }
  EXPECT_EQ(lookups, 2);
}

TEST_F(MeetingTest, AnInterruptIsHeardOnceANameHasBeenLookedUp) {
  const std::string address = ranks_[0].identity.members[0].address;
  ranks_[1].identity.members[0].address = "slow.test" + address.substr(address.rfind(':'));
  Interrupt interrupt;
  slow_lookup = [&] { interrupt.Set(); };
  const absl::Status status = Meet(1, std::chrono::seconds(60), interrupt);
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST_F(MeetingTest, AnotherTasksCertificateIsNotTaken) {
  Listen(/*with_tls=*/true);
  EXPECT_EQ(MeetBoth(), std::vector<absl::Status>(2));
  // Rank 1 with the certificate of worker 5.
  ranks_[1].listener = *PeerListener::Listen("127.0.0.1:0", Tls(5));
  for (Rank& rank : ranks_) rank.identity.members[1].address = ranks_[1].listener->address();
  const std::vector<absl::Status> both = MeetBoth(std::chrono::milliseconds(500));
  EXPECT_TRUE(absl::IsDeadlineExceeded(both[0])) << both[0];
  EXPECT_FALSE(both[1].ok());
  // And the one that dials looks, too.
  ranks_[0].listener = *PeerListener::Listen("127.0.0.1:0", Tls(5));
  ranks_[1].listener = *PeerListener::Listen("127.0.0.1:0", Tls(1));
  for (Rank& rank : ranks_) {
    rank.identity.members[0].address = ranks_[0].listener->address();
    rank.identity.members[1].address = ranks_[1].listener->address();
  }
  const absl::Status dials = MeetBoth(std::chrono::seconds(5))[1];  // within which it has to say so
  EXPECT_TRUE(absl::IsPermissionDenied(dials)) << dials;
  EXPECT_THAT(std::string(dials.message()), HasSubstr("worker-0"));
}

TEST_F(MeetingTest, ARankListensWhereItHasMovedToAndIsDialedThere) {
  Listen(/*with_tls=*/true);
  const std::string moved = FreeAddress("127.0.0.2");
  ASSERT_EQ(ranks_[0].listener->ListenAlso(moved), absl::OkStatus());
  // At first, where nobody answers; then, where another task has come to be; then, where it is.
  const BlackHole nowhere;
  const auto other = *PeerListener::Listen("127.0.0.1:0", Tls(5));
  std::atomic<int> asked = 0;
  ranks_[1].identity.members[0].where = [&] {
    const int times = ++asked;
    return times < 3 ? "127.0.0.1:" + std::to_string(nowhere.port()) : times < 6 ? other->address() : moved;
  };
  EXPECT_EQ(MeetBoth(), std::vector<absl::Status>(2));
}

// A connected socket, to the listener of rank 0.
UniqueFd ConnectTo(const std::string& address) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{.sin_family = AF_INET,
                 .sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)))),
                 .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  return fd;
}

void SendTo(const UniqueFd& fd, const std::string& bytes) {
  EXPECT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

TEST_F(MeetingTest, StrangersHoldUpNobody) {
  for (const bool with_tls : {false, true}) {
    Listen(with_tls);
    std::vector<UniqueFd> strangers;
    for (int i = 0; i < 600; ++i) {
      strangers.push_back(ConnectTo(ranks_[0].listener->address()));
      if (i % 2 == 0) SendTo(strangers.back(), "GET / HTTP/1.0\r\n\r\n");
    }
    // Before any of them has been silent for longer than anybody may.
    EXPECT_EQ(MeetBoth(std::chrono::seconds(8)), std::vector<absl::Status>(2));
  }
}

TEST_F(MeetingTest, InventedRanksHoldUpNobody) {
  std::vector<UniqueFd> strangers;
  for (uint32_t i = 0; i < 300; ++i) {
    collective::PeerHello hello = MakeHello(ranks_[1].identity);
    hello.set_rank(1000 + i);
    const std::string bytes = hello.SerializeAsString();
    strangers.push_back(ConnectTo(ranks_[0].listener->address()));
    SendTo(strangers.back(), std::string({static_cast<char>(bytes.size()), 0, 0, 0}) + bytes);
  }
  EXPECT_EQ(MeetBoth(std::chrono::seconds(5)), std::vector<absl::Status>(2));
}

TEST_F(MeetingTest, WhatIsNoHelloIsHungUpOn) {
  const std::string too_long("\x00\x10\x00\x00", 4), no_message("\x03\x00\x00\x00\xff\xff\xff", 7);
  for (const std::string& bytes : {too_long, no_message}) {
    const UniqueFd fd = ConnectTo(ranks_[0].listener->address());
    SendTo(fd, bytes);
    char room[64];
    EXPECT_LE(::recv(fd.get(), room, sizeof room, 0), 0);
  }
}

TEST_F(MeetingTest, AnotherVersionIsToldBothNumbers) {
  collective::PeerHello hello;
  hello.set_version(99);
  const std::string bytes = hello.SerializeAsString();
  const UniqueFd fd = ConnectTo(ranks_[0].listener->address());
  SendTo(fd, std::string({static_cast<char>(bytes.size()), 0, 0, 0}) + bytes);
  std::string answer;
  char room[512];
  for (ssize_t got; (got = ::recv(fd.get(), room, sizeof room, 0)) > 0;) answer.append(room, got);
  collective::PeerHelloReply reply;
  ASSERT_GT(answer.size(), 4u);
  ASSERT_TRUE(reply.ParseFromString(answer.substr(4)));
  EXPECT_THAT(reply.refusal(),
              HasSubstr(absl::StrFormat("version %d ", MakeHello(ranks_[0].identity).version())));
  EXPECT_THAT(reply.refusal(), HasSubstr("99"));
}

TEST_F(MeetingTest, WhoTalksNonsenseToTheRendezvousIsHungUpOn) {
  const RendezvousServer server(ranks_[0].identity, {}, *ranks_[0].listener);
  for (const uint32_t rank : {1u, 7u}) {
    collective::PeerHello hello = MakeHello(ranks_[1].identity);
    hello.set_is_to_rendezvous(true);
    hello.set_rank(rank);
    const std::string bytes = hello.SerializeAsString();
    const UniqueFd fd = ConnectTo(ranks_[0].listener->address());
    SendTo(fd, std::string({static_cast<char>(bytes.size()), 0, 0, 0}) + bytes + std::string({5, 0, 0, 0}) +
                   "what?");
    char room[512];
    ssize_t got = 0;
    do {
      got = ::recv(fd.get(), room, sizeof room, 0);
    } while (got > 0);
    EXPECT_TRUE(got == 0 || errno == ECONNRESET) << std::strerror(errno);
  }
}

TEST(TlsContext, WhatCannotBeUsedIsSaid) {
  const Certificate authority = *MakeAuthority("test");
  const Certificate own = *IssueCertificate(authority, "worker-0");
  const Certificate other = *IssueCertificate(authority, "worker-1");
  EXPECT_TRUE(TlsContext::Create({authority.certificate_pem, own.certificate_pem, own.key_pem}).ok());
  for (const TlsIdentity& bad :
       {TlsIdentity{"", own.certificate_pem, own.key_pem},
        TlsIdentity{authority.certificate_pem, "none", own.key_pem},
        TlsIdentity{authority.certificate_pem, own.certificate_pem, ""},
        TlsIdentity{authority.certificate_pem, own.certificate_pem, other.key_pem}}) {
    const absl::Status status = TlsContext::Create(bad).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--tls_dir"));
  }
}

}  // namespace
}  // namespace muster
