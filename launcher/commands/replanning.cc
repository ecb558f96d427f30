#include "launcher/commands/replanning.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <vector>

#include "inventory/placement.h"
#include "launcher/commands/driving.h"
#include "launcher/running_job.h"

namespace muster {
namespace {

// Those of the job that the inventory names no more: a discovery command may know those only that are up.
// They are as good for their tasks as they were, and have room for no others.
void AddHostsInUse(const record::JobRecord& running, const Job& job, Inventory* inventory) {
  std::set<std::string> named;
  for (const Host& host : inventory->hosts) named.insert(host.name);
  const std::map<std::string, TaskPlace> places = TaskPlacesOf(running);
  for (const record::Host& known : running.hosts()) {
    if (named.contains(known.name())) continue;
    Host host = HostOf(known);
    host.gpus.emplace();
    host.slots = 0;
    for (const ReplicaRole role : kReplicaRoles) {
      for (const auto& [task, place] : places) {
        if (place.host != host.name || !task.starts_with(ReplicaRoleName(role) + ":")) continue;
        host.labels.push_back(job.replicas(role).on);
        host.gpus->insert(host.gpus->end(), place.gpus.begin(), place.gpus.end());
        ++host.slots;
      }
    }
    if (host.slots > 0) inventory->hosts.push_back(std::move(host));
  }
}

std::vector<std::string> NewSpareHosts(const record::JobRecord& running, const record::JobRecord& plan) {
  std::vector<std::string> names;
  for (const record::Host& host : plan.spare_hosts()) {
    if (FindHost(running, host.name()) == nullptr) names.push_back(host.name());
  }
  return names;
}

}  // namespace

absl::Status CheckOnlyWorkersDiffer(const record::JobRecord& running, const record::JobRecord& plan) {
  const std::map<std::string, std::string> places = PlacesOf(running);
  std::vector<std::string> changed;
  for (const record::Task& task : plan.tasks()) {
    if (const auto place = places.find(task.id()); place != places.end() && place->second != task.host()) {
      return FailedPrecondition(
          "%s of job %s runs on %s, where it may not be any more: the inventory %s is without that host, "
          "or its label; bring it back, or `muster run %s` starts all tasks again elsewhere",
          task.id(), running.id(), place->second, running.inventory_file(), running.job_file());
    }
    const record::Task* const before = Named(running.tasks(), task.id(), &record::Task::id);
    if (before != nullptr && before->spec_hash() != task.spec_hash()) changed.push_back(task.id());
  }
  if (!changed.empty()) {
    return FailedPrecondition(
        "what %s is started with is another thing now than when job %s was: first `muster run %s` brings it "
        "about, or what was changed in the job file, the data or muster itself is taken back",
        absl::StrJoin(changed, ", "), running.id(), running.job_file());
  }
  if (GoesOn(running, plan)) return absl::OkStatus();
  return FailedPrecondition(
      "job %s has no cluster in force that workers could join, or leave%s", running.id(),
      running.cluster().has_ending() ? ": it is about to end" : "; try again once it runs");
}

std::string DifferenceOfWorkers(const record::JobRecord& running, const record::JobRecord& plan) {
  using Places = std::map<std::string, std::string>;
  Places before, now;
  for (const auto& member : running.cluster().members()) before[member.task()] = member.host();
  for (const record::Task& task : plan.tasks()) now[task.id()] = task.host();
  const auto only_in = [](const Places& those, const Places& others) {
    std::vector<std::string> names;
    for (const auto& [task, host] : those) {
      if (!others.contains(task)) names.push_back(absl::StrCat(task, " on ", host));
    }
    return names;
  };
  const auto say = [](const std::vector<std::string>& names, const char* verb) {
    return absl::StrCat(absl::StrJoin(names, ", "), " ", verb, names.size() == 1 ? "s" : "");
  };
  const std::vector<std::string> join = only_in(now, before), leave = only_in(before, now);
  return !join.empty() ? say(join, "join") : !leave.empty() ? say(leave, "leave") : "";
}

Replanner::Replanner(const CommandContext& context, Job job, const Inventory& inventory)
    : context_(context), job_(std::move(job)) {
  if (job_.worker.max) return;
  for (const Host& host : inventory.hosts) known_.insert(host.name);
}

absl::StatusOr<std::optional<NewPlan>> Replanner::Replan(const std::set<std::string>& hosts,
                                                         const record::JobRecord& running) {
  std::vector<std::string> unknown;
  std::ranges::set_difference(hosts, known_, std::back_inserter(unknown));
  if (unknown.empty()) return std::nullopt;
  absl::StatusOr<JobPlan> plan = PlanNow(running);
  if (!plan.ok()) {
    return Annotate(plan.status(),
                    absl::StrCat("the job does not use ", absl::StrJoin(unknown, ", "), " yet"));
  }
  known_.insert(hosts.begin(), hosts.end());
  const bool has_more = plan->record.tasks_size() > running.tasks_size();
  const std::vector<std::string> spares = NewSpareHosts(running, plan->record);
  if (!has_more && spares.empty()) return std::nullopt;
  ContinueJob(running, &plan->record);
  std::string what = has_more ? DifferenceOfWorkers(running, plan->record) : "";
  if (!spares.empty()) {
    absl::StrAppend(&what, what.empty() ? "" : "; ", absl::StrJoin(spares, ", "),
                    spares.size() == 1 ? " is a spare host" : " are spare hosts", " from now on");
  }
  return NewPlan{.record = std::move(plan->record), .what = std::move(what)};
}

absl::StatusOr<JobPlan> Replanner::PlanNow(const record::JobRecord& running) const {
  MUSTER_ASSIGN_OR_RETURN(Inventory inventory, context_.ReadInventoryOf(running.inventory_file()));
  std::optional<record::JobRecord> servers;
  if (running.has_servers()) {
    MUSTER_ASSIGN_OR_RETURN(servers, context_.jobs().Load(running.servers().job()));
  }
  MUSTER_RETURN_IF_ERROR(FindGpus(context_, job_, &inventory));
  AddHostsInUse(running, job_, &inventory);
  Job job = job_;
  job.worker.count = WorkersOf(running);
  if (job.worker.max) {
    const int room = RoomForWorkers(job, inventory, TaskPlacesOf(running));
    job.worker.count = std::max(job.worker.count, std::min(job.worker.count + room, *job.worker.max));
    job.worker.max.reset();
  }
  MUSTER_ASSIGN_OR_RETURN(JobPlan plan,
                          PlanJob(context_, job, inventory, &running, servers ? &*servers : nullptr));
  MUSTER_RETURN_IF_ERROR(CheckOnlyWorkersDiffer(running, plan.record));
  return plan;
}

}  // namespace muster
