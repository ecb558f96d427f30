#include "bench/simulator/compute_times.h"

#include <numeric>

#include "base/random.h"

namespace muster::simulator {

double ComputeTimes::Seconds(int worker, int64_t step) const {
  RandomStream random(seed_, static_cast<uint64_t>(worker) << 32 | static_cast<uint64_t>(step));
  double seconds = compute_.sample_seconds[random.NextBelow(compute_.sample_seconds.size())];
  if (random.NextDouble() < compute_.straggler_probability) seconds *= compute_.straggler_factor;
  if (worker < compute_.slow_workers) seconds *= compute_.slow_factor;
  return seconds;
}

double ComputeTimes::MeanSampleSeconds() const {
  const std::vector<double>& samples = compute_.sample_seconds;
  return std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
}

}  // namespace muster::simulator
