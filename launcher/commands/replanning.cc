#include "launcher/commands/replanning.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <set>
#include <vector>

#include "inventory/placement.h"
#include "launcher/commands/driving.h"
#include "launcher/fleet.h"
#include "launcher/host_records.h"
#include "launcher/running_job.h"

namespace muster {
namespace {

constexpr size_t kLookupsAtOnce = 32;

// What the job has is as good for it as it was, though the host may be lost, or not be named any more: a
// discovery command may know those only that are up. Such a one has room for no others.
void KeepHostsInUse(const record::JobRecord& running, const Job& job, Inventory* inventory) {
  const std::map<std::string, TaskPlace> places = TaskPlacesOf(running);
  for (const record::Host& known : running.hosts()) {
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
    if (host.slots == 0) continue;
    host.data_address = known.data_address();  // its name may mean none any more
    const auto listed = std::ranges::find(inventory->hosts, host.name, &Host::name);
    if (listed == inventory->hosts.end()) {
      inventory->hosts.push_back(std::move(host));
      continue;
    }
    listed->data_address = host.data_address;
  }
}

// The others would have no way to tasks there.
void RemoveUnusedLocalHosts(const record::JobRecord& running, Inventory* inventory) {
  std::erase_if(inventory->hosts, [&](const Host& host) {
    return host.local && Named(running.hosts(), host.name, &record::Host::name) == nullptr;
  });
}

// "a, b VERB"
std::string Sentence(const std::vector<std::string>& names, const char* of_one, const char* of_several) {
  return absl::StrCat(absl::StrJoin(names, ", "), " ", names.size() == 1 ? of_one : of_several);
}

// Why the job does without these.
absl::Status NotUsedYet(const std::map<std::string, absl::Status>& left_out) {
  std::vector<std::string> names, reasons;
  for (const auto& [name, why] : left_out) {
    names.push_back(name);
    reasons.emplace_back(why.message());
  }
  if (names.empty()) return absl::OkStatus();
  return Unavailable("the job does not use %s yet: %s", absl::StrJoin(names, ", "),
                     absl::StrJoin(reasons, "; "));
}

// Whether others reach its tasks.
absl::Status LookUp(const Host& host, TimePoint deadline) {
  MUSTER_ASSIGN_OR_RETURN(const record::Host found, ResolvedRecordOf(host, deadline));
  return CheckReachable(found);
}

// The hosts that can have no task for now, and why. `unasked`: those of which it is not known which GPUs they
// have, or which lack some.
std::map<std::string, absl::Status> Unusable(const Job& job, const Inventory& inventory,
                                             const std::set<std::string>& in_use,
                                             const std::map<std::string, absl::Status>& unasked) {
  std::map<std::string, absl::Status> unusable;
  for (const ReplicaRole role : kReplicaRoles) {
    if (job.replicas(role).gpus == 0) continue;
    for (const int index : SuitableHosts(job.replicas(role), inventory)) {
      if (const auto why = unasked.find(inventory.hosts[index].name); why != unasked.end())
        unusable.insert(*why);
    }
  }
  std::vector<const Host*> named;
  for (const int index : SuitableHosts(job, inventory)) {
    if (!in_use.contains(inventory.hosts[index].name)) named.push_back(&inventory.hosts[index]);
  }
  const TimePoint deadline = Now() + kLookupsTimeout;
  const std::vector<absl::Status> lookups =
      OnEachHost(named.size(), kLookupsAtOnce, [&](size_t i) { return LookUp(*named[i], deadline); });
  for (size_t i = 0; i < named.size(); ++i) {
    if (!lookups[i].ok()) unusable.insert({named[i]->name, lookups[i]});
  }
  std::erase_if(unusable, [&](const auto& host) { return in_use.contains(host.first); });
  return unusable;
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
          "%s of job %s runs on %s, where it may not be any more: the inventory %s is without that host, or "
          "its label, or the host without a GPU that it has; bring that back, or `muster run %s` starts all "
          "tasks again elsewhere",
          task.id(), running.id(), place->second, running.inventory_file(), running.job_file());
    }
    const record::Task* const before = Named(running.tasks(), task.id(), &record::Task::id);
    if (before != nullptr && before->spec_hash() != task.spec_hash()) changed.push_back(task.id());
  }
  if (!changed.empty()) {
    return FailedPrecondition(
        "what %s is started with is another thing now than when job %s was: first `muster run %s` brings it "
        "about, or what was changed in the data or muster itself is taken back",
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
  const std::vector<std::string> join = only_in(now, before), leave = only_in(before, now);
  return !join.empty()    ? Sentence(join, "joins", "join")
         : !leave.empty() ? Sentence(leave, "leaves", "leave")
                          : "";
}

Replanner::Replanner(const CommandContext& context, Job job, const Inventory& inventory)
    : Replanner(context, std::move(job)) {
  if (job_.worker.max) return;
  for (const Host& host : inventory.hosts) known_.insert(host.name);
}

std::optional<Replanner> Replanner::Of(const CommandContext& context, const record::JobRecord& running) {
  if (running.standing()) return std::nullopt;
  absl::StatusOr<Job> job = JobOf(running);
  if (job.ok()) return Replanner(context, *std::move(job));
  std::fprintf(stderr, "no hosts join by themselves: %s\n", std::string(job.status().message()).c_str());
  return std::nullopt;
}

absl::StatusOr<std::optional<NewPlan>> Replanner::Replan(const std::set<std::string>& hosts,
                                                         const record::JobRecord& running, int cancel_fd) {
  std::vector<std::string> unknown;
  std::ranges::set_difference(hosts, known_, std::back_inserter(unknown));
  if (unknown.empty()) return std::nullopt;
  Reasons left_out;
  absl::StatusOr<JobPlan> plan = PlanNow(running, cancel_fd, &left_out);
  // The job has always done without the others, or they are spare ones already, for which it has no work.
  const bool is_full = job_.worker.max.value_or(0) <= WorkersOf(running);
  std::erase_if(left_out, [&](const auto& host) {
    return !std::ranges::binary_search(unknown, host.first) ||
           (is_full && FindHost(running, host.first) != nullptr);
  });
  if (!plan.ok()) {
    std::erase_if(unknown, [&](const std::string& name) { return FindHost(running, name) != nullptr; });
    return Annotate(plan.status(), unknown.empty() ? std::string("no other workers can join")
                                                   : absl::StrCat("the job does not use ",
                                                                  absl::StrJoin(unknown, ", "), " yet"));
  }
  std::vector<std::string> joining;
  for (const record::Task& task : plan->record.tasks()) {
    if (Named(running.tasks(), task.id(), &record::Task::id) == nullptr) {
      joining.push_back(absl::StrCat(task.id(), " on ", task.host()));
    }
  }
  const std::vector<std::string> spares = NewSpareHosts(running, plan->record);
  if (joining.empty() && spares.empty()) {
    MUSTER_RETURN_IF_ERROR(NotUsedYet(left_out));
    known_.insert(hosts.begin(), hosts.end());
    return std::nullopt;
  }
  std::vector<std::string> what;
  if (!joining.empty()) what.push_back(Sentence(joining, "joins", "join"));
  if (!spares.empty()) {
    what.push_back(Sentence(spares, "is a spare host from now on", "are spare hosts from now on"));
  }
  return NewPlan{
      .record = std::move(plan->record), .what = absl::StrJoin(what, "; "), .rest = NotUsedYet(left_out)};
}

absl::StatusOr<JobPlan> Replanner::PlanNow(const record::JobRecord& running, int cancel_fd,
                                           Reasons* left_out) const {
  MUSTER_ASSIGN_OR_RETURN(Inventory inventory, context_.ReadInventoryOf(running.inventory_file()));
  MUSTER_ASSIGN_OR_RETURN(const auto servers, ServersOf(context_.jobs(), running));
  RemoveUnusedLocalHosts(running, &inventory);
  std::set<std::string> in_use;
  for (const auto& [task, place] : TaskPlacesOf(running)) in_use.insert(place.host);
  ConnectOptions connect = context_.connect_options(running);
  connect.ssh.cancel_fd = cancel_fd;
  const Reasons unasked = AskHostsForGpus(context_, job_, connect, &inventory);
  for (const auto& [host, why] : unasked) {
    if (absl::IsInvalidArgument(why) && in_use.contains(host)) return why;
  }
  *left_out = Unusable(job_, inventory, in_use, unasked);
  std::erase_if(inventory.hosts, [&](const Host& host) { return left_out->contains(host.name); });
  KeepHostsInUse(running, job_, &inventory);
  Job job = job_;
  job.worker.count = WorkersOf(running);
  if (job.worker.max) {
    const int room = RoomForWorkers(job, inventory, TaskPlacesOf(running));
    job.worker.count = std::max(job.worker.count, std::min(job.worker.count + room, *job.worker.max));
    job.worker.max.reset();
  }
  MUSTER_ASSIGN_OR_RETURN(JobPlan plan,
                          PlanJob(context_, job, inventory, &running, servers ? &*servers : nullptr,
                                  /*keeps_contents=*/true));
  MUSTER_RETURN_IF_ERROR(CheckOnlyWorkersDiffer(running, plan.record));
  return plan;
}

}  // namespace muster
