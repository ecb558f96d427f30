#include "trainer/make_exchange.h"

#include "base/logging.h"
#include "base/random.h"
#include "ps/job_config.h"
#include "trainer/allreduce_exchange.h"
#include "trainer/hybrid_exchange.h"
#include "trainer/load_data.h"

namespace muster {

std::vector<OptimizerConfig> OptimizersByGroup(const TrainerOptions& options) {
  std::vector<OptimizerConfig> optimizers = {options.optimizer};
  if (options.wide_optimizer) optimizers.push_back(*options.wide_optimizer);
  return optimizers;
}

namespace {

// `job`: a fingerprint of what workers have to agree on, however the parameters are exchanged.
AllReduceOptions DenseOptions(const TrainerOptions& options, uint64_t job,
                              const std::optional<TlsIdentity>& tls, const GpuPreference& gpus,
                              Replica* replica) {
  std::optional<int64_t> bucket_floats;
  if (options.bucket_bytes) bucket_floats = *options.bucket_bytes / static_cast<int64_t>(sizeof(float));
  return {.cluster = options.task->cluster,
          .view = options.view,
          .task = options.task->task,
          .generation = options.generation,
          .incarnation = options.incarnation,
          .bind_host = options.bind_host,
          .tls = tls,
          .shares_memory = options.transport == Transport::kAuto,
          .gpus = gpus,
          .replica = replica,
          // Whoever ends at another step, or cuts gradients otherwise, would do other things than the others.
          .fingerprint =
              Mix64(job ^ Mix64(options.train_steps)) ^ static_cast<uint64_t>(bucket_floats.value_or(0)),
          .first_workers = options.first_workers,
          .min_workers = options.min_workers,
          .bucket_floats = bucket_floats,
          .connect_timeout = options.connect_timeout,
          .operation_timeout = options.worker_timeout};
}

std::shared_ptr<ReplicaCheckpoints> CheckpointsOf(const TrainerOptions& options,
                                                  const ps::JobConfig& config) {
  if (options.checkpoint_dir.empty()) return nullptr;
  return std::make_shared<ReplicaCheckpoints>(ReplicaCheckpointsOptions{.folder = options.checkpoint_dir,
                                                                        .every = options.checkpoint_every,
                                                                        .keep = options.keep_checkpoints,
                                                                        .name = TaskName(options.task->task),
                                                                        .config = config});
}

}  // namespace

GpuPreference PreferenceOf(const TrainerOptions& options, Device* device) {
  GpuPreference gpus{.choice = options.collective,
                     .may_be_read = options.tls_dir.empty() || options.trusted_network};
  if (!options.task || options.strategy == Strategy::kParameterServer) return gpus;
  if (device == nullptr) {
    gpus.why_none = "it computes on the CPU";
  } else if (options.collective == CollectiveChoice::kNative) {
    gpus.why_none = "it is not to use it";
  } else if (auto made = device->MakeCollectives(); made.ok()) {
    gpus.gpus = *std::move(made);
  } else {
    gpus.why_none = std::string(made.status().message());
  }
  return gpus;
}

absl::StatusOr<std::unique_ptr<GradientExchange>> MakeExchange(const TrainerOptions& options,
                                                               const ModelPlan& plan,
                                                               const Dataset& training_set,
                                                               const GpuPreference& gpus, Replica* replica) {
  const std::vector<OptimizerConfig> optimizers = OptimizersByGroup(options);
  if (!options.task) return MakeLocalExchange(plan.layout, plan.tables, optimizers, options.seed);
  ps::JobConfig config = MakeJobConfig(plan.layout, plan.tables, options.update, optimizers, options.seed);
  config.set_model(Describe(options.model));
  config.set_training_set_crc32c(DatasetCrc32c(training_set));
  config.set_global_batch_size(options.global_batch_size);
  config.set_augment_shift(options.augment_shift);
  std::optional<TlsIdentity> tls;
  if (!options.tls_dir.empty()) {
    MUSTER_ASSIGN_OR_RETURN(tls, LoadTlsDirectory(options.tls_dir));
  } else {
    spdlog::info("talking to the other tasks without TLS; --tls_dir turns it on");
  }
  AllReduceOptions dense = DenseOptions(options, FingerprintOf(config), tls, gpus, replica);
  if (options.strategy == Strategy::kAllReduce) {
    dense.checkpoints = CheckpointsOf(options, config);
    return MakeAllReduceExchange(plan.layout, optimizers, options.seed, dense);
  }
  const bool is_hybrid = options.strategy == Strategy::kHybrid;
  ParameterServerClientOptions client{.cluster = options.task->cluster,
                                      .view = options.view,
                                      .task = options.task->task,
                                      .incarnation = options.incarnation,
                                      .generation = options.generation,
                                      .config = std::move(config),
                                      .train_steps = options.train_steps,
                                      .layout = is_hybrid ? ParameterLayout() : plan.layout,
                                      .connect_timeout = options.connect_timeout,
                                      .server_timeout = options.server_timeout,
                                      .answer_timeout = options.worker_timeout + options.server_timeout,
                                      .tls = std::move(tls),
                                      .transport = options.transport,
                                      .replicated = options.replicated};
  if (!is_hybrid) return MakeParameterServerExchange(std::move(client));
  client.config.clear_tensors();
  client.config.set_layout_hash(client.layout.Hash());
  client.config.set_needs_all_workers(true);
  return MakeHybridExchange(plan.layout, optimizers, options.seed, dense, std::move(client));
}

}  // namespace muster
