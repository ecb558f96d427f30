// What the simulator makes of the cells of a benchmark: calibrated with a few of them, it predicts the
// others, and numbers of workers that nobody has. Pure.
#pragma once

#include <functional>

#include "base/status.h"
#include "launcher/bench/results.h"

namespace muster::bench {

/// What a cell's job moves and does, as its result record and the command line say.
struct Workload {
  Cell cell;
  double parameter_bytes = 0;  // dense
  double pushed_bytes = 0;     // per step, by the chief
  double pulled_bytes = 0;
  double samples_per_step = 0;
  // How long steps computed, in any unit, each of them as likely as the others; empty: not known, all are
  // taken to be alike (ComputeSteps::Factors).
  std::vector<double> compute_factors;
};

/// Adds to each measurement the bound of its bytes and, where the cells allow to calibrate it, the
/// simulator's prediction; and to the results the predictions' error, and why there are none. What it, or
/// AddCurves, added before is gone. By model and link:
///
/// - a step of one worker without servers, in the median of its repetitions, or the wait, is what computing
///   takes;
/// - results->links say what a message takes beside its bytes;
/// - the smallest allreduce of several workers gives the bandwidth that links really have, if it took more
///   beyond computing than chance may (Noise), and no less than the rate that they were given allows; else
///   they have that rate;
/// - the smallest synchronous cell with servers gives what servers do with a byte.
///
/// Where the first is known, communication is the rest of a step, what others are waited for included, and of
/// asynchronous servers the rest of the time from one push of a worker to its next. The algorithm's bandwidth
/// is the model's bytes by it; that of the bus is what the busiest link carries in its busier direction by
/// it, as nccl-tests have it for an allreduce: 2 (n - 1) / n of the model. With synchronous servers it is
/// what the bound counts (bench/simulator/bounds.h): n / k of the model over the link of each of k servers on
/// hosts of their own, in both directions at once, or twice that where pushes travel whole. So it can be
/// compared with the rate of the links in either case. With asynchronous ones there is none, as workers
/// compute while others have the links. They have no bound either where servers are on the workers' hosts:
/// the worker beside a server may make nearly all updates over the loopback.
///
/// `workloads`: of each measurement, by place. Those it was calibrated with, is_fitted, count for no error.
///
/// Links without a rate have bounds, too, where the bandwidth that they really have is known.
void Predict(const std::vector<Workload>& workloads, Results* results);

/// After Predict: adds the curves. None of a model and link of which the simulator misses a cell that it was
/// calibrated with by more than kMostMisfit.
///
/// Workers compute for as long as steps of one worker alone did, each step for itself (compute_factors).
///
/// Simulating thousands of workers takes seconds for each cell. `interruption` is asked between simulations,
/// on the same thread: what it fails with is returned, and `results` are as they were. Empty: nothing
/// interrupts.
absl::Status AddCurves(const std::vector<Workload>& workloads,
                       const std::function<absl::Status()>& interruption, Results* results);

/// Of each measurement, how its samples/s compare with those of one worker: by whichever strategy was fastest
/// with one, so that all have the same to compare with. And noise (PooledDeviation).
void AddEfficiencyAndNoise(Results* results);

}  // namespace muster::bench
