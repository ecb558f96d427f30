// What a benchmark takes out of the files that a job's tasks wrote about themselves (docs/trainer.md). Pure.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "launcher/bench/host_use.h"
#include "launcher/bench/results.h"
#include "proto/job_record.pb.h"

namespace muster::bench {

/// The metrics file of each task of which there is one.
using TaskMetrics = std::map<std::string, std::string>;

/// Of the tasks of which it is known, workers first.
std::vector<TaskUse> TaskUses(const record::JobRecord& record, const TaskMetrics& task_metrics);

struct StepBytes {
  double sent = 0;
  double received = 0;
};

/// Of the chief. Its metrics stand still after its last step, where the result record goes on to count what
/// it pulls to evaluate the model and to save it: all of the tables. Without steps in the metrics, as of a
/// worker on a GPU, the record has to do.
StepBytes StepBytesOf(const Cell& cell, const nlohmann::json& result, const TaskMetrics& task_metrics);

/// Seconds for each step, by a result record in which steps were made: without the chief's first one, unless
/// there is no other. In that one code is generated, memory allocated, and connections find their rate.
double StepSecondsOf(const nlohmann::json& result);

struct TargetTime {
  double seconds = std::numeric_limits<double>::infinity();  // of training; infinite: not reached
  double gap_seconds = 0;  // since the evaluation before, or since training began
};

/// When the model had an accuracy, by the lines of the chief's metrics.
TargetTime TargetTimeOf(const std::string& metrics_jsonl, double accuracy);

/// How long the steps of workers computed, of several processes. Workers count them in buckets, each twice or
/// two and a half times as wide as the one before: a step is a straggler where it is in one beyond the
/// median's, and counts with the least that it can have taken of the most that the median can have.
class ComputeSteps {
 public:
  /// Those of a process. Without its longest one: it is the first, which is one of all workers at once.
  void Add(const std::string& metrics);

  /// By so many times the median, each as likely as the others, ascending; a thousand at most. Empty: there
  /// are no steps.
  std::vector<double> Factors() const;

 private:
  std::map<double, uint64_t> counts_;  // by the upper bound of their bucket
};

}  // namespace muster::bench
