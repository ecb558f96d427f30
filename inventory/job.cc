#include "inventory/job.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <set>

#include "base/file.h"
#include "inventory/train_reader.h"
#include "inventory/yaml_reader.h"

namespace muster {
namespace {

constexpr int kDefaultMaxRestarts = 3;
constexpr int kMostRestarts = 1'000'000;

// What the built-in trainer can train.
struct Model {
  std::string name;
  bool has_hidden_layers;
  std::vector<std::string> variants;
  std::string without_hidden;  // a variant of a model that has hidden layers otherwise
  bool takes_images = true;
};

const std::vector<Model>& Models() {
  static const std::vector<Model> models = {
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

absl::StatusOr<std::string> ParseName(const YamlNode& node) {
  constexpr size_t kMaxNameBytes = 63;
  MUSTER_RETURN_IF_ERROR(node.CheckText());
  const std::string& name = node.text;
  const auto is_name_byte = [](char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.'; };
  if (name.size() > kMaxNameBytes || !absl::ascii_isalnum(name[0]) ||
      !std::all_of(name.begin(), name.end(), is_name_byte)) {
    return node.Error(Quoted(name) +
                      " is not a job name: letters, digits, '-', '_' and '.', the first a letter or digit, "
                      "at most 63 bytes");
  }
  return name;
}

absl::StatusOr<const Model*> ParseModel(const YamlNode& node) {
  std::vector<std::pair<std::string, const Model*>> table;
  for (const Model& model : Models()) table.emplace_back(model.name, &model);
  return YamlChoice("model", table)(node);
}

absl::StatusOr<std::string> ParseStrategy(const YamlNode& node) {
  return YamlChoice<std::string>(
      "strategy",
      {{"parameter_server", "parameter_server"}, {"allreduce", "allreduce"}, {"hybrid", "hybrid"}})(node);
}

absl::StatusOr<std::string> ParseBucketBytes(const YamlNode& node) {
  constexpr int64_t kMinBytes = 1024, kMaxBytes = int64_t{1} << 40;
  if (node.kind == YamlNode::Kind::kText && node.text == "auto") return node.text;
  const auto bytes = YamlInteger<int64_t>(kMinBytes, kMaxBytes)(node);
  if (!bytes.ok())
    return node.Expected(absl::StrFormat("auto, or bytes from %d to %d", kMinBytes, kMaxBytes));
  return std::to_string(*bytes);
}

absl::StatusOr<UpdateSpec> ParseUpdate(const YamlNode& node) {
  using Mode = UpdateSpec::Mode;
  constexpr int kMaxStaleness = 1'000'000;
  constexpr int kMaxEvictionIntervals = 1'000'000;
  constexpr double kSmallestTopK = 1e-6, kLargestTopK = 0.5;  // of more, all is no longer
  UpdateSpec update;
  YamlFields fields(node, "update");
  fields.Read("mode", &update.mode,
              YamlChoice<Mode>(
                  "mode", {{"async", Mode::kAsync}, {"sync", Mode::kSync}, {"bounded", Mode::kBounded}}));
  fields.Read("aggregate", &update.aggregate, YamlInteger<int>(1, 2 * kMaxTasksOfRole));
  fields.Read("staleness", &update.staleness, YamlInteger<int>(0, kMaxStaleness));
  fields.Read("max_staleness", &update.max_staleness, YamlInteger<int>(0, kMaxStaleness));
  fields.Read("scale_rate", &update.scale_rate, YamlBoolean);
  fields.Read("wire_type", &update.wire_type,
              YamlChoice<std::string>(
                  "wire type", {{"float32", "float32"}, {"float16", "float16"}, {"bfloat16", "bfloat16"}}));
  fields.Read("top_k", &update.top_k, YamlNumber(kSmallestTopK, kLargestTopK));
  fields.Read("evict_rows_after", &update.evict_rows_after, YamlInteger<int>(0, kMaxEvictionIntervals));
  fields.Read("bucket_bytes", &update.bucket_bytes, ParseBucketBytes);
  MUSTER_RETURN_IF_ERROR(fields.Finish());
  const Mode mode = update.mode.value_or(Mode::kAsync);
  if (const YamlNode* given = node.Find("aggregate"); given != nullptr && mode != Mode::kSync) {
    return given->KeyError("\"aggregate\" needs `mode: sync`: only there a number of gradients makes a step");
  }
  // A synchronous worker is never ahead, and may say so.
  const bool is_bounded = mode == Mode::kBounded || (mode == Mode::kSync && update.staleness == 0);
  if (const YamlNode* given = node.Find("staleness"); given != nullptr && !is_bounded) {
    return given->KeyError(
        "\"staleness\" needs `mode: bounded`; what drops old gradients in async mode is \"max_staleness\"");
  }
  if (mode == Mode::kBounded && !update.staleness) {
    return node.Error(
        "`mode: bounded` needs \"staleness\", the steps that a worker may be ahead of the slowest");
  }
  for (const char* key : {"max_staleness", "scale_rate"}) {
    if (const YamlNode* given = node.Find(key); given != nullptr && mode != Mode::kAsync) {
      return given->KeyError(absl::StrFormat("\"%s\" needs `mode: async`", key));
    }
  }
  return update;
}

absl::StatusOr<CheckpointSpec> ParseCheckpoint(const YamlNode& node) {
  CheckpointSpec checkpoint;
  YamlFields fields(node, "checkpoint");
  fields.Read("every_steps", &checkpoint.every_steps, YamlInteger<int64_t>(1, 1'000'000'000'000));
  fields.Read("keep", &checkpoint.keep, YamlInteger<int>(1, 1'000'000));
  fields.Read("buddy", &checkpoint.buddy, YamlBoolean);
  MUSTER_RETURN_IF_ERROR(fields.Finish());
  return checkpoint;
}

// How a lost server comes back.
constexpr int64_t kShortestHungMs = 5000;
constexpr int kMostGpusOfTask = 256;
constexpr char kServersUseNoGpus[] = "\"gpus\": servers compute on their processors";
constexpr int64_t kLeastLogBytes = 100'000, kMostLogBytes = int64_t{1} << 50;

enum class Durability { kCheckpoint, kJournal, kReplicated };

absl::StatusOr<Durability> ParseDurability(const YamlNode& node) {
  return YamlChoice<Durability>("durability", {{"checkpoint", Durability::kCheckpoint},
                                               {"journal", Durability::kJournal},
                                               {"replicated", Durability::kReplicated}})(node);
}

absl::StatusOr<ReplicaSpec> ParseReplica(const YamlNode& node) {
  using Restart = ReplicaSpec::Restart;
  ReplicaSpec replica;
  std::optional<Restart> restart;
  std::optional<int> max_restarts;
  YamlFields fields(node, node.key);
  fields.Require("count", &replica.count, YamlInteger<int>(0, kMaxTasksOfRole));
  fields.Read("on", &replica.on, YamlText);
  fields.Read("restart", &restart,
              YamlChoice<Restart>("restart policy", {{"never", Restart::kNever},
                                                     {"on_failure", Restart::kOnFailure},
                                                     {"always", Restart::kAlways},
                                                     {"exit_code", Restart::kExitCode}}));
  fields.Read("max_restarts", &max_restarts, YamlInteger<int>(0, kMostRestarts));
  fields.Read("hung_after", &replica.hung_after_ms, YamlDurationMs);
  fields.Read("gpus", &replica.gpus, YamlInteger<int>(0, kMostGpusOfTask));
  fields.Read("max_log_bytes", &replica.max_log_bytes, YamlInteger<int64_t>(kLeastLogBytes, kMostLogBytes));
  fields.Read("min", &replica.min, YamlInteger<int>(1, kMaxTasksOfRole));
  fields.Read("max", &replica.max, YamlInteger<int>(1, kMaxTasksOfRole));
  MUSTER_RETURN_IF_ERROR(fields.Finish());
  if (const YamlNode* on = node.Find("on")) replica.on_position = on->position();
  if (const YamlNode* gpus = node.Find("gpus")) replica.gpus_position = gpus->position();
  if (replica.hung_after_ms && *replica.hung_after_ms < kShortestHungMs) {
    return node.Find("hung_after")
        ->Error("\"hung_after\" is 5s at least: progress is reported once a second");
  }
  if (max_restarts && restart == Restart::kNever) {
    return node.Find("max_restarts")->KeyError("\"max_restarts\" means nothing with `restart: never`");
  }
  replica.restart = restart.value_or(max_restarts ? Restart::kOnFailure : Restart::kNever);
  if (replica.restart != Restart::kNever) replica.max_restarts = max_restarts.value_or(kDefaultMaxRestarts);
  return replica;
}

struct Replicas {
  ReplicaSpec ps, chief, worker;
};

// Tasks of this role are started again, unless the job file says when, or that they are not.
void RestartByDefault(const YamlNode& root, ReplicaRole role, ReplicaSpec* replicas) {
  const YamlNode* const given = root.Find("replicas")->Find(ReplicaRoleName(role));
  if (given == nullptr || given->Find("restart") != nullptr) return;
  if (replicas->restart != ReplicaSpec::Restart::kNever) return;
  replicas->restart = ReplicaSpec::Restart::kOnFailure;
  replicas->max_restarts = kDefaultMaxRestarts;
}

absl::StatusOr<Replicas> ParseReplicas(const YamlNode& node) {
  Replicas replicas;
  YamlFields fields(node, "replicas");
  fields.Read("ps", &replicas.ps, ParseReplica);
  fields.Read("chief", &replicas.chief, ParseReplica);
  fields.Require("worker", &replicas.worker, ParseReplica);
  MUSTER_RETURN_IF_ERROR(fields.Finish());
  if (replicas.worker.count < 1)
    return node.Find("worker")->Find("count")->Error("a job needs at least one worker");
  if (replicas.chief.count > 1)
    return node.Find("chief")->Find("count")->Error("a job has at most one chief");
  return replicas;
}

auto ParseData(const std::string& home) {
  return [home](const YamlNode& node) -> absl::StatusOr<DataSource> {
    DataSource data{.position = node.position()};
    if (node.kind == YamlNode::Kind::kMapping) {
      data.kind = DataSource::Kind::kOnHosts;
      YamlFields fields(node, "data");
      fields.Require("on_hosts", &data.folder, YamlRemoteFolder);
      MUSTER_RETURN_IF_ERROR(fields.Finish());
    } else if (node.kind == YamlNode::Kind::kText && node.text == "auto") {
      data.kind = DataSource::Kind::kAuto;
    } else if (node.kind == YamlNode::Kind::kText) {
      data.kind = DataSource::Kind::kFolder;
      MUSTER_ASSIGN_OR_RETURN(data.folder, ResolveLocalPath(node, home));
    } else {
      return node.Expected("auto, a folder, or {on_hosts: a folder there}");
    }
    return data;
  };
}

absl::StatusOr<std::vector<std::string>> ParseProgram(const YamlNode& node) {
  const auto parse_argument = [](const YamlNode& item) -> absl::StatusOr<std::string> {
    if (item.kind != YamlNode::Kind::kText) return item.Expected("an argument");
    return item.text;
  };
  MUSTER_ASSIGN_OR_RETURN(
      std::vector<std::string> argv,
      YamlList("a program and its arguments, like [python3, train.py]", parse_argument)(node));
  if (argv.empty() || argv[0].empty()) return node.Error("the program's name is missing");
  return argv;
}

// What the agent would refuse is refused here, so that no host has to say no.
absl::StatusOr<ProgramFile> ParseProgramFile(const YamlNode& node) {
  MUSTER_RETURN_IF_ERROR(node.CheckText());
  const std::string& text = node.text;
  const std::filesystem::path path = std::filesystem::path(text).lexically_normal();
  if (!ValidateRelativePath(path.native()).ok() || *path.begin() == "~") {
    return node.Error(Quoted(text) + " must be the path of a file below the folder of the job file");
  }
  if (*path.begin() == "log" || *path.begin() == ".muster") {
    return node.Error(Quoted(text) +
                      " is where the task's folder holds muster's own; give the file another name");
  }
  return ProgramFile{.path = path.string(), .position = node.position()};
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParseEnv(const YamlNode& node) {
  static constexpr std::string_view kOurs[] = {"TF_CONFIG",  "RANK",        "WORLD_SIZE",
                                               "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"};
  if (node.kind != YamlNode::Kind::kMapping)
    return node.Expected("a mapping from names of variables to values");
  std::vector<std::pair<std::string, std::string>> env;
  for (const YamlNode& child : node.children) {
    const auto is_name_byte = [](char c) { return absl::ascii_isalnum(c) || c == '_'; };
    if (child.key.empty() || absl::ascii_isdigit(child.key[0]) ||
        !std::all_of(child.key.begin(), child.key.end(), is_name_byte)) {
      return child.KeyError(Quoted(child.key) + " is not the name of an environment variable");
    }
    if (child.key.starts_with("MUSTER_") ||
        std::find(std::begin(kOurs), std::end(kOurs), child.key) != std::end(kOurs)) {
      return child.KeyError(Quoted(child.key) + " is set by muster itself");
    }
    if (child.kind != YamlNode::Kind::kText) return child.Expected("text");
    env.emplace_back(child.key, child.text);
  }
  return env;
}

// A file about servers alone is another kind of file.
bool IsOfServersAlone(const YamlNode& root) {
  const YamlNode* const replicas = root.Find("replicas");
  return replicas != nullptr && replicas->Find("ps") != nullptr && replicas->Find("worker") == nullptr &&
         root.Find("model") == nullptr && root.Find("program") == nullptr;
}

// What checkpoints and durability mean for each other.
absl::Status ResolveDurability(const YamlNode& root, const std::optional<Durability>& durability, Job* job) {
  job->replicated = durability == Durability::kReplicated;
  if (job->replicated && job->checkpoint) {
    return root.Find("checkpoint")
        ->KeyError("servers that are `durability: replicated` write no checkpoints");
  }
  if (durability && !job->replicated && !job->checkpoint) job->checkpoint.emplace();
  if (durability == Durability::kJournal) job->checkpoint->journal = true;
  return absl::OkStatus();
}

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
absl::Status CheckModelOrProgram(const YamlNode& root, const Model* model, Job* job) {
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
absl::Status CheckModelTraining(const YamlNode& train, const Model& model, const Job& job) {
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

absl::Status CheckModelDetails(const YamlNode& root, const Model& model, const Job& job) {
  const YamlNode* const hidden = root.Find("hidden");
  if (hidden != nullptr && !model.has_hidden_layers) {
    return hidden->KeyError(Quoted(model.name) + " has no hidden layers");
  }
  if (hidden != nullptr && job.hidden.empty()) {
    return hidden->KeyError("no sizes: give at least one, or leave it out for those of the model");
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
absl::Status CheckAllReduce(const YamlNode& root, const Model& model, const Job& job) {
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
  for (const char* key : {"checkpoint", "durability"}) {
    if (const YamlNode* given = root.Find(key); given != nullptr) {
      return given->KeyError(
          absl::StrFormat("\"%s\" is for parameter servers; with allreduce the workers' "
                          "parameters come from each other",
                          key));
    }
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
    // Of allreduce the batch stays as it was with those that the job began with.
    const int workers = *job.worker.max + job.chief.count;
    const int64_t samples = job.train.global_batch_size ? *job.train.global_batch_size
                                                        : int64_t{job.train.batch_size.value_or(workers)} *
                                                              (job.worker.count + job.chief.count);
    if (job.is_allreduce() && samples < workers) {
      return max->Error(absl::StrFormat("%d workers cannot share a batch of %d samples", workers, samples));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckHybrid(const YamlNode& root, const Model& model, const Job& job) {
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
absl::Status CheckTraining(const YamlNode& root, const Model& model, const Job& job, bool servers_stand) {
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

std::string ReplicaRoleName(ReplicaRole role) {
  switch (role) {
    case ReplicaRole::kPs:
      return "ps";
    case ReplicaRole::kChief:
      return "chief";
    case ReplicaRole::kWorker:
      return "worker";
  }
  MUSTER_CHECK(false, "a role that does not exist");
}

const ReplicaSpec& Job::replicas(ReplicaRole role) const {
  return role == ReplicaRole::kPs ? ps : role == ReplicaRole::kChief ? chief : worker;
}

std::string WhyNotElastic(const Job& job) {
  if (!job.program.empty()) return "its program hears of the others only when it is started";
  if (job.is_hybrid()) return "with `strategy: hybrid` each step is made by all that there were at first";
  if (job.is_allreduce()) return "";
  const UpdateSpec::Mode mode = job.update.mode.value_or(UpdateSpec::Mode::kAsync);
  if (mode != UpdateSpec::Mode::kAsync) {
    return absl::StrFormat("with `update: {mode: %s}` each step is made by all that there were at first",
                           mode == UpdateSpec::Mode::kSync ? "sync" : "bounded");
  }
  if (job.replicated) return "with `durability: replicated` the servers know those that there were at first";
  if (job.checkpoint && job.checkpoint->journal) {
    return "with `durability: journal` the servers know those that there were at first";
  }
  return "";
}

absl::StatusOr<Job> ParseJob(std::string_view text, const std::string& path, const std::string& home,
                             const JobOverrides& overrides) {
  MUSTER_ASSIGN_OR_RETURN(const YamlDocument document, ParseYaml(text, path));
  const YamlNode& root = document.root;
  if (IsOfServersAlone(root)) {
    return root.Error("this is about servers alone, which `muster up` starts: a job has workers, too");
  }
  Job job{.path = path};
  const Model* model = nullptr;
  Replicas replicas;
  std::optional<Durability> durability;
  YamlFields fields(root, "the job");
  fields.Require("name", &job.name, ParseName);
  fields.Read("model", &model, ParseModel);
  fields.Read("variant", &job.variant, YamlText);
  fields.Read("hidden", &job.hidden, YamlList("sizes of hidden layers", YamlInteger<int>(1, 65536)));
  fields.Read("data", &job.data, ParseData(home));
  fields.Read("strategy", &job.strategy, ParseStrategy);
  fields.Read("update", &job.update, ParseUpdate);
  fields.Require("replicas", &replicas, ParseReplicas);
  fields.Read("train", &job.train, ReadTrainSpec);
  fields.Read("checkpoint", &job.checkpoint, ParseCheckpoint);
  fields.Read("durability", &durability, ParseDurability);
  fields.Read("transport", &job.tcp_only, YamlChoice<bool>("transport", {{"auto", false}, {"tcp", true}}));
  fields.Read(
      "collective", &job.collective,
      YamlChoice<std::string>("collective", {{"auto", "auto"}, {"native", "native"}, {"nccl", "nccl"}}));
  fields.Read("trusted_network", &job.trusted_network, YamlBoolean);
  fields.Read("program", &job.program, ParseProgram);
  fields.Read("files", &job.files, YamlOneOrMore("files", ParseProgramFile));
  fields.Read("flags", &job.tensorflow_flags,
              YamlChoice<bool>("kind of flags", {{"tensorflow", true}, {"none", false}}));
  fields.Read("env", &job.env, ParseEnv);
  MUSTER_RETURN_IF_ERROR(fields.Finish());
  job.ps = replicas.ps;
  job.chief = replicas.chief;
  job.worker = replicas.worker;
  if (overrides.workers) {
    job.worker.count = *overrides.workers;
    job.worker.max.reset();
  }
  MUSTER_RETURN_IF_ERROR(ResolveDurability(root, durability, &job));
  // A server that comes back has to be started again.
  if (job.checkpoint || job.replicated) RestartByDefault(root, ReplicaRole::kPs, &job.ps);
  // And a worker whose parameters others have gets them from them.
  if (job.is_allreduce() || job.is_hybrid()) {
    RestartByDefault(root, ReplicaRole::kChief, &job.chief);
    RestartByDefault(root, ReplicaRole::kWorker, &job.worker);
  }
  MUSTER_RETURN_IF_ERROR(CheckModelOrProgram(root, model, &job));
  MUSTER_RETURN_IF_ERROR(CheckMin(root, job));
  MUSTER_RETURN_IF_ERROR(CheckMax(root, job));
  MUSTER_RETURN_IF_ERROR(CheckGpus(root, job));
  if (overrides.servers_stand) MUSTER_RETURN_IF_ERROR(CheckServersThatStand(root, job));
  if (model != nullptr) {
    MUSTER_RETURN_IF_ERROR(CheckModelDetails(root, *model, job));
    MUSTER_RETURN_IF_ERROR(CheckTraining(root, *model, job, overrides.servers_stand));
    job.nccl_position = NcclPosition(root, job);
  }
  if (overrides.servers_stand) job.ps = {};
  return job;
}

absl::StatusOr<Job> ParseStandingServers(std::string_view text, const std::string& path) {
  MUSTER_ASSIGN_OR_RETURN(const YamlDocument document, ParseYaml(text, path));
  const YamlNode& root = document.root;
  for (const char* key : {"model", "program"}) {
    if (const YamlNode* given = root.Find(key); given != nullptr) {
      return given->KeyError(absl::StrFormat(
          "\"%s\" is of a job, which `muster run` starts: standing servers hear of it from its workers",
          key));
    }
  }
  Job job{.is_standing = true, .path = path, .strategy = "parameter_server"};
  std::optional<Durability> durability;
  YamlFields fields(root, "standing servers");
  fields.Require("name", &job.name, ParseName);
  fields.Require("replicas", &job.ps, [](const YamlNode& node) -> absl::StatusOr<ReplicaSpec> {
    ReplicaSpec ps;
    YamlFields roles(node, "replicas of standing servers");
    roles.Require("ps", &ps, ParseReplica);
    MUSTER_RETURN_IF_ERROR(roles.Finish());
    if (ps.count < 1) return node.Find("ps")->Find("count")->Error("at least one server has to stand");
    for (const char* key : {"min", "max"}) {
      if (const YamlNode* given = node.Find("ps")->Find(key); given != nullptr) {
        return given->KeyError(absl::StrFormat("\"%s\" is for workers", key));
      }
    }
    if (ps.gpus > 0) return node.Find("ps")->Find("gpus")->KeyError(kServersUseNoGpus);
    return ps;
  });
  fields.Read("checkpoint", &job.checkpoint, ParseCheckpoint);
  fields.Read("durability", &durability, ParseDurability);
  fields.Read("transport", &job.tcp_only, YamlChoice<bool>("transport", {{"auto", false}, {"tcp", true}}));
  fields.Read("env", &job.env, ParseEnv);
  MUSTER_RETURN_IF_ERROR(fields.Finish());
  MUSTER_RETURN_IF_ERROR(ResolveDurability(root, durability, &job));
  if (job.replicated) {
    return root.Find("durability")->Error("standing servers make no replicas yet: `checkpoint` or `journal`");
  }
  if (job.checkpoint && job.checkpoint->buddy) {
    return root.Find("checkpoint")
        ->Find("buddy")
        ->KeyError("standing servers have no copies of each other's checkpoints yet");
  }
  // They stand, whatever becomes of a job.
  if (root.Find("replicas")->Find("ps")->Find("restart") == nullptr) {
    job.ps.restart = ReplicaSpec::Restart::kAlways;
    job.ps.max_restarts = std::max(job.ps.max_restarts, kMostRestarts);
  }
  return job;
}

absl::StatusOr<Job> ReadStandingServers(const std::filesystem::path& path) {
  MUSTER_ASSIGN_OR_RETURN(const std::string text, ReadYamlText(path));
  return ParseStandingServers(text, path.string());
}

absl::StatusOr<Job> ReadJob(const std::filesystem::path& path, const std::string& home,
                            const JobOverrides& overrides) {
  MUSTER_ASSIGN_OR_RETURN(const std::string text, ReadYamlText(path));
  return ParseJob(text, path.string(), home, overrides);
}

}  // namespace muster
