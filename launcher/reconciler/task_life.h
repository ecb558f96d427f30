// The order of a task's life, by which late and doubled reports are told from new ones, and its words for
// people.
#pragma once

#include <string>
#include <tuple>

#include "launcher/reconciler/messages.h"

namespace muster::reconcile {

/// Of one task on one host, however often it is deployed again there.
inline constexpr uint32_t kMostRestarts = 1'000'000;

/// It runs, or its agent is about to run it.
inline bool Live(const TaskReport& report) {
  return report.state == TaskState::kPending || report.state == TaskState::kRunning ||
         report.state == TaskState::kRestarting;
}

/// Of two reports of one task by one host: `a` was made later. Each start counts the incarnation up; within
/// one the generation may grow, and the states come in the order Pending, Running, Restarting, ended.
inline bool Newer(const TaskReport& a, const TaskReport& b) {
  auto life = [](const TaskReport& report) {
    return std::tuple(report.incarnation, report.generation,
                      Live(report) ? static_cast<int>(report.state) : 3);
  };
  return life(a) > life(b);
}

inline Deployment DeploymentOf(const TaskReport& report) {
  return {report.task, report.generation, report.spec_hash};
}

/// What is left of a live task when its host has said that nothing runs any more.
inline void MarkStopped(TaskReport& report) {
  if (!Live(report)) return;
  report.state = TaskState::kFailed;
  report.stopped = true;
}

/// Of the job, when this task is why it failed: the task's own, or 69 if nobody knows how it ended.
int FailureExitCode(const TaskReport& report);

/// "killed by signal 9 (exit code 137, after 2 restarts)".
std::string FailureText(const TaskReport& report);

}  // namespace muster::reconcile
