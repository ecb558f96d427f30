// The `train` part of a job file. For the .cc files of this folder.
#pragma once

#include "base/status.h"
#include "inventory/job.h"
#include "inventory/yaml_tree.h"

namespace muster {

inline constexpr int64_t kMaxTrainSteps = 1'000'000'000;

absl::StatusOr<TrainSpec> ReadTrainSpec(const YamlNode& node);

}  // namespace muster
