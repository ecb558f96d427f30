// Scenario: what the simulator is told of a training job: the cluster, what travels in a step, and how long
// workers compute. The numbers come from a run of a few workers.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace muster::simulator {

enum class Strategy {
  kAsyncServers,  // each gradient is an update
  kSyncServers,   // one update of the first n - backup_workers gradients
  kAllReduce,
  kHybrid,  // dense parameters by allreduce, rows of tables over synchronous servers
};

/// One worker on each host; every host has a full-duplex link to a switch that never blocks.
struct Cluster {
  int workers = 1;
  int servers = 1;  // shards of equal size; allreduce has none
  /// Server j on the host of worker j mod workers; else each on a host of its own.
  bool servers_on_workers = false;
  double link_bytes_per_second = 1.25e9;  // in each direction
  double latency_seconds = 0;             // one way
  /// Of servers that do not wait for all workers: every pull has, with even odds, so many times the share of
  /// its links that the others have. What one host sends to several is not shared out evenly. If it were,
  /// workers that compute equally long and have once met would stay in each other's way for ever.
  double large_share = 1;
  /// Of a processor, for each message that a task sends or receives.
  double message_seconds = 0;
  /// Of a server's processor, for each byte of a gradient that it adds up, and for each that its optimizer
  /// updates. Its processor does one thing at a time, and takes nothing from a worker on the same host.
  double sum_seconds_per_byte = 0;
  double update_seconds_per_byte = 0;
  /// Of a worker that updates parameters itself: allreduce and hybrid. 0 where the compute times have it.
  double worker_update_seconds_per_byte = 0;
};

/// A range of the gradient that is reduced by itself, in the background of the backward pass.
struct Bucket {
  double share = 1;           // of dense_bytes; those of a job add up to 1
  double ready_fraction = 1;  // of the compute time that has passed when it can be reduced
};

enum class HybridOrder {
  /// The rows travel while the dense gradient is reduced. Each has a part of a worker's link in proportion
  /// to its bytes, so both together take no more than the link has.
  kTogether,
  kDenseThenRows,
};

/// What a step moves, for each worker.
struct Traffic {
  double dense_bytes = 0;        // gradient, and as much of parameters
  double sparse_push_bytes = 0;  // gradients of the rows that a batch names
  double sparse_pull_bytes = 0;  // rows of the next batch

  std::vector<Bucket> buckets = {{}};    // in the order in which they are reduced
  double doubling_bytes = 64 << 10;      // up to that recursive doubling, above it a ring
  double ring_forward_bytes = 64 << 10;  // of a part are there before it goes on; at most all of it
  HybridOrder hybrid_order = HybridOrder::kTogether;

  int backup_workers = 0;
  /// Synchronous servers that wait for all workers: in so many parts gradients and their answers travel, and
  /// the first are answered while the last still come (ps/early_update.h). 1: first all of one, then of the
  /// other.
  int answer_parts = 1;
  /// A server adds a gradient up when it comes; else all of a step, in order of rank, once they are there.
  bool sums_on_arrival = false;
};

/// How long a step's forward and backward pass take.
struct Compute {
  std::vector<double> sample_seconds = {0};  // as measured; each step draws one of them
  /// Any worker, in any step.
  double straggler_probability = 0;
  double straggler_factor = 1;
  /// Workers 0 to slow_workers - 1, in all steps.
  int slow_workers = 0;
  double slow_factor = 1;
};

struct Scenario {
  Strategy strategy = Strategy::kSyncServers;
  Cluster cluster;
  Traffic traffic;
  Compute compute;
  int steps = 100;  // that are simulated; async: of each worker, on average
  uint64_t seed = 1;
};

/// InvalidArgument, naming the field: what no cluster has, or what the strategy has no use for.
absl::Status Validate(const Scenario& scenario);

}  // namespace muster::simulator
