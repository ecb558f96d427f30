// The tasks of one root: what the records in DIR/jobs say, and the requests that change it.
#pragma once

#include <poll.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/ports.h"
#include "agent/task.h"
#include "base/clock.h"
#include "base/status.h"
#include "proto/agent.pb.h"

namespace muster {

/// Used from the daemon's loop only. Requests are checked here; InvalidArgument says what is wrong with one.
class Supervisor {
 public:
  /// Takes up every task that is on disk. `root` is absolute and canonical. An error: what is there cannot be
  /// listed now, or below which generation nothing may be started; whoever went on without would take tasks
  /// that run for gone.
  static absl::StatusOr<std::unique_ptr<Supervisor>> Create(const std::filesystem::path& root);

  /// The task, whose start is under way or which runs already.
  absl::StatusOr<Task*> Start(const agent::StartTaskRequest& request, bool* already_running);

  /// Tells tasks (all of the job, if it has no targets) to stop, and returns by when each of them has to be
  /// gone. With a minimum generation, the targets are then the tasks that it is about, and nothing is left to
  /// do if there are none (nullopt).
  absl::StatusOr<std::optional<TimePoint>> Stop(agent::StopTasksRequest& request);

  /// Whether any of these tasks is still active.
  bool AnyActive(const agent::StopTasksRequest& request) const;

  /// Kills what carries the tokens of these tasks, tasks without records included; how many there were.
  absl::StatusOr<int> KillLeftovers(const agent::StopTasksRequest& request) const;

  /// Gives their ports back, unless they are to keep them; how many are still listened on.
  absl::StatusOr<int> ReleasePorts(const agent::StopTasksRequest& request);
  absl::StatusOr<agent::LeasePortsResponse> LeasePorts(const agent::LeasePortsRequest& request);
  agent::StoreResponse Store(const agent::StoreRequest& request) const;
  absl::Status Forget(const std::string& job);
  absl::StatusOr<agent::CollectGarbageResponse> CollectGarbage(
      const agent::CollectGarbageRequest& request) const;

  /// Aborted: a task of this job, or of any if it is empty, may be there of which nothing is known yet.
  absl::Status CheckRead(const std::string& job) const;

  /// Somebody drives the job: what its tasks have waited for since this daemon began is done.
  void GoOn(const std::string& job);

  /// The tasks of a job, or of all if it is empty, by name; without those whose record cannot be read yet.
  agent::ListTasksResponse List(const std::string& job) const;
  agent::ListTasksResponse List(const agent::StopTasksRequest& request) const;

  /// Null if there is none.
  Task* Find(const std::string& job, const std::string& task) const;

  bool AnyActive() const;
  const std::filesystem::path& root() const { return context_.root; }
  /// Grows with each change of what List returns, log_bytes aside.
  uint64_t changes() const { return context_.changes; }

  void AppendPollFds(std::vector<pollfd>& fds) const;
  TimePoint wake_at() const;
  /// Whatever has happened since the last call.
  void Step(TimePoint now);

 private:
  explicit Supervisor(const std::filesystem::path& root);
  absl::Status TakeUp(const std::string& job);
  std::vector<Task*> Select(const agent::StopTasksRequest& request) const;
  void ReleaseIfEnded(const std::string& job, const std::string& name, const Task& task);
  void RaiseFence(const std::string& job, uint64_t minimum_generation);

  TaskContext context_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Task>> tasks_;  // by job and name
  PortLeases ports_;
};

}  // namespace muster
