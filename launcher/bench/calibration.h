// Calibration: the numbers with which the simulator comes to what a few of the cells took.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/simulator/simulator.h"
#include "launcher/bench/noise.h"
#include "launcher/bench/prediction.h"
#include "launcher/bench/results.h"

namespace muster::bench {

/// They have a model and a rate of links in common.
bool IsSameRun(const Cell& a, const Cell& b);

/// What TCP gets of a link.
double Goodput(double link_bytes_per_second);

/// In so many parts a push to a shard and its answer travel, as ps/shard_server_workers.cc has it: only where
/// the servers know before whose pushes a step takes.
int AnswerParts(const Cell& cell, const Workload& workload);

/// What a calibration finds out of one model and link.
struct Costs {
  std::optional<double> compute_seconds;
  std::vector<double> compute_samples;  // of which it is the mean; empty: all steps are alike
  double link_bytes_per_second = 0;     // 0: not known
  double latency_seconds = 0;
  double server_seconds_per_byte = 0;  // to add up a gradient, and again to update
};

/// In which all steps compute equally long. `costs.compute_seconds` is known.
simulator::Scenario MakeScenario(const Cell& cell, const Workload& workload, const Costs& costs);

/// The same where each step computes for as long as one of the samples.
simulator::Scenario MakeUnevenScenario(const Cell& cell, const Workload& workload, const Costs& costs);

/// Simulates as long as nothing interrupts it. One thread at a time.
class Simulations {
 public:
  /// `interruption` lives longer; it may be empty.
  explicit Simulations(const std::function<absl::Status()>& interruption) : interruption_(interruption) {}

  /// As a measurement has it: the time of the job by its steps, asynchronous ones by updates.
  std::optional<double> StepSeconds(const simulator::Scenario& scenario);

  /// What has interrupted it; then it knows of nothing any more.
  const absl::Status& status() const { return status_; }

 private:
  const std::function<absl::Status()>& interruption_;
  absl::Status status_;
};

/// Of one model and link; prediction.h says which cells. Immutable.
class Calibration {
 public:
  /// `first`: any measurement of the model and link. All arguments live longer.
  Calibration(const std::vector<Workload>& workloads, const Results& results, size_t first,
              Simulations* simulations);

  bool is_possible() const { return costs_.link_bytes_per_second > 0; }
  bool knows_servers() const { return server_cell_.has_value(); }
  bool used(size_t i) const { return compute_cell_ == i || link_cell_ == i || server_cell_ == i; }
  const Costs& costs() const { return costs_; }
  /// So much of its step, as a fraction, may be taken for more than computing by chance.
  double ChanceOf(const Measurement& measurement) const;

  /// Why the links' rate is not known, though there is what should tell it; empty: it is, or there is not.
  const std::string& why_no_rate() const { return why_no_rate_; }
  /// Of the links; 0: it was not measured.
  double measured_rate() const { return link_cell_ ? costs_.link_bytes_per_second : 0; }

 private:
  const Measurement& At(size_t i) const { return results_.measurements[i]; }
  std::optional<size_t> Smallest(const std::function<bool(const Cell&)>& fits) const;
  void FindLatency();
  void FindCompute();
  bool TookMoreThanComputing(size_t i) const;
  std::optional<double> BandwidthOf(size_t i);
  void FindBandwidth();
  void FindServerCosts();

  const std::vector<Workload>& workloads_;
  const Results& results_;
  const Noise noise_;
  const size_t first_;
  Simulations& simulations_;
  Costs costs_;
  std::optional<size_t> compute_cell_, link_cell_, server_cell_;
  std::string why_no_rate_;
};

}  // namespace muster::bench
