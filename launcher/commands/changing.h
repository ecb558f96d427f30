// What commands share that change a job in the background while it goes on: scale, restart.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "launcher/commands/context.h"
#include "launcher/commands/driving.h"
#include "launcher/plan.h"
#include "launcher/runner.h"

namespace muster {

struct JobChange {
  JobPlan plan;       // of the job as it was found
  Planning planning;  // makes it again: tasks may have other places once whoever drives the job has stopped
  /// What the plan does not say; null: nothing. A failure leaves the job as it is.
  std::function<absl::Status(record::JobRecord* record)> edit;
  /// For `events` and stderr: "worker:2 on c joins"; empty: nothing is changed.
  std::function<std::string(const record::JobRecord& before, const record::JobRecord& after)> describe;
  std::string verb;  // "scaled", before that in `events`
  /// That of RunOptions, for whoever drives the job on.
  decltype(RunOptions::replan) replan;
  uint64_t train_steps = 0;  // 0: not known
};

/// What is to be done to the job, or nothing, which has been said. `driver`: of this machine; null: there is
/// none, or a host drives it.
using DecideChange = std::function<absl::StatusOr<std::optional<JobChange>>(const record::JobRecord& before,
                                                                            const JobDriver* driver)>;

/// Changes the job of the command line: takes it over from whoever drives it in the background, and drives it
/// on there itself, or has its host do so. Returns, in the foreground, once every task runs. If the change
/// cannot be made, the job goes on as it was. FailedPrecondition: the job has ended, or is driven in the
/// foreground.
absl::StatusOr<int> ChangeJob(const CommandContext& context, const DecideChange& decide);

}  // namespace muster
