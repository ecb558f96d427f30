// The keys in ssh-agent, and in which order a login tries them. An sshd hangs up after a few that it does not
// know (MaxAuthTries), so those that somebody has named come first.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "launcher/transport/ssh_socket.h"

namespace muster {

/// To ssh-agent; the socket does not block.
absl::StatusOr<UniqueFd> ConnectAgent(const std::string& path);

/// The public half of the key in a file, in its binary form: of a public key, or of a private one that says
/// it without its passphrase, or has it beside it. Empty: none of these.
std::string PublicBlobOf(const std::string& path);

/// Whether ssh-agent has that key. No agent, and one that does not answer within seconds, has none.
bool AgentHas(const std::string& agent_socket, const std::string& blob);

/// Stands between libssh, which asks ssh-agent in blocking mode and tries all its keys in order, and that
/// agent, which may wait for a person to touch a token.
class AgentFront {
 public:
  /// Names `first` before all others. Ends by the limits, or when it is destroyed: what is asked then has no
  /// answer.
  static absl::StatusOr<std::unique_ptr<AgentFront>> Start(UniqueFd agent, std::vector<std::string> first,
                                                           const Limits& limits);
  ~AgentFront();
  AgentFront(const AgentFront&) = delete;

  /// For libssh, once, as the agent's own.
  UniqueFd TakeSocket() { return std::move(theirs_); }

 private:
  AgentFront(UniqueFd agent, UniqueFd ours, UniqueFd theirs, std::vector<std::string> first, Limits limits);
  void Run();
  absl::Status Pass(const UniqueFd& from, const UniqueFd& to, bool is_answer);

  const UniqueFd agent_, ours_;
  UniqueFd theirs_;
  const std::vector<std::string> first_;
  const Limits limits_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace muster
