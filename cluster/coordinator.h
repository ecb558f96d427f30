// Coordinator: who takes part in a job, and whose gradients make up each step. One per job, in ps:0. The
// protocol as a function: events and a time go in, state comes out; no threads, sockets, files or clocks.
//
// A contribution is a rank's gradient for a step. It is complete when every shard holds its part of it. The
// contributors of a step are chosen once, among the complete contributions, for all shards: so a step that
// has been chosen can be applied everywhere, whoever dies next. With `aggregate` below the number of ranks
// these are the first that were complete, and the others are backups (Chen et al., "Revisiting distributed
// synchronous SGD", 2016); fewer live ranks than that make a step of what they have.
//
// An epoch begins when all shards have joined, from the newest checkpoint that all of them have. When the
// process of a shard is replaced, or one cannot read the checkpoint, the next one begins: all go back, and do
// again what came after.
//
// Where workers come and go (`shares`), a step needs all of those who share its batch, who stay the same for
// an epoch. Once another one has joined, or one of them has left or is lost, no more steps are chosen. As
// soon as all shards have made those that were, the next epoch begins right there: nobody goes back, and the
// batch is shared anew. When somebody has come to the end there is nothing left to share, and who joins is
// let in as it is.
//
// What shards report is monotone within an epoch and may be lost, doubled and reordered: the last report of
// each makes up for all before.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace muster {

/// kAbsent: it may come, and nobody waits for that.
enum class MemberState { kExpected, kLive, kFinished, kLost, kAbsent };

struct CoordinatorOptions {
  std::vector<std::string> rank_names;                // "worker:0"; one for each rank
  int first_ranks = std::numeric_limits<int>::max();  // others may come, and are absent at first
  int shard_count = 1;
  int aggregate = 1;    // contributions that make a step, at most the number of ranks
  bool shares = false;  // those of all participants do instead, and who they are may change
  /// The first epoch of a job waits for all first ranks, too: for each of them for `worker_timeout` at most.
  bool begins_together = false;
  /// A rank that has not joined, or that others wait for although it is not silent, is waited for this long.
  /// When nobody has done anything for twice as long, the job ends.
  Duration worker_timeout = std::chrono::minutes(10);
  /// One that has joined is lost when nothing was heard of it for this long.
  Duration lease = std::chrono::seconds(60);
  /// Shards have checkpoints to go back to. Else the job ends when one is replaced.
  bool may_go_back = false;
  /// Number of the first epoch, if no shard knows of an earlier one: one that no other process has taken, so
  /// that workers that outlived all servers see that these are others.
  uint64_t first_epoch = 1;
};

/// Two checkpoints of one step are the same one if the digests of their manifests are.
struct CheckpointId {
  uint64_t step = 0;
  uint32_t digest = 0;
  friend auto operator<=>(const CheckpointId&, const CheckpointId&) = default;
};

/// number 0: not all shards have joined.
struct Epoch {
  uint64_t number = 0;
  uint64_t step = 0;     // of the checkpoint that it begins with; 0: initial values
  bool goes_on = false;  // instead with what all shards have at that step
  friend bool operator==(const Epoch&, const Epoch&) = default;
};

/// A part of a contribution that a shard holds.
struct HeldPart {
  uint64_t step = 0;
  int rank = 0;
  friend auto operator<=>(const HeldPart&, const HeldPart&) = default;
};

/// What a shard has: updates applied, and the parts for steps to come.
struct ShardReport {
  uint64_t epoch = 0;  // number
  uint64_t step = 0;
  std::vector<HeldPart> held;
  friend bool operator==(const ShardReport&, const ShardReport&) = default;
};

/// Whose gradients make up the update from `step` to `step` + 1; ascending, never empty.
struct StepDecision {
  uint64_t step = 0;
  std::vector<int> ranks;
  friend bool operator==(const StepDecision&, const StepDecision&) = default;
};

/// Something that people should read; a first join is none.
struct MembershipNotice {
  int rank = 0;
  MemberState state = MemberState::kLive;
  std::string text;
};

/// One thread at a time. A rank or shard out of range is a bug.
class Coordinator {
 public:
  Coordinator(const CoordinatorOptions& options, TimePoint now);

  /// Events. What changes because of them is read below.
  void Join(int rank, TimePoint now);    // again while it waits for the first epoch
  void Heard(int rank, TimePoint now);   // a sign of life
  void Pushed(int rank, TimePoint now);  // one that shows progress
  /// As Finish, but it waits for the others before it ends: it has nothing else left to do.
  void Await(int rank, uint64_t next_step, TimePoint now);
  /// It has contributed to all steps below `next_step` that it was needed for, and will to no other; async:
  /// 0.
  void Finish(int rank, uint64_t next_step, TimePoint now);
  /// A process of a shard, in this epoch number (0 if it has just started, without a journal), could begin
  /// with these checkpoints. `newest_common`: as it has heard of it in that epoch, which it may have outlived
  /// a coordinator in. Said again whenever that changes.
  void ShardJoin(int shard, const std::string& uuid, uint64_t epoch,
                 const std::set<CheckpointId>& checkpoints, TimePoint now, uint64_t newest_common = 0);
  void Report(int shard, const ShardReport& report, TimePoint now);
  void Tick(TimePoint now);
  /// Async, and where batches are shared: the job has these ranks now, at least one. Those that are new are
  /// absent until they join, and nobody waits for them when they are lost.
  void SetRanks(std::vector<std::string> names);

  /// When Tick has something to do next, if nothing else happens.
  TimePoint next_deadline() const;

  /// Goes on where another process with the coordinator was, as its journal has it: in an epoch, with these
  /// decisions, and none from `next_step` on; `newest_common`: the checkpoint that all shards had. Before all
  /// events.
  void Resume(const Epoch& epoch, uint64_t next_step, const std::map<uint64_t, std::vector<int>>& decisions,
              uint64_t newest_common);

  /// Time stood still until now for who hears of them.
  void RenewLeases(TimePoint now);

  /// Grows whenever decisions(), needed(), epoch(), participants() or end() change.
  uint64_t version() const { return version_; }

  const Epoch& epoch() const { return epoch_; }

  /// The ranks that share the batches of this epoch, ascending; empty where that is fixed. Another one that
  /// has joined will be one of them, unless it is lost before.
  const std::vector<int>& participants() const { return participants_; }

  /// Step of the newest checkpoint that all shards have been known to have at once; 0: there is none.
  uint64_t newest_common() const { return newest_common_; }

  /// The oldest step that is not chosen.
  uint64_t next_step() const { return next_step_; }

  /// Those that not every shard is known to have applied.
  const std::map<uint64_t, std::vector<int>>& decisions() const { return decisions_; }

  /// How many parts of a step a shard must hold before it can be chosen: a report of fewer may wait.
  int needed() const;

  int rank_count() const { return static_cast<int>(members_.size()); }
  MemberState state(int rank) const { return members_[rank].state; }

  /// Nobody but this rank has anything left to do.
  bool AllOthersDone(int rank) const;

  /// OK when all ranks have finished, until a shard is replaced that goes back. For good: DeadlineExceeded
  /// when none is left that could go on; DataLoss when a shard has lost what it had and there is no going
  /// back; FailedPrecondition when shards have checkpoints, but none in common.
  const std::optional<absl::Status>& end() const { return end_; }

  /// What the oldest step that is not chosen waits for: "step 7 has waited 4s for worker:1 (ps:1)"; empty
  /// when nothing waits.
  std::string DescribeWait(TimePoint now) const;

  /// Ranks whose part of it is not there yet.
  std::vector<int> AwaitedRanks() const;

  /// Since when it waits; the end of time when nothing does.
  TimePoint waiting_since() const;

  /// Whom the first epoch waits for: "the beginning has waited 4s for ps:1, worker:2"; empty when nobody is
  /// to come. Since when; the end of time.
  std::string DescribeBeginning(TimePoint now) const;
  TimePoint beginning_awaited_since() const;

  /// Whom a rank with nothing left to do waits for: "the end has waited 4s for worker:1 (not joined)"; empty
  /// when none does. Since when; the end of time.
  std::string DescribeEnd(TimePoint now) const;
  TimePoint end_awaited_since() const;

  /// Those since the last call.
  std::vector<MembershipNotice> TakeNotices();

 private:
  struct Member {
    MemberState state = MemberState::kExpected;
    TimePoint last_heard;
    TimePoint last_progress;  // a join or a push
    bool awaits = false;
    bool lost_in_silence = false;  // and not for lack of progress: a sign of life brings it back
    uint64_t finished_at = 0;      // or awaits: its parts of steps below are on their way at most
  };
  // A step that is not chosen yet.
  struct OpenStep {
    std::map<int, std::set<int>> holders;  // by rank: the shards that have its part
    std::vector<int> complete;             // ranks, in the order in which they became so
    TimePoint waiting_since;               // for the first part
  };

  bool IsAtWork(int rank) const;
  bool IsExpectedAt(int rank, uint64_t step) const;
  bool IsComplete(int rank) const;
  int NeededFor(const std::vector<int>& complete) const;  // at next_step_
  void BeginEpochIfNeeded(TimePoint now);
  void BeginSteps(TimePoint now);
  bool SharesAnew(TimePoint now);
  bool IsBehind(int shard) const;  // it has not said that all chosen steps of this epoch are made there
  bool IsEnding() const;
  bool IsParticipant(int rank) const;
  std::vector<int> WhoIsAtWork() const;
  CheckpointId NewestCommon() const;
  std::optional<absl::Status> CheckBeginningAnew(uint64_t last_number) const;
  void SetState(int rank, MemberState state, std::string text);
  void Choose(TimePoint now);
  TimePoint WaitedForSince(int rank) const;
  TimePoint DeadlineOf(int rank) const;
  TimePoint EndDeadline() const;
  std::string DescribeMissing(int rank, TimePoint now) const;
  std::string DescribeSilence(int rank, TimePoint now) const;
  bool AwaitsFirstRank(int rank) const;
  std::vector<std::string> WhoIsToCome() const;

  bool IsDone(int rank) const;
  bool HasAnyFinished() const;
  void EndIfAllAreDone();

  const CoordinatorOptions options_;
  int first_ranks_;                 // that have been there from the beginning
  std::vector<std::string> names_;  // by rank
  struct ShardProcess {
    std::string uuid;  // empty: none has joined
    uint64_t epoch = 0;
    std::set<CheckpointId> checkpoints;
    uint64_t newest_common = 0;
  };

  std::vector<Member> members_;  // by rank
  std::vector<ShardProcess> shards_;
  Epoch epoch_;
  std::vector<int> participants_;                   // of epoch_
  CheckpointId begins_with_;                        // if epoch_.step is not 0
  uint64_t newest_common_ = 0;                      // step of a checkpoint; 0: there is none
  std::string why_next_epoch_;                      // not empty: this one cannot go on
  std::vector<uint64_t> shard_steps_;               // by shard: updates applied, as far as reported
  uint64_t next_step_ = 0;                          // the oldest that is not chosen
  std::map<uint64_t, OpenStep> open_;               // from next_step_ on
  std::map<uint64_t, std::vector<int>> decisions_;  // below next_step_
  const TimePoint created_;
  TimePoint last_chosen_;
  std::vector<MembershipNotice> notices_;
  std::optional<absl::Status> end_;
  uint64_t version_ = 1;
};

}  // namespace muster
