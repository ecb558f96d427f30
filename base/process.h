// Child processes, without a shell, and other processes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"

namespace muster {

struct SpawnOptions {
  std::vector<std::string> argv;                        // argv[0] is looked up in PATH unless it has a slash
  std::optional<std::vector<std::string>> environment;  // "NAME=value"; unset: this process's own
  std::string working_directory;                        // empty: this process's own
  int stdin_fd = -1;                                    // -1: /dev/null; not closed in this process
  int stdout_fd = -1;                                   // -1: inherited
  int stderr_fd = -1;                                   // -1: inherited
  bool new_session = false;                             // setsid() in the child, and a group of its own
};

/// A child of this process. Destroying a running one kills it (SIGKILL), with all of a group of its own, and
/// reaps it. One thread at a time.
class Process {
 public:
  static absl::StatusOr<Process> Spawn(const SpawnOptions& options);
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();

  pid_t pid() const { return pid_; }

  /// Waits for the end; DeadlineExceeded leaves the child running. The value is the exit code, or 128 +
  /// signal.
  absl::StatusOr<int> Wait(TimePoint deadline);

  /// Sends a signal, unless the child has been reaped.
  void Signal(int signal_number);

  /// Gives the child up: it is neither killed nor reaped by this object any more.
  pid_t Release();

 private:
  Process(pid_t pid, bool leads_group) : pid_(pid), leads_group_(leads_group) {}
  pid_t pid_ = -1;  // -1 once reaped or released
  bool leads_group_ = false;
  int exit_code_ = -1;
};

struct CommandResult {
  int exit_code = 0;  // or 128 + signal
  std::string stdout_text;
  std::string stderr_text;
};

/// Runs to the end and collects both outputs; kills the child at the deadline and returns DeadlineExceeded
/// with the beginning of what it printed. ResourceExhausted, likewise: it printed more than 64 MiB.
absl::StatusOr<CommandResult> RunCommand(const SpawnOptions& options, TimePoint deadline);

// Processes that are no children, as /proc shows them. None is signalled by a bare pid that may have been
// reused: a pidfd is opened first, then the process behind it is checked, then the signal goes to the pidfd.

/// All there are, of all accounts, in no order.
std::vector<pid_t> AllProcesses();

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

}  // namespace muster
