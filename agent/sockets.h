// Sockets with deadlines, between agents of different hosts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"

namespace muster {

/// OK: one of `events` (of poll(2)) has come, or an error of the descriptor's, which the next call will give.
/// Cancelled: `stop_fd` (-1: none) became readable first, which is the end of a pipe, too. DeadlineExceeded.
absl::Status AwaitReady(int fd, short events, int stop_fd, TimePoint deadline);

/// What is written is sent at once.
void SendAtOnce(int fd);

struct Listener {
  UniqueFd socket;
  uint32_t port = 0;
};
/// Listens on a literal address, on a free port of those that are leased to tasks, since these are let
/// through between hosts, but on none that `is_leased`. InvalidArgument: the address is no literal IP or not
/// of this host. Unavailable: no port left.
absl::StatusOr<Listener> ListenOnFreePort(const std::string& address, int backlog,
                                          const std::function<bool(uint32_t port)>& is_leased);

/// A connected socket that does not block. Unavailable, with the address: nobody answers, or not in time.
/// Cancelled: `stop_fd`, as above. InvalidArgument: no literal address.
absl::StatusOr<UniqueFd> ConnectTo(const std::string& address, uint32_t port, int stop_fd,
                                   TimePoint deadline);

}  // namespace muster
