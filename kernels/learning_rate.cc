#include "kernels/learning_rate.h"

#include <cmath>
#include <string>
#include <vector>

#include "base/nearest.h"
#include "kernels/portable_math.h"

namespace muster {
namespace {

struct ScheduleEntry {
  ScheduleKind kind;
  const char* name;
  std::span<const std::string_view> fields;
};

constexpr std::string_view kInverseFields[] = {"gamma", "power"};
constexpr std::string_view kStepFields[] = {"gamma", "step_size"};
constexpr std::string_view kCosineFields[] = {"decay_steps", "final_fraction"};

constexpr ScheduleEntry kSchedules[] = {
    {ScheduleKind::kConstant, "constant", {}},
    {ScheduleKind::kInverse, "inverse", kInverseFields},
    {ScheduleKind::kStep, "step", kStepFields},
    {ScheduleKind::kCosine, "cosine", kCosineFields},
};

const ScheduleEntry& EntryFor(ScheduleKind kind) {
  for (const ScheduleEntry& entry : kSchedules) {
    if (entry.kind == kind) return entry;
  }
  MUSTER_CHECK(false, "a schedule without a row in the table");
}

// Of the kinds that fall by a cosine, after `step` of its steps.
double CosineFraction(const LearningRateSchedule& schedule, uint64_t step) {
  if (step >= schedule.decay_steps) return schedule.final_fraction;
  // (1 + cos(pi x))/2 = sin(pi (1 - x)/2)^2, which loses nothing near its end.
  const double left =
      static_cast<double>(schedule.decay_steps - step) / static_cast<double>(schedule.decay_steps);
  const double sine = PortableSinPi(left / 2);
  return schedule.final_fraction + (1 - double{schedule.final_fraction}) * (sine * sine);
}

}  // namespace

absl::StatusOr<ScheduleKind> ParseScheduleKind(const std::string& name) {
  std::vector<std::string> names;
  std::string list;
  for (const ScheduleEntry& entry : kSchedules) {
    if (name == entry.name) return entry.kind;
    names.push_back(entry.name);
    list += (list.empty() ? "" : ", ") + names.back();
  }
  const std::string nearest = NearestWord(name, names);
  return InvalidArgument("no learning-rate schedule '%s'%s; there are: %s", name,
                         nearest.empty() ? "" : absl::StrFormat(", did you mean '%s'?", nearest), list);
}

std::string ScheduleName(ScheduleKind kind) { return EntryFor(kind).name; }

std::span<const std::string_view> ScheduleFields(ScheduleKind kind) { return EntryFor(kind).fields; }

LearningRateSchedule UsualSchedule(ScheduleKind kind) {
  LearningRateSchedule schedule{.kind = kind};
  if (kind == ScheduleKind::kInverse) {
    schedule.gamma = 1e-4f;
    schedule.power = 0.75f;
  } else if (kind == ScheduleKind::kStep) {
    schedule.gamma = 0.1f;
  }
  return schedule;
}

absl::Status Validate(const LearningRateSchedule& s) {
  const auto bad = [&](const char* field, double value, const char* expected) {
    return InvalidArgument("%s of the learning-rate schedule %s is %g, expected %s", field,
                           ScheduleName(s.kind), value, expected);
  };
  const bool is_step = s.kind == ScheduleKind::kStep;
  // Written so that NaN fails.
  if (!std::isfinite(s.gamma) || !(s.gamma >= 0))
    return bad("gamma", s.gamma, "a finite number of at least 0");
  if (is_step && !(s.gamma > 0 && s.gamma <= 1)) return bad("gamma", s.gamma, "a number above 0, at most 1");
  if (!std::isfinite(s.power) || !(s.power >= 0))
    return bad("power", s.power, "a finite number of at least 0");
  if (is_step && s.step_size < 1) return bad("step_size", 0, "at least 1");
  if (s.kind == ScheduleKind::kCosine && s.decay_steps < 1) return bad("decay_steps", 0, "at least 1");
  if (!(s.final_fraction >= 0 && s.final_fraction <= 1)) {
    return bad("final_fraction", s.final_fraction, "a number from 0 to 1");
  }
  return absl::OkStatus();
}

double LearningRateAt(const LearningRateSchedule& schedule, double base, uint64_t step) {
  if (step < schedule.warmup_steps) {
    return base * (static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps));
  }
  const uint64_t t = step - schedule.warmup_steps;
  switch (schedule.kind) {
    case ScheduleKind::kConstant:
      return base;
    case ScheduleKind::kInverse:
      return base * PortablePow(1 + schedule.gamma * static_cast<double>(t), -double{schedule.power});
    case ScheduleKind::kStep:
      return base * PortablePow(schedule.gamma, static_cast<double>(t / schedule.step_size));
    case ScheduleKind::kCosine:
      return base * CosineFraction(schedule, t);
  }
  MUSTER_CHECK(false, "a schedule that does not exist");
}

}  // namespace muster
