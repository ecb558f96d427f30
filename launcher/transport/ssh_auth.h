// The login of an SSH session, by public key or password.
#pragma once

#include <libssh/libssh.h>

#include <string>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "launcher/transport/ssh_socket.h"
#include "launcher/transport/ssh_transport.h"

namespace muster {

/// Tries the target's identities, then ssh-agent, those among its keys first that it was named, then the
/// default identities, unless one of the target's is kNoIdentity, then the password. The error lists what was
/// tried and what came of each. Nothing is asked of the user here: what he knows is in SshOptions::secrets.
absl::Status Authenticate(ssh_session session, const SshTarget& target, const SshOptions& options,
                          const Limits& limits);

/// Instead of a file: no default ones.
inline constexpr char kNoIdentity[] = "none";

/// Those of these files that are there: ~/.ssh/id_ed25519, id_ecdsa, id_rsa.
std::vector<std::string> DefaultIdentities(const std::string& home);

/// `path` with a leading ~/ replaced by `home`.
std::string ExpandHome(const std::string& path, const std::string& home);

}  // namespace muster
