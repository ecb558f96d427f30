#include "launcher/bench/prediction.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "bench/simulator/bounds.h"
#include "launcher/bench/calibration.h"
#include "launcher/bench/noise.h"
#include "launcher/bench/results_view.h"

namespace muster::bench {
namespace {

constexpr int kCurveWorkers[] = {1,   2,   3,   4,   6,   8,    12,   16,   24,   32,   48,   64,   96,   128,
                                 192, 256, 384, 512, 768, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 10000};

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
  double rate = Goodput(measurement->cell.link_bytes_per_second);
  const double bus_bytes = BusBytes(measurement->cell, workload);
  if (rate == 0 && link_bytes_per_second > 0 && bus_bytes > 0) {
    measurement->bound_link_bytes_per_second = rate = link_bytes_per_second;
  }
  measurement->bound_step_seconds = rate > 0 ? bus_bytes / rate : 0;
}

// What a worker's step takes beyond `compute_seconds`, and the bandwidths that follow. Not where that is no
// more of a step than `chance`.
void AddBandwidths(const Workload& workload, double compute_seconds, double chance,
                   Measurement* measurement) {
  const Cell& cell = measurement->cell;
  const bool is_alone = cell.strategy == Strategy::kAllReduce && cell.workers == 1;
  const bool is_async = cell.strategy == Strategy::kAsyncServers;
  const double step_seconds = measurement->median_step_seconds() * (is_async ? cell.workers : 1);
  const double seconds = step_seconds - compute_seconds;
  if (is_alone || seconds <= chance * step_seconds) return;
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
    const auto seconds = simulations->StepSeconds(MakeUnevenScenario(at, workload, costs));
    if (seconds) curve.points.push_back({workers, SamplesPerStep(at, workload) / *seconds});
  }
  if (curve.points.empty()) return std::nullopt;
  return curve;
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

// `is_wait`: the computation is one, of which one worker alone would be told what it was told.
void PredictCell(const Calibration& calibration, const Workload& workload, bool is_wait,
                 Simulations* simulations, Measurement* measurement) {
  const Costs& costs = calibration.costs();
  AddBound(workload, calibration.measured_rate(), measurement);
  if (costs.compute_seconds) {
    AddBandwidths(workload, *costs.compute_seconds, calibration.ChanceOf(*measurement), measurement);
  }
  const Cell& cell = measurement->cell;
  if (!CanPredict(calibration, cell)) return;
  if (is_wait && cell.workers == 1 && cell.strategy == Strategy::kAllReduce) return;
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

// What Predict and AddCurves make, of fewer repetitions maybe.
void Forget(Results* results) {
  for (Measurement& measurement : results->measurements) {
    measurement.communication_seconds.reset();
    measurement.algorithm_bytes_per_second.reset();
    measurement.bus_bytes_per_second.reset();
    measurement.bound_step_seconds = 0;
    measurement.bound_link_bytes_per_second.reset();
    measurement.predicted_step_seconds.reset();
    measurement.is_fitted = false;
  }
  results->curves.clear();
  results->unpredicted.clear();
  results->median_prediction_error.reset();
}

}  // namespace

void Predict(const std::vector<Workload>& workloads, Results* results) {
  std::vector<Measurement>& all = results->measurements;
  MUSTER_CHECK(workloads.size() == all.size());
  Forget(results);
  const std::function<absl::Status()> nothing;
  Simulations simulations(nothing);
  std::vector<double> errors;
  for (const Run& run : RunsOf(*results)) {
    const Calibration calibration(workloads, *results, run.front(), &simulations);
    for (const size_t i : run) {
      if (!HasNumbers(all[i])) continue;
      PredictCell(calibration, workloads[i], results->compute_seconds_per_step.has_value(), &simulations,
                  &all[i]);
      all[i].is_fitted = calibration.used(i);
      const std::optional<double> error = PredictionError(all[i]);
      if (error && !all[i].is_fitted) errors.push_back(std::abs(*error));
    }
    if (calibration.why_no_rate().empty()) continue;
    const Cell& cell = all[run.front()].cell;
    results->unpredicted.push_back({.model = cell.model,
                                    .link_bytes_per_second = cell.link_bytes_per_second,
                                    .why = calibration.why_no_rate()});
  }
  if (!errors.empty()) results->median_prediction_error = MedianOf(std::move(errors));
}

absl::Status AddCurves(const std::vector<Workload>& workloads,
                       const std::function<absl::Status()>& interruption, Results* results) {
  MUSTER_CHECK(workloads.size() == results->measurements.size());
  Results with = *results;
  Simulations simulations(interruption);
  for (const Run& run : RunsOf(with)) {
    const Calibration calibration(workloads, with, run.front(), &simulations);
    std::vector<Curve> curves = MakeCurves(calibration, workloads, with.measurements, run, &simulations);
    MUSTER_RETURN_IF_ERROR(simulations.status());
    std::move(curves.begin(), curves.end(), std::back_inserter(with.curves));
  }
  *results = std::move(with);
  return absl::OkStatus();
}

void AddEfficiencyAndNoise(Results* results) {
  for (Measurement& measurement : results->measurements) {
    measurement.scaling_efficiency = 0;
    if (!HasNumbers(measurement)) continue;
    const Cell& cell = measurement.cell;
    double alone = 0;
    for (const Measurement& other : results->measurements) {
      if (!HasNumbers(other) || !IsSameRun(other.cell, cell) || other.cell.workers != 1) continue;
      alone = std::max(alone, other.samples_per_second);
    }
    if (alone > 0) measurement.scaling_efficiency = measurement.samples_per_second / (cell.workers * alone);
  }
  results->noise = PooledDeviation(*results);
}

}  // namespace muster::bench
