#include <algorithm>

#include "base/allocator.h"
#include "base/logging.h"
#include "base/random.h"
#include "ps/shard_server_impl.h"

namespace muster {
namespace {

constexpr int64_t kLargeStepBytes = 32 << 20;  // half of what a server may take beside a step's gradients

}  // namespace

absl::Status ShardServerImpl::AdoptConfig(const ps::JobConfig& config) {
  if (config_) return CheckSameJob(*config_, config);
  MUSTER_ASSIGN_OR_RETURN(update_, UpdateOf(config));
  if (keeps_checkpoints() && update_.eviction.is_on() &&
      update_.eviction.every != options_.checkpoint_every) {
    spdlog::warn(
        "{}: rows are dropped in intervals of {} steps, as the workers' --checkpoint_every is; here it is {}",
        name_, update_.eviction.every, options_.checkpoint_every);
  }
  MUSTER_ASSIGN_OR_RETURN(Shard shard, Shard::Create(config, shard_index_, shard_count()));
  spdlog::info("{} owns parameters [{}, {}) of {}", name_, shard.range().begin, shard.range().end,
               shard.model_size());
  fresh_.emplace(std::move(shard));
  config_ = config;
  if (host_) {
    BeginCoordinator();
    TellOwnCheckpoints();
  } else if (offered_epoch_.number == 0 || !BeginEpoch(offered_epoch_)) {
    TellOwnCheckpoints();
  }
  return absl::OkStatus();
}

// Whether workers may join such a job, and leave it. What a journal or another server has of it counts them
// once.
bool ShardServerImpl::MayScale(const ps::JobConfig& config) const {
  if (options_.is_standing && !told_ranks_) return false;
  const bool may_come_and_go = options_.is_standing || options_.view->workers_may_come_and_go();
  const bool may_be_other_ones = may_come_and_go && !options_.journal && !options_.replicated;
  return may_be_other_ones && (config.mode() == ps::ASYNC || SharesBatches(config));
}

// Whether each batch is made by those who are there, instead of with gaps where somebody is missing.
bool ShardServerImpl::SharesBatches(const ps::JobConfig& config) const {
  const bool takes_all = config.mode() == ps::SYNC && config.aggregate() == config.worker_count();
  return takes_all && !config.needs_all_workers() && !options_.journal && !options_.replicated;
}

// Whether the worker may join the epoch that is: else the coordinator will begin another one, with it.
bool ShardServerImpl::TakesPart(uint32_t rank) const {
  return !SharesBatches(*config_) || std::ranges::binary_search(participants_, static_cast<int>(rank));
}

// Of a server that stands, by a worker of its job.
void ShardServerImpl::HearOfRanks(const ps::Ranks& ranks) {
  const bool is_news = !told_ranks_ || ranks.generation() > told_ranks_->generation();
  if (!options_.is_standing || !is_news || ranks.count() < 1 || ranks.count() > kMostWorkers) return;
  told_ranks_ = ranks;
  if (config_ && MayScale(*config_)) FollowCluster();
}

std::vector<std::string> ShardServerImpl::RankNames() const {
  std::vector<std::string> names;
  for (int rank = 0; rank < rank_count_; ++rank)
    names.push_back(TaskName(TaskOfRank(options_.cluster, rank)));
  return names;
}

// Of those that came later, who is there counts.
bool ShardServerImpl::all_finished() const {
  const int first = config_ ? std::min<int>(first_ranks_, config_->worker_count()) : first_ranks_;
  const auto is_done = [this](int rank) { return finished_ranks_.contains(rank); };
  for (int rank = 0; rank < first; ++rank) {
    if (!is_done(rank)) return false;
  }
  return std::ranges::all_of(workers_, [&](const auto& entry) {
    const int rank = entry.second.worker.rank;
    return rank < first || is_done(rank);
  });
}

// Of a job that MayScale.
void ShardServerImpl::FollowCluster() {
  const int count =
      options_.is_standing ? static_cast<int>(told_ranks_->count()) : options_.view->ranks().count;
  if (count == rank_count_) return;
  rank_count_ = count;
  first_ranks_ = std::min(first_ranks_, rank_count_);
  tallies_.resize(std::max<size_t>(tallies_.size(), rank_count_));
  const auto has_left = [this](int rank) { return rank >= rank_count_; };
  std::erase_if(finished_ranks_, [&](const auto& entry) { return has_left(entry.first); });
  std::erase_if(asked_for_end_, has_left);
  std::erase_if(awaits_, [&](const auto& entry) { return has_left(entry.first); });
  // What such a worker still sends is none of this job: it has to join again, and cannot.
  std::erase_if(workers_, [&](const auto& entry) {
    if (!has_left(entry.second.worker.rank)) return false;
    turns_.Remove(entry.first);
    arriving_.erase(entry.first);
    return true;
  });
  if (shard_) shard_->MakeRoomFor(rank_count_);
  if (Coordinator* const members = coordinator()) {
    members->SetRanks(RankNames());
    members->Tick(Now());
  }
  if (config_ && all_finished() && !host_ && !keeps_checkpoints()) EndWith(absl::OkStatus());
  for (const PendingJoin& pending : std::exchange(pending_joins_, {})) {
    const absl::Status status = HandleJoin(pending.stream, pending.request, pending.join);
    if (!status.ok()) requests_->SendError(pending.stream, pending.request, status);
  }
}

void ShardServerImpl::BeginCoordinator() {
  CoordinatorOptions coordinator{.rank_names = RankNames(),
                                 .first_ranks = std::min(first_ranks_, update_.rule.worker_count),
                                 .shard_count = shard_count(),
                                 .aggregate = std::min(update_.aggregate, rank_count_),
                                 .shares = SharesBatches(*config_),
                                 .begins_together = options_.begins_together,
                                 .worker_timeout = options_.worker_timeout,
                                 .lease = options_.worker_lease,
                                 .may_go_back = keeps_checkpoints(),
                                 .first_epoch = RandomSeed() >> 1};
  if (config_->needs_all_workers()) {
    // They have long ended then.
    coordinator.worker_timeout = coordinator.lease = 2 * options_.worker_timeout;
  }
  host_->Begin(coordinator);
}

void ShardServerImpl::MakeShardEpoch(const Epoch& epoch, Shard shard, UpdateRuleState rule) {
  UpdateConfig update = update_;
  if (SharesBatches(*config_)) {
    // All whom the rule remembers are still told apart from their successors.
    const int last = participants_.empty() ? 0 : participants_.back();
    update.rule.worker_count = update.aggregate =
        std::max({last + 1, rank_count_, static_cast<int>(rule.workers.size())});
  }
  shard_.emplace(epoch, std::move(shard), update, std::move(rule), requests_.get());
  if (is_async()) shard_->MakeRoomFor(rank_count_);
  if (!participants_.empty()) shard_->ExpectRanks(participants_);
  shard_->OnUpdate([this] { OnUpdate(); });
}

// Before any worker hears of it. For each connection gRPC keeps blocks for as much as it has received at once
// before, which may be a whole gradient: next to the gradients of a step those of the step before, unless
// they are new to the process and take no memory until something comes. Where the processor is the limit,
// that costs a fifth of the steps, so small ones go without. In async mode GiveTurns does it.
void ShardServerImpl::OnUpdate() {
  if (is_async()) return;
  if (FrameBytes() * rank_count_ > kLargeStepBytes) ReturnFreeBlocks();
  TakeSnapshotIfDue();
}

void ShardServerImpl::EndShardEpoch() {
  tallies_ = Tallies();
  shard_.reset();
}

// Without what is held, which may have to be sent again: so that no count ever goes down.
std::vector<PushTally> ShardServerImpl::Tallies() const {
  std::vector<PushTally> tallies = tallies_;
  if (!shard_) return tallies;
  const UpdateRule& rule = shard_->rule();
  tallies.resize(std::max(tallies.size(), rule.tallies().size()));
  for (size_t rank = 0; rank < rule.tallies().size(); ++rank) tallies[rank] += rule.tallies()[rank];
  for (const auto& [worker, push] : rule.held_pushes()) --tallies[worker.rank].counts.received;
  return tallies;
}

// What was asked for in the epoch before is to be asked again, after a join. False: the checkpoint cannot be
// read, or this process has not what the epoch goes on with.
bool ShardServerImpl::BeginEpoch(const Epoch& epoch) {
  const bool has_it =
      shard_ && shard_->epoch().number + 1 == epoch.number && shard_->rule().step() == epoch.step;
  if (epoch.goes_on && !has_it) return false;
  std::erase_if(workers_, [this](const auto& entry) {
    return shard_ && !shard_->rule().CheckNewest(entry.second.worker).ok();
  });
  const UpdateRuleState before = shard_ ? shard_->rule().state() : UpdateRuleState();
  std::optional<Shard> shard = std::exchange(fresh_, std::nullopt);
  if (epoch.goes_on) shard.emplace(shard_->TakeShard());
  EndShardEpoch();  // first: there may not be memory for two
  turns_.Clear();   // who asked hears of the epoch at its next heartbeat
  if (epoch.goes_on) {
    MakeShardEpoch(epoch, *std::move(shard), before);
    OnEpochBegun(absl::StrFormat("%s goes on at step %d with other workers", name_, epoch.step));
    return true;
  }
  read_step_ = epoch.step;
  UpdateRuleState rule{.step = epoch.step};
  if (epoch.step > 0) {
    auto restored = checkpointer_->Read(epoch.step, *config_);
    if (!restored.ok()) {
      spdlog::warn("{}: {}", name_, std::string(restored.status().message()));
      if (absl::IsDataLoss(restored.status()) || absl::IsNotFound(restored.status())) return false;
      EndWith(restored.status());
      return true;
    }
    shard.emplace(std::move(restored->shard));
    rule = std::move(restored->rule);
  } else if (!shard) {
    auto created = Shard::Create(*config_, shard_index_, shard_count());
    MUSTER_CHECK(created.ok());  // it was once
    shard.emplace(*std::move(created));
  }
  if (checkpointer_ != nullptr) checkpointer_->BeginAfter(epoch);
  MakeShardEpoch(epoch, *std::move(shard), WithoutProcesses(std::move(rule), before));
  if (journal_ && !Journaled(journal_->BeginEpoch(*config_, epoch))) return true;
  journaled_decisions_ = epoch.step;
  last_snapshot_ = last_commit_ = newest_common_ = epoch.step;
  next_snapshot_ = 0;
  last_checkpoint_deadline_.reset();
  if (host_) {
    host_->OnEpochBegun();
    coordinator()->RenewLeases(Now());  // nobody was listened to while the checkpoint was read
  }
  spdlog::info("{}: begins at step {}", name_, epoch.step);
  OnEpochBegun(absl::StrFormat("%s has gone back to step %d", name_, epoch.step));
  if (replication_) replication_->OnBegun();
  return true;
}

// `why`: what is asked for has to be asked again.
void ShardServerImpl::OnEpochBegun(const std::string& why) {
  finished_ranks_.clear();
  asked_for_end_.clear();
  over_until_.reset();
  finishes_.clear();
  awaits_.clear();
  last_step_ = 0;
  told_report_ = {};
  requests_->RefuseAll(absl::AbortedError(why), /*join_again=*/true);
  LetParticipantsIn();
}

// Those whom the cluster, or the epoch, is still without wait on.
void ShardServerImpl::LetParticipantsIn() {
  for (PendingJoin& pending : std::exchange(pending_joins_, {})) {
    const uint32_t rank = pending.join.rank();
    if (rank >= static_cast<uint32_t>(rank_count_) || !TakesPart(rank)) {
      pending_joins_.push_back(std::move(pending));
      continue;
    }
    const absl::Status status = CompleteJoin(pending.stream, pending.request, pending.join);
    if (!status.ok()) requests_->SendError(pending.stream, pending.request, status);
  }
}

absl::Status ShardServerImpl::HandleShardJoin(StreamId stream, const ps::ShardJoin& join) {
  if (!host_) return FailedPrecondition("%s is not ps:0", name_);
  MUSTER_RETURN_IF_ERROR(host_->CheckJoin(stream, join));
  if (join.has_config()) {
    MUSTER_RETURN_IF_ERROR(
        Annotate(AdoptConfig(join.config()), absl::StrFormat("ps:%d", join.shard_index())));
  }
  if (coordinator() != nullptr) TellOwnCheckpoints();       // as they are now
  if (host_->Join(stream, join)) last_snapshot_time_ = {};  // it may know nothing of a checkpoint under way
  if (end_) TellOthers(/*always=*/true);                    // nor of the end
  return absl::OkStatus();
}

ps::ShardJoin ShardServerImpl::OwnJoin() const {
  ps::ShardJoin join;
  join.set_shard_index(static_cast<uint32_t>(shard_index_));
  join.set_shard_count(static_cast<uint32_t>(shard_count()));
  join.set_generation(options_.generation);
  join.set_server_uuid(uuid_);
  join.set_incarnation(options_.incarnation);
  join.set_epoch(epoch().number);
  if (replication_) join.set_view(replication_->view().view());
  if (config_) *join.mutable_config() = *config_;
  if (checkpointer_ == nullptr) return join;
  join.set_keeps_checkpoints(true);
  join.set_newest_common(newest_common_);
  for (const CheckpointId& id : checkpointer_->available()) {
    ps::ShardJoin::Checkpoint* checkpoint = join.add_checkpoints();
    checkpoint->set_step(id.step);
    checkpoint->set_digest(id.digest);
  }
  return join;
}

void ShardServerImpl::TellOwnCheckpoints() {
  if (host_) host_->Join(std::nullopt, OwnJoin());
  if (link_ != nullptr) {
    outbox_.Send([this, join = OwnJoin()] {
      if (link_ != nullptr) link_->SendJoin(join);
    });
  }
}

void ShardServerImpl::Coordinate(bool always) {
  // A primary that may have been left behind says nothing: others would take it for the one.
  if (end_ || !serves()) return;
  if (host_) {
    CoordinateAsFirst(always);
  } else {
    CoordinateAsOther(always);
  }
}

void ShardServerImpl::CoordinateAsFirst(bool always) {
  if (coordinator() == nullptr) return TellOthers(always);
  for (const PendingJoin& pending : pending_joins_) {
    const auto rank = static_cast<int>(pending.join.rank());
    if (rank >= rank_count_) continue;
    // Who has come before there was an epoch may be missing from it.
    const MemberState state = coordinator()->state(rank);
    const bool is_missing = shard_ && !TakesPart(pending.join.rank()) &&
                            (state == MemberState::kAbsent || state == MemberState::kLost);
    if (is_missing || (!shard_ && options_.begins_together)) coordinator()->Join(rank, Now());
  }
  do {
    while (true) {
      participants_ = coordinator()->participants();
      if (coordinator()->epoch() == epoch() || coordinator()->end()) break;
      if (!BeginEpoch(coordinator()->epoch())) TellOwnCheckpoints();
      if (end_) return;
    }
    if (shard_) LetParticipantsIn();
    NoteNewestCommon(coordinator()->newest_common());
    if (end_) return;
    if (shard_) MakeSteps(always);
    if (end_) return;
  } while (coordinator()->epoch() != epoch() && !coordinator()->end());
  LogNotices();
  std::erase_if(awaits_, [this](const auto& await) {
    if (!coordinator()->AllOthersDone(await.first)) return false;
    AnswerAwait(await.second);
    return true;
  });
  LogStall(WhatLasts());
  TellOthers(always);
  const auto& end = coordinator()->end();
  if (end && (!end->ok() || !AwaitsLastCheckpoint())) EndWith(*end);
}

// As far as parts of steps are there, and what is due of checkpoints.
void ShardServerImpl::MakeSteps(bool always) {
  const UpdateRule& rule = shard_->rule();
  // An update may let workers contribute whose parts are here already, and so on.
  for (uint64_t step = UINT64_MAX; !is_async() && step != rule.step();) {
    step = rule.step();
    ScheduleSnapshot();
    const bool is_news = told_report_.step != step || told_report_.epoch != epoch().number;
    if (always || is_news || rule.held_of_step() >= coordinator()->needed()) {
      told_report_ = rule.Report();
      told_report_.epoch = epoch().number;
      coordinator()->Report(0, told_report_, Now());
    }
    if (coordinator()->epoch() != epoch()) return;  // which others share
    const auto decisions = coordinator()->decisions();
    LogDecisions(decisions);
    if (end_) return;
    TellOthers(/*always=*/false);  // first, so that all shards apply at the same time
    for (const auto& [of_step, ranks] : decisions) shard_->Decide({of_step, ranks});
  }
  if (!keeps_checkpoints()) return;
  const bool is_due = rule.step() >= last_snapshot_ + options_.checkpoint_every && !is_checkpointing();
  if (is_async() && is_due && !coordinator()->end()) {
    TakeSnapshot(rule.step());
    TellOthers(/*always=*/true);
  }
  const uint64_t settled = checkpointer_->settled();  // before what is written, so that no file is missed
  host_->AddFiles(0, checkpointer_->written());
  host_->NoteFailed(checkpointer_->failed());
  host_->NoteSettled(0, settled);
  if (const auto complete = host_->TakeComplete()) {
    checkpointer_->Commit(*complete, coordinator()->newest_common());
  }
  checkpointer_->Abandon(host_->abandoned());
}

void ShardServerImpl::LogNotices() {
  for (const MembershipNotice& notice : coordinator()->TakeNotices()) {
    notice.state == MemberState::kLost ? spdlog::warn("{}: {}", name_, notice.text)
                                       : spdlog::info("{}: {}", name_, notice.text);
  }
}

void ShardServerImpl::TellOthers(bool always) {
  ps::Coordination word;
  word.set_waits_for(waits_for_);
  word.set_epoch(epoch().number);
  word.set_epoch_step(epoch().step);
  word.set_epoch_goes_on(epoch().goes_on);
  word.set_checkpoint(is_async() ? last_snapshot_ : next_snapshot_);
  if (coordinator() != nullptr) word.set_needed_checkpoint(coordinator()->newest_common());
  word.set_ended(end_.has_value());
  if (end_ && !end_->ok()) SetError(*end_, word.mutable_end());
  host_->Tell(std::move(word), always, journal_ || replication_ ? journaled_decisions_ : UINT64_MAX);
}

// What the job, or who has nothing left to do, has waited for so long that it is worth a word.
std::string ShardServerImpl::WhatLasts() const {
  if (is_stalled()) return host_->DescribeWait();
  if (coordinator()->beginning_awaited_since() < Now() - kStallAfter) {
    return coordinator()->DescribeBeginning(Now());
  }
  const bool awaits_end = coordinator()->end_awaited_since() < Now() - kStallAfter;
  return awaits_end ? coordinator()->DescribeEnd(Now()) : "";
}

// Said once, and again when it lasts.
void ShardServerImpl::LogStall(const std::string& waits_for) {
  const bool is_new = waits_for_.empty();
  waits_for_ = waits_for;
  if (waits_for.empty() || (!is_new && Now() < next_stall_log_)) return;
  next_stall_log_ = Now() + std::chrono::seconds(30);
  spdlog::warn("{}: {}", name_, waits_for);
}

// Also for the next process: of servers that have lost their files it says that there were some.
void ShardServerImpl::NoteNewestCommon(uint64_t checkpoint) {
  if (checkpoint <= newest_common_) return;
  newest_common_ = checkpoint;
  if (journal_ && shard_) (void)Journaled(journal_->Append(CommonRecord(checkpoint), {}));
}

void ShardServerImpl::CoordinateAsOther(bool always) {
  if (link_ == nullptr) return;
  if (always) TellOwnCheckpoints();
  if (!shard_) return;
  const UpdateRule& rule = shard_->rule();
  const bool is_news = told_report_.step != rule.step() || told_report_.epoch != epoch().number;
  const bool may_matter = !is_async() && (is_news || rule.held_of_step() >= needed_);
  if (!always && !may_matter) return;
  ShardReport report = rule.Report();
  report.epoch = epoch().number;
  if (!always && report == told_report_) return;
  told_report_ = std::move(report);
  ps::ShardReport out;
  out.set_step(told_report_.step);
  out.set_epoch(told_report_.epoch);
  for (const HeldPart& held : told_report_.held) {
    ps::ShardReport::Part* part = out.add_held();
    part->set_step(held.step);
    part->set_rank(static_cast<uint32_t>(held.rank));
  }
  if (checkpointer_ != nullptr) {
    out.set_settled_checkpoint(checkpointer_->settled());  // first, as in MakeSteps
    for (const auto& [step, file] : checkpointer_->written()) {
      ps::ShardReport::File* written = out.add_files();
      written->set_checkpoint(step);
      written->set_file(file.SerializeAsString());
    }
    out.set_failed_checkpoint(checkpointer_->failed());
  }
  outbox_.Send([this, out = std::move(out)] {
    if (link_ != nullptr) link_->Send(out);
  });
}

void ShardServerImpl::OnCoordination(const ps::Coordination& coordination, uint64_t round) {
  const std::lock_guard lock(mutex_);
  if (end_ || round != link_round_) return;
  WithinMemory([&] { HandleCoordination(coordination); });
}

void ShardServerImpl::HandleCoordination(const ps::Coordination& coordination) {
  needed_ = static_cast<int>(coordination.needed());
  waits_for_ = coordination.waits_for();
  offered_epoch_ = {coordination.epoch(), coordination.epoch_step(), coordination.epoch_goes_on()};
  const bool has_other_participants =
      !std::ranges::equal(coordination.participants(), participants_, std::equal_to<uint64_t>());
  participants_ = {coordination.participants().begin(), coordination.participants().end()};
  const auto is_bad_rank = [](uint32_t rank) { return rank >= kMostWorkers; };
  if (std::ranges::any_of(coordination.participants(), is_bad_rank) ||
      !std::ranges::is_sorted(participants_)) {
    return EndWith(InvalidArgument("ps:0 names workers that there cannot be"));
  }
  // An epoch that is over begins no more: whoever joined would find less than there was.
  const bool is_news = config_ && !coordination.ended() && offered_epoch_.number > epoch().number;
  if (is_news && !BeginEpoch(offered_epoch_)) TellOwnCheckpoints();
  // A ps:0 that has just started knows of none.
  if (offered_epoch_.number > 0) NoteNewestCommon(coordination.needed_checkpoint());
  if (end_) return;
  if (shard_ && offered_epoch_ == epoch()) {
    if (has_other_participants) LetParticipantsIn();
    if (!is_async()) {
      next_snapshot_ = coordination.checkpoint();
      TakeSnapshotIfDue();  // it may be that of the last step
    }
    std::map<uint64_t, std::vector<int>> decisions;
    for (const ps::Coordination::Decision& decision : coordination.decisions()) {
      // Some may have left since.
      const auto is_bad = [this](uint32_t rank) { return rank >= shard_->rule().tallies().size(); };
      if (decision.ranks().empty() || std::any_of(decision.ranks().begin(), decision.ranks().end(), is_bad)) {
        return EndWith(
            InvalidArgument("ps:0 has chosen contributors of step %d that there cannot be", decision.step()));
      }
      decisions[decision.step()] = {decision.ranks().begin(), decision.ranks().end()};
    }
    for (const auto& decision : decisions) {
      // One by one: a checkpoint between two of them begins another segment.
      LogDecisions({decision});
      if (end_) return;
      shard_->Decide({decision.first, decision.second});
    }
    if (is_async() && coordination.checkpoint() > last_snapshot_) TakeSnapshot(coordination.checkpoint());
    checkpoint::Manifest committed;
    if (checkpointer_ != nullptr && committed.ParseFromString(coordination.committed()) &&
        committed.step() > last_commit_) {
      last_commit_ = committed.step();
      checkpointer_->Commit(committed, coordination.needed_checkpoint());
    }
    if (checkpointer_ != nullptr) checkpointer_->Abandon(coordination.abandoned_checkpoint());
  }
  if (coordination.ended()) {
    EndWith(coordination.has_end() ? StatusOf(coordination.end(), "ps:0") : absl::OkStatus());
  }
  Coordinate(/*always=*/false);
}

}  // namespace muster
