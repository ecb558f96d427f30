// What a finished training writes: the result record (--result_json) and the metrics on the way
// (--metrics_jsonl).
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

namespace muster {

inline constexpr int kResultSchemaVersion = 1;

/// One line of docs for each is in README.md. Unset optionals are written as null, and every key is always
/// there.
struct ResultRecord {
  std::string model;
  std::string variant;
  std::string strategy;     // parameter_server, local
  std::string update_mode;  // async, sync
  int workers = 0;
  int ps = 0;
  uint64_t seed = 0;
  uint64_t steps = 0;
  uint64_t samples = 0;
  int64_t batch_size = 0;  // per worker; the mean of unequal parts, rounded up
  // Times and rates are of the chief's last incarnation, the counts are of the whole training.
  double seconds_to_first_step = 0;
  double seconds_training = 0;
  double samples_per_second = 0;
  double steps_per_second = 0;
  std::optional<double> train_loss;
  std::optional<double> test_loss;
  std::optional<double> test_accuracy;
  std::optional<double> test_auc;
  uint64_t bytes_pushed = 0;  // by the chief
  uint64_t bytes_pulled = 0;
  std::optional<PushCounts> pushes;  // as ps:0 counted them
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
  uint64_t staleness = 0;
  std::optional<double> test_accuracy;
  std::optional<double> test_loss;
};

/// Appends JSON lines to a file, each flushed when it is written. One thread at a time.
class MetricsWriter {
 public:
  /// Truncates the file, unless a task that was started again is to `append` to what it wrote before. An
  /// empty path writes nothing.
  static absl::StatusOr<MetricsWriter> Open(const std::filesystem::path& path, bool append);
  absl::Status Write(const MetricsLine& line);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  std::filesystem::path path_;
};

}  // namespace muster
