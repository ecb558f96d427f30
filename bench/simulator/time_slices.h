// TimeSlices: the job of server_simulation.h, done in the plainest way, for tests to compare with. Time goes
// on in small slices; every flow from a worker to a shard is there by itself, with its max-min share of the
// links; every shard has a processor of its own. No message costs anything.
//
// Whatever happens is noticed at the end of a slice. A cycle of a worker has seven such things (it has
// computed, its push has left, it has come, the servers agree, the update is made, the answer has left, it
// has come), so a simulation is ahead by about seven slices a step; or by more, as what ends late holds up
// the others on its link.
#pragma once

#include <limits>
#include <vector>

#include "bench/simulator/compute_times.h"
#include "bench/simulator/scenario.h"

namespace muster::simulator {

/// `scenario` has servers and no allreduce, and lives longer.
class TimeSlices {
 public:
  TimeSlices(const Scenario& scenario, double slice_seconds);

  /// When each of the first `updates` was made.
  std::vector<double> Run(int updates);

 private:
  enum class Phase { kComputing, kPushing, kPushed, kWaiting, kAnswered, kPulling, kPulled };
  struct Worker {
    Phase phase = Phase::kPulling;
    double until = 0;  // kComputing, kPushed, kAnswered (async: until its update is made), kPulled
    int step = 0;      // of its parameters
    int own_step = 0;
    std::vector<double> bytes_left;  // by shard, of the push or the pull
    double share = 1;                // of links
    bool has_links = false;          // some of it is not on its own host
    int64_t pulls = 0;               // that have begun
  };
  struct Flow {
    int worker;
    int shard;
    int from_host;
    int to_host;
    double share;
    double rate = 0;
  };

  static constexpr double kNever = std::numeric_limits<double>::infinity();

  int Needed() const;
  int HostOf(int shard) const;
  void BeginTransfer(int worker, Phase phase, double bytes);
  std::vector<Flow> ListFlows() const;
  void Share(std::vector<Flow>* flows) const;
  void MoveBytes();
  void Advance(int worker);
  void Arrive(int worker);
  void MakeStep();
  void UpdateSync();

  const Scenario& scenario_;
  const double slice_seconds_;
  const double push_bytes_;
  const double pull_bytes_;
  const ComputeTimes compute_times_;
  double now_ = 0;
  double processor_free_ = 0;
  int step_ = 0;
  std::vector<Worker> workers_;
  std::vector<int> contributors_;
  bool is_chosen_ = false;     // the open step has its gradients
  double agreed_at_ = kNever;  // by all shards
  double update_at_ = kNever;
  std::vector<double> updates_;
};

}  // namespace muster::simulator
