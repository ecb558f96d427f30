#include "kernels/step_factors.h"

namespace muster {
namespace {

// Often enough that few updates have them, and so seldom that it costs a hundredth of their time at most.
constexpr uint64_t kUpdatesPerClearing = 64;

}  // namespace

StepFactorSequence::StepFactorSequence(const OptimizerConfig& config) : config_(config) {
  MUSTER_CHECK(Validate(config).ok(), std::string(Validate(config).message()));
}

void StepFactorSequence::SkipTo(uint64_t updates) {
  if (updates < now_.updates) now_ = before_.updates <= updates ? before_ : Powers();
  while (config_.kind == OptimizerKind::kAdam && now_.updates < updates) {
    const Powers old = now_;
    Advance();
    if (now_.beta1 == old.beta1 && now_.beta2 == old.beta2) break;  // rounding keeps them above 0
  }
  now_.updates = updates;
}

void StepFactorSequence::Advance() {
  ++now_.updates;
  now_.beta1 *= double{config_.beta1};
  now_.beta2 *= double{config_.beta2};
}

StepFactors StepFactorSequence::Next(float rate_scale) {
  MUSTER_CHECK(rate_scale == 1 || config_.kind != OptimizerKind::kFtrl);
  const double rate =
      LearningRateAt(config_.schedule, config_.learning_rate, now_.updates) * static_cast<double>(rate_scale);
  before_ = now_;
  Advance();
  const bool clear_subnormals = now_.updates % kUpdatesPerClearing == 0;
  switch (config_.kind) {
    case OptimizerKind::kSgd:
    case OptimizerKind::kMomentum:
    case OptimizerKind::kAdagrad:
      return {.rate = static_cast<float>(rate), .clear_subnormals = clear_subnormals};
    case OptimizerKind::kFtrl:
      return {.inverse_rate = static_cast<float>(1 / rate)};
    case OptimizerKind::kAdam:
      return {.adam = {.rate = static_cast<float>(rate / (1 - now_.beta1)),
                       .beta1 = config_.beta1,
                       .one_minus_beta1 = static_cast<float>(1 - double{config_.beta1}),
                       .beta2 = config_.beta2,
                       .one_minus_beta2 = static_cast<float>(1 - double{config_.beta2}),
                       .second_correction = static_cast<float>(1 / (1 - now_.beta2)),
                       .epsilon = config_.epsilon},
              .clear_subnormals = clear_subnormals};
  }
  MUSTER_CHECK(false, "an optimizer without a case");
}

}  // namespace muster
