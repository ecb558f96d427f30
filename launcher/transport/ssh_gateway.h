// Jump hosts: SSH connections that carry the TCP connections to the hosts behind them.
//
// All hosts behind one jump host share one login there: a login costs its sshd 30 ms, and sshd turns away
// those that begin together (MaxStartups). What is carried is another SSH session from here to the host
// behind, so that the jump host sees neither its bytes nor its login.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "launcher/transport/ssh_session.h"

namespace muster {

/// One jump host, on a thread of its own, which logs in and then carries bytes. Any thread.
class SshGateway {
 public:
  /// Begins to log in to `jump`, through its own jump hosts if it has some, and gives that up at `deadline`.
  SshGateway(SshTarget jump, SshOptions options, TimePoint deadline);
  /// Ends all that it carries.
  ~SshGateway();

  /// A socket whose other end is address:port, as the jump host reaches it; closed as a whole. Unavailable:
  /// login or connection failed, which the message says, with the jump host's name; NeedsUser() as of a
  /// login. DeadlineExceeded, Cancelled: `limits`, to which is added what the jump host itself has waited for
  /// the logins to others; `waiting`, if it is set, is called once a second meanwhile, by this thread.
  absl::StatusOr<UniqueFd> Open(const std::string& address, uint16_t port, Limits& limits,
                                const std::function<void()>& waiting);

  /// False: it will carry nothing any more.
  bool works() const;

  /// Once each: what its login and those of the jump hosts before it have made known.
  std::vector<AcceptedKey> TakeAcceptedKeys();

 private:
  // Somebody who waits for a connection.
  struct Request {
    std::string address;
    uint16_t port = 0;
    UniqueFd answered;  // readable then
    absl::StatusOr<UniqueFd> socket = absl::UnknownError("");
    bool given_up = false;
  };
  struct Tunnel;

  void Run(TimePoint deadline);
  absl::Status Serve(ssh_session session);
  void BeginRequests(ssh_session session);
  // True: some bytes have moved, so there may be more.
  bool Advance(ssh_session session, Tunnel& tunnel);
  void AdvanceOpening(ssh_session session, Tunnel& tunnel);
  bool ToSocket(Tunnel& tunnel);
  bool FromSocket(ssh_session session, Tunnel& tunnel);
  void Answer(Request& request, absl::StatusOr<UniqueFd> socket);
  void Fail(const absl::Status& status);

  const SshTarget jump_;
  SshOptions options_;
  const UniqueFd stop_;  // readable: it is being destroyed
  const UniqueFd wake_;  // readable: there are requests
  mutable std::mutex mutex_;
  std::atomic<int> seconds_waited_ = 0;             // for the logins to others
  std::vector<std::shared_ptr<Request>> requests_;  // guarded by mutex_, as are their answers
  absl::Status failure_;                            // guarded by mutex_; OK: it works
  std::vector<AcceptedKey> accepted_;               // guarded by mutex_
  std::list<Tunnel> tunnels_;                       // the thread's
  std::jthread thread_;                             // last: it uses all of the above
};

/// The gateways of a process, each for as long as somebody uses it. Any thread.
class SshGateways {
 public:
  /// The one that `jumps`, at least one, the nearest first, lead to. One that has failed is made anew, and
  /// then has `deadline` for its login.
  std::shared_ptr<SshGateway> Get(const std::vector<SshTarget>& jumps, const SshOptions& options,
                                  TimePoint deadline, bool* is_new);

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<SshGateway>> gateways_;  // by their whereabouts; guarded by mutex_
};

}  // namespace muster
