// The transport over SSH, on libssh. One TCP connection per host with as many channels as needed.
//
// The host's key is checked before anything but the key exchange is sent, in muster's own file
// (known_hosts.h), under the name that the host has in the inventory. Its address does not matter, so a host
// that moved is still itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/transport/transport.h"

namespace muster {

struct SshTarget {
  std::string name;     // in the inventory
  std::string address;  // literal or to be looked up
  uint16_t port = 22;
  std::string user;                     // empty: the account that runs muster
  std::vector<std::string> identities;  // private key files; a leading ~/ is the home in SshOptions
  std::vector<SshTarget> jumps;  // hosts to go through, the nearest first; their own jumps mean nothing
};

class SshGateways;
class LoginSecrets;

inline constexpr std::chrono::milliseconds kUsualSilenceLimit{20000};

struct SshOptions {
  std::filesystem::path known_hosts;  // muster's file; need not exist
  bool accept_new_keys = false;       // trust a host that has no key in the file yet, and write it there
  std::string home;          // for ~/ and the default identities: ~/.ssh/id_ed25519, id_ecdsa, id_rsa
  std::string agent_socket;  // of ssh-agent; empty: none
  std::shared_ptr<const LoginSecrets> secrets;  // null: none

  /// Whose connections to jump hosts are used. Null: each SshTransport has its own.
  std::shared_ptr<SshGateways> gateways;

  /// What messages tell the user to run.
  std::string accept_command = "muster check --accept-new -i INVENTORY";
  /// For a host that hangs up during the greeting, as sshd does with too many at a time.
  int max_attempts = 8;
  /// A connection on which the peer's TCP has owed an answer for so long is lost.
  std::chrono::milliseconds silence_limit = kUsualSilenceLimit;
  /// Called now and then while a connection waits for its turn, which does not count against its deadline.
  std::function<void()> on_coming;
  /// Readable: Connect gives up with Cancelled. -1: none.
  int cancel_fd = -1;
};

/// A host key that was not known and is trusted from now on.
struct AcceptedKey {
  std::string host;
  std::string fingerprint;
};

/// Options with home, agent and known_hosts (~/.muster/known_hosts, or MUSTER_KNOWN_HOSTS) from the
/// environment. For main.
SshOptions SshOptionsFromEnvironment();

class SshTransport : public Transport {
 public:
  /// Connects and logs in before `deadline`: identities of the target, then ssh-agent, then the default
  /// identities. A host that hangs up early is tried again after a random pause that grows. Costs one key
  /// exchange: about 30 ms of processor time, most of it on the host. A process logs in to 32 hosts at a
  /// time; the others, once they have greeted, wait for their turn, for which they have more time.
  ///
  /// Unavailable in all cases that lie with the host, its deadline included; the message names host, address,
  /// step, cause and what to do. NeedsUser() tells those that trying again cannot cure. InvalidArgument: an
  /// unreadable known_hosts file. Cancelled: cancel_fd.
  ///
  /// Through jump hosts, the connection is to be found lost as one without them: TCP says nothing of the
  /// hosts behind, so one that has been silent for half of silence_limit is asked, and has to answer in the
  /// other half.
  static absl::StatusOr<std::unique_ptr<SshTransport>> Connect(const SshTarget& target,
                                                               const SshOptions& options, TimePoint deadline);

  /// What this connection has made known (accept_new_keys): keys of the host and of jump hosts.
  virtual const std::vector<AcceptedKey>& accepted_keys() const = 0;

  /// The host's key, as a fingerprint.
  virtual const std::string& host_key() const = 0;

  /// Where the host was reached: a literal; "" if that was through a jump host and by a name.
  virtual const std::string& peer_address() const = 0;

  /// "name (address:port)", as in messages.
  virtual const std::string& label() const = 0;
};

}  // namespace muster
