// Child processes, without a shell.
#pragma once

#include <sys/types.h>

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
  bool new_session = false;                             // setsid() in the child
};

/// A child of this process. Destroying a running one kills it (SIGKILL) and reaps it. One thread at a time.
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
  explicit Process(pid_t pid) : pid_(pid) {}
  pid_t pid_ = -1;  // -1 once reaped or released
  int exit_code_ = -1;
};

struct CommandResult {
  int exit_code = 0;  // or 128 + signal
  std::string stdout_text;
  std::string stderr_text;
};

/// Runs to the end and collects both outputs; kills the child at the deadline and returns DeadlineExceeded
/// with what it printed.
absl::StatusOr<CommandResult> RunCommand(const SpawnOptions& options, TimePoint deadline);

}  // namespace muster
