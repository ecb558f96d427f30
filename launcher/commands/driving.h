// What commands that drive a job share: its plan, the claim to it, and how the process goes on in the
// background.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "launcher/commands/context.h"
#include "launcher/commands/detachment.h"
#include "launcher/plan.h"
#include "launcher/run_display.h"
#include "launcher/runner.h"

namespace muster {

/// With the deadline that the job has.
RunOptions MakeRunOptions(const CommandContext& context, const record::JobRecord& record);

/// Once every task runs, and until the job ends. All of them must outlive the run with these options.
void GoOnInBackground(const std::string& job, const JobLock& lock, Detachment& detachment,
                      RunDisplay& display, RunOptions* options);

/// As JobStore does it, but not while another muster decides who drives the job.
absl::StatusOr<JobLock> InTurn(const JobStore& jobs, const std::string& job,
                               absl::StatusOr<JobLock> (JobStore::*lock)(const std::string& id) const);

/// Plans against the job that runs, or against none. A claim may call it again, since a job goes on until
/// whoever drives it has ended: tasks may have other places then.
using Planning = std::function<absl::StatusOr<JobPlan>(const record::JobRecord* running)>;

/// A plan as MakePlan has it.
absl::StatusOr<JobPlan> PlanJob(const CommandContext& context, const Job& job, const Inventory& inventory,
                                const record::JobRecord* running);

/// Of this name or id, if it has not ended.
std::optional<record::JobRecord> FindUnended(const JobStore& jobs, const std::string& id_or_name);

/// Makes this process the one that drives the job `before`, whose record is the plan's then. The plan is one
/// that `planning` has made for `before`. Nothing: the job has ended meanwhile. While another muster decides
/// nothing happens (JobStore::LockDecision, which the caller holds).
absl::StatusOr<std::optional<JobLock>> TakeOverJob(const JobStore& jobs, const record::JobRecord& before,
                                                   const Planning& planning, JobPlan* plan);

}  // namespace muster
