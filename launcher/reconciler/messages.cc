#include "launcher/reconciler/messages.h"

namespace muster::reconcile {

std::string Address(const Member& member) {
  if (member.port == 0) return "";
  const bool brackets = member.data_address.find(':') != std::string::npos;
  return absl::StrFormat(brackets ? "[%s]:%d" : "%s:%d", member.data_address, member.port);
}

Record NextRun(const Record& ended) {
  // The members stay: they are where a start of the ended run may still be on its way.
  return {.generation = ended.generation, .cluster = ended.cluster, .strays = ended.strays};
}

bool IsRequest(const Action& action) {
  return std::visit(
      [](const auto& each) {
        return requires { each.request; };
      },
      action);
}

bool WorthTryingAgain(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kDeadlineExceeded || status.code() == absl::StatusCode::kAborted;
}

const char* TaskStateName(TaskState state) {
  switch (state) {
    case TaskState::kPending:
      return "Pending";
    case TaskState::kRunning:
      return "Running";
    case TaskState::kRestarting:
      return "Restarting";
    case TaskState::kSucceeded:
      return "Succeeded";
    case TaskState::kFailed:
      return "Failed";
    case TaskState::kLost:
      return "Lost";
  }
  return "";
}

const char* PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kGathering:
      return "gathering";
    case Phase::kRunning:
      return "running";
    case Phase::kEnding:
      return "ending";
    case Phase::kFinished:
      return "finished";
  }
  return "";
}

const char* HostStateName(HostState state) {
  switch (state) {
    case HostState::kConnecting:
      return "connecting";
    case HostState::kConnected:
      return "connected";
    case HostState::kReady:
      return "ready";
    case HostState::kLost:
      return "lost";
    case HostState::kGivenUp:
      return "given up";
    case HostState::kRefused:
      return "refused";
  }
  return "";
}

std::string GivenUpText(const View& view, const HostId& host) {
  std::string tasks;
  for (const TaskView& task : view.tasks) {
    if (task.host == host && task.state == TaskState::kLost) tasks += (tasks.empty() ? "" : ", ") + task.task;
  }
  std::string why;
  for (const HostView& each : view.hosts) {
    if (each.host == host && !each.last_error.ok()) why = "; " + std::string(each.last_error.message());
  }
  if (tasks.empty()) return host + " stays lost: what it ran is on other hosts now" + why;
  return host + " stays lost: the job goes on without " + tasks + " until it is back" + why;
}

}  // namespace muster::reconcile
