// scale: other workers for a job that runs, while those it has go on.
#include <absl/strings/str_split.h>

#include <cstdio>

#include "launcher/commands/controlling.h"
#include "launcher/commands/driving.h"
#include "launcher/commands/interrupts.h"
#include "launcher/commands/replanning.h"
#include "launcher/job_history.h"
#include "launcher/running_job.h"

namespace muster {
namespace {

// Those of which there are as many as the file says.
bool IsOfOthers(const std::string& replicas) {
  const std::string role = replicas.substr(0, replicas.find('='));
  return role == ReplicaRoleName(ReplicaRole::kPs) || role == ReplicaRoleName(ReplicaRole::kChief);
}

absl::Status OnlyWorkers(const std::string& replicas, const record::JobRecord& record) {
  if (record.standing()) {
    return InvalidArgument(
        "%s: servers that stand do not join and leave; for another number change `count` in %s, and `muster "
        "up %s` starts all of them again",
        replicas, record.job_file(), record.job_file());
  }
  return InvalidArgument(
      "%s: only workers join a job that runs and leave it; for another number of others change `count` in "
      "%s, and `muster run %s` starts all tasks again",
      replicas, record.job_file(), record.job_file());
}

// Of "worker=6".
absl::StatusOr<int> ParseWorkers(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
  const std::string& role = parts[0];
  int workers = 0;
  const bool is_number = parts.size() == 2 && absl::SimpleAtoi(parts[1], &workers);
  if (role != ReplicaRoleName(ReplicaRole::kWorker) || !is_number || workers < 1 ||
      workers > kMaxTasksOfRole) {
    return InvalidArgument("%s: expected worker=N, a number from 1 to %d", text, kMaxTasksOfRole);
  }
  return workers;
}

void Say(const absl::Status& status) {
  std::fprintf(stderr, "muster: %s\n", std::string(status.message()).c_str());
}

absl::Status NotElastic(const record::JobRecord& record, const std::string& why) {
  const std::string on = record.has_servers() ? "--cluster " + record.servers().job() + " " : "";
  return FailedPrecondition(
      "job %s cannot get other workers while it runs: %s; change `count` in %s, and `muster run %s%s` "
      "starts all tasks again",
      record.id(), why, record.job_file(), on, record.job_file());
}

}  // namespace

absl::StatusOr<int> ScaleCommand(const CommandContext& context) {
  const std::string& replicas = context.flags().replicas;
  const JobStore& jobs = context.jobs();
  MUSTER_ASSIGN_OR_RETURN(record::JobRecord before, jobs.Find(context.flags().job));
  if (IsOfOthers(replicas)) return OnlyWorkers(replicas, before);
  MUSTER_ASSIGN_OR_RETURN(const int workers, ParseWorkers(replicas));
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
  const auto has_ended = [&] { return FailedPrecondition("job %s has ended", before.id()); };
  if (before.ended_micros() != 0 || before.cluster().has_ending()) return has_ended();
  if (before.standing()) {
    return InvalidArgument("%s are servers that stand: their jobs have workers, each its own", before.id());
  }
  MUSTER_ASSIGN_OR_RETURN(const auto servers, ServersOf(jobs, before));
  MUSTER_ASSIGN_OR_RETURN(const Job as_run, JobOf(before));
  record::JobRecord scaled = before;
  scaled.mutable_source()->set_workers(workers);
  MUSTER_ASSIGN_OR_RETURN(const Job job, JobOf(scaled));
  if (const std::string why = WhyNotElastic(job, servers ? &*servers : nullptr); !why.empty()) {
    return NotElastic(before, why);
  }
  const std::optional<JobDriver> driver = jobs.DriverOf(before.id());
  if (driver && !driver->in_background) {
    return FailedPrecondition(
        "job %s is driven by process %d, which is not in the background (yet): only a job that "
        "`muster run -d` has put there can get other workers",
        before.id(), driver->pid);
  }
  MUSTER_ASSIGN_OR_RETURN(Inventory inventory, context.ReadInventoryOf(before.inventory_file()));
  MUSTER_RETURN_IF_ERROR(FindGpus(context, job, &inventory));
  const Planning planning = [&](const record::JobRecord* running) -> absl::StatusOr<JobPlan> {
    MUSTER_ASSIGN_OR_RETURN(JobPlan plan,
                            PlanJob(context, job, inventory, running, servers ? &*servers : nullptr));
    MUSTER_RETURN_IF_ERROR(CheckOnlyWorkersDiffer(*running, plan.record));
    return plan;
  };
  MUSTER_ASSIGN_OR_RETURN(JobPlan plan, planning(&before));
  // Who drives it would give it more.
  const bool grows = as_run.worker.max.has_value();
  if ((driver || is_elsewhere) && !grows && DifferenceOfWorkers(before, plan.record).empty() &&
      plan.record.tasks_size() == before.tasks_size()) {
    std::fprintf(stderr, "job %s has as many workers already: %d\n", before.id().c_str(), workers);
    return 0;
  }
  const std::filesystem::path log = jobs.JobFolder(before.id()) / kControllerLog;
  if (detachment != nullptr) MUSTER_RETURN_IF_ERROR(detachment->OpenLog(log));
  plan.record.set_id(before.id());
  MUSTER_RETURN_IF_ERROR(
      Annotate(jobs.CheckRoom(plan.record), absl::StrFormat("job %s goes on as it is", before.id())));

  // From here on there must be somebody who drives the job.
  if (detachment != nullptr) {
    detachment->Outlive();
  } else {
    CatchInterrupts();
  }
  BackgroundGuests guests;
  std::optional<TakenJob> taken;
  {
    record::JobRecord there = before;
    MUSTER_ASSIGN_OR_RETURN(const JobLock deciding, TakeBack(context, &there));
    MUSTER_ASSIGN_OR_RETURN(taken, TakeOverJob(jobs, before, planning, &plan));
  }
  if (!taken) return has_ended();
  if (const absl::Status said = taken->lock.SetInBackground(detachment != nullptr); !said.ok()) Say(said);
  if (!taken->planned.ok()) {
    Say(taken->planned);
    plan = {.record = taken->running};
  }
  const int exit_code_so_far = ExitCodeFor(taken->planned);
  const std::string difference = DifferenceOfWorkers(taken->running, plan.record);
  std::fprintf(stderr, "job %s: %s\n", before.id().c_str(),
               difference.empty() ? "goes on as it was" : difference.c_str());
  if (auto history = HistoryFile::Open(jobs.JobFolder(before.id()) / kHistoryFile);
      history.ok() && taken->planned.ok() && !difference.empty()) {
    // Which is only told: the job does not fail for it.
    (void)history->Append({{.time_micros = WallTimeMicros(), .what = "scaled: " + difference}});
  }

  if (controller) {
    MUSTER_RETURN_IF_ERROR(HandOverJob(context, before.id(), plan.contents, *controller));
    return exit_code_so_far;
  }
  RunOptions options = MakeRunOptions(context, plan.record);
  options.follow_logs = false;
  Replanner replanner(context, job, inventory);
  // Else there is nothing here that other hosts could be sent.
  if (taken->planned.ok()) options.replan = std::bind_front(&Replanner::Replan, &replanner);
  RunDisplay display({.logs = false,
                      .accuracy = context.flags().format == OutputFormat::kText,
                      .train_steps = static_cast<uint64_t>(job.train.steps.value_or(0)),
                      .start = start},
                     plan.record);
  GoOnInBackground(plan.record, taken->lock, *detachment, display, guests, &options, exit_code_so_far);
  MUSTER_ASSIGN_OR_RETURN(const RunResult result, RunJob(jobs, plan.record, plan.contents, options, display));
  if (result.is_left) {
    SayLeft(plan.record);
    return exit_code_so_far;
  }
  display.Summarize(result);
  MUSTER_RETURN_IF_ERROR(result.fetched);
  return exit_code_so_far != 0 ? exit_code_so_far : result.outcome.exit_code;
}

}  // namespace muster
