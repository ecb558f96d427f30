// What `muster run` shows: each host's way to being ready, then one live line, the tasks' output all the
// while, and a summary.
#pragma once

#include <unistd.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/runner.h"
#include "launcher/table.h"
#include "launcher/terminal.h"

namespace muster {

struct RunDisplayOptions {
  bool logs = true;            // print the tasks' output
  int log_fd = STDOUT_FILENO;  // where to
  bool accuracy = true;        // print it at the end
  uint64_t train_steps = 0;    // 0: unknown
  TimePoint start;             // of the command
  bool first_start = false;    // it starts the job, rather than find it running
};

class RunDisplay final : public RunObserver {
 public:
  RunDisplay(const RunDisplayOptions& options, const record::JobRecord& record);

  void OnView(const reconcile::View& view) override;
  void OnHostFacts(const HostFacts& facts) override;
  void OnUpload(const UploadStep& step) override;
  void OnNotice(const std::string& text) override;
  void OnLog(const std::string& task, const std::string& bytes, bool last) override;
  void OnTraining(const TrainingPoint& point) override;

  /// The outcome, the cause of a failure with its consequences, and the figures of the training, to stderr;
  /// the accuracy, which is what was asked for, to stdout.
  void Summarize(const RunResult& result);

  /// From now on stderr is a file that is read later: nothing is drawn, and lines begin with the time.
  void GoToLog();

  /// What hosts have got from here, or from other hosts.
  uint64_t TransferredBytes(bool passed_on) const;

 private:
  struct Upload {
    uint64_t sent = 0;
    uint64_t total = 0;
    bool is_passed_on = false;
  };
  void Say(const std::string& line);
  void Draw(bool must);
  void ReportChanges(const reconcile::View& view);
  std::string HostLine(const reconcile::HostView& host) const;
  std::string LiveLine() const;
  double JobSeconds() const;
  bool HasRun(const std::string& task) const;  // so that there is a log

  const RunDisplayOptions options_;
  const std::string job_;
  const int64_t created_micros_;
  const int64_t ended_micros_;  // 0: this process sees the job's end
  std::map<std::string, std::string> host_of_task_;
  LiveBlock block_;
  bool with_times_ = false;
  LogPrinter printer_;
  reconcile::View view_;
  std::map<std::string, std::map<std::string, Upload>> uploads_;  // by host, by content
  std::map<std::string, std::string> said_;                       // what was said last of a host or task
  std::set<std::string> late_hosts_;  // not there at the first attempt, which was said
  std::string live_metrics_;          // "step 300/1000  loss 0.31  12345 samples/s"
  std::optional<double> seconds_to_first_step_;
};

}  // namespace muster
