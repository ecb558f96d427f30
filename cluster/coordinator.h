// Coordinator: who takes part in a job, and whose gradients make up each step. One per job, in ps:0. The
// protocol as a function: events and a time go in, state comes out; no threads, sockets, files or clocks.
//
// A contribution is a rank's gradient for a step. It is complete when every shard holds its part of it. The
// contributors of a step are chosen once, among the complete contributions, for all shards: so a step that
// has been chosen can be applied everywhere, whoever dies next. With `aggregate` below the number of ranks
// these are the first that were complete, and the others are backups (Chen et al., "Revisiting distributed
// synchronous SGD", 2016); fewer live ranks than that make a step of what they have.
//
// What shards report is monotone and may be lost, doubled and reordered: the last report of each makes up for
// all before.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace muster {

enum class MemberState { kExpected, kLive, kFinished, kLost };

struct CoordinatorOptions {
  std::vector<std::string> rank_names;  // "worker:0"; one for each rank
  int shard_count = 1;
  int aggregate = 1;  // contributions that make a step, at most the number of ranks
  /// A rank that has not joined, or that others wait for although it is not silent, is waited for this long.
  /// When nobody has done anything for twice as long, the job ends.
  Duration worker_timeout = std::chrono::minutes(10);
  /// One that has joined is lost when nothing was heard of it for this long.
  Duration lease = std::chrono::seconds(60);
};

/// A part of a contribution that a shard holds.
struct HeldPart {
  uint64_t step = 0;
  int rank = 0;
  friend auto operator<=>(const HeldPart&, const HeldPart&) = default;
};

/// What a shard has: updates applied, and the parts for steps to come.
struct ShardReport {
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
  void Join(int rank, TimePoint now);
  void Heard(int rank, TimePoint now);   // a sign of life
  void Pushed(int rank, TimePoint now);  // one that shows progress
  void Await(int rank, TimePoint now);   // it has nothing left to do but to wait for the others
  /// It has contributed to all steps below `next_step` that it was needed for, and will to no other; async:
  /// 0.
  void Finish(int rank, uint64_t next_step, TimePoint now);
  void Report(int shard, const ShardReport& report, TimePoint now);
  void Tick(TimePoint now);

  /// When Tick has something to do next, if nothing else happens.
  TimePoint next_deadline() const;

  /// Grows whenever decisions(), needed() or end() change.
  uint64_t version() const { return version_; }

  /// Those that not every shard is known to have applied.
  const std::map<uint64_t, std::vector<int>>& decisions() const { return decisions_; }

  /// How many parts of a step a shard must hold before it can be chosen: a report of fewer may wait.
  int needed() const;

  MemberState state(int rank) const { return members_[rank].state; }

  /// Nobody but this rank has anything left to do.
  bool AllOthersDone(int rank) const;

  /// Set once: OK when all ranks have finished; DeadlineExceeded when none is left that could go on.
  const std::optional<absl::Status>& end() const { return end_; }

  /// What the oldest step that is not chosen waits for: "step 7 has waited 4s for worker:1 (ps:1)"; empty
  /// when nothing waits.
  std::string DescribeWait(TimePoint now) const;

  /// Since when it waits; the end of time when nothing does.
  TimePoint waiting_since() const;

  /// Those since the last call.
  std::vector<MembershipNotice> TakeNotices();

 private:
  struct Member {
    MemberState state = MemberState::kExpected;
    TimePoint last_heard;
    TimePoint last_progress;  // a join or a push
    bool awaits = false;
    bool lost_in_silence = false;  // and not for lack of progress: a sign of life brings it back
    uint64_t finished_at = 0;      // its parts of steps below are on their way at most
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
  void SetState(int rank, MemberState state, std::string text);
  void Choose(TimePoint now);
  TimePoint WaitedForSince(int rank) const;
  TimePoint DeadlineOf(int rank) const;
  TimePoint EndDeadline() const;
  std::string DescribeMissing(int rank, TimePoint now) const;

  const CoordinatorOptions options_;
  const int rank_count_;
  const TimePoint start_;
  std::vector<Member> members_;                     // by rank
  std::vector<uint64_t> shard_steps_;               // by shard: updates applied, as far as reported
  uint64_t next_step_ = 0;                          // the oldest that is not chosen
  std::map<uint64_t, OpenStep> open_;               // from next_step_ on
  std::map<uint64_t, std::vector<int>> decisions_;  // below next_step_
  TimePoint last_chosen_;
  std::vector<MembershipNotice> notices_;
  std::optional<absl::Status> end_;
  uint64_t version_ = 1;
};

}  // namespace muster
