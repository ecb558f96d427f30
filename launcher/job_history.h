// The history of a job, kHistoryFile (job_store.h): a JSON object per line, of what happened to its hosts and
// tasks and when, by this machine's clock.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "launcher/reconciler/messages.h"
#include "launcher/training_progress.h"

namespace muster {

struct JobEvent {
  int64_t time_micros = 0;
  std::string host;  // "": of the job
  std::string task;  // "": of the host
  std::string what;  // "started", "exited with code 3"
  /// Of a task: whose start or end it is. A host gives each number once in a job, whatever the generation.
  uint32_t incarnation = 0;
  bool is_end = false;
};

/// What is news in each view of a job, but for hosts that move (host_moves.h). Pure.
class JobHistory {
 public:
  /// `known`: what others have written who drove the job before.
  explicit JobHistory(const std::vector<JobEvent>& known);

  std::vector<JobEvent> OnView(const reconcile::View& view, int64_t now_micros);

  /// Nothing if it is known: all metrics are read again by whoever drives the job next.
  std::optional<JobEvent> OnStepsLost(const StepsLost& lost, int64_t now_micros);

 private:
  void AddHost(const reconcile::View& view, const reconcile::HostView& host, int64_t now_micros,
               std::vector<JobEvent>& events);
  void AddTask(const reconcile::TaskView& task, int64_t now_micros, std::vector<JobEvent>& events);

  std::set<std::tuple<std::string, std::string, uint32_t, bool>> known_;  // (task, host, incarnation, end)
  std::map<std::string, int> known_of_job_;    // how often each was written that is no host's and no task's
  std::map<std::string, std::string> said_;    // by host: its state
  std::map<std::string, std::string> places_;  // by task: its host
  reconcile::Phase phase_ = reconcile::Phase::kGathering;
};

/// Whether it was ended with the job, or was to be, or went with its host, rather than having failed by
/// itself.
bool IsConsequence(const reconcile::Casualty& casualty);

/// Without the end of its line.
std::string FormatJobEvent(const JobEvent& event);

/// Of all lines; what is none is left out, and counted in `damaged`: of a process that was killed there may
/// be half a line.
std::vector<JobEvent> ParseHistory(const std::string& text, int* damaged);

/// The same events, so much later. What is none is left out.
std::string ShiftHistory(const std::string& text, int64_t micros);

/// Adds an event of the job, as of now, for whoever is about to drive it, or has been. That it cannot be
/// written is nobody's failure: it is only told.
void AddToHistory(const std::filesystem::path& path, const std::string& what);

/// Appends to the file of a job. One process at a time: the one that drives it.
class HistoryFile {
 public:
  /// The file is made if there is none.
  static absl::StatusOr<HistoryFile> Open(const std::filesystem::path& path);
  absl::Status Append(const std::vector<JobEvent>& events);

 private:
  explicit HistoryFile(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace muster
