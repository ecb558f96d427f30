#include "launcher/bench/prediction.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "bench/simulator/bounds.h"
#include "bench/simulator/simulator.h"
#include "launcher/bench/results_view.h"

namespace muster::bench {
namespace {

constexpr int kSimulatedSteps = 50;
// Where workers do not wait for each other, of all of them together: until a few have found their rhythm.
constexpr int kSimulatedGradients = 4000;
// Measured on a virtual cluster: of two answers that left a server at the same time, the one that got more of
// the link got so many times as much in the median (quartiles 1.1, 3.9, 10); of two pushes to it 1.2 times.
constexpr double kLargeShare = 4;
constexpr int kCurveWorkers[] = {1,   2,   3,   4,   6,   8,    12,   16,   24,   32,   48,   64,   96,   128,
                                 192, 256, 384, 512, 768, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 10000};

bool IsSameRun(const Cell& a, const Cell& b) {
  return a.model == b.model && a.link_bytes_per_second == b.link_bytes_per_second;
}

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

// What a calibration finds out of one model and link.
struct Costs {
  std::optional<double> compute_seconds;
  double link_bytes_per_second = 0;
  double latency_seconds = 0;
  double server_seconds_per_byte = 0;  // to add up a gradient, and again to update
};

// In so many parts a push to a shard and its answer travel, as ps/shard_server_workers.cc has it: only where
// the servers know before whose pushes a step takes.
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

// Simulates as long as nothing interrupts it.
class Simulations {
 public:
  explicit Simulations(const std::function<absl::Status()>& interruption) : interruption_(interruption) {}

  // As a measurement has it: the time of the job by its steps, asynchronous ones by updates.
  std::optional<double> StepSeconds(const simulator::Scenario& scenario) {
    if (status_.ok() && interruption_) status_ = interruption_();
    if (!status_.ok()) return std::nullopt;
    const auto prediction = simulator::Simulate(scenario);
    if (!prediction.ok() || prediction->steps_per_second <= 0) return std::nullopt;
    return 1 / prediction->steps_per_second;
  }

  // What has interrupted it; then it knows of nothing any more.
  const absl::Status& status() const { return status_; }

 private:
  const std::function<absl::Status()>& interruption_;
  absl::Status status_;
};

// The argument between `low` and `high` at which a function that falls, or rises, comes nearest to `target`.
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

class Calibration {
 public:
  // `first`: any measurement of the model and link.
  Calibration(const std::vector<Workload>& workloads, const Results& results, size_t first,
              Simulations* simulations)
      : workloads_(workloads), results_(results), first_(first), simulations_(*simulations) {
    FindLatency();
    FindCompute();
    if (costs_.compute_seconds) FindBandwidth();
    if (costs_.link_bytes_per_second > 0) FindServerCosts();
  }

  bool is_possible() const { return costs_.link_bytes_per_second > 0; }
  bool knows_servers() const { return server_cell_.has_value(); }
  bool used(size_t i) const { return compute_cell_ == i || link_cell_ == i || server_cell_ == i; }
  const Costs& costs() const { return costs_; }

  // Of the links; 0: not known, or the allreduce that says so took hardly more than computing.
  double MeasuredRate(double noise) const {
    if (!link_cell_) return 0;
    const double step_seconds = At(*link_cell_).median_step_seconds();
    const bool is_more = step_seconds - costs_.compute_seconds.value() > noise * step_seconds;
    return is_more ? costs_.link_bytes_per_second : 0;
  }

 private:
  const Measurement& At(size_t i) const { return results_.measurements[i]; }

  // The one with the fewest workers, and servers, of those that fit.
  std::optional<size_t> Smallest(const std::function<bool(const Cell&)>& fits) const {
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

  void FindLatency() {
    for (const Link& link : results_.links) {
      if (link.bytes_per_second != At(first_).cell.link_bytes_per_second) continue;
      costs_.latency_seconds = link.latency_seconds.value_or(0);
    }
  }

  void FindCompute() {
    if (results_.compute_seconds_per_step > 0) {
      costs_.compute_seconds = results_.compute_seconds_per_step;
      return;
    }
    compute_cell_ =
        Smallest([](const Cell& cell) { return cell.workers == 1 && cell.strategy == Strategy::kAllReduce; });
    if (compute_cell_) costs_.compute_seconds = At(*compute_cell_).median_step_seconds();
  }

  void FindBandwidth() {
    link_cell_ =
        Smallest([](const Cell& cell) { return cell.workers > 1 && cell.strategy == Strategy::kAllReduce; });
    if (!link_cell_) return;
    Costs costs = costs_;
    costs_.link_bytes_per_second =
        Solve(1e4, 1e12, At(*link_cell_).median_step_seconds(), [&](double bytes_per_second) {
          costs.link_bytes_per_second = bytes_per_second;
          return simulations_.StepSeconds(MakeScenario(At(*link_cell_).cell, workloads_[*link_cell_], costs));
        });
  }

  void FindServerCosts() {
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

  const std::vector<Workload>& workloads_;
  const Results& results_;
  const size_t first_;
  Simulations& simulations_;
  Costs costs_;
  std::optional<size_t> compute_cell_, link_cell_, server_cell_;
};

// What the busiest link carries of a step in its busier direction. 0: not known.
double BusBytes(const Cell& cell, const Workload& workload) {
  constexpr double kOneBytePerSecond = 1;  // so that a bound's seconds are bytes
  if (cell.strategy == Strategy::kHybrid) return 0;
  if (cell.strategy == Strategy::kAllReduce) {
    return simulator::RingBoundSeconds(cell.workers, workload.parameter_bytes, kOneBytePerSecond);
  }
  // What is left out of a step need not be there when it is made.
  const int contributors = cell.workers - (cell.strategy == Strategy::kBackupWorkers ? 1 : 0);
  const simulator::ServerTraffic traffic{
      .workers = cell.workers,
      .contributors = contributors,
      .servers = cell.servers,
      .servers_on_workers = cell.servers_on_workers,
      .push_bytes = workload.pushed_bytes,
      // What is pulled besides, at first and in the end, is none of a step.
      .pull_bytes = std::min(workload.pulled_bytes, workload.pushed_bytes),
      .link_bytes_per_second = kOneBytePerSecond};
  // An asynchronous step is the update of one worker.
  if (cell.strategy == Strategy::kAsyncServers) {
    // Nobody has to make as many as the others: the worker beside a server makes them over the loopback.
    if (cell.servers_on_workers) return 0;
    return simulator::AsyncServersBoundSeconds(traffic) / contributors;
  }
  return AnswerParts(cell, workload) > 1 ? simulator::EarlyServersBoundSeconds(traffic)
                                         : simulator::SyncServersBoundSeconds(traffic);
}

// `link_bytes_per_second`: that links without a rate were found to have; 0: not known.
void AddBound(const Workload& workload, double link_bytes_per_second, Measurement* measurement) {
  // Of an Ethernet packet's 1514 bytes 1448 are TCP's.
  double rate = measurement->cell.link_bytes_per_second * 1448 / 1514;
  const double bus_bytes = BusBytes(measurement->cell, workload);
  measurement->bound_link_bytes_per_second.reset();
  if (rate == 0 && link_bytes_per_second > 0 && bus_bytes > 0 && HasNumbers(*measurement)) {
    measurement->bound_link_bytes_per_second = rate = link_bytes_per_second;
  }
  measurement->bound_step_seconds = rate > 0 ? bus_bytes / rate : 0;
}

// What a worker's step takes beyond `compute_seconds`, and the bandwidths that follow. Not where that is no
// more than noise.
void AddBandwidths(const Workload& workload, double compute_seconds, double noise, Measurement* measurement) {
  const Cell& cell = measurement->cell;
  const bool is_alone = cell.strategy == Strategy::kAllReduce && cell.workers == 1;
  const bool is_async = cell.strategy == Strategy::kAsyncServers;
  const double step_seconds = measurement->median_step_seconds() * (is_async ? cell.workers : 1);
  const double seconds = step_seconds - compute_seconds;
  if (is_alone || seconds <= noise * step_seconds) return;
  measurement->communication_seconds = seconds;
  // Rows of tables are no part of the model's bytes.
  if (cell.strategy == Strategy::kHybrid || workload.parameter_bytes <= 0) return;
  measurement->algorithm_bytes_per_second = workload.parameter_bytes / seconds;
  // Asynchronous workers compute while others have the links: no time is that of the busiest link alone.
  const double bus_bytes = BusBytes(cell, workload);
  if (!is_async && bus_bytes > 0) measurement->bus_bytes_per_second = bus_bytes / seconds;
}

// A worker's samples in a step, times those whose gradients make it.
double SamplesPerStep(const Cell& cell, const Workload& workload) {
  const double of_worker = workload.samples_per_step;
  if (cell.strategy == Strategy::kAsyncServers) return of_worker;
  return of_worker * (cell.strategy == Strategy::kBackupWorkers ? cell.workers - 1 : cell.workers);
}

std::optional<Curve> MakeCurve(const Cell& cell, const Workload& workload, const Costs& costs,
                               Simulations* simulations) {
  Curve curve{.cell = cell};
  for (const int workers : kCurveWorkers) {
    Cell at = cell;
    at.workers = workers;
    if (workers == 1 && cell.strategy == Strategy::kBackupWorkers) continue;
    const auto seconds = simulations->StepSeconds(MakeScenario(at, workload, costs));
    if (seconds) curve.points.push_back({workers, SamplesPerStep(at, workload) / *seconds});
  }
  if (curve.points.empty()) return std::nullopt;
  return curve;
}

// Of the points of two curves, those at which another one gets ahead: by so much that it is no accident of
// the simulated steps.
void AddCrossings(const Curve& a, const Curve& b, Results* results) {
  constexpr double kAhead = 1.05;
  int ahead = 0;  // 1: a, -1: b
  for (const Curve::Point& point : a.points) {
    const auto other = std::find_if(b.points.begin(), b.points.end(),
                                    [&](const Curve::Point& of) { return of.workers == point.workers; });
    if (other == b.points.end()) continue;
    const double ratio = point.samples_per_second / other->samples_per_second;
    if (ratio < kAhead && ratio > 1 / kAhead) continue;
    const int now = ratio > 1 ? 1 : -1;
    if (ahead != 0 && now != ahead) {
      Crossing crossing{.slower = now > 0 ? b.cell : a.cell, .faster = now > 0 ? a.cell : b.cell};
      crossing.slower.workers = crossing.faster.workers = point.workers;
      results->crossings.push_back(crossing);
    }
    ahead = now;
  }
}

// The places of the measurements of one model and link.
using Run = std::vector<size_t>;

std::vector<Run> RunsOf(const Results& results) {
  std::vector<Run> runs;
  for (size_t i = 0; i < results.measurements.size(); ++i) {
    const auto run = std::find_if(runs.begin(), runs.end(), [&](const Run& of) {
      return IsSameRun(results.measurements[of.front()].cell, results.measurements[i].cell);
    });
    (run != runs.end() ? *run : runs.emplace_back()).push_back(i);
  }
  return runs;
}

// Rows of tables come and go with the batch: what they cost is not calibrated.
bool CanPredict(const Calibration& calibration, const Cell& cell) {
  return calibration.is_possible() && cell.strategy != Strategy::kHybrid &&
         (cell.servers == 0 || calibration.knows_servers());
}

void PredictCell(const Calibration& calibration, const Workload& workload, double noise,
                 Simulations* simulations, Measurement* measurement) {
  const Costs& costs = calibration.costs();
  AddBound(workload, calibration.MeasuredRate(noise), measurement);
  if (costs.compute_seconds) AddBandwidths(workload, *costs.compute_seconds, noise, measurement);
  if (!CanPredict(calibration, measurement->cell)) return;
  measurement->predicted_step_seconds =
      simulations->StepSeconds(MakeScenario(measurement->cell, workload, costs));
}

// One for each competitor; none where the simulator does not fit what it was calibrated with.
std::vector<Curve> MakeCurves(const Calibration& calibration, const std::vector<Workload>& workloads,
                              const std::vector<Measurement>& all, const Run& run, Simulations* simulations) {
  const auto misses = [&](size_t i) {
    return all[i].is_fitted && std::abs(PredictionError(all[i]).value_or(0)) > kMostMisfit;
  };
  if (std::any_of(run.begin(), run.end(), misses)) return {};
  std::vector<Curve> curves;
  for (const size_t i : run) {
    if (!HasNumbers(all[i]) || !CanPredict(calibration, all[i].cell)) continue;
    const auto is_drawn = [&](const Curve& curve) {
      Cell cell = curve.cell;
      cell.workers = all[i].cell.workers;
      return cell == all[i].cell;
    };
    if (std::any_of(curves.begin(), curves.end(), is_drawn)) continue;
    auto curve = MakeCurve(all[i].cell, workloads[i], calibration.costs(), simulations);
    if (curve) curves.push_back(*std::move(curve));
  }
  return curves;
}

// Of the repetitions' deviations from their mean, each divided by the median.
double RelativeSquares(const Measurement& measurement) {
  const std::vector<double>& all = measurement.step_seconds;
  const double mean = std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
  double squares = 0;
  for (const double seconds : all)
    squares += std::pow((seconds - mean) / measurement.median_step_seconds(), 2);
  return squares;
}

}  // namespace

absl::Status Predict(const std::vector<Workload>& workloads,
                     const std::function<absl::Status()>& interruption, Results* results) {
  Results predicted = *results;
  std::vector<Measurement>& all = predicted.measurements;
  MUSTER_CHECK(workloads.size() == all.size());
  Simulations simulations(interruption);
  std::vector<double> errors;
  for (const Run& run : RunsOf(predicted)) {
    const Calibration calibration(workloads, predicted, run.front(), &simulations);
    for (const size_t i : run) {
      if (!HasNumbers(all[i])) continue;
      PredictCell(calibration, workloads[i], predicted.noise.value_or(0), &simulations, &all[i]);
      all[i].is_fitted = calibration.used(i);
      const std::optional<double> error = PredictionError(all[i]);
      if (error && !all[i].is_fitted) errors.push_back(std::abs(*error));
    }
    std::vector<Curve> curves = MakeCurves(calibration, workloads, all, run, &simulations);
    MUSTER_RETURN_IF_ERROR(simulations.status());
    for (size_t a = 0; a < curves.size(); ++a) {
      for (size_t b = a + 1; b < curves.size(); ++b) AddCrossings(curves[a], curves[b], &predicted);
    }
    std::move(curves.begin(), curves.end(), std::back_inserter(predicted.curves));
  }
  if (!errors.empty()) predicted.median_prediction_error = MedianOf(std::move(errors));
  *results = std::move(predicted);
  return absl::OkStatus();
}

void AddEfficiencyAndNoise(Results* results) {
  double squares = 0, freedom = 0;  // of the noise
  for (Measurement& measurement : results->measurements) {
    measurement.scaling_efficiency = 0;
    if (!HasNumbers(measurement)) continue;
    squares += RelativeSquares(measurement);
    freedom += static_cast<double>(measurement.step_seconds.size()) - 1;
    const Cell& cell = measurement.cell;
    double alone = 0;
    for (const Measurement& other : results->measurements) {
      if (!HasNumbers(other) || !IsSameRun(other.cell, cell) || other.cell.workers != 1) continue;
      alone = std::max(alone, other.samples_per_second);
    }
    if (alone > 0) measurement.scaling_efficiency = measurement.samples_per_second / (cell.workers * alone);
  }
  results->noise.reset();
  if (freedom > 0) results->noise = std::sqrt(squares / freedom);
}

}  // namespace muster::bench
