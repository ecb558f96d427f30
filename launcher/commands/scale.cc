// scale: other workers for a job that runs, while those it has go on.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <cstdio>

#include "launcher/commands/driving.h"
#include "launcher/job_history.h"
#include "launcher/running_job.h"

namespace muster {
namespace {

// Of "worker=6".
absl::StatusOr<int> ParseWorkers(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
  const std::string& role = parts[0];
  if (role == ReplicaRoleName(ReplicaRole::kPs) || role == ReplicaRoleName(ReplicaRole::kChief)) {
    return InvalidArgument(
        "%s: only workers join a job that runs and leave it; for another number of others change `count` in "
        "the job file, and `muster run` starts all tasks again",
        text);
  }
  int workers = 0;
  const bool is_number = parts.size() == 2 && absl::SimpleAtoi(parts[1], &workers);
  if (role != ReplicaRoleName(ReplicaRole::kWorker) || !is_number || workers < 1 ||
      workers > kMaxTasksOfRole) {
    return InvalidArgument("%s: expected worker=N, a number from 1 to %d", text, kMaxTasksOfRole);
  }
  return workers;
}

absl::Status NotElastic(const record::JobRecord& record, const std::string& why) {
  return FailedPrecondition(
      "job %s cannot get other workers while it runs: %s; change `count` in %s, and `muster run %s` starts "
      "all "
      "tasks again",
      record.id(), why, record.job_file(), record.job_file());
}

// Whatever else the plan would do to the tasks that stay is no part of this.
absl::Status CheckOnlyWorkersDiffer(const record::JobRecord& running, const record::JobRecord& plan) {
  std::vector<std::string> changed;
  for (const record::Task& task : plan.tasks()) {
    const record::Task* const before = Named(running.tasks(), task.id(), &record::Task::id);
    if (before == nullptr) continue;
    if (before->spec_hash() != task.spec_hash() || before->host() != task.host())
      changed.push_back(task.id());
  }
  if (!changed.empty()) {
    return FailedPrecondition(
        "what %s is started with is another thing now than when job %s was: first `muster run %s` brings it "
        "about, or what was changed in the job file, the inventory, the data or muster itself is taken back",
        absl::StrJoin(changed, ", "), running.id(), running.job_file());
  }
  if (GoesOn(running, plan)) return absl::OkStatus();
  return FailedPrecondition(
      "job %s has no cluster yet that workers could join, or leave: try again once it runs", running.id());
}

// "worker:2 on c, worker:3 on d join"; "worker:3 on d leaves"; "".
std::string Difference(const record::JobRecord& running, const record::JobRecord& plan) {
  const auto only_in = [](const record::JobRecord& those, const record::JobRecord& others) {
    std::vector<std::string> names;
    for (const record::Task& task : those.tasks()) {
      if (Named(others.tasks(), task.id(), &record::Task::id) != nullptr) continue;
      names.push_back(absl::StrCat(task.id(), " on ", task.host()));
    }
    return names;
  };
  const auto say = [](const std::vector<std::string>& names, const char* verb) {
    return absl::StrCat(absl::StrJoin(names, ", "), " ", verb, names.size() == 1 ? "s" : "");
  };
  const std::vector<std::string> join = only_in(plan, running), leave = only_in(running, plan);
  return !join.empty() ? say(join, "join") : !leave.empty() ? say(leave, "leave") : "";
}

}  // namespace

absl::StatusOr<int> ScaleCommand(const CommandContext& context) {
  MUSTER_ASSIGN_OR_RETURN(const int workers, ParseWorkers(context.flags().replicas));
  int exit_code = 0;
  MUSTER_ASSIGN_OR_RETURN(const std::unique_ptr<Detachment> detachment,
                          Detachment::Fork(&exit_code, Detachment::Interrupted::kEndsParent));
  if (detachment == nullptr) return exit_code;

  const TimePoint start = Now();
  const JobStore& jobs = context.jobs();
  MUSTER_ASSIGN_OR_RETURN(const record::JobRecord before, jobs.Find(context.flags().job));
  const auto has_ended = [&] { return FailedPrecondition("job %s has ended", before.id()); };
  if (before.ended_micros() != 0) return has_ended();
  MUSTER_ASSIGN_OR_RETURN(const Job job, ReadJob(before.job_file(), context.home(), {.workers = workers}));
  if (const std::string why = WhyNotElastic(job); !why.empty()) return NotElastic(before, why);
  if (const auto driver = jobs.DriverOf(before.id()); driver && !driver->in_background) {
    return FailedPrecondition(
        "job %s is driven by process %d in the foreground; a job that `muster run -d` has put into the "
        "background can get other workers",
        before.id(), driver->pid);
  }
  MUSTER_ASSIGN_OR_RETURN(const Inventory inventory, context.ReadInventoryOf(before.inventory_file()));
  const Planning planning = [&](const record::JobRecord* running) -> absl::StatusOr<JobPlan> {
    MUSTER_ASSIGN_OR_RETURN(JobPlan plan, PlanJob(context, job, inventory, running));
    MUSTER_RETURN_IF_ERROR(CheckOnlyWorkersDiffer(*running, plan.record));
    return plan;
  };
  MUSTER_ASSIGN_OR_RETURN(JobPlan plan, planning(&before));
  const std::string difference = Difference(before, plan.record);
  if (difference.empty()) {
    std::fprintf(stderr, "job %s has as many workers already: %d\n", before.id().c_str(), workers);
    return 0;
  }
  const std::filesystem::path log = jobs.JobFolder(before.id()) / kControllerLog;
  MUSTER_RETURN_IF_ERROR(detachment->OpenLog(log));

  // From here on there must be somebody who drives the job.
  detachment->Outlive();
  std::optional<JobLock> lock;
  {
    MUSTER_ASSIGN_OR_RETURN(const JobLock deciding, jobs.LockDecision());
    MUSTER_ASSIGN_OR_RETURN(lock, TakeOverJob(jobs, before, planning, &plan));
  }
  if (!lock) return has_ended();
  MUSTER_RETURN_IF_ERROR(lock->SetInBackground(true));
  std::fprintf(stderr, "job %s: %s\n", before.id().c_str(), difference.c_str());
  if (auto history = HistoryFile::Open(jobs.JobFolder(before.id()) / kHistoryFile); history.ok()) {
    // Which is only told: the job does not fail for it.
    (void)history->Append({{.time_micros = WallTimeMicros(), .what = "scaled: " + difference}});
  }

  RunOptions options = MakeRunOptions(context, plan.record);
  options.follow_logs = false;
  RunDisplay display({.logs = false,
                      .accuracy = context.flags().format == OutputFormat::kText,
                      .train_steps = static_cast<uint64_t>(job.train.steps.value_or(0)),
                      .start = start},
                     plan.record);
  GoOnInBackground(before.id(), *lock, *detachment, display, &options);
  MUSTER_ASSIGN_OR_RETURN(const RunResult result, RunJob(jobs, plan.record, plan.contents, options, display));
  display.Summarize(result);
  MUSTER_RETURN_IF_ERROR(result.fetched);
  return result.outcome.exit_code;
}

}  // namespace muster
