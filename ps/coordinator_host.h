// CoordinatorHost: what ps:0 has beside its shard: the coordinator, the streams of the other shards, and the
// manifests of checkpoints. The other side is CoordinatorLink.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/status.h"
#include "cluster/coordinator.h"
#include "proto/checkpoint.pb.h"
#include "proto/parameter_server.pb.h"
#include "ps/requests.h"

namespace muster {

struct CoordinatorHostOptions {
  int shard_count = 1;
  uint64_t generation = 0;  // of the cluster
  bool uses_tls = false;
  bool keeps_checkpoints = false;
  bool replicated = false;  // a shard is with either of two servers
};

/// One thread at a time.
class CoordinatorHost {
 public:
  /// `frames` and `requests` must live longer.
  CoordinatorHost(CoordinatorHostOptions options, FrameServer* frames, Requests* requests)
      : options_(std::move(options)), frames_(frames), requests_(requests) {}

  void SetRequests(Requests* requests) { requests_ = requests; }

  /// The job is known. Shards may have joined before.
  void Begin(const CoordinatorOptions& options);

  /// Null until Begin.
  Coordinator* coordinator() { return coordinator_ ? &*coordinator_ : nullptr; }
  const Coordinator* coordinator() const { return coordinator_ ? &*coordinator_ : nullptr; }

  /// FailedPrecondition: the shard is none of this cluster, or a newer process of it has joined.
  /// PermissionDenied: it is not who it says.
  absl::Status CheckJoin(StreamId stream, const ps::ShardJoin& join) const;

  /// One that CheckJoin has nothing against, or that of ps:0 itself, which has no stream.
  /// Whether it is another process than before.
  bool Join(std::optional<StreamId> stream, const ps::ShardJoin& join);

  /// InvalidArgument: what it says cannot be. Of a stream that has not joined it is ignored.
  absl::Status Report(StreamId stream, const ps::ShardReport& report);

  /// A shard has written these files in this epoch, by the step of their checkpoint.
  void AddFiles(int shard, const std::map<uint64_t, checkpoint::Manifest::File>& files);

  /// Of this checkpoint, of this epoch, a shard will have no file.
  void NoteFailed(uint64_t step) { failed_ = std::max(failed_, step); }
  uint64_t failed() const { return failed_; }

  /// Up to this checkpoint, of this epoch, the shard will have no file that it was not said to have.
  void NoteSettled(int shard, uint64_t step);
  /// Up to this one all shards will not: what is not complete will never be.
  uint64_t abandoned() const { return abandoned_; }

  /// The newest checkpoint whose files are all there, of this epoch, if it was not taken yet.
  std::optional<checkpoint::Manifest> TakeComplete();
  uint64_t last_complete() const { return complete_.step(); }

  /// ps:0 has begun the coordinator's epoch.
  void OnEpochBegun();
  void OnClosed(StreamId stream);

  /// To all shards: the coordinator's decisions, and what of `word` only the server knows. `always`: also if
  /// nothing has changed since the last time. Decisions on steps from `end` on are kept back.
  void Tell(ps::Coordination word, bool always, uint64_t end = UINT64_MAX);

  /// For people, as Coordinator::DescribeWait; also which shards have no connection.
  std::string DescribeWait() const;

 private:
  const CoordinatorHostOptions options_;
  FrameServer* const frames_;
  Requests* requests_;
  std::optional<Coordinator> coordinator_;
  std::map<int, ps::ShardJoin> joins_;  // the last of each shard
  std::map<StreamId, int> streams_;     // of the other shards
  std::set<StreamId> superseded_;       // of processes that newer ones have taken the place of
  std::map<uint64_t, std::map<int, checkpoint::Manifest::File>> files_;  // by step and shard
  checkpoint::Manifest complete_;                                        // step 0: none in this epoch
  bool complete_is_new_ = false;
  uint64_t failed_ = 0, abandoned_ = 0;
  std::map<int, uint64_t> settled_;  // by shard
  uint64_t told_version_ = 0;        // of the coordinator
};

}  // namespace muster
