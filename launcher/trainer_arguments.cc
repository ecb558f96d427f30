#include "launcher/trainer_arguments.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <optional>
#include <type_traits>
#include <utility>

#include "base/sha256.h"
#include "launcher/job_store.h"
#include "launcher/running_job.h"

namespace muster {
namespace {

constexpr char kTaskFolder[] = "{task_dir}";  // the agent puts it in

template <typename T>
void AddFlag(const std::string& name, const std::optional<T>& value, std::vector<std::string>& arguments) {
  if (!value) return;
  if constexpr (std::is_same_v<T, bool>) {
    arguments.push_back(absl::StrFormat("--%s=%s", name, *value ? "true" : "false"));
  } else if constexpr (std::is_floating_point_v<T>) {
    arguments.push_back(absl::StrFormat("--%s=%.9g", name, *value));
  } else if constexpr (std::is_integral_v<T>) {
    arguments.push_back(absl::StrFormat("--%s=%d", name, *value));
  } else {
    arguments.push_back(absl::StrFormat("--%s=%s", name, *value));
  }
}

// A cosine without an end of its own ends with the training.
bool RateDependsOnSteps(const TrainSpec& train) {
  const auto depends = [](const OptimizerSpec& optimizer) {
    return optimizer.schedule.kind == "cosine" && !optimizer.schedule.decay_steps;
  };
  return depends(train.optimizer) || depends(train.wide);
}

void AddOptimizerFlags(const std::string& prefix, const OptimizerSpec& optimizer,
                       std::vector<std::string>& arguments) {
  const auto add = [&](const std::string& name, const auto& value) {
    AddFlag(prefix + name, value, arguments);
  };
  add("optimizer", optimizer.kind);
  add("learning_rate", optimizer.learning_rate);
  add("weight_decay", optimizer.weight_decay);
  add("momentum", optimizer.momentum);
  add("nesterov", optimizer.nesterov);
  add("beta1", optimizer.beta1);
  add("beta2", optimizer.beta2);
  add("epsilon", optimizer.epsilon);
  add("initial_accumulator", optimizer.initial_accumulator);
  add("l1", optimizer.l1);
  add("l2", optimizer.l2);
  add("learning_rate_schedule", optimizer.schedule.kind);
  add("learning_rate_gamma", optimizer.schedule.gamma);
  add("learning_rate_power", optimizer.schedule.power);
  add("learning_rate_step_size", optimizer.schedule.step_size);
  add("learning_rate_decay_steps", optimizer.schedule.decay_steps);
  add("learning_rate_final_fraction", optimizer.schedule.final_fraction);
  add("warmup_steps", optimizer.schedule.warmup_steps);
}

// A job whose parameters or updates are others begins anew, in another folder.
void AddCheckpointFlags(const Job& job, const std::string& folder, std::vector<std::string>& arguments) {
  // Standing servers make a folder in it for each job.
  const std::string identity =
      job.is_standing ? "" : "-" + Sha256Hex(absl::StrJoin(ParameterArguments(job), " ")).substr(0, 8);
  arguments.push_back("--checkpoint_dir=" + folder + "/checkpoints" + identity);
  AddFlag("checkpoint_every", job.checkpoint->every_steps, arguments);
  AddFlag("keep_checkpoints", job.checkpoint->keep, arguments);
  if (job.checkpoint->buddy) arguments.push_back("--checkpoint_buddy");
  if (job.checkpoint->journal) arguments.push_back("--durability=journal");
}

}  // namespace

std::vector<std::string> ParameterArguments(const Job& job) {
  std::vector<std::string> arguments = {"--model=" + job.model};
  if (!job.variant.empty()) arguments.push_back("--variant=" + job.variant);
  if (!job.hidden.empty()) arguments.push_back("--hidden=" + absl::StrJoin(job.hidden, ","));
  const UpdateSpec& update = job.update;
  if (update.mode == UpdateSpec::Mode::kSync) arguments.push_back("--sync_replicas");
  if (update.mode == UpdateSpec::Mode::kBounded) AddFlag("bounded_staleness", update.staleness, arguments);
  AddFlag("replicas_to_aggregate", update.aggregate, arguments);
  AddFlag("max_staleness", update.max_staleness, arguments);
  AddFlag("scale_rate_by_staleness", update.scale_rate, arguments);
  AddFlag("wire_type", update.wire_type, arguments);
  AddFlag("top_k", update.top_k, arguments);
  if (update.evict_rows_after.value_or(0) > 0) {
    AddFlag("evict_rows_after", update.evict_rows_after, arguments);
    if (job.checkpoint) AddFlag("checkpoint_every", job.checkpoint->every_steps, arguments);
  }
  AddFlag("bucket_bytes", update.bucket_bytes, arguments);
  AddFlag("seed", job.train.seed, arguments);
  const TrainSpec& train = job.train;
  AddOptimizerFlags("", train.optimizer, arguments);
  AddOptimizerFlags("wide_", train.wide, arguments);
  if (RateDependsOnSteps(train)) AddFlag("train_steps", train.steps, arguments);
  return arguments;
}

std::vector<std::string> TrainingArguments(const Job& job, ReplicaRole role, const std::string& data,
                                           const std::string& folder) {
  std::vector<std::string> arguments;
  const auto add = [&](std::string argument) { arguments.push_back(std::move(argument)); };
  if (job.is_standing) add("--standing");
  if (job.replicated) add("--durability=replicated");
  if (job.tcp_only) add("--transport=tcp");
  if (job.is_hybrid()) add("--strategy=hybrid");
  if (role != ReplicaRole::kPs) {
    if (job.collective) add("--collective=" + *job.collective);
    if (job.trusted_network) add("--trusted_network");
  }
  if (job.is_allreduce()) {
    add("--strategy=allreduce");
    // The chief is one of them, and indispensable.
    if (job.worker.min) {
      add(absl::StrFormat("--min_workers=%d", *job.worker.min + job.chief.count));
    }
  }
  if (job.KeepsCheckpoints(role)) AddCheckpointFlags(job, folder, arguments);
  if (role == ReplicaRole::kPs) {
    if (job.update.begin_together) add("--begin_together");
    return arguments;
  }
  const std::vector<std::string> parameters = ParameterArguments(job);
  arguments.insert(arguments.end(), parameters.begin(), parameters.end());
  if (!RateDependsOnSteps(job.train)) AddFlag("train_steps", job.train.steps, arguments);
  AddFlag("batch_size", job.train.batch_size, arguments);
  AddFlag("global_batch_size", job.train.global_batch_size, arguments);
  AddFlag("augment", job.train.augment, arguments);
  AddFlag("eval_every", job.train.eval_every, arguments);
  AddFlag("threads", job.train.threads, arguments);
  AddFlag("device", job.train.device, arguments);
  AddFlag("cuda_math", job.train.cuda_math, arguments);
  if (!data.empty()) add("--data_dir=" + data);
  return arguments;
}

std::vector<std::string> TrainerArguments(const Job& job, ReplicaRole role, const std::string& data) {
  std::vector<std::string> arguments = TrainingArguments(job, role, data, kTaskFolder);
  const auto add_file = [&](const char* flag, const char* name) {
    arguments.push_back(absl::StrFormat("--%s=%s/%s", flag, kTaskFolder, name));
  };
  add_file("tls_dir", "tls");
  add_file("cluster_file", kClusterFile);
  add_file("metrics_file", kTaskMetricsFile);
  if (role == ReplicaRole::kPs) return arguments;
  // Only the chief writes them, and which task that is, the trainer knows.
  add_file("result_json", kResultFile);
  add_file("metrics_jsonl", kMetricsFile);
  add_file("log_dir", kEventsFolder);
  add_file("save_model", kModelFile);
  if (job.train.save_onnx) add_file("save_onnx", kOnnxFile);
  return arguments;
}

}  // namespace muster
