// check, plan, show and list: commands that look and change nothing.
#include <algorithm>
#include <cstdio>
#include <map>

#include "base/stdout.h"
#include "launcher/commands/context.h"
#include "launcher/fleet.h"
#include "launcher/host_session.h"
#include "launcher/plan.h"
#include "launcher/task_metrics.h"

namespace muster {
namespace {

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

Cell ListOf(const auto& strings) { return std::vector<std::string>(strings.begin(), strings.end()); }

// What a job's record says of its state, without asking its hosts.
std::string RecordedState(const record::JobRecord& record) {
  if (!record.cluster().has_ending()) return record.cluster().fixed() ? "Running" : "Pending";
  switch (static_cast<reconcile::Result>(record.cluster().ending().result())) {
    case reconcile::Result::kSucceeded:
      return "Succeeded";
    case reconcile::Result::kFailed:
      return "Failed";
    case reconcile::Result::kStopped:
      return "Stopped";
  }
  return "";
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

std::string StateName(const agent::TaskStatus& status) {
  return reconcile::TaskStateName(ReportOf(status).state);
}

}  // namespace

absl::Status CheckCommand(const CommandContext& context) {
  MUSTER_ASSIGN_OR_RETURN(const Inventory inventory, context.ReadInventoryFlag());
  const std::vector<record::Host> hosts = AllHosts(inventory);
  std::vector<agent::FactsResponse> facts(hosts.size());
  std::vector<std::string> accepted(hosts.size());
  const std::vector<absl::Status> statuses =
      AskHosts(hosts, context.connect_options(), context.connect_timeout(),
               [&](size_t i, AgentConnection& connection) {
                 facts[i] = connection.facts();
                 accepted[i] = connection.accepted_key();
                 return absl::OkStatus();
               });
  Table table(
      {"HOST", "STATE", "ARCH", "LIBC", "INSTRUCTION SETS", "CPUS", "MEMORY", "DISK FREE", "ADDRESSES"});
  for (size_t i = 0; i < hosts.size(); ++i) {
    if (!accepted[i].empty()) Complain(hosts[i].name() + ": accepted its key " + accepted[i]);
    if (!statuses[i].ok()) {
      table.Add({hosts[i].name(), "unreachable", {}, {}, {}, {}, {}, {}, {}});
      continue;
    }
    const agent::FactsResponse& fact = facts[i];
    table.Add({hosts[i].name(), "ok", fact.architecture(), fact.libc(), ListOf(fact.instruction_sets()),
               int64_t{fact.processors()}, Cell::Bytes(fact.memory_bytes()),
               Cell::Bytes(fact.disk_free_bytes()), ListOf(fact.addresses())});
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
  MUSTER_ASSIGN_OR_RETURN(const Inventory inventory, context.ReadInventoryFlag());
  MUSTER_ASSIGN_OR_RETURN(const JobPlan plan, MakePlan(job, inventory,
                                                       {.installation = context.installation(),
                                                        .data_folder = context.data_folder(),
                                                        .data_cache = context.data_cache()}));
  // Against the job of this name that may be running.
  std::map<std::string, std::string> running;
  if (const auto record = context.jobs().Find(job.name);
      record.ok() && !record->cluster().has_ending() && record->cluster().fixed()) {
    for (const record::Task& task : record->tasks()) running[task.id()] = task.spec_hash();
  }
  std::map<std::string, int> counts;
  Table table({"TASK", "HOST", "ADDRESS", "ACTION"});
  for (const record::Task& task : plan.record.tasks()) {
    const auto old = running.find(task.id());
    const std::string action = old == running.end()              ? "start"
                               : old->second == task.spec_hash() ? "unchanged"
                                                                 : "redeploy";
    ++counts[action];
    const auto host = std::find_if(plan.record.hosts().begin(), plan.record.hosts().end(),
                                   [&](const record::Host& h) { return h.name() == task.host(); });
    table.Add({task.id(), task.host(), host->data_address(), action});
    running.erase(task.id());
  }
  for (const auto& [task, hash] : running) {
    table.Add({task, {}, {}, "stop"});
    ++counts["stop"];
  }
  context.Print(table);
  std::string summary;
  for (const auto& [action, count] : counts) {
    summary += absl::StrFormat("%s%d %s", summary.empty() ? "" : ", ", count, action);
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
  MUSTER_ASSIGN_OR_RETURN(const record::JobRecord record, context.jobs().Find(context.flags().job));
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
        for (const agent::TaskStatus& task : response.list_tasks().tasks()) tasks[i][task.task()] = task;
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
  Table task_table({"TASK", "HOST", "STATE", "RESTARTS", "AGE", "ADDRESS", "REASON"});
  for (const record::Task& task : record.tasks()) {
    const size_t i = host_index[task.host()];
    const auto found = tasks[i].find(task.id());
    if (found == tasks[i].end()) {
      task_table.Add(
          {task.id(), task.host(), statuses[i].ok() ? "Pending" : "Lost", {}, {}, addresses[task.id()], {}});
      continue;
    }
    const agent::TaskStatus& status = found->second;
    const bool ended =
        status.state() == agent::TASK_STATE_SUCCEEDED || status.state() == agent::TASK_STATE_FAILED;
    task_table.Add({task.id(), task.host(), StateName(status), int64_t{status.restarts()},
                    Age(status.started_micros(), ended ? status.ended_micros() : now), addresses[task.id()],
                    status.reason()});
  }
  std::vector<std::pair<std::string, std::vector<MetricSample>>> samples;
  for (const record::Task& task : record.tasks()) {
    const auto& of_host = metrics[host_index[task.host()]].tasks;
    if (const auto found = of_host.find(task.id()); found != of_host.end()) samples.push_back(*found);
  }
  const MetricsTables metric_tables = MakeMetricsTables(samples);
  if (context.flags().format == OutputFormat::kJson) {
    const std::string of_metrics =
        context.flags().metrics
            ? absl::StrFormat(", \"metrics\": {\"workers\": %s, \"shards\": %s, \"pushes\": %s}",
                              metric_tables.workers.ToJson(), metric_tables.shards.ToJson(),
                              metric_tables.pushes.ToJson())
            : "";
    PrintToStdout(absl::StrFormat("{\"job\": \"%s\", \"state\": \"%s\", \"hosts\": %s, \"tasks\": %s%s}\n",
                                  record.id(), RecordedState(record), host_table.ToJson(),
                                  task_table.ToJson(), of_metrics));
  } else {
    PrintToStdout(absl::StrFormat("job %s, %s, generation %d\n\n%s\n%s", record.id(), RecordedState(record),
                                  record.cluster().generation(), host_table.ToText(), task_table.ToText()));
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
  Table table({"JOB", "STATE", "AGE", "RAN", "HOSTS", "TASKS", "JOB FILE"});
  const int64_t now = WallTimeMicros();
  for (const record::JobRecord& record : context.jobs().List(&problems)) {
    const int64_t end = record.ended_micros() != 0 ? record.ended_micros() : now;
    table.Add({record.id(), RecordedState(record), Age(record.created_micros(), now),
               Age(record.created_micros(), end), int64_t{record.hosts_size()}, int64_t{record.tasks_size()},
               record.job_file()});
  }
  context.Print(table);
  Complain(problems);
  return FirstFailure(problems);
}

}  // namespace muster
