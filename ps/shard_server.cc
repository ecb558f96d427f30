#include "ps/shard_server.h"

#include <absl/strings/str_join.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "base/allocator.h"
#include "base/logging.h"
#include "base/random.h"
#include "cluster/coordinator.h"
#include "proto/parameter_server.pb.h"
#include "ps/checkpointer.h"
#include "ps/coordinator_host.h"
#include "ps/coordinator_link.h"
#include "ps/encoding.h"
#include "ps/job_config.h"
#include "ps/outbox.h"
#include "ps/push_turns.h"
#include "ps/replication.h"
#include "ps/requests.h"
#include "ps/shard_epoch.h"
#include "ps/shard_journal.h"
#include "ps/shard_replay.h"
#include "ps/wire.h"

namespace muster {
namespace {

constexpr Duration kTalkEvery =
    std::chrono::seconds(1);  // to the other shards, also when nothing has changed
constexpr Duration kStallAfter = std::chrono::seconds(2);  // what has waited so long is worth a word
constexpr Duration kCheckpointTimeout = std::chrono::minutes(5);
constexpr Duration kReplicaTalkEvery = std::chrono::milliseconds(200);  // where others notice silence sooner
constexpr size_t kMaxRecordBytes = 128 << 20;  // half of what a frame takes as its header
constexpr Duration kOverTimeout =
    std::chrono::seconds(3);  // for workers that have not heard that all have finished
constexpr Duration kReplicaConnectTimeout = std::chrono::milliseconds(300);
constexpr Duration kReplicaPause = std::chrono::milliseconds(30);
constexpr Duration kReplicaTick = std::chrono::milliseconds(100);
constexpr int64_t kLargePushBytes = 1 << 20;  // smaller ones are sent sooner than asked for
constexpr Duration kTurnTick = std::chrono::milliseconds(5);
constexpr Duration kTurnPatience = std::chrono::seconds(10);
constexpr Duration kEndTick = std::chrono::milliseconds(10);
constexpr Duration kFlushTimeout = std::chrono::seconds(3);  // for a backup, at the end

class Server final : public ShardServer, private Replication::Host {
 public:
  Server(const ParameterServerOptions& options, int shard_index, FrameServer* frames);
  ~Server() override;

  absl::Status Open();
  absl::Status Serve() override;
  void OnFrame(StreamId stream, const ps::ClientHeader& header, ShardGradient gradient) override;
  void OnClosed(StreamId stream) override;
  void End(const absl::Status& status) override {
    const std::lock_guard lock(mutex_);
    EndWith(status);
  }
  bool is_needed() const override;
  bool is_replicated() const override {
    const std::lock_guard lock(mutex_);
    return replication_ && replication_->is_safe();
  }
  ShardMetrics metrics() const override;

 private:
  int shard_count() const { return static_cast<int>(options_.cluster.ps.size()); }
  bool is_async() const { return update_.rule.mode == UpdateMode::kAsync; }
  bool all_finished() const {
    return static_cast<int>(finished_ranks_.size()) == options_.cluster.rank_count();
  }
  // Null where there is none, which is in all but ps:0, and in ps:0 until the job is known.
  Coordinator* coordinator() { return host_ ? host_->coordinator() : nullptr; }
  const Coordinator* coordinator() const { return host_ ? host_->coordinator() : nullptr; }
  // A step waits for what it has waited for long; of ps:0.
  bool is_stalled() const { return !is_async() && coordinator()->waiting_since() < Now() - kStallAfter; }
  bool keeps_time() { return serves() && coordinator() != nullptr && !awaits_first_worker_; }
  // Number 0: none has begun.
  Epoch epoch() const { return shard_ ? shard_->epoch() : Epoch(); }
  bool keeps_checkpoints() const { return checkpointer_ != nullptr; }
  // The last checkpoint that was begun is not there yet.
  bool is_checkpointing() const {
    return last_snapshot_ > std::max(epoch().step, host_->last_complete()) &&
           Now() < last_snapshot_time_ + kCheckpointTimeout;
  }

  absl::Status OpenCheckpoints();
  absl::Status Begin();
  void LookForCopies(const std::stop_token& stop);

  // From streams.
  absl::Status DecodePush(StreamId stream, const ps::ClientHeader& header, ShardGradient* gradient) const;
  bool IsOfThisEpoch(StreamId stream) const;
  absl::Status Handle(StreamId stream, const ps::ClientHeader& header, ShardGradient gradient);
  absl::Status HandleOfWorker(StreamId stream, const WorkerIdentity& worker, const ps::ClientHeader& header,
                              ShardGradient gradient);
  absl::Status HandleJoin(StreamId stream, uint64_t request, const ps::Join& join);
  absl::Status CompleteJoin(StreamId stream, uint64_t request, const ps::Join& join);
  absl::Status HandlePush(StreamId stream, const WorkerIdentity& worker, uint64_t request,
                          const ps::Push& push, ShardGradient gradient);
  absl::Status HandleAsk(StreamId stream, const WorkerIdentity& worker, uint64_t request, const ps::Ask& ask);
  int64_t AskAbove() const;
  bool is_compressed() const {
    return update_.compression.wire_type != ps::FLOAT32 || update_.compression.top_k > 0;
  }
  void GiveTurns();
  void SendGoAhead(StreamId stream, uint64_t request);
  std::string WhoSends() const;
  absl::Status HandleAwait(StreamId stream, const WorkerIdentity& worker, uint64_t request);
  absl::Status HandleFinish(StreamId stream, const WorkerIdentity& worker, uint64_t request,
                            const ps::Finish& finish);
  void HandleHeartbeat(StreamId stream, const ps::Heartbeat& heartbeat);
  bool IsPending(StreamId stream) const;
  absl::Status HandleShardJoin(StreamId stream, const ps::ShardJoin& join);
  void AnswerAwait(PushId id);
  void AnswerFinishes();

  // The job and its epochs.
  absl::Status AdoptConfig(const ps::JobConfig& config);
  void BeginCoordinator();
  void MakeShardEpoch(const Epoch& epoch, Shard shard, UpdateRuleState rule);
  void EndShardEpoch();
  std::vector<PushTally> Tallies() const;
  bool BeginEpoch(const Epoch& epoch);
  ps::ShardJoin OwnJoin() const;
  void TellOwnCheckpoints();
  void EndWith(const absl::Status& status);

  // Both sides of what the shards tell each other. `always`: also if nothing has changed.
  void Coordinate(bool always);
  void CoordinateAsFirst(bool always);
  void CoordinateAsOther(bool always);
  void MakeSteps(bool always);
  void ScheduleSnapshot();
  void LogNotices();
  void TellOthers(bool always);
  void OnCoordination(const ps::Coordination& coordination, uint64_t round);
  void HandleCoordination(const ps::Coordination& coordination);
  void LogStall(const std::string& waits_for);
  void WithinMemory(const std::function<void()>& work);

  // The journal.
  void Recover();
  void GoOnWith(ShardReplay before);
  bool Log(const journal::Record& record, const FloatPayload& payload = {});
  bool Journaled(const absl::Status& appended);
  void LogDecisions(const std::map<uint64_t, std::vector<int>>& decisions);
  bool BeginSegment(uint64_t checkpoint);
  std::vector<std::pair<journal::Record, FloatPayload>> Carried();

  // The other server of a replicated shard (Replication::Host).
  bool serves() const { return !replication_ || replication_->serves(); }
  void TakeOver(std::unique_ptr<ShardReplay> shard) override;
  void StepDown() override;
  void Propose() override;
  void ProposeTo(StreamId stream, int rank);
  const UpdateRule* KnownRule() const;
  void LetGo() override;
  void SendNotPrimary(StreamId stream, uint64_t request, uint64_t promised);
  void GoOn() override;
  std::optional<ReplicaBase> Base() override;
  void OnEnd(const absl::Status& status) override { EndWith(status); }
  int64_t FrameBytes() const override {
    return shard_ ? shard_->shard().range().size() * static_cast<int64_t>(sizeof(float)) : 0;
  }
  void HandlePromise(StreamId stream, const ps::Promise& promise);
  void EndIfLeftAlone();
  void AwaitBackup(std::unique_lock<std::mutex>& lock);
  void OpenLink();

  // Checkpoints.
  void OnCheckpointsChanged();
  void TakeSnapshotIfDue();
  void TakeSnapshot(uint64_t checkpoint);
  bool AwaitsLastCheckpoint();

  const ParameterServerOptions options_;
  const int shard_index_;
  const std::string name_;
  FrameServer* const frames_;

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::string uuid_;  // of what this process is to the coordinator
  Outbox outbox_;
  std::unique_ptr<Requests> requests_;
  TimePoint arrival_;  // of the frame that is being handled
  std::optional<absl::Status> end_;
  std::string waits_for_;  // what the job waits for, if it has for long
  TimePoint next_stall_log_;

  // Made by who says first what the job is: a worker, or another shard.
  std::optional<ps::JobConfig> config_;
  UpdateConfig update_;
  std::optional<Shard> fresh_;  // with initial values, until the first epoch begins

  // Of an epoch.
  struct PendingJoin {
    StreamId stream = 0;
    uint64_t request = 0;
    ps::Join join;
  };
  std::vector<PendingJoin> pending_joins_;  // until the first one begins, or the next view
  std::optional<ShardEpoch> shard_;
  std::vector<PushTally> tallies_;  // by rank, of shard_'s predecessors
  struct Joined {
    WorkerIdentity worker;
    uint64_t epoch = 0;  // number
  };
  std::map<StreamId, Joined> workers_;      // also of the epoch before, until they join again
  std::map<int, uint64_t> finished_ranks_;  // and the step that is their next
  std::vector<PushId> finishes_;            // to be answered
  PushTurns turns_;                         // async
  uint64_t last_step_ = 0;                  // sync, bounded: that those who have finished contributed to

  std::optional<CheckpointCopies> copies_;      // at another server
  bool looks_for_copies_ = false;               // first of all, and joins nobody until then
  std::unique_ptr<Checkpointer> checkpointer_;  // null: there are none
  uint64_t next_snapshot_ = 0;                  // sync, bounded: of the state of this step; 0: none is due
  uint64_t last_snapshot_ = 0;
  TimePoint last_snapshot_time_;
  uint64_t last_commit_ = 0;
  std::optional<TimePoint> last_checkpoint_deadline_;

  std::optional<ShardJournal> journal_;
  uint64_t journaled_decisions_ = 0;  // of steps below
  bool awaits_first_worker_ =
      false;  // since this process has gone on with a journal: for as long as it takes

  // ps:0
  std::optional<CoordinatorHost> host_;
  std::map<int, PushId> awaits_;  // by rank

  std::unique_ptr<Replication> replication_;  // null: it is the only server of the shard
  std::optional<TimePoint> proposing_since_;

  // The others
  std::unique_ptr<CoordinatorLink> link_;
  uint64_t link_round_ = 0;                                  // of the last one
  std::vector<std::unique_ptr<CoordinatorLink>> old_links_;  // that end when no lock is held
  Epoch offered_epoch_;                                      // by the coordinator
  int needed_ = 1;                                           // parts of a step to report

  ShardReport told_report_;  // to the coordinator, wherever that is

  std::jthread copies_thread_;  // the last member: it uses the others
};

Server::Server(const ParameterServerOptions& options, int shard_index, FrameServer* frames)
    : options_(options),
      shard_index_(shard_index),
      name_(TaskName({Role::kPs, shard_index}) +
            (shard_index == options.shard_index ? "" : absl::StrFormat(" (at ps:%d)", options.shard_index))),
      frames_(frames),
      uuid_(RandomName(20)),
      requests_(std::make_unique<Requests>(frames, &outbox_)),
      tallies_(options.cluster.rank_count()),
      turns_(options.push_budget_bytes, kTurnPatience) {}

absl::Status Server::Open() {
  const std::lock_guard lock(mutex_);  // callbacks may come before this returns
  if (!options_.checkpoint_buddy) return Begin();
  copies_.emplace(CopiesOf(options_));
  const ShardJournal journal(options_.checkpoint_dir, shard_index_, shard_count(), options_.generation);
  if (options_.journal && journal.exists()) return Begin();  // it has more than any checkpoint
  looks_for_copies_ = true;
  copies_thread_ = std::jthread([this](const std::stop_token& stop) { LookForCopies(stop); });
  return absl::OkStatus();
}

// The host may be another one, and the checkpoints on the one before it.
void Server::LookForCopies(const std::stop_token& stop) {
  bool has_memory = true;
  try {
    // The others count from before on, and are to find this server there.
    copies_->Fetch(options_.server_timeout / 2, stop);
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

absl::Status Server::OpenCheckpoints() {
  CheckpointerOptions checkpoints{.folder = options_.checkpoint_dir,
                                  .shard_index = shard_index_,
                                  .shard_count = shard_count(),
                                  .keep = options_.keep_checkpoints,
                                  .name = name_};
  if (copies_) {
    checkpoints.copy = [this](uint64_t step, const checkpoint::Manifest::File& file,
                              const std::stop_token& stop) { return copies_->Send(step, file, stop); };
  }
  MUSTER_ASSIGN_OR_RETURN(checkpointer_,
                          Checkpointer::Open(std::move(checkpoints), [this] { OnCheckpointsChanged(); }));
  return absl::OkStatus();
}

absl::Status Server::Begin() {
  if (!options_.checkpoint_dir.empty()) MUSTER_RETURN_IF_ERROR(OpenCheckpoints());
  if (options_.replicated) {
    const int first_backup = FirstBackupOf(shard_index_, shard_count());
    const int partner = options_.shard_index == shard_index_ ? first_backup : shard_index_;
    Replication::Host* const host = this;
    replication_ = std::make_unique<Replication>(ReplicationOptions{.cluster = options_.cluster,
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
  OpenLink();
  if (options_.journal && keeps_checkpoints()) {
    journal_.emplace(options_.checkpoint_dir, shard_index_, shard_count(), options_.generation);
    Recover();
  }
  return absl::OkStatus();
}

// To the coordinator, which may be here.
void Server::OpenLink() {
  if (shard_index_ == 0) {
    host_.emplace(CoordinatorHostOptions{.shard_count = shard_count(),
                                         .rank_count = options_.cluster.rank_count(),
                                         .generation = options_.generation,
                                         .uses_tls = options_.tls.has_value(),
                                         .keeps_checkpoints = keeps_checkpoints(),
                                         .replicated = options_.replicated},
                  frames_, requests_.get());
    return;
  }
  std::vector<int> servers = {0};
  if (options_.replicated) servers.push_back(FirstBackupOf(0, shard_count()));
  CoordinatorLinkOptions link{.cluster = options_.cluster,
                              .servers = std::move(servers),
                              .shard_index = shard_index_,
                              .tls = options_.tls,
                              .transport = options_.transport,
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
          .join = [this, round]() -> std::optional<ps::ShardJoin> {
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
                EndWith(all_finished() && !keeps_checkpoints() ? absl::OkStatus() : status);
              },
      });
}

Server::~Server() {
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

bool Server::is_needed() const {
  const std::lock_guard lock(mutex_);
  if (end_) return false;
  return !replication_ || replication_->is_primary() || replication_->view().is_proposing();
}

ShardMetrics Server::metrics() const {
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

absl::Status Server::Serve() {
  std::unique_lock lock(mutex_);
  TimePoint next_talk = Now();
  while (!end_) {
    TimePoint deadline = next_talk;
    if (replication_) deadline = std::min(deadline, Now() + kReplicaTick);
    if (keeps_time()) deadline = std::min(deadline, coordinator()->next_deadline());
    const bool somebody_waits = turns_.anyone_waits();
    if (somebody_waits) deadline = std::min(deadline, Now() + kTurnTick);
    changed_.wait_until(lock, deadline,
                        [&] { return end_.has_value() || (turns_.anyone_waits() && !somebody_waits); });
    if (end_) break;
    const bool talk = Now() >= next_talk;
    if (talk) next_talk = Now() + (replication_ ? kReplicaTalkEvery : kTalkEvery);
    WithinMemory([&] {
      GiveTurns();  // somebody may have read what he was sent
      if (replication_) {
        replication_->Tick(Now());
        EndIfLeftAlone();
        if (end_ || !replication_->is_primary()) return;
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
  std::unique_ptr<CoordinatorLink> link = std::move(link_);  // nothing is said over it any more
  lock.unlock();
  link = nullptr;
  if (replication_) replication_->Stop();
  return end;
}

// The last answers may have to wait for it, and it is to hear of the end: it would wait for workers that do
// not come. Those whose answers are lost ask again later, and nobody logs what they ask for then.
void Server::AwaitBackup(std::unique_lock<std::mutex>& lock) {
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

void Server::OnClosed(StreamId stream) {
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
  std::erase_if(pending_joins_, [&](const PendingJoin& pending) { return pending.stream == stream; });
  requests_->OnClosed(stream);
  if (host_) host_->OnClosed(stream);
  WithinMemory([this] { GiveTurns(); });
}

void Server::OnFrame(StreamId stream, const ps::ClientHeader& header, ShardGradient gradient) {
  const TimePoint arrival = Now();
  absl::Status status = DecodePush(stream, header, &gradient);
  const std::lock_guard lock(mutex_);
  arrival_ = arrival;
  try {
    if (status.ok()) status = Handle(stream, header, std::move(gradient));
  } catch (const std::bad_alloc&) {
    EndWith(OutOfMemory());  // before anybody sees an update that is made by half
    throw;
  }
  if (status.ok()) return;
  spdlog::warn("{}: refused {}: {}", name_, frames_->PeerOf(stream), std::string(status.message()));
  if (header.has_push()) turns_.Remove(stream);
  requests_->SendError(stream, header.request(), status);
}

// On a thread of the stream, and as far as possible without the lock: workers do not wait for each other.
absl::Status Server::DecodePush(StreamId stream, const ps::ClientHeader& header,
                                ShardGradient* gradient) const {
  if (!header.has_push()) return absl::OkStatus();
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

bool Server::IsOfThisEpoch(StreamId stream) const {
  const auto joined = workers_.find(stream);
  return joined != workers_.end() && shard_ && joined->second.epoch == epoch().number;
}

absl::Status Server::Handle(StreamId stream, const ps::ClientHeader& header, ShardGradient gradient) {
  if (end_ && !end_->ok()) return *end_;
  if (!header.replication().empty()) {
    if (!replication_) return FailedPrecondition("%s has no --durability=replicated", name_);
    return replication_->Handle(stream, header.replication(), std::move(gradient.values));
  }
  if (header.has_heartbeat() && IsPending(stream)) {
    ps::ServerHeader reply;
    reply.mutable_heartbeat()->set_awaiting(header.heartbeat().awaiting());
    requests_->SendNow(stream, std::move(reply));
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

bool Server::IsPending(StreamId stream) const {
  return std::any_of(pending_joins_.begin(), pending_joins_.end(),
                     [&](const PendingJoin& pending) { return pending.stream == stream; });
}

absl::Status Server::HandleOfWorker(StreamId stream, const WorkerIdentity& worker,
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
    default:
      HandleHeartbeat(stream, header.heartbeat());
      return absl::OkStatus();
  }
}

absl::Status Server::HandleJoin(StreamId stream, uint64_t request, const ps::Join& join) {
  if (static_cast<int>(join.shard_index()) != shard_index_ ||
      static_cast<int>(join.shard_count()) != shard_count()) {
    return FailedPrecondition("this is shard %d of %d, the worker wants shard %d of %d: compare --ps_hosts",
                              shard_index_, shard_count(), join.shard_index(), join.shard_count());
  }
  const int ranks = options_.cluster.rank_count();
  if (static_cast<int>(join.config().worker_count()) != ranks ||
      join.rank() >= static_cast<uint32_t>(ranks)) {
    return FailedPrecondition("%s counts %d workers, rank %d counts %d: compare --worker_hosts", name_, ranks,
                              join.rank(), join.config().worker_count());
  }
  if (join.generation() != options_.generation) {
    return FailedPrecondition("%s belongs to generation %d of the cluster, the worker to generation %d",
                              name_, options_.generation, join.generation());
  }
  const TaskId task = TaskOfRank(options_.cluster, static_cast<int>(join.rank()));
  if (options_.tls) MUSTER_RETURN_IF_ERROR(frames_->CheckPeer(stream, task));
  if (looks_for_copies_) {
    pending_joins_.push_back({stream, request, join});
    return absl::OkStatus();
  }
  if (!serves()) {
    if (!replication_->view().is_proposing()) {
      SendNotPrimary(stream, request, 0);
      return absl::OkStatus();
    }
    pending_joins_.push_back({stream, request, join});
    ProposeTo(stream, static_cast<int>(join.rank()));
    return absl::OkStatus();
  }
  MUSTER_RETURN_IF_ERROR(AdoptConfig(join.config()));
  if (end_ && !end_->ok()) return *end_;
  if (shard_) return CompleteJoin(stream, request, join);
  pending_joins_.push_back({stream, request, join});
  return absl::OkStatus();
}

absl::Status Server::CompleteJoin(StreamId stream, uint64_t request, const ps::Join& join) {
  const WorkerIdentity worker{
      .rank = static_cast<int>(join.rank()), .uuid = join.worker_uuid(), .incarnation = join.incarnation()};
  const bool same_process = shard_->rule().CheckNewest(worker).ok();  // whose connection broke
  MUSTER_ASSIGN_OR_RETURN(const JoinAnswer answer, shard_->Join(worker));
  // A replicated one says with each that this server still speaks for the shard.
  if ((replication_ || (journal_ && !same_process)) && !Log(JoinRecord(worker))) return *end_;
  workers_[stream] = {worker, epoch().number};
  if (!same_process) finished_ranks_.erase(worker.rank);
  if (Coordinator* const members = coordinator(); members != nullptr) {
    if (std::exchange(awaits_first_worker_, false)) members->RenewLeases(Now());
    const bool is_known = same_process && members->state(worker.rank) != MemberState::kExpected;
    is_known ? members->Heard(worker.rank, Now()) : members->Join(worker.rank, Now());
  }
  spdlog::info("{}: {} has joined at step {} from {}", name_,
               TaskName(TaskOfRank(options_.cluster, worker.rank)), answer.step, frames_->PeerOf(stream));

  ps::ServerHeader header;
  ps::JoinReply* reply = header.mutable_join();
  reply->set_step(answer.step);
  reply->set_pushes(answer.pushes);
  reply->set_next_step(answer.next_step);
  reply->set_epoch(epoch().number);
  if (replication_) reply->set_view(replication_->view().view());
  reply->set_ask_above(static_cast<uint64_t>(AskAbove()));
  shard_->Answer(requests_->Add({stream, request}), std::move(header), shard_->shard().parameters());
  return absl::OkStatus();
}

absl::Status Server::HandlePush(StreamId stream, const WorkerIdentity& worker, uint64_t request,
                                const ps::Push& push, ShardGradient gradient) {
  MUSTER_RETURN_IF_ERROR(shard_->CheckPush(worker, push, gradient));
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
// compressed is large here, however short it travels.
int64_t Server::AskAbove() const {
  const int64_t all = FrameBytes() * options_.cluster.rank_count();
  if (!is_async() || all <= options_.push_budget_bytes) return 0;
  return is_compressed() ? 1 : std::min(kLargePushBytes, options_.push_budget_bytes);
}

absl::Status Server::HandleAsk(StreamId stream, const WorkerIdentity& worker, uint64_t request,
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

void Server::GiveTurns() {
  if (!turns_.anyone_waits() || !shard_) return;
  const std::vector<PushTurns::Ask> turns = turns_.Give(shard_->shard().superseded_bytes(), Now());
  // For each connection gRPC keeps blocks for as much as it has received at once before, which may be a whole
  // gradient. New to the process, they take no memory until something comes. Where the processor is the limit
  // that costs a quarter of the pushes.
  if (!turns.empty()) ReturnFreeBlocks();
  for (const PushTurns::Ask& ask : turns) SendGoAhead(ask.stream, ask.request);
}

void Server::SendGoAhead(StreamId stream, uint64_t request) {
  ps::ServerHeader header;
  header.set_request(request);
  header.mutable_go_ahead();
  requests_->SendNow(stream, std::move(header));
}

absl::Status Server::HandleAwait(StreamId stream, const WorkerIdentity& worker, uint64_t request) {
  if (coordinator() == nullptr) return InvalidArgument("ps:0 knows who has finished, %s does not", name_);
  MUSTER_RETURN_IF_ERROR(shard_->rule().CheckNewest(worker));
  awaits_[worker.rank] = requests_->Add({stream, request});  // of an earlier one nobody listens to the answer
  coordinator()->Await(worker.rank, shard_->rule().NextStepOf(worker.rank), Now());
  return absl::OkStatus();
}

void Server::AnswerAwait(PushId id) {
  ps::ServerHeader header;
  ps::AwaitFinishedReply* reply = header.mutable_await_finished();
  reply->set_step(shard_->rule().step());
  const PushCounts& counts = shard_->rule().counts();
  reply->mutable_pushes()->set_received(counts.received);
  reply->mutable_pushes()->set_applied(counts.applied);
  reply->mutable_pushes()->set_stale(counts.stale);
  reply->mutable_pushes()->set_duplicate(counts.duplicate);
  reply->mutable_pushes()->set_rejected(counts.rejected);
  requests_->Answer(id, std::move(header));
}

absl::Status Server::HandleFinish(StreamId stream, const WorkerIdentity& worker, uint64_t request,
                                  const ps::Finish& finish) {
  MUSTER_RETURN_IF_ERROR(shard_->rule().CheckNewest(worker));
  finishes_.push_back(requests_->Add({stream, request}));
  if (replication_) (void)Log(FinishRecord(worker.rank, finish.next_step()));
  if ((!keeps_checkpoints() && !replication_) || end_) AnswerFinishes();
  finished_ranks_[worker.rank] = finish.next_step();
  last_step_ = std::max(last_step_, finish.next_step());
  if (coordinator() != nullptr) coordinator()->Finish(worker.rank, finish.next_step(), Now());
  if (!all_finished()) return absl::OkStatus();
  if (!is_async()) TakeSnapshotIfDue();
  // ps:0 says so too, if it is still there; with checkpoints it does when the last one is made.
  if (!host_ && !keeps_checkpoints()) EndWith(absl::OkStatus());
  return absl::OkStatus();
}

// With checkpoints, when the last one is there: until then a worker may have to do some of its work again.
// Replicated, when all have finished: until then their promises may be needed.
void Server::AnswerFinishes() {
  for (const PushId id : std::exchange(finishes_, {})) {
    ps::ServerHeader reply;
    reply.mutable_finish();
    requests_->Answer(id, std::move(reply));
  }
}

void Server::HandleHeartbeat(StreamId stream, const ps::Heartbeat& heartbeat) {
  if (heartbeat.awaiting() == 0) return;
  if (!serves()) return;  // the worker looks for the other one
  const uint64_t awaiting = heartbeat.awaiting();
  // It may not have come.
  if (heartbeat.asking() && turns_.IsSending(stream, awaiting)) return SendGoAhead(stream, awaiting);
  const bool is_queued = heartbeat.asking() && turns_.IsWaiting(stream, awaiting);
  ps::ServerHeader header;
  header.mutable_heartbeat()->set_awaiting(awaiting);
  // An answer may wait for the backup, but not that to a question.
  const bool may_wait = !heartbeat.asking() && !outbox_.empty();
  const bool unknown = !is_queued && !requests_->IsAwaited(stream, awaiting) && !may_wait;
  header.mutable_heartbeat()->set_unknown(unknown);
  header.mutable_heartbeat()->set_waits_for(is_queued ? WhoSends() : waits_for_);
  requests_->SendNow(stream, std::move(header));
}

std::string Server::WhoSends() const {
  std::vector<std::string> names;
  for (const PushTurns::Ask& ask : turns_.sending()) {
    names.push_back(TaskName(TaskOfRank(options_.cluster, ask.rank)));
  }
  return names.empty() ? "other workers receive what they were sent before"
                       : absl::StrJoin(names, ", ") + " may send first";
}

absl::Status Server::HandleShardJoin(StreamId stream, const ps::ShardJoin& join) {
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

absl::Status Server::AdoptConfig(const ps::JobConfig& config) {
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

void Server::BeginCoordinator() {
  CoordinatorOptions coordinator{.shard_count = shard_count(),
                                 .aggregate = update_.aggregate,
                                 .worker_timeout = options_.worker_timeout,
                                 .lease = options_.worker_lease,
                                 .may_go_back = keeps_checkpoints(),
                                 .first_epoch = RandomSeed() >> 1};
  for (int rank = 0; rank < options_.cluster.rank_count(); ++rank) {
    coordinator.rank_names.push_back(TaskName(TaskOfRank(options_.cluster, rank)));
  }
  host_->Begin(coordinator);
}

void Server::MakeShardEpoch(const Epoch& epoch, Shard shard, UpdateRuleState rule) {
  shard_.emplace(epoch, std::move(shard), update_, std::move(rule), requests_.get());
  shard_->OnUpdate([this] {
    if (!is_async()) TakeSnapshotIfDue();
  });
}

void Server::EndShardEpoch() {
  tallies_ = Tallies();
  shard_.reset();
}

// Without what is held, which may have to be sent again: so that no count ever goes down.
std::vector<PushTally> Server::Tallies() const {
  std::vector<PushTally> tallies = tallies_;
  if (!shard_) return tallies;
  const UpdateRule& rule = shard_->rule();
  for (size_t rank = 0; rank < tallies.size(); ++rank) tallies[rank] += rule.tallies()[rank];
  for (const auto& [worker, push] : rule.held_pushes()) --tallies[worker.rank].counts.received;
  return tallies;
}

// What was asked for in the epoch before is to be asked again, after a join. False: the checkpoint cannot be
// read.
bool Server::BeginEpoch(const Epoch& epoch) {
  std::erase_if(workers_, [this](const auto& entry) {
    return shard_ && !shard_->rule().CheckNewest(entry.second.worker).ok();
  });
  EndShardEpoch();  // first: there may not be memory for two
  turns_.Clear();   // who asked hears of the epoch at its next heartbeat
  UpdateRuleState rule{.step = epoch.step};
  std::optional<Shard> shard = std::exchange(fresh_, std::nullopt);
  if (epoch.step > 0) {
    auto restored = checkpointer_->Read(epoch.step, *config_);
    if (!restored.ok()) {
      spdlog::warn("{}: {}", name_, std::string(restored.status().message()));
      if (absl::IsDataLoss(restored.status()) || absl::IsNotFound(restored.status())) return false;
      EndWith(restored.status());
      return true;
    }
    shard.emplace(std::move(restored->shard));
    rule = WithoutProcesses(std::move(restored->rule));
  } else if (!shard) {
    auto created = Shard::Create(*config_, shard_index_, shard_count());
    MUSTER_CHECK(created.ok());  // it was once
    shard.emplace(*std::move(created));
  }
  if (checkpointer_ != nullptr) checkpointer_->BeginAfter(epoch.step);
  MakeShardEpoch(epoch, *std::move(shard), std::move(rule));
  if (journal_ && !Journaled(journal_->BeginEpoch(*config_, epoch))) return true;
  journaled_decisions_ = epoch.step;
  finished_ranks_.clear();
  finishes_.clear();
  awaits_.clear();
  last_step_ = 0;
  last_snapshot_ = last_commit_ = epoch.step;
  next_snapshot_ = 0;
  last_checkpoint_deadline_.reset();
  told_report_ = {};
  if (host_) {
    host_->OnEpochBegun();
    coordinator()->RenewLeases(Now());  // nobody was listened to while the checkpoint was read
  }
  requests_->RefuseAll(Aborted("%s has gone back to step %d", name_, epoch.step), /*join_again=*/true);
  spdlog::info("{}: begins at step {}", name_, epoch.step);
  for (const PendingJoin& pending : std::exchange(pending_joins_, {})) {
    const absl::Status status = CompleteJoin(pending.stream, pending.request, pending.join);
    if (!status.ok()) requests_->SendError(pending.stream, pending.request, status);
  }
  if (replication_) replication_->OnBegun();
  return true;
}

ps::ShardJoin Server::OwnJoin() const {
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
  for (const CheckpointId& id : checkpointer_->available()) {
    ps::ShardJoin::Checkpoint* checkpoint = join.add_checkpoints();
    checkpoint->set_step(id.step);
    checkpoint->set_digest(id.digest);
  }
  return join;
}

void Server::TellOwnCheckpoints() {
  if (host_) host_->Join(std::nullopt, OwnJoin());
  if (link_ != nullptr) {
    outbox_.Send([this, join = OwnJoin()] {
      if (link_ != nullptr) link_->SendJoin(join);
    });
  }
}

// Whoever still waits is told why in vain.
void Server::EndWith(const absl::Status& status) {
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

void Server::Coordinate(bool always) {
  // A primary that may have been left behind says nothing: others would take it for the one.
  if (end_ || !serves()) return;
  if (host_) {
    CoordinateAsFirst(always);
  } else {
    CoordinateAsOther(always);
  }
}

void Server::CoordinateAsFirst(bool always) {
  if (coordinator() == nullptr) return TellOthers(always);
  while (coordinator()->epoch() != epoch() && !coordinator()->end() && !BeginEpoch(coordinator()->epoch())) {
    TellOwnCheckpoints();
  }
  if (end_) return;
  if (shard_) MakeSteps(always);
  LogNotices();
  std::erase_if(awaits_, [this](const auto& await) {
    if (!coordinator()->AllOthersDone(await.first)) return false;
    AnswerAwait(await.second);
    return true;
  });
  LogStall(is_stalled() ? host_->DescribeWait() : "");
  TellOthers(always);
  const auto& end = coordinator()->end();
  if (end && (!end->ok() || !AwaitsLastCheckpoint())) EndWith(*end);
}

// As far as parts of steps are there, and what is due of checkpoints.
void Server::MakeSteps(bool always) {
  const UpdateRule& rule = shard_->rule();
  // An update may let workers contribute whose parts are here already, and so on.
  for (uint64_t step = UINT64_MAX; !is_async() && step != rule.step();) {
    step = rule.step();
    ScheduleSnapshot();
    if (always || rule.held_of_step() >= coordinator()->needed() || told_report_.step != step) {
      told_report_ = rule.Report();
      told_report_.epoch = epoch().number;
      coordinator()->Report(0, told_report_, Now());
    }
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
  host_->AddFiles(0, checkpointer_->written());
  if (const auto complete = host_->TakeComplete()) {
    checkpointer_->Commit(*complete, coordinator()->newest_common());
  }
}

// Sync, bounded: all servers have to hear of it before they can get there, with the decision that makes the
// step at the latest.
void Server::ScheduleSnapshot() {
  if (!keeps_checkpoints() || next_snapshot_ > shard_->rule().step() || is_checkpointing()) return;
  const uint64_t decided = coordinator()->next_step();  // no server can be beyond
  next_snapshot_ = (decided / options_.checkpoint_every + 1) * options_.checkpoint_every;
}

void Server::LogNotices() {
  for (const MembershipNotice& notice : coordinator()->TakeNotices()) {
    notice.state == MemberState::kLost ? spdlog::warn("{}: {}", name_, notice.text)
                                       : spdlog::info("{}: {}", name_, notice.text);
  }
}

void Server::TellOthers(bool always) {
  ps::Coordination word;
  word.set_waits_for(waits_for_);
  word.set_epoch(epoch().number);
  word.set_epoch_step(epoch().step);
  word.set_checkpoint(is_async() ? last_snapshot_ : next_snapshot_);
  if (coordinator() != nullptr) word.set_needed_checkpoint(coordinator()->newest_common());
  word.set_ended(end_.has_value());
  if (end_ && !end_->ok()) SetError(*end_, word.mutable_end());
  host_->Tell(std::move(word), always, journal_ || replication_ ? journaled_decisions_ : UINT64_MAX);
}

void Server::CoordinateAsOther(bool always) {
  if (link_ == nullptr) return;
  if (always) TellOwnCheckpoints();
  if (!shard_) return;
  const UpdateRule& rule = shard_->rule();
  const bool may_matter = !is_async() && (rule.held_of_step() >= needed_ || told_report_.step != rule.step());
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
    for (const auto& [step, file] : checkpointer_->written()) {
      ps::ShardReport::File* written = out.add_files();
      written->set_checkpoint(step);
      written->set_file(file.SerializeAsString());
    }
  }
  outbox_.Send([this, out = std::move(out)] {
    if (link_ != nullptr) link_->Send(out);
  });
}

void Server::OnCoordination(const ps::Coordination& coordination, uint64_t round) {
  const std::lock_guard lock(mutex_);
  if (end_ || round != link_round_) return;
  WithinMemory([&] { HandleCoordination(coordination); });
}

// On threads where nobody else would hear of it.
void Server::WithinMemory(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
    EndWith(OutOfMemory());
  }
}

void Server::HandleCoordination(const ps::Coordination& coordination) {
  needed_ = static_cast<int>(coordination.needed());
  waits_for_ = coordination.waits_for();
  offered_epoch_ = {coordination.epoch(), coordination.epoch_step()};
  if (config_ && offered_epoch_.number > epoch().number && !BeginEpoch(offered_epoch_)) TellOwnCheckpoints();
  if (shard_ && offered_epoch_ == epoch()) {
    if (!is_async()) next_snapshot_ = coordination.checkpoint();
    std::map<uint64_t, std::vector<int>> decisions;
    for (const ps::Coordination::Decision& decision : coordination.decisions()) {
      const auto is_bad = [this](uint32_t rank) {
        return rank >= static_cast<uint32_t>(options_.cluster.rank_count());
      };
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
  }
  if (coordination.ended()) {
    EndWith(coordination.has_end() ? StatusOf(coordination.end(), "ps:0") : absl::OkStatus());
  }
  Coordinate(/*always=*/false);
}

// Said once, and again when it lasts.
void Server::LogStall(const std::string& waits_for) {
  const bool is_new = waits_for_.empty();
  waits_for_ = waits_for;
  if (waits_for.empty() || (!is_new && Now() < next_stall_log_)) return;
  next_stall_log_ = Now() + std::chrono::seconds(30);
  spdlog::warn("{}: {}", name_, waits_for);
}

// What this server was when its last process ended, if its journal says it.
void Server::Recover() {
  auto recovered = journal_->Recover();
  if (recovered.ok() && !*recovered) return;
  const auto replay_all = [&]() -> absl::StatusOr<std::unique_ptr<ShardReplay>> {
    MUSTER_RETURN_IF_ERROR(recovered.status());
    RecoveredShard& before = **recovered;
    MUSTER_ASSIGN_OR_RETURN(
        std::unique_ptr<ShardReplay> replay,
        ShardReplay::Begin(before.config, before.epoch, *std::move(before.shard), std::move(before.rule),
                           options_.cluster.rank_count(), frames_, &outbox_));
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
}

// Where another process was.
void Server::GoOnWith(ShardReplay before) {
  journaled_decisions_ = before.next_decision();
  config_ = std::move(before.config);
  update_ = std::move(before.update);
  requests_ = std::move(before.requests);
  EndShardEpoch();
  shard_.emplace(*std::move(before.shard));
  shard_->BeginTallies();
  shard_->OnUpdate([this] {
    if (!is_async()) TakeSnapshotIfDue();
  });
  finished_ranks_ = std::move(before.finished);
  if (!host_) return;
  host_->SetRequests(requests_.get());
  BeginCoordinator();
  awaits_first_worker_ = true;
  coordinator()->Resume(epoch(), journaled_decisions_, before.decisions);
  for (const auto& [rank, next_step] : finished_ranks_) coordinator()->Finish(rank, next_step, Now());
  TellOwnCheckpoints();
}

// What was done to the shard. False: that is the end.
bool Server::Log(const journal::Record& record, const FloatPayload& payload) {
  if (replication_) replication_->Log(record, payload);
  return !journal_ || Journaled(journal_->Append(record, payload.parts()));
}

// What cannot be appended could be lost after it was acknowledged.
bool Server::Journaled(const absl::Status& appended) {
  if (!appended.ok()) EndWith(Annotate(appended, name_ + ": its journal"));
  return appended.ok();
}

void Server::LogDecisions(const std::map<uint64_t, std::vector<int>>& decisions) {
  if (!journal_ && !replication_) return;
  for (auto next = decisions.lower_bound(journaled_decisions_); next != decisions.end(); ++next) {
    if (!Log(DecisionRecord({next->first, next->second}))) return;
    journaled_decisions_ = next->first + 1;
  }
}

// From here on the journal comes after this checkpoint, with what that does not have. False: that is the end.
bool Server::BeginSegment(uint64_t checkpoint) {
  absl::Status status = journal_->BeginSegment(*config_, epoch(), checkpoint, shard_->rule().step());
  for (auto& [record, payload] : Carried()) {
    record.set_carried(true);
    if (status.ok()) status = journal_->Append(record, payload.parts());
  }
  return Journaled(status);
}

// What is in no snapshot of the shard.
std::vector<std::pair<journal::Record, FloatPayload>> Server::Carried() {
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
  return carried;
}

// Without the other server, and without the promises that would let this one go on.
void Server::EndIfLeftAlone() {
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

// The shard begins here, or this server was its backup.
void Server::TakeOver(std::unique_ptr<ShardReplay> shard) {
  if (end_) return;
  uuid_ = RandomName(20);
  OpenLink();
  if (shard != nullptr) GoOnWith(std::move(*shard));
  GoOn();
  if (shard_ && all_finished() && !host_) EndWith(absl::OkStatus());
}

void Server::StepDown() {
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

void Server::Propose() {
  for (const auto& [stream, joined] : workers_) ProposeTo(stream, joined.worker.rank);
  for (const PendingJoin& pending : pending_joins_) {
    ProposeTo(pending.stream, static_cast<int>(pending.join.rank()));
  }
}

// What this server knows of the workers, whether it is the primary or the backup.
const UpdateRule* Server::KnownRule() const {
  if (shard_) return &shard_->rule();
  return replication_ ? replication_->rule() : nullptr;
}

void Server::ProposeTo(StreamId stream, int rank) {
  ps::ServerHeader header;
  header.mutable_propose()->set_view(replication_->view().proposed());
  header.mutable_propose()->set_earlier(replication_->view().view());
  header.mutable_propose()->set_is_primary(replication_->is_primary());
  const UpdateRule* const rule = KnownRule();
  header.mutable_propose()->set_is_first(rule != nullptr && !rule->HasJoined(rank));
  requests_->SendNow(stream, std::move(header));
}

void Server::HandlePromise(StreamId stream, const ps::Promise& promise) {
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
    const WorkerIdentity worker{.rank = static_cast<int>(pending.join.rank()),
                                .uuid = pending.join.worker_uuid(),
                                .incarnation = pending.join.incarnation()};
    if (is_newest(worker)) replication_->Promise(worker.rank, promise.view());
    return;
  }
}

void Server::LetGo() {
  for (const PendingJoin& pending : std::exchange(pending_joins_, {})) {
    SendNotPrimary(pending.stream, pending.request, replication_->view().proposed());
  }
}

void Server::SendNotPrimary(StreamId stream, uint64_t request, uint64_t promised) {
  ps::ServerHeader header;
  header.set_request(request);
  header.mutable_not_primary()->set_promised(promised);
  requests_->SendNow(stream, std::move(header));
}

// Those who wait for a server that speaks for the shard.
void Server::GoOn() {
  for (const PendingJoin& pending : std::exchange(pending_joins_, {})) {
    const absl::Status status = HandleJoin(pending.stream, pending.request, pending.join);
    if (!status.ok()) requests_->SendError(pending.stream, pending.request, status);
  }
  Coordinate(/*always=*/true);
}

std::optional<ReplicaBase> Server::Base() {
  if (!shard_) return std::nullopt;
  const auto snapshot = std::make_shared<ShardSnapshot>(shard_->shard().Snapshot());
  const ShardPlace place{
      .config = *config_, .index = shard_index_, .count = shard_count(), .epoch = epoch().number};
  ReplicaBase base{.image = ImageOf(place, *snapshot, shard_->rule().state()),
                   .owner = snapshot,
                   .epoch_step = epoch().step,
                   .carried = Carried()};
  for (const auto& [rank, next_step] : finished_ranks_) {
    base.carried.emplace_back(FinishRecord(rank, next_step), FloatPayload());
  }
  return base;
}

void Server::OnCheckpointsChanged() {
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

// Sync, bounded: when ps:0 has said so, and of what the job ends with.
void Server::TakeSnapshotIfDue() {
  const uint64_t step = shard_->rule().step();
  const bool is_last = all_finished() && step == last_step_;
  if (step > last_snapshot_ && (step == next_snapshot_ || is_last)) TakeSnapshot(step);
}

void Server::TakeSnapshot(uint64_t checkpoint) {
  if (!keeps_checkpoints()) return;
  last_snapshot_ = checkpoint;
  last_snapshot_time_ = Now();
  if (journal_ && !BeginSegment(checkpoint)) return;  // before there can be a file that it begins with
  checkpointer_->Write(checkpoint, *config_, epoch(), shard_->shard().Snapshot(), shard_->rule().state());
}

// All workers have finished: what they have trained is to outlive the servers.
bool Server::AwaitsLastCheckpoint() {
  if (!keeps_checkpoints() || !shard_ || shard_->rule().step() == epoch().step) return false;
  if (!last_checkpoint_deadline_) {
    last_checkpoint_deadline_ = Now() + kCheckpointTimeout;
    if (is_async() && shard_->rule().step() > last_snapshot_) TakeSnapshot(shard_->rule().step());
    TellOthers(/*always=*/true);
  }
  const uint64_t last = is_async() ? last_snapshot_ : last_step_;
  if (std::max(host_->last_complete(), coordinator()->newest_common()) >= last) return false;
  if (Now() < *last_checkpoint_deadline_) return true;
  spdlog::warn("{}: the last checkpoint, of step {}, was not made in {}", name_, last,
               FormatAge(kCheckpointTimeout));
  return false;
}

}  // namespace

absl::Status OutOfMemory() {
  return absl::ResourceExhaustedError(
      "not enough memory on its host for this part of the model: use more parameter servers");
}

CheckpointCopiesOptions CopiesOf(const ParameterServerOptions& options) {
  return {.cluster = options.cluster,
          .shard_index = options.shard_index,
          .generation = options.generation,
          .tls = options.tls,
          .transport = options.transport,
          .folder = options.checkpoint_dir};
}

absl::StatusOr<std::unique_ptr<ShardServer>> ShardServer::Start(const ParameterServerOptions& options,
                                                                int shard_index, FrameServer* frames) {
  auto server = std::make_unique<Server>(options, shard_index, frames);
  MUSTER_RETURN_IF_ERROR(server->Open());
  return server;
}

}  // namespace muster
