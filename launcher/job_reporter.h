// Says what happens to a job, to who looks on and to who looks later: an observer, and the job's history.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launcher/host_moves.h"
#include "launcher/job_history.h"
#include "launcher/run_observer.h"

namespace muster {

/// Of the process that drives the job. One thread.
class JobReporter {
 public:
  /// Goes on with the history at this path. One that cannot be written is said once, and then done without.
  JobReporter(const std::filesystem::path& history, RunObserver& observer);

  RunObserver& observer() { return observer_; }

  void Notice(const std::string& text);
  void OnView(const reconcile::View& view);
  void OnTraining(const TrainingPoint& point);
  /// What the history says of results that have not come back.
  void NoteUnfetched(const absl::Status& status);
  /// What the history says of a failure that has a first cause: that, the last lines that its task printed,
  /// and what followed from it. Observers get them with the result.
  void NoteFailure(const reconcile::Outcome& outcome, const std::vector<std::string>& last_words);

 private:
  void Note(const std::vector<JobEvent>& events);

  RunObserver& observer_;
  JobHistory history_;
  HostMoves moves_;
  std::optional<HistoryFile> file_;  // none: it cannot be written
};

/// What the history has of the last words of the newest failure: NoteFailure.
std::vector<std::string> ReadLastWords(const std::filesystem::path& history);

}  // namespace muster
