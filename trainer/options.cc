#include "trainer/options.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/command_line.h"
#include "trainer/data/make_data.h"
#include "trainer/flags.h"
#include "trainer/optimizer_flags.h"

namespace muster {
namespace {

absl::Status ParseHidden(const std::string& text, std::vector<int64_t>* hidden) {
  if (text.empty()) return absl::OkStatus();
  for (const auto part : absl::StrSplit(text, ',')) {
    if (!absl::SimpleAtoi(part, &hidden->emplace_back())) {
      return InvalidArgument("--hidden=%s: expected sizes like 512,512", text);
    }
  }
  return absl::OkStatus();
}

ps::WireType WireTypeNamed(const std::string& name) {
  return name == "float16" ? ps::FLOAT16 : name == "bfloat16" ? ps::BFLOAT16 : ps::FLOAT32;
}

absl::Status ResolveUpdate(const Flags& f, TrainerOptions* options) {
  const int workers = options->first_workers;
  UpdateConfig& update = options->update;
  const bool is_sync = f.sync_replicas || options->strategy != Strategy::kParameterServer;
  update = {.rule = {.mode = is_sync               ? UpdateMode::kSync
                             : f.bounded_staleness ? UpdateMode::kBounded
                                                   : UpdateMode::kAsync,
                     .worker_count = workers,
                     .staleness = f.bounded_staleness.value_or(0),
                     .max_staleness = f.max_staleness,
                     .scale_rate = f.scale_rate_by_staleness},
            .aggregate = std::min(workers, f.replicas_to_aggregate.value_or(workers)),
            .compression = {.wire_type = WireTypeNamed(f.wire_type), .top_k = f.top_k.value_or(0)},
            .eviction = {.every = options->checkpoint_every, .after = f.evict_rows_after}};
  if (f.first_workers && !options->may_scale()) {
    return InvalidArgument("--first_workers: with %s the workers stay those that there were at first",
                           options->strategy == Strategy::kHybrid ? "--strategy=hybrid"
                           : f.sync_replicas                      ? "--replicas_to_aggregate"
                                                                  : "--bounded_staleness");
  }
  if (f.replicas_to_aggregate && !f.sync_replicas) {
    return InvalidArgument("--replicas_to_aggregate needs --sync_replicas");
  }
  if ((f.max_staleness || f.scale_rate_by_staleness) && !options->is_async()) {
    return InvalidArgument(
        "--%s is for asynchronous updates: it goes with neither --sync_replicas nor "
        "--bounded_staleness",
        f.max_staleness ? "max_staleness" : "scale_rate_by_staleness");
  }
  const bool is_compressed = update.compression.wire_type != ps::FLOAT32 || f.top_k;
  if (is_compressed && !options->task) {
    return InvalidArgument("--%s: a process without parameter servers sends nothing",
                           f.top_k ? "top_k" : "wire_type");
  }
  if (update.eviction.is_on() && !options->task) {
    return InvalidArgument(
        "--evict_rows_after: parameter servers drop rows; a process without any has all of them");
  }
  return absl::OkStatus();
}

// One process is in no cluster, whatever was copied with --job_name=local.
absl::Status CheckAlone(const CLI::App& app) {
  for (const char* name :
       {"ps_hosts", "worker_hosts", "cluster_spec", "cluster_file", "bind_host", "tls_dir", "transport",
        "first_workers", "metrics_address", "metrics_file", "replicas_to_aggregate", "bounded_staleness",
        "max_staleness", "scale_rate_by_staleness"}) {
    if (app.get_option(absl::StrFormat("--%s", name))->count() == 0) continue;
    return InvalidArgument("--%s is for tasks of a cluster: --job_name=local is one process", name);
  }
  return absl::OkStatus();
}

// Flags that mean nothing with a strategy, and why.
struct ForeignFlags {
  Strategy strategy;
  std::vector<const char*> flags;
  const char* why;
};

const std::vector<ForeignFlags>& AllForeignFlags() {
  static const std::vector<ForeignFlags> all = {
      {Strategy::kParameterServer, {"min_workers"}, "is for --strategy=allreduce"},
      {Strategy::kParameterServer,
       {"bucket_bytes", "collective", "trusted_network"},
       "is for --strategy=allreduce or hybrid"},
      {Strategy::kAllReduce,
       {"replicas_to_aggregate", "bounded_staleness", "max_staleness", "scale_rate_by_staleness", "wire_type",
        "top_k", "evict_rows_after", "checkpoint_buddy", "durability"},
       "is for parameter servers: it does not go with --strategy=allreduce"},
      {Strategy::kHybrid,
       {"replicas_to_aggregate", "bounded_staleness", "max_staleness", "scale_rate_by_staleness", "wire_type",
        "top_k", "min_workers"},
       "does not go with --strategy=hybrid: each of its steps is made of all gradients of all workers"},
  };
  return all;
}

absl::Status ResolveStrategy(const CLI::App& app, const Flags& f, TrainerOptions* options) {
  for (const Strategy strategy : {Strategy::kAllReduce, Strategy::kHybrid}) {
    if (f.strategy == StrategyName(strategy)) options->strategy = strategy;
  }
  const Strategy strategy = options->strategy;
  if (!options->task && strategy != Strategy::kParameterServer) {
    return InvalidArgument("--strategy=%s is for several workers; --job_name=local is one process",
                           f.strategy);
  }
  for (const ForeignFlags& foreign : AllForeignFlags()) {
    if (foreign.strategy != strategy) continue;
    for (const char* name : foreign.flags) {
      if (app.get_option(absl::StrFormat("--%s", name))->count() == 0) continue;
      return InvalidArgument("--%s %s", name, foreign.why);
    }
  }
  if (!options->task) return absl::OkStatus();
  const bool has_servers = !options->task->cluster.ps.empty();
  if (has_servers && strategy == Strategy::kAllReduce) {
    return InvalidArgument("--strategy=allreduce has no parameter servers: leave --ps_hosts out");
  }
  if (!has_servers && strategy != Strategy::kAllReduce) {
    return InvalidArgument("no parameter servers: give --ps_hosts, or --strategy=allreduce");
  }
  const int workers = options->task->cluster.rank_count();
  options->min_workers = f.min_workers;
  if (f.min_workers && *f.min_workers > workers) {
    return InvalidArgument("--min_workers=%d: there are %d workers", *f.min_workers, workers);
  }
  if (strategy == Strategy::kHybrid && !options->checkpoint_dir.empty() && f.durability == "checkpoint") {
    return InvalidArgument(
        "--checkpoint_dir: with --strategy=hybrid nobody can go back to a checkpoint, which has only the "
        "tables; with --durability=journal nobody has to");
  }
  return absl::OkStatus();
}

// The parts of a gradient are whole blocks.
absl::Status ResolveBuckets(const Flags& f, TrainerOptions* options) {
  constexpr int64_t kBlockBytes = kBlockFloats * sizeof(float);
  if (f.bucket_bytes == "auto") {
    if (options->deterministic) options->bucket_bytes = static_cast<int64_t>(kMaxBucketBytes);
    return absl::OkStatus();
  }
  const auto bytes = ParseWholeNumber(f.bucket_bytes, kMinBucketBytes, kMaxBucketBytes);
  if (!bytes.ok()) return Annotate(bytes.status(), "--bucket_bytes (or auto)");
  options->bucket_bytes = (static_cast<int64_t>(*bytes) + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  return absl::OkStatus();
}

// Behind the device.
absl::Status ResolveCollective(const Flags& f, TrainerOptions* options) {
  options->collective = f.collective == "nccl"     ? CollectiveChoice::kNccl
                        : f.collective == "native" ? CollectiveChoice::kNative
                                                   : CollectiveChoice::kAuto;
  using Kind = DeviceChoice::Kind;
  const bool may_have_gpu = options->device.kind == Kind::kAuto || options->device.kind == Kind::kCuda;
  if (options->collective != CollectiveChoice::kNccl || may_have_gpu) return absl::OkStatus();
  return InvalidArgument("--collective=nccl is for GPUs: it does not go with %s",
                         options->deterministic ? "--deterministic" : "--device=" + f.device);
}

absl::Status ResolveTraining(const Flags& f, TrainerOptions* options) {
  options->model = {.model = f.model.value_or(kDefaultModel), .variant = f.variant};
  MUSTER_RETURN_IF_ERROR(ParseHidden(f.hidden, &options->model.hidden));
  MUSTER_ASSIGN_OR_RETURN(const ModelRecipe recipe, FindModel(options->model));
  options->model.variant = recipe.variant;
  const TrainDefaults& defaults = recipe.defaults;
  MUSTER_RETURN_IF_ERROR(ResolveUpdate(f, options));

  if (!f.augment.empty() && f.augment != "shift") {
    return InvalidArgument("--augment=%s: there is only: shift", f.augment);
  }
  if (options->strategy == Strategy::kAllReduce && recipe.columns) {
    return InvalidArgument(
        "--strategy=allreduce: the tables of %s are on parameter servers, which this strategy has not; train "
        "it with --strategy=hybrid or parameter_server",
        Describe(options->model));
  }
  if (options->strategy == Strategy::kHybrid && !recipe.columns) {
    return InvalidArgument(
        "--strategy=hybrid: %s has no tables for parameter servers; train it with "
        "--strategy=allreduce",
        Describe(options->model));
  }
  const SampleShape& input = recipe.spec.input;
  options->augment_shift = !f.augment.empty();
  if (options->augment_shift && input.size() == input.channels) {
    return InvalidArgument("--augment=shift is for images, which %s does not take", options->model.model);
  }

  const int workers = options->first_workers;
  const bool batch_is_global = f.global_batch_size || (!f.batch_size && defaults.global_batch_size > 0);
  // More gradients than workers: each computes those of several batches as one sum, which is the same.
  const int batches = std::max(workers, f.replicas_to_aggregate.value_or(workers));
  if (batch_is_global && batches > workers) {
    return InvalidArgument(
        "--replicas_to_aggregate=%d with %d workers needs --batch_size, the samples of each gradient",
        batches, workers);
  }
  options->global_batch_size =
      batch_is_global ? f.global_batch_size.value_or(defaults.global_batch_size)
                      : f.batch_size.value_or(defaults.batch_size) * static_cast<int64_t>(batches);
  const bool is_shared_by_all = options->task && options->may_scale() && !options->is_async();
  const int sharing = is_shared_by_all ? options->task->cluster.rank_count() : workers;
  if (options->global_batch_size < std::max(workers, sharing)) {
    return InvalidArgument("--global_batch_size=%d is less than one sample for each of %d workers",
                           options->global_batch_size, std::max(workers, sharing));
  }
  options->train_steps = f.train_steps.value_or(defaults.train_steps);
  MUSTER_ASSIGN_OR_RETURN(options->optimizer,
                          ResolveOptimizer(f.optimizer, "", defaults.optimizer, options->train_steps));
  if (defaults.wide_optimizer) {
    MUSTER_ASSIGN_OR_RETURN(
        options->wide_optimizer,
        ResolveOptimizer(f.wide_optimizer, kWidePrefix, *defaults.wide_optimizer, options->train_steps));
  } else if (f.wide_optimizer != OptimizerFlags()) {
    return InvalidArgument("--%s... is for a wide part beside a deep one; %s has one optimizer, --optimizer",
                           kWidePrefix, Describe(options->model));
  }
  const bool has_ftrl = options->optimizer.kind == OptimizerKind::kFtrl ||
                        (options->wide_optimizer && options->wide_optimizer->kind == OptimizerKind::kFtrl);
  if (options->update.rule.scale_rate && has_ftrl) {
    return InvalidArgument(
        "--scale_rate_by_staleness: ftrl takes a constant rate only, since its state is a sum over steps of "
        "one");
  }
  return absl::OkStatus();
}

std::string PlatformOf(const Environment& environment) {
  return environment("MUSTER_PLATFORM")
      .value_or(environment("KUBERNETES_SERVICE_HOST") ? "kubernetes" : "local");
}

absl::Status ResolveEnvironment(const Environment& environment, TrainerOptions* options) {
  const auto number = [&](const std::string& name, uint64_t* value) -> absl::Status {
    const auto text = environment(name);
    if (text && !absl::SimpleAtoi(*text, value))
      return InvalidArgument("%s='%s' is not a number", name, *text);
    return absl::OkStatus();
  };
  MUSTER_RETURN_IF_ERROR(number("MUSTER_INCARNATION", &options->incarnation));
  MUSTER_RETURN_IF_ERROR(number("MUSTER_GENERATION", &options->generation));
  options->done_file = environment("MUSTER_DONE_FILE").value_or("");
  options->metrics.progress_file = environment("MUSTER_PROGRESS_FILE").value_or("");
  options->program_sha256 = environment("MUSTER_PROGRAM_SHA256");
  options->platform = PlatformOf(environment);
  if (options->task) options->hosts = HostsOf(options->task->cluster);
  return absl::OkStatus();
}

// Behind the environment: the number of a job is its generation to servers that have none of their own.
absl::Status ResolveStanding(const Flags& f, TrainerOptions* options) {
  options->is_standing = f.cluster.is_standing;
  const bool is_server = options->task && options->task->task.role == Role::kPs;
  if (f.job_number) {
    if (is_server || !options->task || options->strategy == Strategy::kAllReduce) {
      return InvalidArgument("--job_number is for workers of parameter servers that stand");
    }
    options->generation = *f.job_number;
  }
  if (!options->is_standing) return absl::OkStatus();
  if (!options->task) return InvalidArgument("--standing is for parameter servers: --job_name=ps");
  if (options->replicated || options->checkpoint_buddy) {
    return InvalidArgument("--standing goes with checkpoints and journals of a server's own, not with %s yet",
                           options->replicated ? "--durability=replicated" : "--checkpoint_buddy");
  }
  options->generation = 0;
  return absl::OkStatus();
}

// A folder with data sets, or empty for the synthetic one.
std::string ResolveDataDir(const Flags& f, const Environment& environment) {
  if (f.data_dir == "auto") return environment("MUSTER_DATA").value_or("");
  return f.data_dir == "synthetic" ? "" : f.data_dir;
}

absl::StatusOr<DeviceChoice> ResolveDevice(const Flags& f) {
  MUSTER_ASSIGN_OR_RETURN(DeviceChoice choice, ParseDevice(f.device));
  MUSTER_ASSIGN_OR_RETURN(choice.math, ParseCudaMath(f.cuda_math));
  if (!f.options.deterministic) return choice;
  if (choice.kind == DeviceChoice::Kind::kCuda) {
    return InvalidArgument("--deterministic excludes --device=%s: unlike GPUs do not give the same bits",
                           f.device);
  }
  if (choice.kind == DeviceChoice::Kind::kAuto) choice.kind = DeviceChoice::Kind::kCpu;
  return choice;
}

// Some flags ask for something else than training, which most of the others mean nothing to.
absl::Status CheckFlagsBeside(const CLI::App& app, const Flags& f, const std::string& flag,
                              const std::vector<std::string>& fitting) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string& name = option->get_lnames().front();
    const bool fits = name == flag || std::find(fitting.begin(), fitting.end(), name) != fitting.end();
    if (option->count() == 0 || fits) continue;
    return InvalidArgument("--%s means nothing with --%s, which takes --%s", name, flag,
                           absl::StrJoin(fitting, ", --"));
  }
  if (f.cluster.job_name.empty() || f.cluster.job_name == "local") return absl::OkStatus();
  return InvalidArgument("--%s is done by one process: --job_name=local, or none", flag);
}

absl::StatusOr<EvaluationOptions> ResolveEvaluation(const CLI::App& app, const Flags& f,
                                                    const Environment& environment) {
  MUSTER_RETURN_IF_ERROR(CheckFlagsBeside(app, f, "evaluate",
                                          {"job_name", "model", "variant", "hidden", "data_dir", "threads",
                                           "deterministic", "device", "cuda_math", "result_json"}));
  MUSTER_ASSIGN_OR_RETURN(const DeviceChoice device, ResolveDevice(f));
  if (device.kind == DeviceChoice::Kind::kWait) {
    return InvalidArgument("--device=%s is for training: a wait evaluates nothing", f.device);
  }
  EvaluationOptions options{.file = *f.evaluate,
                            .model = {.model = f.model.value_or(""), .variant = f.variant},
                            .known_data_dir = environment("MUSTER_DATA").value_or(""),
                            .threads = f.options.threads,
                            .device = device,
                            .deterministic = f.options.deterministic,
                            .result_json = f.options.result_json,
                            .program_sha256 = environment("MUSTER_PROGRAM_SHA256"),
                            .platform = PlatformOf(environment)};
  MUSTER_RETURN_IF_ERROR(ParseHidden(f.hidden, &options.model.hidden));
  if (f.data_dir != "auto") options.data_dir = ResolveDataDir(f, environment);
  return options;
}

absl::StatusOr<TrainerOptions> Resolve(const CLI::App& app, Flags& f, const Environment& environment) {
  TrainerOptions options = f.options;
  if (f.cluster.job_name != "local") {
    f.cluster.tf_config = environment("TF_CONFIG").value_or("");
    MUSTER_ASSIGN_OR_RETURN(options.task, ResolveTask(f.cluster));
    options.first_workers = f.first_workers.value_or(options.task->cluster.rank_count());
  } else {
    MUSTER_RETURN_IF_ERROR(CheckAlone(app));
  }
  MUSTER_RETURN_IF_ERROR(ResolveStrategy(app, f, &options));
  MUSTER_RETURN_IF_ERROR(ResolveBuckets(f, &options));
  MUSTER_ASSIGN_OR_RETURN(options.device, ResolveDevice(f));
  MUSTER_RETURN_IF_ERROR(ResolveCollective(f, &options));
  if (!options.metrics.address.empty()) {
    MUSTER_RETURN_IF_ERROR(Annotate(CheckAddress(options.metrics.address), "--metrics_address"));
    if (options.metrics.address.find(',') != std::string::npos) {
      return InvalidArgument("--metrics_address=%s: one address, host:port", options.metrics.address);
    }
    // The HTTP library of Debian's package comes without IPv6.
    if (options.metrics.address.starts_with('[')) {
      return InvalidArgument(
          "--metrics_address=%s: no IPv6 address can be listened on here; name an IPv4 one",
          options.metrics.address);
    }
  }
  if (!options.checkpoint_dir.empty() && !options.task) {
    return InvalidArgument(
        "--checkpoint_dir: parameter servers write checkpoints, or workers of allreduce; one process alone "
        "does not");
  }
  if (options.checkpoint_buddy && options.checkpoint_dir.empty()) {
    return InvalidArgument("--checkpoint_buddy copies checkpoints, and needs --checkpoint_dir");
  }
  if (options.checkpoint_buddy && options.task->cluster.ps.size() < 2) {
    return InvalidArgument("--checkpoint_buddy needs two parameter servers at least");
  }
  options.journal = f.durability == "journal";
  if (options.journal && options.checkpoint_dir.empty()) {
    return InvalidArgument("--durability=journal needs --checkpoint_dir, where the journal is, too");
  }
  options.replicated = f.durability == "replicated";
  if (options.replicated && (!options.task || options.task->cluster.ps.size() < 2)) {
    return InvalidArgument("--durability=replicated needs two parameter servers at least");
  }
  if (options.replicated && !options.checkpoint_dir.empty()) {
    return InvalidArgument(
        "--durability=replicated: these servers write no checkpoints; leave --checkpoint_dir out");
  }
  options.transport = f.transport == "tcp" ? Transport::kTcp : Transport::kAuto;
  options.connect_timeout = std::chrono::seconds(f.connect_timeout_s);
  options.server_timeout = std::chrono::seconds(f.server_timeout_s);
  options.worker_timeout = std::chrono::seconds(f.worker_timeout_s);
  options.worker_lease = std::chrono::seconds(f.worker_lease_s);
  options.data_dir = ResolveDataDir(f, environment);
  // A server takes what it has to know about the training from the first worker that joins.
  if (!options.task || options.task->task.role != Role::kPs)
    MUSTER_RETURN_IF_ERROR(ResolveTraining(f, &options));
  MUSTER_RETURN_IF_ERROR(ResolveEnvironment(environment, &options));
  MUSTER_RETURN_IF_ERROR(ResolveStanding(f, &options));
  return options;
}

}  // namespace

std::string StrategyName(Strategy strategy) {
  switch (strategy) {
    case Strategy::kParameterServer:
      return "parameter_server";
    case Strategy::kAllReduce:
      return "allreduce";
    case Strategy::kHybrid:
      return "hybrid";
  }
  MUSTER_CHECK(false);
}

std::vector<std::string> HostsOf(const ClusterSpec& cluster) {
  std::vector<std::string> hosts;
  for (const Role role : {Role::kPs, Role::kChief, Role::kWorker}) {
    for (const std::string& address : cluster.addresses(role)) {
      const std::string host = HostOfAddress(address);
      if (IsAbsent(address)) continue;
      if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
    }
  }
  return hosts;
}

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                             const Environment& environment) {
  CLI::App app("Trains a model as one task of a cluster, or alone.", "muster-trainer");
  app.set_version_flag("--version", std::string("muster-trainer ") + MUSTER_VERSION);
  app.get_formatter()->column_width(34);
  Flags flags;
  DeclareFlags(app, flags);
  DeclareOptimizerFlags(app, "", "Optimizer (what is not given is the model's, or usual for the optimizer)",
                        flags.optimizer);
  DeclareOptimizerFlags(app, kWidePrefix, "Optimizer of the wide part of wide_deep (likewise)",
                        flags.wide_optimizer);
  MUSTER_RETURN_IF_ERROR(CheckFlagValues(arguments));
  CommandLine line;
  try {
    // CLI11 takes the arguments last first.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    line.text = app.help();
    return line;
  } catch (const CLI::CallForVersion&) {
    line.text = app.version() + "\n";
    return line;
  } catch (const CLI::ValidationError& error) {
    return InvalidArgument("%s", error.what());
  } catch (const CLI::ExtrasError&) {
    return InvalidArgument("%s (muster-trainer --help lists the flags)", UnexpectedArgument(app));
  } catch (const CLI::ParseError& error) {
    for (const CLI::Option* option : app.get_options()) {
      const bool is_it = std::string_view(error.what()).starts_with(option->get_name() + ":");
      if (is_it && option->count() > 1) return InvalidArgument("%s is given twice", option->get_name());
    }
    return InvalidArgument("%s (muster-trainer --help lists the flags)", error.what());
  }
  for (const CLI::Option* option : app.get_options()) {
    // Most often a variable of the shell that is not set.
    for (const std::string& value : option->results()) {
      if (value.empty()) return InvalidArgument("%s: expected a value, found \"\"", option->get_name());
    }
  }
  if (flags.evaluate) {
    MUSTER_ASSIGN_OR_RETURN(line.evaluation, ResolveEvaluation(app, flags, environment));
    return line;
  }
  if (flags.make_data) {
    MUSTER_RETURN_IF_ERROR(CheckFlagsBeside(app, flags, "make_data", {"job_name", "data_dir"}));
    if (flags.data_dir == "auto" || flags.data_dir == "synthetic")
      return InvalidArgument("--make_data=%s needs --data_dir=FOLDER", *flags.make_data);
    line.make_data = flags.make_data;
    line.options.data_dir = flags.data_dir;
    return line;
  }
  if (flags.inspect_checkpoint) {
    MUSTER_RETURN_IF_ERROR(CheckFlagsBeside(app, flags, "inspect_checkpoint", {"job_name"}));
    line.inspect_checkpoint = flags.inspect_checkpoint;
    return line;
  }
  MUSTER_ASSIGN_OR_RETURN(line.options, Resolve(app, flags, environment));
  return line;
}

}  // namespace muster
