// Hand-made results for the tests of this folder.
#pragma once

#include <string>

#include "launcher/bench/results.h"

namespace muster::bench {

inline constexpr Strategy kAsync = Strategy::kAsyncServers;
inline constexpr Strategy kSync = Strategy::kSyncServers;
inline constexpr Strategy kAllReduce = Strategy::kAllReduce;

struct CellOptions {
  std::string model = "mnist_mlp";
  int servers = 2;  // but for allreduce
  bool servers_on_workers = false;
  double link_bytes_per_second = 125e6;
};

inline Cell MakeCell(Strategy strategy, int workers, const CellOptions& options = {}) {
  return {.strategy = strategy,
          .model = options.model,
          .workers = workers,
          .servers = strategy == Strategy::kAllReduce ? 0 : options.servers,
          .servers_on_workers = options.servers_on_workers,
          .link_bytes_per_second = options.link_bytes_per_second};
}

/// Each worker does 100 samples a step.
inline Measurement Measured(Strategy strategy, int workers, double samples_per_second,
                            const CellOptions& options = {}) {
  return {.cell = MakeCell(strategy, workers, options),
          .step_seconds = {100.0 * workers / samples_per_second},
          .samples_per_second = samples_per_second,
          .batch_size = 100,
          .sent_bytes_per_step = 2.1e6,
          .received_bytes_per_step = 2.2e6,
          .cpu_seconds_per_step = 0.01};
}

inline Measurement Failed(Strategy strategy, int workers, const std::string& error) {
  return {.cell = MakeCell(strategy, workers), .error = error};
}

/// Every field set, and none to what it is without.
inline Results FullResults() {
  Measurement measurement = Measured(Strategy::kSyncServers, 4, 1000.0 / 3, {.servers_on_workers = true});
  measurement.step_seconds = {0.1, 1.0 / 3, 5e-324, 1.7e308, 0, 3};
  measurement.failures = 2;
  measurement.failure = "worker:3 was lost";
  measurement.scaling_efficiency = 0.9;
  measurement.hosts = {{.host = "host-1",
                        .tasks = "worker:0, ps:0",
                        .busy_processors = 1.5,
                        .sent_bytes_per_second = 11e6,
                        .received_bytes_per_second = 12e6}};
  measurement.communication_seconds = 0.06;
  measurement.algorithm_bytes_per_second = 35e6;
  measurement.bus_bytes_per_second = 52e6;
  measurement.test_accuracy = 0.97;
  measurement.seconds_to_target = 12.5;
  measurement.target_gap_seconds = 0.6;
  measurement.target_error = "worker:2 was lost";
  measurement.bound_step_seconds = 0.01;
  measurement.bound_link_bytes_per_second = 117e6;
  measurement.predicted_step_seconds = 0.11;
  measurement.is_fitted = true;
  return {.created = "2026-11-24 20:40:00 UTC",
          .where = "4 hosts \"here\"\n\t\\ \xc3\xa9",
          .command = "muster bench --models='a & b'",
          .version = "1.2.3",
          .unfinished = "interrupted",
          .steps = 60,
          .compute_seconds_per_step = 0.05,
          .target_accuracy = 0.95,
          .links = {{.bytes_per_second = 125e6, .latency_seconds = 25e-6}},
          .measurements = {measurement, Failed(Strategy::kHybrid, 2, "worker:1 was lost")},
          .curves = {{.cell = MakeCell(Strategy::kAllReduce, 6), .points = {{8, 1234.5}, {1000, 9e9}}}},
          .unpredicted = {{.model = "m", .link_bytes_per_second = 125e6, .why = "no allreduce"}},
          .median_prediction_error = 0.07,
          .noise = 0.02};
}

}  // namespace muster::bench
