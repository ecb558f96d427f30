// What a finished training writes: the result record (--result_json) and the metrics on the way
// (--metrics_jsonl, --log_dir).
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "ps/update_rule.h"
#include "trainer/event_file.h"

namespace muster {

inline constexpr int kResultSchemaVersion = 1;

/// One line of docs for each is in docs/trainer.md. Unset optionals and empty names are written as null, and
/// every key is always there.
struct ResultRecord {
  std::string model;
  std::string variant;
  std::string strategy;     // parameter_server, local, evaluation (of a saved model: no training)
  std::string update_mode;  // async, sync
  std::optional<int> workers;
  std::optional<int> ps;
  std::optional<uint64_t> seed;
  std::optional<uint64_t> steps;
  std::optional<uint64_t> samples;
  std::optional<int64_t> batch_size;  // of a step, by the number of workers, rounded up
  // Times and rates are of the chief's last incarnation, if it found anything left to do; the counts are of
  // the whole training.
  std::optional<double> seconds_to_first_step;
  std::optional<double> seconds_training;
  std::optional<double> samples_per_second;
  std::optional<double> steps_per_second;
  // Of these without the chief's first step, and what others made until then. Unset: that was all.
  std::optional<double> seconds_after_first_step;
  std::optional<uint64_t> steps_after_first_step;
  std::optional<double> train_loss;
  std::optional<double> test_loss;
  std::optional<double> test_accuracy;
  std::optional<double> test_auc;
  std::optional<uint64_t> parameter_bytes;  // of the dense parameters
  std::optional<uint64_t> bytes_pushed;     // by the chief
  std::optional<uint64_t> bytes_pulled;
  std::optional<uint64_t> chief_steps;  // that it took part in meanwhile
  std::optional<PushCounts> pushes;     // as ps:0 counted them
  uint32_t parameters_crc32c = 0;
  std::string device;
  std::string instruction_set;
  int threads = 0;
  std::optional<std::string> program_sha256;
  std::vector<std::string> hosts;
  std::string platform;  // ssh, local, kubernetes
};

std::string ToJson(const ResultRecord& record);

/// A point on the way. Unset: not measured at this step.
struct MetricsLine {
  uint64_t step = 0;
  double seconds = 0;  // since training began, or went on in another incarnation of the chief
  std::optional<double> loss;
  double samples_per_second = 0;
  std::optional<uint64_t> staleness;
  double learning_rate = 0;
  std::optional<double> test_accuracy;
  std::optional<double> test_loss;
  std::optional<uint64_t> begun_at;  // the step from which training began, or went on, since the line before
  std::optional<uint64_t> reached;   // the one at which this process was then
};

/// Where the metrics go. An empty path: not there.
struct MetricsOptions {
  std::filesystem::path jsonl;    // a file of JSON lines
  std::filesystem::path log_dir;  // a folder for TensorBoard, in which a file of its own is made
  bool append = false;            // the JSON lines, to those of a training that goes on
};

/// Writes metrics, each line flushed when it is written. A training is not to end for a curve: what cannot be
/// written ends its file, with a word in the log. One thread at a time.
class MetricsWriter {
 public:
  /// Truncates the file of JSON lines, unless told to append: then what is less than a line at its end goes.
  static absl::StatusOr<MetricsWriter> Open(const MetricsOptions& options);
  void Write(const MetricsLine& line);

  /// Whether all lines have been written; else why not, with the flag.
  const absl::Status& status() const { return status_; }

 private:
  void Note(const std::string& flag, const absl::Status& written);
  absl::Status WriteJson(const MetricsLine& line);
  absl::Status WriteEvent(const MetricsLine& line);

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  std::filesystem::path path_;
  std::optional<EventFile> events_;
  absl::Status status_;
};

}  // namespace muster
