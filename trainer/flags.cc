#include "trainer/flags.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "trainer/data/make_data.h"
#include "trainer/models/model.h"

namespace muster {
namespace {

// Bounds of the numbers: beyond every use, but small enough that nothing computed from them overflows. What a
// job file may say (inventory/train_reader.cc) lies within.
constexpr uint64_t kMaxSteps = 1'000'000'000'000;
constexpr uint64_t kMaxBatchSize = 1'000'000;
constexpr uint64_t kMaxTasks = 1'000'000;
constexpr uint64_t kMaxThreads = 1024;
constexpr uint64_t kMaxTimeoutS = 1'000'000'000;
constexpr uint64_t kMaxStaleness = 1'000'000;
constexpr uint64_t kMaxEvictionIntervals = 1'000'000;
constexpr double kSmallestTopK = 1e-6, kLargestTopK = 0.5;  // of more, all is no longer
constexpr double kMinReal = 1e-30;  // what is far beyond may be 0 or infinite as a float
constexpr double kMaxReal = 1e30;
constexpr double kMaxBelow1 = 0.999999;  // what is nearer to 1 may be 1 as a float

absl::Status ExpectedNumber(const std::string& expected, const std::string& found) {
  return InvalidArgument("expected %s, found \"%s\"", expected, found);
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
// TensorFlow's examples, whose flags these are, say True.
CLI::Validator TrueOrFalse() { return CLI::IsMember({"true", "false", "1", "0"}, CLI::ignore_case); }

// "mnist_cnn: lenet, deep; ..."
std::string VariantHelp() {
  std::vector<std::string> texts;
  for (const std::string& model : ModelNames()) {
    const std::vector<std::string> variants = ModelVariants(model);
    if (!variants.empty()) texts.push_back(model + ": " + absl::StrJoin(variants, ", "));
  }
  return absl::StrJoin(texts, "; ");
}

}  // namespace

absl::StatusOr<uint64_t> ParseWholeNumber(const std::string& text, uint64_t minimum, uint64_t maximum) {
  uint64_t value = 0;
  const bool digits = std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(text, &value) || value < minimum || value > maximum) {
    return ExpectedNumber(absl::StrFormat("a whole number from %d to %d", minimum, maximum), text);
  }
  return value;
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
  app.add_option("--cluster_file", f.options.cluster_file,
                 "File that says where the tasks are now, read again whenever it is replaced: a task goes on "
                 "without a restart. What it says at the start wins over the flags above")
      ->group(cluster);
  app.add_flag("--standing", f.cluster.is_standing,
               "A ps that stands before its workers and after them: it serves one job after the other, and "
               "hears from the first worker of each how many there are (without --worker_hosts)")
      ->check(TrueOrFalse())
      ->group(cluster);
  app.add_option("--job_number", f.job_number,
                 "Of a worker's job, to servers that stand: they end an earlier job, with a smaller number, "
                 "for it")
      ->transform(WholeNumber(1, std::numeric_limits<int64_t>::max()))
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

  app.add_flag("--begin_together", f.options.begins_together,
               "Of ps:0: no worker begins before all have joined, or have not within --worker_timeout. With "
               "allreduce it is always so")
      ->check(TrueOrFalse())
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
                 "same update from the sum of all gradients; or hybrid: tables on servers, all else by "
                 "allreduce")
      ->check(CLI::IsMember({"parameter_server", "allreduce", "hybrid"}))
      ->capture_default_str()
      ->group(training);
  app.add_option("--first_workers", f.first_workers,
                 "Workers that the training began with, if others have joined them since, or some left: they "
                 "share a batch, whose size stays. With allreduce, asynchronous updates and steps of all "
                 "workers; what the cluster has if not given")
      ->transform(WholeNumber(1, kMaxTasks))
      ->group(training);
  app.add_option(
         "--min_workers", f.min_workers,
         "With allreduce: training goes on while so many are there, and else waits for the others; all that "
         "it began with if not given")
      ->transform(WholeNumber(1, kMaxTasks))
      ->group(training);
  app.add_option("--bucket_bytes", f.bucket_bytes,
                 "With allreduce and hybrid: of the parts in which a gradient is summed, the last layer's "
                 "first, while the "
                 "rest is computed; auto: tried out in the first steps (one part with --deterministic, since "
                 "another number of parts is another order of sums)")
      ->capture_default_str()
      ->group(training);
  app.add_option("--collective", f.collective,
                 "With allreduce and hybrid, how gradients are summed: native, over TCP and shared memory; "
                 "nccl, from GPU to GPU; auto: nccl if there are several workers and each has a GPU of its "
                 "own, else native")
      ->check(CLI::IsMember({"auto", "native", "nccl"}))
      ->capture_default_str()
      ->group(training);
  app.add_flag(
         "--trusted_network", f.options.trusted_network,
         "NCCL, which has no encryption, may be used between hosts though --tls_dir is given: nobody else "
         "can listen there")
      ->check(TrueOrFalse())
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
  app.add_option(
         "--device", f.device,
         "cpu, cuda:N, or auto: the first GPU, if there is one, else the CPU; wait:N: each step waits N ms "
         "instead of computing, and nothing is learned, to measure exchanges alone")
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

  const std::string checkpoints = "Checkpoints (of the parameter servers; with allreduce, of the workers)";
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

}  // namespace muster
