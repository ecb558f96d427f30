#include "ps/update_rule.h"

#include <algorithm>
#include <cmath>

namespace muster {

UpdateRule::UpdateRule(const UpdateRuleOptions& options, TimePoint now)
    : options_(options), workers_(options.worker_count) {
  MUSTER_CHECK(options.worker_count > 0);
  for (Worker& worker : workers_) worker.last_heard = now;
}

absl::StatusOr<JoinAnswer> UpdateRule::Join(const WorkerIdentity& worker, TimePoint now,
                                            UpdateActions* actions) {
  MUSTER_CHECK(worker.rank >= 0 && worker.rank < options_.worker_count);
  Worker& known = workers_[worker.rank];
  const bool same_process = known.process && known.process->uuid == worker.uuid;
  if (known.process && !same_process && worker.incarnation < known.process->incarnation) {
    return FailedPrecondition("rank %d: incarnation %d is not the newest, incarnation %d has joined",
                              worker.rank, worker.incarnation, known.process->incarnation);
  }
  known.last_heard = now;
  if (!same_process) {
    known.process = worker;
    known.last_applied_sequence = 0;
    known.finished = false;
    const absl::Status replaced = Aborted("rank %d: a newer process of this task has joined", worker.rank);
    if (const auto held = contributions_.find(worker.rank); held != contributions_.end()) {
      Reject(held->second.id, replaced, actions);
      contributions_.erase(held);
    }
    if (const auto await = awaits_.find(worker.rank); await != awaits_.end()) {
      actions->push_back(RefuseAction{await->second, replaced});
      awaits_.erase(await);
    }
  }
  return JoinAnswer{.step = step_, .pushes = known.pushes};
}

UpdateActions UpdateRule::Push(const WorkerIdentity& worker, const PushInfo& push, TimePoint now) {
  UpdateActions actions;
  ++counts_.received;
  if (absl::Status newest = CheckNewest(worker); !newest.ok()) {
    Reject(push.id, std::move(newest), &actions);
    return actions;
  }
  Worker& known = workers_[worker.rank];
  known.last_heard = now;
  if (!std::isfinite(push.loss_sum)) {
    Reject(push.id,
           InvalidArgument(
               "rank %d: the loss of step %d is not finite; lower the learning rate or check the data",
               worker.rank, push.step),
           &actions);
  } else if (push.samples == 0) {
    Reject(push.id, InvalidArgument("rank %d: a push of step %d without samples", worker.rank, push.step),
           &actions);
  } else if (push.step > step_) {
    Reject(push.id,
           DataLoss("rank %d computed from step %d, but this shard is at step %d: it has lost updates",
                    worker.rank, push.step, step_),
           &actions);
  } else if (options_.mode == UpdateMode::kAsync) {
    PushAsync(known, push, &actions);
  } else {
    PushSync(worker.rank, push, &actions);
  }
  return actions;
}

void UpdateRule::PushAsync(Worker& worker, const PushInfo& push, UpdateActions* actions) {
  if (push.sequence <= worker.last_applied_sequence) {
    ++counts_.duplicate;
    AnswerLate(PushOutcome::kDuplicate, push, actions);
    return;
  }
  const uint64_t staleness = step_ - push.step;
  worker.last_applied_sequence = push.sequence;
  ++worker.pushes;
  ++counts_.applied;
  ++step_;
  actions->push_back(ApplyAction{.pushes = {push.id}, .samples = push.samples, .step = step_});
  actions->push_back(AnswerAction{.id = push.id,
                                  .outcome = PushOutcome::kApplied,
                                  .step = step_,
                                  .mean_loss = push.loss_sum / static_cast<double>(push.samples),
                                  .samples = push.samples,
                                  .staleness = staleness});
}

void UpdateRule::PushSync(int rank, const PushInfo& push, UpdateActions* actions) {
  Worker& worker = workers_[rank];
  if (push.step < step_) {
    // Computed for a step that is over: it was part of it (and its answer was lost), or the step went on
    // without it.
    const bool applied = push.step < worker.contributed_steps;
    ++(applied ? counts_.duplicate : counts_.stale);
    AnswerLate(applied ? PushOutcome::kDuplicate : PushOutcome::kStale, push, actions);
    return;
  }
  const auto [held, added] = contributions_.emplace(rank, push);
  if (!added) {
    // Sent again over a new stream. The one that is held is the same gradient, but its sender no longer
    // listens for the answer: the new one takes its place.
    ++counts_.duplicate;
    actions->push_back(
        RefuseAction{held->second.id, Aborted("rank %d has sent step %d again", rank, push.step)});
    held->second = push;
  }
  ApplyStepIfComplete(actions);
}

void UpdateRule::AnswerLate(PushOutcome outcome, const PushInfo& push, UpdateActions* actions) {
  actions->push_back(AnswerAction{.id = push.id,
                                  .outcome = outcome,
                                  .step = step_,
                                  .mean_loss = push.loss_sum / static_cast<double>(push.samples),
                                  .samples = push.samples,
                                  .staleness = step_ - push.step});
}

void UpdateRule::ApplyStepIfComplete(UpdateActions* actions) {
  if (contributions_.empty() || !MissingRanks().empty()) return;
  ApplyAction apply;
  double loss_sum = 0;
  for (const auto& [rank, push] : contributions_) {  // in order of rank
    apply.pushes.push_back(push.id);
    apply.samples += push.samples;
    loss_sum += push.loss_sum;
  }
  apply.step = ++step_;
  const uint64_t samples = apply.samples;
  actions->push_back(std::move(apply));
  for (const auto& [rank, push] : contributions_) {
    workers_[rank].contributed_steps = step_;
    ++workers_[rank].pushes;
    ++counts_.applied;
    actions->push_back(AnswerAction{.id = push.id,
                                    .outcome = PushOutcome::kApplied,
                                    .step = step_,
                                    .mean_loss = loss_sum / static_cast<double>(samples),
                                    .samples = samples,
                                    .staleness = 0});
  }
  contributions_.clear();
}

void UpdateRule::Heard(const WorkerIdentity& worker, TimePoint now) {
  if (CheckNewest(worker).ok()) workers_[worker.rank].last_heard = now;
}

UpdateActions UpdateRule::AwaitFinished(const WorkerIdentity& worker, PushId id, TimePoint now) {
  UpdateActions actions;
  if (absl::Status newest = CheckNewest(worker); !newest.ok()) {
    actions.push_back(RefuseAction{id, std::move(newest)});
    return actions;
  }
  workers_[worker.rank].last_heard = now;
  if (const auto old = awaits_.find(worker.rank); old != awaits_.end()) {
    actions.push_back(RefuseAction{old->second, Aborted("rank %d has asked again", worker.rank)});
  }
  awaits_[worker.rank] = id;
  ReleaseIfFinished(&actions);
  return actions;
}

UpdateActions UpdateRule::Finish(const WorkerIdentity& worker, TimePoint now) {
  UpdateActions actions;
  if (!CheckNewest(worker).ok()) return actions;
  Worker& known = workers_[worker.rank];
  known.last_heard = now;
  known.finished = true;
  ApplyStepIfComplete(&actions);  // a step that waited only for this worker goes on without it
  ReleaseIfFinished(&actions);
  if (!ended_ && std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.finished; })) {
    ended_ = true;
    actions.push_back(EndAction{absl::OkStatus()});
  }
  return actions;
}

void UpdateRule::ReleaseIfFinished(UpdateActions* actions) {
  for (auto await = awaits_.begin(); await != awaits_.end();) {
    bool others_finished = true;
    for (int rank = 0; rank < options_.worker_count; ++rank) {
      others_finished = others_finished && (rank == await->first || workers_[rank].finished);
    }
    if (!others_finished) {
      ++await;
      continue;
    }
    actions->push_back(ReleaseAction{await->second});
    await = awaits_.erase(await);
  }
}

UpdateActions UpdateRule::Tick(TimePoint now) {
  UpdateActions actions;
  if (ended_ || now < next_deadline()) return actions;
  // Nobody has been heard of who could end the waits: the job cannot go on.
  const std::string missing = DescribeRanks(MissingRanks(), now);
  const absl::Status status = DeadlineExceeded("step %d waits for %s", step_, missing);
  for (const auto& [rank, push] : contributions_) Reject(push.id, status, &actions);
  contributions_.clear();
  for (const auto& [rank, id] : awaits_) actions.push_back(RefuseAction{id, status});
  awaits_.clear();
  ended_ = true;
  actions.push_back(EndAction{status});
  return actions;
}

TimePoint UpdateRule::next_deadline() const {
  // The job stands still only when every worker that something waits for has been silent for the whole time:
  // those that have neither finished nor wait for an answer themselves.
  TimePoint last_heard = TimePoint::min();
  for (const int rank : MissingRanks()) last_heard = std::max(last_heard, workers_[rank].last_heard);
  return last_heard == TimePoint::min() || ended_ ? TimePoint::max() : last_heard + options_.worker_timeout;
}

std::vector<int> UpdateRule::MissingRanks() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < options_.worker_count; ++rank) {
    if (!workers_[rank].finished && !contributions_.contains(rank) && !awaits_.contains(rank))
      ranks.push_back(rank);
  }
  return ranks;
}

std::string UpdateRule::DescribeRanks(const std::vector<int>& ranks, TimePoint now) const {
  std::string text;
  for (const int rank : ranks) {
    const Worker& worker = workers_[rank];
    text += absl::StrFormat("%srank %d (%s for %s)", text.empty() ? "" : ", ", rank,
                            worker.process ? "silent" : "not joined", FormatAge(now - worker.last_heard));
  }
  return text;
}

absl::Status UpdateRule::CheckNewest(const WorkerIdentity& worker) const {
  MUSTER_CHECK(worker.rank >= 0 && worker.rank < options_.worker_count);
  const auto& process = workers_[worker.rank].process;
  if (process && process->uuid == worker.uuid) return absl::OkStatus();
  return Aborted("rank %d: a newer process of this task has joined; this one has to end", worker.rank);
}

void UpdateRule::Reject(PushId id, absl::Status status, UpdateActions* actions) {
  ++counts_.rejected;
  actions->push_back(RefuseAction{id, std::move(status)});
}

}  // namespace muster
