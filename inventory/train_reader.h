// The `train` part of a job file. For the .cc files of this folder.
#pragma once

#include "base/status.h"
#include "inventory/job.h"
#include "inventory/yaml_tree.h"

namespace muster {

inline constexpr int64_t kMaxTrainSteps = 1'000'000'000;

/// Without warm-up too, as FTRL needs it.
bool IsConstant(const ScheduleSpec& schedule);

absl::StatusOr<TrainSpec> ReadTrainSpec(const YamlNode& node);

}  // namespace muster
