// ComputeTimes: how long each worker computes in each step. A function of (seed, worker, step), so that
// strategies and clusters that are compared meet the same stragglers.
#pragma once

#include <cstdint>

#include "bench/simulator/scenario.h"

namespace muster::simulator {

/// `compute` lives longer.
class ComputeTimes {
 public:
  ComputeTimes(const Compute& compute, uint64_t seed) : compute_(compute), seed_(seed) {}

  double Seconds(int worker, int64_t step) const;

  /// Of the samples, without any straggler.
  double MeanSampleSeconds() const;

 private:
  const Compute& compute_;
  const uint64_t seed_;
};

}  // namespace muster::simulator
