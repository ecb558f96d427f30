// scale: other workers for a job that runs, while those it has go on.
#include <absl/strings/str_split.h>

#include <cstdio>
#include <functional>
#include <memory>

#include "launcher/commands/changing.h"
#include "launcher/commands/controlling.h"
#include "launcher/commands/replanning.h"

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

absl::Status NotElastic(const record::JobRecord& record, const std::string& why) {
  const std::string on = record.has_servers() ? "--cluster " + record.servers().job() + " " : "";
  return FailedPrecondition(
      "job %s cannot get other workers while it runs: %s; change `count` in %s, and `muster run %s%s` "
      "starts all tasks again",
      record.id(), why, record.job_file(), on, record.job_file());
}

// As many as there are, where nobody drives the job, is to have it driven.
absl::StatusOr<std::optional<JobChange>> DecideScale(const CommandContext& context, int workers,
                                                     const record::JobRecord& before,
                                                     const JobDriver* driver) {
  if (before.standing()) {
    return InvalidArgument("%s are servers that stand: their jobs have workers, each its own", before.id());
  }
  MUSTER_ASSIGN_OR_RETURN(const auto servers, ServersOf(context.jobs(), before));
  MUSTER_ASSIGN_OR_RETURN(const Job as_run, JobOf(before));
  record::JobRecord scaled = before;
  scaled.mutable_source()->set_workers(workers);
  MUSTER_ASSIGN_OR_RETURN(const Job job, JobOf(scaled));
  if (const std::string why = WhyNotElastic(job, servers ? &*servers : nullptr); !why.empty()) {
    return NotElastic(before, why);
  }
  MUSTER_ASSIGN_OR_RETURN(Inventory inventory, context.ReadInventoryOf(before.inventory_file()));
  MUSTER_RETURN_IF_ERROR(FindGpus(context, job, &inventory));
  JobChange change{
      .planning = [&context, job, inventory,
                   servers](const record::JobRecord* running) -> absl::StatusOr<JobPlan> {
        MUSTER_ASSIGN_OR_RETURN(JobPlan plan,
                                PlanJob(context, job, inventory, running, servers ? &*servers : nullptr));
        MUSTER_RETURN_IF_ERROR(CheckOnlyWorkersDiffer(*running, plan.record));
        return plan;
      },
      .describe = DifferenceOfWorkers,
      .verb = "scaled",
      .replan = std::bind_front(&Replanner::Replan, std::make_shared<Replanner>(context, job, inventory)),
      .train_steps = static_cast<uint64_t>(job.train.steps.value_or(0))};
  MUSTER_ASSIGN_OR_RETURN(change.plan, change.planning(&before));
  // Who drives it would give it more.
  const bool grows = as_run.worker.max.has_value();
  const bool is_driven = driver != nullptr || IsDrivenElsewhere(before);
  if (is_driven && !grows && DifferenceOfWorkers(before, change.plan.record).empty() &&
      change.plan.record.tasks_size() == before.tasks_size()) {
    std::fprintf(stderr, "job %s has as many workers already: %d\n", before.id().c_str(), workers);
    return std::nullopt;
  }
  return change;
}

}  // namespace

absl::StatusOr<int> ScaleCommand(const CommandContext& context) {
  const std::string& replicas = context.flags().replicas;
  MUSTER_ASSIGN_OR_RETURN(const record::JobRecord found, context.jobs().Find(context.flags().job));
  if (IsOfOthers(replicas)) return OnlyWorkers(replicas, found);
  MUSTER_ASSIGN_OR_RETURN(const int workers, ParseWorkers(replicas));
  return ChangeJob(context, [&](const record::JobRecord& before, const JobDriver* driver) {
    return DecideScale(context, workers, before, driver);
  });
}

}  // namespace muster
