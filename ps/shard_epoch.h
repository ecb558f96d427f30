// ShardEpoch: a shard since the beginning of an epoch: its numbers, the rule that says what becomes of
// pushes, and the gradients and pulls that wait for that.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "base/status.h"
#include "cluster/coordinator.h"
#include "proto/parameter_server.pb.h"
#include "ps/early_update.h"
#include "ps/encoding.h"
#include "ps/job_config.h"
#include "ps/requests.h"
#include "ps/shard.h"
#include "ps/update_rule.h"

namespace muster {

/// One thread at a time.
class ShardEpoch {
 public:
  /// `requests` must live longer.
  ShardEpoch(const Epoch& epoch, Shard shard, const UpdateConfig& update, UpdateRuleState state,
             Requests* requests);

  /// Called after each update, before the next one.
  void OnUpdate(std::function<void()> after_update) { after_update_ = std::move(after_update); }

  const Epoch& epoch() const { return epoch_; }
  const UpdateRule& rule() const { return rule_; }
  void BeginTallies() { rule_.BeginTallies(); }
  const Shard& shard() const { return shard_; }

  /// Of these ranks, ascending, the next step will probably be made; else of all that there is room for.
  void ExpectRanks(std::vector<int> ranks) { last_ranks_ = std::move(ranks); }

  /// For the next epoch, which begins with it. Nothing but the rule is to be used any more.
  Shard TakeShard() {
    GiveUpEarly();
    return std::move(shard_);
  }

  /// As that of UpdateRule.
  void MakeRoomFor(int worker_count) { rule_.MakeRoomFor(worker_count); }

  /// As UpdateRule::Join.
  absl::StatusOr<JoinAnswer> Join(const WorkerIdentity& worker);

  /// Whether its steps are made while their gradients still come: those that all workers are part of, in
  /// whole numbers.
  bool makes_early() const { return makes_early_; }

  /// Floats of a push of `worker` from `begin` on, not all of which have come; of one that has no parts all
  /// of them, before Push. The first parameters may be sent to those who take them in parts.
  void Arrive(const WorkerIdentity& worker, const ps::Push& push, const EarlyUpdate::Push& arrival,
              int64_t begin, const FloatPayload& values);

  /// InvalidArgument: rows or floats that are not this shard's.
  absl::Status CheckPush(const WorkerIdentity& worker, const ps::Push& push,
                         const ShardGradient& gradient) const;

  /// Of one that CheckPush has nothing against: answers, refuses or keeps the request.
  void Push(const WorkerIdentity& worker, PushId request, const ps::Push& push, ShardGradient gradient);

  /// Held ones: `visit` gets each with its gradient.
  void VisitHeld(
      const std::function<void(const WorkerIdentity&, const ps::Push&, const ShardGradient&)>& visit) const;

  /// As that of Shard.
  ShardSnapshot Snapshot();

  absl::Status Pull(StreamId stream, uint64_t request, const ps::Pull& pull);

  void Decide(const StepDecision& decision);

  /// With the parameters, if there are any, and the rows that the request named, in the form that it wants
  /// them in.
  void Answer(PushId id, ps::ServerHeader header, const Floats& parameters);

 private:
  struct Held {
    int rank = 0;
    ShardGradient gradient;
  };
  struct WaitingPull {
    PushId id = 0;
    ps::Pull pull;
  };

  void Perform(UpdateActions actions);
  void Do(const ApplyAction& action);
  void Do(const DiscardAction& action) { gradients_.erase(action.id); }
  void Do(const AnswerAction& action);
  void Do(const RefuseAction& action) { requests_->Refuse(action.id, action.status); }
  void AnswerPulls();
  void GiveUpEarly();
  int64_t EarlyOf(const Request& request, const ps::ServerHeader& answer) const;

  const Epoch epoch_;
  const bool is_async_;
  const bool makes_early_;
  const ps::WireType wire_type_;
  Shard shard_;
  ParameterEncoder encoder_;
  UpdateRule rule_;
  Requests* const requests_;
  std::function<void()> after_update_;
  std::map<PushId, Held> gradients_;
  EarlyUpdate early_;
  std::vector<int> last_ranks_;  // that made up the last step
  std::vector<WaitingPull> pulls_;
};

}  // namespace muster
