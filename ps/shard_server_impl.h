// ShardServerImpl: the class behind ShardServer. Its files: shard_server.cc (from the start to the end, and
// what comes over streams), shard_server_workers.cc (what workers ask for), shard_server_epochs.cc (the job,
// its epochs, and what the shards tell each other), shard_server_durability.cc (checkpoints and the journal),
// and shard_server_replication.cc (the other server of a replicated shard).
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cluster/coordinator.h"
#include "proto/parameter_server.pb.h"
#include "ps/checkpointer.h"
#include "ps/coordinator_host.h"
#include "ps/coordinator_link.h"
#include "ps/early_update.h"
#include "ps/job_config.h"
#include "ps/outbox.h"
#include "ps/push_turns.h"
#include "ps/replication.h"
#include "ps/requests.h"
#include "ps/shard_epoch.h"
#include "ps/shard_journal.h"
#include "ps/shard_replay.h"
#include "ps/shard_server.h"
#include "ps/wire.h"

namespace muster {

inline WorkerIdentity IdentityOf(const ps::Join& join) {
  return {
      .rank = static_cast<int>(join.rank()), .uuid = join.worker_uuid(), .incarnation = join.incarnation()};
}

class ShardServerImpl final : public ShardServer, private Replication::Host {
 public:
  ShardServerImpl(const ParameterServerOptions& options, int shard_index, FrameServer* frames);
  ~ShardServerImpl() override;

  absl::Status Open();
  absl::Status Serve() override;
  void OnFrame(StreamId stream, const ps::ClientHeader& header, ShardGradient gradient) override;
  void OnClosed(StreamId stream) override;
  void End(const absl::Status& status) override {
    const std::lock_guard lock(mutex_);
    awaits_nobody_ = true;
    EndWith(status);
  }
  void Close() override;
  absl::Status FinishCheckpoints() override;
  bool has_job() const override {
    const std::lock_guard lock(mutex_);
    return config_.has_value();
  }
  bool is_needed() const override;
  bool is_in_touch() const override {
    const std::lock_guard lock(mutex_);
    return replication_ && (replication_->is_safe() || replication_->follows());
  }
  ShardMetrics metrics() const override;

 private:
  static constexpr Duration kStallAfter = std::chrono::seconds(2);  // what has waited so long is worth a word
  static constexpr Duration kCheckpointTimeout = std::chrono::minutes(5);
  // For workers that have not heard that all have finished.
  static constexpr Duration kOverTimeout = std::chrono::seconds(3);
  static constexpr Duration kEndTick = std::chrono::milliseconds(10);

  int shard_count() const { return static_cast<int>(options_.cluster.ps.size()); }
  bool is_async() const { return update_.rule.mode == UpdateMode::kAsync; }
  bool all_finished() const;
  // Null where there is none, which is in all but ps:0, and in ps:0 until the job is known.
  Coordinator* coordinator() { return host_ ? host_->coordinator() : nullptr; }
  const Coordinator* coordinator() const { return host_ ? host_->coordinator() : nullptr; }
  // A step waits for what it has waited for long; of ps:0.
  bool is_stalled() const { return !is_async() && coordinator()->waiting_since() < Now() - kStallAfter; }
  bool keeps_time() { return serves() && coordinator() != nullptr && !awaits_first_worker_; }
  // Number 0: none has begun.
  Epoch epoch() const { return shard_ ? shard_->epoch() : Epoch(); }
  bool keeps_checkpoints() const { return checkpointer_ != nullptr; }
  // The last checkpoint that was begun is not there yet, and may still be.
  bool is_checkpointing() const {
    return last_snapshot_ > std::max({read_step_, host_->last_complete(), host_->failed()}) &&
           Now() < last_snapshot_time_ + kCheckpointTimeout;
  }

  absl::Status OpenCheckpoints();
  absl::Status Begin();
  void LookForCopies(Duration patience, const std::stop_token& stop);
  void LearnOfCheckpoints(const std::stop_token& stop);

  // From streams.
  absl::Status DecodePush(StreamId stream, const ps::ClientHeader& header, ShardGradient* gradient) const;
  bool IsOfThisEpoch(StreamId stream) const;
  absl::Status HandlePart(StreamId stream, const ps::ClientHeader& header, ShardGradient part);
  void Arrive(StreamId stream, const ps::Push& push, const EarlyUpdate::Push& arrival, int64_t begin,
              const FloatPayload& values);
  absl::Status Handle(StreamId stream, const ps::ClientHeader& header, ShardGradient gradient);
  absl::Status HandleOfWorker(StreamId stream, const WorkerIdentity& worker, const ps::ClientHeader& header,
                              ShardGradient gradient);
  absl::Status AddPendingJoin(StreamId stream, uint64_t request, const ps::Join& join);
  absl::Status HandleJoin(StreamId stream, uint64_t request, const ps::Join& join);
  absl::Status CompleteJoin(StreamId stream, uint64_t request, const ps::Join& join);
  absl::Status HandlePush(StreamId stream, const WorkerIdentity& worker, uint64_t request,
                          const ps::Push& push, ShardGradient gradient);
  absl::Status HandleAsk(StreamId stream, const WorkerIdentity& worker, uint64_t request, const ps::Ask& ask);
  int64_t AskAbove() const;
  int64_t PartFloats() const;
  bool is_compressed() const {
    return update_.compression.wire_type != ps::FLOAT32 || update_.compression.top_k > 0;
  }
  void GiveTurns();
  void SendGoAhead(StreamId stream, uint64_t request);
  std::string WhoSends() const;
  absl::Status HandleAwait(StreamId stream, const WorkerIdentity& worker, uint64_t request);
  void WarnOfOtherEnd(int rank, uint64_t train_steps) const;
  absl::Status HandleFail(const WorkerIdentity& worker, const ps::Fail& fail);
  absl::Status HandleFinish(StreamId stream, const WorkerIdentity& worker, uint64_t request,
                            const ps::Finish& finish);
  void HandleHeartbeat(StreamId stream, const ps::Heartbeat& heartbeat);
  bool IsPending(StreamId stream) const;
  absl::Status HandleShardJoin(StreamId stream, const ps::ShardJoin& join);
  void AnswerAwait(PushId id);
  void AnswerFinishes();

  // The job and its epochs.
  absl::Status AdoptConfig(const ps::JobConfig& config);
  std::vector<std::string> RankNames() const;
  bool MayScale(const ps::JobConfig& config) const;
  bool SharesBatches(const ps::JobConfig& config) const;
  bool TakesPart(uint32_t rank) const;
  void LetParticipantsIn();
  void HearOfRanks(const ps::Ranks& ranks);
  void FollowCluster();
  void BeginCoordinator();
  void MakeShardEpoch(const Epoch& epoch, Shard shard, UpdateRuleState rule);
  void OnUpdate();
  void EndShardEpoch();
  std::vector<PushTally> Tallies() const;
  bool BeginEpoch(const Epoch& epoch);
  void OnEpochBegun(const std::string& why);
  ps::ShardJoin OwnJoin() const;
  void TellOwnCheckpoints();
  void NoteNewestCommon(uint64_t checkpoint);
  void EndWith(const absl::Status& status);

  // Both sides of what the shards tell each other. `always`: also if nothing has changed.
  void Coordinate(bool always);
  void CoordinateAsFirst(bool always);
  void CoordinateAsOther(bool always);
  void MakeSteps(bool always);
  void ScheduleSnapshot();
  void LogNotices();
  void TellOthers(bool always);
  void OnCoordination(const ps::Coordination& coordination, uint64_t round);
  void HandleCoordination(const ps::Coordination& coordination);
  std::string WhatLasts() const;
  void LogStall(const std::string& waits_for);
  void WithinMemory(const std::function<void()>& work);

  // The journal.
  void Recover();
  void GoOnWith(ShardReplay before);
  bool Log(const journal::Record& record, const FloatPayload& payload = {});
  bool Journaled(const absl::Status& appended);
  void LogDecisions(const std::map<uint64_t, std::vector<int>>& decisions);
  bool BeginSegment(uint64_t checkpoint);
  std::vector<std::pair<journal::Record, FloatPayload>> Carried();

  // The other server of a replicated shard (Replication::Host).
  bool serves() const { return !replication_ || replication_->serves(); }
  void TakeOver(std::unique_ptr<ShardReplay> shard) override;
  void StepDown() override;
  void Propose() override;
  void ProposeTo(StreamId stream, const WorkerIdentity& worker);
  const UpdateRule* KnownRule() const;
  void LetGo() override;
  void SendNotPrimary(StreamId stream, uint64_t request, uint64_t promised);
  void GoOn() override;
  std::optional<ReplicaBase> Base() override;
  void OnEnd(const absl::Status& status) override { EndWith(status); }
  int64_t FrameBytes() const override {
    return shard_ ? shard_->shard().range().size() * static_cast<int64_t>(sizeof(float)) : 0;
  }
  void HandlePromise(StreamId stream, const ps::Promise& promise);
  void EndIfLeftAlone();
  void AwaitBackup(std::unique_lock<std::mutex>& lock);
  void OpenHost();
  void OpenLink();

  // Checkpoints.
  void OnCheckpointsChanged();
  void TakeSnapshotIfDue();
  void TakeSnapshot(uint64_t checkpoint);
  bool AwaitsLastCheckpoint();
  bool HasLastCheckpoint() const;
  void AwaitWorkers(std::unique_lock<std::mutex>& lock);

  const ParameterServerOptions options_;
  const int shard_index_;
  const std::string name_;
  FrameServer* const frames_;

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::string uuid_;  // of what this process is to the coordinator
  Outbox outbox_;
  std::unique_ptr<Requests> requests_;
  TimePoint arrival_;  // of the frame that is being handled
  std::optional<absl::Status> end_;
  std::string waits_for_;  // what the job waits for, if it has for long
  TimePoint next_stall_log_;

  // Made by who says first what the job is: a worker, or another shard.
  int rank_count_;
  int first_ranks_;                      // of them, those that have been there since this process began
  std::optional<ps::Ranks> told_ranks_;  // standing: by workers, the latest
  std::optional<ps::JobConfig> config_;
  UpdateConfig update_;
  std::optional<Shard> fresh_;  // with initial values, until the first epoch begins

  // Of an epoch.
  struct PendingJoin {
    StreamId stream = 0;
    uint64_t request = 0;
    ps::Join join;
  };
  std::vector<PendingJoin>
      pending_joins_;              // until the first one begins, one that it takes part in, or the next view
  uint64_t read_step_ = 0;         // of the checkpoint that was read last; 0: it was none
  std::vector<int> participants_;  // of the coordinator's epoch, as it says; empty: counted once
  std::optional<ShardEpoch> shard_;
  std::vector<PushTally> tallies_;  // by rank, of shard_'s predecessors
  struct Joined {
    WorkerIdentity worker;
    uint64_t epoch = 0;  // number
    uint64_t train_steps = 0;
  };
  std::map<StreamId, Joined> workers_;      // also of the epoch before, until they join again
  std::map<int, uint64_t> finished_ranks_;  // and the step that is their next
  std::vector<PushId> finishes_;            // to be answered
  bool awaits_nobody_ = false;              // at the end
  // The job was over when this process began: the other servers may have heard of the end, and be gone.
  std::optional<TimePoint> over_until_;
  std::set<int> asked_for_end_;  // ranks that have finished, or said so again, in this process
  struct ArrivingPush {
    uint64_t number = 0;
    ps::ClientHeader header;
    ShardGradient gradient;           // its rows, and finite as far as it has come
    std::vector<grpc::Slice> slices;  // that have come
    int64_t floats = 0;               // of them
  };
  std::map<StreamId, ArrivingPush> arriving_;  // pushes in parts
  uint64_t last_arrival_ = 0;                  // number, of pushes of any sort
  PushTurns turns_;                            // async
  uint64_t last_step_ = 0;                     // sync, bounded: that those who have finished contributed to

  std::optional<CheckpointCopies> copies_;      // at another server
  bool looks_for_copies_ = false;               // first of all, and joins nobody until then
  std::unique_ptr<Checkpointer> checkpointer_;  // null: there are none
  uint64_t next_snapshot_ = 0;                  // sync, bounded: of the state of this step; 0: none is due
  uint64_t last_snapshot_ = 0;
  TimePoint last_snapshot_time_;
  uint64_t last_commit_ = 0;
  uint64_t newest_common_ = 0;  // that ps:0 has known of, or its process before
  std::optional<TimePoint> last_checkpoint_deadline_;

  std::optional<ShardJournal> journal_;
  uint64_t journaled_decisions_ = 0;  // of steps below
  bool awaits_first_worker_ =
      false;  // since this process has gone on with a journal: for as long as it takes

  // ps:0
  std::optional<CoordinatorHost> host_;
  std::map<int, PushId> awaits_;  // by rank

  std::unique_ptr<Replication> replication_;  // null: it is the only server of the shard
  std::optional<TimePoint> proposing_since_;

  // The others
  std::unique_ptr<CoordinatorLink> link_;
  uint64_t link_round_ = 0;                                  // of the last one
  std::vector<std::unique_ptr<CoordinatorLink>> old_links_;  // that end when no lock is held
  Epoch offered_epoch_;                                      // by the coordinator
  int needed_ = 1;                                           // parts of a step to report

  ShardReport told_report_;  // to the coordinator, wherever that is

  std::atomic<bool> cluster_has_changed_ = false;
  std::optional<ClusterView::Watch> watch_;
  std::jthread copies_thread_;  // the last member: it uses the others
};

}  // namespace muster
