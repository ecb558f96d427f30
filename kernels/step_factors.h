// The numbers that one update of an optimizer has and its elements share.
#pragma once

#include <cstdint>

#include "kernels/optimizer.h"
#include "kernels/optimizer_loops.h"

namespace muster {

/// Counts the updates of one optimizer: the schedule's step is the number of those before. The same bits on
/// every machine. One thread at a time.
class StepFactorSequence {
 public:
  /// A config that is not valid is a bug.
  explicit StepFactorSequence(const OptimizerConfig& config);

  /// Of the next update, with `rate_scale` times its scheduled rate (ftrl takes 1 only); what the kind does
  /// not read means nothing. Every 64th update clears subnormals.
  StepFactors Next(float rate_scale = 1);

  /// As if it had been asked for `updates` of them. Adam's products are made again, as far as they change,
  /// unless that takes back the last one alone.
  void SkipTo(uint64_t updates);

 private:
  // Running products, because pow differs between versions of libm.
  struct Powers {
    uint64_t updates = 0;
    double beta1 = 1;
    double beta2 = 1;
  };

  void Advance();

  OptimizerConfig config_;
  Powers now_;
  Powers before_;  // the last update
};

}  // namespace muster
