// Processes by their place in /proc: parents and tokens. Only those of this account are ever looked at or
// signalled.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string_view>
#include <vector>

namespace muster {

/// Children of a process, those not yet reaped included, in no order. One pass over /proc.
std::vector<pid_t> ChildrenOf(pid_t parent);

/// Kills (SIGKILL) each process whose MUSTER_TOKEN `matches` and returns how many there were. The caller
/// repeats until 0, because a process may fork while /proc is read. One pass over /proc; environments as they
/// were at each process's exec.
int KillByToken(const std::function<bool(std::string_view token)>& matches);

/// As many, without a signal.
int CountByToken(const std::function<bool(std::string_view token)>& matches);

}  // namespace muster
