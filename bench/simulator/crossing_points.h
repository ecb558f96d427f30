// Crossing points: at how many workers, or which rate of the links, another configuration becomes the faster
// one.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "bench/simulator/simulator.h"

namespace muster::simulator {

/// A configuration of a job as a function of what is varied.
using ScenarioAt = std::function<Scenario(double)>;

struct SweepPoint {
  double at = 0;  // workers, or bytes per second
  Prediction first;
  Prediction second;
};

/// Fails as Simulate.
absl::StatusOr<std::vector<SweepPoint>> Sweep(std::span<const double> points, const ScenarioAt& first,
                                              const ScenarioAt& second);

struct CrossingPoint {
  double before = 0;   // the last point at which the other one was faster
  double after = 0;    // the first one at which this one is
  double between = 0;  // where both are equally fast if the ratio of their speeds changes evenly in the
                       // logarithm of what is varied
  bool second_is_faster = false;  // from there on
};

/// In gradients per second. `sweep` by ascending `at`, more than 0. Points at which both are equally fast lie
/// between those where one is ahead.
std::vector<CrossingPoint> CrossingPoints(std::span<const SweepPoint> sweep);

}  // namespace muster::simulator
