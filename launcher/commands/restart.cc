// restart: tasks of a job that runs begin again, as they are.
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <set>

#include "launcher/commands/changing.h"
#include "launcher/commands/controlling.h"
#include "launcher/commands/replanning.h"
#include "launcher/fleet.h"
#include "launcher/running_job.h"

namespace muster {
namespace {

using Tasks = std::set<std::string>;

// Of what is trained a server that begins again has what a checkpoint says, or else another server.
absl::Status CheckKept(const record::JobRecord& record, const Tasks& tasks) {
  Tasks servers, lost;
  for (const record::Task& task : record.tasks()) {
    if (!task.follows_cluster() || !absl::StartsWith(task.id(), "ps:") || !tasks.contains(task.id()))
      continue;
    servers.insert(task.id());
    if (HasArgument(task, "--checkpoint_dir=")) continue;
    if (servers.size() > 1 || !HasArgument(task, "--durability=replicated")) lost.insert(task.id());
  }
  if (lost.empty()) return absl::OkStatus();
  return FailedPrecondition(
      "what job %s has trained would be lost with %s, which nothing keeps it for (`durability`): `muster "
      "restart %s`, without a task, begins the training anew",
      record.id(), absl::StrJoin(servers, ", "), record.id());
}

absl::Status CheckCanRestart(const record::JobRecord& record, const Tasks& tasks) {
  for (const std::string& task : tasks) {
    if (Named(record.tasks(), task, &record::Task::id) == nullptr) {
      return InvalidArgument("job %s has no task '%s'; it has %s", record.id(), task, NamesOfTasks(record));
    }
    if (HasSucceeded(record, task)) {
      return FailedPrecondition("%s of job %s has succeeded: it is not started again alone", task,
                                record.id());
    }
  }
  return CheckKept(record, tasks);
}

// None of them starts before all hosts are there: one that is away would end a job that goes on without it.
absl::Status CheckAllAreThere(const CommandContext& context, const record::JobRecord& record) {
  std::set<std::string> names;
  for (const auto& [task, host] : PlacesOf(record)) names.insert(host);
  std::vector<record::Host> hosts;
  std::ranges::copy_if(record.hosts(), std::back_inserter(hosts),
                       [&](const record::Host& host) { return names.contains(host.name()); });
  const std::vector<absl::Status> statuses =
      AskHosts(hosts, context.connect_options(record), context.connect_timeout(),
               [](size_t, AgentConnection&) { return absl::OkStatus(); });
  return Annotate(FirstFailure(statuses),
                  absl::StrFormat("job %s goes on as it is, since all tasks would wait for", record.id()));
}

// "worker:1 on host-2, worker:2 on host-3 are started again"
std::string Restarted(const record::JobRecord& record, const Tasks& tasks) {
  if (tasks.empty()) return "all tasks are started again";
  std::vector<std::string> names;
  for (const auto& [task, host] : PlacesOf(record)) {
    if (tasks.contains(task)) names.push_back(absl::StrCat(task, " on ", host));
  }
  return absl::StrCat(absl::StrJoin(names, ", "), names.size() == 1 ? " is" : " are", " started again");
}

absl::StatusOr<std::optional<JobChange>> DecideRestart(const CommandContext& context, const Tasks& tasks,
                                                       const record::JobRecord& before) {
  MUSTER_RETURN_IF_ERROR(CheckTrainsNothing(context.jobs(), before));
  MUSTER_RETURN_IF_ERROR(CheckCanRestart(before, tasks));
  // Who drives it elsewhere may reach others than this machine does.
  if (tasks.empty() && !IsDrivenElsewhere(before)) {
    MUSTER_RETURN_IF_ERROR(CheckAllAreThere(context, before));
  }
  const auto as_it_is = [contents = ContentsHere(context, before)](const record::JobRecord* running) {
    return absl::StatusOr<JobPlan>(JobPlan{.record = *running, .contents = contents});
  };
  JobChange change{.planning = as_it_is,
                   .edit =
                       [tasks](record::JobRecord* record) {
                         // More of them may have succeeded before it was this process's.
                         MUSTER_RETURN_IF_ERROR(CheckCanRestart(*record, tasks));
                         tasks.empty() ? RestartAllTasks(record) : RestartTasks(tasks, record);
                         return absl::OkStatus();
                       },
                   .describe = [tasks](const record::JobRecord&,
                                       const record::JobRecord& after) { return Restarted(after, tasks); },
                   .verb = "restart"};
  if (auto replanner = Replanner::Of(context, before)) {
    change.replan = std::bind_front(&Replanner::Replan, std::make_shared<Replanner>(*std::move(replanner)));
  }
  MUSTER_ASSIGN_OR_RETURN(change.plan, change.planning(&before));
  return change;
}

}  // namespace

absl::StatusOr<int> RestartCommand(const CommandContext& context) {
  const Tasks tasks(context.flags().tasks.begin(), context.flags().tasks.end());
  return ChangeJob(context, [&](const record::JobRecord& before, const JobDriver*) {
    return DecideRestart(context, tasks, before);
  });
}

}  // namespace muster
