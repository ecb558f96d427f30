// Simulate: how fast a training job would be on a cluster, by strategy. A discrete-event model; a pure
// function of the scenario, its seed included: no threads, sockets, files or clock.
//
// Servers: server_simulation.h; links: fair_links.h; allreduce: allreduce_times.h; least times: bounds.h.
//
// What is left out: a worker's compute time does not depend on the cluster, so processors and memory of a
// host that several tasks share are not modelled beyond message_seconds; all hosts have the same link;
// nothing is lost, and nobody dies.
#pragma once

#include "base/status.h"
#include "bench/simulator/scenario.h"

namespace muster::simulator {

struct SentAndReceived {
  double sent = 0;
  double received = 0;
};

struct Prediction {
  /// Updates of the parameters; async: each gradient is one.
  double steps_per_second = 0;
  /// That are part of an update, of all workers: what strategies are compared by. Times the batch it is
  /// samples per second; divided by the workers, what each of them makes.
  double gradients_per_second = 0;

  /// Of a step; async: of a worker's cycle, from one gradient to its next.
  double mean_step_seconds = 0;
  double p50_step_seconds = 0;  // nearest rank
  double p99_step_seconds = 0;

  /// Where the mean goes, on average over workers; they add up to it. Communication is what is not hidden
  /// behind the backward pass, servers' work included. A worker waits for stragglers from when it has
  /// computed until the last one that the step needs has.
  double compute_seconds = 0;
  double communication_seconds = 0;
  double straggler_seconds = 0;

  /// Bytes of gradients and parameters for each update, of one worker on average, and of one server (zero
  /// without). What tasks on one host exchange counts as well.
  SentAndReceived worker_bytes_per_step;
  SentAndReceived server_bytes_per_step;

  /// Of the direction of a link that carries the most, in the time of the whole run: 0 to 1.
  double busiest_link_utilisation = 0;

  /// Of backup workers: that came too late for their step, of all that came.
  double stale_share = 0;
};

/// InvalidArgument as Validate. Time: servers O(workers * log(workers)) a step, however many servers; ring
/// O(workers), recursive doubling O(workers * log(workers)) for each bucket of a step.
absl::StatusOr<Prediction> Simulate(const Scenario& scenario);

}  // namespace muster::simulator
