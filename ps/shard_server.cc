#include "ps/shard_server.h"

#include <algorithm>

#include "base/logging.h"
#include "base/random.h"
#include "ps/encoding.h"
#include "ps/shard_server_impl.h"

namespace muster {
namespace {

constexpr Duration kTalkEvery =
    std::chrono::seconds(1);  // to the other shards, also when nothing has changed
constexpr Duration kReplicaTalkEvery = std::chrono::milliseconds(200);  // where others notice silence sooner
constexpr Duration kReplicaConnectTimeout = std::chrono::milliseconds(300);
constexpr Duration kReplicaPause = std::chrono::milliseconds(30);
constexpr Duration kReplicaTick = std::chrono::milliseconds(100);
constexpr Duration kTurnTick = std::chrono::milliseconds(5);
constexpr Duration kJournalPatience = std::chrono::seconds(5);
constexpr Duration kOthersPatience = std::chrono::seconds(5);  // they may be lost as well
constexpr Duration kTurnPatience = std::chrono::seconds(10);

}  // namespace

ShardServerImpl::ShardServerImpl(const ParameterServerOptions& options, int shard_index, FrameServer* frames)
    : options_(options),
      shard_index_(shard_index),
      name_(TaskName({Role::kPs, shard_index}) +
            (shard_index == options.shard_index ? "" : absl::StrFormat(" (at ps:%d)", options.shard_index))),
      frames_(frames),
      uuid_(RandomName(20)),
      requests_(std::make_unique<Requests>(frames, &outbox_)),
      rank_count_(options.cluster.rank_count()),
      first_ranks_(rank_count_),
      tallies_(options.cluster.rank_count()),
      turns_(options.push_budget_bytes, kTurnPatience) {}

absl::Status ShardServerImpl::Open() {
  if (options_.view->workers_may_come_and_go()) {
    // Who waits for the view may hold the lock: it is taken later, by Serve.
    watch_.emplace(options_.view->OnChange([this] {
      cluster_has_changed_ = true;
      changed_.notify_all();
    }));
  }
  const std::lock_guard lock(mutex_);  // callbacks may come before this returns
  if (!AsksForCheckpoints(options_)) return Begin();
  copies_.emplace(CopiesOf(options_));
  const bool has_journal =
      options_.journal &&
      ShardJournal(options_.checkpoint_dir, shard_index_, shard_count(), options_.generation).exists();
  if (!options_.checkpoint_buddy && (has_journal || !copies_->HasUncommitted())) return Begin();
  looks_for_copies_ = true;
  // The others count from before on, and are to find this server there. With a journal it can do without
  // them, who may be gone, unless that is an old one, of a host that this server has come back to.
  const Duration patience = has_journal ? kJournalPatience : options_.server_timeout / 2;
  copies_thread_ =
      std::jthread([this, patience](const std::stop_token& stop) { LookForCopies(patience, stop); });
  return absl::OkStatus();
}

absl::Status ShardServerImpl::Begin() {
  if (!options_.checkpoint_dir.empty()) MUSTER_RETURN_IF_ERROR(OpenCheckpoints());
  if (options_.replicated) {
    const int first_backup = FirstBackupOf(shard_index_, shard_count());
    const int partner = options_.shard_index == shard_index_ ? first_backup : shard_index_;
    Replication::Host* const host = this;
    replication_ = std::make_unique<Replication>(ReplicationOptions{.cluster = options_.cluster,
                                                                    .view = options_.view,
                                                                    .shard_index = shard_index_,
                                                                    .own = {Role::kPs, options_.shard_index},
                                                                    .partner = {Role::kPs, partner},
                                                                    .generation = options_.generation,
                                                                    .tls = options_.tls,
                                                                    .transport = options_.transport,
                                                                    .silence = options_.replica_silence,
                                                                    .name = name_},
                                                 frames_, &outbox_, host, &mutex_);
    return absl::OkStatus();
  }
  OpenHost();
  if (options_.journal && keeps_checkpoints()) {
    journal_.emplace(options_.checkpoint_dir, shard_index_, shard_count(), options_.generation);
    Recover();
  }
  OpenLink();
  return absl::OkStatus();
}

// Of the coordinator, which is here or in another process.
void ShardServerImpl::OpenHost() {
  if (shard_index_ != 0) return;
  host_.emplace(CoordinatorHostOptions{.shard_count = shard_count(),
                                       .generation = options_.generation,
                                       .uses_tls = options_.tls.has_value(),
                                       .keeps_checkpoints = keeps_checkpoints(),
                                       .replicated = options_.replicated},
                frames_, requests_.get());
}

void ShardServerImpl::OpenLink() {
  if (shard_index_ == 0) return;
  std::vector<int> servers = {0};
  if (options_.replicated) servers.push_back(FirstBackupOf(0, shard_count()));
  CoordinatorLinkOptions link{.view = options_.view,
                              .servers = std::move(servers),
                              .shard_index = shard_index_,
                              .tls = options_.tls,
                              .transport = options_.transport,
                              .was_there = all_finished(),
                              .server_timeout = options_.server_timeout};
  if (options_.replicated) {
    link.silence = options_.replica_silence;
    link.connect_timeout = kReplicaConnectTimeout;
    link.pause = kReplicaPause;
  }
  const uint64_t round = ++link_round_;
  link_ = std::make_unique<CoordinatorLink>(
      std::move(link),
      CoordinatorLink::Callbacks{
          .join = [this, round](const std::stop_token& stop) -> std::optional<ps::ShardJoin> {
            LearnOfCheckpoints(stop);
            const std::lock_guard lock(mutex_);
            if (round != link_round_) return std::nullopt;
            told_report_ = {};  // ps:0 may be another process
            return OwnJoin();
          },
          .on_coordination =
              [this, round](const ps::Coordination& coordination) { OnCoordination(coordination, round); },
          .on_lost =
              [this, round](const absl::Status& status) {
                const std::lock_guard lock(mutex_);
                if (round != link_round_) return;
                // It may have ended while this server was away.
                EndWith(all_finished() && HasLastCheckpoint() ? absl::OkStatus() : status);
              },
      });
}

// The process of ps:0 before may have ended when only some had heard of a checkpoint. Not with the lock: it
// asks them.
void ShardServerImpl::LearnOfCheckpoints(const std::stop_token& stop) {
  const bool goes_back = copies_ && !options_.journal && !options_.replicated;
  if (!goes_back || checkpointer_ == nullptr || checkpointer_->written().empty()) return;
  copies_->Fetch(kOthersPatience, stop);
  checkpointer_->LookAgain();
}

ShardServerImpl::~ShardServerImpl() {
  watch_.reset();
  copies_thread_ = {};  // first: it makes what the others are
  // What runs on the threads of these finds everything in its place until they have ended.
  std::unique_ptr<CoordinatorLink> link;
  std::vector<std::unique_ptr<CoordinatorLink>> old_links;
  std::unique_ptr<Checkpointer> checkpointer;
  {
    const std::lock_guard lock(mutex_);
    if (!end_) end_ = absl::CancelledError(name_ + " has been ended");
    link = std::move(link_);
    old_links = std::move(old_links_);
    checkpointer = std::move(checkpointer_);
  }
  // Its thread, and what it calls, go on finding it until it has ended.
  if (replication_ != nullptr) replication_->Stop();
}

bool ShardServerImpl::is_needed() const {
  const std::lock_guard lock(mutex_);
  if (end_) return false;
  return !replication_ || replication_->is_primary() || replication_->view().is_proposing();
}

ShardMetrics ShardServerImpl::metrics() const {
  ShardMetrics metrics{.shard = shard_index_};
  const Checkpointer* const checkpoints = [&] {
    const std::lock_guard lock(mutex_);
    return checkpointer_.get();  // once there, it stays
  }();
  if (checkpoints != nullptr) metrics.checkpoint_age = checkpoints->age();
  const std::lock_guard lock(mutex_);
  metrics.serves = serves();
  metrics.workers = Tallies();
  metrics.queued_pushes = turns_.waiting();
  if (const Coordinator* const members = coordinator(); members != nullptr && is_stalled()) {
    metrics.awaited = members->AwaitedRanks();
    metrics.waiting = Now() - members->waiting_since();
  }
  if (const UpdateRule* const rule = KnownRule(); rule != nullptr) metrics.step = rule->step();
  if (shard_) {
    metrics.held_pushes = static_cast<int64_t>(shard_->rule().held());
    metrics.table_rows = shard_->shard().tables().updated_rows();
  }
  return metrics;
}

absl::Status ShardServerImpl::Serve() {
  std::unique_lock lock(mutex_);
  TimePoint next_talk = Now();
  while (!end_) {
    TimePoint deadline = next_talk;
    if (replication_) deadline = std::min(deadline, Now() + kReplicaTick);
    if (keeps_time()) deadline = std::min(deadline, coordinator()->next_deadline());
    const bool somebody_waits = turns_.anyone_waits();
    if (somebody_waits) deadline = std::min(deadline, Now() + kTurnTick);
    changed_.wait_until(lock, deadline, [&] {
      return end_.has_value() || cluster_has_changed_ || (turns_.anyone_waits() && !somebody_waits);
    });
    if (end_) break;
    cluster_has_changed_ = false;
    const bool talk = Now() >= next_talk;
    if (talk) next_talk = Now() + (replication_ ? kReplicaTalkEvery : kTalkEvery);
    WithinMemory([&] {
      if (config_ && MayScale(*config_)) FollowCluster();
      if (end_) return;
      GiveTurns();  // somebody may have read what he was sent
      if (replication_) {
        replication_->Tick(Now());
        EndIfLeftAlone();
        if (end_ || !replication_->is_primary()) return;
      }
      if (over_until_ && Now() >= *over_until_) {
        awaits_nobody_ = true;
        return EndWith(absl::OkStatus());
      }
      if (keeps_time()) coordinator()->Tick(Now());
      Coordinate(talk);
    });
    if (auto old_links = std::exchange(old_links_, {}); !old_links.empty()) {
      lock.unlock();
      old_links.clear();
      lock.lock();
    }
  }
  const absl::Status end = *end_;
  if (replication_ && !absl::IsCancelled(end)) AwaitBackup(lock);
  if (journal_ && end.ok()) AwaitWorkers(lock);
  std::unique_ptr<CoordinatorLink> link = std::move(link_);  // nothing is said over it any more
  lock.unlock();
  link = nullptr;
  if (replication_) replication_->Stop();
  return end;
}

// Whoever still waits is told why in vain.
void ShardServerImpl::EndWith(const absl::Status& status) {
  if (end_) return;
  end_ = status;
  changed_.notify_all();
  // A primary that another view has left behind, unknown to it, tells nobody.
  if (replication_ && replication_->is_primary()) replication_->Log(journal::Record());
  if (host_) TellOthers(/*always=*/true);
  AnswerFinishes();  // what becomes of the others is not their failure
  if (status.ok()) return;
  requests_->RefuseAll(status);
  for (const PendingJoin& pending : std::exchange(pending_joins_, {})) {
    requests_->SendError(pending.stream, pending.request, status);
  }
  for (const PushTurns::Ask& ask : turns_.Clear()) requests_->SendError(ask.stream, ask.request, status);
}

// On threads where nobody else would hear of it.
void ShardServerImpl::WithinMemory(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
    EndWith(OutOfMemory());
  }
}

void ShardServerImpl::OnClosed(StreamId stream) {
  const std::lock_guard lock(mutex_);
  if (replication_) {
    replication_->OnClosed(stream);
    if (const auto joined = workers_.find(stream); joined != workers_.end()) {
      replication_->Withdraw(joined->second.worker.rank);
    }
    for (const PendingJoin& pending : pending_joins_) {
      if (pending.stream == stream) replication_->Withdraw(static_cast<int>(pending.join.rank()));
    }
  }
  workers_.erase(stream);
  turns_.Remove(stream);
  arriving_.erase(stream);
  std::erase_if(pending_joins_, [&](const PendingJoin& pending) { return pending.stream == stream; });
  requests_->OnClosed(stream);
  if (host_) host_->OnClosed(stream);
  WithinMemory([this] { GiveTurns(); });
}

void ShardServerImpl::OnFrame(StreamId stream, const ps::ClientHeader& header, ShardGradient gradient) {
  const TimePoint arrival = Now();
  absl::Status status = DecodePush(stream, header, &gradient);
  const std::lock_guard lock(mutex_);
  arrival_ = arrival;
  try {
    if (status.ok()) {
      const bool is_part = header.has_part() || header.push().floats() > 0;
      status = is_part ? HandlePart(stream, header, std::move(gradient))
                       : Handle(stream, header, std::move(gradient));
    }
  } catch (const std::bad_alloc&) {
    EndWith(OutOfMemory());  // before anybody sees an update that is made by half
    throw;
  }
  if (status.ok()) return;
  spdlog::warn("{}: refused {}: {}", name_, frames_->PeerOf(stream), std::string(status.message()));
  if (header.has_push()) turns_.Remove(stream);
  arriving_.erase(stream);
  requests_->SendError(stream, header.request(), status);
}

// On a thread of the stream, and as far as possible without the lock: workers do not wait for each other.
absl::Status ShardServerImpl::DecodePush(StreamId stream, const ps::ClientHeader& header,
                                         ShardGradient* gradient) const {
  if (!header.has_push() && !header.has_part()) return absl::OkStatus();
  if (!IsPlain(header.encoding())) {
    int64_t size = 0;
    {
      const std::lock_guard lock(mutex_);
      // What somebody else sends is refused by its header, and takes no memory.
      if (!IsOfThisEpoch(stream)) {
        gradient->values = FloatPayload();
        return absl::OkStatus();
      }
      size = shard_->shard().range().size();
    }
    MUSTER_ASSIGN_OR_RETURN(gradient->values, DecodeGradient(header.encoding(), gradient->values, size));
  }
  gradient->finite = gradient->values.AllFinite();
  return absl::OkStatus();
}

// Of a push whose other parts may still come. One that is not the next, because what was before it is lost or
// it comes twice, is ignored: the worker will send all of it again.
absl::Status ShardServerImpl::HandlePart(StreamId stream, const ps::ClientHeader& header,
                                         ShardGradient part) {
  if (header.has_push()) {
    arriving_[stream] = {.number = ++last_arrival_, .header = header, .gradient = {.finite = true}};
    arriving_[stream].gradient.rows = std::move(part.rows);
  }
  const auto found = arriving_.find(stream);
  if (found == arriving_.end()) return absl::OkStatus();
  ArrivingPush& push = found->second;
  const int64_t begin = push.floats, floats = part.values.size_bytes() / int64_t{sizeof(float)};
  if (header.request() != push.header.request()) return absl::OkStatus();
  if (header.has_part() && static_cast<int64_t>(header.part().begin()) != begin) return absl::OkStatus();
  const auto all = static_cast<int64_t>(std::min<uint64_t>(push.header.push().floats(), kMaxFrameBytes / 4));
  if (part.values.size_bytes() % int64_t{sizeof(float)} != 0 || floats == 0 || begin + floats > all) {
    return InvalidArgument("a part of %d bytes of a push of %d floats, of which %d have come",
                           part.values.size_bytes(), all, begin);
  }
  for (grpc::Slice& slice : part.values.slices()) push.slices.push_back(std::move(slice));
  push.floats += floats;
  push.gradient.finite = push.gradient.finite && part.finite;
  if (push.gradient.finite) {
    Arrive(stream, push.header.push(),
           {.arrival = push.number,
            .samples = push.header.push().samples(),
            .recipient = EarlyUpdate::Recipient{stream, header.request()}},
           begin, part.values);
  }
  if (push.floats < all) return absl::OkStatus();
  ArrivingPush whole = std::move(arriving_.extract(found).mapped());
  whole.gradient.values = FloatPayload(std::move(whole.slices), 0);
  whole.gradient.arrival = whole.number;
  return Handle(stream, whole.header, std::move(whole.gradient));
}

// `arrival`: its rank is the stream's.
void ShardServerImpl::Arrive(StreamId stream, const ps::Push& push, const EarlyUpdate::Push& arrival,
                             int64_t begin, const FloatPayload& values) {
  if (!IsOfThisEpoch(stream) || !serves() || end_) return;
  const WorkerIdentity& worker = workers_.at(stream).worker;
  if (coordinator() != nullptr && shard_->rule().CheckNewest(worker).ok()) {
    coordinator()->Heard(worker.rank, Now());
  }
  EarlyUpdate::Push of_rank = arrival;
  of_rank.rank = worker.rank;
  shard_->Arrive(worker, push, of_rank, begin, values);
}

bool ShardServerImpl::IsOfThisEpoch(StreamId stream) const {
  const auto joined = workers_.find(stream);
  return joined != workers_.end() && shard_ && joined->second.epoch == epoch().number;
}

absl::Status ShardServerImpl::Handle(StreamId stream, const ps::ClientHeader& header,
                                     ShardGradient gradient) {
  if (end_ && !end_->ok()) return *end_;
  if (!header.replication().empty()) {
    if (!replication_) return FailedPrecondition("%s has no --durability=replicated", name_);
    return replication_->Handle(stream, header.replication(), std::move(gradient.values));
  }
  if (header.has_heartbeat() && IsPending(stream)) {
    ps::ServerHeader reply;
    reply.mutable_heartbeat()->set_awaiting(header.heartbeat().awaiting());
    reply.mutable_heartbeat()->set_waits_for(waits_for_);
    requests_->SendNow(stream, std::move(reply));
    if (header.heartbeat().has_ranks()) HearOfRanks(header.heartbeat().ranks());
    for (const PendingJoin& pending : pending_joins_) {
      const auto rank = static_cast<int>(pending.join.rank());
      if (pending.stream == stream && coordinator() != nullptr && rank < coordinator()->rank_count()) {
        coordinator()->Heard(rank, Now());
      }
    }
    return absl::OkStatus();
  }
  if (looks_for_copies_ && !header.has_join()) {
    SendNotPrimary(stream, header.request(), 0);
    return absl::OkStatus();
  }
  if (replication_ && !replication_->is_primary() && !header.has_join() && !header.has_promise()) {
    SendNotPrimary(stream, header.request(), 0);
    return absl::OkStatus();
  }
  switch (header.kind_case()) {
    case ps::ClientHeader::kPromise:
      HandlePromise(stream, header.promise());
      break;
    case ps::ClientHeader::kJoin:
      MUSTER_RETURN_IF_ERROR(HandleJoin(stream, header.request(), header.join()));
      break;
    case ps::ClientHeader::kShardJoin:
      MUSTER_RETURN_IF_ERROR(HandleShardJoin(stream, header.shard_join()));
      break;
    case ps::ClientHeader::kShardReport:
      if (!host_) return FailedPrecondition("%s is not ps:0", name_);
      MUSTER_RETURN_IF_ERROR(host_->Report(stream, header.shard_report()));
      break;
    case ps::ClientHeader::KIND_NOT_SET:
      return InvalidArgument("a request of a kind that this version does not know");
    default: {
      if (header.heartbeat().has_ranks() && workers_.contains(stream)) {
        const bool had_ended = end_.has_value();
        HearOfRanks(header.heartbeat().ranks());
        if (end_ && !had_ended) return absl::OkStatus();
      }
      const auto joined = workers_.find(stream);
      if (IsOfThisEpoch(stream)) {
        MUSTER_RETURN_IF_ERROR(HandleOfWorker(stream, joined->second.worker, header, std::move(gradient)));
        break;
      }
      // It may be computing, and will hear of the new epoch when it asks for something.
      if (joined != workers_.end() && coordinator() != nullptr) {
        coordinator()->Heard(joined->second.worker.rank, Now());
      }
      const uint64_t awaited = header.has_heartbeat() ? header.heartbeat().awaiting() : header.request();
      if (!header.has_heartbeat() || awaited != 0) {
        requests_->SendError(stream, awaited, InvalidArgument("the first frame is no join"),
                             /*join_again=*/true);
      }
    }
  }
  Coordinate(/*always=*/false);
  return absl::OkStatus();
}

absl::Status OutOfMemory() {
  return absl::ResourceExhaustedError(
      "not enough memory on its host for this part of the model: use more parameter servers");
}

CheckpointCopiesOptions CopiesOf(const ParameterServerOptions& options) {
  return {.cluster = options.cluster,
          .view = options.view,
          .shard_index = options.shard_index,
          .generation = options.generation,
          .tls = options.tls,
          .transport = options.transport,
          .folder = options.checkpoint_dir,
          .has_buddy = options.checkpoint_buddy};
}

bool AsksForCheckpoints(const ParameterServerOptions& options) {
  return !options.checkpoint_dir.empty() && options.cluster.ps.size() > 1 && !options.is_standing;
}

absl::StatusOr<std::unique_ptr<ShardServer>> ShardServer::Start(const ParameterServerOptions& options,
                                                                int shard_index, FrameServer* frames) {
  auto server = std::make_unique<ShardServerImpl>(options, shard_index, frames);
  MUSTER_RETURN_IF_ERROR(server->Open());
  return server;
}

}  // namespace muster
