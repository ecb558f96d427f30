// The job file: what to run, as which tasks, on hosts with which labels.
//
//     name: mnist
//     model: mnist_mlp                # or: program: [python3, train.py]
//     data: auto                      # auto | a folder | {on_hosts: /data}
//     strategy: parameter_server      # parameter_server | allreduce | hybrid
//     update: {mode: sync, wire_type: bfloat16, top_k: 0.01}     # sync | async | bounded
//     replicas:
//       ps:     {count: 2, on: cpu}
//       worker: {count: 4, min: 3, max: 8, on: gpu, restart: on_failure, max_restarts: 3}
//     train:
//       {steps: 1000, batch_size: 100, seed: 1, optimizer: momentum, momentum: 0.9, weight_decay: 0.0005,
//        learning_rate: 0.01, schedule: {kind: cosine, warmup_steps: 100}}
//     checkpoint: {every_steps: 200, keep: 3, buddy: true}
//     durability: checkpoint          # checkpoint | journal | replicated
//     transport: auto                 # auto | tcp
//     collective: auto                # auto | native | nccl
//     trusted_network: true           # NCCL may be used between hosts, without encryption
//
// Servers that stand before their jobs (`muster up`) have a file of their own:
//
//     name: pool
//     replicas: {ps: {count: 2, on: cpu}}
//     checkpoint: {every_steps: 200}  # and durability, transport, env, as above
//
// What the file does not give is unset here, so that the trainer's own defaults for the model hold; what this
// version of muster cannot do yet is refused, with its place, and never ignored.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "inventory/position.h"

namespace muster {

enum class ReplicaRole : uint8_t { kPs, kChief, kWorker };

inline constexpr std::array kReplicaRoles = {ReplicaRole::kPs, ReplicaRole::kChief, ReplicaRole::kWorker};

inline constexpr int kMaxTasksOfRole = 4096;

/// "ps", "chief", "worker"
std::string ReplicaRoleName(ReplicaRole role);

/// The tasks of one role.
struct ReplicaSpec {
  enum class Restart : uint8_t {
    kNever,
    kOnFailure,
    kAlways,
    kExitCode,  // 1-127 permanent, 128-255 retryable
  };

  int count = 0;
  std::string on;              // the label their hosts must have; empty: any host
  SourcePosition on_position;  // of the label in the job file, where there is one
  Restart restart = Restart::kNever;
  int max_restarts = 0;                  // per task; 0 with kNever
  std::optional<int64_t> hung_after_ms;  // without progress for so long, a task is killed; unset: never
  int gpus = 0;                          // that each task is given, for itself
  SourcePosition gpus_position;          // of that number in the job file, where there is one
  std::optional<int64_t> max_log_bytes;  // of what each prints so much stays on its host; unset: 1 GiB
  // Of workers: while others are lost with their hosts, the job goes on with so many; unset: with all.
  std::optional<int> min;
  // Of workers: hosts that the inventory has, or gains, beyond those that the job began with take one each,
  // until there are so many; unset: none does.
  std::optional<int> max;
};

/// Where the training data comes from.
struct DataSource {
  enum class Kind : uint8_t {
    kNone,     // only with `program`
    kAuto,     // MUSTER_DATA, the data cache, then the synthetic set
    kFolder,   // `folder` on this machine, sent to the hosts
    kOnHosts,  // `folder` is there on each host already
  };
  Kind kind = Kind::kNone;
  std::string folder;
  SourcePosition position;  // of what the job file says, where it says something
};

/// What a program needs beside the job file.
struct ProgramFile {
  std::string path;  // relative to the folder of the job file, and to that of the task; inside both
  SourcePosition position;
};

struct UpdateSpec {
  enum class Mode : uint8_t { kAsync, kSync, kBounded };
  std::optional<Mode> mode;
  std::optional<int> aggregate;             // sync: gradients that make up a step
  std::optional<int> staleness;             // bounded: steps that a worker may be ahead
  bool begin_together = false;              // no worker before all are there
  std::optional<int> max_staleness;         // async: older gradients are dropped
  std::optional<bool> scale_rate;           // async: the rate is divided by 1 + staleness
  std::optional<std::string> wire_type;     // float32, float16, bfloat16
  std::optional<double> top_k;              // the part of each gradient that is sent
  std::optional<int> evict_rows_after;      // checkpoint intervals without a gradient
  std::optional<std::string> bucket_bytes;  // allreduce: auto, or a number
};

/// What parameter servers write, and go back to when one of them is lost.
struct CheckpointSpec {
  std::optional<int64_t> every_steps;
  std::optional<int> keep;
  bool buddy = false;    // and at another server
  bool journal = false;  // beside them, so that nobody goes back
};

/// Of the learning rate. The numbers of a kind are there only together with it.
struct ScheduleSpec {
  std::optional<std::string> kind;
  std::optional<double> gamma, power;
  std::optional<int64_t> step_size, decay_steps;
  std::optional<double> final_fraction;
  std::optional<int64_t> warmup_steps;
};

/// Of the optimizers that have them, the numbers are there only together with `kind`.
struct OptimizerSpec {
  std::optional<std::string> kind;
  std::optional<double> learning_rate;
  std::optional<double> weight_decay, momentum;
  std::optional<bool> nesterov;
  std::optional<double> beta1, beta2, epsilon;
  std::optional<double> initial_accumulator, l1, l2;
  ScheduleSpec schedule;
};

struct TrainSpec {
  std::optional<int64_t> steps;
  std::optional<int> batch_size;         // per worker; not together with global_batch_size
  std::optional<int> global_batch_size;  // split over the workers
  OptimizerSpec optimizer;               // its keys stand in `train` itself
  OptimizerSpec wide;                    // of a wide part beside a deep one
  std::optional<int64_t> seed;
  std::optional<int64_t> eval_every;  // steps
  std::optional<int> threads;         // per task
  std::optional<std::string> augment;
  bool save_onnx = false;             // beside the parameters, which are always saved
  std::optional<std::string> device;  // of the workers: auto, cpu, cuda:N
  std::optional<std::string> cuda_math;
};

/// What takes the place of something in the file.
struct JobOverrides {
  std::optional<int> workers;  // of replicas.worker.count; no others join by themselves
  bool servers_stand = false;  // they are there already: the job has none of its own, whatever the file says
};

/// What a job was read from: parsed again it is the same job, whatever has become of the file.
struct JobSource {
  std::string text;
  std::string home;  // what "~" stood for
  JobOverrides overrides;
};

struct Job {
  JobSource source;          // empty: of standing servers
  bool is_standing = false;  // servers alone, for one job after the other: no model, no program, no workers
  std::string path;
  std::string name;  // letters, digits, '-', '_' and '.', starts with a letter or digit, at most 63 bytes

  // Either a model of the built-in trainer, ...
  std::string model;
  std::string variant;      // empty: the model's own, or it has none
  std::string strategy;     // "parameter_server", "allreduce", "hybrid"; empty with `program`
  std::vector<int> hidden;  // sizes of the hidden layers; empty: the model's own
  UpdateSpec update;
  TrainSpec train;
  std::optional<CheckpointSpec> checkpoint;
  bool replicated = false;                // each part of the parameters is on two servers
  bool tcp_only = false;                  // also between tasks of one host
  std::optional<std::string> collective;  // of allreduce and hybrid: auto, native, nccl
  bool trusted_network = false;           // nobody else can listen: what hosts exchange needs no encryption
  std::optional<SourcePosition> nccl_position;  // of what asks for GPUs to be summed by NCCL
  // ... or any other program.
  std::vector<std::string> program;  // argv
  std::vector<ProgramFile> files;
  bool tensorflow_flags = false;  // gets --job_name, --task_index, --ps_hosts and --worker_hosts

  DataSource data;
  std::vector<std::pair<std::string, std::string>> env;  // for every task, in the order of the file
  ReplicaSpec ps;
  ReplicaSpec chief;   // at most one; it works like a worker and evaluates and saves too
  ReplicaSpec worker;  // at least one

  const ReplicaSpec& replicas(ReplicaRole role) const;
  bool wants_gpus() const { return ps.gpus > 0 || chief.gpus > 0 || worker.gpus > 0; }
  bool is_allreduce() const { return strategy == "allreduce"; }
  bool is_hybrid() const { return strategy == "hybrid"; }
  /// Tasks of this role write checkpoints: servers, or who has all parameters.
  bool KeepsCheckpoints(ReplicaRole role) const {
    return checkpoint && (role == ReplicaRole::kPs || is_allreduce());
  }
  /// Each batch is divided among all workers, whoever that may be.
  bool shares_batches() const {
    return is_allreduce() || (update.mode == UpdateSpec::Mode::kSync && !update.aggregate);
  }
};

/// Why workers cannot join such a job, or leave it, while the others go on: the rest of a sentence. Empty:
/// they can.
std::string WhyNotElastic(const Job& job);

/// Reads and checks the whole file. `home` is what "~" stands for on this machine ($HOME). InvalidArgument,
/// with "path:line:column: ", for the first thing that is wrong. Paths are not opened.
absl::StatusOr<Job> ReadJob(const std::filesystem::path& path, const std::string& home,
                            const JobOverrides& overrides = {});

/// The same for text that is already read; `path` is for messages and the paths relative to it.
absl::StatusOr<Job> ParseJob(std::string_view text, const std::string& path, const std::string& home,
                             const JobOverrides& overrides = {});

/// Those of a file about standing servers.
absl::StatusOr<Job> ReadStandingServers(const std::filesystem::path& path);
absl::StatusOr<Job> ParseStandingServers(std::string_view text, const std::string& path);

}  // namespace muster
