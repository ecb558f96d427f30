// ElasticGroup: the group of an allreduce job, made anew of those who are left or have come whenever a rank
// is lost or returns. Its ranks meet as a native group; if they can, they go on by their GPUs.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cluster/cluster_view.h"
#include "cluster/listening.h"
#include "cluster/rendezvous.h"
#include "collective/collective.h"
#include "collective/gpu_group.h"
#include "collective/native.h"
#include "collective/peer_listener.h"
#include "collective/rendezvous_client.h"
#include "collective/rendezvous_server.h"

namespace muster {

struct ElasticGroupOptions {
  GroupIdentity all;                        // the job's ranks at first; generation: of the cluster
  std::shared_ptr<const ClusterView> view;  // null: all stay where they are, and nobody comes or goes
  std::string bind_host;                    // where this rank listens; empty: at its address
  uint64_t incarnation = 0;
  std::optional<int> min_ranks, first_ranks;  // as RendezvousOptions
  Duration connect_timeout = std::chrono::minutes(5);
  Duration operation_timeout = std::chrono::minutes(10);  // also how long too few wait for others
  bool shares_memory = true;
  GpuPreference gpus;
};

/// This rank in a group.
struct GroupPlace {
  uint64_t number = 0;                // of the group
  std::vector<int> ranks;             // of the job: those in the group, ascending
  int position = 0;                   // of this one among them
  std::optional<int> source;          // position of the one whose parameters the others get
  std::optional<uint64_t> concluded;  // there is no group: all is done, in so many steps
};

/// One thread at a time. Cancelled: the group is over; then Join. Any other failure is for good.
class ElasticGroup {
 public:
  /// Rank 0 keeps the rendezvous, too.
  ElasticGroup(ElasticGroupOptions options, std::unique_ptr<PeerListener> listener);
  ~ElasticGroup();

  /// Leaves the group there was, with these parameters, if this rank has any, and waits until it is one of
  /// another. DeadlineExceeded: there are too few for too long; the text names who is missing. Otherwise as
  /// RendezvousClient, MakeNative and PreferGpus fail.
  absl::StatusOr<GroupPlace> Join(std::optional<ParametersVersion> parameters);

  /// Operations may be of the GPU's memory.
  bool is_by_gpus() const { return is_by_gpus_; }

  /// As those of Collective.
  Ticket Start(const Operation& operation) { return group_->Start(operation); }
  absl::Status Wait(Ticket ticket);
  absl::Status Run(const Operation& operation);

  /// OK, or Cancelled: the group is over.
  absl::Status status();

  /// No rank can go on, because of this one: all fail with FailedPrecondition, and this text.
  void Fail(const std::string& why) { client_.Fail(why); }

  /// Rank 0: says that all is done, in `step` steps. Other ranks: wait until it has.
  absl::Status Finish(uint64_t step);

  /// "worker:1 (10.0.0.2:2222)"
  std::string NameOf(int rank) const { return Describe(MemberOf(rank)); }

  /// Through all groups.
  Traffic traffic() const;

 private:
  absl::StatusOr<ChosenGroup> UseGpus(std::unique_ptr<Collective> met, const NativeOptions& native);
  absl::Status Leave(const absl::Status& why);
  absl::Status LeaveIfFailed(const absl::Status& status, TimePoint start);
  GroupMember MemberOf(int rank) const;

  const ElasticGroupOptions options_;
  const std::unique_ptr<PeerListener> listener_;
  std::optional<ListenerFollower> follower_;
  std::unique_ptr<RendezvousServer> server_;  // rank 0's
  RendezvousClient client_;
  GpuPreference gpus_;
  std::vector<int> ranks_;                // of the job: those in the group
  Departure departure_;                   // from that group
  std::shared_ptr<Interrupt> interrupt_;  // the group's
  std::unique_ptr<Collective> group_;
  bool is_by_gpus_ = false;
  bool memory_has_failed_ = false;  // of this host's ranks, in a group: it is not tried again
  Traffic before_;                  // through earlier groups
};

}  // namespace muster
