// logs: what tasks printed, from the beginning; with -f, as it comes.
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "base/stdout.h"
#include "base/wake.h"
#include "launcher/commands/controlling.h"
#include "launcher/commands/reconnecting.h"
#include "launcher/job_history.h"
#include "launcher/running_job.h"
#include "launcher/terminal.h"

namespace muster {
namespace {

constexpr Duration kNotBegunPause = std::chrono::milliseconds(500);
constexpr Duration kAnswerTimeout = std::chrono::minutes(1);
constexpr Duration kReaderLookEvery = std::chrono::seconds(1);
// From one muster that drives a job to the next. What nobody drives starts nothing any more.
constexpr Duration kHandOver = std::chrono::seconds(10);

class Printer {
 public:
  explicit Printer(bool prefix) : printer_(prefix) {}
  void Print(const std::string& task, const std::string& host, const agent::Response& response) {
    const std::lock_guard lock(mutex_);
    printer_.Print(task, host, response.read_file().data());
    if (response.last()) printer_.Flush(task, host);
  }
  /// No more comes of the task from there.
  void Flush(const std::string& task, const std::string& host) {
    const std::lock_guard lock(mutex_);
    printer_.Flush(task, host);
  }

 private:
  std::mutex mutex_;
  LogPrinter printer_;
};

struct HostLogs {
  std::string job;
  record::Host host;
  std::map<std::string, uint64_t> offsets;  // by task: how far it has been read
  std::set<std::string> unfinished;         // those of them that have not ended
  bool follow = false;
};

absl::StatusOr<uint64_t> AskForLog(const HostLogs& logs, const std::string& task,
                                   AgentConnection& connection) {
  agent::Request request;
  request.mutable_read_file()->set_job(logs.job);
  request.mutable_read_file()->set_task(task);
  request.mutable_read_file()->set_path("log");
  request.mutable_read_file()->set_offset(logs.offsets.at(task));
  request.mutable_read_file()->set_follow(logs.follow);
  return connection.Send(request, Now() + std::chrono::seconds(10));
}

// Reads on where the offsets are until all logs have ended; they say how far it came if the connection
// breaks. As long as the job goes on, a task that has no log may yet begin, and one that has ended may be
// started again.
absl::Status ReadLogs(const std::atomic<bool>& goes_on, const GivingUp& giving_up, HostLogs& logs,
                      AgentConnection& connection, Printer& printer) {
  std::map<uint64_t, std::string> requests;
  std::set<std::string> to_ask = logs.unfinished, ended;
  TimePoint ask_again = Now(), heard = Now();
  while (!requests.empty() || !to_ask.empty()) {
    if (goes_on) {  // perhaps again
      logs.unfinished.insert(ended.begin(), ended.end());
      to_ask.merge(ended);
    }
    if (giving_up.is_wanted()) return Cancelled("%s: given up", logs.host.name());
    if (ReaderIsGone(STDOUT_FILENO)) return absl::OkStatus();  // whoever read it has seen what it wanted
    if (!to_ask.empty() && Now() >= ask_again) {
      for (const std::string& task : std::exchange(to_ask, {})) {
        MUSTER_ASSIGN_OR_RETURN(const uint64_t id, AskForLog(logs, task, connection));
        requests[id] = task;
      }
      ask_again = Now() + kNotBegunPause;
    }
    const TimePoint look = Now() + kReaderLookEvery;
    MUSTER_ASSIGN_OR_RETURN(
        const auto answer,
        connection.Receive(giving_up.wake_fd, to_ask.empty() ? look : std::min(look, ask_again)));
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
    if ((status.ok() || absl::IsNotFound(status)) && goes_on) {
      to_ask.insert(task);
    } else {
      logs.unfinished.erase(task);
      ended.insert(task);
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

using TaskPlaces = std::map<std::string, std::string>;  // by task: its host

// Of the tasks whose logs are wanted.
absl::StatusOr<TaskPlaces> WantedPlaces(const CommandContext& context, const record::JobRecord& record) {
  const std::vector<std::string>& wanted = context.flags().tasks;
  TaskPlaces all, places;
  for (const record::Task& task : record.tasks()) all[task.id()] = task.host();
  if (wanted.empty()) return all;
  for (const std::string& task : wanted) {
    const auto found = all.find(task);
    places[task] = found != all.end() ? found->second : PlaceOfDeparted(context, record, task);
    if (!places[task].empty()) continue;
    return InvalidArgument("job %s has no task '%s'; it has %s", record.id(), task, NamesOfTasks(record));
  }
  return places;
}

// Reads a host's logs to their end, on a thread of its own: the followers of the others do not have to end
// first. When following, over lost connections too: a host that is gone may come back, with everything that
// its tasks printed meanwhile.
class HostReader {
 public:
  /// `ended` is set once it has, which it does not while the job goes on.
  HostReader(const CommandContext& context, ConnectOptions connect, HostLogs logs, Printer& printer,
             const std::atomic<bool>& goes_on, Wake& ended)
      : context_(context),
        connect_(std::move(connect)),
        logs_(std::move(logs)),
        printer_(printer),
        goes_on_(goes_on) {
    connect_.ssh.cancel_fd = give_up_.fd();
    try {
      thread_ = std::jthread([this, &ended] {
        status_ = Read();
        has_ended_ = true;
        ended.Set();
      });
    } catch (const std::system_error&) {
      status_ = Unavailable("%s: this account may have no more threads (ulimit -u)", logs_.host.name());
      has_ended_ = true;
    }
  }
  ~HostReader() { GiveUp(); }

  void GiveUp() {
    is_given_up_ = true;
    give_up_.Set();
  }
  void Join() {
    if (thread_.joinable()) thread_.join();
  }
  bool has_ended() const { return has_ended_; }
  const std::string& host() const { return logs_.host.name(); }

  /// Once it has ended: how far it came, and why no further.
  const HostLogs& logs() const { return logs_; }
  const absl::Status& status() const { return status_; }

 private:
  absl::Status Read() {
    const GivingUp giving_up{.is_wanted = [this] { return is_given_up_.load(); }, .wake_fd = give_up_.fd()};
    Reconnecting reconnecting;
    reconnecting.Heard();  // as far as the job's history knows
    while (true) {
      const auto connection =
          AgentConnection::Connect(logs_.host, connect_, Now() + context_.connect_timeout());
      if (connection.ok()) reconnecting.Heard();
      const absl::Status status = connection.ok()
                                      ? ReadLogs(goes_on_, giving_up, logs_, **connection, printer_)
                                      : connection.status();
      if (status.ok() || !logs_.follow || !reconnecting.TriesAgain(status)) return status;
    }
  }

  const CommandContext& context_;
  ConnectOptions connect_;
  HostLogs logs_;
  Printer& printer_;
  const std::atomic<bool>& goes_on_;
  Wake give_up_;
  std::atomic<bool> is_given_up_ = false;
  absl::Status status_;
  std::atomic<bool> has_ended_ = false;
  std::jthread thread_;  // last: it uses the above
};

// Of all tasks, wherever they go.
class LogReaders {
 public:
  /// `goes_on`: the job does, so that tasks may be started.
  LogReaders(const CommandContext& context, Printer& printer, bool goes_on)
      : context_(context), printer_(printer), goes_on_(goes_on) {}

  /// Begins where a task has come since the last call. While the job goes on, also where a host was given up
  /// that was not reached.
  void Read(const record::JobRecord& record, const TaskPlaces& places);
  void SetGoesOn(bool goes_on) { goes_on_ = goes_on; }

  /// For a second, or until a reader has ended.
  void Wait() {
    pollfd ended{.fd = ended_.fd(), .events = POLLIN, .revents = 0};
    (void)::poll(&ended, 1, 1000);
    ended_.Clear();
  }
  bool AllHaveEnded() {
    Settle();
    return readers_.empty();
  }

  /// Waits for those on the hosts of `places`. Unavailable: not all has been read there, which has been said.
  absl::Status Finish(const TaskPlaces& places);

 private:
  struct Log {
    uint64_t offset = 0;
    bool is_being_read = false;
    absl::Status status;  // why nobody reads on; OK: it has ended
  };
  void Settle();

  const CommandContext& context_;
  Printer& printer_;
  std::atomic<bool> goes_on_;
  TaskPlaces places_;
  std::map<std::pair<std::string, std::string>, Log> logs_;  // by task and host
  Wake ended_;
  std::list<HostReader> readers_;  // last: they use the above
};

void LogReaders::Settle() {
  std::erase_if(readers_, [&](const HostReader& reader) {
    if (!reader.has_ended()) return false;
    const HostLogs& logs = reader.logs();
    for (const auto& [task, offset] : logs.offsets) {
      const absl::Status status = logs.unfinished.contains(task) ? reader.status() : absl::OkStatus();
      logs_[{task, reader.host()}] = {.offset = offset, .status = status};
    }
    return true;
  });
}

void LogReaders::Read(const record::JobRecord& record, const TaskPlaces& places) {
  Settle();
  std::map<std::string, HostLogs> to_read;  // by host
  for (const auto& [task, place] : places) {
    const record::Host* const host = FindHost(record, place);
    if (host == nullptr) continue;
    Log& log = logs_[{task, place}];
    const std::string before = std::exchange(places_[task], place);
    const bool is_to_try = goes_on_ && (log.status.ok() || absl::IsUnavailable(log.status) ||
                                        absl::IsDeadlineExceeded(log.status));
    if (log.is_being_read || (before == place && !is_to_try)) continue;
    if (!before.empty() && before != place) printer_.Flush(task, before);
    log.is_being_read = true;
    HostLogs& logs = to_read[place];
    logs.host = *host;
    logs.offsets[task] = log.offset;
    logs.unfinished.insert(task);
  }
  if (to_read.empty()) return;
  const ConnectOptions connect = context_.connect_options(record);
  for (auto& [host, logs] : to_read) {
    logs.job = record.id();
    logs.follow = context_.flags().follow;
    readers_.emplace_back(context_, connect, std::move(logs), printer_, goes_on_, ended_);
  }
}

absl::Status LogReaders::Finish(const TaskPlaces& places) {
  const auto has_tasks = [&](const std::string& host) {
    return std::ranges::any_of(places, [&](const auto& place) { return place.second == host; });
  };
  for (HostReader& reader : readers_) {
    if (!has_tasks(reader.host())) reader.GiveUp();
  }
  for (HostReader& reader : readers_) reader.Join();
  Settle();
  std::map<std::string, absl::Status> failures;  // by host
  for (const auto& [task, host] : places) {
    if (const absl::Status& status = logs_[{task, host}].status; !status.ok()) failures[host] = status;
  }
  for (const auto& [host, failure] : failures) {
    std::fprintf(stderr, "%s\n", std::string(failure.message()).c_str());
  }
  return failures.empty() ? absl::OkStatus() : Unavailable("not every log could be read");
}

// Takes the newest record that is known. False: nobody drives the job, or who does cannot be asked.
bool RefreshRecord(const CommandContext& context, ChosenController& controller, record::JobRecord* record) {
  if (auto here = context.jobs().Load(record->id()); here.ok()) *record = *std::move(here);
  if (!IsDrivenElsewhere(*record)) return context.jobs().DriverOf(record->id()).has_value();
  auto newest = AskController(context, *record, &controller);
  if (newest.ok()) *record = *std::move(newest);
  return newest.ok();
}

}  // namespace

absl::Status LogsCommand(const CommandContext& context) {
  const CommandFlags& flags = context.flags();
  ChosenController controller;
  MUSTER_ASSIGN_OR_RETURN(record::JobRecord record, FindJob(context, flags.job, &controller));
  if (record.folders_removed()) {
    return InvalidArgument("the logs of job %s went with its folders, by `muster gc`", record.id());
  }
  MUSTER_ASSIGN_OR_RETURN(TaskPlaces places, WantedPlaces(context, record));
  // One task's log alone is given as the task wrote it.
  Printer printer(/*prefix=*/flags.tasks.empty() || places.size() > 1);
  LogReaders readers(context, printer, flags.follow && !record.cluster().has_ending());
  readers.Read(record, places);
  TimePoint driven_at = Now();
  while (flags.follow && !record.cluster().has_ending() && !readers.AllHaveEnded()) {
    readers.Wait();
    if (ReaderIsGone(STDOUT_FILENO)) break;
    if (RefreshRecord(context, controller, &record)) driven_at = Now();
    readers.SetGoesOn(!record.cluster().has_ending() && Now() - driven_at < kHandOver);
    MUSTER_ASSIGN_OR_RETURN(places, WantedPlaces(context, record));
    readers.Read(record, places);
  }
  return readers.Finish(places);
}

}  // namespace muster
