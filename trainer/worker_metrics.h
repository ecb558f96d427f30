// WorkerMetrics: what a worker counts and times, for whoever watches it.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/histogram.h"
#include "ps/exchange_times.h"

namespace muster {

inline constexpr double kSecondsBounds[] = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                                            0.05,   0.1,     0.25,   0.5,   1,      2.5,   5,    10};

struct WorkerMetrics {
  uint64_t step = 0;          // of the parameters
  uint64_t local_steps = 0;   // of this process
  bool is_computing = false;  // and not waiting for others, which is bounded elsewhere
  uint64_t samples = 0;       // of this worker's own batches
  std::optional<double> loss;
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  std::vector<Duration> waiting;  // by server, how long it has been waited for
  // The parts of each step, in seconds.
  Histogram compute{kSecondsBounds};
  Histogram push{kSecondsBounds};
  Histogram wait{kSecondsBounds};
  Histogram pull{kSecondsBounds};
};

/// What one step adds to them.
struct StepMetrics {
  uint64_t step = 0;
  uint64_t samples = 0;
  double loss = 0;
  uint64_t sent_bytes = 0;  // since the beginning
  uint64_t received_bytes = 0;
  Duration compute{};
  ExchangeTimes exchange;
};

/// Tells a worker that goes on from one that is stuck in a step of its own. One thread at a time.
class StepWatch {
 public:
  /// Whether it has made steps since the last call, or waits for others, who may be to blame.
  bool GoesOn(const WorkerMetrics& worker) {
    const bool has_stepped = steps_ != worker.local_steps;
    steps_ = worker.local_steps;
    return has_stepped || !worker.is_computing;
  }

 private:
  std::optional<uint64_t> steps_;
};

/// Any thread may call any method.
class WorkerRecord {
 public:
  void Add(const StepMetrics& step) {
    const std::lock_guard lock(mutex_);
    metrics_.step = step.step;
    ++metrics_.local_steps;
    metrics_.samples += step.samples;
    metrics_.loss = step.loss;
    metrics_.sent_bytes = step.sent_bytes;
    metrics_.received_bytes = step.received_bytes;
    metrics_.compute.Add(ToSeconds(step.compute));
    metrics_.push.Add(ToSeconds(step.exchange.push));
    metrics_.wait.Add(ToSeconds(step.exchange.wait));
    metrics_.pull.Add(ToSeconds(step.exchange.pull));
  }

  void SetComputing(bool is_computing) {
    const std::lock_guard lock(mutex_);
    metrics_.is_computing = is_computing;
  }

  void GoOnFrom(uint64_t step) {
    const std::lock_guard lock(mutex_);
    metrics_.step = step;
  }

  WorkerMetrics metrics() const {
    const std::lock_guard lock(mutex_);
    return metrics_;
  }

 private:
  mutable std::mutex mutex_;
  WorkerMetrics metrics_;
};

}  // namespace muster
