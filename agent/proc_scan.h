// Processes by their place in /proc: parents and tokens. What cannot be looked at is no proof that nothing is
// there, so it is an error, or counts.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace muster {

/// Children of a process, of whatever account, those not yet reaped included, in no order. One pass over
/// /proc; an error: it could not be made.
absl::StatusOr<std::vector<pid_t>> ChildrenOf(pid_t parent);

struct TokenHolder {
  pid_t pid = -1;
  uint64_t start_ticks = 0;  // with which the pid cannot be mistaken for a later one
  std::string token;         // its MUSTER_TOKEN, as it was at its exec
  bool is_certain = true;    // false: its environment cannot be read, and it works in the folder of that task
};

/// All that have one, of this account; of every account where this is root, whose tasks may change theirs.
/// The kernel reads an environment under a lock that a process may hold for ever, if it hangs in it (a dead
/// file server, a driver): a child reads, and one that takes more than two seconds is let be for a minute. Of
/// those that keep both environment and folder to themselves (PR_SET_DUMPABLE), as they do from all but a
/// root with CAP_SYS_PTRACE, nothing is known. An error: this host lets nobody look now (no descriptors, no
/// memory). `proc` is for tests.
absl::StatusOr<std::vector<TokenHolder>> FindTokenHolders(const std::filesystem::path& proc = "/proc");

/// Kills (SIGKILL) each process whose MUSTER_TOKEN `matches` and returns how many there were. The caller
/// repeats until 0, because a process may fork while /proc is read. One that is not certain, or may not be
/// killed, counts. One pass over /proc; an error, as of FindTokenHolders, says nothing about what is left.
absl::StatusOr<int> KillByToken(const std::function<bool(std::string_view token)>& matches);

/// As many, without a signal.
absl::StatusOr<int> CountByToken(const std::function<bool(std::string_view token)>& matches);

}  // namespace muster
