#include "base/logging.h"
#include "base/random.h"
#include "ps/shard_server_impl.h"

namespace muster {
namespace {

constexpr Duration kFlushTimeout = std::chrono::seconds(3);  // for a backup, at the end

}  // namespace

// The shard begins here, or this server was its backup.
void ShardServerImpl::TakeOver(std::unique_ptr<ShardReplay> shard) {
  if (end_) return;
  uuid_ = RandomName(20);
  OpenHost();
  OpenLink();
  if (shard != nullptr) GoOnWith(std::move(*shard));
  GoOn();
  if (shard_ && all_finished() && !host_) EndWith(absl::OkStatus());
}

void ShardServerImpl::StepDown() {
  LetGo();
  for (const auto& [stream, joined] : std::exchange(workers_, {})) SendNotPrimary(stream, 0, 0);
  outbox_.Clear();
  host_.reset();
  if (link_ != nullptr) old_links_.push_back(std::move(link_));
  ++link_round_;
  EndShardEpoch();
  fresh_.reset();
  config_.reset();
  requests_ = std::make_unique<Requests>(frames_, &outbox_);
  turns_.Clear();
  awaits_.clear();
  finishes_.clear();
  finished_ranks_.clear();
  offered_epoch_ = {};
  told_report_ = {};
  journaled_decisions_ = 0;
  changed_.notify_all();
}

void ShardServerImpl::LetGo() {
  for (const PendingJoin& pending : std::exchange(pending_joins_, {})) {
    SendNotPrimary(pending.stream, pending.request, replication_->view().proposed());
  }
}

// Those who wait for a server that speaks for the shard.
void ShardServerImpl::GoOn() {
  for (const PendingJoin& pending : std::exchange(pending_joins_, {})) {
    const absl::Status status = HandleJoin(pending.stream, pending.request, pending.join);
    if (!status.ok()) requests_->SendError(pending.stream, pending.request, status);
  }
  Coordinate(/*always=*/true);
}

std::optional<ReplicaBase> ShardServerImpl::Base() {
  if (!shard_) return std::nullopt;
  const auto snapshot = std::make_shared<ShardSnapshot>(shard_->Snapshot());
  const ShardPlace place{
      .config = *config_, .index = shard_index_, .count = shard_count(), .epoch = epoch().number};
  ReplicaBase base{.image = ImageOf(place, *snapshot, shard_->rule().state()),
                   .owner = snapshot,
                   .epoch_step = epoch().step,
                   .carried = Carried()};
  return base;
}

void ShardServerImpl::Propose() {
  for (const auto& [stream, joined] : workers_) ProposeTo(stream, joined.worker);
  for (const PendingJoin& pending : pending_joins_) ProposeTo(pending.stream, IdentityOf(pending.join));
}

// What this server knows of the workers, whether it is the primary or the backup.
const UpdateRule* ShardServerImpl::KnownRule() const {
  if (shard_) return &shard_->rule();
  return replication_ ? replication_->rule() : nullptr;
}

void ShardServerImpl::ProposeTo(StreamId stream, const WorkerIdentity& worker) {
  ps::ServerHeader header;
  header.mutable_propose()->set_view(replication_->view().proposed());
  header.mutable_propose()->set_earlier(replication_->view().view());
  header.mutable_propose()->set_is_primary(replication_->is_primary());
  const UpdateRule* const rule = KnownRule();
  header.mutable_propose()->set_is_sole(rule != nullptr && rule->IsSole(worker));
  requests_->SendNow(stream, std::move(header));
}

void ShardServerImpl::HandlePromise(StreamId stream, const ps::Promise& promise) {
  if (!replication_) return;
  // Of two processes of a rank only the newest has its vote.
  const UpdateRule* const rule = KnownRule();
  const auto is_newest = [rule](const WorkerIdentity& worker) {
    return rule != nullptr && (!rule->HasJoined(worker.rank) || rule->CheckNewest(worker).ok());
  };
  if (const auto joined = workers_.find(stream); joined != workers_.end()) {
    const WorkerIdentity& worker = joined->second.worker;
    if (is_newest(worker)) replication_->Promise(worker.rank, promise.view());
    return;
  }
  for (const PendingJoin& pending : pending_joins_) {
    if (pending.stream != stream) continue;
    const WorkerIdentity worker = IdentityOf(pending.join);
    if (is_newest(worker)) replication_->Promise(worker.rank, promise.view());
    return;
  }
}

void ShardServerImpl::SendNotPrimary(StreamId stream, uint64_t request, uint64_t promised) {
  ps::ServerHeader header;
  header.set_request(request);
  header.mutable_not_primary()->set_promised(promised);
  requests_->SendNow(stream, std::move(header));
}

// Without the other server, and without the promises that would let this one go on.
void ShardServerImpl::EndIfLeftAlone() {
  if (!replication_->view().is_proposing()) return proposing_since_.reset();
  if (!proposing_since_) proposing_since_ = Now();
  const Duration alone = Now() - *proposing_since_;
  // The primary has told all that they have finished, and nobody comes to hear of it.
  const bool is_over = !replication_->is_primary() && replication_->has_finished() && pending_joins_.empty();
  if (is_over && alone >= kOverTimeout) return EndWith(absl::OkStatus());
  if (alone < options_.server_timeout) return;
  EndWith(DeadlineExceeded(
      "%s: %s has been out of touch for %s, and no majority of the job's hosts has come to this server",
      name_, TaskName(replication_->partner()), FormatAge(alone)));
}

// The last answers may have to wait for it, and it is to hear of the end: it would wait for workers that do
// not come. Those whose answers are lost ask again later, and nobody logs what they ask for then.
void ShardServerImpl::AwaitBackup(std::unique_lock<std::mutex>& lock) {
  outbox_.Resume();  // nobody brings any more
  const TimePoint deadline = Now() + replication_->Patience() + kFlushTimeout;
  while (!outbox_.empty() && Now() < deadline) changed_.wait_for(lock, kEndTick);
  // Not before the answers have gone: it ends then, too.
  while (end_->ok() && !replication_->TellEnd() && Now() < deadline) changed_.wait_for(lock, kEndTick);
  const bool is_told = end_->ok() && replication_->TellEnd();
  if (is_told || (replication_->serves() && outbox_.empty())) {
    outbox_.Open();
  } else {
    replication_->StepDown();
  }
}

}  // namespace muster
