// UpdateRule: when a shard applies which pushes, and what each worker is answered. The protocol as a
// function: events go in, actions come out; no threads, sockets, files, clocks, and no floats of a gradient.
//
// Async: each push is applied as it arrives, at most once per (worker process, sequence), unless it is too
// stale.
//
// Sync and bounded: a contribution is (step, rank), so that a worker that starts again and computes the same
// one cannot count twice. The shard holds contributions until the coordinator (cluster/coordinator.h) has
// chosen whose make up a step, then sums them in order of rank. A bounded worker may be `staleness` steps
// ahead of the parameters (stale synchronous parallel, Ho et al. 2013): its contribution to step c is
// answered as soon as the shard has reached step c + 1 - staleness, and computed from parameters no older
// than that. With staleness 0 that is sync.
//
// Of two processes with the same rank only the newest is accepted: the higher incarnation, and of equal ones
// (started by hand) the one that joined last. What the older one sends is refused.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/histogram.h"
#include "base/status.h"
#include "cluster/coordinator.h"
#include "ps/sliding_window.h"

namespace muster {

enum class UpdateMode { kAsync, kSync, kBounded };

enum class PushOutcome {
  kApplied,
  kStale,      // the step went on without it, or it was older than max_staleness
  kDuplicate,  // this rank's contribution to the step, or this very push, was there already
  kHeld,       // bounded: it will be part of a step to come
};

/// Names a push whose sender waits for its answer; chosen by the caller, never used twice.
using PushId = uint64_t;

/// received = applied + stale + duplicate + rejected + held()
struct PushCounts {
  uint64_t received = 0;
  uint64_t applied = 0;
  uint64_t stale = 0;
  uint64_t duplicate = 0;
  uint64_t rejected = 0;
  friend bool operator==(const PushCounts&, const PushCounts&) = default;
};

PushCounts& operator+=(PushCounts& sum, const PushCounts& other);

inline constexpr double kStalenessBounds[] = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256};

/// What became of one worker's pushes.
struct PushTally {
  PushCounts counts;
  Histogram staleness{kStalenessBounds};  // of those that are applied, in steps

  PushTally& operator+=(const PushTally& other);
};

struct WorkerIdentity {
  int rank = 0;
  std::string uuid;  // of the process
  uint64_t incarnation = 0;
  friend bool operator==(const WorkerIdentity&, const WorkerIdentity&) = default;
};

struct PushInfo {
  PushId id = 0;
  uint64_t sequence = 0;  // of the process, from 1; async
  uint64_t step = 0;      // sync and bounded: that it contributes to
  uint64_t version = 0;   // step of the parameters it was computed from; sync: `step`
  uint64_t samples = 0;
  double loss_sum = 0;
  bool finite = true;  // all numbers of the gradient are
};

/// Sum these gradients in this order, divide by `samples`, update with `rate_scale` times the learning rate:
/// the parameters are then those of `step`. The gradients are not needed any more.
struct ApplyAction {
  std::vector<PushId> pushes;
  uint64_t samples = 0;
  uint64_t step = 0;
  float rate_scale = 1;
};

/// The gradient of this push is not needed; whether it has been answered is another matter.
struct DiscardAction {
  PushId id = 0;
};

/// Answer with the parameters as they are after all actions before this one.
struct AnswerAction {
  PushId id = 0;
  PushOutcome outcome = PushOutcome::kApplied;
  uint64_t step = 0;
  double mean_loss = 0;
  uint64_t samples = 0;
  uint64_t staleness = 0;
  uint64_t all_samples = 0;  // UpdateRule::samples
};

/// Answer with an error and no parameters; the sender cannot go on.
struct RefuseAction {
  PushId id = 0;
  absl::Status status;
};

/// Every push gets one of Apply and Discard, and one of Answer and Refuse, in any order.
using UpdateAction = std::variant<ApplyAction, DiscardAction, AnswerAction, RefuseAction>;
using UpdateActions = std::vector<UpdateAction>;

struct UpdateRuleOptions {
  UpdateMode mode = UpdateMode::kAsync;
  int worker_count = 1;
  uint64_t staleness = 0;                 // bounded
  std::optional<uint64_t> max_staleness;  // async: older pushes are answered stale
  bool scale_rate = false;                // async: the learning rate is divided by 1 + staleness
};

/// What outlives the process: everything but contributions to steps to come, which their senders make again.
struct UpdateRuleState {
  struct Worker {
    std::optional<WorkerIdentity> process;  // the newest; none before the first join
    bool has_predecessor = false;           // another process joined before that one
    SlidingWindow sequences;                // async: applied of this process
    SlidingWindow steps;                    // sync, bounded: those it contributed to that are applied
    uint64_t pushes = 0;                    // applied, of all processes
    friend bool operator==(const Worker&, const Worker&) = default;
  };
  uint64_t step = 0;
  std::vector<Worker> workers;  // by rank
  PushCounts counts;
  uint64_t samples = 0;  // of all gradients that are applied
  friend bool operator==(const UpdateRuleState&, const UpdateRuleState&) = default;
};

/// For another start of the job: those processes that live join again, and those of an earlier one may have
/// had higher incarnations. Whatever joins is a successor of those that had joined in `before`, the state
/// that this one takes the place of.
UpdateRuleState WithoutProcesses(UpdateRuleState state, const UpdateRuleState& before = {});

struct JoinAnswer {
  uint64_t step = 0;
  uint64_t next_step =
      0;                // sync and bounded: the first that this rank has not contributed to, at least `step`
  uint64_t pushes = 0;  // applied of this rank, by whichever process
};

/// One thread at a time.
class UpdateRule {
 public:
  explicit UpdateRule(const UpdateRuleOptions& options);

  /// Goes on from a state, of the same mode; ranks that it does not have begin anew, and those beyond
  /// worker_count are forgotten, but async: there is room for them.
  UpdateRule(const UpdateRuleOptions& options, UpdateRuleState state);

  UpdateRuleState state() const;

  /// There may be so many ranks from now on, if that is more than before.
  void MakeRoomFor(int worker_count);

  /// FailedPrecondition if a newer incarnation of the rank has joined. What an older process of the rank
  /// waits for is refused (into `actions`); its contributions stay.
  absl::StatusOr<JoinAnswer> Join(const WorkerIdentity& worker, UpdateActions* actions);

  UpdateActions Push(const WorkerIdentity& worker, const PushInfo& push);

  /// The coordinator has chosen; applied as soon as all steps before are and all parts of it are here. What
  /// is known already changes nothing.
  UpdateActions Decide(const StepDecision& decision);

  /// A call makes one step at most, so that its actions and state() agree. To be called until nothing comes
  /// of it.
  UpdateActions Proceed();

  /// Sync and bounded: the first step that this rank has not contributed to, at least the current one.
  uint64_t NextStepOf(int rank) const;

  bool HasJoined(int rank) const { return workers_[rank].process.has_value(); }

  /// No other process of its rank has ever joined.
  bool IsSole(const WorkerIdentity& worker) const;

  /// Aborted unless this process is the newest of its rank.
  absl::Status CheckNewest(const WorkerIdentity& worker) const;

  /// For the coordinator.
  ShardReport Report() const;

  /// Of the open step: contributions that are here.
  int held_of_step() const;

  uint64_t step() const { return step_; }
  /// With those of the state that it went on from.
  PushCounts counts() const;
  /// Of all gradients that are applied, likewise.
  uint64_t samples() const { return samples_; }
  /// By rank, since the rule was made or told to begin again; then what is held counts as received.
  const std::vector<PushTally>& tallies() const { return tallies_; }
  void BeginTallies();
  /// Contributions to steps that are not applied.
  uint64_t held() const;
  /// And of them each, with who is the newest process of its rank.
  std::vector<std::pair<WorkerIdentity, PushInfo>> held_pushes() const;
  /// That cannot be applied yet.
  const std::map<uint64_t, std::vector<int>>& decisions() const { return decisions_; }

 private:
  using Worker = UpdateRuleState::Worker;
  struct Contribution {
    PushInfo push;  // names the gradient
    PushId unanswered =
        0;  // who waits for the answer: this push, or the last one that repeated it; 0: nobody
    PushOutcome outcome = PushOutcome::kHeld;  // of who waits
  };

  void Reject(int rank, PushId id, absl::Status status, UpdateActions* actions);
  void PushAsync(int rank, const PushInfo& push, UpdateActions* actions);
  void Contribute(int rank, const PushInfo& push, UpdateActions* actions);
  void AnswerLate(PushOutcome outcome, const PushInfo& push, UpdateActions* actions);
  void ApplyDecided(UpdateActions* actions);
  void ApplyStep(const std::vector<int>& ranks, UpdateActions* actions);
  void AnswerWhoMayGoOn(UpdateActions* actions);

  UpdateRuleOptions options_;
  std::vector<Worker> workers_;  // by rank
  uint64_t step_ = 0;
  uint64_t samples_ = 0;
  std::map<uint64_t, std::map<int, Contribution>> held_;  // by step, from step_ on, and rank
  std::map<uint64_t, std::vector<int>> decisions_;        // from step_ on
  PushCounts earlier_;                                    // before this rule was made
  std::vector<PushTally> tallies_;
};

}  // namespace muster
