#include "ps/job_config.h"

#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/util/message_differencer.h>

#include "base/random.h"

namespace muster {
namespace {

ps::Optimizer ToProto(const OptimizerConfig& optimizer) {
  ps::Optimizer out;
  out.set_kind(static_cast<uint32_t>(optimizer.kind));
  out.set_learning_rate(optimizer.learning_rate);
  out.set_weight_decay(optimizer.weight_decay);
  out.set_momentum(optimizer.momentum);
  out.set_nesterov(optimizer.nesterov);
  out.set_beta1(optimizer.beta1);
  out.set_beta2(optimizer.beta2);
  out.set_epsilon(optimizer.epsilon);
  out.set_initial_accumulator(optimizer.initial_accumulator);
  out.set_l1(optimizer.l1);
  out.set_l2(optimizer.l2);
  ps::LearningRateSchedule* schedule = out.mutable_schedule();
  schedule->set_kind(static_cast<uint32_t>(optimizer.schedule.kind));
  schedule->set_gamma(optimizer.schedule.gamma);
  schedule->set_power(optimizer.schedule.power);
  schedule->set_step_size(optimizer.schedule.step_size);
  schedule->set_decay_steps(optimizer.schedule.decay_steps);
  schedule->set_final_fraction(optimizer.schedule.final_fraction);
  schedule->set_warmup_steps(optimizer.schedule.warmup_steps);
  return out;
}

absl::StatusOr<OptimizerConfig> FromProto(const ps::Optimizer& optimizer) {
  const ps::LearningRateSchedule& schedule = optimizer.schedule();
  if (optimizer.kind() > static_cast<uint32_t>(OptimizerKind::kFtrl)) {
    return InvalidArgument("optimizer %d is not one that this version knows", optimizer.kind());
  }
  if (schedule.kind() > static_cast<uint32_t>(ScheduleKind::kCosine)) {
    return InvalidArgument("learning-rate schedule %d is not one that this version knows", schedule.kind());
  }
  return OptimizerConfig{.kind = static_cast<OptimizerKind>(optimizer.kind()),
                         .learning_rate = optimizer.learning_rate(),
                         .weight_decay = optimizer.weight_decay(),
                         .momentum = optimizer.momentum(),
                         .nesterov = optimizer.nesterov(),
                         .beta1 = optimizer.beta1(),
                         .beta2 = optimizer.beta2(),
                         .epsilon = optimizer.epsilon(),
                         .initial_accumulator = optimizer.initial_accumulator(),
                         .l1 = optimizer.l1(),
                         .l2 = optimizer.l2(),
                         .schedule = {.kind = static_cast<ScheduleKind>(schedule.kind()),
                                      .gamma = schedule.gamma(),
                                      .power = schedule.power(),
                                      .step_size = schedule.step_size(),
                                      .decay_steps = schedule.decay_steps(),
                                      .final_fraction = schedule.final_fraction(),
                                      .warmup_steps = schedule.warmup_steps()}};
}

absl::Status CheckInitializer(const char* what, const std::string& name, uint32_t initializer) {
  if (initializer <= static_cast<uint32_t>(kLastInitializer)) return absl::OkStatus();
  return InvalidArgument("%s %s has initializer %d, which this version does not know", what, name,
                         initializer);
}

}  // namespace

ps::JobConfig MakeJobConfig(const ParameterLayout& layout, std::span<const TableSpec> tables,
                            const UpdateConfig& update, std::span<const OptimizerConfig> optimizers,
                            uint64_t seed) {
  ps::JobConfig config;
  for (const LayoutTensor& tensor : layout.tensors()) {
    ps::Tensor* out = config.add_tensors();
    out->set_name(tensor.spec.name);
    for (const int64_t dimension : tensor.spec.shape) out->add_shape(dimension);
    out->set_initializer(static_cast<uint32_t>(tensor.spec.initializer));
    out->set_scale(tensor.spec.scale);
    out->set_optimizer_group(static_cast<uint32_t>(tensor.spec.optimizer_group));
  }
  for (const TableSpec& table : tables) {
    ps::Table* out = config.add_tables();
    out->set_name(table.name);
    out->set_rows(table.rows);
    out->set_width(table.width);
    out->set_initializer(static_cast<uint32_t>(table.initializer));
    out->set_scale(table.scale);
    out->set_optimizer_group(static_cast<uint32_t>(table.optimizer_group));
  }
  config.set_layout_hash(layout.Hash());
  const UpdateRuleOptions& rule = update.rule;
  config.set_mode(rule.mode == UpdateMode::kSync      ? ps::SYNC
                  : rule.mode == UpdateMode::kBounded ? ps::BOUNDED
                                                      : ps::ASYNC);
  config.set_worker_count(static_cast<uint32_t>(rule.worker_count));
  config.set_aggregate(static_cast<uint32_t>(update.aggregate == 0 ? rule.worker_count : update.aggregate));
  config.set_staleness(rule.staleness);
  if (rule.max_staleness) config.set_max_staleness(*rule.max_staleness);
  config.set_scale_rate(rule.scale_rate);
  config.set_wire_type(update.compression.wire_type);
  config.set_top_k(update.compression.top_k);
  if (update.eviction.is_on()) {
    config.set_evict_rows_every(update.eviction.every);
    config.set_evict_rows_after(update.eviction.after);
  }
  for (const OptimizerConfig& optimizer : optimizers) *config.add_optimizers() = ToProto(optimizer);
  config.set_seed(seed);
  return config;
}

absl::StatusOr<ParameterLayout> LayoutOf(const ps::JobConfig& config) {
  if (config.tensors().empty() && config.tables().empty()) {
    return InvalidArgument("a job has at least one parameter");
  }
  std::vector<TensorSpec> tensors;
  for (const ps::Tensor& tensor : config.tensors()) {
    MUSTER_RETURN_IF_ERROR(CheckInitializer("tensor", tensor.name(), tensor.initializer()));
    tensors.push_back({.name = tensor.name(),
                       .shape = {tensor.shape().begin(), tensor.shape().end()},
                       .initializer = static_cast<Initializer>(tensor.initializer()),
                       .scale = tensor.scale(),
                       .optimizer_group = static_cast<int>(tensor.optimizer_group())});
  }
  MUSTER_ASSIGN_OR_RETURN(ParameterLayout layout, ParameterLayout::Create(std::move(tensors)));
  if (layout.Hash() != config.layout_hash()) {
    return FailedPrecondition(
        "the same layout has hash %016x here and %016x at the worker: the builds differ", layout.Hash(),
        config.layout_hash());
  }
  return layout;
}

absl::StatusOr<std::vector<TableSpec>> TablesOf(const ps::JobConfig& config) {
  std::vector<TableSpec> tables;
  for (const ps::Table& table : config.tables()) {
    MUSTER_RETURN_IF_ERROR(CheckInitializer("table", table.name(), table.initializer()));
    tables.push_back({.name = table.name(),
                      .rows = table.rows(),
                      .width = table.width(),
                      .initializer = static_cast<Initializer>(table.initializer()),
                      .scale = table.scale(),
                      .optimizer_group = static_cast<int>(table.optimizer_group())});
  }
  return tables;
}

absl::StatusOr<RowEviction> EvictionOf(const ps::JobConfig& config) {
  const RowEviction eviction{.every = config.evict_rows_every(), .after = config.evict_rows_after()};
  if ((eviction.every == 0) == (eviction.after == 0)) return eviction;
  return InvalidArgument("rows are to be dropped after %d times %d steps", eviction.after, eviction.every);
}

absl::StatusOr<std::vector<OptimizerConfig>> OptimizersOf(const ps::JobConfig& config) {
  std::vector<OptimizerConfig> optimizers;
  for (const ps::Optimizer& optimizer : config.optimizers()) {
    auto one = FromProto(optimizer);
    const absl::Status status = one.ok() ? Validate(*one) : one.status();
    if (!status.ok()) return Annotate(status, absl::StrFormat("optimizer group %d", optimizers.size()));
    optimizers.push_back(*std::move(one));
  }
  return optimizers;
}

uint64_t FingerprintOf(const ps::JobConfig& config) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    MUSTER_CHECK(config.SerializeToCodedStream(&coded));
  }
  uint64_t fingerprint = bytes.size();
  for (const char byte : bytes) fingerprint = Mix64(fingerprint ^ static_cast<uint8_t>(byte));
  return fingerprint;
}

std::string DifferencesOf(const ps::JobConfig& before, const ps::JobConfig& now) {
  std::string lines;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&lines);
  if (differencer.Compare(before, now)) return "";
  // "modified: seed: 3 -> 4\n"
  std::vector<std::string> differences;
  for (const auto line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    differences.emplace_back(absl::StripPrefix(line, "modified: "));
  }
  return absl::StrJoin(differences, ", ");
}

absl::Status CheckSameJob(const ps::JobConfig& first, const ps::JobConfig& other) {
  // Those of two models would be a hundred lines.
  if (other.model() != first.model()) {
    return FailedPrecondition("this worker trains %s, the first one %s: are the flags the same everywhere?",
                              other.model(), first.model());
  }
  if (other.layout_hash() != first.layout_hash()) {
    return FailedPrecondition(
        "the model's layout hash is %016x, the first worker's was %016x: are the flags and the build "
        "the same everywhere?",
        other.layout_hash(), first.layout_hash());
  }
  const std::string differences = DifferencesOf(first, other);
  if (differences.empty()) return absl::OkStatus();
  return FailedPrecondition("the job differs from that of the first worker: %s", differences);
}

absl::StatusOr<UpdateConfig> UpdateOf(const ps::JobConfig& config) {
  if (config.worker_count() > kMostWorkers) {
    return InvalidArgument("%d workers: there can be 1 to %d", config.worker_count(), kMostWorkers);
  }
  UpdateConfig update{.rule = {.worker_count = static_cast<int>(config.worker_count()),
                               .staleness = config.staleness(),
                               .scale_rate = config.scale_rate()},
                      .aggregate = static_cast<int>(config.aggregate()),
                      .compression = {.wire_type = config.wire_type(), .top_k = config.top_k()}};
  if (config.has_max_staleness()) update.rule.max_staleness = config.max_staleness();
  UpdateMode& mode = update.rule.mode;
  switch (config.mode()) {
    case ps::ASYNC:
      mode = UpdateMode::kAsync;
      break;
    case ps::SYNC:
      mode = UpdateMode::kSync;
      break;
    case ps::BOUNDED:
      mode = UpdateMode::kBounded;
      break;
    default:
      return InvalidArgument("update mode %d is not one that this version knows", config.mode());
  }
  if (config.worker_count() < 1 || config.aggregate() < 1 || config.aggregate() > config.worker_count() ||
      (config.aggregate() != config.worker_count() && mode != UpdateMode::kSync)) {
    return InvalidArgument("%d contributions of %d workers cannot make a step of this mode",
                           config.aggregate(), config.worker_count());
  }
  if (update.rule.staleness > 0 && mode != UpdateMode::kBounded) {
    return InvalidArgument("a staleness of %d needs the bounded mode", update.rule.staleness);
  }
  if ((update.rule.max_staleness || update.rule.scale_rate) && mode != UpdateMode::kAsync) {
    return InvalidArgument("max_staleness and scale_rate need the asynchronous mode");
  }
  if (!ps::WireType_IsValid(config.wire_type())) {
    return InvalidArgument("wire type %d is not one that this version knows", config.wire_type());
  }
  if (!(config.top_k() >= 0 && config.top_k() < 1)) {
    return InvalidArgument("a top_k of %g is no part of a gradient", config.top_k());
  }
  MUSTER_ASSIGN_OR_RETURN(update.eviction, EvictionOf(config));
  for (const ps::Optimizer& optimizer : config.optimizers()) {
    if (update.rule.scale_rate && optimizer.kind() == static_cast<uint32_t>(OptimizerKind::kFtrl)) {
      return InvalidArgument(
          "ftrl takes no rate that depends on staleness: its state is a sum over steps of one rate");
    }
  }
  return update;
}

}  // namespace muster
