// `muster-agent shim`: the parent of one incarnation of one task, from its start to the end of its last
// process.
//
// It is a subreaper: whatever the task starts, in other sessions or orphaned, is its descendant and is reaped
// by it, so "nothing left" is the kernel's answer (ECHILD), not a search. It owns the pipe of the task's
// output and writes the exit record, so that a killed daemon or launcher costs neither. It depends on nothing
// that could end before it does.
//
// If the shim itself is killed, the kernel kills the task's first process with it (PR_SET_PDEATHSIG): without
// the shim its output would go nowhere and its exit status would be lost, and a process that nobody answers
// for could still run when the daemon starts the next incarnation. What else is left the daemon finds by
// token.
//
// SIGTERM ends the task: TERM to its process group, KILL to all that is left after the grace. From the
// daemon, which sends the grace in milliseconds along (sigqueue), that is a stop; several make it shorter,
// never longer. From anybody else, as of a host that shuts down, it is a failure, whatever the task exits
// with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/status.h"

namespace muster {

struct ShimOptions {
  std::filesystem::path root;  // absolute
  std::string job;
  std::string task;
  uint32_t incarnation = 0;
};

/// Where neither StopTasks nor the start request gives one.
inline constexpr uint32_t kDefaultStopGraceMs = 5000;

/// What the shim writes to its stdout once the task's program runs; the daemon holds the other end.
inline constexpr char kShimStarted = 'S';

/// Runs the incarnation that the task's record describes. stdin is the shim's lock, already held
/// (agent/records.h); stdout the daemon's pipe. Returns when nothing of the task is left and the exit record
/// is written, or why that was not possible.
absl::Status RunShim(const ShimOptions& options);

}  // namespace muster
