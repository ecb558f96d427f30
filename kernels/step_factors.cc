#include "kernels/step_factors.h"

namespace muster {

StepFactorSequence::StepFactorSequence(const OptimizerConfig& config) : config_(config) {
  MUSTER_CHECK(Validate(config).ok(), std::string(Validate(config).message()));
}

void StepFactorSequence::SkipTo(uint64_t updates) {
  updates_ = updates;
  beta1_power_ = beta2_power_ = 1;
  if (config_.kind != OptimizerKind::kAdam) return;
  for (uint64_t i = 0; i < updates; ++i) {
    const double beta1_power = beta1_power_, beta2_power = beta2_power_;
    beta1_power_ *= double{config_.beta1};
    beta2_power_ *= double{config_.beta2};
    if (beta1_power_ == beta1_power && beta2_power_ == beta2_power) break;  // rounding keeps them above 0
  }
}

StepFactors StepFactorSequence::Next(float rate_scale) {
  MUSTER_CHECK(rate_scale == 1 || config_.kind != OptimizerKind::kFtrl);
  const double rate =
      LearningRateAt(config_.schedule, config_.learning_rate, updates_++) * static_cast<double>(rate_scale);
  switch (config_.kind) {
    case OptimizerKind::kSgd:
    case OptimizerKind::kMomentum:
    case OptimizerKind::kAdagrad:
      return {.rate = static_cast<float>(rate)};
    case OptimizerKind::kFtrl:
      return {.inverse_rate = static_cast<float>(1 / rate)};
    case OptimizerKind::kAdam:
      beta1_power_ *= double{config_.beta1};
      beta2_power_ *= double{config_.beta2};
      return {.adam = {.rate = static_cast<float>(rate / (1 - beta1_power_)),
                       .beta1 = config_.beta1,
                       .one_minus_beta1 = static_cast<float>(1 - double{config_.beta1}),
                       .beta2 = config_.beta2,
                       .one_minus_beta2 = static_cast<float>(1 - double{config_.beta2}),
                       .second_correction = static_cast<float>(1 / (1 - beta2_power_)),
                       .epsilon = config_.epsilon}};
  }
  MUSTER_CHECK(false, "an optimizer without a case");
}

}  // namespace muster
