// UpdateRule: when a shard applies which pushes, and what each worker is answered. The protocol as a
// function: events and a time go in, actions come out; no threads, sockets, files, clocks, and no floats of a
// gradient.
//
// Async: each push is applied as it arrives, at most once per (worker process, sequence).
// Sync: a step is applied when every unfinished worker has contributed to it, summed in order of rank. A
// contribution is (step, rank): a worker that starts again computes the same one and cannot count twice, and
// until it does the step is held open. A finished worker contributes to no further step.
//
// Of two processes with the same rank only the newest is accepted: the higher incarnation, and of equal ones
// (started by hand) the one that joined last. What the older one sends is refused.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace muster {

enum class UpdateMode { kAsync, kSync };
enum class PushOutcome { kApplied, kStale, kDuplicate };

/// Names a push (or an await) whose sender waits for its answer; chosen by the caller, never used twice.
using PushId = uint64_t;

struct PushCounts {
  uint64_t received = 0;
  uint64_t applied = 0;
  uint64_t stale = 0;
  uint64_t duplicate = 0;
  uint64_t rejected = 0;
  friend bool operator==(const PushCounts&, const PushCounts&) = default;
};

struct WorkerIdentity {
  int rank = 0;
  std::string uuid;  // of the process
  uint64_t incarnation = 0;
};

struct PushInfo {
  PushId id = 0;
  uint64_t sequence = 0;
  uint64_t step = 0;  // of the parameters it was computed from
  uint64_t samples = 0;
  double loss_sum = 0;
};

/// Sum these gradients in this order, divide by `samples`, update: the parameters are then those of `step`.
struct ApplyAction {
  std::vector<PushId> pushes;
  uint64_t samples = 0;
  uint64_t step = 0;
};

/// Answer with the parameters as they are after all actions before this one. The caller may forget the push's
/// gradient.
struct AnswerAction {
  PushId id = 0;
  PushOutcome outcome = PushOutcome::kApplied;
  uint64_t step = 0;
  double mean_loss = 0;
  uint64_t samples = 0;
  uint64_t staleness = 0;
};

/// Answer with an error and no parameters; the sender cannot go on. The caller may forget the push's
/// gradient.
struct RefuseAction {
  PushId id = 0;
  absl::Status status;
};

/// Answer an await: every other worker has finished.
struct ReleaseAction {
  PushId id = 0;
};

/// The server's work is over: with OK when all workers have finished, else with the cause.
struct EndAction {
  absl::Status status;
};

using UpdateAction = std::variant<ApplyAction, AnswerAction, RefuseAction, ReleaseAction, EndAction>;
using UpdateActions = std::vector<UpdateAction>;

struct UpdateRuleOptions {
  UpdateMode mode = UpdateMode::kAsync;
  int worker_count = 1;
  /// A worker that others wait for, or all of them, may be silent this long.
  Duration worker_timeout = std::chrono::minutes(10);
};

struct JoinAnswer {
  uint64_t step = 0;
  uint64_t pushes = 0;  // applied of this rank, by whichever process
};

/// One thread at a time.
class UpdateRule {
 public:
  UpdateRule(const UpdateRuleOptions& options, TimePoint now);

  /// FailedPrecondition if a newer incarnation of the rank has joined. What an older process of the rank has
  /// pushed and not been answered is refused (into `actions`), so that the newer one may push it.
  absl::StatusOr<JoinAnswer> Join(const WorkerIdentity& worker, TimePoint now, UpdateActions* actions);

  UpdateActions Push(const WorkerIdentity& worker, const PushInfo& push, TimePoint now);

  /// The worker has asked for something that changes nothing, and is not silent.
  void Heard(const WorkerIdentity& worker, TimePoint now);

  /// The worker asks to be told when all others have finished.
  UpdateActions AwaitFinished(const WorkerIdentity& worker, PushId id, TimePoint now);

  /// The worker has succeeded. From a process that is not the newest of its rank: nothing happens.
  UpdateActions Finish(const WorkerIdentity& worker, TimePoint now);

  /// Time has passed: whoever has waited too long is refused, with the ranks that are missing.
  UpdateActions Tick(TimePoint now);

  /// When Tick has something to do next, if nothing else happens.
  TimePoint next_deadline() const;

  uint64_t step() const { return step_; }
  const PushCounts& counts() const { return counts_; }
  /// Contributions that wait for the rest of their step: received - applied - stale - duplicate - rejected.
  uint64_t held() const { return contributions_.size(); }

 private:
  struct Worker {
    std::optional<WorkerIdentity> process;  // the newest; none before the first join
    uint64_t last_applied_sequence = 0;     // of this process
    uint64_t pushes = 0;                    // applied, of all processes
    uint64_t contributed_steps = 0;  // sync: has contributed to all steps below this that it was part of
    bool finished = false;
    TimePoint last_heard;
  };

  absl::Status CheckNewest(const WorkerIdentity& worker) const;
  void Reject(PushId id, absl::Status status, UpdateActions* actions);
  void PushAsync(Worker& worker, const PushInfo& push, UpdateActions* actions);
  void PushSync(int rank, const PushInfo& push, UpdateActions* actions);
  void AnswerLate(PushOutcome outcome, const PushInfo& push, UpdateActions* actions);
  void ApplyStepIfComplete(UpdateActions* actions);
  void ReleaseIfFinished(UpdateActions* actions);
  std::vector<int> MissingRanks() const;
  std::string DescribeRanks(const std::vector<int>& ranks, TimePoint now) const;

  const UpdateRuleOptions options_;
  std::vector<Worker> workers_;  // by rank
  uint64_t step_ = 0;
  std::map<int, PushInfo> contributions_;  // sync: to the open step, by rank
  std::map<int, PushId> awaits_;           // by rank
  PushCounts counts_;
  bool ended_ = false;
};

}  // namespace muster
