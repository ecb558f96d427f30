// What hosts did while a job trained, and what travels in a step, from what its tasks counted. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "launcher/bench/results.h"

namespace muster::bench {

/// Of a task, while it trained (trainer/training_usage.h).
struct TaskUse {
  std::string task;  // "worker:0"
  std::string host;
  double seconds = 0;
  double cpu_seconds = 0;
  std::optional<double> sent_bytes;  // of the host's interface
  std::optional<double> received_bytes;
};

/// By host, in the order in which they come, so workers first; tasks that took no time are left out. Of
/// tasks of one host each adds its processors; they count the same interface, of which the first one's
/// numbers are taken.
std::vector<HostUse> HostUses(const std::vector<TaskUse>& tasks);

/// What a worker receives for each of its steps, of all `received_bytes` up to the end of the last one. What
/// servers send before the first step are parameters and rows, as after each step: one step's more, which is
/// of none. `reduced_bytes`: of each step without servers, the allreduce of a hybrid one.
double ReceivedBytesPerStep(Strategy strategy, double received_bytes, double steps, double reduced_bytes);

/// Makes `mean`, of the `count` repetitions before, the mean with this one, too. Where a host or a number of
/// it is not known of all, what is known of the last is taken.
void AddRepetition(const std::vector<HostUse>& hosts, size_t count, std::vector<HostUse>* mean);

}  // namespace muster::bench
