// What tasks write about themselves (muster-trainer --metrics_file), and the tables of `muster show
// --metrics`.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "launcher/table.h"

namespace muster {

struct MetricSample {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
};

/// Prometheus' text format without times of samples and control characters in labels. InvalidArgument, with
/// the line, where it is something else.
absl::StatusOr<std::vector<MetricSample>> ParseMetrics(std::string_view text);

struct MetricsTables {
  Table workers;  // a row for each worker: how far it is, and the mean time of its steps' parts
  Table shards;   // for each server and shard on it
  Table pushes;   // for each server, shard and worker: what became of its gradients
};

/// `tasks`: by name, in the order of the rows.
MetricsTables MakeMetricsTables(const std::vector<std::pair<std::string, std::vector<MetricSample>>>& tasks);

}  // namespace muster
