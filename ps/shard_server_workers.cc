#include <absl/strings/str_join.h>

#include <algorithm>

#include "base/allocator.h"
#include "base/logging.h"
#include "ps/shard_server_impl.h"

namespace muster {
namespace {

constexpr size_t kMaxRecordBytes = 128 << 20;  // half of what a frame takes as its header
constexpr size_t kMostPendingJoins = 4096;
constexpr int64_t kLargePushBytes = 1 << 20;  // smaller ones are sent sooner than asked for

}  // namespace

bool ShardServerImpl::IsPending(StreamId stream) const {
  return std::any_of(pending_joins_.begin(), pending_joins_.end(),
                     [&](const PendingJoin& pending) { return pending.stream == stream; });
}

absl::Status ShardServerImpl::HandleOfWorker(StreamId stream, const WorkerIdentity& worker,
                                             const ps::ClientHeader& header, ShardGradient gradient) {
  if (Coordinator* const members = coordinator();
      members != nullptr && shard_->rule().CheckNewest(worker).ok()) {
    // It would push, if it were its turn.
    const bool is_queued = header.has_heartbeat() && turns_.IsWaiting(stream, header.heartbeat().awaiting());
    const bool pushes = header.has_push() || header.has_ask() || is_queued;
    pushes ? members->Pushed(worker.rank, Now()) : members->Heard(worker.rank, Now());
  }
  if (!header.has_heartbeat() && !header.has_ask()) turns_.Remove(stream);
  switch (header.kind_case()) {
    case ps::ClientHeader::kPush:
      MUSTER_RETURN_IF_ERROR(
          HandlePush(stream, worker, header.request(), header.push(), std::move(gradient)));
      GiveTurns();
      return absl::OkStatus();
    case ps::ClientHeader::kAsk:
      return HandleAsk(stream, worker, header.request(), header.ask());
    case ps::ClientHeader::kPull:
      // Read only where it is sure that no other server has gone on.
      if (replication_) (void)Log(journal::Record());
      return shard_->Pull(stream, header.request(), header.pull());
    case ps::ClientHeader::kAwaitFinished:
      return HandleAwait(stream, worker, header.request());
    case ps::ClientHeader::kFinish:
      return HandleFinish(stream, worker, header.request(), header.finish());
    case ps::ClientHeader::kFail:
      return HandleFail(worker, header.fail());
    default:
      HandleHeartbeat(stream, header.heartbeat());
      return absl::OkStatus();
  }
}

absl::Status ShardServerImpl::HandleJoin(StreamId stream, uint64_t request, const ps::Join& join) {
  if (static_cast<int>(join.shard_index()) != shard_index_ ||
      static_cast<int>(join.shard_count()) != shard_count()) {
    return FailedPrecondition("this is shard %d of %d, the worker wants shard %d of %d: compare --ps_hosts",
                              shard_index_, shard_count(), join.shard_index(), join.shard_count());
  }
  if (join.rank() >= kMostWorkers) return InvalidArgument("rank %d: there are no so many", join.rank());
  if (join.generation() != options_.generation) {
    return FailedPrecondition("%s belongs to generation %d of the cluster, the worker to generation %d",
                              name_, options_.generation, join.generation());
  }
  const TaskId task = TaskOfRank(options_.cluster, static_cast<int>(join.rank()));
  if (options_.tls) MUSTER_RETURN_IF_ERROR(frames_->CheckPeer(stream, task));
  if (config_) MUSTER_RETURN_IF_ERROR(CheckSameJob(*config_, join.config()));
  if (join.has_ranks()) HearOfRanks(join.ranks());
  const bool may_scale = MayScale(join.config());
  if (may_scale) FollowCluster();
  const bool is_beyond = join.rank() >= static_cast<uint32_t>(rank_count_);
  if (!may_scale && (is_beyond || static_cast<int>(join.config().worker_count()) != rank_count_)) {
    return FailedPrecondition("%s counts %d workers, rank %d counts %d: compare --worker_hosts", name_,
                              rank_count_, join.rank(), join.config().worker_count());
  }
  // Or this server has not heard yet that the cluster has it.
  if (looks_for_copies_ || is_beyond) return AddPendingJoin(stream, request, join);
  if (!serves()) {
    if (!replication_->view().is_proposing()) {
      SendNotPrimary(stream, request, 0);
      return absl::OkStatus();
    }
    MUSTER_RETURN_IF_ERROR(AddPendingJoin(stream, request, join));
    ProposeTo(stream, IdentityOf(join));
    return absl::OkStatus();
  }
  MUSTER_RETURN_IF_ERROR(AdoptConfig(join.config()));
  if (end_ && !end_->ok()) return *end_;
  if (shard_ && (end_ || TakesPart(join.rank()))) return CompleteJoin(stream, request, join);
  // Until the first epoch begins, or the one in which it takes part.
  if (shard_ && coordinator() != nullptr) coordinator()->Join(static_cast<int>(join.rank()), Now());
  return AddPendingJoin(stream, request, join);
}

// One of each stream.
absl::Status ShardServerImpl::AddPendingJoin(StreamId stream, uint64_t request, const ps::Join& join) {
  std::erase_if(pending_joins_, [&](const PendingJoin& pending) { return pending.stream == stream; });
  if (pending_joins_.size() >= kMostPendingJoins) return Unavailable("too many wait to join %s", name_);
  pending_joins_.push_back({stream, request, join});
  return absl::OkStatus();
}

// Each worker ends at a step of its own, and the others go on without it.
void ShardServerImpl::WarnOfOtherEnd(int rank, uint64_t train_steps) const {
  const auto name = [this](int of) { return TaskName(TaskOfRank(options_.cluster, of)); };
  for (const auto& [stream, other] : workers_) {
    const bool is_other = other.worker.rank != rank && shard_->rule().CheckNewest(other.worker).ok();
    if (!is_other || other.train_steps == train_steps) continue;
    spdlog::warn("{}: {} trains to step {}, {} to step {}: is --train_steps the same everywhere?", name_,
                 name(rank), train_steps, name(other.worker.rank), other.train_steps);
    return;
  }
}

absl::Status ShardServerImpl::CompleteJoin(StreamId stream, uint64_t request, const ps::Join& join) {
  const WorkerIdentity worker = IdentityOf(join);
  const bool same_process = shard_->rule().CheckNewest(worker).ok();  // whose connection broke
  MUSTER_ASSIGN_OR_RETURN(const JoinAnswer answer, shard_->Join(worker));
  // A replicated one says with each that this server still speaks for the shard.
  if ((replication_ || (journal_ && !same_process)) && !Log(JoinRecord(worker))) return *end_;
  workers_[stream] = {worker, epoch().number, join.train_steps()};
  if (shard_index_ == 0) WarnOfOtherEnd(worker.rank, join.train_steps());
  if (!same_process) {
    finished_ranks_.erase(worker.rank);
    asked_for_end_.erase(worker.rank);
    over_until_.reset();  // it may have more to do
  }
  if (Coordinator* const members = coordinator(); members != nullptr) {
    if (std::exchange(awaits_first_worker_, false)) members->RenewLeases(Now());
    const MemberState state = members->state(worker.rank);
    const bool is_known = same_process && state != MemberState::kExpected && state != MemberState::kAbsent;
    is_known ? members->Heard(worker.rank, Now()) : members->Join(worker.rank, Now());
  }
  spdlog::info("{}: {} has joined at step {} from {}", name_,
               TaskName(TaskOfRank(options_.cluster, worker.rank)), answer.step, frames_->PeerOf(stream));

  ps::ServerHeader header;
  ps::JoinReply* reply = header.mutable_join();
  reply->set_step(answer.step);
  reply->set_pushes(answer.pushes);
  reply->set_next_step(answer.next_step);
  reply->set_all_samples(shard_->rule().samples());
  reply->set_epoch(epoch().number);
  if (replication_) reply->set_view(replication_->view().view());
  reply->set_ask_above(static_cast<uint64_t>(AskAbove()));
  reply->set_part_floats(static_cast<uint64_t>(PartFloats()));
  if (SharesBatches(*config_)) {
    const auto place = std::ranges::lower_bound(participants_, worker.rank);
    reply->set_share_place(static_cast<uint32_t>(place - participants_.begin()));
    reply->set_share_count(static_cast<uint32_t>(participants_.size()));
  }
  shard_->Answer(requests_->Add({stream, request}), std::move(header), shard_->shard().parameters());
  return absl::OkStatus();
}

absl::Status ShardServerImpl::HandlePush(StreamId stream, const WorkerIdentity& worker, uint64_t request,
                                         const ps::Push& push, ShardGradient gradient) {
  MUSTER_RETURN_IF_ERROR(shard_->CheckPush(worker, push, gradient));
  if (gradient.arrival == 0) {
    gradient.arrival = ++last_arrival_;
    if (gradient.finite) {
      Arrive(stream, push, {.arrival = gradient.arrival, .samples = push.samples()}, 0, gradient.values);
    }
  }
  const bool may_count = gradient.finite && shard_->rule().CheckNewest(worker).ok();
  if ((journal_ || replication_) && may_count) {
    const journal::Record record = PushRecord(worker, push, gradient);
    if (record.ByteSizeLong() > kMaxRecordBytes) {
      return InvalidArgument("a push with a header of %d bytes: it names too many rows",
                             record.ByteSizeLong());
    }
    if (!Log(record, gradient.values)) return *end_;
  }
  const PushId id = requests_->Add({.stream = stream,
                                    .number = request,
                                    .rows = push.next_rows(),
                                    .version = push.version(),
                                    .since = arrival_});
  shard_->Push(worker, id, push, std::move(gradient));
  return absl::OkStatus();
}

// Not if all of them would fit. In sync mode a step needs all of its pushes at a time anyway. What is
// compressed is large here, however short it travels. A worker keeps to what it was told when it joined,
// however many come and go later: those that need not ask are of ranks that fit, so that all of them do.
int64_t ShardServerImpl::AskAbove() const {
  const int64_t all = FrameBytes() * rank_count_;
  if (!is_async() || all <= options_.push_budget_bytes) return 0;
  return is_compressed() ? 1 : std::min(kLargePushBytes, options_.push_budget_bytes);
}

// Some thirty-two of a push: so much less than all of it is the time in which only one direction is used. Not
// so small that a frame's own cost is felt.
int64_t ShardServerImpl::PartFloats() const {
  constexpr int64_t kSmallest = 16 << 10, kParts = 32;
  if (!shard_->makes_early()) return 0;
  if (options_.part_bytes) return std::max<int64_t>(1, *options_.part_bytes / int64_t{sizeof(float)});
  return std::max(kSmallest, shard_->shard().range().size() / kParts);
}

absl::Status ShardServerImpl::HandleAsk(StreamId stream, const WorkerIdentity& worker, uint64_t request,
                                        const ps::Ask& ask) {
  MUSTER_RETURN_IF_ERROR(shard_->rule().CheckNewest(worker));
  if (ask.bytes() > static_cast<uint64_t>(kMaxFrameBytes)) {
    return InvalidArgument("rank %d wants to push %d bytes", worker.rank, ask.bytes());
  }
  turns_.Add({.stream = stream,
              .request = request,
              .rank = worker.rank,
              .bytes = static_cast<int64_t>(ask.bytes()) + (is_compressed() ? FrameBytes() : 0)});
  GiveTurns();
  if (turns_.anyone_waits()) changed_.notify_all();
  return absl::OkStatus();
}

void ShardServerImpl::GiveTurns() {
  if (!turns_.anyone_waits() || !shard_) return;
  const std::vector<PushTurns::Ask> turns = turns_.Give(shard_->shard().superseded_bytes(), Now());
  // As in OnUpdate. Where the processor is the limit, that costs a quarter of the pushes.
  if (!turns.empty()) ReturnFreeBlocks();
  for (const PushTurns::Ask& ask : turns) SendGoAhead(ask.stream, ask.request);
}

void ShardServerImpl::SendGoAhead(StreamId stream, uint64_t request) {
  ps::ServerHeader header;
  header.set_request(request);
  header.mutable_go_ahead();
  requests_->SendNow(stream, std::move(header));
}

absl::Status ShardServerImpl::HandleAwait(StreamId stream, const WorkerIdentity& worker, uint64_t request) {
  if (coordinator() == nullptr) return InvalidArgument("ps:0 knows who has finished, %s does not", name_);
  MUSTER_RETURN_IF_ERROR(shard_->rule().CheckNewest(worker));
  awaits_[worker.rank] = requests_->Add({stream, request});  // of an earlier one nobody listens to the answer
  coordinator()->Await(worker.rank, shard_->rule().NextStepOf(worker.rank), Now());
  return absl::OkStatus();
}

void ShardServerImpl::AnswerAwait(PushId id) {
  ps::ServerHeader header;
  ps::AwaitFinishedReply* reply = header.mutable_await_finished();
  reply->set_step(shard_->rule().step());
  reply->set_all_samples(shard_->rule().samples());
  const PushCounts& counts = shard_->rule().counts();
  reply->mutable_pushes()->set_received(counts.received);
  reply->mutable_pushes()->set_applied(counts.applied);
  reply->mutable_pushes()->set_stale(counts.stale);
  reply->mutable_pushes()->set_duplicate(counts.duplicate);
  reply->mutable_pushes()->set_rejected(counts.rejected);
  requests_->Answer(id, std::move(header));
}

// Asynchronous steps, and those that take fewer than all gradients, are made without it.
absl::Status ShardServerImpl::HandleFail(const WorkerIdentity& worker, const ps::Fail& fail) {
  constexpr size_t kMostWords = 1000;
  if (coordinator() == nullptr)
    return InvalidArgument("ps:0 is told that a worker has failed, not %s", name_);
  MUSTER_RETURN_IF_ERROR(shard_->rule().CheckNewest(worker));
  const absl::Status why = FailedPrecondition("%s: %s", TaskName(TaskOfRank(options_.cluster, worker.rank)),
                                              fail.why().substr(0, kMostWords));
  if (!is_async() && (update_.aggregate >= rank_count_ || SharesBatches(*config_))) EndWith(why);
  return why;
}

absl::Status ShardServerImpl::HandleFinish(StreamId stream, const WorkerIdentity& worker, uint64_t request,
                                           const ps::Finish& finish) {
  MUSTER_RETURN_IF_ERROR(shard_->rule().CheckNewest(worker));
  finishes_.push_back(requests_->Add({stream, request}));
  if ((replication_ || journal_) && !Log(FinishRecord(worker.rank, finish.next_step()))) return *end_;
  if ((!keeps_checkpoints() && !replication_) || end_ || over_until_) AnswerFinishes();
  finished_ranks_[worker.rank] = finish.next_step();
  asked_for_end_.insert(worker.rank);
  last_step_ = std::max(last_step_, finish.next_step());
  if (coordinator() != nullptr) coordinator()->Finish(worker.rank, finish.next_step(), Now());
  if (!all_finished()) return absl::OkStatus();
  if (!is_async()) TakeSnapshotIfDue();
  // ps:0 says so too, if it is still there; with checkpoints it does when the last one is made.
  if (!host_ && !keeps_checkpoints()) EndWith(absl::OkStatus());
  return absl::OkStatus();
}

// With checkpoints, when the last one is there: until then a worker may have to do some of its work again.
// Replicated, when all have finished: until then their promises may be needed. Only ps:0 knows that of all
// shards.
void ShardServerImpl::AnswerFinishes() {
  for (const PushId id : std::exchange(finishes_, {})) {
    ps::ServerHeader reply;
    reply.mutable_finish()->set_over(host_.has_value() && end_ && end_->ok());
    requests_->Answer(id, std::move(reply));
  }
}

void ShardServerImpl::HandleHeartbeat(StreamId stream, const ps::Heartbeat& heartbeat) {
  // A worker leaves a replicated server that is silent, even if it awaits nothing.
  if (heartbeat.awaiting() == 0 && !replication_) return;
  if (!serves()) return;  // the worker looks for the other one
  const uint64_t awaiting = heartbeat.awaiting();
  // It may not have come.
  if (heartbeat.asking() && turns_.IsSending(stream, awaiting)) return SendGoAhead(stream, awaiting);
  const bool is_queued = heartbeat.asking() && turns_.IsWaiting(stream, awaiting);
  ps::ServerHeader header;
  header.mutable_heartbeat()->set_awaiting(awaiting);
  // An answer may wait for the backup, but not that to a question.
  const bool may_wait = !heartbeat.asking() && !outbox_.empty();
  const bool unknown = awaiting != 0 && !is_queued && !requests_->IsAwaited(stream, awaiting) && !may_wait;
  header.mutable_heartbeat()->set_unknown(unknown);
  header.mutable_heartbeat()->set_waits_for(is_queued ? WhoSends() : waits_for_);
  requests_->SendNow(stream, std::move(header));
}

std::string ShardServerImpl::WhoSends() const {
  std::vector<std::string> names;
  for (const PushTurns::Ask& ask : turns_.sending()) {
    names.push_back(TaskName(TaskOfRank(options_.cluster, ask.rank)));
  }
  return names.empty() ? "other workers receive what they were sent before"
                       : absl::StrJoin(names, ", ") + " may send first";
}

}  // namespace muster
