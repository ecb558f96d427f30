#include "ps/update_rule.h"

#include <algorithm>
#include <cmath>

namespace muster {

UpdateRuleState WithoutProcesses(UpdateRuleState state, const UpdateRuleState& before) {
  state.workers.resize(std::max(state.workers.size(), before.workers.size()));
  for (size_t rank = 0; rank < state.workers.size(); ++rank) {
    UpdateRuleState::Worker& worker = state.workers[rank];
    worker.process.reset();
    worker.has_predecessor = rank < before.workers.size() && (before.workers[rank].has_predecessor ||
                                                              before.workers[rank].process.has_value());
  }
  return state;
}

PushCounts& operator+=(PushCounts& sum, const PushCounts& other) {
  sum.received += other.received;
  sum.applied += other.applied;
  sum.stale += other.stale;
  sum.duplicate += other.duplicate;
  sum.rejected += other.rejected;
  return sum;
}

PushTally& PushTally::operator+=(const PushTally& other) {
  counts += other.counts;
  staleness.Add(other.staleness);
  return *this;
}

UpdateRule::UpdateRule(const UpdateRuleOptions& options)
    : options_(options), workers_(options.worker_count), tallies_(options.worker_count) {
  MUSTER_CHECK(options.worker_count > 0);
  MUSTER_CHECK(options.mode == UpdateMode::kBounded || options.staleness == 0);
}

UpdateRule::UpdateRule(const UpdateRuleOptions& options, UpdateRuleState state) : UpdateRule(options) {
  step_ = state.step;
  samples_ = state.samples;
  earlier_ = state.counts;
  if (options.mode == UpdateMode::kAsync) MakeRoomFor(static_cast<int>(state.workers.size()));
  workers_ = std::move(state.workers);
  workers_.resize(options_.worker_count);
}

UpdateRuleState UpdateRule::state() const {
  UpdateRuleState state{.step = step_, .workers = workers_, .counts = counts(), .samples = samples_};
  state.counts.received -= held();
  return state;
}

PushCounts UpdateRule::counts() const {
  PushCounts counts = earlier_;
  for (const PushTally& tally : tallies_) counts += tally.counts;
  return counts;
}

void UpdateRule::BeginTallies() {
  earlier_ = state().counts;
  tallies_.assign(options_.worker_count, {});
  for (const auto& [step, contributions] : held_) {
    for (const auto& [rank, contribution] : contributions) ++tallies_[rank].counts.received;
  }
}

void UpdateRule::MakeRoomFor(int worker_count) {
  if (worker_count <= options_.worker_count) return;
  options_.worker_count = worker_count;
  workers_.resize(worker_count);
  tallies_.resize(worker_count);
}

uint64_t UpdateRule::NextStepOf(int rank) const {
  uint64_t next = step_;
  for (const auto& [step, contributions] : held_) {
    if (contributions.contains(rank)) next = step + 1;
  }
  return next;
}

absl::StatusOr<JoinAnswer> UpdateRule::Join(const WorkerIdentity& worker, UpdateActions* actions) {
  MUSTER_CHECK(worker.rank >= 0 && worker.rank < options_.worker_count);
  Worker& known = workers_[worker.rank];
  const bool same_process = known.process && known.process->uuid == worker.uuid;
  if (known.process && !same_process && worker.incarnation < known.process->incarnation) {
    return FailedPrecondition("rank %d: incarnation %d is not the newest, incarnation %d has joined",
                              worker.rank, worker.incarnation, known.process->incarnation);
  }
  if (!same_process) {
    known.has_predecessor = known.has_predecessor || known.process.has_value();
    known.process = worker;
    known.sequences = {};
  }
  JoinAnswer answer{.step = step_, .next_step = NextStepOf(worker.rank), .pushes = known.pushes};
  for (auto& [step, contributions] : held_) {
    const auto held = contributions.find(worker.rank);
    if (held == contributions.end()) continue;
    if (same_process || held->second.unanswered == 0) continue;
    actions->push_back(RefuseAction{
        held->second.unanswered, Aborted("rank %d: a newer process of this task has joined", worker.rank)});
    held->second.unanswered = 0;
  }
  return answer;
}

absl::Status UpdateRule::CheckNewest(const WorkerIdentity& worker) const {
  MUSTER_CHECK(worker.rank >= 0 && worker.rank < options_.worker_count);
  const auto& process = workers_[worker.rank].process;
  if (process && process->uuid == worker.uuid) return absl::OkStatus();
  return Aborted("rank %d: a newer process of this task has joined; this one has to end", worker.rank);
}

bool UpdateRule::IsSole(const WorkerIdentity& worker) const {
  MUSTER_CHECK(worker.rank >= 0 && worker.rank < options_.worker_count);
  const UpdateRuleState::Worker& known = workers_[worker.rank];
  return !known.has_predecessor && (!known.process || known.process->uuid == worker.uuid);
}

UpdateActions UpdateRule::Push(const WorkerIdentity& worker, const PushInfo& push) {
  UpdateActions actions;
  ++tallies_[worker.rank].counts.received;
  const auto reject = [&](absl::Status status) { Reject(worker.rank, push.id, std::move(status), &actions); };
  if (absl::Status newest = CheckNewest(worker); !newest.ok()) {
    reject(std::move(newest));
  } else if (!std::isfinite(push.loss_sum) || !push.finite) {
    reject(
        InvalidArgument("rank %d: the %s of step %d is not finite; lower the learning rate or check the data",
                        worker.rank, push.finite ? "loss" : "gradient", push.step));
  } else if (push.samples == 0) {
    reject(InvalidArgument("rank %d: a push of step %d without samples", worker.rank, push.step));
  } else if (push.version > step_) {
    reject(DataLoss("rank %d computed from step %d, but this shard is at step %d: it has lost updates",
                    worker.rank, push.version, step_));
  } else if (options_.mode == UpdateMode::kAsync) {
    PushAsync(worker.rank, push, &actions);
  } else if (push.version + options_.staleness < push.step) {
    reject(InvalidArgument("rank %d computed its part of step %d from step %d: more than %d steps apart",
                           worker.rank, push.step, push.version, options_.staleness));
  } else {
    Contribute(worker.rank, push, &actions);
  }
  return actions;
}

void UpdateRule::PushAsync(int rank, const PushInfo& push, UpdateActions* actions) {
  Worker& worker = workers_[rank];
  PushTally& tally = tallies_[rank];
  // What is older than the window was answered long ago, whatever it was.
  if (worker.sequences.Contains(push.sequence) || worker.sequences.IsTooOld(push.sequence)) {
    ++tally.counts.duplicate;
    return AnswerLate(PushOutcome::kDuplicate, push, actions);
  }
  const uint64_t staleness = step_ - push.version;
  if (options_.max_staleness && staleness > *options_.max_staleness) {
    ++tally.counts.stale;
    return AnswerLate(PushOutcome::kStale, push, actions);
  }
  worker.sequences.Insert(push.sequence);
  ++worker.pushes;
  ++tally.counts.applied;
  tally.staleness.Add(static_cast<double>(staleness));
  ++step_;
  samples_ += push.samples;
  actions->push_back(
      ApplyAction{.pushes = {push.id},
                  .samples = push.samples,
                  .step = step_,
                  .rate_scale = options_.scale_rate ? 1.0f / (1.0f + static_cast<float>(staleness)) : 1.0f});
  actions->push_back(AnswerAction{.id = push.id,
                                  .outcome = PushOutcome::kApplied,
                                  .step = step_,
                                  .mean_loss = push.loss_sum / static_cast<double>(push.samples),
                                  .samples = push.samples,
                                  .staleness = staleness,
                                  .all_samples = samples_});
}

void UpdateRule::Contribute(int rank, const PushInfo& push, UpdateActions* actions) {
  PushCounts& counts = tallies_[rank].counts;
  if (push.step < step_) {
    // Its step is over: it was part of it, and its answer was lost, or the step went on without it.
    const bool applied = workers_[rank].steps.Contains(push.step);
    ++(applied ? counts.duplicate : counts.stale);
    return AnswerLate(applied ? PushOutcome::kDuplicate : PushOutcome::kStale, push, actions);
  }
  const auto [found, added] =
      held_[push.step].try_emplace(rank, Contribution{.push = push, .unanswered = push.id});
  if (!added) {
    // Sent again, or computed again by a new process. The first one stays.
    Contribution& held = found->second;
    ++counts.duplicate;
    actions->push_back(DiscardAction{push.id});
    if (held.unanswered != 0) {
      actions->push_back(RefuseAction{
          held.unanswered, Aborted("rank %d has sent its part of step %d again", rank, push.step)});
    }
    held.unanswered = push.id;
    held.outcome = PushOutcome::kDuplicate;
  }
  ApplyDecided(actions);
  AnswerWhoMayGoOn(actions);
}

void UpdateRule::AnswerLate(PushOutcome outcome, const PushInfo& push, UpdateActions* actions) {
  actions->push_back(DiscardAction{push.id});
  actions->push_back(AnswerAction{.id = push.id,
                                  .outcome = outcome,
                                  .step = step_,
                                  .mean_loss = push.loss_sum / static_cast<double>(push.samples),
                                  .samples = push.samples,
                                  .staleness = step_ - push.version,
                                  .all_samples = samples_});
}

UpdateActions UpdateRule::Decide(const StepDecision& decision) {
  UpdateActions actions;
  if (decision.step < step_ || decision.ranks.empty()) return actions;
  const auto [known, added] = decisions_.emplace(decision.step, decision.ranks);
  MUSTER_CHECK(known->second == decision.ranks);  // a step is chosen once
  ApplyDecided(&actions);
  AnswerWhoMayGoOn(&actions);
  return actions;
}

UpdateActions UpdateRule::Proceed() {
  UpdateActions actions;
  ApplyDecided(&actions);
  AnswerWhoMayGoOn(&actions);
  return actions;
}

void UpdateRule::ApplyDecided(UpdateActions* actions) {
  const auto next = decisions_.find(step_);
  const auto here = held_.find(step_);
  if (next == decisions_.end() || here == held_.end()) return;
  const auto is_here = [&](int rank) { return here->second.contains(rank); };
  if (!std::all_of(next->second.begin(), next->second.end(), is_here)) return;
  const std::vector<int> ranks = std::move(decisions_.extract(next).mapped());
  ApplyStep(ranks, actions);
}

void UpdateRule::ApplyStep(const std::vector<int>& ranks, UpdateActions* actions) {
  std::map<int, Contribution> contributions = std::move(held_.extract(step_).mapped());
  ApplyAction apply;
  double loss_sum = 0;
  for (const int rank : ranks) {
    const PushInfo& push = contributions.at(rank).push;
    apply.pushes.push_back(push.id);
    apply.samples += push.samples;
    loss_sum += push.loss_sum;
    workers_[rank].steps.Insert(step_);
    ++workers_[rank].pushes;
    ++tallies_[rank].counts.applied;
    tallies_[rank].staleness.Add(static_cast<double>(step_ - push.version));
  }
  apply.step = ++step_;
  const uint64_t samples = apply.samples;
  samples_ += samples;
  actions->push_back(std::move(apply));
  for (const auto& [rank, contribution] : contributions) {
    const bool chosen = workers_[rank].steps.Contains(step_ - 1);
    if (!chosen) {
      ++tallies_[rank].counts.stale;
      actions->push_back(DiscardAction{contribution.push.id});
    }
    if (contribution.unanswered == 0) continue;
    const PushOutcome chosen_outcome =
        contribution.outcome == PushOutcome::kDuplicate ? PushOutcome::kDuplicate : PushOutcome::kApplied;
    actions->push_back(AnswerAction{.id = contribution.unanswered,
                                    .outcome = chosen ? chosen_outcome : PushOutcome::kStale,
                                    .step = step_,
                                    .mean_loss = loss_sum / static_cast<double>(samples),
                                    .samples = samples,
                                    .staleness = step_ - 1 - contribution.push.version,
                                    .all_samples = samples_});
  }
}

void UpdateRule::AnswerWhoMayGoOn(UpdateActions* actions) {
  for (auto& [step, contributions] : held_) {
    if (step + 1 > step_ + options_.staleness) break;
    for (auto& [rank, contribution] : contributions) {
      if (contribution.unanswered == 0) continue;
      const PushInfo& push = contribution.push;
      actions->push_back(AnswerAction{.id = std::exchange(contribution.unanswered, 0),
                                      .outcome = contribution.outcome,
                                      .step = step_,
                                      .mean_loss = push.loss_sum / static_cast<double>(push.samples),
                                      .samples = push.samples,
                                      .staleness = step - push.version,
                                      .all_samples = samples_});
    }
  }
}

ShardReport UpdateRule::Report() const {
  ShardReport report{.step = step_};
  for (const auto& [step, contributions] : held_) {
    for (const auto& [rank, contribution] : contributions) report.held.push_back({step, rank});
  }
  return report;
}

int UpdateRule::held_of_step() const {
  const auto open = held_.find(step_);
  return open == held_.end() ? 0 : static_cast<int>(open->second.size());
}

uint64_t UpdateRule::held() const {
  uint64_t count = 0;
  for (const auto& [step, contributions] : held_) count += contributions.size();
  return count;
}

std::vector<std::pair<WorkerIdentity, PushInfo>> UpdateRule::held_pushes() const {
  std::vector<std::pair<WorkerIdentity, PushInfo>> pushes;
  for (const auto& [step, contributions] : held_) {
    for (const auto& [rank, contribution] : contributions) {
      pushes.emplace_back(*workers_[rank].process, contribution.push);
    }
  }
  return pushes;
}

void UpdateRule::Reject(int rank, PushId id, absl::Status status, UpdateActions* actions) {
  ++tallies_[rank].counts.rejected;
  actions->push_back(DiscardAction{id});
  actions->push_back(RefuseAction{id, std::move(status)});
}

}  // namespace muster
