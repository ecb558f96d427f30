// The transport to this machine itself: commands are children of this process, without SSH.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "launcher/transport/transport.h"

namespace muster {

struct LocalOptions {
  std::string name;  // of the host in the inventory
  std::string home;  // HOME and working directory of its commands; must exist
  // A command that the shell of each command is given to, which becomes that shell: {"nsenter", ..., "--"}.
  // Empty: none.
  std::vector<std::string> command_prefix = {};
};

/// Commands that still run when their channel is destroyed are killed (sh itself; not what it has put in the
/// background).
std::unique_ptr<Transport> MakeLocalTransport(const LocalOptions& options);

}  // namespace muster
