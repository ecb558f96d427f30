#include "inventory/job.h"

#include <absl/strings/ascii.h>

#include <algorithm>

#include "base/file.h"
#include "inventory/job_rules.h"
#include "inventory/train_reader.h"
#include "inventory/yaml_reader.h"

namespace muster {
namespace {

constexpr int kDefaultMaxRestarts = 3;
constexpr int kMostRestarts = 1'000'000;

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

absl::StatusOr<const TrainerModel*> ParseModel(const YamlNode& node) {
  std::vector<std::pair<std::string, const TrainerModel*>> table;
  for (const TrainerModel& model : TrainerModels()) table.emplace_back(model.name, &model);
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
  fields.Read("begin_together", &update.begin_together, YamlBoolean);
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

absl::StatusOr<Job> ParseJob(std::string_view text, const std::string& path, const std::string& home,
                             const JobOverrides& overrides) {
  MUSTER_ASSIGN_OR_RETURN(const YamlDocument document, ParseYaml(text, path));
  const YamlNode& root = document.root;
  if (IsOfServersAlone(root)) {
    return root.Error("this is about servers alone, which `muster up` starts: a job has workers, too");
  }
  Job job{.source = {.text = std::string(text), .home = home, .overrides = overrides}, .path = path};
  const TrainerModel* model = nullptr;
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
  MUSTER_RETURN_IF_ERROR(CompleteJob(root, model, overrides.servers_stand, &job));
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
  const YamlNode& given = *root.Find("replicas")->Find("ps");
  if (given.Find("restart") == nullptr) job.ps.restart = ReplicaSpec::Restart::kAlways;
  const bool is_restarted = job.ps.restart != ReplicaSpec::Restart::kNever;
  if (is_restarted && given.Find("max_restarts") == nullptr) job.ps.max_restarts = kMostRestarts;
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
