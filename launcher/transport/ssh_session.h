// A logged-in libssh session: key exchange, the check of the host's key and the login, each under the
// caller's limits.
//
// libssh is used without blocking throughout. Its own timeouts cover single reads, not whole steps, so every
// step is driven from here and waits in WaitForSession.
#pragma once

#include <libssh/libssh.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "launcher/transport/known_hosts.h"
#include "launcher/transport/ssh_socket.h"
#include "launcher/transport/ssh_transport.h"

namespace muster {

struct SshSessionDeleter {
  void operator()(ssh_session session) const;
};
using SshSession = std::unique_ptr<ssh_session_struct, SshSessionDeleter>;

class SshGateway;

struct SshLogin {
  std::shared_ptr<SshGateway> gateway;  // that carries the connection; null: none does
  SshSession session;                   // neither it nor its socket blocks
  HostKey key;                          // of the host
  std::vector<AcceptedKey> accepted;    // of the host and of jump hosts
  bool dropped = false;  // on failure: the host hung up before the login began, so another try may do better
};

/// Into `login`, which holds nothing after a failure. A host that hangs up early is tried again, as
/// SshTransport::Connect says. Errors name the step and what to do, not the host.
absl::Status LogIn(const SshTarget& target, const SshOptions& options, const Limits& limits, SshLogin& login);

/// The key of this type of whoever answers on this connection, or one of another type where it has none. It
/// is not checked, and nothing is sent beyond the key exchange. Errors as those of LogIn.
absl::StatusOr<HostKey> AskHostKey(UniqueFd connection, const std::string& type, Limits limits);

/// Notices that the far end of a session has gone where TCP does not say so: asks one that has been silent
/// for half of `limit`, which has to answer in the other half.
class SilenceWatch {
 public:
  /// `session` outlives it, and has no other counters.
  SilenceWatch(ssh_session session, Duration limit);
  ~SilenceWatch() { ssh_set_counters(session_, nullptr, nullptr); }
  SilenceWatch(const SilenceWatch&) = delete;
  SilenceWatch& operator=(const SilenceWatch&) = delete;

  /// To be called when bytes have been taken in, and at next_check(). Unavailable: no answer.
  absl::Status Check();
  void set_limit(Duration limit) { limit_ = limit; }
  TimePoint next_check() const { return asked_.value_or(heard_) + limit_ / 2; }

  /// Bytes that the session has taken in and sent so far: another number means that something has changed.
  uint64_t moved_bytes() const { return counter_.in_bytes + counter_.out_bytes; }

 private:
  const ssh_session session_;
  Duration limit_;
  ssh_counter_struct counter_{};
  uint64_t heard_bytes_ = 0;  // of counter_, when it was looked at last
  TimePoint heard_ = Now();   // when it was seen to have changed
  std::optional<TimePoint> asked_;
};

/// Takes in what has arrived for a session and sends what is waiting, without blocking.
class SessionPump {
 public:
  /// `session` outlives it.
  explicit SessionPump(ssh_session session);
  ~SessionPump();
  SessionPump(const SessionPump&) = delete;
  SessionPump& operator=(const SessionPump&) = delete;

  /// Unavailable: the connection is lost.
  absl::Status Pump();

 private:
  const ssh_session session_;
  const ssh_event event_;
};

/// Waits until libssh can go on with this session. Unavailable if its connection is gone.
absl::Status WaitForSession(ssh_session session, const Limits& limits);

/// Calls a libssh function until its answer is another than `again`, waiting in between.
template <typename Call>
absl::StatusOr<int> DriveSession(ssh_session session, int again, const Limits& limits, Call call) {
  for (;;) {
    const int answer = call();
    if (answer != again) return answer;
    // One that never stops talking keeps the socket readable.
    if (Now() >= limits.deadline) return DeadlineExceeded("no end before the deadline");
    MUSTER_RETURN_IF_ERROR(WaitForSession(session, limits));
  }
}

}  // namespace muster
