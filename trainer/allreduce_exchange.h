// Gradients by allreduce: every worker has all parameters and the optimizer's state, and makes the same
// update from the sum of all gradients.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/cluster_spec.h"
#include "cluster/tls_identity.h"
#include "kernels/optimizer.h"
#include "kernels/parameter_layout.h"
#include "trainer/gradient_exchange.h"

namespace muster {

/// Each has a bit of its own in what travels in front of the gradient.
inline constexpr int kMaxAllReduceWorkers = 280;

struct AllReduceOptions {
  ClusterSpec cluster;
  TaskId task;
  uint64_t generation = 0;
  std::string bind_host;  // where this task listens; empty: at its address in the cluster
  std::optional<TlsIdentity> tls;
  bool shares_memory = true;                              // among the tasks of a host
  uint64_t fingerprint = 0;                               // of all that workers have to agree on
  Duration connect_timeout = std::chrono::minutes(5);     // until all have come
  Duration operation_timeout = std::chrono::minutes(10);  // how long a step waits for anybody
};

/// Without tables, and with up to kMaxAllReduceWorkers. Listens at once, and meets the others in Start.
/// AlreadyExists: the port is taken; fails as LayoutOptimizer::Create does. A gradient that is not finite
/// fails Exchange on all workers, before any update: InvalidArgument where it is, FailedPrecondition with the
/// name of that worker on the others.
absl::StatusOr<std::unique_ptr<GradientExchange>> MakeAllReduceExchange(
    const ParameterLayout& layout, std::span<const OptimizerConfig> optimizers, uint64_t seed,
    const AllReduceOptions& options);

}  // namespace muster
