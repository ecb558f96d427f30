// The login of an SSH session by public key.
#pragma once

#include <libssh/libssh.h>

#include "base/status.h"
#include "launcher/ssh_socket.h"
#include "launcher/ssh_transport.h"

namespace muster {

/// Tries the target's identities, then ssh-agent, then the default identities. The error lists what was tried
/// and what came of each. Nothing is ever asked of the user: a key with a passphrase has to be in the agent.
absl::Status Authenticate(ssh_session session, const SshTarget& target, const SshOptions& options,
                          const Limits& limits);

/// `path` with a leading ~/ replaced by `home`.
std::string ExpandHome(const std::string& path, const std::string& home);

}  // namespace muster
