#include "launcher/bench/calibration.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "launcher/bench/results_view.h"

namespace muster::bench {
namespace {

constexpr int kSimulatedSteps = 50;
// Where workers do not wait for each other, or steps differ, of all of them together: until a few have found
// their rhythm.
constexpr int kSimulatedGradients = 4000;
// Measured on a virtual cluster: of two answers that left a server at the same time, the one that got more of
// the link got so many times as much in the median (quartiles 1.1, 3.9, 10); of two pushes to it 1.2 times.
constexpr double kLargeShare = 4;

simulator::Strategy Simulated(Strategy strategy) {
  switch (strategy) {
    case Strategy::kAsyncServers:
      return simulator::Strategy::kAsyncServers;
    case Strategy::kSyncServers:
    case Strategy::kBackupWorkers:
      return simulator::Strategy::kSyncServers;
    case Strategy::kAllReduce:
      return simulator::Strategy::kAllReduce;
    case Strategy::kHybrid:
      return simulator::Strategy::kHybrid;
  }
  MUSTER_CHECK(false);
}

// The argument between `low` and `high` at which a function that falls, or rises, comes nearest to `target`;
// one of both where it does not come to it.
double Solve(double low, double high, double target, const std::function<std::optional<double>(double)>& f) {
  constexpr int kHalvings = 40;
  const bool rises = f(high).value_or(0) > f(low).value_or(0);
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = std::sqrt(low * high);
    const bool is_above = f(middle).value_or(0) > target;
    (is_above == rises ? high : low) = middle;
  }
  return std::sqrt(low * high);
}

std::vector<double> WithMean(std::vector<double> values, double mean) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  for (double& value : values) value *= mean * static_cast<double>(values.size()) / sum;
  return values;
}

}  // namespace

bool IsSameRun(const Cell& a, const Cell& b) {
  return a.model == b.model && a.link_bytes_per_second == b.link_bytes_per_second;
}

// Of an Ethernet packet's 1514 bytes 1448 are TCP's.
double Goodput(double link_bytes_per_second) { return link_bytes_per_second * 1448 / 1514; }

int AnswerParts(const Cell& cell, const Workload& workload) {
  constexpr double kSmallestBytes = 64 << 10, kMost = 32;
  if (cell.strategy != Strategy::kSyncServers || cell.servers < 1) return 1;
  return static_cast<int>(
      std::clamp(std::ceil(workload.parameter_bytes / cell.servers / kSmallestBytes), 1.0, kMost));
}

simulator::Scenario MakeScenario(const Cell& cell, const Workload& workload, const Costs& costs) {
  simulator::Scenario scenario{.strategy = Simulated(cell.strategy),
                               .cluster = {.workers = cell.workers,
                                           .servers = std::max(1, cell.servers),
                                           .servers_on_workers = cell.servers_on_workers,
                                           .link_bytes_per_second = costs.link_bytes_per_second,
                                           .latency_seconds = costs.latency_seconds,
                                           .sum_seconds_per_byte = costs.server_seconds_per_byte,
                                           .update_seconds_per_byte = costs.server_seconds_per_byte},
                               .traffic = {.dense_bytes = workload.parameter_bytes},
                               .compute = {.sample_seconds = {costs.compute_seconds.value()}},
                               .steps = kSimulatedSteps};
  if (cell.strategy == Strategy::kAsyncServers || cell.strategy == Strategy::kBackupWorkers) {
    scenario.cluster.large_share = kLargeShare;
    scenario.steps = std::max(kSimulatedSteps, kSimulatedGradients / cell.workers);
  }
  scenario.traffic.answer_parts = AnswerParts(cell, workload);
  if (cell.strategy == Strategy::kBackupWorkers) scenario.traffic.backup_workers = 1;
  if (cell.strategy == Strategy::kAllReduce) {
    scenario.cluster.sum_seconds_per_byte = scenario.cluster.update_seconds_per_byte = 0;
  }
  return scenario;
}

simulator::Scenario MakeUnevenScenario(const Cell& cell, const Workload& workload, const Costs& costs) {
  simulator::Scenario scenario = MakeScenario(cell, workload, costs);
  if (costs.compute_samples.empty()) return scenario;
  scenario.compute.sample_seconds = costs.compute_samples;
  scenario.steps = std::max(scenario.steps, kSimulatedGradients / cell.workers);
  return scenario;
}

std::optional<double> Simulations::StepSeconds(const simulator::Scenario& scenario) {
  if (status_.ok() && interruption_) status_ = interruption_();
  if (!status_.ok()) return std::nullopt;
  const auto prediction = simulator::Simulate(scenario);
  if (!prediction.ok() || prediction->steps_per_second <= 0) return std::nullopt;
  return 1 / prediction->steps_per_second;
}

Calibration::Calibration(const std::vector<Workload>& workloads, const Results& results, size_t first,
                         Simulations* simulations)
    : workloads_(workloads), results_(results), noise_(results), first_(first), simulations_(*simulations) {
  FindLatency();
  FindCompute();
  if (costs_.compute_seconds) FindBandwidth();
  if (costs_.link_bytes_per_second > 0) FindServerCosts();
}

// The one with the fewest workers, and servers, of those that fit.
std::optional<size_t> Calibration::Smallest(const std::function<bool(const Cell&)>& fits) const {
  std::optional<size_t> best;
  for (size_t i = 0; i < results_.measurements.size(); ++i) {
    const Cell& cell = At(i).cell;
    if (!HasNumbers(At(i)) || !IsSameRun(cell, At(first_).cell) || !fits(cell)) continue;
    if (!best ||
        std::pair(cell.workers, cell.servers) < std::pair(At(*best).cell.workers, At(*best).cell.servers)) {
      best = i;
    }
  }
  return best;
}

void Calibration::FindLatency() {
  for (const Link& link : results_.links) {
    if (link.bytes_per_second != At(first_).cell.link_bytes_per_second) continue;
    costs_.latency_seconds = link.latency_seconds.value_or(0);
  }
}

void Calibration::FindCompute() {
  if (results_.compute_seconds_per_step) {
    costs_.compute_seconds = results_.compute_seconds_per_step;
    return;
  }
  compute_cell_ =
      Smallest([](const Cell& cell) { return cell.workers == 1 && cell.strategy == Strategy::kAllReduce; });
  if (!compute_cell_) return;
  costs_.compute_seconds = At(*compute_cell_).median_step_seconds();
  costs_.compute_samples = WithMean(workloads_[*compute_cell_].compute_factors, *costs_.compute_seconds);
}

double Calibration::ChanceOf(const Measurement& measurement) const {
  return compute_cell_ ? noise_.Between(At(*compute_cell_), measurement) : noise_.Of(measurement);
}

// By more than chance may explain.
bool Calibration::TookMoreThanComputing(size_t i) const {
  const double step_seconds = At(i).median_step_seconds();
  return step_seconds - *costs_.compute_seconds > ChanceOf(At(i)) * step_seconds;
}

// At which it takes as long as it did. Unset: at none, as where latency alone takes longer.
std::optional<double> Calibration::BandwidthOf(size_t i) {
  constexpr double kLow = 1e4, kHigh = 1e12, kEdge = 1.01;
  Costs costs = costs_;
  const double found = Solve(kLow, kHigh, At(i).median_step_seconds(), [&](double bytes_per_second) {
    costs.link_bytes_per_second = bytes_per_second;
    return simulations_.StepSeconds(MakeScenario(At(i).cell, workloads_[i], costs));
  });
  return found > kLow * kEdge && found < kHigh / kEdge ? std::optional(found) : std::nullopt;
}

void Calibration::FindBandwidth() {
  const auto cell =
      Smallest([](const Cell& cell) { return cell.workers > 1 && cell.strategy == Strategy::kAllReduce; });
  if (!cell) return;
  const bool took_more = TookMoreThanComputing(*cell);
  const auto found = took_more ? BandwidthOf(*cell) : std::nullopt;
  const double given = Goodput(At(first_).cell.link_bytes_per_second);
  // What is faster than the link was a burst that it lets pass.
  if (found && (given == 0 || *found <= given)) {
    link_cell_ = cell;
    costs_.link_bytes_per_second = *found;
    return;
  }
  costs_.link_bytes_per_second = given;
  if (given > 0) return;
  why_no_rate_ = absl::StrFormat(
      "the links were given no rate, and allreduce with %s took %s", WorkersText(At(*cell).cell.workers),
      took_more ? "a time that no rate explains" : "no more than chance beyond computing");
}

void Calibration::FindServerCosts() {
  server_cell_ = Smallest([](const Cell& cell) { return cell.strategy == Strategy::kSyncServers; });
  if (!server_cell_) return;
  Costs costs = costs_;
  costs_.server_seconds_per_byte =
      Solve(1e-14, 1e-6, At(*server_cell_).median_step_seconds(), [&](double seconds_per_byte) {
        costs.server_seconds_per_byte = seconds_per_byte;
        return simulations_.StepSeconds(
            MakeScenario(At(*server_cell_).cell, workloads_[*server_cell_], costs));
      });
}

}  // namespace muster::bench
