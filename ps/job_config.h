// JobConfig on the wire, to and from what it stands for.
#pragma once

#include "base/status.h"
#include "kernels/optimizer.h"
#include "kernels/parameter_layout.h"
#include "proto/parameter_server.pb.h"
#include "ps/update_rule.h"

namespace muster {

ps::JobConfig MakeJobConfig(const ParameterLayout& layout, UpdateMode mode, int worker_count,
                            const OptimizerConfig& optimizer, uint64_t seed);

/// FailedPrecondition if the layout does not have the hash that its sender computed: the builds differ.
absl::StatusOr<ParameterLayout> LayoutOf(const ps::JobConfig& config);
absl::StatusOr<OptimizerConfig> OptimizerOf(const ps::JobConfig& config);
absl::StatusOr<UpdateMode> UpdateModeOf(const ps::JobConfig& config);

}  // namespace muster
