// Whether a task that ended is started again, and when. Pure: no clock, no processes.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "proto/agent.pb.h"

namespace muster {

struct TaskEnd {
  int exit_code = 0;  // or 128 + signal; 126 and 127 where the program could not be started
  bool lost = false;  // its shim was killed, so that nobody knows: counts as a failure
  Duration ran_for{};
};

struct RestartDecision {
  bool restart = false;
  Duration delay{};                                       // until then the task is Restarting
  agent::TaskState state = agent::TASK_STATE_RESTARTING;  // Succeeded, Failed or Lost where restart is false
  bool used_up = false;  // the policy would restart, but max_restarts of them have been
};

/// The back-off starts at 0.1 s, doubles with each restart up to 10 s, and starts over after an incarnation
/// that ran for a minute, so that a task which fails once a day is back at once while one that cannot start
/// does not eat the host.
inline constexpr Duration kFirstRestartDelay = std::chrono::milliseconds(100);
inline constexpr Duration kLongestRestartDelay = std::chrono::seconds(10);
inline constexpr Duration kLongRun = std::chrono::seconds(60);

/// One task under one spec. The count of restarts is the caller's, because it has to survive the process.
class RestartTracker {
 public:
  RestartTracker() = default;
  /// `max_restarts` < 0: no bound. It bounds every policy.
  RestartTracker(agent::RestartPolicy policy, int max_restarts)
      : policy_(policy), max_restarts_(max_restarts) {}

  /// `restarts` have happened before this end.
  RestartDecision OnEnd(const TaskEnd& end, uint32_t restarts);

 private:
  agent::RestartPolicy policy_ = agent::RESTART_POLICY_NEVER;
  int max_restarts_ = 0;
  Duration next_delay_ = kFirstRestartDelay;
};

}  // namespace muster
