// Gradients by allreduce: every worker has all parameters and the optimizer's state, and makes the same
// update from the sum of all gradients.
//
// A worker that is lost, or comes back, ends the group (IsGoneBack). Start makes the next one of those who
// are there, and whoever lacks the parameters of the last step gets them, with the optimizer's state, from
// one who has them.
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

struct AllReduceOptions {
  ClusterSpec cluster;
  TaskId task;
  uint64_t generation = 0;
  uint64_t incarnation = 0;
  std::string bind_host;  // where this task listens; empty: at its address in the cluster
  std::optional<TlsIdentity> tls;
  bool shares_memory = true;                              // among the tasks of a host
  uint64_t fingerprint = 0;                               // of all that workers have to agree on
  int min_workers = 1;                                    // below that they wait for the others
  Duration connect_timeout = std::chrono::minutes(5);     // until all have come
  Duration operation_timeout = std::chrono::minutes(10);  // how long a step, or too few, wait for anybody
};

/// Without tables. Listens at once, and meets the others in Start. AlreadyExists: the port is taken; fails as
/// LayoutOptimizer::Create does. A gradient that is not finite fails Exchange on all workers, before any
/// update: InvalidArgument where it is, FailedPrecondition with the name of that worker on the others.
absl::StatusOr<std::unique_ptr<GradientExchange>> MakeAllReduceExchange(
    const ParameterLayout& layout, std::span<const OptimizerConfig> optimizers, uint64_t seed,
    const AllReduceOptions& options);

}  // namespace muster
