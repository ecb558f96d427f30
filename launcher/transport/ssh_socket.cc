#include "launcher/transport/ssh_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace muster {
namespace {

constexpr size_t kMaxAddresses = 8;  // of one name

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

struct Lookup {
  std::string address;
  std::string port;
  int flags = 0;
  int error = 0;
  int error_number = 0;
  std::vector<SocketAddress> addresses;
  std::atomic<bool> done = false;

  void Run() {
    const addrinfo hints{.ai_flags = flags | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    addrinfo* list = nullptr;
    error = ::getaddrinfo(address.c_str(), port.c_str(), &hints, &list);
    error_number = errno;
    for (const addrinfo* entry = list; entry != nullptr && addresses.size() < kMaxAddresses;
         entry = entry->ai_next) {
      SocketAddress& found = addresses.emplace_back();
      std::memcpy(&found.storage, entry->ai_addr, entry->ai_addrlen);
      found.length = entry->ai_addrlen;
    }
    if (list != nullptr) ::freeaddrinfo(list);
    done.store(true, std::memory_order_release);
  }
};

absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& address, uint16_t port,
                                                   const Limits& limits) {
  auto lookup = std::make_shared<Lookup>();
  lookup->address = address;
  lookup->port = std::to_string(port);
  lookup->flags = AI_NUMERICHOST;
  lookup->Run();
  if (lookup->error == 0) return lookup->addresses;
  lookup->flags = 0;
  lookup->done = false;

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoError(errno, "pipe2");
  UniqueFd done(ends[0]);
  // getaddrinfo cannot be interrupted and has timeouts of its own (resolv.conf), which may be longer than
  // ours. So it runs in a thread that owns all it touches and is left behind if it is late; it ends by those
  // timeouts. This is the one thread that nobody joins.
  try {
    std::thread([lookup, finished = UniqueFd(ends[1])]() mutable {
      lookup->Run();
      finished.reset();  // wakes the waiting side
    }).detach();
  } catch (const std::system_error&) {
    lookup->Run();  // this account may have no more threads: here then, however long it takes
  }
  MUSTER_RETURN_IF_ERROR(Annotate(WaitForFd(done.get(), POLLIN, limits), "look up " + address));
  MUSTER_CHECK(lookup->done.load(std::memory_order_acquire));
  if (lookup->error != 0) {
    const char* why =
        lookup->error == EAI_SYSTEM ? std::strerror(lookup->error_number) : ::gai_strerror(lookup->error);
    return Unavailable("look up %s: %s; correct the name, or give the address in the inventory", address,
                       why);
  }
  return lookup->addresses;
}

absl::Status ConnectOne(int fd, const SocketAddress& to, const Limits& limits) {
  int error = 0;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&to.storage), to.length) != 0) error = errno;
  if (error == EINPROGRESS) {
    MUSTER_RETURN_IF_ERROR(Annotate(WaitForFd(fd, POLLOUT, limits), "connect"));
    socklen_t size = sizeof error;
    ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error == ECONNREFUSED) {
    return Unavailable(
        "connect: refused: nothing listens there; start sshd on the host, or correct the port");
  }
  if (error != 0) {
    return Unavailable("connect: %s; check that the host is up and its address right", std::strerror(error));
  }
  return absl::OkStatus();
}

void SetOption(int fd, int level, int option, int value) {
  (void)::setsockopt(fd, level, option, &value, sizeof value);
}

void ConfigureSocket(int fd, Duration silence_limit) {
  const auto limit_ms = std::chrono::duration_cast<std::chrono::milliseconds>(silence_limit);
  const int probe_seconds = static_cast<int>(std::max<int64_t>(1, limit_ms.count() / 4000));
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // Keepalive probes notice a peer that has gone while we only listen, the user timeout one that has gone
  // while we send. It also is what bounds the probes.
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, probe_seconds);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, probe_seconds);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  SetSilenceLimit(fd, limit_ms);
}

absl::StatusOr<std::string> Literal(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST];
  if (const int error = ::getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
      error != 0)
    return Internal("an address: %s", ::gai_strerror(error));
  return std::string(text);
}

}  // namespace

absl::Status WaitForFd(int fd, short events, const Limits& limits) {
  pollfd fds[2] = {{.fd = fd, .events = events, .revents = 0},
                   {.fd = limits.cancel_fd, .events = POLLIN, .revents = 0}};
  for (;;) {
    const int ready = ::poll(fds, 2, MillisecondsUntil(limits.deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return ErrnoError(errno, "poll");
    if (ready == 0) return DeadlineExceeded("no answer before the deadline");
    if (fds[1].revents != 0) return Cancelled("interrupted");
    return absl::OkStatus();
  }
}

absl::Status SleepFor(Duration duration, const Limits& limits) {
  const absl::Status status = WaitForFd(
      -1, 0, {.deadline = std::min(limits.deadline, Now() + duration), .cancel_fd = limits.cancel_fd});
  return absl::IsDeadlineExceeded(status) ? absl::OkStatus() : status;
}

absl::StatusOr<std::string> LookUpAddress(const std::string& address, const Limits& limits) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses, Resolve(address, 0, limits));
  if (addresses.empty()) return Unavailable("look up %s: it has no addresses", address);
  return Literal(reinterpret_cast<const sockaddr*>(&addresses[0].storage), addresses[0].length);
}

std::string PeerAddress(int fd) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  auto* const address = reinterpret_cast<sockaddr*>(&peer);
  if (::getpeername(fd, address, &size) != 0) return "";
  return Literal(address, size).value_or("");
}

void SetSilenceLimit(int fd, std::chrono::milliseconds limit) {
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(limit.count()));
}

Duration SilenceOf(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return Duration::zero();
  return std::chrono::milliseconds(info.tcpi_last_ack_recv);
}

absl::StatusOr<UniqueFd> ConnectTcp(const std::string& address, uint16_t port, Duration silence_limit,
                                    const Limits& limits) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses, Resolve(address, port, limits));
  absl::Status last = Unavailable("look up %s: it has no addresses", address);
  for (size_t i = 0; i < addresses.size(); ++i) {
    // An address that swallows packets leaves the later ones their share of the time.
    const Duration share = (limits.deadline - Now()) / static_cast<int64_t>(addresses.size() - i);
    UniqueFd fd(::socket(addresses[i].storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd.valid()) {
      // This machine's fault, without IPv6, say, and no news of a host that was dialed before.
      if (i == 0) last = Unavailable("socket: %s", std::strerror(errno));
      continue;
    }
    last = ConnectOne(fd.get(), addresses[i], {.deadline = Now() + share, .cancel_fd = limits.cancel_fd});
    if (last.ok()) {
      ConfigureSocket(fd.get(), silence_limit);
      return fd;
    }
    if (absl::IsCancelled(last)) break;
  }
  return last;
}

}  // namespace muster
