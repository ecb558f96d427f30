// One task on this host, as the daemon sees it: a state machine over its records, its shim and the restart
// policy.
//
//   Idle ──Start──> Starting ──shim says so──> Running ──shim ends──> Sweeping ──> Idle, or Backoff ──>
//   Starting ...
//
// Within one incarnation a watcher sees Pending, Running, Restarting and the end, in this order and none
// twice: it tells old reports from new ones by that.
//
// Everything that matters is on disk before it is acted on, so that a new daemon goes on where a killed one
// stopped.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/restart_policy.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "proto/agent.pb.h"

namespace muster {

/// What the tasks of one daemon share; outlives them.
struct TaskContext {
  std::filesystem::path root;  // absolute
  std::string root_id;
  std::set<pid_t> shims;  // children of the daemon that are shims: any other child is what a killed shim left
  uint64_t changes = 0;   // grows with each change of a status, log_bytes aside
  std::map<std::string, uint64_t> fences;  // by job: the lowest generation that may be started

  uint64_t FenceOf(const std::string& job) const {
    const auto fence = fences.find(job);
    return fence == fences.end() ? 0 : fence->second;
  }
};

/// Not thread-safe; used from the daemon's loop. Does not block beyond the file system and one pass over
/// /proc.
class Task {
 public:
  Task(TaskContext& context, std::string job, std::string name);

  /// Takes up what the records say, after this daemon's predecessor ended: adopts a running shim, sweeps
  /// after a killed one, goes on with a restart that was due, but only once somebody drives the job: a host
  /// may come back long after that has ended. A damaged record makes the task Lost, with the reason; one that
  /// cannot be read is tried again for 10 s before that. NotFound: there is no such task.
  absl::Status Resume();
  /// Somebody drives the job.
  void GoOn();

  /// The request is valid and names this task, and its generation is not old. FailedPrecondition: it runs
  /// with another spec, or is being stopped. NotFound: the store lacks what it uses, which otherwise counts
  /// as used now. Sets `already_running` when nothing needed to be started: it runs, or has ended, under the
  /// same spec and generation.
  absl::Status Start(const agent::StartTaskRequest& request, bool* already_running);

  /// From now on it is never restarted; a running incarnation is told to end within the grace (0: its own).
  void Stop(uint32_t grace_ms);
  uint32_t StopGraceMs(uint32_t requested_ms) const;

  /// Descriptors to poll for reading; call OnEvent when one is ready, OnTime at wake_at().
  void AppendPollFds(std::vector<pollfd>& fds) const;
  void OnEvent();
  void OnTime(TimePoint now);
  TimePoint wake_at() const { return wake_at_; }

  /// False: its record cannot be read, reason() says why. It may be anything.
  bool is_read() const { return phase_ != Phase::kUnread; }
  const std::string& reason() const { return reason_; }
  /// Running, starting, restarting or being cleaned up, or not known.
  bool active() const { return phase_ != Phase::kIdle; }
  bool told_to_stop() const { return record_.stop(); }
  /// It runs not, and only GoOn lets it.
  bool is_held() const { return is_held_ && (phase_ == Phase::kBackoff || phase_ == Phase::kUnstarted); }
  /// Whether it is known how the latest start went.
  bool start_settled() const { return phase_ != Phase::kStarting && phase_ != Phase::kSweeping; }
  uint64_t generation() const { return record_.spec().generation(); }
  const std::string& spec_hash() const { return record_.spec().spec_hash(); }
  const std::string& job() const { return job_; }
  const std::string& name() const { return name_; }
  const std::filesystem::path& folder() const { return folder_; }

  agent::TaskStatus Status() const;

  /// The place in its log where the incarnation began that this daemon started last; the largest number if it
  /// has started none.
  uint64_t log_begin() const { return log_begin_; }

  /// It ended because somebody else has its port.
  bool has_lost_port() const { return last_exit_ && last_exit_->exit_code() == kPortLostExitCode; }

  /// What it uses of the store.
  std::set<std::string> Contents() const;

 private:
  // kUnstarted: recorded by a daemon that was killed before it had started the shim.
  enum class Phase { kIdle, kUnread, kUnstarted, kStarting, kRunning, kSweeping, kBackoff };

  void Enter(Phase phase, TimePoint wake_at);
  absl::Status TakeUp();
  absl::Status Respecify(const agent::StartTaskRequest& request);
  absl::Status WriteTaskRecord(const agent::TaskRecord& record) const;
  absl::Status StartIncarnation();
  absl::Status StartNext(bool failed);
  void StartAgain();
  void GiveUp();
  absl::StatusOr<uint32_t> NextIncarnation() const;
  bool ShimLockHeld() const;
  void Adopt();
  void TakeRunRecord();
  void OnShimEnded();
  void Sweep(TimePoint now);
  agent::ExitRecord ExitWithoutShim(int processes_left) const;
  void Settle(const agent::ExitRecord& exit);
  void ForgetShim();
  void LoadLastExit();

  TaskContext& context_;
  const std::string job_, name_;
  const std::filesystem::path folder_;

  Phase phase_ = Phase::kIdle;
  bool is_held_ = false;
  TimePoint wake_at_ = TimePoint::max();
  agent::TaskRecord record_;
  RestartTracker tracker_;
  std::string damage_;     // why the records could not be read
  int failed_starts_ = 0;  // in a row, at the end of a back-off
  pid_t shim_pid_ = -1;
  UniqueFd pidfd_, started_;  // of the shim, and the pipe on which it says that the program runs
  uint64_t log_begin_ = UINT64_MAX;
  agent::RunRecord run_;
  std::optional<agent::ExitRecord> last_exit_;
  agent::TaskState final_state_ = agent::TASK_STATE_PENDING;
  std::string reason_;
  TimePoint sweep_until_ = TimePoint::max();   // and read what cannot be read
  TimePoint kill_shim_at_ = TimePoint::max();  // it was told to stop and has not
};

}  // namespace muster
