#include "trainer/options.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/command_line.h"
#include "trainer/data/make_data.h"
#include "trainer/optimizer_flags.h"

namespace muster {
namespace {

// Bounds of the numbers: beyond every use, but small enough that nothing computed from them overflows. What a
// job file may say (inventory/train_reader.cc) lies within.
constexpr uint64_t kMaxSteps = 1'000'000'000'000;
constexpr uint64_t kMaxBatchSize = 1'000'000;
constexpr uint64_t kMaxLayerSize = 65536;
constexpr uint64_t kMaxTasks = 1'000'000;
constexpr uint64_t kMaxThreads = 1024;
constexpr uint64_t kMaxTimeoutS = 1'000'000'000;
constexpr uint64_t kMaxStaleness = 1'000'000;
constexpr uint64_t kMaxEvictionIntervals = 1'000'000;
constexpr double kSmallestTopK = 1e-6, kLargestTopK = 0.5;  // of more, all is no longer
constexpr char kWidePrefix[] = "wide_";                     // of the flags of the wide part's optimizer
constexpr double kMinReal = 1e-30;  // what is far beyond may be 0 or infinite as a float
constexpr double kMaxReal = 1e30;
constexpr double kMaxBelow1 = 0.999999;  // what is nearer to 1 may be 1 as a float
constexpr const char* kDefaultModel = "mnist_softmax";

absl::Status ExpectedNumber(const std::string& expected, const std::string& found) {
  return InvalidArgument("expected %s, found \"%s\"", expected, found);
}

// Decimal digits only: a sign, a fraction or another base is no whole number.
absl::StatusOr<uint64_t> ParseWholeNumber(const std::string& text, uint64_t minimum, uint64_t maximum) {
  uint64_t value = 0;
  const bool digits = std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(text, &value) || value < minimum || value > maximum) {
    return ExpectedNumber(absl::StrFormat("a whole number from %d to %d", minimum, maximum), text);
  }
  return value;
}

// For Option::transform, which passes on what the validator leaves in the text: CLI11's own conversions let
// -1 wrap, read 010 as 8, and let nan and inf through any range.
CLI::Validator WholeNumber(uint64_t minimum, uint64_t maximum) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        const auto value = ParseWholeNumber(text, minimum, maximum);
        if (!value.ok()) return std::string(value.status().message());
        text = std::to_string(*value);
        return "";
      },
      absl::StrFormat("%d..%d", minimum, maximum));
}

CLI::Validator RealNumber(double minimum, double maximum) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        double value = 0;
        // The comparisons fail for nan.
        if (absl::SimpleAtod(text, &value) && value >= minimum && value <= maximum) return "";
        return std::string(
            ExpectedNumber(absl::StrFormat("a number from %g to %g", minimum, maximum), text).message());
      },
      absl::StrFormat("%g..%g", minimum, maximum));
}

// Of flags that need no value: CLI11 would take any number, and throws what is none of its errors for others.
CLI::Validator TrueOrFalse() { return CLI::IsMember({"true", "false", "1", "0"}); }

// As typed; what was not given is unset, or zero where zero cannot be asked for.
struct Flags {
  ClusterFlags cluster;
  std::optional<std::string> model;
  std::string variant;
  std::string hidden;
  std::optional<int64_t> batch_size;
  std::optional<int64_t> global_batch_size;
  std::optional<uint64_t> train_steps;
  OptimizerFlags optimizer;
  OptimizerFlags wide_optimizer;
  std::string augment;
  bool sync_replicas = false;
  std::optional<int> replicas_to_aggregate;
  std::optional<uint64_t> bounded_staleness;
  std::optional<uint64_t> max_staleness;
  bool scale_rate_by_staleness = false;
  std::string strategy = "parameter_server";
  std::string wire_type = "float32";
  std::optional<double> top_k;
  uint64_t evict_rows_after = 0;
  std::string data_dir = "auto";
  std::optional<std::string> evaluate;
  std::optional<std::string> make_data;
  std::string device = "auto";
  std::string cuda_math = "fp32";
  std::string durability = "checkpoint";
  std::string transport = "auto";
  std::optional<std::string> inspect_checkpoint;
  int connect_timeout_s = 300;
  int server_timeout_s = 60;
  int worker_timeout_s = 600;
  int worker_lease_s = 60;
  TrainerOptions options;
};

// "mnist_cnn: lenet, deep; ..."
std::string VariantHelp() {
  std::vector<std::string> texts;
  for (const std::string& model : ModelNames()) {
    const std::vector<std::string> variants = ModelVariants(model);
    if (!variants.empty()) texts.push_back(model + ": " + absl::StrJoin(variants, ", "));
  }
  return absl::StrJoin(texts, "; ");
}

void DeclareFlags(CLI::App& app, Flags& f) {
  const std::string cluster = "Cluster (or TF_CONFIG)";
  app.add_option("--job_name", f.cluster.job_name,
                 "ps, worker, chief, or local: one process without any server")
      ->group(cluster);
  app.add_option("--task_index,--task_id", f.cluster.task_index, "Which of the tasks of that name")
      ->transform(WholeNumber(0, kMaxTasks - 1))
      ->group(cluster);
  app.add_option("--ps_hosts", f.cluster.ps_hosts, "host:port,host:port of the parameter servers")
      ->group(cluster);
  app.add_option("--worker_hosts", f.cluster.worker_hosts, "host:port,host:port of the workers")
      ->group(cluster);
  app.add_option("--cluster_spec", f.cluster.cluster_spec, "All of them: worker|h:p;h:p,ps|h:p")
      ->group(cluster);
  app.add_option("--bind_host", f.options.bind_host,
                 "Where a ps, or a worker with allreduce, listens, if not at its address in the cluster")
      ->group(cluster);
  app.add_option("--tls_dir", f.options.tls_dir, "Folder of ca.pem, cert.pem, key.pem: mutual TLS")
      ->group(cluster);
  app.add_option(
         "--transport", f.transport,
         "auto: tasks on one host reach each other through shared memory, the others over TCP; tcp: all over "
         "TCP, as if each were on a host of its own")
      ->check(CLI::IsMember({"auto", "tcp"}))
      ->capture_default_str()
      ->group(cluster);
  app.add_option("--connect_timeout", f.connect_timeout_s,
                 "Seconds to wait for a ps, or with allreduce for the other workers, to come up")
      ->transform(WholeNumber(1, kMaxTimeoutS))
      ->capture_default_str()
      ->group(cluster);
  app.add_option("--server_timeout", f.server_timeout_s, "Seconds to wait for a ps that is gone to come back")
      ->transform(WholeNumber(1, kMaxTimeoutS))
      ->capture_default_str()
      ->group(cluster);
  app.add_option(
         "--worker_timeout", f.worker_timeout_s,
         "Seconds that others wait for a worker that has not joined, or that lives and sends no gradient")
      ->transform(WholeNumber(1, kMaxTimeoutS))
      ->capture_default_str()
      ->group(cluster);
  app.add_option("--worker_lease", f.worker_lease_s,
                 "Seconds of silence after which the others go on without a worker, which says that it lives "
                 "twice a second")
      ->transform(WholeNumber(2, kMaxTimeoutS))
      ->capture_default_str()
      ->group(cluster);

  const std::string training = "Training (what is not given takes the model's default)";
  app.add_option("--model", f.model, absl::StrJoin(ModelNames(), ", "))
      ->default_str(kDefaultModel)
      ->group(training);
  app.add_option("--variant", f.variant, VariantHelp())->group(training);
  app.add_option("--hidden,--hidden_units", f.hidden, "Sizes of hidden layers: 512,512")->group(training);
  app.add_option("--batch_size", f.batch_size, "Samples per worker and step")
      ->transform(WholeNumber(1, kMaxBatchSize))
      ->group(training);
  app.add_option("--global_batch_size", f.global_batch_size, "Samples per step, split over the workers")
      ->transform(WholeNumber(1, kMaxBatchSize))
      ->excludes("--batch_size")
      ->group(training);
  app.add_option("--train_steps", f.train_steps, "Updates of the parameters, by all workers together")
      ->transform(WholeNumber(1, kMaxSteps))
      ->group(training);
  app.add_option("--strategy", f.strategy,
                 "parameter_server, or allreduce: no servers, every worker has all parameters and makes the "
                 "same update from the sum of all gradients")
      ->check(CLI::IsMember({"parameter_server", "allreduce"}))
      ->capture_default_str()
      ->group(training);
  app.add_flag("--sync_replicas", f.sync_replicas, "Synchronous updates; asynchronous without")
      ->check(TrueOrFalse())
      ->group(training);
  app.add_option("--replicas_to_aggregate", f.replicas_to_aggregate,
                 "Gradients that make up a synchronous step, one of each worker if not given: fewer leave "
                 "the slowest "
                 "out of each step, more are computed several at a worker")
      ->transform(WholeNumber(1, kMaxTasks))
      ->group(training);
  app.add_option("--bounded_staleness", f.bounded_staleness,
                 "Synchronous steps that a worker may be ahead of the parameters; 0 is --sync_replicas")
      ->transform(WholeNumber(0, kMaxStaleness))
      ->excludes("--sync_replicas")
      ->group(training);
  app.add_option("--max_staleness", f.max_staleness,
                 "Asynchronous: a gradient is dropped if more updates came in between")
      ->transform(WholeNumber(0, kMaxStaleness))
      ->group(training);
  app.add_flag("--scale_rate_by_staleness", f.scale_rate_by_staleness,
               "Asynchronous: the learning rate is divided by 1 + the updates in between")
      ->check(TrueOrFalse())
      ->group(training);
  app.add_option(
         "--wire_type", f.wire_type,
         "How gradients and parameters travel: float32, or rounded to bfloat16, or to float16, in which "
         "parameters beyond 65504 are infinite")
      ->check(CLI::IsMember({"float32", "float16", "bfloat16"}))
      ->capture_default_str()
      ->group(training);
  app.add_option(
         "--top_k", f.top_k,
         "The part of each gradient that is sent, 0.01 for the largest hundredth; the rest is added to the "
         "next gradient. Rows of tables are sent whole")
      ->check(RealNumber(kSmallestTopK, kLargestTopK))
      ->group(training);
  app.add_option("--evict_rows_after", f.evict_rows_after,
                 "Rows of tables that no gradient reaches for so many times --checkpoint_every steps are "
                 "dropped: their values are the initial ones again; 0: never")
      ->transform(WholeNumber(0, kMaxEvictionIntervals))
      ->capture_default_str()
      ->group(training);
  app.add_option("--seed", f.options.seed, "")
      ->transform(WholeNumber(0, std::numeric_limits<uint64_t>::max()))
      ->capture_default_str()
      ->group(training);
  app.add_option("--augment", f.augment, "shift: training images moved by up to 2 pixels in x and y")
      ->group(training);
  app.add_flag("--prefetch", f.options.prefetch,
               "Prepare the next batch during a step: faster only with a core that nothing else needs")
      ->check(TrueOrFalse())
      ->group(training);
  app.add_option("--data_dir", f.data_dir,
                 "A folder with mnist/ or census/, 'synthetic', or 'auto': MUSTER_DATA, else synthetic")
      ->capture_default_str()
      ->group(training);
  app.add_option("--make_data", f.make_data, "Only write that synthetic set into the folder --data_dir")
      ->check(CLI::IsMember(SyntheticDataKinds()))
      ->group(training);
  app.add_option("--threads", f.options.threads, "For the matrix products of one process")
      ->transform(WholeNumber(1, kMaxThreads))
      ->capture_default_str()
      ->group(training);
  app.add_option("--device", f.device, "cpu, cuda:N, or auto: the first GPU, if there is one, else the CPU")
      ->capture_default_str()
      ->group(training);
  app.add_option("--cuda_math", f.cuda_math,
                 "How a GPU multiplies: fp32, or with rounded factors, tf32 or bf16")
      ->capture_default_str()
      ->group(training);
  app.add_flag("--deterministic", f.options.deterministic,
               "The same instruction set on unlike hosts: AVX2, no GPU")
      ->check(TrueOrFalse())
      ->group(training);

  const std::string checkpoints = "Checkpoints (written by the parameter servers)";
  app.add_option("--checkpoint_dir", f.options.checkpoint_dir,
                 "Folder of a server's checkpoints, or of all together; training goes on from the newest. "
                 "Without it, a server that is lost ends the job")
      ->group(checkpoints);
  app.add_option("--checkpoint_every", f.options.checkpoint_every, "Steps between checkpoints")
      ->transform(WholeNumber(1, kMaxSteps))
      ->capture_default_str()
      ->group(checkpoints);
  app.add_option("--keep_checkpoints", f.options.keep_checkpoints, "How many of the newest are kept")
      ->transform(WholeNumber(1, 1'000'000))
      ->capture_default_str()
      ->group(checkpoints);
  app.add_flag(
         "--checkpoint_buddy", f.options.checkpoint_buddy,
         "Each server's checkpoints are also copied to another server, on another host if there is one: "
         "a server that comes back with an empty folder gets them from there (given to all servers)")
      ->check(TrueOrFalse())
      ->group(checkpoints);
  app.add_option(
         "--durability", f.durability,
         "checkpoint: a server that is lost takes all back to the newest checkpoint; journal: what it has "
         "acknowledged is in a journal beside them, and nobody goes back; replicated: another server has it, "
         "too, "
         "and training goes on there at once (without --checkpoint_dir; given to all tasks)")
      ->check(CLI::IsMember({"checkpoint", "journal", "replicated"}))
      ->capture_default_str()
      ->group(checkpoints);
  app.add_option("--inspect_checkpoint", f.inspect_checkpoint,
                 "Says what is in a folder of checkpoints, and reads all of it (instead of training)")
      ->group(checkpoints);

  const std::string evaluation = "Evaluation (instead of training)";
  app.add_option("--evaluate", f.evaluate, "File of --save_model: says its accuracy on the test set")
      ->group(evaluation);

  const std::string output = "Output (written by the chief: the chief task, or worker 0)";
  app.add_option("--log_every", f.options.log_every,
                 "Steps between lines of progress; they also come once a second")
      ->transform(WholeNumber(1, kMaxSteps))
      ->capture_default_str()
      ->group(output);
  app.add_option("--eval_every", f.options.eval_every, "Steps between evaluations; 0: only at the end")
      ->transform(WholeNumber(0, kMaxSteps))
      ->capture_default_str()
      ->group(output);
  app.add_option("--result_json", f.options.result_json, "File for the result record")->group(output);
  app.add_option("--metrics_jsonl", f.options.metrics_jsonl, "File for the metrics on the way")
      ->group(output);
  app.add_option("--log_dir", f.options.log_dir, "Folder for curves that TensorBoard shows")->group(output);
  app.add_option("--metrics_address", f.options.metrics.address,
                 "host:port where this task, of any role, answers Prometheus (GET /metrics), without a "
                 "password")
      ->group(output);
  app.add_option("--metrics_file", f.options.metrics.file,
                 "File for the same, written once a second by this task")
      ->group(output);
  app.add_option("--save_model", f.options.save_model, "File for the parameters (safetensors)")
      ->group(output);
  app.add_option("--save_onnx", f.options.save_onnx, "File for the model as other programs run it (ONNX)")
      ->group(output);
}

// All flags under their own names behind `prefix`.
void DeclareOptimizerFlags(CLI::App& app, const std::string& prefix, const std::string& group,
                           OptimizerFlags& f) {
  const auto real = [&](const std::string& flag, std::optional<float>& value, double minimum, double maximum,
                        const char* help) {
    app.add_option("--" + prefix + flag, value, help)->transform(RealNumber(minimum, maximum))->group(group);
  };
  const auto steps = [&](const std::string& flag, std::optional<uint64_t>& value, uint64_t minimum,
                         const char* help) {
    app.add_option("--" + prefix + flag, value, help)
        ->transform(WholeNumber(minimum, kMaxSteps))
        ->group(group);
  };
  app.add_option("--" + prefix + "optimizer", f.optimizer, "sgd, momentum, adagrad, adam, ftrl")
      ->group(group);
  real("learning_rate", f.learning_rate, kMinReal, kMaxReal, "");
  real("weight_decay", f.weight_decay, 0, kMaxReal, "All but ftrl: L2, added to the gradient");
  real("momentum", f.momentum, 0, kMaxBelow1, "momentum");
  // Not to the optional itself, which CLI11 sets to false where the flag is not given.
  app.add_flag_function(
         "--" + prefix + "nesterov", [&f](int64_t count) { f.nesterov = count > 0; }, "momentum: Nesterov's")
      ->check(TrueOrFalse())
      ->group(group);
  real("beta1", f.beta1, 0, kMaxBelow1, "adam");
  real("beta2", f.beta2, 0, kMaxBelow1, "adam");
  real("epsilon", f.epsilon, kMinReal, kMaxReal, "adam");
  real("initial_accumulator", f.initial_accumulator, kMinReal, kMaxReal, "adagrad, ftrl");
  real("l1", f.l1, 0, kMaxReal, "ftrl");
  real("l2", f.l2, 0, kMaxReal, "ftrl: of the penalty l2 p^2");
  app.add_option("--" + prefix + "learning_rate_schedule", f.learning_rate_schedule,
                 "constant, inverse, step, cosine")
      ->group(group);
  real("learning_rate_gamma", f.learning_rate_gamma, 0, kMaxReal,
       "inverse: rate (1 + gamma t)^-power after t steps; step: the factor of each drop, at most 1");
  real("learning_rate_power", f.learning_rate_power, 0, kMaxReal, "inverse");
  steps("learning_rate_step_size", f.learning_rate_step_size, 1, "step: steps from drop to drop");
  steps("learning_rate_decay_steps", f.learning_rate_decay_steps, 1,
        "cosine: steps that it takes, if not all after the warm-up");
  real("learning_rate_final_fraction", f.learning_rate_final_fraction, 0, 1,
       "cosine: of the rate, at its end");
  steps("warmup_steps", f.warmup_steps, 0, "In which the rate rises linearly, before the schedule begins");
}

absl::Status ParseHidden(const std::string& text, std::vector<int64_t>* hidden) {
  if (text.empty()) return absl::OkStatus();
  for (const auto part : absl::StrSplit(text, ',')) {
    const auto size = ParseWholeNumber(std::string(absl::StripAsciiWhitespace(part)), 1, kMaxLayerSize);
    if (!size.ok()) return Annotate(size.status(), "--hidden (sizes like 512,512)");
    hidden->push_back(static_cast<int64_t>(*size));
  }
  return absl::OkStatus();
}

ps::WireType WireTypeNamed(const std::string& name) {
  return name == "float16" ? ps::FLOAT16 : name == "bfloat16" ? ps::BFLOAT16 : ps::FLOAT32;
}

absl::Status ResolveUpdate(const Flags& f, TrainerOptions* options) {
  const int workers = options->worker_count();
  UpdateConfig& update = options->update;
  const bool is_sync = f.sync_replicas || options->strategy == Strategy::kAllReduce;
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

// What is for parameter servers means nothing without them.
absl::Status CheckAllReduce(const CLI::App& app, const TaskInCluster& task) {
  if (!task.cluster.ps.empty()) {
    return InvalidArgument("--strategy=allreduce has no parameter servers: leave --ps_hosts out");
  }
  for (const char* name :
       {"replicas_to_aggregate", "bounded_staleness", "max_staleness", "scale_rate_by_staleness", "wire_type",
        "top_k", "evict_rows_after", "checkpoint_dir", "checkpoint_buddy", "durability"}) {
    if (app.get_option(absl::StrFormat("--%s", name))->count() == 0) continue;
    return InvalidArgument("--%s is for parameter servers: it does not go with --strategy=allreduce", name);
  }
  return absl::OkStatus();
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
        "it "
        "with --strategy=parameter_server",
        Describe(options->model));
  }
  const SampleShape& input = recipe.spec.input;
  options->augment_shift = !f.augment.empty();
  if (options->augment_shift && input.size() == input.channels) {
    return InvalidArgument("--augment=shift is for images, which %s does not take", options->model.model);
  }

  const int workers = options->worker_count();
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
  if (options->global_batch_size < workers) {
    return InvalidArgument("--global_batch_size=%d is less than one sample for each of %d workers",
                           options->global_batch_size, workers);
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
  options->program_sha256 = environment("MUSTER_PROGRAM_SHA256");
  options->platform = PlatformOf(environment);
  if (options->task) {
    for (const Role role : {Role::kPs, Role::kChief, Role::kWorker}) {
      for (const std::string& address : options->task->cluster.addresses(role)) {
        const std::string host = HostOfAddress(address);
        if (std::find(options->hosts.begin(), options->hosts.end(), host) == options->hosts.end()) {
          options->hosts.push_back(host);
        }
      }
    }
  }
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
  choice.kind = DeviceChoice::Kind::kCpu;
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
    if (f.strategy == "allreduce") {
      options.strategy = Strategy::kAllReduce;
      MUSTER_RETURN_IF_ERROR(CheckAllReduce(app, *options.task));
    } else if (options.task->cluster.ps.empty()) {
      return InvalidArgument("no parameter servers: give --ps_hosts, or --strategy=allreduce");
    }
  } else if (f.strategy == "allreduce") {
    return InvalidArgument("--strategy=allreduce is for several workers; --job_name=local is one process");
  }
  MUSTER_ASSIGN_OR_RETURN(options.device, ResolveDevice(f));
  for (const auto& [flag, value] : {std::pair("--metrics_address", options.metrics.address),
                                    std::pair("--metrics_file", options.metrics.file)}) {
    if (!value.empty() && !options.task) return InvalidArgument("%s is for tasks of a cluster", flag);
  }
  if (!options.metrics.address.empty()) {
    MUSTER_RETURN_IF_ERROR(Annotate(CheckAddress(options.metrics.address), "--metrics_address"));
    if (options.metrics.address.find(',') != std::string::npos) {
      return InvalidArgument("--metrics_address=%s: one address, host:port", options.metrics.address);
    }
  }
  if (!options.checkpoint_dir.empty() && !options.task) {
    return InvalidArgument(
        "--checkpoint_dir: parameter servers write checkpoints; a process without any has none");
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
  return options;
}

}  // namespace

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
