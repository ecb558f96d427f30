#include <algorithm>
#include <set>

#include "base/logging.h"
#include "ps/shard_server_impl.h"

namespace muster {

// The host may be another one, and the checkpoints on the one before it; or all have ended in the moment of
// one.
void ShardServerImpl::LookForCopies(Duration patience, const std::stop_token& stop) {
  bool has_memory = true;
  try {
    copies_->Fetch(patience, stop);
  } catch (const std::bad_alloc&) {
    has_memory = false;
  }
  const std::lock_guard lock(mutex_);
  if (end_) return;
  if (!has_memory) return EndWith(OutOfMemory());
  looks_for_copies_ = false;
  WithinMemory([this] {
    if (const absl::Status status = Begin(); !status.ok()) return EndWith(status);
    GoOn();
  });
}

absl::Status ShardServerImpl::OpenCheckpoints() {
  CheckpointerOptions checkpoints{.folder = options_.checkpoint_dir,
                                  .shard_index = shard_index_,
                                  .shard_count = shard_count(),
                                  .keep = options_.keep_checkpoints,
                                  .name = name_};
  if (options_.checkpoint_buddy) {
    for (int shard = 0; shard < shard_count(); ++shard) {
      if (BuddyOf(options_.cluster, shard) == options_.shard_index) checkpoints.copies_of.push_back(shard);
    }
    checkpoints.copy = [this](uint64_t step, const checkpoint::Manifest::File& file,
                              const std::stop_token& stop) { return copies_->Send(step, file, stop); };
  }
  MUSTER_ASSIGN_OR_RETURN(checkpointer_,
                          Checkpointer::Open(std::move(checkpoints), [this] { OnCheckpointsChanged(); }));
  return absl::OkStatus();
}

void ShardServerImpl::OnCheckpointsChanged() {
  const std::lock_guard lock(mutex_);
  if (end_) return;
  WithinMemory([this] {
    if (journal_) {
      for (const CheckpointId& id : checkpointer_->available()) (void)Journaled(journal_->Release(id.step));
      for (const auto& [step, file] : checkpointer_->written()) (void)Journaled(journal_->Release(step));
    }
    TellOwnCheckpoints();
    Coordinate(/*always=*/true);
  });
}

// Sync, bounded: all servers have to hear of it before they can get there, with the decision that makes the
// step at the latest.
void ShardServerImpl::ScheduleSnapshot() {
  if (!keeps_checkpoints() || next_snapshot_ > shard_->rule().step() || is_checkpointing()) return;
  const uint64_t decided = coordinator()->next_step();  // no server can be beyond
  next_snapshot_ = (decided / options_.checkpoint_every + 1) * options_.checkpoint_every;
}

// Sync, bounded: when ps:0 has said so, and of what the job ends with.
void ShardServerImpl::TakeSnapshotIfDue() {
  const uint64_t step = shard_->rule().step();
  const bool is_last = all_finished() && step == last_step_;
  if (step > last_snapshot_ && (step == next_snapshot_ || is_last)) TakeSnapshot(step);
}

void ShardServerImpl::TakeSnapshot(uint64_t checkpoint) {
  if (!keeps_checkpoints()) return;
  last_snapshot_ = checkpoint;
  last_snapshot_time_ = Now();
  if (journal_ && !BeginSegment(checkpoint)) return;  // before there can be a file that it begins with
  checkpointer_->Write(checkpoint, *config_, epoch(), shard_->Snapshot(), shard_->rule().state());
}

// All workers have finished: what they have trained is to outlive the servers.
bool ShardServerImpl::AwaitsLastCheckpoint() {
  if (!keeps_checkpoints() || !shard_ || shard_->rule().step() == read_step_) return false;
  if (!last_checkpoint_deadline_) {
    last_checkpoint_deadline_ = Now() + kCheckpointTimeout;
    // Of workers that come and go others may not know who is the last one.
    const uint64_t step = shard_->rule().step();
    if (step == last_step_) next_snapshot_ = step;
    if (step > last_snapshot_ && (is_async() || step == last_step_)) TakeSnapshot(step);
    TellOthers(/*always=*/true);
  }
  // On this server's disk, if it can be: its next process, too, is to find that the job is over.
  const uint64_t last = is_async() ? last_snapshot_ : last_step_;
  if (HasLastCheckpoint() || checkpointer_->done_with() >= last) return false;
  const bool has_failed = host_->failed() >= last;
  if (!has_failed && Now() < *last_checkpoint_deadline_) return true;
  spdlog::error("{}: the last checkpoint, of step {}, {}", name_, last,
                has_failed ? "could not be made" : "was not made in " + FormatAge(kCheckpointTimeout));
  return false;
}

// Of what the job ends with; in async mode only ps:0 knows which that is.
bool ShardServerImpl::HasLastCheckpoint() const {
  if (!keeps_checkpoints()) return true;
  if (is_async() && !host_) return false;
  const uint64_t last = is_async() ? last_snapshot_ : last_step_;
  const std::set<CheckpointId> available = checkpointer_->available();
  return std::any_of(available.begin(), available.end(),
                     [last](const CheckpointId& id) { return id.step == last; });
}

absl::Status ShardServerImpl::FinishCheckpoints() {
  Checkpointer* const checkpoints = [&] {
    const std::lock_guard lock(mutex_);
    return checkpointer_.get();  // once there, it stays
  }();
  if (checkpoints == nullptr) return absl::OkStatus();
  checkpoints->Finish();  // without the lock: its thread may want it
  const std::lock_guard lock(mutex_);
  const uint64_t last = is_async() ? last_snapshot_ : last_step_;
  if (!end_ || !end_->ok() || !shard_ || last <= read_step_) return absl::OkStatus();
  return Annotate(checkpoints->CheckAvailable(last),
                  absl::StrFormat("%s: the checkpoint of step %d, with which the job has ended, was not made",
                                  name_, last));
}

// Workers that have heard nothing from this process. They may have finished with an earlier one, or while
// this server was away, and be on their way back.
void ShardServerImpl::AwaitWorkers(std::unique_lock<std::mutex>& lock) {
  const TimePoint deadline = Now() + kOverTimeout;
  const auto rank_count = static_cast<size_t>(rank_count_);
  while (!awaits_nobody_ && asked_for_end_.size() < rank_count && Now() < deadline) {
    changed_.wait_for(lock, kEndTick);
  }
}

void ShardServerImpl::Close() {
  const std::lock_guard lock(mutex_);
  if (!journal_ || !shard_ || !end_ || !end_->ok()) return;
  (void)Journaled(journal_->Append(EndRecord()));
  journal_.reset();  // it is the next job's: nobody who comes too late is in it
}

// What this server was when its last process ended, if its journal says it.
void ShardServerImpl::Recover() {
  auto recovered = journal_->Recover();
  if (recovered.ok() && !*recovered) return;
  const auto replay_all = [&]() -> absl::StatusOr<std::unique_ptr<ShardReplay>> {
    MUSTER_RETURN_IF_ERROR(recovered.status());
    RecoveredShard& before = **recovered;
    MUSTER_ASSIGN_OR_RETURN(std::unique_ptr<ShardReplay> replay,
                            ShardReplay::Begin(before.config, before.epoch, *std::move(before.shard),
                                               std::move(before.rule), rank_count_, frames_, &outbox_));
    while (true) {
      MUSTER_ASSIGN_OR_RETURN(std::optional<JournalReader::Entry> entry, before.Next());
      if (!entry) return replay;
      MUSTER_RETURN_IF_ERROR(
          replay->Replay(entry->record, FloatPayload({grpc::Slice(entry->payload)}, /*skip_bytes=*/0)));
    }
  };
  auto replay = replay_all();
  if (!replay.ok()) {
    spdlog::warn("{}: without its journal, all go back to a checkpoint: {}", name_,
                 std::string(replay.status().message()));
    return;
  }
  const RecoveredShard& before = **recovered;
  last_snapshot_ = before.checkpoint;
  if (before.file) checkpointer_->AddWritten(before.checkpoint, *before.file);
  last_commit_ = before.epoch.step;
  if (!Journaled(journal_->Continue(before))) return;
  spdlog::info("{}: at step {} again, as its journal says", name_, (*replay)->shard->rule().step());
  GoOnWith(std::move(**replay));
  const bool is_behind = is_async() && last_snapshot_ < shard_->rule().step();
  if (all_finished() && HasLastCheckpoint() && !is_behind) over_until_ = Now() + kOverTimeout;
}

// Where another process was.
void ShardServerImpl::GoOnWith(ShardReplay before) {
  journaled_decisions_ = before.next_decision();
  config_ = std::move(before.config);
  update_ = std::move(before.update);
  requests_ = std::move(before.requests);
  EndShardEpoch();
  shard_.emplace(*std::move(before.shard));
  if (keeps_checkpoints()) checkpointer_->GoOn(epoch());
  read_step_ = epoch().step;
  shard_->BeginTallies();
  shard_->OnUpdate([this] { OnUpdate(); });
  finished_ranks_ = std::move(before.finished);
  newest_common_ = before.newest_common;
  for (const auto& [rank, next_step] : finished_ranks_) last_step_ = std::max(last_step_, next_step);
  if (!host_) return;
  host_->SetRequests(requests_.get());
  BeginCoordinator();
  awaits_first_worker_ = true;
  coordinator()->Resume(epoch(), journaled_decisions_, before.decisions, newest_common_);
  for (const auto& [rank, next_step] : finished_ranks_) coordinator()->Finish(rank, next_step, Now());
  TellOwnCheckpoints();
}

// What was done to the shard. False: that is the end.
bool ShardServerImpl::Log(const journal::Record& record, const FloatPayload& payload) {
  if (replication_) replication_->Log(record, payload);
  return !journal_ || Journaled(journal_->Append(record, payload.parts()));
}

// What cannot be appended could be lost after it was acknowledged.
bool ShardServerImpl::Journaled(const absl::Status& appended) {
  if (!appended.ok()) EndWith(Annotate(appended, name_ + ": its journal"));
  return appended.ok();
}

void ShardServerImpl::LogDecisions(const std::map<uint64_t, std::vector<int>>& decisions) {
  if (!journal_ && !replication_) return;
  for (auto next = decisions.lower_bound(journaled_decisions_); next != decisions.end(); ++next) {
    if (!Log(DecisionRecord({next->first, next->second}))) return;
    journaled_decisions_ = next->first + 1;
  }
}

// From here on the journal comes after this checkpoint, with what that does not have. False: that is the end.
bool ShardServerImpl::BeginSegment(uint64_t checkpoint) {
  absl::Status status = journal_->BeginSegment(*config_, epoch(), checkpoint, shard_->rule().step());
  for (auto& [record, payload] : Carried()) {
    record.set_carried(true);
    if (status.ok()) status = journal_->Append(record, payload.parts());
  }
  return Journaled(status);
}

// What is in no snapshot of the shard.
std::vector<std::pair<journal::Record, FloatPayload>> ShardServerImpl::Carried() {
  std::vector<std::pair<journal::Record, FloatPayload>> carried;
  shard_->VisitHeld([&](const WorkerIdentity& worker, const ps::Push& push, const ShardGradient& gradient) {
    carried.emplace_back(PushRecord(worker, push, gradient), gradient.values);
  });
  std::map<uint64_t, std::vector<int>> decisions = shard_->rule().decisions();
  if (coordinator() != nullptr) {
    decisions.insert(coordinator()->decisions().begin(), coordinator()->decisions().end());
  }
  for (const auto& [step, ranks] : decisions) {
    if (step >= journaled_decisions_) break;
    carried.emplace_back(DecisionRecord({step, ranks}), FloatPayload());
  }
  for (const auto& [rank, next_step] : finished_ranks_) {
    carried.emplace_back(FinishRecord(rank, next_step), FloatPayload());
  }
  if (newest_common_ > epoch().step) carried.emplace_back(CommonRecord(newest_common_), FloatPayload());
  return carried;
}

}  // namespace muster
