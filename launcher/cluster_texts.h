// What the tasks of one cluster are told of it when they are started.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "cluster/cluster_spec.h"
#include "launcher/reconciler/messages.h"
#include "proto/job_record.pb.h"

namespace muster {

/// Of "worker:3", as tasks are named in a record.
absl::StatusOr<TaskId> ParseTaskId(const std::string& text);

/// Made once for all of them, since each text names all of them. One thread at a time.
class ClusterTexts {
 public:
  /// From now on they are of the cluster of this start, and of the servers that the job has now. Costs
  /// nothing where they are already.
  absl::Status Follow(const record::JobRecord& record, const reconcile::StartTask& start);

  const ClusterSpec& cluster() const { return cluster_; }
  /// How many tasks on the same host, servers aside, stand before it in the cluster.
  int LocalRankOf(const std::string& task) const;
  /// As ToFlags and ToTfConfig have them.
  std::vector<std::string> FlagsOf(TaskId task) const;
  std::string TfConfigOf(TaskId task) const;
  /// As FormatClusterFile has it.
  const std::string& file() const { return file_; }

 private:
  absl::Status MakeCluster(const reconcile::Cluster& members);

  std::shared_ptr<const reconcile::Cluster> members_;  // of which all this is; null: of none
  uint64_t generation_ = 0;
  std::vector<std::string> servers_;  // addresses of standing ones
  ClusterSpec cluster_;
  std::map<std::string, int> local_ranks_;  // by task
  std::vector<std::string> flags_;          // but for those that name the task
  std::string tf_config_;                   // up to what names the task
  std::string file_;
};

}  // namespace muster
