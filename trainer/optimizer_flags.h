// What the flags of the optimizer and its learning rate mean together with a model's defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "kernels/optimizer.h"

namespace muster {

/// As typed, each under the name of its flag, which may have a prefix before all of these; what was not given
/// is unset.
struct OptimizerFlags {
  std::string optimizer;
  std::optional<float> learning_rate;
  std::optional<float> weight_decay;
  std::optional<float> momentum;
  std::optional<bool> nesterov;
  std::optional<float> beta1;
  std::optional<float> beta2;
  std::optional<float> epsilon;
  std::optional<float> initial_accumulator;
  std::optional<float> l1;
  std::optional<float> l2;
  std::string learning_rate_schedule;
  std::optional<float> learning_rate_gamma;
  std::optional<float> learning_rate_power;
  std::optional<uint64_t> learning_rate_step_size;
  std::optional<uint64_t> learning_rate_decay_steps;
  std::optional<float> learning_rate_final_fraction;
  std::optional<uint64_t> warmup_steps;
  bool operator==(const OptimizerFlags&) const = default;
};

/// What is not given is the model's if the optimizer is the model's, else as UsualOptimizer has it; likewise
/// the schedule. A cosine goes over what the warm-up leaves of `train_steps`, unless its steps are given.
/// InvalidArgument names the flag, behind `prefix`: an unknown word, a flag that the optimizer or the
/// schedule does not read.
absl::StatusOr<OptimizerConfig> ResolveOptimizer(const OptimizerFlags& flags, const std::string& prefix,
                                                 const OptimizerConfig& model_default, uint64_t train_steps);

}  // namespace muster
