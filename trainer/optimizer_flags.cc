#include "trainer/optimizer_flags.h"

#include <absl/strings/str_join.h>

#include <algorithm>
#include <span>
#include <string_view>

namespace muster {
namespace {

constexpr char kSchedulePrefix[] = "learning_rate_";

// Stores what was given for a field, if `fields` has it.
template <typename T>
absl::Status Take(const char* field, const std::optional<T>& given, std::span<const std::string_view> fields,
                  const std::string& prefix, const std::string& owner, T* target) {
  if (!given) return absl::OkStatus();
  if (std::find(fields.begin(), fields.end(), field) == fields.end()) {
    std::vector<std::string> flags;
    for (const std::string_view other : fields) flags.push_back("--" + prefix + std::string(other));
    return InvalidArgument("--%s%s means nothing with %s, which takes %s", prefix, field, owner,
                           flags.empty() ? "no such flag" : absl::StrJoin(flags, ", "));
  }
  *target = *given;
  return absl::OkStatus();
}

absl::Status TakeSchedule(const OptimizerFlags& flags, const std::string& prefix, uint64_t train_steps,
                          LearningRateSchedule* schedule) {
  if (!flags.learning_rate_schedule.empty()) {
    const auto kind = ParseScheduleKind(flags.learning_rate_schedule);
    if (!kind.ok()) return Annotate(kind.status(), "--" + prefix + "learning_rate_schedule");
    if (*kind != schedule->kind) *schedule = UsualSchedule(*kind);
  }
  const auto take = [&](const char* field, const auto& given, auto* target) {
    return Take(field, given, ScheduleFields(schedule->kind), prefix + kSchedulePrefix,
                "the learning-rate schedule " + ScheduleName(schedule->kind), target);
  };
  MUSTER_RETURN_IF_ERROR(take("gamma", flags.learning_rate_gamma, &schedule->gamma));
  MUSTER_RETURN_IF_ERROR(take("power", flags.learning_rate_power, &schedule->power));
  MUSTER_RETURN_IF_ERROR(take("step_size", flags.learning_rate_step_size, &schedule->step_size));
  MUSTER_RETURN_IF_ERROR(take("decay_steps", flags.learning_rate_decay_steps, &schedule->decay_steps));
  MUSTER_RETURN_IF_ERROR(
      take("final_fraction", flags.learning_rate_final_fraction, &schedule->final_fraction));
  schedule->warmup_steps = flags.warmup_steps.value_or(schedule->warmup_steps);
  if (schedule->kind == ScheduleKind::kStep && schedule->step_size == 0) {
    return InvalidArgument("--%slearning_rate_schedule=step needs --%slearning_rate_step_size", prefix,
                           prefix);
  }
  if (schedule->kind == ScheduleKind::kCosine && schedule->decay_steps == 0) {
    if (schedule->warmup_steps >= train_steps) {
      return InvalidArgument("--%swarmup_steps=%d leaves the cosine nothing of %d steps", prefix,
                             schedule->warmup_steps, train_steps);
    }
    schedule->decay_steps = train_steps - schedule->warmup_steps;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OptimizerConfig> ResolveOptimizer(const OptimizerFlags& flags, const std::string& prefix,
                                                 const OptimizerConfig& model_default, uint64_t train_steps) {
  OptimizerConfig config = model_default;
  if (!flags.optimizer.empty()) {
    const auto kind = ParseOptimizerKind(flags.optimizer);
    if (!kind.ok()) return Annotate(kind.status(), "--" + prefix + "optimizer");
    if (*kind != config.kind) config = UsualOptimizer(*kind);
  }
  const auto take = [&](const char* field, const auto& given, auto* target) {
    return Take(field, given, OptimizerFields(config.kind), prefix,
                "the optimizer " + OptimizerName(config.kind), target);
  };
  config.learning_rate = flags.learning_rate.value_or(config.learning_rate);
  MUSTER_RETURN_IF_ERROR(take("weight_decay", flags.weight_decay, &config.weight_decay));
  MUSTER_RETURN_IF_ERROR(take("momentum", flags.momentum, &config.momentum));
  MUSTER_RETURN_IF_ERROR(take("nesterov", flags.nesterov, &config.nesterov));
  MUSTER_RETURN_IF_ERROR(take("beta1", flags.beta1, &config.beta1));
  MUSTER_RETURN_IF_ERROR(take("beta2", flags.beta2, &config.beta2));
  MUSTER_RETURN_IF_ERROR(take("epsilon", flags.epsilon, &config.epsilon));
  MUSTER_RETURN_IF_ERROR(take("initial_accumulator", flags.initial_accumulator, &config.initial_accumulator));
  MUSTER_RETURN_IF_ERROR(take("l1", flags.l1, &config.l1));
  MUSTER_RETURN_IF_ERROR(take("l2", flags.l2, &config.l2));
  MUSTER_RETURN_IF_ERROR(TakeSchedule(flags, prefix, train_steps, &config.schedule));
  MUSTER_RETURN_IF_ERROR(Validate(config));
  return config;
}

}  // namespace muster
