#include "inventory/train_reader.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <string>
#include <vector>

#include "inventory/yaml_reader.h"

namespace muster {
namespace {

// Within the trainer's bounds (trainer/options.cc): what a job file may say, no task may refuse.
// tests/job_flags_test.cc tries the ends.
constexpr int kMaxBatchSize = 1'000'000;
constexpr double kMaxLearningRate = 1000;
constexpr double kMaxNumber = 1e6;
constexpr double kMinNumber = 1e-30;     // of what must be above 0: what is far below may be 0 in the trainer
constexpr double kMaxBelow1 = 0.999999;  // what is nearer to 1 may be 1 in the trainer

// A word for the trainer and the keys that mean something with it.
struct Choice {
  std::string name;
  std::vector<std::string> keys;
};

// The trainer's own tables of them are in kernels/optimizer.cc and kernels/learning_rate.cc, which the
// launcher does not include; tests/job_flags_test.cc compares.
const std::vector<Choice>& Optimizers() {
  static const std::vector<Choice> optimizers = {
      {"sgd", {"weight_decay"}},
      {"momentum", {"weight_decay", "momentum", "nesterov"}},
      {"adagrad", {"weight_decay", "initial_accumulator"}},
      {"adam", {"weight_decay", "beta1", "beta2", "epsilon"}},
      {"ftrl", {"initial_accumulator", "l1", "l2"}},
  };
  return optimizers;
}

const std::vector<Choice>& Schedules() {
  static const std::vector<Choice> schedules = {
      {"constant", {}},
      {"inverse", {"gamma", "power"}},
      {"step", {"gamma", "step_size"}},
      {"cosine", {"decay_steps", "final_fraction"}},
  };
  return schedules;
}

auto ReadChoice(const std::string& what, const std::vector<Choice>& choices) {
  std::vector<std::pair<std::string, std::string>> table;
  for (const Choice& choice : choices) table.emplace_back(choice.name, choice.name);
  return YamlChoice<std::string>(what, std::move(table));
}

// Each of the choices' keys that is there must go with the choice made. The choice is not guessed: what
// the model's own is, only the trainer knows.
absl::Status CheckKeys(const YamlNode& node, const std::string& owner, const std::string& choice_key,
                       const std::optional<std::string>& chosen, const std::vector<Choice>& choices) {
  for (const YamlNode& child : node.children) {
    std::vector<std::string> takers;
    for (const Choice& choice : choices) {
      if (std::find(choice.keys.begin(), choice.keys.end(), child.key) != choice.keys.end()) {
        takers.push_back(choice.name);
      }
    }
    if (takers.empty()) continue;
    if (!chosen) {
      return child.KeyError(absl::StrFormat("%s belongs to %s: give \"%s\" too, one of %s", Quoted(child.key),
                                            owner, choice_key, JoinWords(takers)));
    }
    if (std::find(takers.begin(), takers.end(), *chosen) == takers.end()) {
      return child.KeyError(absl::StrFormat("%s means nothing with `%s: %s`, only with %s", Quoted(child.key),
                                            choice_key, *chosen, JoinWords(takers)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ScheduleSpec> ReadSchedule(const YamlNode& node) {
  ScheduleSpec schedule;
  const auto steps = YamlInteger<int64_t>(1, kMaxTrainSteps);
  YamlFields fields(node, "schedule");
  fields.Read("kind", &schedule.kind, ReadChoice("schedule", Schedules()));
  fields.Read("gamma", &schedule.gamma,
              schedule.kind == "step" ? YamlNumber(kMinNumber, 1) : YamlNumber(0, kMaxNumber));
  fields.Read("power", &schedule.power, YamlNumber(0, kMaxNumber));
  fields.Read("step_size", &schedule.step_size, steps);
  fields.Read("decay_steps", &schedule.decay_steps, steps);
  fields.Read("final_fraction", &schedule.final_fraction, YamlNumber(0, 1));
  fields.Read("warmup_steps", &schedule.warmup_steps, YamlInteger<int64_t>(0, kMaxTrainSteps));
  MUSTER_RETURN_IF_ERROR(fields.Finish());
  MUSTER_RETURN_IF_ERROR(CheckKeys(node, "a kind of schedule", "kind", schedule.kind, Schedules()));
  if (schedule.kind == "step" && !schedule.step_size) {
    return node.Find("kind")->Error("the schedule step needs \"step_size\"");
  }
  return schedule;
}

// `optimizer` as it was read from `node`, of a training of `steps`.
absl::Status CheckSchedule(const YamlNode& node, const OptimizerSpec& optimizer,
                           std::optional<int64_t> steps) {
  const YamlNode* schedule = node.Find("schedule");
  if (schedule == nullptr) return absl::OkStatus();
  const ScheduleSpec& spec = optimizer.schedule;
  if (optimizer.kind == "ftrl" && !IsConstant(spec)) {
    return schedule->KeyError("the optimizer ftrl takes a constant learning rate only, without warm-up");
  }
  const bool fills_steps = spec.kind == "cosine" && !spec.decay_steps;
  if (!fills_steps || spec.warmup_steps.value_or(0) == 0) return absl::OkStatus();
  const YamlNode* warmup_steps = schedule->Find("warmup_steps");
  // How many steps the model's own are, only the trainer knows.
  if (!steps) {
    return warmup_steps->Error(
        "a cosine behind \"warmup_steps\" ends with the training: give \"steps\" in train, or "
        "\"decay_steps\" here");
  }
  if (*spec.warmup_steps >= *steps) {
    return warmup_steps->Error(
        absl::StrFormat("\"warmup_steps\" leaves the cosine nothing of %d steps", *steps));
  }
  return absl::OkStatus();
}

void ReadOptimizerFields(YamlFields& fields, OptimizerSpec* optimizer) {
  fields.Read("optimizer", &optimizer->kind, ReadChoice("optimizer", Optimizers()));
  fields.Read("learning_rate", &optimizer->learning_rate, YamlNumber(kMinNumber, kMaxLearningRate));
  fields.Read("weight_decay", &optimizer->weight_decay, YamlNumber(0, kMaxNumber));
  fields.Read("momentum", &optimizer->momentum, YamlNumber(0, kMaxBelow1));
  fields.Read("nesterov", &optimizer->nesterov, YamlBoolean);
  fields.Read("beta1", &optimizer->beta1, YamlNumber(0, kMaxBelow1));
  fields.Read("beta2", &optimizer->beta2, YamlNumber(0, kMaxBelow1));
  fields.Read("epsilon", &optimizer->epsilon, YamlNumber(kMinNumber, kMaxNumber));
  fields.Read("initial_accumulator", &optimizer->initial_accumulator, YamlNumber(kMinNumber, kMaxNumber));
  fields.Read("l1", &optimizer->l1, YamlNumber(0, kMaxNumber));
  fields.Read("l2", &optimizer->l2, YamlNumber(0, kMaxNumber));
  fields.Read("schedule", &optimizer->schedule, ReadSchedule);
}

absl::Status CheckOptimizer(const YamlNode& node, const OptimizerSpec& optimizer,
                            std::optional<int64_t> steps) {
  MUSTER_RETURN_IF_ERROR(CheckKeys(node, "an optimizer", "optimizer", optimizer.kind, Optimizers()));
  return CheckSchedule(node, optimizer, steps);
}

absl::StatusOr<OptimizerSpec> ReadWide(const YamlNode& node) {
  OptimizerSpec optimizer;
  YamlFields fields(node, "wide");
  ReadOptimizerFields(fields, &optimizer);
  MUSTER_RETURN_IF_ERROR(fields.Finish());
  return optimizer;
}

absl::StatusOr<std::string> ReadDevice(const YamlNode& node) {
  MUSTER_ASSIGN_OR_RETURN(std::string device, YamlText(node));
  const auto has_number = [&](const std::string& prefix, size_t most_digits) {
    const std::string digits = device.starts_with(prefix) ? device.substr(prefix.size()) : "";
    return !digits.empty() && digits.size() <= most_digits &&
           std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit);
  };
  if (device == "auto" || device == "cpu" || device == "cuda" || has_number("cuda:", 3) ||
      has_number("wait:", 6)) {
    return device;
  }
  return node.Expected("auto, cpu, cuda:N with the number of a GPU from 0, or wait:N with milliseconds");
}

}  // namespace

bool IsConstant(const ScheduleSpec& schedule) {
  return schedule.kind.value_or("constant") == "constant" && schedule.warmup_steps.value_or(0) == 0;
}

absl::StatusOr<TrainSpec> ReadTrainSpec(const YamlNode& node) {
  TrainSpec train;
  YamlFields fields(node, "train");
  fields.Read("steps", &train.steps, YamlInteger<int64_t>(1, kMaxTrainSteps));
  fields.Read("batch_size", &train.batch_size, YamlInteger<int>(1, kMaxBatchSize));
  fields.Read("global_batch_size", &train.global_batch_size, YamlInteger<int>(1, kMaxBatchSize));
  ReadOptimizerFields(fields, &train.optimizer);
  fields.Read("wide", &train.wide, ReadWide);
  fields.Read("seed", &train.seed, YamlInteger<int64_t>(0, INT64_MAX));
  fields.Read("eval_every", &train.eval_every, YamlInteger<int64_t>(1, kMaxTrainSteps));
  fields.Read("threads", &train.threads, YamlInteger<int>(1, 1024));
  fields.Read("augment", &train.augment, YamlChoice<std::string>("augmentation", {{"shift", "shift"}}));
  fields.Read("save_onnx", &train.save_onnx, YamlBoolean);
  fields.Read("device", &train.device, ReadDevice);
  fields.Read("cuda_math", &train.cuda_math,
              YamlChoice<std::string>("cuda_math", {{"fp32", "fp32"}, {"tf32", "tf32"}, {"bf16", "bf16"}}));
  MUSTER_RETURN_IF_ERROR(fields.Finish());
  if (train.batch_size && train.global_batch_size) {
    return node.Find("global_batch_size")
        ->KeyError(
            "\"batch_size\" (of each worker) and \"global_batch_size\" (of all together) exclude each other");
  }
  MUSTER_RETURN_IF_ERROR(CheckOptimizer(node, train.optimizer, train.steps));
  if (const YamlNode* const wide = node.Find("wide")) {
    MUSTER_RETURN_IF_ERROR(CheckOptimizer(*wide, train.wide, train.steps));
  }
  return train;
}

}  // namespace muster
