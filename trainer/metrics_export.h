// MetricsExport: a task's metrics in Prometheus' text format, over HTTP and in a file. docs/ARCHITECTURE.md
// lists their names.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "cluster/cluster_spec.h"
#include "ps/server_metrics.h"
#include "trainer/training_usage.h"
#include "trainer/worker_metrics.h"

namespace muster {

struct MetricsTargets {
  /// "host:port" of this machine that answers GET /metrics. There is no TLS and no password: whoever reaches
  /// it may read. Empty: none.
  std::string address;
  /// Replaced once a second, and at the end. What keeps it from being written is said once. Empty: none.
  std::string file;
  /// Its time is set to now once a second, but not while a step takes long that nobody else is to blame for:
  /// who watches it takes the task for hung. Empty: none.
  std::string progress_file;
};

/// Works until it is gone.
class MetricsExport {
 public:
  /// `read` is called by threads of its own, one at a time or not, as long as it lives; `meter` lives longer.
  /// Unavailable, with the address: it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<MetricsExport>> Begin(const MetricsTargets& targets, TaskId task,
                                                              const UsageMeter& meter,
                                                              std::function<WorkerMetrics()> read);
  /// Likewise, of a server of this cluster.
  static absl::StatusOr<std::unique_ptr<MetricsExport>> Begin(const MetricsTargets& targets, TaskId task,
                                                              const ClusterSpec& cluster,
                                                              const UsageMeter& meter,
                                                              std::function<ServerMetrics()> read);
  virtual ~MetricsExport() = default;
};

}  // namespace muster
