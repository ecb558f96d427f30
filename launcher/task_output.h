// Brings what tasks write from their hosts: logs and the chief's metrics while they run, and results and last
// words once the job has ended.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "launcher/host_session.h"
#include "launcher/job_reporter.h"
#include "launcher/reconciler/messages.h"
#include "launcher/training_progress.h"
#include "proto/job_record.pb.h"

namespace muster {

/// Of one job, on the thread that drives it. What is asked of a host comes as events of its session, which
/// are given to OnEvent while the job runs; afterwards each Fetch waits for its own, as long as something
/// comes.
class TaskOutput {
 public:
  struct Sources {
    std::function<HostSession&(const std::string& host)> session_of;
    /// Waits for the first event of any session, until the deadline or somebody interrupts.
    std::function<std::vector<SessionEvent>(TimePoint deadline)> wait;
    /// Whether somebody has: nothing is waited for any more.
    std::function<bool()> is_interrupted;
  };

  /// `record` and `reporter` are the driver's and outlive it; `folder`: the job's.
  TaskOutput(const record::JobRecord& record, std::filesystem::path folder, bool follow_logs, Sources sources,
             JobReporter& reporter);

  /// Follows tasks from when they first run; again after each new start.
  void Follow(const reconcile::View& view);
  void OnEvent(const SessionEvent& event);

  /// The job has ended as this view shows: what was followed comes to its end.
  void FinishFollowing(const reconcile::View& view);
  /// Of a job that succeeded: the chief's result, metrics, curves and model, into the job's folder.
  /// Cancelled: somebody has interrupted it.
  absl::Status FetchResults();
  /// Of all tasks, those that have come whole: they are beside what the job is about.
  std::map<std::string, std::string> FetchTaskMetrics();
  /// The last lines that this task printed.
  std::vector<std::string> FetchLastWords(const reconcile::Casualty& casualty);

  /// "": it has not come, or not whole.
  std::string result_json() const;

 private:
  struct File {
    std::string bytes;
    bool is_whole = false;
    absl::Status status;  // why it will not be
  };

  void Take(const FileBytes& bytes);
  void CutOffHalfLine();
  void Request(const std::string& host, const std::string& task, const std::string& path);
  void WaitForRequested();
  absl::Status NotFetched(const std::string& what, const absl::Status& why) const;
  absl::Status FetchFiles(std::span<const std::string> paths);
  std::string HostOf(const std::string& task) const;

  const record::JobRecord& record_;
  const std::filesystem::path folder_;
  const bool follow_logs_;
  const Sources sources_;
  JobReporter& reporter_;
  std::string chief_;
  bool writes_results_ = false;  // the chief does
  bool writes_onnx_ = false;     // too

  std::set<std::pair<std::string, std::string>> requested_;  // (task, path), until its end has come
  std::map<std::string, uint64_t> followed_;  // by task: its incarnation, counted over generations
  std::map<std::string, File> results_;       // by path: of the chief's
  std::map<std::string, File> task_metrics_;  // by task
  TrainingProgress training_;
  std::vector<std::string> last_words_;
  // The names of the chief's, as its host says.
  absl::StatusOr<std::vector<std::string>> event_files_ = Unavailable("no answer");
};

}  // namespace muster
