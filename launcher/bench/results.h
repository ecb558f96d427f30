// What `muster bench` has measured, and what follows from it: written as results.json, shown as a table and
// as report.html.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace muster::bench {

enum class Strategy { kAsyncServers, kSyncServers, kBackupWorkers, kAllReduce, kHybrid };

/// "ps_async", "ps_sync", "ps_backup", "allreduce", "hybrid"
std::string StrategyName(Strategy strategy);
absl::StatusOr<Strategy> ParseStrategy(const std::string& name);

/// One job of the matrix.
struct Cell {
  Strategy strategy = Strategy::kAllReduce;
  std::string model;  // "mnist_cnn deep"
  int workers = 1;
  int servers = 0;                   // parameter servers; 0 with allreduce
  bool servers_on_workers = false;   // server j with worker j mod workers; else on hosts of their own
  double link_bytes_per_second = 0;  // of each host, in each direction; 0: whatever the network is
  friend bool operator==(const Cell&, const Cell&) = default;
};

/// Of a host while a job trained on it, in the mean of the repetitions.
struct HostUse {
  std::string host;
  std::string tasks;           // "worker:0, ps:0"
  double busy_processors = 0;  // with its tasks: 1.5 is one and half of another
  // Over the interface that has the tasks' address, whoever sent or received them. Unset: none has it, as on
  // the loopback.
  std::optional<double> sent_bytes_per_second;
  std::optional<double> received_bytes_per_second;
  friend bool operator==(const HostUse&, const HostUse&) = default;
};

/// Of one cell. Rates are of the whole job. Numbers are finite and not negative.
struct Measurement {
  Cell cell;
  std::string error;    // why it has no numbers; empty: it has
  int failures = 0;     // of its jobs, though others may have numbers
  std::string failure;  // why the last one of those failed; empty: none has
  // Of each repetition: training time divided by steps, without the first one; async: by updates.
  std::vector<double> step_seconds;
  double samples_per_second = 0;   // median of the repetitions
  double batch_size = 0;           // samples of a worker's step; 0: not known
  double scaling_efficiency = 0;   // samples/s divided by workers times those of one; 0: not measured
  double sent_bytes_per_step = 0;  // by the chief worker
  double received_bytes_per_step = 0;
  double cpu_seconds_per_step = 0;  // of all tasks together; 0: not known
  std::vector<HostUse> hosts;       // those with workers first
  // What a step takes of a worker beyond computing; unset: not known, or no more than chance may be. And the
  // bytes of the model by it, and those that the busiest link carries in its busier direction.
  std::optional<double> communication_seconds;
  std::optional<double> algorithm_bytes_per_second;
  std::optional<double> bus_bytes_per_second;
  std::optional<double> test_accuracy;
  std::optional<double> seconds_to_target;  // to the accuracy asked for; unset: not reached, or not asked for
  double target_gap_seconds = 0;  // since the evaluation before, or since training began; 0: not reached
  std::string target_error;  // why it is not known whether that was reached; empty: it is, or not asked for
  double bound_step_seconds = 0;  // the least time of its bytes on the links; 0: links of unknown rate
  // Of the links that it was calculated with, where they were given no rate and it was measured: bytes of the
  // model, without headers. Unset: the links have one, or nothing is known.
  std::optional<double> bound_link_bytes_per_second;
  std::optional<double> predicted_step_seconds;  // by the simulator
  bool is_fitted = false;  // the simulator was calibrated with it: what it says of it is no prediction

  double median_step_seconds() const;  // 0 without repetitions
  friend bool operator==(const Measurement&, const Measurement&) = default;
};

/// Before `failure`, where the job was one that times the way to the target.
inline constexpr char kToTarget[] = "to target: ";

/// By how much of its measured step the simulator may miss a cell that it was fitted to. Of one that it
/// misses by more there are no curves.
inline constexpr double kMostMisfit = 0.02;

/// A curve of the simulator beyond what was measured.
struct Curve {
  Cell cell;  // but for the number of workers
  struct Point {
    int workers = 0;
    double samples_per_second = 0;
    friend bool operator==(const Point&, const Point&) = default;
  };
  std::vector<Point> points;
  friend bool operator==(const Curve&, const Curve&) = default;
};

/// What was found out about the links of one rate.
struct Link {
  double bytes_per_second = 0;            // as in cells
  std::optional<double> latency_seconds;  // one way: half of a round trip of a byte between two hosts
  friend bool operator==(const Link&, const Link&) = default;
};

/// A model over links of one rate of which the simulator says nothing.
struct Unpredicted {
  std::string model;
  double link_bytes_per_second = 0;  // as in cells
  std::string why;
  friend bool operator==(const Unpredicted&, const Unpredicted&) = default;
};

struct Results {
  static constexpr int kSchemaVersion = 7;
  std::string created;     // "2026-11-24 20:40:00 UTC"
  std::string where;       // "4 virtual hosts on one machine with 2 cores", or the inventory
  std::string command;     // that made them, as a shell takes it
  std::string version;     // of muster; empty: not known
  std::string unfinished;  // why jobs, or curves, are missing: "interrupted"; empty: all is there
  int steps = 0;           // of each worker; 0: not known
  std::optional<double> compute_seconds_per_step;  // a wait in place of the computation; unset: they computed
  std::optional<double> target_accuracy;
  std::vector<Link> links;
  std::vector<Measurement> measurements;
  std::vector<Curve> curves;
  std::vector<Unpredicted> unpredicted;
  std::optional<double> median_prediction_error;  // of the cells that are not fitted, 0.1 for 10 %
  // Standard deviation of a repetition's step time by the median of its cell, likewise (PooledDeviation);
  // unset: too little was repeated.
  std::optional<double> noise;
  friend bool operator==(const Results&, const Results&) = default;
};

/// Of one number at least.
double MedianOf(std::vector<double> values);

/// An object with `schema_version`, `is_complete` and every field under its own name; null for what is unset,
/// and for a number that is not finite. Bytes that are no UTF-8 become U+FFFD.
std::string ToJson(const Results& results);

}  // namespace muster::bench
