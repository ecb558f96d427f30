#include "agent/echo.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <vector>

#include "agent/sockets.h"
#include "base/file.h"

namespace muster {
namespace {

constexpr int kUncounted = 20;  // while the first packets find their way and processors wake up

}  // namespace

absl::Status RunEcho(const std::string& address, const std::function<absl::Status(uint32_t port)>& listening,
                     int stop_fd, TimePoint deadline) {
  MUSTER_ASSIGN_OR_RETURN(const Listener listener,
                          ListenOnFreePort(address, /*backlog=*/1, [](uint32_t) { return false; }));
  MUSTER_RETURN_IF_ERROR(listening(listener.port));
  MUSTER_RETURN_IF_ERROR(AwaitReady(listener.socket.get(), POLLIN, stop_fd, deadline));
  const UniqueFd peer(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!peer.valid()) return ErrnoError(errno, "accept");
  SendAtOnce(peer.get());
  while (true) {
    MUSTER_RETURN_IF_ERROR(AwaitReady(peer.get(), POLLIN, stop_fd, deadline));
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
  const std::string name = absl::StrFormat("%s port %d", address, port);
  MUSTER_ASSIGN_OR_RETURN(const UniqueFd fd, ConnectTo(address, port, /*stop_fd=*/-1, deadline));
  SendAtOnce(fd.get());
  std::vector<Duration> times;
  for (int i = 0; i < kUncounted + count; ++i) {
    char byte = 0;
    const TimePoint start = Now();
    if (::send(fd.get(), &byte, 1, MSG_NOSIGNAL) != 1) return Unavailable("%s hangs up", name);
    MUSTER_RETURN_IF_ERROR(Annotate(AwaitReady(fd.get(), POLLIN, -1, deadline), name));
    if (::recv(fd.get(), &byte, 1, 0) != 1) return Unavailable("%s hangs up", name);
    if (i >= kUncounted) times.push_back(Now() - start);
  }
  const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return ToSeconds(*middle);
}

}  // namespace muster
