// check, plan, show and list: commands that look and change nothing.
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/stdout.h"
#include "launcher/commands/controlling.h"
#include "launcher/commands/driving.h"
#include "launcher/fleet.h"
#include "launcher/gpus.h"
#include "launcher/host_records.h"
#include "launcher/host_session.h"
#include "launcher/running_job.h"
#include "launcher/task_metrics.h"

namespace muster {
namespace {

using Json = nlohmann::json;

void Complain(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

void Complain(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) {
    if (!status.ok()) Complain(std::string(status.message()));
  }
}

Cell Age(int64_t from_micros, int64_t to_micros) {
  if (from_micros == 0) return {};
  return Cell::Age(std::chrono::microseconds(std::max<int64_t>(to_micros - from_micros, 0)));
}

// "+300.004s": how far a host's clock is ahead of this machine's. In JSON seconds.
Cell ClockOffset(int64_t micros) {
  Cell cell;
  const double seconds = static_cast<double>(micros) / 1e6;
  cell.text = absl::StrFormat("%+.3fs", seconds);
  cell.value = seconds;
  return cell;
}

Cell ListOf(const auto& strings) { return std::vector<std::string>(strings.begin(), strings.end()); }

// "0,2"
Cell GpusOf(const record::Task& task) {
  std::vector<std::string> gpus;
  for (const int gpu : task.gpus()) gpus.push_back(absl::StrCat(gpu));
  return gpus;
}

// A whole file of a task's folder.
absl::StatusOr<std::string> ReadTaskFile(AgentConnection& connection, const std::string& job,
                                         const std::string& task, const std::string& path,
                                         TimePoint deadline) {
  constexpr size_t kMostBytes = 16 << 20;
  agent::Request request;
  request.mutable_read_file()->set_job(job);
  request.mutable_read_file()->set_task(task);
  request.mutable_read_file()->set_path(path);
  MUSTER_ASSIGN_OR_RETURN(const uint64_t id, connection.Send(request, deadline));
  std::string text;
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const auto answer, connection.Receive(-1, deadline));
    if (!answer) return DeadlineExceeded("it does not come");
    if (answer->id != id) continue;
    MUSTER_RETURN_IF_ERROR(StatusOf(answer->response, task));
    text += answer->response.read_file().data();
    if (text.size() > kMostBytes) return InvalidArgument("it has more than %d bytes", kMostBytes);
    if (answer->response.last()) return text;
  }
}

bool IsOfThisMoment(const MetricSample& sample) {
  return sample.name == "muster_worker_waiting_seconds" || sample.name == "muster_ps_awaited_seconds";
}

// What the tasks of one host have written; nothing of those that have written none.
struct HostMetrics {
  std::map<std::string, std::vector<MetricSample>> tasks;
  std::vector<absl::Status> problems;
};

absl::Status ReadMetrics(AgentConnection& connection, const std::string& job,
                         const std::map<std::string, agent::TaskStatus>& tasks, TimePoint deadline,
                         HostMetrics* metrics) {
  for (const auto& [task, status] : tasks) {
    const auto text = ReadTaskFile(connection, job, task, kTaskMetricsFile, deadline);
    if (absl::IsNotFound(text.status())) continue;
    if (absl::IsUnavailable(text.status())) return text.status();
    auto samples = text.ok() ? ParseMetrics(*text) : text.status();
    if (!samples.ok()) {
      metrics->problems.push_back(Annotate(samples.status(), task + ": " + kTaskMetricsFile));
      continue;
    }
    if (status.state() != agent::TASK_STATE_RUNNING) std::erase_if(*samples, IsOfThisMoment);
    metrics->tasks[task] = *std::move(samples);
  }
  return absl::OkStatus();
}

Json DriverJson(const record::JobRecord& record, const std::optional<JobDriver>& driver) {
  if (IsDrivenElsewhere(record)) return {{"host", record.controller().name()}};
  if (!driver) return nullptr;
  return {{"pid", driver->pid}, {"background", driver->in_background}};
}

// Who acts on what happens to the job: a host, "process 17" of this one, or "nobody".
std::string DriverName(const record::JobRecord& record, const std::optional<JobDriver>& driver) {
  if (IsDrivenElsewhere(record)) return record.controller().name();
  return driver ? absl::StrCat("process ", driver->pid) : "nobody";
}

std::string DriverLine(const CommandContext& context, const record::JobRecord& record,
                       const std::optional<JobDriver>& driver) {
  std::string line = "driven by " + DriverName(record, driver);
  if (IsDrivenElsewhere(record)) return line + "\n";
  if (!driver) return absl::StrFormat("%s: `muster wait %s` does it\n", line, record.id());
  if (!driver->in_background) return line + "\n";
  return absl::StrFormat("%s in the background, which writes %s\n", line,
                         (context.jobs().JobFolder(record.id()) / kControllerLog).string());
}

// Of a job that has ended, nothing.
Cell DriverCell(const CommandContext& context, const record::JobRecord& record) {
  if (record.ended_micros() != 0) return {};
  return DriverName(record, context.jobs().DriverOf(record.id()));
}

// Of a task that has succeeded, also once its host knows nothing of it any more (gc).
std::optional<agent::TaskStatus> RecordedSuccess(const record::JobRecord& record, const std::string& task) {
  const auto* success = Named(record.cluster().successes(), task, &record::ClusterRecord::Success::task);
  // Before a cluster is in force they are those of the one before.
  if (success == nullptr || !record.cluster().fixed()) return std::nullopt;
  agent::TaskStatus status;
  status.set_state(agent::TASK_STATE_SUCCEEDED);
  status.set_restarts(success->restarts());
  status.set_started_micros(success->started_micros());
  status.set_ended_micros(success->ended_micros());
  status.set_reason(success->reason());
  return status;
}

std::string StateName(const agent::TaskStatus& status) {
  return reconcile::TaskStateName(ReportOf(status).state);
}

// What `run` would do with a task. A move restarts those that cannot follow their cluster, on all hosts;
// another cluster restarts all.
constexpr char kStart[] = "start", kRedeploy[] = "redeploy", kMove[] = "move", kRestart[] = "restart",
               kStop[] = "stop", kUnchanged[] = "unchanged";

// By task, in the order of the plan, then those that it has no more.
std::vector<std::pair<std::string, std::string>> ActionsOf(const record::JobRecord& running,
                                                           const record::JobRecord& plan) {
  const auto has_moved = [&](const std::string& host) {
    const record::Host* before = Named(running.hosts(), host, &record::Host::name);
    const record::Host* now = Named(plan.hosts(), host, &record::Host::name);
    // A host that was found elsewhere is where `run` will find it too, and one that was followed is there
    // already.
    return before != nullptr && now != nullptr && !before->planned_address().empty() &&
           before->planned_address() != now->planned_address() &&
           before->data_address() != now->data_address();
  };
  const bool any_has_moved = std::any_of(plan.hosts().begin(), plan.hosts().end(),
                                         [&](const record::Host& host) { return has_moved(host.name()); });
  const bool is_other_cluster = !running.id().empty() && !GoesOn(running, plan);
  std::vector<std::pair<std::string, std::string>> actions;
  for (const record::Task& task : plan.tasks()) {
    const record::Task* before = Named(running.tasks(), task.id(), &record::Task::id);
    const char* action = before == nullptr                          ? kStart
                         : before->spec_hash() != task.spec_hash()  ? kRedeploy
                         : is_other_cluster                         ? kRestart
                         : has_moved(task.host())                   ? kMove
                         : any_has_moved && !task.follows_cluster() ? kRestart
                                                                    : kUnchanged;
    actions.emplace_back(task.id(), action);
  }
  for (const record::Task& task : running.tasks()) {
    if (Named(plan.tasks(), task.id(), &record::Task::id) == nullptr) actions.emplace_back(task.id(), kStop);
  }
  return actions;
}

// " (trainer 3f12ab45 -> 9a01cd67)", or "".
std::string ChangedContents(const record::JobRecord& running, const record::JobRecord& plan) {
  std::vector<std::string> changes;
  for (const record::Content& content : plan.contents()) {
    const record::Content* before = Named(running.contents(), content.name(), &record::Content::name);
    if (before == nullptr || before->sha256() == content.sha256()) continue;
    changes.push_back(absl::StrFormat("%s %s -> %s", content.name(), before->sha256().substr(0, 8),
                                      content.sha256().substr(0, 8)));
  }
  return changes.empty() ? "" : " (" + absl::StrJoin(changes, ", ") + ")";
}

}  // namespace

absl::Status CheckCommand(const CommandContext& context) {
  MUSTER_ASSIGN_OR_RETURN(const Inventory inventory, context.ReadInventoryFlag());
  const std::vector<record::Host> hosts = AllHosts(inventory);
  std::vector<agent::FactsResponse> facts(hosts.size());
  std::vector<std::vector<AcceptedKey>> accepted(hosts.size());
  std::vector<int64_t> clock_offsets(hosts.size());
  std::vector<absl::StatusOr<std::vector<Gpu>>> gpus(hosts.size());
  const std::vector<absl::Status> statuses =
      AskHosts(hosts, context.connect_options(hosts), context.connect_timeout(),
               [&](size_t i, AgentConnection& connection) {
                 facts[i] = connection.facts();
                 accepted[i] = connection.accepted_keys();
                 clock_offsets[i] = connection.clock_offset_micros();
                 gpus[i] = AskForGpus(connection.transport(), Now() + kGpusTimeout);
                 return absl::OkStatus();
               });
  Table table({"HOST", "STATE", "ARCH", "LIBC", "INSTRUCTION SETS", "CPUS", "MEMORY", "DISK FREE",
               "CLOCK OFFSET", "GPUS", "ADDRESSES"});
  std::set<std::string> said;
  for (size_t i = 0; i < hosts.size(); ++i) {
    for (const AcceptedKey& key : accepted[i]) {
      // A jump host may have been met by several ways at once.
      if (said.insert(key.host).second) Complain(key.host + ": accepted its key " + key.fingerprint);
    }
    if (!statuses[i].ok()) {
      table.Add({hosts[i].name(), "unreachable", {}, {}, {}, {}, {}, {}, {}, {}, {}});
      continue;
    }
    const agent::FactsResponse& fact = facts[i];
    table.Add({hosts[i].name(), "ok", fact.architecture(), fact.libc(), ListOf(fact.instruction_sets()),
               int64_t{fact.processors()}, Cell::Bytes(fact.memory_bytes()),
               Cell::Bytes(fact.disk_free_bytes()), ClockOffset(clock_offsets[i]),
               ListOf(DescribeGpus(gpus[i].value_or(std::vector<Gpu>()))), ListOf(fact.addresses())});
    if (!gpus[i].ok()) Complain(std::string(gpus[i].status().message()));
  }
  context.Print(table);
  Complain(statuses);
  const absl::Status failure = FirstFailure(statuses);
  if (failure.ok()) return failure;
  return absl::Status(
      failure.code() == absl::StatusCode::kInvalidArgument ? failure.code() : absl::StatusCode::kUnavailable,
      "not every host is ready");
}

absl::Status PlanCommand(const CommandContext& context) {
  MUSTER_ASSIGN_OR_RETURN(const Job job, context.ReadJobFlag());
  MUSTER_ASSIGN_OR_RETURN(Inventory inventory, context.ReadInventoryFlag());
  MUSTER_RETURN_IF_ERROR(FindGpus(context, job, &inventory));
  // Against the job of this name that may be running.
  MUSTER_ASSIGN_OR_RETURN(const std::optional<record::JobRecord> unended,
                          FindUnended(context.jobs(), job.name));
  MUSTER_ASSIGN_OR_RETURN(const auto servers, FindServers(context, job.name));
  MUSTER_ASSIGN_OR_RETURN(JobPlan plan, PlanJob(context, job, inventory, unended ? &*unended : nullptr,
                                                servers ? &*servers : nullptr));
  record::JobRecord running;
  if (unended && unended->cluster().fixed() && !unended->cluster().has_ending()) running = *unended;
  std::map<std::string, int> counts;
  Table table({"TASK", "HOST", "ADDRESS", "GPUS", "ACTION"});
  for (const auto& [task, action] : ActionsOf(running, plan.record)) {
    const record::Task* planned = Named(plan.record.tasks(), task, &record::Task::id);
    const record::Host* host =
        planned == nullptr ? nullptr : Named(plan.record.hosts(), planned->host(), &record::Host::name);
    table.Add({task, host == nullptr ? Cell() : Cell(host->name()),
               host == nullptr ? Cell() : Cell(host->data_address()),
               planned == nullptr ? Cell() : GpusOf(*planned), action});
    ++counts[action];
  }
  context.Print(table);
  std::string summary;
  for (const char* action : {kStart, kRedeploy, kMove, kRestart, kStop, kUnchanged}) {
    if (counts[action] == 0) continue;
    summary += absl::StrFormat("%s%d %s", summary.empty() ? "" : ", ", counts[action], action);
    if (action == kRedeploy) summary += ChangedContents(running, plan.record);
  }
  if (const int more = job.worker.max.value_or(0) - WorkersOf(plan.record); more > 0) {
    summary += absl::StrFormat("; up to %d more join (max: %d)", more, *job.worker.max);
  }
  Complain(summary);
  if (!plan.data.empty()) Complain("data: " + plan.data);
  for (const record::Content& content : plan.record.contents()) {
    Complain(absl::StrFormat("%s: %s, sha256 %s", content.name(), FormatBytes(content.size_bytes()),
                             content.sha256().substr(0, 12)));
  }
  return absl::OkStatus();
}

absl::Status ShowCommand(const CommandContext& context) {
  MUSTER_ASSIGN_OR_RETURN(const record::JobRecord record, FindJob(context, context.flags().job));
  const std::vector<record::Host> hosts(record.hosts().begin(), record.hosts().end());
  std::vector<std::map<std::string, agent::TaskStatus>> tasks(hosts.size());
  std::vector<HostMetrics> metrics(hosts.size());
  const std::vector<absl::Status> statuses = AskHosts(
      hosts, context.connect_options(record), context.connect_timeout(),
      [&](size_t i, AgentConnection& connection) -> absl::Status {
        agent::Request request;
        request.mutable_list_tasks()->set_job(record.id());
        MUSTER_ASSIGN_OR_RETURN(const agent::Response response,
                                connection.Call(request, Now() + context.connect_timeout()));
        for (const agent::TaskStatus& task : response.list_tasks().tasks()) {
          tasks[i][task.task()] = connection.InOwnTime(task);
        }
        if (!context.flags().metrics) return absl::OkStatus();
        return ReadMetrics(connection, record.id(), tasks[i], Now() + context.connect_timeout(), &metrics[i]);
      });

  Table host_table({"HOST", "STATE", "SSH ADDRESS", "DATA ADDRESS", "TASKS"});
  std::map<std::string, size_t> host_index;
  for (size_t i = 0; i < hosts.size(); ++i) {
    host_index[hosts[i].name()] = i;
    const std::string ssh =
        hosts[i].local() ? "local" : absl::StrFormat("%s:%d", hosts[i].ssh_address(), hosts[i].ssh_port());
    host_table.Add({hosts[i].name(), statuses[i].ok() ? "ok" : "unreachable", ssh, hosts[i].data_address(),
                    static_cast<int64_t>(tasks[i].size())});
  }
  std::map<std::string, std::string> addresses;
  for (const auto& member : record.cluster().members()) {
    addresses[member.task()] =
        reconcile::Address({.data_address = member.data_address(), .port = member.port()});
  }
  const int64_t now = WallTimeMicros();
  Table task_table({"TASK", "HOST", "STATE", "RESTARTS", "AGE", "ADDRESS", "GPUS", "REASON"});
  for (const record::Task& task : record.tasks()) {
    const size_t i = host_index[task.host()];
    const auto found = tasks[i].find(task.id());
    const std::optional<agent::TaskStatus> known =
        found != tasks[i].end() ? found->second : RecordedSuccess(record, task.id());
    if (!known) {
      task_table.Add({task.id(),
                      task.host(),
                      record.folders_removed() ? "Removed"
                      : statuses[i].ok()       ? "Pending"
                                               : "Lost",
                      {},
                      {},
                      addresses[task.id()],
                      GpusOf(task),
                      {}});
      continue;
    }
    const agent::TaskStatus& status = *known;
    const bool ended =
        status.state() == agent::TASK_STATE_SUCCEEDED || status.state() == agent::TASK_STATE_FAILED;
    task_table.Add({task.id(), task.host(), StateName(status), int64_t{status.restarts()},
                    Age(status.started_micros(), ended ? status.ended_micros() : now), addresses[task.id()],
                    GpusOf(task), status.reason()});
  }
  std::vector<std::pair<std::string, std::vector<MetricSample>>> samples;
  for (const record::Task& task : record.tasks()) {
    const auto& of_host = metrics[host_index[task.host()]].tasks;
    if (const auto found = of_host.find(task.id()); found != of_host.end()) samples.push_back(*found);
  }
  const MetricsTables metric_tables = MakeMetricsTables(samples);
  const std::optional<JobDriver> driver = context.jobs().DriverOf(record.id());
  if (context.flags().format == OutputFormat::kJson) {
    const std::string of_metrics =
        context.flags().metrics
            ? absl::StrFormat(", \"metrics\": {\"workers\": %s, \"shards\": %s, \"pushes\": %s}",
                              metric_tables.workers.ToJson(), metric_tables.shards.ToJson(),
                              metric_tables.pushes.ToJson())
            : "";
    PrintToStdout(absl::StrFormat(
        "{\"job\": \"%s\", \"state\": \"%s\", \"driver\": %s, \"hosts\": %s, \"tasks\": %s%s}\n", record.id(),
        RecordedState(record), DriverJson(record, driver).dump(), host_table.ToJson(), task_table.ToJson(),
        of_metrics));
  } else {
    PrintToStdout(absl::StrFormat("job %s, %s, generation %d\n%s\n%s\n%s", record.id(), RecordedState(record),
                                  record.cluster().generation(),
                                  record.ended_micros() == 0 ? DriverLine(context, record, driver) : "",
                                  host_table.ToText(), task_table.ToText()));
    for (const Table& table : {metric_tables.workers, metric_tables.shards, metric_tables.pushes}) {
      if (!table.empty()) PrintToStdout("\n" + table.ToText());
    }
    if (context.flags().metrics && samples.empty() && FirstFailure(statuses).ok()) {
      PrintToStdout("\nno task has written metrics; those of a model do, from their first second on\n");
    }
    if (record.cluster().has_ending()) {
      PrintToStdout(absl::StrFormat("\n%s\n", record.cluster().ending().message()));
    }
  }
  Complain(statuses);
  for (const HostMetrics& of_host : metrics) Complain(of_host.problems);
  if (!FirstFailure(statuses).ok()) return Unavailable("not every host could be asked");
  for (const HostMetrics& of_host : metrics) {
    if (!of_host.problems.empty()) return FailedPrecondition("not every task's metrics can be read");
  }
  return absl::OkStatus();
}

absl::Status ListCommand(const CommandContext& context) {
  std::vector<absl::Status> problems;
  Table table({"JOB", "STATE", "AGE", "RAN", "DRIVER", "HOSTS", "TASKS", "JOB FILE"});
  const int64_t now = WallTimeMicros();
  for (const record::JobRecord& record : FindJobs(context, &problems)) {
    const int64_t end = record.ended_micros() != 0 ? record.ended_micros() : now;
    table.Add({record.id(), RecordedState(record), Age(record.created_micros(), now),
               Age(record.created_micros(), end), DriverCell(context, record), int64_t{record.hosts_size()},
               int64_t{record.tasks_size()}, record.job_file()});
  }
  context.Print(table);
  Complain(problems);
  const absl::Status failure = FirstFailure(problems);
  if (failure.ok()) return failure;
  return absl::Status(failure.code(), absl::StrFormat("%d %s could not be read", problems.size(),
                                                      problems.size() == 1 ? "record" : "records"));
}

}  // namespace muster
