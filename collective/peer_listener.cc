#include "collective/peer_listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>

#include "base/logging.h"
#include "cluster/listening.h"

namespace muster {
namespace {

constexpr uint32_t kVersion = 4;
constexpr size_t kMaxPending = 256;
constexpr Duration kHelloTimeout = std::chrono::seconds(10);
// After which one that has not finished its greeting makes room for others.
constexpr Duration kSilence = std::chrono::seconds(2);
constexpr Duration kRedial = std::chrono::milliseconds(50);
constexpr Duration kLookEvery = std::chrono::milliseconds(100);  // at the address that is dialed
// The kernel would wait ever longer before it tries again.
constexpr Duration kDialTimeout = std::chrono::seconds(2);

using Addresses = std::shared_ptr<addrinfo>;

absl::StatusOr<Addresses> Resolve(const std::string& address) {
  const std::string host = HostOfAddress(address), port = address.substr(address.rfind(':') + 1);
  const addrinfo hints{.ai_flags = AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  if (error != 0) return Unavailable("%s: %s", address, ::gai_strerror(error));
  return Addresses(list, ::freeaddrinfo);
}

// What names have been resolved to, for as long as the one who is dialed answers there. A resolver whose
// first server is dead takes longer each time than a meeting lasts, and ranks would look each other up for
// ever. Any thread.
class Names {
 public:
  absl::StatusOr<Addresses> Resolve(const std::string& address) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto known = known_.find(address); known != known_.end()) return known->second;
    }
    MUSTER_ASSIGN_OR_RETURN(Addresses found, muster::Resolve(address));
    const std::lock_guard lock(mutex_);
    return known_[address] = std::move(found);
  }
  void Forget(const std::string& address) {
    const std::lock_guard lock(mutex_);
    known_.erase(address);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Addresses> known_;
};

Names& names() {
  static Names* const names = new Names;  // threads may dial until the process has ended
  return *names;
}

std::string WrongVersion(uint32_t theirs) {
  return absl::StrFormat("it speaks version %d of this protocol, the other rank %d: the same build?",
                         kVersion, theirs);
}

// The kernel may take for this end the very port that is dialed, if it is one that it gives to clients, and
// both ends of TCP may begin at once.
bool IsConnectedToItself(int fd) {
  sockaddr_storage own{}, peer{};
  socklen_t own_size = sizeof own, peer_size = sizeof peer;
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0 &&
         std::memcmp(&own, &peer, sizeof own) == 0;
}

// Else TCP would keep the port for a minute.
void FreePortOnClose(int fd) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  (void)::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

using Await = std::function<absl::Status(const PeerStream&, short events, TimePoint until)>;

// Unavailable: there is no connection to be had at this one of its addresses.
absl::StatusOr<std::unique_ptr<PeerStream>> ConnectTo(const addrinfo& to, const TlsContext* tls,
                                                      TimePoint deadline, const Await& await) {
  UniqueFd fd(::socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() && errno != EAFNOSUPPORT) {  // that is this rank's own fault
    const int error = errno;
    return ErrnoError(error, "a connection");
  }
  if (!fd.valid() || (::connect(fd.get(), to.ai_addr, to.ai_addrlen) != 0 && errno != EINPROGRESS)) {
    return Unavailable("%s", std::strerror(errno));
  }
  MUSTER_ASSIGN_OR_RETURN(auto stream, OpenPeerStream(std::move(fd), tls, StreamEnd::kDialed));
  const absl::Status connects = await(*stream, POLLOUT, std::min(deadline, Now() + kDialTimeout));
  if (absl::IsDeadlineExceeded(connects)) return Unavailable("%s", std::string(connects.message()));
  MUSTER_RETURN_IF_ERROR(connects);
  int error = 0;
  socklen_t size = sizeof error;
  (void)::getsockopt(stream->fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return Unavailable("%s", std::strerror(error));
  if (IsConnectedToItself(stream->fd())) {
    FreePortOnClose(stream->fd());
    return Unavailable("nobody listens there");
  }
  return stream;
}

// One attempt at each of the addresses, until there is a connection.
absl::StatusOr<std::unique_ptr<PeerStream>> DialAt(const GroupMember& member, const std::string& address,
                                                   const addrinfo* next, const collective::PeerHello& hello,
                                                   const TlsContext* tls, TimePoint deadline,
                                                   const Interrupt& interrupt) {
  const auto await = [&](const PeerStream& on, short events, TimePoint until) {
    while (true) {
      const absl::Status status = AwaitStream(on, events, std::min(until, Now() + kLookEvery), interrupt);
      if (!absl::IsDeadlineExceeded(status) || Now() >= until) return status;
      if (member.Address() != address) return Unavailable("it has another address now");
    }
  };
  absl::StatusOr<std::unique_ptr<PeerStream>> connection = Unavailable("it has no addresses");
  int left = 0;
  for (const addrinfo* entry = next; entry != nullptr; entry = entry->ai_next) ++left;
  for (; next != nullptr && absl::IsUnavailable(connection.status()); next = next->ai_next) {
    // One that swallows packets leaves the later ones their share of the time.
    connection = ConnectTo(*next, tls, Now() + (deadline - Now()) / left--, await);
  }
  MUSTER_ASSIGN_OR_RETURN(auto stream, std::move(connection));
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool has_greeted, stream->Greet());
    if (has_greeted) break;
    MUSTER_RETURN_IF_ERROR(await(*stream, stream->events_to_receive(), deadline));
  }
  MUSTER_RETURN_IF_ERROR(stream->CheckPeerName(TlsName(member.task)));
  MessageStream messages(std::move(stream));
  MUSTER_RETURN_IF_ERROR(messages.Send(hello, deadline, interrupt));
  collective::PeerHelloReply reply;
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool is_whole, messages.Receive(reply));
    if (is_whole) break;
    MUSTER_RETURN_IF_ERROR(await(messages.stream(), messages.stream().events_to_receive(), deadline));
  }
  if (!reply.refusal().empty()) return FailedPrecondition("%s", reply.refusal());
  return messages.Release();
}

absl::StatusOr<std::unique_ptr<PeerStream>> DialOnce(const GroupMember& member,
                                                     const collective::PeerHello& hello,
                                                     const TlsContext* tls, TimePoint deadline,
                                                     const Interrupt& interrupt) {
  const std::string address = member.Address();
  if (address.empty()) return Unavailable("the cluster is without it");
  const TimePoint asked = Now();
  MUSTER_ASSIGN_OR_RETURN(const Addresses list, names().Resolve(address));
  // The time that a name takes is not taken from whoever has it: the next attempt would go the same way.
  auto stream = DialAt(member, address, list.get(), hello, tls, deadline + (Now() - asked), interrupt);
  if (!stream.ok() && !absl::IsCancelled(stream.status())) names().Forget(address);
  return stream;
}

}  // namespace

std::string Describe(const GroupMember& member) {
  const std::string address = member.Address();
  return TaskName(member.task) + (address.empty() ? "" : " (" + address + ")");
}

collective::PeerHello MakeHello(const GroupIdentity& ours) {
  collective::PeerHello hello;
  hello.set_version(kVersion);
  hello.set_generation(ours.generation);
  hello.set_rank(static_cast<uint32_t>(ours.rank));
  hello.set_size(static_cast<uint32_t>(ours.members.size()));
  hello.set_fingerprint(ours.fingerprint);
  return hello;
}

std::string Refusal(const GroupIdentity& ours, const collective::PeerHello& theirs) {
  if (theirs.size() != ours.members.size()) {
    return absl::StrFormat("it is one of %d ranks, the other rank one of %d", ours.members.size(),
                           theirs.size());
  }
  return FingerprintRefusal(ours, theirs);
}

std::string FingerprintRefusal(const GroupIdentity& ours, const collective::PeerHello& theirs) {
  if (theirs.fingerprint() != ours.fingerprint) {
    return absl::StrFormat(
        "what it computes has the hash %016x, that of the other rank %016x: the same program, model and "
        "flags?",
        ours.fingerprint, theirs.fingerprint());
  }
  return "";
}

absl::StatusOr<std::unique_ptr<PeerListener>> PeerListener::Listen(const std::string& address,
                                                                   std::shared_ptr<TlsContext> tls) {
  MUSTER_ASSIGN_OR_RETURN(UniqueFd fd, ListenTcp(address));
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    const int error = errno;
    return ErrnoError(error, "listening at " + address);
  }
  const uint16_t port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                          : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  std::string with_port = absl::StrFormat("%s:%d", address.substr(0, address.rfind(':')), port);
  return std::unique_ptr<PeerListener>(new PeerListener(std::move(fd), std::move(with_port), std::move(tls)));
}

PeerListener::PeerListener(UniqueFd socket, std::string address, std::shared_ptr<TlsContext> tls)
    : address_(std::move(address)), tls_(std::move(tls)) {
  new_sockets_.push_back(std::move(socket));
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

PeerListener::~PeerListener() {
  thread_.request_stop();
  wake_.Set();
}

absl::Status PeerListener::ListenAlso(const std::string& address) {
  MUSTER_ASSIGN_OR_RETURN(UniqueFd socket, ListenTcp(address));
  const std::lock_guard lock(mutex_);
  new_sockets_.push_back(std::move(socket));
  wake_.Set();
  return absl::OkStatus();
}

void PeerListener::TakeSockets() {
  wake_.Clear();
  const std::lock_guard lock(mutex_);
  for (UniqueFd& socket : new_sockets_) sockets_.push_back(std::move(socket));
  new_sockets_.clear();
}

void PeerListener::Run(const std::stop_token& stop) {
  while (true) {
    TakeSockets();  // clears wake_, which a stop sets too: so it is asked for after that
    if (stop.stop_requested()) return;
    // Then nobody is taken: the kernel keeps them, while those who greet come to an end. Who is silent makes
    // room: a rank is not.
    const bool is_full = pending_.size() >= kMaxPending;
    const auto end = [&](const Pending& pending) {
      return is_full ? std::min(pending.deadline, pending.heard + kSilence) : pending.deadline;
    };
    std::vector<pollfd> fds = {{.fd = wake_.fd(), .events = POLLIN, .revents = 0}};
    TimePoint wake = Now() + std::chrono::hours(1);
    for (Pending& pending : pending_) {
      const PeerStream& stream = pending.messages.stream();
      fds.push_back({.fd = stream.fd(), .events = stream.events_to_receive(), .revents = 0});
      wake = std::min(wake, end(pending));
    }
    for (const UniqueFd& socket : sockets_) {
      if (!is_full) fds.push_back({.fd = socket.get(), .events = POLLIN, .revents = 0});
    }
    (void)::poll(fds.data(), fds.size(), pending_.empty() ? -1 : MillisecondsUntil(wake));
    auto polled = fds.begin() + 1;
    std::erase_if(pending_, [&](Pending& pending) {
      if ((polled++)->revents == 0) return Now() >= end(pending);
      pending.heard = Now();
      return !GoOn(pending) || Now() >= pending.deadline;
    });
    for (const UniqueFd& socket : sockets_) AcceptPending(socket);
  }
}

void PeerListener::AcceptPending(const UniqueFd& socket) {
  while (pending_.size() < kMaxPending) {
    UniqueFd fd = AcceptNext(socket.get());
    if (!fd.valid()) return;
    const TimePoint now = Now();
    auto stream = OpenPeerStream(std::move(fd), tls_.get(), StreamEnd::kAccepted);
    if (stream.ok()) {
      pending_.push_back(
          {.messages = MessageStream(*std::move(stream)), .deadline = now + kHelloTimeout, .heard = now});
    }
  }
}

// False: it is pending no more.
bool PeerListener::GoOn(Pending& pending) {
  if (!pending.has_greeted) {
    const absl::StatusOr<bool> has_greeted = pending.messages.stream().Greet();
    if (!has_greeted.ok()) return false;
    if (!*has_greeted) return true;
    pending.has_greeted = true;
  }
  collective::PeerHello hello;
  const absl::StatusOr<bool> is_whole = pending.messages.Receive(hello);
  if (!is_whole.ok()) return false;
  if (*is_whole) Arrive(pending, std::move(hello));
  return !*is_whole;
}

void PeerListener::Arrive(Pending& pending, collective::PeerHello hello) {
  if (hello.version() != kVersion) {
    collective::PeerHelloReply reply;
    reply.set_refusal(WrongVersion(hello.version()));
    pending.messages.Queue(reply);
    (void)pending.messages.Flush();
    return;
  }
  const std::lock_guard lock(mutex_);
  Arrival arrival{std::move(hello), std::move(pending.messages)};
  if (arrival.hello.is_to_rendezvous()) {
    if (to_rendezvous_) to_rendezvous_(std::move(arrival));
    return;
  }
  std::erase_if(arrivals_, [&](const Arrival& other) { return other.hello.rank() == arrival.hello.rank(); });
  // Who makes room for it may be a rank, and dials again.
  if (arrivals_.size() >= kMaxPending) arrivals_.pop_front();
  arrivals_.push_back(std::move(arrival));
  has_arrived_.notify_all();
}

void PeerListener::SetRendezvous(std::function<void(Arrival)> to_rendezvous) {
  const std::lock_guard lock(mutex_);
  to_rendezvous_ = std::move(to_rendezvous);
}

absl::StatusOr<std::unique_ptr<PeerStream>> PeerListener::Accept(const GroupIdentity& ours, int rank,
                                                                 TimePoint deadline,
                                                                 const Interrupt& interrupt) {
  constexpr Duration kLook = std::chrono::milliseconds(20);  // at `interrupt`
  const GroupMember& member = ours.members[rank];
  std::unique_lock lock(mutex_);
  while (true) {
    const auto found = std::ranges::find(arrivals_, static_cast<uint32_t>(rank),
                                         [](const Arrival& arrival) { return arrival.hello.rank(); });
    if (found == arrivals_.end() || found->hello.generation() > ours.generation) {
      if (interrupt.is_set()) return Cancelled("the group was given up");
      if (Now() >= deadline) return DeadlineExceeded("%s has not connected", Describe(member));
      has_arrived_.wait_until(lock, std::min(deadline, Now() + kLook));
      continue;
    }
    Arrival arrival = std::move(*found);
    arrivals_.erase(found);
    if (arrival.hello.generation() < ours.generation) continue;  // of a group that is over
    lock.unlock();
    collective::PeerHelloReply reply;
    reply.set_refusal(Refusal(ours, arrival.hello));
    absl::Status status = arrival.messages.stream().CheckPeerName(TlsName(member.task));
    if (status.ok()) status = arrival.messages.Send(reply, deadline, interrupt);
    if (!status.ok()) {  // it dials again, unless it is somebody else
      spdlog::warn("who connected as {} is hung up on: {}", TaskName(member.task),
                   std::string(status.message()));
      lock.lock();
      continue;
    }
    if (reply.refusal().empty()) return arrival.messages.Release();
    return FailedPrecondition("refused %s: this rank says of itself that %s", Describe(member),
                              reply.refusal());
  }
}

absl::StatusOr<std::unique_ptr<PeerStream>> Dial(const GroupMember& member,
                                                 const collective::PeerHello& hello, const TlsContext* tls,
                                                 TimePoint deadline, const Interrupt& interrupt) {
  while (true) {
    auto stream = DialOnce(member, hello, tls, deadline, interrupt);
    if (stream.ok()) return stream;
    const absl::Status& status = stream.status();
    // Whoever listens there may be about to move away, or the member be there no more.
    const bool may_change = member.where && absl::IsPermissionDenied(status);
    if (absl::IsFailedPrecondition(status)) {
      return FailedPrecondition("refused by %s: %s", Describe(member), std::string(status.message()));
    }
    if (!absl::IsUnavailable(status) && !may_change) return Annotate(status, Describe(member));
    if (Now() >= deadline) {
      return Unavailable("%s cannot be reached: %s", Describe(member), std::string(status.message()));
    }
    const TimePoint again = std::min(deadline, Now() + kRedial);
    pollfd fd{.fd = interrupt.fd(), .events = POLLIN, .revents = 0};
    (void)::poll(&fd, 1, MillisecondsUntil(again));
    if (interrupt.is_set()) return Cancelled("the group was given up");
  }
}

}  // namespace muster
