// Other workers and other spare hosts for a job that runs, while the tasks that it has go on.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "launcher/commands/context.h"
#include "launcher/plan.h"
#include "launcher/runner.h"

namespace muster {

/// FailedPrecondition: the plan would do more to the job than let workers join it or leave it.
absl::Status CheckOnlyWorkersDiffer(const record::JobRecord& running, const record::JobRecord& plan);

/// Of the workers in the cluster: "worker:2 on c, worker:3 on d join"; "worker:3 on d leaves"; "".
std::string DifferenceOfWorkers(const record::JobRecord& running, const record::JobRecord& plan);

/// Plans a job that runs anew when its inventory names hosts that it did not name before: from then on they
/// are spare ones, and where the job file has `max`, those with room take workers. That is looked at from the
/// beginning, too: a job begins with as many as its `count`.
class Replanner {
 public:
  /// The job was planned with this inventory. `context` outlives this.
  Replanner(const CommandContext& context, Job job, const Inventory& inventory);

  /// For a job that is driven on: hosts may have come since. Nothing: standing servers, or, with a word on
  /// stderr, a job of which nobody knows what it was planned from.
  static std::optional<Replanner> Of(const CommandContext& context, const record::JobRecord& running);

  /// As RunOptions::replan has it. A host that can have no task for now, since its name means nothing yet, or
  /// it does not say which GPUs it has, is left out. A failure says which hosts are not used because of it.
  absl::StatusOr<std::optional<NewPlan>> Replan(const std::set<std::string>& hosts,
                                                const record::JobRecord& running, int cancel_fd);

 private:
  using Reasons = std::map<std::string, absl::Status>;  // by host
  Replanner(const CommandContext& context, Job job) : context_(context), job_(std::move(job)) {}
  absl::StatusOr<JobPlan> PlanNow(const record::JobRecord& running, int cancel_fd, Reasons* left_out) const;

  const CommandContext& context_;
  const Job job_;
  std::set<std::string> known_;  // hosts that change nothing about the plan
};

}  // namespace muster
