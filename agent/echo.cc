#include "agent/echo.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "agent/ports.h"
#include "base/file.h"
#include "base/random.h"

namespace muster {
namespace {

constexpr int kUncounted = 20;  // while the first packets find their way and processors wake up

// What is ready of `fd` (0) and `stop_fd` (1).
absl::StatusOr<int> Await(int fd, int stop_fd, short events, TimePoint deadline) {
  pollfd fds[] = {{.fd = fd, .events = events, .revents = 0},
                  {.fd = stop_fd, .events = POLLIN, .revents = 0}};
  while (true) {
    const int ready = ::poll(fds, 2, MillisecondsUntil(deadline));
    if (ready < 0 && errno != EINTR) return ErrnoError(errno, "poll");
    if (fds[1].revents != 0) return 1;
    if (fds[0].revents != 0) return 0;
    if (Now() >= deadline) return DeadlineExceeded("nothing came in time");
  }
}

void SendAtOnce(int fd) {
  const int yes = 1;
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

// With the port that it listens on.
absl::StatusOr<UniqueFd> Listen(const std::string& address, uint32_t* port) {
  constexpr uint32_t kPorts = kLastLeasedPort - kFirstLeasedPort + 1;
  const auto start = static_cast<uint32_t>(RandomStream(RandomSeed()).NextBelow(kPorts));
  for (uint32_t i = 0; i < kPorts; ++i) {
    *port = kFirstLeasedPort + (start + i) % kPorts;
    MUSTER_ASSIGN_OR_RETURN(const bool free, PortIsFree(address, *port));
    if (!free) continue;
    MUSTER_ASSIGN_OR_RETURN(const SocketAddress at, ParseSocketAddress(address, *port));
    UniqueFd fd(::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd.valid()) return ErrnoError(errno, "socket");
    if (::bind(fd.get(), at.get(), at.size) == 0 && ::listen(fd.get(), 1) == 0) return fd;
  }
  return Unavailable("no free port on %s", address);
}

}  // namespace

absl::Status RunEcho(const std::string& address, const std::function<absl::Status(uint32_t port)>& listening,
                     int stop_fd, TimePoint deadline) {
  uint32_t port = 0;
  MUSTER_ASSIGN_OR_RETURN(const UniqueFd listener, Listen(address, &port));
  MUSTER_RETURN_IF_ERROR(listening(port));
  MUSTER_ASSIGN_OR_RETURN(const int ready, Await(listener.get(), stop_fd, POLLIN, deadline));
  if (ready == 1) return Cancelled("stopped");
  const UniqueFd peer(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!peer.valid()) return ErrnoError(errno, "accept");
  SendAtOnce(peer.get());
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const int which, Await(peer.get(), stop_fd, POLLIN, deadline));
    if (which == 1) return Cancelled("stopped");
    char bytes[64];
    const ssize_t count = ::recv(peer.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (count <= 0) return absl::OkStatus();
    // A byte at a time always fits; of who sends more than it reads nothing is kept.
    if (::send(peer.get(), bytes, static_cast<size_t>(count), MSG_DONTWAIT | MSG_NOSIGNAL) != count) {
      return absl::OkStatus();
    }
  }
}

absl::StatusOr<double> MeasureRoundTrip(const std::string& address, uint32_t port, int count,
                                        TimePoint deadline) {
  MUSTER_ASSIGN_OR_RETURN(const SocketAddress at, ParseSocketAddress(address, port));
  const std::string name = absl::StrFormat("%s port %d", address, port);
  UniqueFd fd(::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoError(errno, "socket");
  SendAtOnce(fd.get());
  int error = ::connect(fd.get(), at.get(), at.size) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    MUSTER_RETURN_IF_ERROR(Annotate(Await(fd.get(), -1, POLLOUT, deadline).status(), name));
    socklen_t size = sizeof error;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  }
  if (error != 0) return Unavailable("%s", std::string(ErrnoError(error, name).message()));
  std::vector<Duration> times;
  for (int i = 0; i < kUncounted + count; ++i) {
    char byte = 0;
    const TimePoint start = Now();
    if (::send(fd.get(), &byte, 1, MSG_NOSIGNAL) != 1) return Unavailable("%s hangs up", name);
    MUSTER_RETURN_IF_ERROR(Annotate(Await(fd.get(), -1, POLLIN, deadline).status(), name));
    if (::recv(fd.get(), &byte, 1, 0) != 1) return Unavailable("%s hangs up", name);
    if (i >= kUncounted) times.push_back(Now() - start);
  }
  const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return ToSeconds(*middle);
}

}  // namespace muster
