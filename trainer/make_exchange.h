// Which exchange a job asks for.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "collective/gpu_group.h"
#include "trainer/data/dataset.h"
#include "trainer/gradient_exchange.h"
#include "trainer/models/device.h"
#include "trainer/models/model_spec.h"
#include "trainer/options.h"

namespace muster {

/// By optimizer group.
std::vector<OptimizerConfig> OptimizersByGroup(const TrainerOptions& options);

/// How a worker that computes on `device`, null for the CPU, takes part in sums.
GpuPreference PreferenceOf(const TrainerOptions& options, Device* device);

/// That of a process alone, or of a worker by its strategy; `gpus`, and `replica` as AllReduceOptions has it,
/// for those that reduce gradients.
/// InvalidArgument: --tls_dir; and as those fail.
absl::StatusOr<std::unique_ptr<GradientExchange>> MakeExchange(const TrainerOptions& options,
                                                               const ModelPlan& plan,
                                                               const Dataset& training_set,
                                                               const GpuPreference& gpus, Replica* replica);

}  // namespace muster
