// Gradients of models with tables: dense parameters by allreduce, the rows of tables through synchronous
// parameter servers.
//
// Both make one step, or neither. A worker pushes its rows' gradients once it has the sums of the dense
// gradients, and the servers make a step of the pushes of all workers, so when the tables have made a step,
// every worker that was there has what the dense parameters need for theirs. Nobody goes on without a worker
// that is lost: the others wait for it, and it gets the dense parameters from them.
#pragma once

#include <memory>
#include <span>

#include "base/status.h"
#include "kernels/optimizer.h"
#include "kernels/parameter_layout.h"
#include "ps/client.h"
#include "trainer/gradient_exchange.h"
#include "trainer/replicated_parameters.h"

namespace muster {

/// `tables`: with the job's tables, no layout, and a configuration in which steps are made of all workers.
/// Fails as ReplicatedParameters does.
absl::StatusOr<std::unique_ptr<GradientExchange>> MakeHybridExchange(
    const ParameterLayout& layout, std::span<const OptimizerConfig> optimizers, uint64_t seed,
    const AllReduceOptions& dense, ParameterServerClientOptions tables);

}  // namespace muster
