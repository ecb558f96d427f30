#include "bench/simulator/crossing_points.h"

#include <cmath>

namespace muster::simulator {
namespace {

// More than 0 where the second one is faster.
double Lead(const SweepPoint& point) {
  return std::log(point.second.gradients_per_second / point.first.gradients_per_second);
}

}  // namespace

absl::StatusOr<std::vector<SweepPoint>> Sweep(std::span<const double> points, const ScenarioAt& first,
                                              const ScenarioAt& second) {
  std::vector<SweepPoint> sweep;
  for (const double at : points) {
    SweepPoint point{.at = at};
    MUSTER_ASSIGN_OR_RETURN(point.first, Simulate(first(at)));
    MUSTER_ASSIGN_OR_RETURN(point.second, Simulate(second(at)));
    sweep.push_back(point);
  }
  return sweep;
}

std::vector<CrossingPoint> CrossingPoints(std::span<const SweepPoint> sweep) {
  std::vector<CrossingPoint> crossings;
  const SweepPoint* before = nullptr;  // the last one at which either is ahead
  for (const SweepPoint& point : sweep) {
    const double lead = Lead(point);
    if (lead == 0) continue;
    if (before != nullptr && (Lead(*before) > 0) != (lead > 0)) {
      const double part = Lead(*before) / (Lead(*before) - lead);
      crossings.push_back({.before = before->at,
                           .after = point.at,
                           .between = before->at * std::pow(point.at / before->at, part),
                           .second_is_faster = lead > 0});
    }
    before = &point;
  }
  return crossings;
}

}  // namespace muster::simulator
