#include "launcher/task_output.h"

#include <absl/strings/str_split.h>

#include <algorithm>

#include "base/file.h"
#include "launcher/job_store.h"
#include "launcher/running_job.h"
#include "launcher/terminal.h"

namespace muster {
namespace {

constexpr Duration kDrainTimeout = std::chrono::seconds(10);
constexpr size_t kFilesAtOnce = 64;  // well below what an agent takes of one connection

constexpr char kLog[] = "log";
constexpr char kLastWords[] = "last words";  // in the place of a path
constexpr size_t kLastLines = 10;

// Whole ones, unless there is only a part of one.
std::vector<std::string> LastLines(const LogTail& tail) {
  std::vector<std::string> lines = absl::StrSplit(tail.text, '\n', absl::SkipEmpty());
  if (tail.is_cut && lines.size() > 1) lines.erase(lines.begin());
  if (lines.size() > kLastLines) lines.erase(lines.begin(), lines.end() - kLastLines);
  return lines;
}

}  // namespace

TaskOutput::TaskOutput(const record::JobRecord& record, std::filesystem::path folder, bool follow_logs,
                       Sources sources, JobReporter& reporter)
    : record_(record),
      folder_(std::move(folder)),
      follow_logs_(follow_logs),
      sources_(std::move(sources)),
      reporter_(reporter) {
  for (const record::Task& task : record_.tasks()) {
    if (!task.is_chief()) continue;
    chief_ = task.id();
    writes_results_ = task.writes_results();
    writes_onnx_ = task.writes_onnx();
  }
}

void TaskOutput::Request(const std::string& host, const std::string& task, const std::string& path) {
  requested_.insert({task, path});
  sources_.session_of(host).Follow(task, path);
}

void TaskOutput::Follow(const reconcile::View& view) {
  for (const reconcile::TaskView& task : view.tasks) {
    if (!task.report || task.report->incarnation == 0) continue;
    const uint64_t incarnation = (task.report->generation << 32) + task.report->incarnation;
    if (std::exchange(followed_[task.task], incarnation) == incarnation) continue;
    if (follow_logs_) Request(task.host, task.task, kLog);
    if (task.task != chief_) continue;
    CutOffHalfLine();
    Request(task.host, chief_, kMetricsFile);
  }
}

void TaskOutput::OnEvent(const SessionEvent& event) {
  if (const auto* bytes = std::get_if<FileBytes>(&event)) Take(*bytes);
  if (const auto* tail = std::get_if<LogTail>(&event)) {
    requested_.erase({tail->task, kLastWords});
    last_words_ = LastLines(*tail);
  }
  if (const auto* folder = std::get_if<FolderNames>(&event)) {
    requested_.erase({folder->task, folder->folder});
    event_files_ = folder->names;
  }
}

// The chief that wrote it did not finish it. Its next one does not go on with it, there or on another host.
void TaskOutput::CutOffHalfLine() {
  training_.BeginFile();
  std::string& bytes = results_[kMetricsFile].bytes;
  bytes.resize(bytes.rfind('\n') + 1);
}

void TaskOutput::Take(const FileBytes& bytes) {
  if (bytes.last) requested_.erase({bytes.task, bytes.path});
  if (bytes.path == kLog) {
    if (bytes.missed > 0) reporter_.observer().OnNotice(MissedLogText(bytes.task, bytes.missed));
    return reporter_.observer().OnLog(bytes.task, bytes.bytes, bytes.last);
  }
  File& file = bytes.path == kTaskMetricsFile ? task_metrics_[bytes.task] : results_[bytes.path];
  const bool is_metrics = bytes.path == kMetricsFile;
  file.bytes.resize(file.bytes.size() - std::min<uint64_t>(file.bytes.size(), bytes.taken_back));
  // The chief's next metrics go on where those that are gone ended.
  if (!is_metrics && absl::IsNotFound(bytes.status)) file.bytes.clear();
  file.bytes += bytes.bytes;
  file.is_whole = bytes.last && bytes.status.ok();
  file.status = bytes.status;
  if (!is_metrics) return;
  for (const TrainingPoint& point : training_.Feed(bytes.bytes)) reporter_.OnTraining(point);
}

// What the tasks wrote last is still on its way when they have ended.
void TaskOutput::WaitForRequested() {
  TimePoint deadline = Now() + kDrainTimeout;
  while (!requested_.empty() && Now() < deadline && !sources_.is_interrupted()) {
    for (const SessionEvent& event : sources_.wait(deadline)) {
      OnEvent(event);
      if (std::holds_alternative<FileBytes>(event)) deadline = Now() + kDrainTimeout;
      const auto* change = std::get_if<reconcile::Event>(&event);
      const auto* failed = change == nullptr ? nullptr : std::get_if<reconcile::HostFailed>(change);
      if (failed == nullptr) continue;
      std::erase_if(requested_, [&](const auto& file) { return HostOf(file.first) == failed->host; });
    }
  }
}

void TaskOutput::FinishFollowing(const reconcile::View& view) {
  // A host that is gone sends nothing more.
  std::set<std::string> lost;
  for (const reconcile::HostView& host : view.hosts) {
    if (host.state != reconcile::HostState::kConnected && host.state != reconcile::HostState::kReady) {
      lost.insert(host.host);
    }
  }
  std::erase_if(requested_, [&](const auto& file) { return lost.contains(HostOf(file.first)); });
  WaitForRequested();
}

absl::Status TaskOutput::FetchResults() {
  if (!writes_results_) return absl::OkStatus();
  std::vector<std::string> paths = {kResultFile, kMetricsFile, kModelFile};
  if (writes_onnx_) paths.push_back(kOnnxFile);
  // Each start of the chief wrote an event file of its own.
  requested_.insert({chief_, kEventsFolder});
  sources_.session_of(HostOf(chief_)).ListFiles(chief_, kEventsFolder);
  MUSTER_RETURN_IF_ERROR(FetchFiles(paths));
  // A chief or an agent that an older muster started has none to give.
  if (absl::IsNotFound(event_files_.status()) || absl::IsUnimplemented(event_files_.status()))
    return absl::OkStatus();
  if (!event_files_.ok()) return NotFetched("the curves", event_files_.status());
  MUSTER_RETURN_IF_ERROR(MakeDirectories(folder_ / kEventsFolder));
  paths = *event_files_;
  for (std::string& path : paths) path = std::string(kEventsFolder) + "/" + path;
  return FetchFiles(paths);
}

absl::Status TaskOutput::NotFetched(const std::string& what, const absl::Status& why) const {
  if (sources_.is_interrupted()) {
    return Cancelled("the job succeeded, and this was interrupted while %s of %s was fetched from %s", what,
                     chief_, HostOf(chief_));
  }
  return Unavailable("the job succeeded, but %s of %s could not be fetched from %s: %s", what, chief_,
                     HostOf(chief_), why.ok() ? "nothing comes from there" : std::string(why.message()));
}

// From the chief's folder to the same paths in the job's.
absl::Status TaskOutput::FetchFiles(std::span<const std::string> paths) {
  for (size_t done = 0; done < paths.size(); done += kFilesAtOnce) {
    const auto some = paths.subspan(done, std::min(kFilesAtOnce, paths.size() - done));
    for (const std::string& path : some) {
      if (!results_[path].is_whole) Request(HostOf(chief_), chief_, path);
    }
    WaitForRequested();
    for (const std::string& path : some) {
      const File& file = results_[path];
      if (!file.is_whole) return NotFetched(path, file.status);
      MUSTER_RETURN_IF_ERROR(WriteFileAtomically(folder_ / path, file.bytes));
    }
  }
  return absl::OkStatus();
}

std::map<std::string, std::string> TaskOutput::FetchTaskMetrics() {
  for (const record::Task& task : record_.tasks()) Request(task.host(), task.id(), kTaskMetricsFile);
  WaitForRequested();
  std::map<std::string, std::string> metrics;
  for (auto& [task, file] : task_metrics_) {
    if (file.is_whole) metrics[task] = std::move(file.bytes);
  }
  return metrics;
}

std::vector<std::string> TaskOutput::FetchLastWords(const reconcile::Casualty& casualty) {
  requested_.insert({casualty.task, kLastWords});
  sources_.session_of(casualty.host).ReadLogTail(casualty.task);
  WaitForRequested();
  return last_words_;
}

std::string TaskOutput::result_json() const {
  const auto found = results_.find(kResultFile);
  return found != results_.end() && found->second.is_whole ? found->second.bytes : "";
}

std::string TaskOutput::HostOf(const std::string& task_id) const {
  const record::Task* const task = Named(record_.tasks(), task_id, &record::Task::id);
  return task == nullptr ? "" : task->host();
}

}  // namespace muster
