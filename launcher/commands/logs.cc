// logs: what tasks printed, from the beginning; with -f, as it comes.
#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "base/stdout.h"
#include "launcher/commands/controlling.h"
#include "launcher/commands/reconnecting.h"
#include "launcher/fleet.h"
#include "launcher/job_history.h"
#include "launcher/running_job.h"
#include "launcher/terminal.h"

namespace muster {
namespace {

constexpr Duration kNotBegunPause = std::chrono::milliseconds(500);
constexpr Duration kAnswerTimeout = std::chrono::minutes(1);
constexpr Duration kReaderLookEvery = std::chrono::seconds(1);

class Printer {
 public:
  explicit Printer(bool prefix) : printer_(prefix) {}
  void Print(const std::string& task, const std::string& host, const agent::Response& response) {
    const std::lock_guard lock(mutex_);
    printer_.Print(task, host, response.read_file().data());
    if (response.last()) printer_.Flush(task, host);
  }

 private:
  std::mutex mutex_;
  LogPrinter printer_;
};

// By the launcher's own record: of a job that `run` gave up before all its tasks began, nothing more comes.
bool HasEnded(const CommandContext& context, const std::string& job) {
  const auto record = context.jobs().Find(job);
  return !record.ok() || record->cluster().has_ending();
}

struct HostLogs {
  const record::JobRecord& record;
  const record::Host& host;
  std::map<std::string, uint64_t> offsets;  // of the tasks that are not finished
  bool follow = false;
};

absl::StatusOr<uint64_t> AskForLog(const HostLogs& logs, const std::string& task,
                                   AgentConnection& connection) {
  agent::Request request;
  request.mutable_read_file()->set_job(logs.record.id());
  request.mutable_read_file()->set_task(task);
  request.mutable_read_file()->set_path("log");
  request.mutable_read_file()->set_offset(logs.offsets.at(task));
  request.mutable_read_file()->set_follow(logs.follow);
  return connection.Send(request, Now() + std::chrono::seconds(10));
}

// Reads on where the offsets are until all logs have ended; they say how far it came if the connection
// breaks. A task without a log has not begun, and when following, it may yet.
absl::Status ReadLogs(const CommandContext& context, HostLogs& logs, AgentConnection& connection,
                      Printer& printer) {
  std::map<uint64_t, std::string> requests;
  std::set<std::string> to_ask;
  for (const auto& [task, offset] : logs.offsets) to_ask.insert(task);
  TimePoint ask_again = Now(), heard = Now();
  while (!requests.empty() || !to_ask.empty()) {
    if (ReaderIsGone(STDOUT_FILENO)) return absl::OkStatus();  // whoever read it has seen what it wanted
    if (!to_ask.empty() && Now() >= ask_again) {
      for (const std::string& task : std::exchange(to_ask, {})) {
        MUSTER_ASSIGN_OR_RETURN(const uint64_t id, AskForLog(logs, task, connection));
        requests[id] = task;
      }
      ask_again = Now() + kNotBegunPause;
    }
    const TimePoint look = Now() + kReaderLookEvery;
    MUSTER_ASSIGN_OR_RETURN(const auto answer,
                            connection.Receive(-1, to_ask.empty() ? look : std::min(look, ask_again)));
    if (!answer && !logs.follow && Now() - heard >= kAnswerTimeout) {
      return Unavailable("%s: the agent does not answer", logs.host.name());
    }
    if (!answer) continue;  // a task may be silent for as long as it likes
    heard = Now();
    const auto request = requests.find(answer->id);
    if (request == requests.end()) continue;
    const std::string task = request->second;
    const absl::Status status = StatusOf(answer->response, logs.host.name());
    if (!status.ok() && !absl::IsNotFound(status)) return status;
    const agent::ReadFileResponse& file = answer->response.read_file();
    uint64_t& offset = logs.offsets[task];
    if (file.offset() > offset) {
      std::fprintf(stderr, "muster: %s\n", MissedLogText(task, file.offset() - offset).c_str());
    }
    printer.Print(task, logs.host.name(), answer->response);
    // Where it is not there, what comes is another one.
    offset = status.ok() ? file.offset() + file.data().size() : 0;
    if (!answer->response.last() && status.ok()) continue;
    requests.erase(request);
    if (absl::IsNotFound(status) && logs.follow && !HasEnded(context, logs.record.id())) {
      to_ask.insert(task);
    } else {
      logs.offsets.erase(task);
    }
  }
  return absl::OkStatus();
}

// Where a task that has left the job was last: `scale` takes it out of the record, but not out of the
// history. "": the job has had none of this name.
std::string PlaceOfDeparted(const CommandContext& context, const record::JobRecord& record,
                            const std::string& task) {
  int damaged = 0;
  const auto text = ReadFile(context.jobs().JobFolder(record.id()) / kHistoryFile);
  std::string place;
  for (const JobEvent& event : ParseHistory(text.value_or(""), &damaged)) {
    if (event.task == task && event.incarnation > 0 &&
        Named(record.hosts(), event.host, &record::Host::name) != nullptr) {
      place = event.host;
    }
  }
  return place;
}

// Reads a host's logs to their end; when following, over lost connections too: a host that is gone may come
// back, with everything that its tasks printed meanwhile. Each host on its own: the followers of the others
// do not have to end first.
absl::Status ReadHost(const CommandContext& context, HostLogs& logs, Printer& printer) {
  Reconnecting reconnecting;
  reconnecting.Heard();  // as far as the job's history knows
  while (true) {
    const auto connection = AgentConnection::Connect(logs.host, context.connect_options(logs.record),
                                                     Now() + context.connect_timeout());
    if (connection.ok()) reconnecting.Heard();
    const absl::Status status =
        connection.ok() ? ReadLogs(context, logs, **connection, printer) : connection.status();
    if (status.ok() || !logs.follow || !reconnecting.TriesAgain(status)) return status;
  }
}

}  // namespace

absl::Status LogsCommand(const CommandContext& context) {
  MUSTER_ASSIGN_OR_RETURN(const record::JobRecord record, FindJob(context, context.flags().job));
  if (record.folders_removed()) {
    return InvalidArgument("the logs of job %s went with its folders, by `muster gc`", record.id());
  }
  std::map<std::string, std::string> places;  // of the tasks whose logs are read
  for (const record::Task& task : record.tasks()) places[task.id()] = task.host();
  const std::set<std::string> wanted(context.flags().tasks.begin(), context.flags().tasks.end());
  for (const std::string& task : wanted) {
    if (places.contains(task)) continue;
    const std::string place = PlaceOfDeparted(context, record, task);
    if (place.empty()) {
      return InvalidArgument("job %s has no task '%s'; it has %s", record.id(), task, NamesOfTasks(record));
    }
    places[task] = place;
  }

  std::vector<HostLogs> logs;
  for (const record::Host& host : record.hosts()) {
    HostLogs of_host{.record = record, .host = host, .follow = context.flags().follow};
    for (const auto& [task, place] : places) {
      if (place == host.name() && (wanted.empty() || wanted.contains(task))) of_host.offsets[task] = 0;
    }
    if (!of_host.offsets.empty()) logs.push_back(std::move(of_host));
  }
  // One task's log alone is given as the task wrote it.
  Printer printer(/*prefix=*/wanted.size() != 1);
  std::vector<absl::Status> statuses(logs.size());
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < logs.size(); ++i) {
    try {
      threads.emplace_back([&, i] { statuses[i] = ReadHost(context, logs[i], printer); });
    } catch (const std::system_error&) {
      statuses[i] = Unavailable("%s: this account may have no more threads (ulimit -u)", logs[i].host.name());
    }
  }
  threads.clear();  // joins
  for (const absl::Status& status : statuses) {
    if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  }
  return FirstFailure(statuses).ok() ? absl::OkStatus() : Unavailable("not every log could be read");
}

}  // namespace muster
