// For tests of the reconciler: a script of events, and what each of them leads to as lines of text.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/reconciler/reconciler.h"

namespace muster::reconcile {

/// ps:0 on host a, worker:0 on host b.
inline Desired OnePsOneWorker() {
  return {.hosts = {{"a", "10.0.0.1", {"program"}}, {"b", "10.0.0.2", {"program"}}},
          .tasks = {{"ps:0", "a", "v1", true, true}, {"worker:0", "b", "v1", true, false}}};
}

/// Plays the driver: remembers the requests, so that a test can answer them by name.
class Script {
 public:
  explicit Script(Desired desired, Record record = {}, Options options = {})
      : reconciler(desired, std::move(record), options, now_) {}

  std::string Feed(const Event& event) {
    std::string lines;
    bool has_failed = false;
    for (const Action& action : reconciler.Step(event, now_)) {
      const bool is_record = std::holds_alternative<PersistRecord>(action);
      if (has_failed && (is_record || IsRequest(action))) continue;
      has_failed = has_failed || (is_record && !record_error.ok());
      lines += (is_record && has_failed ? "no record" : Line(action)) + "\n";
    }
    return has_failed ? lines + Feed(RecordFailed{record_error}) : lines;
  }
  std::string Wait(Duration duration) {
    Pass(duration);
    return Feed(Tick{});
  }
  /// Without a Tick: the driver is busy.
  void Pass(Duration duration) { now_ += duration; }
  std::string Connected(const HostId& host, std::vector<TaskReport> tasks = {}) {
    const std::string none = Feed(HostConnected{host, connections_[host]});
    return none + Report(host, std::move(tasks));
  }
  std::string ConnectedAt(const HostId& host, const std::string& data_address) {
    return Feed(HostConnected{host, connections_[host], data_address});
  }
  std::string Report(const HostId& host, std::vector<TaskReport> tasks) {
    return Feed(HostReported{host, connections_[host], std::move(tasks)});
  }
  std::string Coming(const HostId& host) { return Feed(HostComing{host, connections_[host]}); }
  std::string LoggedIn(const HostId& host) {
    return Feed(HostComing{host, connections_[host], /*has_logged_in=*/true});
  }
  std::string Lost(const HostId& host) { return Lost(host, Unavailable("%s: connection reset", host)); }
  std::string Lost(const HostId& host, const absl::Status& status) {
    return Feed(HostFailed{host, connections_[host], status});
  }
  std::string Ready(const HostId& host) { return Feed(ContentsReady{host, requests_[host + " contents"]}); }
  std::string ContentsCome(const HostId& host) {
    return Feed(ContentsComing{host, requests_[host + " contents"]});
  }
  std::string Leased(const HostId& host, const TaskId& task, uint32_t port) {
    return Feed(PortLeased{host, requests_[host + " lease " + task], port});
  }
  std::string Started(const HostId& host, const TaskReport& task) {
    return Feed(TaskStarted{host, requests_[host + " start " + task.task], task});
  }
  std::string Refused(const HostId& host, const std::string& what, const absl::Status& status) {
    return Feed(RequestFailed{host, requests_[host + " " + what], status});
  }
  std::string Stopped(const HostId& host, std::vector<TaskReport> tasks, uint32_t processes_left = 0,
                      uint32_t ports_left = 0) {
    return Feed(TasksStopped{host, requests_[host + " stop"], processes_left, ports_left, std::move(tasks)});
  }

  /// Both hosts there, contents and ports too; generation 1 is written, and its starts are sent.
  void GatherAll() {
    Feed(Tick{});
    for (const HostId host : {"a", "b"}) {
      Connected(host);
      Ready(host);
    }
    Leased("a", "ps:0", 20000);
    Leased("b", "worker:0", 20001);
  }

  /// And both tasks running under it.
  void StartAll() {
    GatherAll();
    Started("a", Task("ps:0", TaskState::kRunning));
    Started("b", Task("worker:0", TaskState::kRunning));
    Wait(std::chrono::seconds(1));
  }

  static TaskReport Task(const TaskId& task, TaskState state, uint64_t generation = 1,
                         const std::string& spec_hash = "v1") {
    return {.task = task, .state = state, .generation = generation, .spec_hash = spec_hash, .incarnation = 1};
  }
  static TaskReport Ended(const TaskId& task, int exit_code, int64_t ended_micros = 1, bool stopped = false) {
    TaskReport report = Task(task, exit_code == 0 ? TaskState::kSucceeded : TaskState::kFailed);
    report.exit_code = exit_code;
    report.ended_micros = ended_micros;
    report.stopped = stopped;
    report.reason = "exited";
    return report;
  }

  absl::Status record_error;  // with which records are not written
  std::optional<Outcome> outcome;
  uint32_t minimum_incarnation = 0;  // of the newest start that has one
  uint32_t restarts = 0;             // of the newest start

 private:
  std::string Line(const Action& action) {
    if (const auto* connect = std::get_if<Connect>(&action)) {
      connections_[connect->host] = connect->connection;
      return "connect " + connect->host;
    }
    if (const auto* contents = std::get_if<EnsureContents>(&action)) {
      requests_[contents->host + " contents"] = contents->request;
      return "contents " + contents->host;
    }
    if (const auto* lease = std::get_if<LeasePort>(&action)) {
      requests_[lease->host + " lease " + lease->task] = lease->request;
      std::string line = "lease " + lease->host + " " + lease->task;
      for (const uint32_t port : lease->avoid) line += absl::StrFormat(" not %d", port);
      return line;
    }
    if (const auto* persist = std::get_if<PersistRecord>(&action)) {
      const Record& record = persist->record;
      return absl::StrFormat("persist %d%s", record.generation,
                             record.ending  ? " ending"
                             : record.fixed ? " fixed"
                                            : " open");
    }
    if (const auto* start = std::get_if<StartTask>(&action)) {
      requests_[start->host + " start " + start->task] = start->request;
      if (start->minimum_incarnation > 0) minimum_incarnation = start->minimum_incarnation;
      restarts = start->restarts;
      std::string line =
          absl::StrFormat("start %s %s %d %s", start->host, start->task, start->generation, start->spec_hash);
      for (const Member& member : *start->cluster) line += " " + Address(member);
      return line;
    }
    if (const auto* stop = std::get_if<StopTasks>(&action)) {
      requests_[stop->host + " stop"] = stop->request;
      std::string line = "stop " + stop->host;
      for (const Deployment& target : stop->targets) line += " " + target.task + " " + target.spec_hash;
      return stop->targets.empty() ? absl::StrFormat("%s all below %d", line, stop->minimum_generation)
                                   : line;
    }
    outcome = std::get<Finish>(action).outcome;
    return absl::StrFormat("finish %d: %s", outcome->exit_code, outcome->message);
  }

  TimePoint now_{};
  std::map<HostId, ConnectionId> connections_;
  std::map<std::string, RequestId> requests_;

 public:
  Reconciler reconciler;
};

inline constexpr TaskState kRunning = TaskState::kRunning;

}  // namespace muster::reconcile
