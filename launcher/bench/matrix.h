// What `muster bench` runs: the jobs of its matrix, each as a job file and the hosts for it. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "inventory/inventory.h"
#include "launcher/bench/results.h"
#include "launcher/link_rate.h"

namespace muster::bench {

struct MatrixOptions {
  std::vector<Strategy> strategies;                 // empty: all that fit the model
  std::vector<std::string> models = {"mnist_mlp"};  // or with a variant: "mnist_cnn:deep"
  std::vector<int> workers = {1, 2};
  std::vector<int> servers = {1};
  /// Servers have hosts of their own as long as there are enough; else they are on those of the workers.
  /// True: always there.
  bool servers_on_workers = false;
  std::vector<LinkRate> links = {{}};  // of virtual hosts
  int64_t steps = 200;                 // of one worker
  std::optional<int64_t> batch_size;   // of one worker; unset: the model's
  std::string device = "auto";         // as in job files; "wait:50"
  int threads = 1;                     // of each task
  std::optional<int64_t> eval_every;   // steps; for the time to an accuracy
};

/// By model and link, then number of workers and of servers, then strategy. Each combination that means
/// something, once: strategies without servers do not come again for each number of them. InvalidArgument: a
/// model or strategy that does not exist, a strategy that fits none of the models, more hosts than there are.
absl::StatusOr<std::vector<Cell>> MakeMatrix(const MatrixOptions& options, int host_count);

/// As a job file says it.
std::string JobText(const Cell& cell, const MatrixOptions& options);

/// Those of `all` that the cell runs on, with a label for what. The first are those of the workers.
Inventory HostsFor(const Cell& cell, const Inventory& all);

/// 0: of unknown rate.
double BytesPerSecond(LinkRate rate);

}  // namespace muster::bench
