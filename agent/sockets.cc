#include "agent/sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "agent/ports.h"
#include "base/random.h"

namespace muster {

absl::Status AwaitReady(int fd, short events, int stop_fd, TimePoint deadline) {
  pollfd fds[] = {{.fd = fd, .events = events, .revents = 0},
                  {.fd = stop_fd, .events = POLLIN, .revents = 0}};
  while (true) {
    const int ready = ::poll(fds, 2, MillisecondsUntil(deadline));
    if (ready < 0 && errno != EINTR) return ErrnoError(errno, "poll");
    if (ready > 0 && fds[1].revents != 0) return Cancelled("stopped");
    if (ready > 0) return absl::OkStatus();
    if (Now() >= deadline) return DeadlineExceeded("nothing came in time");
  }
}

void SendAtOnce(int fd) {
  const int yes = 1;
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

absl::StatusOr<Listener> ListenOnFreePort(const std::string& address, int backlog,
                                          const std::function<bool(uint32_t port)>& is_leased) {
  constexpr uint32_t kPorts = kLastLeasedPort - kFirstLeasedPort + 1;
  const auto start = static_cast<uint32_t>(RandomStream(RandomSeed()).NextBelow(kPorts));
  for (uint32_t i = 0; i < kPorts; ++i) {
    const uint32_t port = kFirstLeasedPort + (start + i) % kPorts;
    if (is_leased(port)) continue;
    MUSTER_ASSIGN_OR_RETURN(const bool free, PortIsFree(address, port));
    if (!free) continue;
    MUSTER_ASSIGN_OR_RETURN(const SocketAddress at, ParseSocketAddress(address, port));
    Listener listener{.socket = UniqueFd(::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0)), .port = port};
    if (!listener.socket.valid()) return ErrnoError(errno, "socket");
    if (::bind(listener.socket.get(), at.get(), at.size) == 0 &&
        ::listen(listener.socket.get(), backlog) == 0) {
      return listener;
    }
  }
  return Unavailable("no free port on %s", address);
}

absl::StatusOr<UniqueFd> ConnectTo(const std::string& address, uint32_t port, int stop_fd,
                                   TimePoint deadline) {
  MUSTER_ASSIGN_OR_RETURN(const SocketAddress at, ParseSocketAddress(address, port));
  const std::string name = absl::StrFormat("%s port %d", address, port);
  UniqueFd fd(::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoError(errno, "socket");
  int error = ::connect(fd.get(), at.get(), at.size) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    const absl::Status ready = AwaitReady(fd.get(), POLLOUT, stop_fd, deadline);
    if (absl::IsDeadlineExceeded(ready)) return Unavailable("%s does not answer", name);
    MUSTER_RETURN_IF_ERROR(ready);
    socklen_t size = sizeof error;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  }
  if (error != 0) return Unavailable("%s", std::string(ErrnoError(error, name).message()));
  return fd;
}

}  // namespace muster
