#include "bench/simulator/simulator.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bench/simulator/allreduce_times.h"
#include "bench/simulator/compute_times.h"
#include "bench/simulator/server_simulation.h"

namespace muster::simulator {
namespace {

// The smallest value that at least this share of them does not exceed.
double NearestRank(std::vector<double>& values, double share) {
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  const auto place = values.begin() + static_cast<ptrdiff_t>(std::max<size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

StepLog RunAllReduce(const Scenario& scenario) {
  const ComputeTimes compute_times(scenario.compute, scenario.seed);
  const auto workers = static_cast<size_t>(scenario.cluster.workers);
  std::vector<double> starts(workers, 0.0);
  std::vector<double> compute_seconds(workers);
  StepLog log;
  for (int step = 0; step < scenario.steps; ++step) {
    double last_computed = 0;
    for (size_t worker = 0; worker < workers; ++worker) {
      compute_seconds[worker] = compute_times.Seconds(static_cast<int>(worker), step);
      last_computed = std::max(last_computed, starts[worker] + compute_seconds[worker]);
    }
    for (size_t worker = 0; worker < workers; ++worker) {
      log.compute_seconds += compute_seconds[worker];
      log.waiting_seconds += last_computed - (starts[worker] + compute_seconds[worker]);
    }
    starts = ReduceBuckets(scenario.cluster, scenario.traffic, starts, compute_seconds);
    const double end = *std::max_element(starts.begin(), starts.end());
    log.step_seconds.push_back(end - log.all_seconds);
    log.all_seconds = end;
  }
  log.update_seconds = log.all_seconds;
  log.all_updates = log.updates = scenario.steps;
  log.gradients = log.cycles = static_cast<int64_t>(scenario.steps) * scenario.cluster.workers;
  return log;
}

Prediction Summarize(StepLog& log) {
  Prediction prediction;
  prediction.steps_per_second = static_cast<double>(log.updates) / log.update_seconds;
  prediction.gradients_per_second = static_cast<double>(log.gradients) / log.update_seconds;
  prediction.mean_step_seconds = std::accumulate(log.step_seconds.begin(), log.step_seconds.end(), 0.0) /
                                 static_cast<double>(log.step_seconds.size());
  prediction.p50_step_seconds = NearestRank(log.step_seconds, 0.5);
  prediction.p99_step_seconds = NearestRank(log.step_seconds, 0.99);
  prediction.compute_seconds = log.compute_seconds / static_cast<double>(log.cycles);
  prediction.straggler_seconds = log.waiting_seconds / static_cast<double>(log.cycles);
  prediction.communication_seconds =
      prediction.mean_step_seconds - prediction.compute_seconds - prediction.straggler_seconds;
  prediction.stale_share = static_cast<double>(log.stale) / static_cast<double>(log.stale + log.gradients);
  return prediction;
}

void AddDenseBytes(const Scenario& scenario, const StepLog& log, Prediction* prediction, double* busiest) {
  const SentBytes dense = ReducedTraffic(scenario.cluster, scenario.traffic);
  prediction->worker_bytes_per_step.sent += dense.mean;
  prediction->worker_bytes_per_step.received += dense.mean;
  *busiest += dense.busiest * static_cast<double>(log.all_updates);
}

// What the busiest direction of a worker's link carried, and of a server's on a host of its own.
struct LinkBytes {
  double worker = 0;
  double server = 0;
};

LinkBytes AddServerBytes(const Scenario& scenario, const StepLog& log, Prediction* prediction) {
  const FairLinksOptions links = ServerLinks(scenario);
  const double pushed = links.push_bytes * static_cast<double>(std::accumulate(log.pushes.begin(),
                                                                               log.pushes.end(), int64_t{0}));
  const double pulled =
      links.pull_bytes * static_cast<double>(std::accumulate(log.pulls.begin(), log.pulls.end(), int64_t{0}));
  const auto updates = static_cast<double>(log.all_updates);
  const double worker_updates = updates * links.workers;
  const double server_updates = updates * links.servers;
  prediction->worker_bytes_per_step = {.sent = pushed / worker_updates, .received = pulled / worker_updates};
  prediction->server_bytes_per_step = {.sent = pulled / server_updates, .received = pushed / server_updates};

  LinkBytes bytes;
  for (int worker = 0; worker < links.workers; ++worker) {
    const double own = OwnShare(links, worker);
    const double push = links.push_bytes * static_cast<double>(log.pushes[worker]);
    const double pull = links.pull_bytes * static_cast<double>(log.pulls[worker]);
    const double sent = push * (1 - own) + (pulled - pull) * own;
    const double received = pull * (1 - own) + (pushed - push) * own;
    bytes.worker = std::max({bytes.worker, sent, received});
  }
  if (!links.servers_on_workers) bytes.server = std::max(pushed, pulled) / links.servers;
  return bytes;
}

}  // namespace

absl::StatusOr<Prediction> Simulate(const Scenario& scenario) {
  MUSTER_RETURN_IF_ERROR(Validate(scenario));
  const bool has_servers = scenario.strategy != Strategy::kAllReduce;
  StepLog log = has_servers ? ServerSimulation(scenario).Run() : RunAllReduce(scenario);
  if (log.update_seconds <= 0) return InvalidArgument("steps take no time: nothing computes or travels");

  Prediction prediction = Summarize(log);
  LinkBytes bytes;
  if (has_servers) bytes = AddServerBytes(scenario, log, &prediction);
  if (!has_servers || scenario.strategy == Strategy::kHybrid) {
    AddDenseBytes(scenario, log, &prediction, &bytes.worker);
  }
  prediction.busiest_link_utilisation =
      std::max(bytes.worker, bytes.server) / (scenario.cluster.link_bytes_per_second * log.all_seconds);
  return prediction;
}

}  // namespace muster::simulator
