#include "agent/restart_policy.h"

#include <algorithm>

namespace muster {
namespace {

bool WantsRestart(agent::RestartPolicy policy, const TaskEnd& end) {
  const bool failed = end.lost || end.exit_code != 0;
  switch (policy) {
    case agent::RESTART_POLICY_ALWAYS:
      return true;
    case agent::RESTART_POLICY_ON_FAILURE:
      return failed;
    case agent::RESTART_POLICY_EXIT_CODE:
      return end.lost || end.exit_code >= 128;
    default:  // proto3 enums are open: a policy that this version does not know restarts nothing
      return false;
  }
}

}  // namespace

RestartDecision RestartTracker::OnEnd(const TaskEnd& end, uint32_t restarts) {
  const bool wanted = WantsRestart(policy_, end);
  if (wanted && (max_restarts_ < 0 || restarts < static_cast<uint32_t>(max_restarts_))) {
    if (end.ran_for >= kLongRun) next_delay_ = kFirstRestartDelay;
    const Duration delay = next_delay_;
    next_delay_ = std::min(2 * next_delay_, kLongestRestartDelay);
    return {.restart = true, .delay = delay};
  }
  const agent::TaskState state = end.lost             ? agent::TASK_STATE_LOST
                                 : end.exit_code == 0 ? agent::TASK_STATE_SUCCEEDED
                                                      : agent::TASK_STATE_FAILED;
  return {.restart = false, .state = state, .used_up = wanted && max_restarts_ > 0};
}

}  // namespace muster
