// Gradients by allreduce, without servers.
#pragma once

#include <memory>
#include <span>

#include "base/status.h"
#include "kernels/optimizer.h"
#include "kernels/parameter_layout.h"
#include "trainer/gradient_exchange.h"
#include "trainer/replicated_parameters.h"

namespace muster {

/// Of models without tables. Listens at once, and meets the others in Start. Fails as ReplicatedParameters
/// does.
absl::StatusOr<std::unique_ptr<GradientExchange>> MakeAllReduceExchange(
    const ParameterLayout& layout, std::span<const OptimizerConfig> optimizers, uint64_t seed,
    const AllReduceOptions& options);

}  // namespace muster
