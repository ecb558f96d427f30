// The TCP connection under an SSH session: name lookup, connect and waits that end by a deadline or when
// cancelled.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"

namespace muster {

/// What bounds every wait while a connection is made.
struct Limits {
  TimePoint deadline;
  int cancel_fd = -1;  // readable: give up with Cancelled; -1: none
};

/// Waits until `events` (POLLIN, POLLOUT), an error or a hang-up on `fd`. DeadlineExceeded or Cancelled if
/// that does not come.
absl::Status WaitForFd(int fd, short events, const Limits& limits);

/// Sleeps, unless cancelled, and never beyond the deadline.
absl::Status SleepFor(Duration duration, const Limits& limits);

/// The first address of a name (or literal) as a literal. Unavailable (not resolved), DeadlineExceeded,
/// Cancelled.
absl::StatusOr<std::string> LookUpAddress(const std::string& address, const Limits& limits);

/// A connected socket: not blocking, without Nagle's delay, which reports a peer that has been silent for
/// about `silence_limit` while something was owed as an error (so a half-open connection ends). `address` is
/// a literal or a name; all its addresses are tried in turn. Errors say which step failed and why, without
/// naming the host: Unavailable (not resolved, refused, unreachable, or no socket to be had here),
/// DeadlineExceeded, Cancelled. SetSilenceLimit changes that.
absl::StatusOr<UniqueFd> ConnectTcp(const std::string& address, uint16_t port, Duration silence_limit,
                                    const Limits& limits);
void SetSilenceLimit(int fd, std::chrono::milliseconds limit);

/// For how long no acknowledgement has come, which probes ask for where nothing else does.
Duration SilenceOf(int fd);

/// The other end of a connected socket, as a literal; "" if there is none any more.
std::string PeerAddress(int fd);

}  // namespace muster
