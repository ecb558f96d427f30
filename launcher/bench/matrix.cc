#include "launcher/bench/matrix.h"

#include <absl/strings/str_split.h>

#include <algorithm>
#include <utility>

#include "inventory/job.h"
#include "launcher/bench/results_view.h"

namespace muster::bench {
namespace {

constexpr char kWorkerLabel[] = "bench-worker", kServerLabel[] = "bench-ps";

struct ModelName {
  std::string name;
  std::string variant;
};

// As in "mnist_cnn:deep".
ModelName Parse(const std::string& model) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(model, absl::MaxSplits(':', 1));
  return {parts.first, parts.second};
}

bool Fits(Strategy strategy, const std::string& model) {
  if (strategy == Strategy::kAllReduce) return !HasTables(model);
  if (strategy == Strategy::kHybrid) return HasTables(model);
  return true;
}

// With one backup of two workers each step is the gradient of a single one: that is not distributed.
int FewestWorkers(Strategy strategy) { return strategy == Strategy::kBackupWorkers ? 3 : 1; }

std::vector<Strategy> StrategiesFor(const MatrixOptions& options, const std::string& model) {
  std::vector<Strategy> all = options.strategies;
  if (all.empty()) {
    all = {Strategy::kAsyncServers, Strategy::kSyncServers, Strategy::kBackupWorkers, Strategy::kAllReduce,
           Strategy::kHybrid};
  }
  std::erase_if(all, [&](Strategy strategy) { return !Fits(strategy, model); });
  return all;
}

absl::Status CheckStrategies(const MatrixOptions& options) {
  for (const Strategy strategy : options.strategies) {
    const auto fits = [&](const std::string& model) { return Fits(strategy, model); };
    if (std::any_of(options.models.begin(), options.models.end(), fits)) continue;
    return InvalidArgument("strategy %s fits no model of these: %s", StrategyName(strategy),
                           strategy == Strategy::kHybrid
                               ? "it is for models with tables, wide_deep"
                               : "models with tables need parameter servers for them");
  }
  return absl::OkStatus();
}

// The job file is what knows models, variants and devices. Its places would tell nobody anything, as nobody
// has written it: what is wrong is the first flag that makes no job with the defaults of the next ones.
absl::Status CheckJob(const Cell& cell, const MatrixOptions& options) {
  const auto check = [&](const MatrixOptions& some, const std::string& flag) -> absl::Status {
    const auto job = ParseJob(JobText(cell, some), "bench", "/");
    if (job.ok()) return absl::OkStatus();
    const std::string message(job.status().message());
    return InvalidArgument("%s: %s", flag, message.substr(message.find(": ") + 2));  // behind the place
  };
  MUSTER_RETURN_IF_ERROR(check({}, "--models " + cell.model));
  MUSTER_RETURN_IF_ERROR(check({.device = options.device}, "--device " + options.device));
  // Those of asynchronous workers add up; the others' ranges are those of the flags.
  return check(options, absl::StrFormat("--steps %d with %s", options.steps, WorkersText(cell.workers)));
}

// All workers begin together, as those of allreduce do: else the rate of servers would be less by the time
// in which the last worker is still to come.
std::string UpdateOf(const Cell& cell) {
  switch (cell.strategy) {
    case Strategy::kAsyncServers:
      return "update: {mode: async, begin_together: true}\n";
    case Strategy::kSyncServers:
      return "update: {mode: sync, begin_together: true}\n";
    case Strategy::kBackupWorkers:
      return absl::StrFormat("update: {mode: sync, aggregate: %d, begin_together: true}\n", cell.workers - 1);
    case Strategy::kAllReduce:
      return "strategy: allreduce\n";
    case Strategy::kHybrid:
      return "strategy: hybrid\n";
  }
  MUSTER_CHECK(false);
}

}  // namespace

double BytesPerSecond(LinkRate rate) { return static_cast<double>(rate.bits_per_second) / 8; }

absl::StatusOr<std::vector<Cell>> MakeMatrix(const MatrixOptions& options, int host_count) {
  MUSTER_RETURN_IF_ERROR(CheckStrategies(options));
  std::vector<Cell> cells;
  for (const std::string& model : options.models) {
    for (const LinkRate link : options.links) {
      for (const int workers : options.workers) {
        for (const int servers : options.servers) {
          for (const Strategy strategy : StrategiesFor(options, model)) {
            if (workers < FewestWorkers(strategy)) continue;
            Cell cell{.strategy = strategy,
                      .model = model,
                      .workers = workers,
                      .servers = UsesServers(strategy) ? servers : 0,
                      .link_bytes_per_second = BytesPerSecond(link)};
            cell.servers_on_workers =
                UsesServers(strategy) && (options.servers_on_workers || workers + servers > host_count);
            if (std::find(cells.begin(), cells.end(), cell) != cells.end()) continue;
            if (workers > host_count) {
              return InvalidArgument("%d workers need as many hosts, and there are %d", workers, host_count);
            }
            MUSTER_RETURN_IF_ERROR(CheckJob(cell, options));
            cells.push_back(cell);
          }
        }
      }
    }
  }
  if (cells.empty()) return InvalidArgument("there is nothing to run: no strategy for so few workers");
  return cells;
}

std::string JobText(const Cell& cell, const MatrixOptions& options) {
  const ModelName model = Parse(cell.model);
  // Each asynchronous gradient is a step of its own.
  const int64_t steps = options.steps * (cell.strategy == Strategy::kAsyncServers ? cell.workers : 1);
  std::string text = absl::StrFormat("name: bench\nmodel: %s\n", model.name);
  if (!model.variant.empty()) text += absl::StrFormat("variant: %s\n", model.variant);
  text += UpdateOf(cell) + "replicas:\n";
  if (cell.servers > 0) {
    text += absl::StrFormat("  ps: {count: %d, on: %s}\n", cell.servers,
                            cell.servers_on_workers ? kWorkerLabel : kServerLabel);
  }
  text += absl::StrFormat("  worker: {count: %d, on: %s, restart: never}\n", cell.workers, kWorkerLabel);
  text += absl::StrFormat("train: {steps: %d, threads: %d, seed: 1, device: \"%s\"", steps, options.threads,
                          options.device);
  if (options.batch_size) text += absl::StrFormat(", batch_size: %d", *options.batch_size);
  if (options.eval_every) text += absl::StrFormat(", eval_every: %d", *options.eval_every);
  return text + "}\n";
}

Inventory HostsFor(const Cell& cell, const Inventory& all) {
  Inventory hosts = all;
  const int own = cell.servers_on_workers ? 0 : cell.servers;
  // Servers of which several share a host: any number of hosts will do.
  hosts.hosts.resize(std::min<size_t>(all.hosts.size(), cell.workers + own));
  for (size_t i = 0; i < hosts.hosts.size(); ++i) {
    hosts.hosts[i].labels = {static_cast<int>(i) < cell.workers ? kWorkerLabel : kServerLabel};
    hosts.hosts[i].slots = 1;  // else one with many takes several workers
  }
  return hosts;
}

}  // namespace muster::bench
