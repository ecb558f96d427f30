// ParameterServer: the process of a ps task: streams of frames over gRPC, and the shards that they are for.
// That is one; with replication also the one before it, as its backup at first.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/cluster_view.h"
#include "ps/server_metrics.h"
#include "ps/tls.h"
#include "ps/transport.h"

namespace muster {

struct ParameterServerOptions {
  ClusterSpec cluster;
  std::shared_ptr<const ClusterView> view;  // null: all stay where `cluster` says
  int shard_index = 0;
  /// Where to listen instead of the host in the cluster: "0.0.0.0".
  std::string bind_host;
  uint64_t generation = 0;  // of the cluster; a worker of another one is refused
  /// It stands before its job: `cluster` has no workers. The first one to join says how many there are, and
  /// which generation this is. One of a later generation ends the job.
  bool is_standing = false;
  uint64_t latest_job = 0;          // standing: that has come to this server; earlier ones are refused
  bool latest_job_is_over = false;  // it has ended well
  uint64_t incarnation = 0;         // of this task
  /// As CoordinatorOptions has them; of ps:0.
  Duration worker_timeout = std::chrono::minutes(10);
  Duration worker_lease = std::chrono::seconds(60);
  bool begins_together = false;
  /// Of the others: how long ps:0 may be gone once it was there.
  Duration server_timeout = std::chrono::seconds(60);
  std::optional<TlsIdentity> tls;
  Transport transport = Transport::kAuto;
  /// Async: what a shard holds of pushes on their way to it and of older parameters on theirs to workers,
  /// rows and copies in 16 bits aside. Where gradients of all workers would be more, large ones take turns.
  int64_t push_budget_bytes = 20 << 20;
  /// Sync, all workers, in whole numbers: of the parts of a gradient that is answered while it still comes
  /// (ps/early_update.h); larger than that goes in parts. Unset: what suits its size.
  std::optional<int64_t> part_bytes;
  /// Where this shard's checkpoints are; empty: there are none, and a server that is lost ends the job. Of a
  /// standing server they are in its folder job-N, N the generation; those of earlier jobs are removed.
  std::string checkpoint_dir;
  uint64_t checkpoint_every = 1000;  // steps; ps:0's counts
  int keep_checkpoints = 3;
  /// Each server's checkpoints are at another server, too (ps/checkpoint_copies.h). At least two servers.
  bool checkpoint_buddy = false;
  /// There is a journal beside the checkpoints: a process that was killed comes back with all that it had
  /// acknowledged, and nobody goes back.
  bool journal = false;
  /// Each shard is on two servers, this one and the next: what one has acknowledged, the other has, too. At
  /// least two servers; no checkpoints.
  bool replicated = false;
  Duration replica_silence =
      std::chrono::milliseconds(800);  // of the other, after which it is taken for lost
};

/// Any thread may call any method.
class ParameterServer {
 public:
  /// Listens. AlreadyExists: the port is taken. Unavailable: the address is not one of this machine.
  static absl::StatusOr<std::unique_ptr<ParameterServer>> Start(const ParameterServerOptions& options);

  /// Breaks all streams and frees the port.
  virtual ~ParameterServer() = default;

  /// Serves until all workers have finished (OK), or until the job cannot go on (the cause; Aborted: there is
  /// a later one). Waiting for the first worker has no deadline: a server may stand before its job. Deadlines
  /// are kept, and the servers tell each other what they have, only while this runs.
  virtual absl::Status Wait() = 0;

  /// After a Wait that has returned OK. DataLoss: what the job has ended with is in no checkpoint, though it
  /// was to be, and why. The job has ended well all the same.
  virtual absl::Status last_checkpoint() const = 0;

  /// Breaks all streams, as if the process had ended, and lets Wait return.
  virtual void Kill() = 0;

  /// Standing: the generation of its job, once it has one, and of the latest that has come to it, which may
  /// be another one's that has ended its own.
  virtual std::optional<uint64_t> job() const = 0;
  virtual uint64_t latest_job() const = 0;

  /// Replicated shards of which it is the primary and has a backup, or is the backup and has its primary: of
  /// each shard there are two once nothing is lost with one server.
  virtual int shards_in_touch() const = 0;

  /// As of now.
  virtual ServerMetrics metrics() const = 0;
};

/// Stands: serves one job after the other. `serve` waits for the end of one, as Wait does, and returns it.
/// Returns what Start fails with, or `serve` before anybody was served; after Kill, Cancelled.
absl::Status ServeJobs(ParameterServerOptions options,
                       const std::function<absl::Status(ParameterServer&)>& serve);

}  // namespace muster
