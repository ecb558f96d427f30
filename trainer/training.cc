#include "trainer/training.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "base/file.h"
#include "base/logging.h"
#include "base/random.h"
#include "base/stdout.h"
#include "kernels/dense.h"
#include "kernels/elementwise.h"
#include "kernels/learning_rate.h"
#include "kernels/threads.h"
#include "trainer/data/batch.h"
#include "trainer/data/prefetch.h"
#include "trainer/data/sample_order.h"
#include "trainer/device_choice.h"
#include "trainer/evaluation.h"
#include "trainer/finite_checks.h"
#include "trainer/flat_buffer.h"
#include "trainer/gradient_exchange.h"
#include "trainer/load_data.h"
#include "trainer/make_exchange.h"
#include "trainer/metrics_export.h"
#include "trainer/models/device.h"
#include "trainer/models/evaluate.h"
#include "trainer/models/model.h"
#include "trainer/progress.h"
#include "trainer/result_record.h"
#include "trainer/saved_model.h"
#include "trainer/training_outputs.h"
#include "trainer/training_usage.h"
#include "trainer/worker_metrics.h"

namespace muster {
namespace {

// What the task's done file says.
constexpr char kTrained[] = "trained\n";  // its work is done; the others may have to be told
constexpr char kTold[] = "told\n";

class Training {
 public:
  Training(const TrainerOptions& options, TimePoint process_start)
      : options_(options), process_start_(process_start) {
    if (options.task) rank_ = RankOf(options.task->cluster, options.task->task);
    share_ = {.place = rank_ % options.first_workers, .count = options.first_workers};
    is_chief_ = !options.task || IsChief(options.task->cluster, options.task->task);
  }

  absl::Status Run();

 private:
  absl::Status FinishAgain();
  void NoteTold() const;
  absl::Status TrainAndConclude();
  absl::Status Prepare();
  absl::Status Begin();
  absl::Status PrepareFor(int64_t largest_batch);
  absl::Status PrepareModel(int64_t largest_batch);
  absl::Status PrepareReplica();
  void MakeGradientBuffer();
  absl::Status Loop();
  absl::Status Step();
  absl::Status RunOnDevice();
  absl::Status Report();
  MetricsLine Measure(TimePoint now) const;
  absl::Status OpenMetrics();
  absl::Status Conclude();
  bool AllWaitForChief() const;
  double LearningRate() const;
  int workers() const;
  int64_t LargestShare(int workers) const;
  void PrepareBatch(uint64_t number);
  std::span<float> RowValues();
  absl::StatusOr<Evaluation> EvaluateOnTestSet();
  absl::Status Diverged(const absl::Status& why);
  ResultRecord MakeRecord(const ExchangeSummary& summary, const Evaluation& test,
                          const TableValues& tables) const;

  const TrainerOptions& options_;
  const TimePoint process_start_;
  int rank_ = 0;
  BatchShare share_;  // of this worker, in each batch
  bool is_chief_ = false;

  ModelRecipe recipe_;
  LoadedData data_;
  std::unique_ptr<SampleOrder> order_;
  ModelPlan plan_;
  std::unique_ptr<Device> device_;                   // null: the CPU
  std::unique_ptr<DeviceTraining> device_training_;  // without servers on a device: no model, no exchanges
  std::unique_ptr<Replica> replica_;                 // on a device, if workers have one each
  std::unique_ptr<Model> model_;
  int64_t largest_batch_ = 0;  // that there is room for
  std::unique_ptr<Prefetcher> batches_;
  Batch batch_;                           // the one to compute next
  std::optional<uint64_t> batch_number_;  // its number, once it is there
  RowIndex rows_;                         // of that batch
  RowIndex pushed_rows_;                  // of the batch before, while its gradient is pushed
  std::vector<float> row_values_;         // [rows_.largest_size()]
  std::unique_ptr<BatchBuffer> evaluation_batch_;
  std::unique_ptr<FlatBuffer> parameters_;
  std::unique_ptr<GradientExchange> exchange_;
  std::span<float> gradient_;  // the exchange's
  MetricsWriter metrics_;
  WorkerRecord record_;
  std::optional<UsageMeter> usage_;                // of a task
  std::unique_ptr<MetricsExport> metrics_export_;  // reads that and the exchange

  Progress progress_;
};

absl::Status Training::Run() {
  std::error_code ignored;
  if (std::filesystem::exists(options_.done_file, ignored)) {
    spdlog::info("this task's work was done before it was started again");
    if (ReadFile(options_.done_file).value_or("") == kTold) return absl::OkStatus();
    const absl::Status status = FinishAgain();
    if (status.ok()) NoteTold();
    if (!IsGoneBack(status)) return status;
    spdlog::warn("{}", std::string(status.message()));
  }
  std::filesystem::remove(options_.done_file, ignored);
  MUSTER_RETURN_IF_ERROR(Prepare());
  absl::Status status = TrainAndConclude();
  while (IsGoneBack(status)) {
    spdlog::warn("{}", std::string(status.message()));
    std::filesystem::remove(options_.done_file, ignored);
    MUSTER_RETURN_IF_ERROR(Begin());
    status = TrainAndConclude();
  }
  MUSTER_RETURN_IF_ERROR(status);
  metrics_export_ = nullptr;  // reads the exchange
  exchange_ = nullptr;        // the chief's tells others until here
  NoteTold();
  // Who supervises tasks would have nothing of all that is there, or start it again for a curve.
  return options_.done_file.empty() ? metrics_.status() : absl::OkStatus();
}

// Without it, only the next incarnation would tell them once more.
void Training::NoteTold() const {
  if (!options_.done_file.empty()) (void)WriteFileAtomically(options_.done_file, kTold);
}

absl::Status Training::TrainAndConclude() {
  MUSTER_RETURN_IF_ERROR(Loop());
  if (is_chief_) MUSTER_RETURN_IF_ERROR(Conclude());
  if (!options_.done_file.empty()) {
    MUSTER_RETURN_IF_ERROR(WriteFileAtomically(options_.done_file, kTrained));
  }
  return exchange_->Finish();
}

// An earlier incarnation of this task has done everything but to tell the others, or to write down that it
// has. If they are gone, and not just to come back, they have been told: they end when all workers have
// finished. IsGoneBack: not all of it is done any more.
absl::Status Training::FinishAgain() {
  TrainerOptions options = options_;
  options.connect_timeout = std::min(options.connect_timeout, options.server_timeout);
  MUSTER_ASSIGN_OR_RETURN(const ModelRecipe recipe, FindModel(options.model));
  MUSTER_ASSIGN_OR_RETURN(const ModelPlan plan, PlanModel(recipe.spec));
  MUSTER_ASSIGN_OR_RETURN(const LoadedData data, LoadData(recipe, options.data_dir));
  parameters_ = std::make_unique<FlatBuffer>(plan.layout.size());
  MUSTER_ASSIGN_OR_RETURN(exchange_, MakeExchange(options, plan, data.sets.train, {}, /*replica=*/nullptr));
  const absl::Status status = exchange_->FinishAgain(parameters_->values(), options.train_steps);
  exchange_ = nullptr;
  if (!absl::IsUnavailable(status)) return status;
  spdlog::warn("the {} ended, since nobody has come back: {}",
               options.strategy == Strategy::kAllReduce ? "chief has" : "parameter servers have",
               std::string(status.message()));
  return absl::OkStatus();
}

absl::Status Training::Prepare() {
  // AVX2 is what nearly every host of a cluster has.
  if (options_.deterministic) MUSTER_RETURN_IF_ERROR(Annotate(PinInstructionSet("avx2"), "--deterministic"));
  SetKernelThreads(options_.threads);
  MUSTER_ASSIGN_OR_RETURN(recipe_, FindModel(options_.model));
  MUSTER_ASSIGN_OR_RETURN(data_, LoadData(recipe_, options_.data_dir));
  const TrainTestData& sets = data_.sets;
  spdlog::info("data: {}, {} training samples",
               options_.data_dir.empty() ? DataSetName(recipe_, "") : options_.data_dir, sets.train.size());
  // Of asynchronous workers those that have joined since take others' places, but not their samples.
  const int round = rank_ / options_.first_workers;
  const uint64_t order_seed = round == 0 ? options_.seed : Mix64(options_.seed ^ Mix64(round));
  order_ = std::make_unique<SampleOrder>(options_.is_async() ? order_seed : options_.seed, sets.train.size());
  MUSTER_ASSIGN_OR_RETURN(plan_, PlanModel(recipe_.spec));
  MUSTER_RETURN_IF_ERROR(CheckTrainingOutputs(options_, plan_, is_chief_));
  MUSTER_ASSIGN_OR_RETURN(device_, OpenDevice(options_.device));
  const int fewest = options_.min_workers.value_or(options_.first_workers);
  MUSTER_RETURN_IF_ERROR(PrepareFor(LargestShare(std::min(fewest, options_.first_workers))));
  parameters_ = std::make_unique<FlatBuffer>(plan_.layout.size());
  MUSTER_ASSIGN_OR_RETURN(exchange_, MakeExchange(options_, plan_, sets.train,
                                                  PreferenceOf(options_, device_.get()), replica_.get()));
  MakeGradientBuffer();
  if (options_.task) {
    const auto& [task, cluster] = *options_.task;
    usage_.emplace(InterfaceOfAddress(cluster.addresses(task.role)[task.index]));
    const auto read = [this] {
      WorkerMetrics metrics = record_.metrics();
      metrics.waiting = exchange_->waiting();
      return metrics;
    };
    MUSTER_ASSIGN_OR_RETURN(metrics_export_, MetricsExport::Begin(options_.metrics, task, *usage_, read));
  }
  if (is_chief_) {
    evaluation_batch_ =
        std::make_unique<BatchBuffer>(kEvaluationBatch, sets.test.feature_count, sets.test.id_count);
  }
  MUSTER_RETURN_IF_ERROR(Begin());
  if (is_chief_) MUSTER_RETURN_IF_ERROR(OpenMetrics());
  if (device_training_ != nullptr) {
    MUSTER_RETURN_IF_ERROR(device_training_->Start(parameters_->values()));
  }
  if (usage_) usage_->Mark();
  progress_.Start(Now());
  return absl::OkStatus();
}

// It goes on if this rank has made steps before: others may have begun a moment ago.
absl::Status Training::OpenMetrics() {
  MUSTER_ASSIGN_OR_RETURN(
      metrics_, MetricsWriter::Open({.jsonl = options_.metrics_jsonl,
                                     .log_dir = options_.log_dir,
                                     .append = options_.incarnation > 1 || progress_.local_steps() > 0}));
  return absl::OkStatus();
}

// With the parameters of the step to go on from: at first, and whenever the servers have gone back, or there
// are other workers.
absl::Status Training::Begin() {
  absl::StatusOr<ExchangeStart> start = exchange_->Start(parameters_->values());
  while (IsGoneBack(start.status())) start = exchange_->Start(parameters_->values());
  MUSTER_RETURN_IF_ERROR(start.status());
  share_ = start->share.value_or(share_);
  if (LargestShare(share_.count) > largest_batch_) {
    MUSTER_RETURN_IF_ERROR(PrepareFor(LargestShare(share_.count)));
  }
  const uint64_t step = start->step;
  progress_.GoOnFrom({.step = step,
                      .local_steps = start->local_steps,
                      .samples = start->all_samples.value_or(step * options_.global_batch_size)});
  record_.GoOnFrom(step);
  batch_number_.reset();
  if (step > 0) spdlog::info("going on from step {}", step);
  return absl::OkStatus();
}

// The first worker's part of a batch is the largest one.
int64_t Training::LargestShare(int workers) const {
  return BatchSlice(0, options_.global_batch_size, 0, workers).size();
}

// Also again, when there have come to be fewer workers than were thought of.
absl::Status Training::PrepareFor(int64_t largest_batch) {
  largest_batch_ = largest_batch;
  model_ = nullptr;
  MUSTER_RETURN_IF_ERROR(PrepareModel(largest_batch));
  const Dataset& set = data_.sets.train;
  BatchBuffer buffer(largest_batch, set.feature_count, set.id_count);
  if (options_.augment_shift) {
    const SampleShape& image = plan_.spec.input;
    buffer.set_augmentation({options_.seed, image.height, image.width, image.channels});
  }
  batches_ = std::make_unique<Prefetcher>(set, *order_, std::move(buffer), options_.prefetch);
  rows_ = RowIndex(plan_.tables, plan_.TableColumns(), largest_batch);
  pushed_rows_ = RowIndex(plan_.tables, plan_.TableColumns(), largest_batch);
  row_values_.resize(rows_.largest_size());
  if (exchange_ != nullptr) MakeGradientBuffer();
  return absl::OkStatus();
}

void Training::MakeGradientBuffer() {
  gradient_ = exchange_->MakeGradientBuffer(plan_.layout.size() + rows_.largest_size());
}

// On what this process computes on.
absl::Status Training::PrepareModel(int64_t largest_batch) {
  if (device_ != nullptr && !options_.task) {
    auto training = device_->MakeTraining(plan_, data_.sets,
                                          {.optimizers = OptimizersByGroup(options_),
                                           .batch_size = largest_batch,
                                           .evaluation_batch_size = kEvaluationBatch,
                                           .seed = options_.seed,
                                           .augment_shift = options_.augment_shift,
                                           .math = options_.device.math});
    if (training.ok()) {
      device_training_ = *std::move(training);
      return absl::OkStatus();
    }
    // Step by step may still be possible.
    if (!absl::IsUnimplemented(training.status())) {
      MUSTER_RETURN_IF_ERROR(FallBackToCpu(options_.device, training.status(), &device_));
    }
  }
  if (exchange_ == nullptr) MUSTER_RETURN_IF_ERROR(PrepareReplica());
  // Parameters that are on the device stay there.
  const bool is_settled = exchange_ != nullptr && replica_ != nullptr;
  DeviceChoice choice = options_.device;
  if (is_settled) choice.kind = DeviceChoice::Kind::kCuda;
  auto model = MakeModel(plan_, choice,
                         {.largest_batch = std::max(largest_batch, is_chief_ ? kEvaluationBatch : 0),
                          .seed = options_.seed,
                          .math = options_.device.math,
                          .replica = replica_.get()},
                         &device_);
  // Others have as large a part of a batch as this one, now that there are fewer workers.
  if (is_settled && !model.ok()) return Diverged(model.status());
  MUSTER_RETURN_IF_ERROR(model.status());
  model_ = *std::move(model);
  if (device_ == nullptr) replica_ = nullptr;
  return absl::OkStatus();
}

absl::Status Training::PrepareReplica() {
  if (device_ == nullptr || !options_.task || options_.strategy == Strategy::kParameterServer) {
    return absl::OkStatus();
  }
  auto replica = device_->MakeReplica(plan_.layout, OptimizersByGroup(options_));
  if (!replica.ok()) return FallBackToCpu(options_.device, replica.status(), &device_);
  replica_ = *std::move(replica);
  return absl::OkStatus();
}

absl::Status Training::Loop() {
  while (progress_.step() < options_.train_steps) {
    MUSTER_RETURN_IF_ERROR(device_training_ != nullptr ? RunOnDevice() : Step());
  }
  progress_.End(Now());
  if (usage_) usage_->Mark();
  return absl::OkStatus();
}

absl::Status Training::Step() {
  // In sync and bounded mode all workers share one stream of batches, by step; in async mode each goes along
  // its own part of it at its own pace.
  const uint64_t number = options_.is_async() ? progress_.local_steps() : progress_.step();
  if (batch_number_ != number) {
    PrepareBatch(number);
    MUSTER_RETURN_IF_ERROR(exchange_->ReadRows(rows_, RowValues()));
  }
  const TimePoint start = Now();
  record_.SetComputing(true);
  const std::span<float> gradient = gradient_.first(plan_.layout.size() + rows_.size());
  const BatchResult local = model_->ForwardBackward(parameters_->values(), batch_, gradient,
                                                    [&](int64_t begin) { exchange_->GradientReady(begin); });
  MUSTER_RETURN_IF_ERROR(model_->status());
  // Servers look at what they are sent themselves.
  if (!options_.task)
    MUSTER_RETURN_IF_ERROR(CheckFinite(plan_, gradient, rows_, local.loss_sum, progress_.step()));
  // The next batch is named with the push, so that its rows come with the answer.
  std::swap(rows_, pushed_rows_);
  PrepareBatch(number + 1);
  const Contribution contribution{.samples = static_cast<uint64_t>(local.samples),
                                  .loss_sum = local.loss_sum,
                                  .gradient = gradient,
                                  .rows = pushed_rows_};
  const Duration compute = Now() - start;
  record_.SetComputing(false);
  const auto exchanged = exchange_->Exchange(contribution, parameters_->values(), rows_, RowValues());
  if (absl::IsInvalidArgument(exchanged.status())) {  // they do not know where in the model
    const uint64_t step = progress_.step();
    absl::Status is_finite = CheckFinite(plan_, gradient, pushed_rows_, local.loss_sum, step);
    const bool is_float16 = options_.update.compression.wire_type == ps::FLOAT16;
    const auto is_infinite = [](float value) { return std::isinf(value); };
    if (!is_finite.ok() && is_float16 && std::ranges::any_of(parameters_->values(), is_infinite)) {
      is_finite = FailedPrecondition(
          "parameters are infinite at step %d, as float16 has those beyond 65504: take --wire_type=bfloat16, "
          "or lower the learning rate",
          step);
    }
    if (!is_finite.ok()) return Diverged(is_finite);
  }
  MUSTER_RETURN_IF_ERROR(exchanged.status());
  const ExchangeResult& result = *exchanged;
  progress_.Add({.step = result.step,
                 .samples = result.all_samples.value_or(progress_.samples() + result.samples),
                 .loss = result.mean_loss,
                 .staleness = result.staleness},
                Now());
  record_.Add({.step = result.step,
               .samples = contribution.samples,
               .loss = result.mean_loss,
               .sent_bytes = exchange_->bytes_pushed(),
               .received_bytes = exchange_->bytes_pulled(),
               .compute = compute,
               .exchange = result.times});
  return is_chief_ ? Report() : absl::OkStatus();
}

// The values of its rows are still to be read.
void Training::PrepareBatch(uint64_t number) {
  const auto slice = [&](uint64_t at) {
    return BatchSlice(static_cast<int64_t>(at), options_.global_batch_size, share_.place, share_.count);
  };
  batch_ = batches_->Take(slice(number), slice(number + 1));
  rows_.Build(batch_.ids, data_.sets.train.id_count, batch_.size());
  batch_.rows = &rows_;
  batch_.row_values = RowValues();
  batch_number_ = number;
}

std::span<float> Training::RowValues() { return std::span(row_values_).first(rows_.size()); }

// Steps without the host until the next one at which something is to be reported. The first is one alone, so
// that its time is known.
absl::Status Training::RunOnDevice() {
  constexpr uint64_t kMostSteps = 1000;  // so that lines of progress come in time
  const auto until_multiple = [&](uint64_t every) { return every - progress_.step() % every; };
  uint64_t steps =
      std::min({options_.train_steps - progress_.step(), until_multiple(options_.log_every), kMostSteps});
  if (options_.eval_every > 0) steps = std::min(steps, until_multiple(options_.eval_every));
  if (!progress_.has_stepped()) steps = 1;
  MUSTER_ASSIGN_OR_RETURN(const std::vector<DeviceStep> results,
                          device_training_->Run(static_cast<int64_t>(steps)));
  uint64_t step = progress_.step();
  for (const DeviceStep& result : results) {
    const int32_t tensor = result.tensor_not_finite;
    if (tensor >= 0) return NotFinite(GradientName(plan_, tensor), step);
    if (!std::isfinite(result.loss_sum)) return NotFinite("", step);
    ++step;
  }
  progress_.Add({.step = step,
                 .local_steps = steps,
                 .samples = progress_.samples() + steps * options_.global_batch_size,
                 .loss = results.back().loss_sum / static_cast<double>(options_.global_batch_size),
                 .staleness = 0},
                Now());
  return Report();
}

// Nobody trains while the chief evaluates, if all others wait for its gradient.
bool Training::AllWaitForChief() const {
  const bool takes_all = !options_.is_async() && options_.update.aggregate >= options_.first_workers;
  return takes_all || workers() == 1;
}

absl::Status Training::Report() {
  TimePoint now = Now();
  const bool is_last = progress_.step() >= options_.train_steps;  // Conclude evaluates then
  const bool evaluate = !is_last && options_.eval_every > 0 && progress_.HasPassed(options_.eval_every);
  const bool is_logged = progress_.HasPassed(options_.log_every);
  progress_.MarkStep();
  if (!is_logged && !evaluate && progress_.SinceLine(now) < std::chrono::seconds(1)) {
    return absl::OkStatus();
  }
  MetricsLine line = Measure(now);
  std::string text =
      absl::StrFormat("step %d: loss %.4f, %.0f samples/s", line.step, *line.loss, line.samples_per_second);
  if (evaluate) {
    MUSTER_ASSIGN_OR_RETURN(const Evaluation test, EvaluateOnTestSet());
    if (AllWaitForChief()) {
      progress_.LeaveOut(Now() - now);
      now = Now();
    }
    line.test_accuracy = test.result.accuracy();
    line.test_loss = test.result.mean_loss();
    text += absl::StrFormat(", test accuracy %.4f", test.result.accuracy());
  }
  PrintToStdout(text + "\n");
  if (is_last) return absl::OkStatus();
  progress_.MarkLine(now);
  metrics_.Write(line);
  return absl::OkStatus();
}

// What is known of the last step.
MetricsLine Training::Measure(TimePoint now) const {
  MetricsLine line = progress_.Line(now);
  line.learning_rate = LearningRate();
  return line;
}

// Of the job, now.
int Training::workers() const {
  if (!options_.task) return 1;
  return (options_.view != nullptr ? options_.view->cluster() : options_.task->cluster).rank_count();
}

// Of the last update.
double Training::LearningRate() const {
  const OptimizerConfig& optimizer = options_.optimizer;
  return LearningRateAt(optimizer.schedule, optimizer.learning_rate,
                        std::max(progress_.step(), uint64_t{1}) - 1);
}

absl::StatusOr<Evaluation> Training::EvaluateOnTestSet() {
  MUSTER_ASSIGN_OR_RETURN(Evaluation evaluation,
                          device_training_ != nullptr
                              ? device_training_->EvaluateTestSet()
                              : EvaluateDataset(*model_, parameters_->values(), data_.sets.test,
                                                *evaluation_batch_, exchange_.get()));
  const absl::Status is_finite = CheckFinite(evaluation);
  if (!is_finite.ok()) {
    return Diverged(FailedPrecondition("%s after step %d: lower the learning rate",
                                       std::string(is_finite.message()), progress_.step()));
  }
  return evaluation;
}

// Nobody is to wait for this worker: no other one could do better.
absl::Status Training::Diverged(const absl::Status& why) {
  exchange_->Fail(std::string(why.message()));
  return why;
}

absl::Status Training::Conclude() {
  ExchangeSummary summary{.step = progress_.step()};
  if (device_training_ != nullptr) {
    MUSTER_RETURN_IF_ERROR(device_training_->ReadParameters(parameters_->values()));
  } else {
    MUSTER_ASSIGN_OR_RETURN(summary, exchange_->AwaitOthers(parameters_->values()));
  }
  MUSTER_ASSIGN_OR_RETURN(const TableValues tables, device_training_ != nullptr
                                                        ? device_training_->ReadTables()
                                                        : ReadTables(plan_.tables, *exchange_));
  const auto is_finite = [](const std::vector<float>& values) { return AllFinite(values); };
  if (!AllFinite(parameters_->values()) || !std::all_of(tables.begin(), tables.end(), is_finite)) {
    return Diverged(FailedPrecondition("the parameters are not finite after step %d: lower the learning rate",
                                       summary.step));
  }
  MUSTER_ASSIGN_OR_RETURN(const Evaluation evaluation, EvaluateOnTestSet());
  const BatchResult& test = evaluation.result;
  // First what cannot be made again in a moment. What cannot be written keeps nothing else back.
  absl::Status written = WriteModel(options_, plan_, parameters_->values(), tables,
                                    {.config = WithHiddenSizes(options_.model, plan_),
                                     .data_set = DataSetName(recipe_, options_.data_dir),
                                     .test_set_crc32c = DatasetCrc32c(data_.sets.test),
                                     .steps = summary.step,
                                     .test_accuracy = test.accuracy(),
                                     .features = data_.features});
  const ResultRecord record = MakeRecord(summary, evaluation, tables);
  if (!options_.result_json.empty()) {
    KeepFirst(Annotate(WriteFileAtomically(options_.result_json, ToJson(record)), "--result_json"), &written);
  }
  MetricsLine line = Measure(progress_.end());
  line.step = summary.step;
  line.test_accuracy = test.accuracy();
  line.test_loss = test.mean_loss();
  metrics_.Write(line);
  std::string text = absl::StrFormat("test loss %.4f\n", test.mean_loss());
  if (record.seconds_training) {
    text = absl::StrFormat("%.2f s of training, %.0f samples/s, ", *record.seconds_training,
                           *record.samples_per_second) +
           text;
  }
  PrintToStdout(text + AccuracyLine(DataSetTitle(recipe_), evaluation));
  return written;
}

ResultRecord Training::MakeRecord(const ExchangeSummary& summary, const Evaluation& test,
                                  const TableValues& tables) const {
  const int first_workers = options_.first_workers;
  ResultRecord record{
      .model = options_.model.model,
      .variant = options_.model.variant,
      .strategy = options_.task ? StrategyName(options_.strategy) : "local",
      .update_mode = !options_.task                                      ? ""
                     : options_.is_async()                               ? "async"
                     : options_.update.rule.mode == UpdateMode::kBounded ? "bounded"
                                                                         : "sync",
      .workers = workers(),
      .ps = options_.task ? static_cast<int>(options_.task->cluster.ps.size()) : 0,
      .seed = options_.seed,
      .steps = summary.step,
      .samples = summary.all_samples.value_or(progress_.samples()),
      .batch_size = (options_.global_batch_size + first_workers - 1) / first_workers,
      .train_loss = progress_.loss(),
      .test_loss = test.result.mean_loss(),
      .test_accuracy = test.result.accuracy(),
      .test_auc = test.auc,
      .parameter_bytes = plan_.layout.size() * sizeof(float),
      .bytes_pushed = exchange_->bytes_pushed(),
      .bytes_pulled = exchange_->bytes_pulled(),
      .chief_steps = progress_.own_steps(),
      .parameters_crc32c = ParametersCrc32c(parameters_->values(), tables),
      .device = DeviceName(options_.device, device_.get()),
      .instruction_set = InstructionSetName(),
      .threads = options_.threads,
      .program_sha256 = options_.program_sha256,
      .hosts = options_.view != nullptr ? HostsOf(options_.view->cluster()) : options_.hosts,
      .platform = options_.platform,
  };
  if (options_.task && options_.strategy != Strategy::kAllReduce) record.pushes = summary.pushes;
  // Of a chief that found all done there are none.
  if (const auto first_step = progress_.first_step()) {
    const double seconds = ToSeconds(progress_.time());
    record.seconds_to_first_step = ToSeconds(*first_step - process_start_);
    record.seconds_training = seconds;
    record.samples_per_second = static_cast<double>(progress_.samples_made()) / seconds;
    record.steps_per_second = static_cast<double>(progress_.steps_made()) / seconds;
    if (progress_.steps_after_first() > 0) {
      record.seconds_after_first_step = ToSeconds(progress_.time_after_first());
      record.steps_after_first_step = progress_.steps_after_first();
    }
  }
  return record;
}

}  // namespace

absl::Status Train(const TrainerOptions& options, TimePoint process_start) {
  return Training(options, process_start).Run();
}

}  // namespace muster
