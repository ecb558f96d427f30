// The training loop of a worker, and what the chief does besides.
#pragma once

#include "base/clock.h"
#include "base/status.h"
#include "trainer/options.h"

namespace muster {

/// Trains as the options say and, as chief, evaluates, writes the metrics, the result record and the model,
/// and prints progress and "MNIST accuracy: 0.9185" to stdout. `process_start` is where seconds_to_first_step
/// begins.
absl::Status Train(const TrainerOptions& options, TimePoint process_start);

}  // namespace muster
