#include "inventory/job_rules.h"

#include <algorithm>
#include <set>

#include "inventory/train_reader.h"

namespace muster {
namespace {

// Standing servers have said before how they keep what they have.
absl::Status CheckServersThatStand(const YamlNode& root, const Job& job) {
  if (job.strategy != "parameter_server" && job.strategy != "hybrid") {
    return root.Error(job.is_allreduce() ? "standing servers are for `strategy: parameter_server` or `hybrid`"
                                         : "standing servers are for the models of the built-in trainer");
  }
  for (const char* key : {"checkpoint", "durability"}) {
    if (const YamlNode* given = root.Find(key); given != nullptr) {
      return given->KeyError(absl::StrFormat(
          "\"%s\" of standing servers stands in the file that `muster up` was given: leave it out", key));
    }
  }
  return absl::OkStatus();
}

// A job has a model or a program, and only the keys that go with it.
absl::Status CheckModelOrProgram(const YamlNode& root, const TrainerModel* model, Job* job) {
  const YamlNode* program = root.Find("program");
  if (model == nullptr && program == nullptr) {
    return root.Error("what to run is missing: \"model\", or \"program\" for your own");
  }
  if (model != nullptr && program != nullptr) {
    const SourcePosition other = root.Find("model")->key_position();
    return program->KeyError("\"model\" and \"program\" exclude each other; the model is at " +
                             other.ToString());
  }
  const std::vector<std::string> foreign_keys =
      model != nullptr ? std::vector<std::string>{"files", "flags"}
                       : std::vector<std::string>{"variant",    "hidden",         "strategy",   "update",
                                                  "train",      "checkpoint",     "durability", "transport",
                                                  "collective", "trusted_network"};
  for (const YamlNode& child : root.children) {
    if (std::find(foreign_keys.begin(), foreign_keys.end(), child.key) == foreign_keys.end()) continue;
    return child.KeyError(absl::StrFormat("%s means nothing with \"%s\"", Quoted(child.key),
                                          model != nullptr ? "model" : "program"));
  }
  if (model == nullptr) {
    if (job->data.kind == DataSource::Kind::kAuto) {
      return root.Find("data")->Error("\"auto\" is the data of a model; a program names its folder");
    }
    return absl::OkStatus();
  }
  job->model = model->name;
  if (job->strategy.empty()) job->strategy = "parameter_server";
  if (job->data.kind == DataSource::Kind::kNone) job->data.kind = DataSource::Kind::kAuto;
  return absl::OkStatus();
}

// What the part "train" asks of the model.
absl::Status CheckModelTraining(const YamlNode& train, const TrainerModel& model, const Job& job) {
  const YamlNode* const wide = train.Find("wide");
  if (model.takes_images) {
    if (wide == nullptr) return absl::OkStatus();
    return wide->KeyError("\"wide\" is for the wide part of a model, which " + model.name + " does not have");
  }
  const bool all_wide = job.variant == model.without_hidden;
  if (wide != nullptr && all_wide) {
    return wide->KeyError(Quoted(job.variant) +
                          " has one optimizer, whose keys stand in \"train\" itself, without \"wide\"");
  }
  // The optimizer of a wide part is FTRL unless another one is given.
  const YamlNode* const place = all_wide ? &train : wide;
  const OptimizerSpec& optimizer = all_wide ? job.train.optimizer : job.train.wide;
  if (place != nullptr && !optimizer.kind && !IsConstant(optimizer.schedule)) {
    return place->Find("schedule")
        ->KeyError("wide columns are trained by ftrl, which takes a constant learning rate only");
  }
  if (const YamlNode* const augment = train.Find("augment")) {
    return augment->KeyError("\"augment\" is for images, which " + model.name + " does not take");
  }
  return absl::OkStatus();
}

absl::Status CheckModelDetails(const YamlNode& root, const TrainerModel& model, const Job& job) {
  const YamlNode* const hidden = root.Find("hidden");
  if (hidden != nullptr && !model.has_hidden_layers) {
    return hidden->KeyError(Quoted(model.name) + " has no hidden layers");
  }
  if (hidden != nullptr && job.hidden.empty()) {
    return hidden->KeyError("no sizes: give at least one, or leave it out for those of the model");
  }
  constexpr size_t kMostHiddenLayers = 1000;  // of the trainer
  if (job.hidden.size() > kMostHiddenLayers) {
    return hidden->KeyError(
        absl::StrFormat("%d hidden layers; at most %d", job.hidden.size(), kMostHiddenLayers));
  }
  if (const YamlNode* variant = root.Find("variant")) {
    if (model.variants.empty()) return variant->KeyError(Quoted(model.name) + " has no variants");
    if (std::find(model.variants.begin(), model.variants.end(), job.variant) == model.variants.end()) {
      return variant->Error(absl::StrFormat("unknown variant %s of %s%s", Quoted(job.variant), model.name,
                                            DidYouMean(job.variant, model.variants, "it is one of")));
    }
    if (hidden != nullptr && job.variant == model.without_hidden) {
      return hidden->KeyError(
          absl::StrFormat("%s of %s has no hidden layers", Quoted(job.variant), model.name));
    }
  }
  if (const YamlNode* const train = root.Find("train")) {
    MUSTER_RETURN_IF_ERROR(CheckModelTraining(*train, model, job));
  }
  return absl::OkStatus();
}

// `keys` of the part "update" mean something with the strategy, and no others.
absl::Status CheckUpdateOfAllReduce(const YamlNode& root, const Job& job, const std::set<std::string>& keys) {
  if (job.update.mode.value_or(UpdateSpec::Mode::kSync) != UpdateSpec::Mode::kSync) {
    return root.Find("update")->Find("mode")->Error(job.strategy + " is always `sync`");
  }
  const YamlNode* const update = root.Find("update");
  if (update == nullptr) return absl::OkStatus();
  for (const YamlNode& child : update->children) {
    if (keys.contains(child.key)) continue;
    return child.KeyError(absl::StrFormat("\"%s\" is for parameter servers%s", child.key,
                                          job.is_hybrid() ? " that have all parameters" : ""));
  }
  return absl::OkStatus();
}

// What is for parameter servers means nothing without them.
absl::Status CheckAllReduce(const YamlNode& root, const TrainerModel& model, const Job& job) {
  if (!model.takes_images) {
    return root.Find("strategy")
        ->Error(absl::StrFormat(
            "the tables of %s are on parameter servers, which allreduce does not have: hybrid has both",
            model.name));
  }
  const YamlNode& replicas = *root.Find("replicas");
  if (job.ps.count > 0) {
    return replicas.Find("ps")->Find("count")->Error("strategy allreduce has no ps: leave it out");
  }
  if (job.replicated || (job.checkpoint && job.checkpoint->journal)) {
    return root.Find("durability")
        ->Error(
            "with allreduce each worker has all parameters already; what is left to keep is a `checkpoint`");
  }
  if (job.checkpoint && job.checkpoint->buddy) {
    return root.Find("checkpoint")->Find("buddy")->KeyError("\"buddy\" is for parameter servers");
  }
  MUSTER_RETURN_IF_ERROR(CheckUpdateOfAllReduce(root, job, {"mode", "bucket_bytes"}));
  return absl::OkStatus();
}

// Of muster's own trainer; what a program does with them nobody knows.
absl::Status CheckGpus(const YamlNode& root, const Job& job) {
  if (!job.program.empty()) return absl::OkStatus();
  for (const ReplicaRole role : kReplicaRoles) {
    if (job.replicas(role).gpus == 0) continue;
    const YamlNode* const gpus = root.Find("replicas")->Find(ReplicaRoleName(role))->Find("gpus");
    if (role == ReplicaRole::kPs) return gpus->KeyError(kServersUseNoGpus);
    if (job.replicas(role).gpus > 1) {
      return gpus->Error("each worker of muster's trainer computes on one GPU: give the job more workers");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMin(const YamlNode& root, const Job& job) {
  for (const ReplicaRole role : kReplicaRoles) {
    if (!job.replicas(role).min) continue;
    const YamlNode* const min = root.Find("replicas")->Find(ReplicaRoleName(role))->Find("min");
    if (role != ReplicaRole::kWorker) return min->KeyError("\"min\" is for workers");
    if (job.is_hybrid()) return min->KeyError("\"min\": with `strategy: hybrid` no worker can be missing");
    if (*job.worker.min > job.worker.count) {
      return min->Error(absl::StrFormat("\"min\" is %d of %d workers", *job.worker.min, job.worker.count));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMax(const YamlNode& root, const Job& job) {
  for (const ReplicaRole role : kReplicaRoles) {
    if (!job.replicas(role).max) continue;
    const YamlNode* const max = root.Find("replicas")->Find(ReplicaRoleName(role))->Find("max");
    if (role != ReplicaRole::kWorker) return max->KeyError("\"max\" is for workers");
    if (const std::string why = WhyNotElastic(job); !why.empty()) {
      return max->KeyError("\"max\": nobody can join such a job while it runs: " + why);
    }
    if (*job.worker.max < job.worker.count) {
      return max->Error(
          absl::StrFormat("\"max\" is %d, less than the %d of \"count\"", *job.worker.max, job.worker.count));
    }
    // Where they share a batch it stays as it was with those that the job began with.
    const int workers = *job.worker.max + job.chief.count;
    const int64_t samples = job.train.global_batch_size ? *job.train.global_batch_size
                                                        : int64_t{job.train.batch_size.value_or(workers)} *
                                                              (job.worker.count + job.chief.count);
    if (job.shares_batches() && samples < workers) {
      return max->Error(absl::StrFormat("%d workers cannot share a batch of %d samples", workers, samples));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckHybrid(const YamlNode& root, const TrainerModel& model, const Job& job) {
  if (model.takes_images) {
    return root.Find("strategy")
        ->Error(absl::StrFormat("%s has no tables for parameter servers: take allreduce", model.name));
  }
  if (job.checkpoint && !job.checkpoint->journal) {
    return root.Find(root.Find("checkpoint") != nullptr ? "checkpoint" : "durability")
        ->KeyError(
            "with hybrid nobody can go back to a checkpoint, which has only the tables: with "
            "`durability: journal` or `replicated` nobody has to");
  }
  return CheckUpdateOfAllReduce(root, job, {"mode", "bucket_bytes", "evict_rows_after"});
}

absl::Status CheckParameterServers(const YamlNode& root, const Job& job, bool servers_stand) {
  if (job.update.bucket_bytes && !job.is_hybrid()) {
    return root.Find("update")
        ->Find("bucket_bytes")
        ->KeyError("\"bucket_bytes\" is for `strategy: allreduce` or `hybrid`");
  }
  if (job.ps.count < 1 && !servers_stand) {
    const YamlNode* ps = root.Find("replicas")->Find("ps");
    const YamlNode* where = ps == nullptr ? root.Find("replicas") : ps->Find("count");
    return where->Error(absl::StrFormat("strategy %s needs at least one ps", job.strategy));
  }
  if (job.update.begin_together && servers_stand) {
    return root.Find("update")
        ->Find("begin_together")
        ->KeyError("\"begin_together\" is for servers that start with their workers: these stand already");
  }
  if (job.replicated && job.ps.count < 2) {
    return root.Find("durability")->Error("`replicated` needs two ps at least");
  }
  if (job.checkpoint && job.checkpoint->buddy && job.ps.count < 2) {
    return root.Find("checkpoint")->Find("buddy")->Error("another server's copies need two ps at least");
  }
  return absl::OkStatus();
}

// How workers sum gradients, where they do.
absl::Status CheckCollective(const YamlNode& root, const Job& job) {
  if (!job.is_allreduce() && !job.is_hybrid()) {
    for (const char* key : {"collective", "trusted_network"}) {
      if (const YamlNode* given = root.Find(key); given != nullptr) {
        return given->KeyError(absl::StrFormat("\"%s\" is for `strategy: allreduce` or `hybrid`", key));
      }
    }
  }
  const std::string device = job.train.device.value_or("auto");
  if (job.collective != "nccl" || device == "auto" || device.starts_with("cuda")) return absl::OkStatus();
  return root.Find("collective")
      ->Error("`nccl` is for GPUs: it does not go with " + Quoted(device) + ", the device of \"train\"");
}

// Where the file asks for NCCL, if it does. What the hosts have decides the rest.
std::optional<SourcePosition> NcclPosition(const YamlNode& root, const Job& job) {
  if (job.collective == "nccl") return root.Find("collective")->position();
  const bool reduces = job.is_allreduce() || job.is_hybrid();
  if (!reduces || job.collective == "native" || !job.train.device.value_or("").starts_with("cuda")) {
    return std::nullopt;
  }
  return root.Find("train")->Find("device")->position();
}

// What the parts of a model's job ask of each other.
absl::Status CheckTraining(const YamlNode& root, const TrainerModel& model, const Job& job,
                           bool servers_stand) {
  MUSTER_RETURN_IF_ERROR(job.is_allreduce() ? CheckAllReduce(root, model, job)
                                            : CheckParameterServers(root, job, servers_stand));
  if (job.is_hybrid()) MUSTER_RETURN_IF_ERROR(CheckHybrid(root, model, job));
  MUSTER_RETURN_IF_ERROR(CheckCollective(root, job));
  const int contributors = job.worker.count + job.chief.count;
  if (job.update.aggregate.value_or(0) > contributors && !job.train.batch_size) {
    return root.Find("update")
        ->Find("aggregate")
        ->KeyError(absl::StrFormat(
            "%d gradients of %d workers need `train: {batch_size: ...}`, the samples of each gradient",
            *job.update.aggregate, contributors));
  }
  // Wide & deep has ftrl where the job file names no other optimizer.
  const auto is_ftrl = [&](const OptimizerSpec& optimizer, bool by_default) {
    return optimizer.kind ? *optimizer.kind == "ftrl" : by_default && job.model == "wide_deep";
  };
  const bool wide_only = job.variant == "wide_only";
  if (job.update.scale_rate.value_or(false) &&
      (is_ftrl(job.train.optimizer, wide_only) || is_ftrl(job.train.wide, !wide_only))) {
    return root.Find("update")
        ->Find("scale_rate")
        ->KeyError(
            "\"scale_rate\" goes with any optimizer but ftrl, whose state is a sum over steps of one rate");
  }
  if (job.train.global_batch_size && *job.train.global_batch_size < contributors) {
    return root.Find("train")
        ->Find("global_batch_size")
        ->Error(absl::StrFormat(
            "\"global_batch_size\" is %d, but each of the %d workers needs at least one sample",
            *job.train.global_batch_size, contributors));
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<TrainerModel>& TrainerModels() {
  static const std::vector<TrainerModel> models = {
      {.name = "mnist_softmax", .has_hidden_layers = false},
      {.name = "mnist_mlp", .has_hidden_layers = true},
      {.name = "mnist_cnn", .has_hidden_layers = false, .variants = {"lenet", "deep"}},
      {.name = "wide_deep",
       .has_hidden_layers = true,
       .variants = {"tutorial", "dist_test", "minibatch", "wide_only"},
       .without_hidden = "wide_only",
       .takes_images = false},
  };
  return models;
}

std::string WhyNotElastic(const Job& job) {
  if (!job.program.empty()) return "its program hears of the others only when it is started";
  if (job.is_hybrid()) return "with `strategy: hybrid` each step is made by all that there were at first";
  if (job.is_allreduce()) return "";
  const UpdateSpec::Mode mode = job.update.mode.value_or(UpdateSpec::Mode::kAsync);
  if (mode == UpdateSpec::Mode::kBounded) {
    return "with `update: {mode: bounded}` each step is made by all that there were at first";
  }
  if (job.update.aggregate) {
    return "with `aggregate` each step is made by so many of those that there were at first";
  }
  if (job.replicated) return "with `durability: replicated` the servers know those that there were at first";
  if (job.checkpoint && job.checkpoint->journal) {
    return "with `durability: journal` the servers know those that there were at first";
  }
  return "";
}

absl::Status CompleteJob(const YamlNode& root, const TrainerModel* model, bool servers_stand, Job* job) {
  MUSTER_RETURN_IF_ERROR(CheckModelOrProgram(root, model, job));
  MUSTER_RETURN_IF_ERROR(CheckMin(root, *job));
  MUSTER_RETURN_IF_ERROR(CheckMax(root, *job));
  MUSTER_RETURN_IF_ERROR(CheckGpus(root, *job));
  if (servers_stand) MUSTER_RETURN_IF_ERROR(CheckServersThatStand(root, *job));
  if (model == nullptr) return absl::OkStatus();
  MUSTER_RETURN_IF_ERROR(CheckModelDetails(root, *model, *job));
  MUSTER_RETURN_IF_ERROR(CheckTraining(root, *model, *job, servers_stand));
  job->nccl_position = NcclPosition(root, *job);
  return absl::OkStatus();
}

}  // namespace muster
