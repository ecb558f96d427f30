// The trainer's command line, read once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/cluster_spec.h"
#include "cluster/cluster_view.h"
#include "collective/gpu_group.h"
#include "kernels/optimizer.h"
#include "ps/job_config.h"
#include "ps/transport.h"
#include "trainer/device_choice.h"
#include "trainer/metrics_export.h"
#include "trainer/models/model.h"

namespace muster {

/// How the workers' gradients become updates.
enum class Strategy {
  kParameterServer,
  kAllReduce,
  kHybrid,  // tables on parameter servers, all else by allreduce
};

/// "parameter_server", "allreduce", "hybrid"
std::string StrategyName(Strategy strategy);

struct TrainerOptions {
  /// Unset: --job_name=local, one process without any server.
  std::optional<TaskInCluster> task;
  Strategy strategy = Strategy::kParameterServer;  // of a task

  ModelConfig model;
  OptimizerConfig optimizer;                      // of group 0
  std::optional<OptimizerConfig> wide_optimizer;  // of group 1, if the model has that
  UpdateConfig update;
  int64_t global_batch_size = 0;        // over all workers that the training began with
  uint64_t train_steps = 0;             // global
  int first_workers = 1;                // so many; others may join them, and some leave
  std::optional<int> min_workers;       // with fewer of them training by allreduce waits; unset: with all
  std::optional<int64_t> bucket_bytes;  // of the parts of a gradient that is reduced; unset: what is fastest
  CollectiveChoice collective = CollectiveChoice::kAuto;
  bool trusted_network = false;  // what is sent between hosts may be without encryption, though there is TLS
  uint64_t seed = 1;
  bool augment_shift = false;  // training images, by up to two pixels
  bool prefetch = false;       // with a thread, on a core that nothing else needs
  std::string data_dir;        // empty: the synthetic set
  int threads = 1;
  DeviceChoice device;
  bool deterministic = false;

  uint64_t eval_every = 0;  // steps; 0: only at the end
  uint64_t log_every = 100;
  std::string result_json;
  std::string metrics_jsonl;
  std::string log_dir;
  std::string save_model;
  std::string save_onnx;

  // Of a server.
  bool is_standing = false;  // it serves one job after the other
  std::string checkpoint_dir;
  uint64_t checkpoint_every = 1000;  // steps
  int keep_checkpoints = 3;
  bool checkpoint_buddy = false;  // copies at another server
  bool journal = false;
  bool replicated = false;  // each shard is on two servers; workers have to know

  MetricsTargets metrics;                   // of this task
  std::string cluster_file;                 // empty: all tasks stay where they are
  std::shared_ptr<const ClusterView> view;  // of the task, made in main; null: the same
  std::string bind_host;
  std::string tls_dir;
  Transport transport = Transport::kAuto;
  Duration connect_timeout = std::chrono::minutes(5);
  Duration server_timeout = std::chrono::seconds(60);
  Duration worker_timeout = std::chrono::minutes(10);
  Duration worker_lease = std::chrono::seconds(60);
  bool begins_together = false;  // of a ps

  // From the environment that muster's agent sets; a start by hand has none of it.
  uint64_t incarnation = 0;
  uint64_t generation = 0;
  std::string done_file;  // of the task; empty: none
  std::optional<std::string> program_sha256;
  std::string platform = "local";
  std::vector<std::string> hosts;  // of the cluster's addresses

  bool is_async() const { return update.rule.mode == UpdateMode::kAsync; }
  /// Others may join the workers that there were at first, and some may leave.
  bool may_scale() const {
    if (strategy != Strategy::kParameterServer) return strategy == Strategy::kAllReduce;
    return is_async() || (update.rule.mode == UpdateMode::kSync && update.aggregate >= first_workers);
  }
};

/// To evaluate a saved model on a test set.
struct EvaluationOptions {
  std::string file;
  ModelConfig model;                    // as far as flags name it: the file has to hold the same
  std::optional<std::string> data_dir;  // empty: the synthetic set; unset: what the model was trained with,
  std::string known_data_dir;           // which is here, if anywhere
  int threads = 1;
  DeviceChoice device;
  bool deterministic = false;
  std::string result_json;
  std::optional<std::string> program_sha256;
  std::string platform = "local";
};

/// What a command line asks for: to train, to evaluate, only to print `text` (--help, --version) or what is
/// in a folder of checkpoints, or only to write the synthetic set `make_data` into options.data_dir.
struct CommandLine {
  TrainerOptions options;
  std::optional<EvaluationOptions> evaluation;
  std::optional<std::string> text;
  std::optional<std::string> inspect_checkpoint;
  std::optional<std::string> make_data;
};

/// The hosts of the cluster's addresses, each once.
std::vector<std::string> HostsOf(const ClusterSpec& cluster);

using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// InvalidArgument names the flag. The process's environment comes in as a function, so that only main reads
/// it.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                             const Environment& environment);

}  // namespace muster
