// For tests: a network of this thread, and of those and the processes that it starts. Needs root.
#pragma once

#include <sched.h>

#include <cerrno>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/status.h"

namespace muster {

/// `ip arguments...`, there.
inline absl::Status Ip(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "ip");
  MUSTER_ASSIGN_OR_RETURN(const CommandResult result,
                          RunCommand({.argv = arguments}, Now() + std::chrono::seconds(30)));
  return result.exit_code == 0 ? absl::OkStatus() : FailedPrecondition("%s", result.stderr_text);
}

/// From now on. It has a loopback interface, and nothing else. Not OK: why this user or machine cannot.
inline absl::Status EnterOwnNetwork() {
  if (::unshare(CLONE_NEWNET) != 0) {
    const int error = errno;
    return ErrnoError(error, "a network of its own");
  }
  return Ip({"link", "set", "lo", "up"});
}

}  // namespace muster
