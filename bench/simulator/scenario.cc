#include "bench/simulator/scenario.h"

#include <cmath>

namespace muster::simulator {
namespace {

absl::Status CheckNotNegative(double value, const char* name) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return InvalidArgument("%s is %g: it has to be a number from 0 on", name, value);
}

absl::Status ValidateCluster(const Cluster& cluster, Strategy strategy) {
  if (cluster.workers < 1) return InvalidArgument("workers is %d: at least 1", cluster.workers);
  if (strategy != Strategy::kAllReduce && cluster.servers < 1) {
    return InvalidArgument("servers is %d: at least 1", cluster.servers);
  }
  if (!std::isfinite(cluster.link_bytes_per_second) || cluster.link_bytes_per_second <= 0) {
    return InvalidArgument("link_bytes_per_second is %g: more than 0", cluster.link_bytes_per_second);
  }
  if (!std::isfinite(cluster.large_share) || cluster.large_share < 1) {
    return InvalidArgument("large_share is %g: at least 1", cluster.large_share);
  }
  MUSTER_RETURN_IF_ERROR(CheckNotNegative(cluster.latency_seconds, "latency_seconds"));
  MUSTER_RETURN_IF_ERROR(CheckNotNegative(cluster.message_seconds, "message_seconds"));
  MUSTER_RETURN_IF_ERROR(CheckNotNegative(cluster.sum_seconds_per_byte, "sum_seconds_per_byte"));
  MUSTER_RETURN_IF_ERROR(CheckNotNegative(cluster.update_seconds_per_byte, "update_seconds_per_byte"));
  return CheckNotNegative(cluster.worker_update_seconds_per_byte, "worker_update_seconds_per_byte");
}

absl::Status ValidateBuckets(const std::vector<Bucket>& buckets) {
  double share = 0;
  double ready = 0;
  for (const Bucket& bucket : buckets) {
    MUSTER_RETURN_IF_ERROR(CheckNotNegative(bucket.share, "a bucket's share"));
    if (!(bucket.ready_fraction >= ready && bucket.ready_fraction <= 1)) {
      return InvalidArgument("a bucket's ready_fraction is %g after one of %g: they grow, up to 1",
                             bucket.ready_fraction, ready);
    }
    share += bucket.share;
    ready = bucket.ready_fraction;
  }
  if (ready < 1)
    return InvalidArgument("the last bucket's ready_fraction is %g: the gradient ends at 1", ready);
  // Shares are written down with some digits; what they lack is far below what times are measured to.
  if (std::abs(share - 1) > 1e-6) return InvalidArgument("the shares of buckets add up to %g, not 1", share);
  return absl::OkStatus();
}

absl::Status ValidateTraffic(const Scenario& scenario) {
  const Traffic& traffic = scenario.traffic;
  MUSTER_RETURN_IF_ERROR(CheckNotNegative(traffic.dense_bytes, "dense_bytes"));
  MUSTER_RETURN_IF_ERROR(CheckNotNegative(traffic.sparse_push_bytes, "sparse_push_bytes"));
  MUSTER_RETURN_IF_ERROR(CheckNotNegative(traffic.sparse_pull_bytes, "sparse_pull_bytes"));
  MUSTER_RETURN_IF_ERROR(CheckNotNegative(traffic.doubling_bytes, "doubling_bytes"));
  MUSTER_RETURN_IF_ERROR(CheckNotNegative(traffic.ring_forward_bytes, "ring_forward_bytes"));
  if (scenario.strategy == Strategy::kAllReduce &&
      (traffic.sparse_push_bytes > 0 || traffic.sparse_pull_bytes > 0)) {
    return InvalidArgument("allreduce has no rows of tables: count a whole table in dense_bytes");
  }
  if (traffic.backup_workers < 0 || traffic.backup_workers >= scenario.cluster.workers) {
    return InvalidArgument("backup_workers is %d of %d workers", traffic.backup_workers,
                           scenario.cluster.workers);
  }
  const bool may_answer_early = scenario.strategy == Strategy::kSyncServers && traffic.backup_workers == 0;
  if (traffic.answer_parts < 1 || (traffic.answer_parts > 1 && !may_answer_early)) {
    return InvalidArgument("answer_parts is %d: only synchronous servers that wait for all have several",
                           traffic.answer_parts);
  }
  if (traffic.backup_workers > 0 && scenario.strategy != Strategy::kSyncServers) {
    return InvalidArgument("backup_workers is %d: only synchronous servers have them",
                           traffic.backup_workers);
  }
  return ValidateBuckets(traffic.buckets);
}

absl::Status ValidateCompute(const Compute& compute) {
  if (compute.sample_seconds.empty()) return InvalidArgument("sample_seconds is empty");
  for (const double seconds : compute.sample_seconds) {
    MUSTER_RETURN_IF_ERROR(CheckNotNegative(seconds, "a value of sample_seconds"));
  }
  if (!(compute.straggler_probability >= 0 && compute.straggler_probability <= 1)) {
    return InvalidArgument("straggler_probability is %g: 0 to 1", compute.straggler_probability);
  }
  if (compute.slow_workers < 0) return InvalidArgument("slow_workers is %d", compute.slow_workers);
  MUSTER_RETURN_IF_ERROR(CheckNotNegative(compute.straggler_factor, "straggler_factor"));
  return CheckNotNegative(compute.slow_factor, "slow_factor");
}

}  // namespace

absl::Status Validate(const Scenario& scenario) {
  if (scenario.steps < 1) return InvalidArgument("steps is %d: at least 1", scenario.steps);
  MUSTER_RETURN_IF_ERROR(ValidateCluster(scenario.cluster, scenario.strategy));
  MUSTER_RETURN_IF_ERROR(ValidateTraffic(scenario));
  return ValidateCompute(scenario.compute);
}

}  // namespace muster::simulator
