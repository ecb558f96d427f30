// Learning-rate schedules: the rate of an update as a function of the number of updates before it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace muster {

/// With t = updates made since the warm-up has ended:
enum class ScheduleKind : uint8_t {
  kConstant = 0,  // base
  kInverse = 1,   // base (1 + gamma t)^-power; Caffe calls it "inv"
  kStep = 2,      // base gamma^floor(t / step_size)
  kCosine = 3,    // half a cosine from base down to base final_fraction at t = decay_steps, then constant
                // (Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017,
                // equation 5, without restarts)
};

/// Fields that the kind does not read keep their defaults.
struct LearningRateSchedule {
  ScheduleKind kind = ScheduleKind::kConstant;
  float gamma = 0;            // inverse: >= 0; step: in (0, 1]
  float power = 0;            // inverse: >= 0
  uint64_t step_size = 0;     // step: updates, >= 1
  uint64_t decay_steps = 0;   // cosine: updates, >= 1
  float final_fraction = 0;   // cosine: in [0, 1]
  uint64_t warmup_steps = 0;  // updates in which the rate rises linearly to base, before t begins; any kind
  friend bool operator==(const LearningRateSchedule&, const LearningRateSchedule&) = default;
};

/// "constant", "inverse", "step", "cosine"; InvalidArgument names the valid ones and the nearest.
absl::StatusOr<ScheduleKind> ParseScheduleKind(const std::string& name);
std::string ScheduleName(ScheduleKind kind);

/// Names of the fields that the kind reads, without warmup_steps.
std::span<const std::string_view> ScheduleFields(ScheduleKind kind);

/// A schedule of that kind as it is usually begun with: inverse with Caffe's gamma 1e-4 and power 0.75, step
/// with gamma 0.1. Without step_size and decay_steps, for which nothing is usual.
LearningRateSchedule UsualSchedule(ScheduleKind kind);

/// InvalidArgument names a field out of range.
absl::Status Validate(const LearningRateSchedule& schedule);

/// The rate of the update that has `step` updates before it (0 for the first): the same bits on every
/// machine. `schedule` must be valid. It may become 0 where the true value is too small for a double. The
/// relative error is below 2^-49 (1 + |log(result / base)|).
double LearningRateAt(const LearningRateSchedule& schedule, double base, uint64_t step);

}  // namespace muster
