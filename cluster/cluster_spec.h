// Who is in a job: the addresses of its tasks, in all the spellings that TensorFlow's users know.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace muster {

enum class Role { kPs, kWorker, kChief };

std::string RoleName(Role role);  // "ps", "worker", "chief"

/// "ps", "worker", "chief" or its older name "master"; InvalidArgument otherwise.
absl::StatusOr<Role> ParseRole(const std::string& name);

struct TaskId {
  Role role = Role::kWorker;
  int index = 0;
  friend auto operator<=>(const TaskId&, const TaskId&) = default;
};

std::string TaskName(TaskId task);  // "worker:3"

/// TensorFlow's ClusterSpec: "host:port" of each task, by role and index.
struct ClusterSpec {
  std::vector<std::string> ps;
  std::vector<std::string> workers;
  std::vector<std::string> chief;  // none or one

  const std::vector<std::string>& addresses(Role role) const;

  /// Tasks that train: the chief, if there is one, and the workers.
  int rank_count() const { return static_cast<int>(chief.size() + workers.size()); }

  friend bool operator==(const ClusterSpec&, const ClusterSpec&) = default;
};

/// The place of a training task among them: a chief comes first, then the workers by index. Not for a ps.
int RankOf(const ClusterSpec& cluster, TaskId task);
TaskId TaskOfRank(const ClusterSpec& cluster, int rank);

/// The task that evaluates, writes metrics and saves the model: the chief, or worker:0 where there is none.
bool IsChief(const ClusterSpec& cluster, TaskId task);

/// What a process was told about its cluster. Empty strings: not given.
struct ClusterFlags {
  std::string job_name;           // --job_name
  std::optional<int> task_index;  // --task_index, --task_id
  std::string ps_hosts;           // --ps_hosts=h:p,h:p
  std::string worker_hosts;       // --worker_hosts=h:p,h:p
  std::string cluster_spec;       // --cluster_spec=worker|h:p;h:p,ps|h:p
  std::string tf_config;          // the TF_CONFIG environment variable
  bool is_standing = false;       // --standing: a server without workers, which come later
};

struct TaskInCluster {
  TaskId task;
  ClusterSpec cluster;
};

/// Reads the flags; what they do not give is taken from TF_CONFIG. InvalidArgument names the flag (or the
/// place in TF_CONFIG): an address that is not host:port, an address used twice, a task that is not in its
/// cluster, a cluster without workers (a standing one: with some),
/// --cluster_spec together with --ps_hosts or --worker_hosts.
absl::StatusOr<TaskInCluster> ResolveTask(const ClusterFlags& flags);

/// The four TensorFlow flags for `task`. A chief travels in --cluster_spec, which --ps_hosts and
/// --worker_hosts cannot name.
std::vector<std::string> ToFlags(const ClusterSpec& cluster, TaskId task);

/// The value of TF_CONFIG for `task`.
std::string ToTfConfig(const ClusterSpec& cluster, TaskId task);

/// Where a worker is said to be that has not joined its cluster yet, while one of a higher index has: under a
/// name that no host ever has (RFC 6761).
std::string AddressOfAbsent(TaskId task);  // "worker-2.invalid:1"
bool IsAbsent(const std::string& address);

/// Checks "host:port" or "[v6]:port" with a port of 1-65535.
absl::Status CheckAddress(const std::string& address);

/// InvalidArgument names the first two tasks that have one address.
absl::Status CheckAddressesDiffer(const ClusterSpec& cluster);

/// The part before the port, without brackets.
std::string HostOfAddress(const std::string& address);

}  // namespace muster
