// Processes as /proc shows them. Only those of this account are ever looked at or signalled, and none is
// signalled by a bare pid that may have been reused: a pidfd is opened first, then the process behind it is
// checked, then the signal goes to the pidfd.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/status.h"

namespace muster {

struct ProcessStat {
  char state = 0;  // 'Z': ended, not reaped
  pid_t parent = 0;
  uint64_t start_ticks = 0;  // since boot; (pid, start_ticks, boot) names one process
};

/// NotFound if there is no such process.
absl::StatusOr<ProcessStat> ReadProcessStat(pid_t pid);

/// Becomes readable when the process ends, whoever its parent is. NotFound if there is none.
absl::StatusOr<UniqueFd> OpenPidfd(pid_t pid);

/// A pidfd for the process `pid` only if it is the one that started at `start_ticks` and has not ended.
absl::StatusOr<UniqueFd> OpenPidfdOf(pid_t pid, uint64_t start_ticks);

/// Sends a signal to the process behind a pidfd; for SIGTERM to a shim `value` is the grace in milliseconds
/// (sigqueue(3)).
void SignalPidfd(int pidfd, int signal_number, int value = 0);

/// Children of a process, those not yet reaped included, in no order. One pass over /proc.
std::vector<pid_t> ChildrenOf(pid_t parent);

/// Kills (SIGKILL) each process whose MUSTER_TOKEN `matches` and returns how many there were. The caller
/// repeats until 0, because a process may fork while /proc is read. One pass over /proc; environments as they
/// were at each process's exec.
int KillByToken(const std::function<bool(std::string_view token)>& matches);

/// As many, without a signal.
int CountByToken(const std::function<bool(std::string_view token)>& matches);

}  // namespace muster
