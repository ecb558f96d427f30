#include "launcher/job_history.h"

#include <absl/strings/str_split.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/clock.h"

namespace muster {
namespace {

using Json = nlohmann::ordered_json;

bool HasEnded(reconcile::TaskState state) {
  return state == reconcile::TaskState::kRestarting || state == reconcile::TaskState::kSucceeded ||
         state == reconcile::TaskState::kFailed || state == reconcile::TaskState::kLost;
}

// Tasks run already, or have run, in this generation: another has started them. It may be told of them later.
bool HasStarted(const reconcile::View& view) {
  return std::ranges::any_of(view.tasks, [&](const reconcile::TaskView& task) {
    return task.report && task.report->incarnation > 0 && task.report->generation == view.generation;
  });
}

std::optional<JobEvent> ParseJobEvent(const std::string& line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  JobEvent event;
  try {
    event = {.time_micros = json.at("time_micros").get<int64_t>(),
             .host = json.value("host", ""),
             .task = json.value("task", ""),
             .what = json.at("what").get<std::string>(),
             .incarnation = json.value("incarnation", uint32_t{0}),
             .is_end = json.value("end", false)};
  } catch (const Json::exception&) {
    return std::nullopt;
  }
  return event;
}

}  // namespace

JobHistory::JobHistory(const std::vector<JobEvent>& known) {
  for (const JobEvent& event : known) {
    if (!event.task.empty()) known_.insert({event.task, event.host, event.incarnation, event.is_end});
    if (event.host.empty()) ++known_of_job_[event.what];
  }
}

std::optional<JobEvent> JobHistory::OnStepsLost(const StepsLost& lost, int64_t now_micros) {
  JobEvent event{
      .time_micros = now_micros,
      .what = absl::StrFormat("training went back from step %d to step %d", lost.reached, lost.went_on_from)};
  const auto known = known_of_job_.find(event.what);
  if (known != known_of_job_.end() && known->second-- > 0) return std::nullopt;
  return event;
}

std::vector<JobEvent> JobHistory::OnView(const reconcile::View& view, int64_t now_micros) {
  std::vector<JobEvent> events;
  for (const reconcile::HostView& host : view.hosts) AddHost(view, host, now_micros, events);
  const auto add = [&](const std::string& what) {
    events.push_back({.time_micros = now_micros, .what = what});
  };
  if (phase_ != view.phase) {
    const std::string start =
        absl::StrFormat("all hosts are ready: tasks start, generation %d", view.generation);
    if (view.phase == reconcile::Phase::kRunning && !HasStarted(view) && !known_of_job_.contains(start)) {
      add(start);
    }
    if (view.phase == reconcile::Phase::kEnding && view.ending->result != reconcile::Result::kSucceeded) {
      add("stopping the job: " + view.ending->message);
    }
  }
  for (const reconcile::TaskView& task : view.tasks) {
    std::string& place = places_[task.task];
    if (!place.empty() && place != task.host) {
      events.push_back({.time_micros = now_micros,
                        .host = task.host,
                        .what = absl::StrFormat("%s goes from %s to this host", task.task, place)});
    }
    place = task.host;
    AddTask(task, now_micros, events);
  }
  if (phase_ != view.phase && view.phase == reconcile::Phase::kFinished) {
    add("the job has ended: " + view.ending->message);
  }
  phase_ = view.phase;
  return events;
}

void JobHistory::AddHost(const reconcile::View& view, const reconcile::HostView& host, int64_t now_micros,
                         std::vector<JobEvent>& events) {
  std::string state;
  if (host.state == reconcile::HostState::kReady) state = "ready";
  if (host.state == reconcile::HostState::kLost || host.state == reconcile::HostState::kRefused) {
    state = std::string(reconcile::HostStateName(host.state)) + ": " + std::string(host.last_error.message());
  }
  if (host.state == reconcile::HostState::kGivenUp) state = reconcile::GivenUpText(view, host.host);
  // On the way to one of these.
  if (state.empty() || std::exchange(said_[host.host], state) == state) return;
  events.push_back({.time_micros = now_micros, .host = host.host, .what = state});
}

void JobHistory::AddTask(const reconcile::TaskView& task, int64_t now_micros, std::vector<JobEvent>& events) {
  if (!task.report || task.report->incarnation == 0) return;
  const reconcile::TaskReport& report = *task.report;
  const auto add = [&](bool is_end, int64_t micros, const std::string& what) {
    if (micros == 0 || !known_.insert({task.task, task.host, report.incarnation, is_end}).second) {
      return;
    }
    events.push_back({.time_micros = micros,
                      .host = task.host,
                      .task = task.task,
                      .what = what,
                      .incarnation = report.incarnation,
                      .is_end = is_end});
  };
  add(false, report.started_micros,
      report.restarts > 0 ? absl::StrFormat("started again, restart %d", report.restarts) : "started");
  if (!HasEnded(report.state)) return;
  const std::string state = reconcile::TaskStateName(report.state);
  // When it was lost may not be known.
  const int64_t now_if_lost = report.state == reconcile::TaskState::kLost ? now_micros : 0;
  add(true, report.ended_micros != 0 ? report.ended_micros : now_if_lost,
      report.reason.empty() ? state : state + ": " + report.reason);
}

bool IsConsequence(const reconcile::Casualty& casualty) {
  // As Reconciler::Consequences has it; else it is how the task ended.
  return casualty.what == "stopped" || casualty.what == "could not be stopped" ||
         casualty.what == "lost with its host";
}

std::string FormatJobEvent(const JobEvent& event) {
  Json json = {{"time_micros", event.time_micros}};
  if (!event.host.empty()) json["host"] = event.host;
  if (!event.task.empty()) json["task"] = event.task;
  json["what"] = event.what;
  if (!event.task.empty()) {
    json["incarnation"] = event.incarnation;
    json["end"] = event.is_end;
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<JobEvent> ParseHistory(const std::string& text, int* damaged) {
  *damaged = 0;
  std::vector<JobEvent> events;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    if (auto event = ParseJobEvent(line)) {
      events.push_back(*std::move(event));
    } else {
      ++*damaged;
    }
  }
  return events;
}

std::string ShiftHistory(const std::string& text, int64_t micros) {
  int damaged = 0;
  std::string shifted;
  for (JobEvent& event : ParseHistory(text, &damaged)) {
    event.time_micros += micros;
    shifted += FormatJobEvent(event) + "\n";
  }
  return shifted;
}

void AddToHistory(const std::filesystem::path& path, const std::string& what) {
  auto file = HistoryFile::Open(path);
  if (file.ok()) (void)file->Append({{.time_micros = WallTimeMicros(), .what = what}});
}

absl::StatusOr<HistoryFile> HistoryFile::Open(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoError(errno, path.string());
  // Behind half a line.
  char last = '\n';
  const off_t size = ::lseek(fd.get(), 0, SEEK_END);
  if (size > 0) (void)!::pread(fd.get(), &last, 1, size - 1);
  if (last != '\n') MUSTER_RETURN_IF_ERROR(WriteAll(fd.get(), "\n"));
  return HistoryFile(std::move(fd));
}

absl::Status HistoryFile::Append(const std::vector<JobEvent>& events) {
  std::string lines;
  for (const JobEvent& event : events) lines += FormatJobEvent(event) + "\n";
  return lines.empty() ? absl::OkStatus() : WriteAll(fd_.get(), lines);
}

}  // namespace muster
