// Processes by their place in /proc: parents and tokens. Only those of this account are ever looked at or
// signalled.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

/// Children of a process, those not yet reaped included, in no order. One pass over /proc.
std::vector<pid_t> ChildrenOf(pid_t parent);

struct TokenHolder {
  pid_t pid = -1;
  uint64_t start_ticks = 0;  // with which the pid cannot be mistaken for a later one
  std::string token;         // its MUSTER_TOKEN, as it was at its exec
  bool is_certain = true;    // false: its environment cannot be read, and it works in the folder of that task
};

/// All that have one. The kernel reads an environment under a lock that a process may hold for ever, if it
/// hangs in it (a dead file server, a driver): a child reads, and one that takes more than two seconds is let
/// be for a minute. `proc` is for tests.
std::vector<TokenHolder> FindTokenHolders(const std::filesystem::path& proc = "/proc");

/// Kills (SIGKILL) each process whose MUSTER_TOKEN `matches` and returns how many there were. The caller
/// repeats until 0, because a process may fork while /proc is read. One that is not certain counts, and is
/// not killed. One pass over /proc.
int KillByToken(const std::function<bool(std::string_view token)>& matches);

/// As many, without a signal.
int CountByToken(const std::function<bool(std::string_view token)>& matches);

}  // namespace muster
