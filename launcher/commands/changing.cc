#include "launcher/commands/changing.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>

#include "launcher/commands/controlling.h"
#include "launcher/commands/interrupts.h"
#include "launcher/job_history.h"

namespace muster {
namespace {

void Say(const absl::Status& status) {
  std::fprintf(stderr, "muster: %s\n", std::string(status.message()).c_str());
}

absl::Status HasEnded(const record::JobRecord& record) {
  return FailedPrecondition("job %s has ended", record.id());
}

absl::Status CheckInBackground(const record::JobRecord& record, const JobDriver* driver) {
  if (driver == nullptr || driver->in_background) return absl::OkStatus();
  return FailedPrecondition(
      "job %s is driven by process %d, which is not in the background (yet): only a job that `muster run -d` "
      "has put there can be changed as it runs",
      record.id(), driver->pid);
}

// It drives the job now, with the plan as it came out.
struct Changed {
  TakenJob taken;
  JobPlan plan;
};

// Nothing: the job has ended meanwhile.
absl::StatusOr<std::optional<Changed>> TakeAndChange(const CommandContext& context,
                                                     const record::JobRecord& before, JobChange& change,
                                                     bool in_background) {
  const JobStore& jobs = context.jobs();
  record::JobRecord there = before;
  std::optional<TakenJob> taken;
  {
    MUSTER_ASSIGN_OR_RETURN(const JobLock deciding, TakeBack(context, &there));
    MUSTER_ASSIGN_OR_RETURN(taken, TakeOverJob(jobs, before, change.planning, &change.plan));
  }
  if (!taken) return std::nullopt;
  JobPlan plan = std::move(change.plan);
  if (taken->planned.ok() && change.edit) taken->planned = change.edit(&plan.record);
  if (taken->planned.ok() && change.edit) taken->planned = jobs.Save(plan.record);
  if (const absl::Status said = taken->lock.SetInBackground(in_background); !said.ok()) Say(said);
  if (!taken->planned.ok()) {
    Say(taken->planned);
    plan = {.record = taken->running};
  }
  const std::string what = taken->planned.ok() ? change.describe(taken->running, plan.record) : "";
  std::fprintf(stderr, "job %s: %s\n", before.id().c_str(),
               what.empty() ? "goes on as it was" : what.c_str());
  if (!what.empty()) AddToHistory(jobs.JobFolder(before.id()) / kHistoryFile, change.verb + ": " + what);
  return Changed{*std::move(taken), std::move(plan)};
}

// Until it ends, or another muster takes it over.
absl::StatusOr<int> DriveOn(const CommandContext& context, const Changed& changed, const JobChange& change,
                            TimePoint start, Detachment& detachment, BackgroundGuests& guests) {
  const record::JobRecord& record = changed.plan.record;
  const int exit_code_so_far = ExitCodeFor(changed.taken.planned);
  RunOptions options = MakeRunOptions(context, record);
  options.follow_logs = false;
  // Else there is nothing here that other hosts could be sent.
  if (changed.taken.planned.ok()) options.replan = change.replan;
  RunDisplay display({.logs = false,
                      .accuracy = context.flags().format == OutputFormat::kText,
                      .train_steps = change.train_steps,
                      .start = start},
                     record);
  GoOnInBackground(record, changed.taken.lock, detachment, display, guests, &options, exit_code_so_far);
  MUSTER_ASSIGN_OR_RETURN(const RunResult result,
                          RunJob(context.jobs(), record, changed.plan.contents, options, display));
  if (result.is_left) {
    SayLeft(record);
    return exit_code_so_far;
  }
  display.Summarize(result);
  MUSTER_RETURN_IF_ERROR(result.fetched);
  return exit_code_so_far != 0 ? exit_code_so_far : result.outcome.exit_code;
}

}  // namespace

absl::StatusOr<int> ChangeJob(const CommandContext& context, const DecideChange& decide) {
  const JobStore& jobs = context.jobs();
  MUSTER_ASSIGN_OR_RETURN(record::JobRecord before, jobs.Find(context.flags().job));
  // A host goes on with it afterwards, or this process does, in the background.
  const bool is_elsewhere = IsDrivenElsewhere(before);
  std::unique_ptr<Detachment> detachment;
  if (!is_elsewhere) {
    int exit_code = 0;
    MUSTER_ASSIGN_OR_RETURN(detachment, Detachment::Fork(&exit_code, Detachment::Interrupted::kEndsParent));
    if (detachment == nullptr) return exit_code;
  }
  const TimePoint start = Now();
  std::optional<ChosenController> controller;
  if (is_elsewhere) {
    MUSTER_ASSIGN_OR_RETURN(before, FindJob(context, before.id()));
    MUSTER_ASSIGN_OR_RETURN(controller, ControllerOf(context, before));
  }
  if (before.ended_micros() != 0 || before.cluster().has_ending()) return HasEnded(before);
  const std::optional<JobDriver> driver = jobs.DriverOf(before.id());
  MUSTER_RETURN_IF_ERROR(CheckInBackground(before, driver ? &*driver : nullptr));
  auto decided = decide(before, driver ? &*driver : nullptr);
  // At a question: it is not for want of the answer that it fails.
  if (Interrupts() > 0) return Cancelled("interrupted: job %s goes on as it is", before.id());
  MUSTER_ASSIGN_OR_RETURN(std::optional<JobChange> change, std::move(decided));
  if (!change) return 0;
  if (detachment != nullptr) {
    MUSTER_RETURN_IF_ERROR(detachment->OpenLog(jobs.JobFolder(before.id()) / kControllerLog));
  }
  change->plan.record.set_id(before.id());
  change->plan.record.set_known_hosts(before.known_hosts());
  MUSTER_RETURN_IF_ERROR(
      Annotate(jobs.CheckRoom(change->plan.record), absl::StrFormat("job %s goes on as it is", before.id())));
  if (!is_elsewhere) MUSTER_RETURN_IF_ERROR(CheckOwnLogins(context, before, change->plan.record));

  // From here on there must be somebody who drives the job.
  if (detachment != nullptr) {
    detachment->Outlive();
  } else {
    CatchInterrupts();
  }
  BackgroundGuests guests;
  MUSTER_ASSIGN_OR_RETURN(const std::optional<Changed> changed,
                          TakeAndChange(context, before, *change, detachment != nullptr));
  if (!changed) return HasEnded(before);
  if (!controller) return DriveOn(context, *changed, *change, start, *detachment, guests);
  MUSTER_RETURN_IF_ERROR(HandOverJob(context, before.id(), changed->plan.contents, *controller));
  return ExitCodeFor(changed->taken.planned);
}

}  // namespace muster
