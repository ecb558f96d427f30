#include "ps/server.h"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "base/logging.h"
#include "base/random.h"
#include "cluster/coordinator.h"
#include "proto/parameter_server.pb.h"
#include "ps/checkpointer.h"
#include "ps/coordinator_host.h"
#include "ps/coordinator_link.h"
#include "ps/frame_server.h"
#include "ps/job_config.h"
#include "ps/requests.h"
#include "ps/shard_epoch.h"
#include "ps/shard_journal.h"
#include "ps/wire.h"

namespace muster {
namespace {

constexpr Duration kTalkEvery =
    std::chrono::seconds(1);  // to the other shards, also when nothing has changed
constexpr Duration kStallAfter = std::chrono::seconds(2);  // what has waited so long is worth a word
constexpr Duration kCheckpointTimeout = std::chrono::minutes(5);
constexpr Duration kCloseTimeout = std::chrono::seconds(5);  // for the others to hang up at the end

absl::Status OutOfMemory() {
  return absl::ResourceExhaustedError(
      "not enough memory on its host for this part of the model: use more parameter servers");
}

class Server final : public ParameterServer, private FrameServer::Handler {
 public:
  explicit Server(const ParameterServerOptions& options)
      : options_(options), uuid_(RandomName(20)), name_(TaskName({Role::kPs, options.shard_index})) {}
  ~Server() override;

  absl::Status Listen();
  absl::Status Wait() override;

 private:
  int shard_count() const { return static_cast<int>(options_.cluster.ps.size()); }
  bool is_async() const { return update_.rule.mode == UpdateMode::kAsync; }
  bool all_finished() const {
    return static_cast<int>(finished_ranks_.size()) == options_.cluster.rank_count();
  }
  // Null where there is none, which is in all but ps:0, and in ps:0 until the job is known.
  Coordinator* coordinator() { return host_ ? host_->coordinator() : nullptr; }
  // Number 0: none has begun.
  Epoch epoch() const { return shard_ ? shard_->epoch() : Epoch(); }
  bool keeps_checkpoints() const { return checkpointer_ != nullptr; }
  // The last checkpoint that was begun is not there yet.
  bool is_checkpointing() const {
    return last_snapshot_ > std::max(epoch().step, host_->last_complete()) &&
           Now() < last_snapshot_time_ + kCheckpointTimeout;
  }

  // From streams.
  void OnFrame(StreamId stream, const grpc::ByteBuffer& frame) override;
  void OnClosed(StreamId stream) override;
  absl::Status Handle(StreamId stream, const ps::ClientHeader& header, ShardGradient gradient);
  absl::Status HandleOfWorker(StreamId stream, const WorkerIdentity& worker, const ps::ClientHeader& header,
                              ShardGradient gradient);
  absl::Status HandleJoin(StreamId stream, uint64_t request, const ps::Join& join);
  absl::Status CompleteJoin(StreamId stream, uint64_t request, const ps::Join& join);
  absl::Status HandlePush(StreamId stream, const WorkerIdentity& worker, uint64_t request,
                          const ps::Push& push, ShardGradient gradient);
  absl::Status HandleAwait(StreamId stream, const WorkerIdentity& worker, uint64_t request);
  absl::Status HandleFinish(StreamId stream, const WorkerIdentity& worker, uint64_t request,
                            const ps::Finish& finish);
  void HandleHeartbeat(StreamId stream, const ps::Heartbeat& heartbeat);
  absl::Status HandleShardJoin(StreamId stream, const ps::ShardJoin& join);
  void AnswerAwait(PushId id);
  void AnswerFinishes();

  // The job and its epochs.
  absl::Status AdoptConfig(const ps::JobConfig& config);
  void BeginCoordinator();
  void MakeShardEpoch(const Epoch& epoch, Shard shard, UpdateRuleState rule);
  bool BeginEpoch(const Epoch& epoch);
  ps::ShardJoin OwnJoin() const;
  void TellOwnCheckpoints();
  void End(const absl::Status& status);

  // Both sides of what the shards tell each other. `always`: also if nothing has changed.
  void Coordinate(bool always);
  void CoordinateAsFirst(bool always);
  void CoordinateAsOther(bool always);
  void MakeSteps(bool always);
  void ScheduleSnapshot();
  void LogNotices();
  void TellOthers(bool always);
  void OnCoordination(const ps::Coordination& coordination);
  void HandleCoordination(const ps::Coordination& coordination);
  void LogStall(const std::string& waits_for);
  void WithinMemory(const std::function<void()>& work);

  // The journal.
  void Recover();
  absl::Status Replay(const JournalReader::Entry& entry, std::map<uint64_t, std::vector<int>>* decisions);
  bool Journaled(const absl::Status& appended);
  void JournalDecisions(const std::map<uint64_t, std::vector<int>>& decisions);
  bool BeginSegment(uint64_t checkpoint);

  // Checkpoints.
  void OnCheckpointsChanged();
  void TakeSnapshotIfDue();
  void TakeSnapshot(uint64_t checkpoint);
  bool AwaitsLastCheckpoint();

  const ParameterServerOptions options_;
  const std::string uuid_;
  const std::string name_;

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::unique_ptr<FrameServer> frames_;
  std::optional<Requests> requests_;
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
  std::vector<PendingJoin> pending_joins_;  // until the first one begins
  std::optional<ShardEpoch> shard_;
  struct Joined {
    WorkerIdentity worker;
    uint64_t epoch = 0;  // number
  };
  std::map<StreamId, Joined> workers_;  // also of the epoch before, until they join again
  std::set<int> finished_ranks_;
  std::vector<PushId> finishes_;  // to be answered
  uint64_t last_step_ = 0;        // sync, bounded: that those who have finished contributed to

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

  // The others
  std::unique_ptr<CoordinatorLink> link_;
  Epoch offered_epoch_;  // by the coordinator
  int needed_ = 1;       // parts of a step to report

  ShardReport told_report_;  // to the coordinator, wherever that is
};

absl::Status Server::Listen() {
  const std::string address =
      options_.bind_address.empty() ? options_.cluster.ps[options_.shard_index] : options_.bind_address;
  const std::lock_guard lock(mutex_);  // the first frame may be there before Listen returns
  if (!options_.checkpoint_dir.empty()) {
    MUSTER_ASSIGN_OR_RETURN(checkpointer_, Checkpointer::Open({.folder = options_.checkpoint_dir,
                                                               .shard_index = options_.shard_index,
                                                               .shard_count = shard_count(),
                                                               .keep = options_.keep_checkpoints,
                                                               .name = name_},
                                                              [this] { OnCheckpointsChanged(); }));
  }
  auto listening = FrameServer::Listen(address, options_.tls, this);
  if (!listening.ok()) return Annotate(listening.status(), name_);
  frames_ = *std::move(listening);
  requests_.emplace(frames_.get());
  spdlog::info(
      "{} listens on {}{}", name_, address,
      options_.tls ? "" : ", without TLS: anyone who reaches this port can read and write the parameters");
  if (options_.shard_index == 0) {
    host_.emplace(CoordinatorHostOptions{.shard_count = shard_count(),
                                         .rank_count = options_.cluster.rank_count(),
                                         .generation = options_.generation,
                                         .uses_tls = options_.tls.has_value(),
                                         .keeps_checkpoints = keeps_checkpoints()},
                  frames_.get(), &*requests_);
  }
  if (options_.journal && keeps_checkpoints()) {
    journal_.emplace(options_.checkpoint_dir, options_.shard_index, shard_count(), options_.generation);
    Recover();
  }
  if (host_) return absl::OkStatus();
  CoordinatorLinkOptions link{.address = options_.cluster.ps[0],
                              .shard_index = options_.shard_index,
                              .tls = options_.tls,
                              .server_timeout = options_.server_timeout};
  link_ = std::make_unique<CoordinatorLink>(
      std::move(link), CoordinatorLink::Callbacks{
                           .join =
                               [this] {
                                 const std::lock_guard lock(mutex_);
                                 told_report_ = {};  // ps:0 may be another process
                                 return OwnJoin();
                               },
                           .on_coordination = [this](const ps::Coordination& c) { OnCoordination(c); },
                           .on_lost =
                               [this](const absl::Status& status) {
                                 const std::lock_guard lock(mutex_);
                                 End(all_finished() && !keeps_checkpoints() ? absl::OkStatus() : status);
                               },
                       });
  return absl::OkStatus();
}

// To those who talk to it, as if the process had ended: the streams break, and nobody is told why.
Server::~Server() {
  if (frames_ != nullptr) frames_->Shutdown();
  // What runs on the threads of these finds everything in its place until they have ended.
  std::unique_ptr<CoordinatorLink> link;
  std::unique_ptr<Checkpointer> checkpointer;
  {
    const std::lock_guard lock(mutex_);
    if (!end_) end_ = absl::CancelledError(name_ + " has been ended");
    link = std::move(link_);
    checkpointer = std::move(checkpointer_);
  }
}

absl::Status Server::Wait() {
  std::unique_lock lock(mutex_);
  TimePoint next_talk = Now();
  while (!end_) {
    TimePoint deadline = next_talk;
    const bool keeps_time = coordinator() != nullptr && !awaits_first_worker_;
    if (keeps_time) deadline = std::min(deadline, coordinator()->next_deadline());
    changed_.wait_until(lock, deadline, [this] { return end_.has_value(); });
    if (end_) break;
    const bool talk = Now() >= next_talk;
    if (talk) next_talk = Now() + kTalkEvery;
    WithinMemory([&] {
      if (coordinator() != nullptr && !awaits_first_worker_) coordinator()->Tick(Now());
      Coordinate(talk);
    });
  }
  const absl::Status end = *end_;
  std::unique_ptr<CoordinatorLink> link = std::move(link_);  // nothing is said over it any more
  lock.unlock();
  link = nullptr;
  // The last answers are on their way; the others close their streams when they have them.
  frames_->AwaitClosed(Now() + kCloseTimeout);
  return end;
}

void Server::OnClosed(StreamId stream) {
  const std::lock_guard lock(mutex_);
  workers_.erase(stream);
  std::erase_if(pending_joins_, [&](const PendingJoin& pending) { return pending.stream == stream; });
  requests_->OnClosed(stream);
  if (host_) host_->OnClosed(stream);
}

// gRPC would swallow an exception together with the request. What memory was short for may be done by half,
// so this is the end.
void Server::OnFrame(StreamId stream, const grpc::ByteBuffer& frame) {
  ps::ClientHeader header;
  absl::Status status;
  try {
    ShardGradient gradient;
    status = DecodeFrame(frame, &header, &gradient.values);
    if (status.ok() && header.version() != kWireVersion) {
      status = FailedPrecondition("this server speaks version %d of the protocol, the client version %d",
                                  kWireVersion, header.version());
    }
    if (status.ok()) {
      if (header.has_push()) {
        gradient.rows.Swap(header.mutable_push()->mutable_rows());
        gradient.finite = gradient.values.AllFinite();  // here, where workers do not wait for each other
      }
      status = Handle(stream, header, std::move(gradient));
    }
  } catch (const std::bad_alloc&) {
    status = OutOfMemory();
    spdlog::error("{}: {}", name_, std::string(status.message()));
    const std::lock_guard lock(mutex_);
    End(status);
  }
  if (status.ok()) return;
  const std::lock_guard lock(mutex_);
  spdlog::warn("{}: refused {}: {}", name_, frames_->PeerOf(stream), std::string(status.message()));
  requests_->SendError(stream, header.request(), status);
}

absl::Status Server::Handle(StreamId stream, const ps::ClientHeader& header, ShardGradient gradient) {
  const std::lock_guard lock(mutex_);
  if (end_ && !end_->ok()) return *end_;
  switch (header.kind_case()) {
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
      if (joined != workers_.end() && shard_ && joined->second.epoch == epoch().number) {
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

absl::Status Server::HandleOfWorker(StreamId stream, const WorkerIdentity& worker,
                                    const ps::ClientHeader& header, ShardGradient gradient) {
  if (Coordinator* const members = coordinator();
      members != nullptr && shard_->rule().CheckNewest(worker).ok()) {
    header.has_push() ? members->Pushed(worker.rank, Now()) : members->Heard(worker.rank, Now());
  }
  switch (header.kind_case()) {
    case ps::ClientHeader::kPush:
      return HandlePush(stream, worker, header.request(), header.push(), std::move(gradient));
    case ps::ClientHeader::kPull:
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
  if (static_cast<int>(join.shard_index()) != options_.shard_index ||
      static_cast<int>(join.shard_count()) != shard_count()) {
    return FailedPrecondition("this is shard %d of %d, the worker wants shard %d of %d: compare --ps_hosts",
                              options_.shard_index, shard_count(), join.shard_index(), join.shard_count());
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
  if (journal_ && !same_process && !Journaled(journal_->Append(worker))) return *end_;
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
  shard_->Answer(requests_->Add(stream, request), std::move(header), shard_->shard().parameters());
  return absl::OkStatus();
}

absl::Status Server::HandlePush(StreamId stream, const WorkerIdentity& worker, uint64_t request,
                                const ps::Push& push, ShardGradient gradient) {
  MUSTER_RETURN_IF_ERROR(shard_->CheckPush(worker, push, gradient));
  const bool may_count = gradient.finite && shard_->rule().CheckNewest(worker).ok();
  if (journal_ && may_count && !Journaled(journal_->Append(worker, push, gradient))) return *end_;
  shard_->Push(worker, requests_->Add(stream, request, push.next_rows()), push, std::move(gradient));
  return absl::OkStatus();
}

absl::Status Server::HandleAwait(StreamId stream, const WorkerIdentity& worker, uint64_t request) {
  if (coordinator() == nullptr) return InvalidArgument("ps:0 knows who has finished, %s does not", name_);
  MUSTER_RETURN_IF_ERROR(shard_->rule().CheckNewest(worker));
  awaits_[worker.rank] = requests_->Add(stream, request);  // of an earlier one nobody listens to the answer
  coordinator()->Await(worker.rank, Now());
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
  finishes_.push_back(requests_->Add(stream, request));
  if (!keeps_checkpoints() || end_) AnswerFinishes();
  finished_ranks_.insert(worker.rank);
  last_step_ = std::max(last_step_, finish.next_step());
  if (coordinator() != nullptr) coordinator()->Finish(worker.rank, finish.next_step(), Now());
  if (!all_finished()) return absl::OkStatus();
  if (!is_async()) TakeSnapshotIfDue();
  // ps:0 says so too, if it is still there; with checkpoints it does when the last one is made.
  if (!host_ && !keeps_checkpoints()) End(absl::OkStatus());
  return absl::OkStatus();
}

// With checkpoints, when the last one is there: until then a worker may have to do some of its work again.
void Server::AnswerFinishes() {
  for (const PushId id : std::exchange(finishes_, {})) {
    ps::ServerHeader reply;
    reply.mutable_finish();
    requests_->Answer(id, std::move(reply));
  }
}

void Server::HandleHeartbeat(StreamId stream, const ps::Heartbeat& heartbeat) {
  if (heartbeat.awaiting() == 0) return;
  ps::ServerHeader header;
  header.mutable_heartbeat()->set_awaiting(heartbeat.awaiting());
  header.mutable_heartbeat()->set_unknown(!requests_->IsAwaited(stream, heartbeat.awaiting()));
  header.mutable_heartbeat()->set_waits_for(waits_for_);
  requests_->Send(stream, std::move(header));
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
  return absl::OkStatus();
}

absl::Status Server::AdoptConfig(const ps::JobConfig& config) {
  if (config_) return CheckSameJob(*config_, config);
  MUSTER_ASSIGN_OR_RETURN(update_, UpdateOf(config));
  MUSTER_ASSIGN_OR_RETURN(Shard shard, Shard::Create(config, options_.shard_index, shard_count()));
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
  shard_.emplace(epoch, std::move(shard), update_.rule, std::move(rule), &*requests_, [this] {
    if (!is_async()) TakeSnapshotIfDue();
  });
}

// What was asked for in the epoch before is to be asked again, after a join. False: the checkpoint cannot be
// read.
bool Server::BeginEpoch(const Epoch& epoch) {
  std::erase_if(workers_, [this](const auto& entry) {
    return shard_ && !shard_->rule().CheckNewest(entry.second.worker).ok();
  });
  shard_.reset();  // first: there may not be memory for two
  UpdateRuleState rule{.step = epoch.step};
  std::optional<Shard> shard = std::exchange(fresh_, std::nullopt);
  if (epoch.step > 0) {
    auto restored = checkpointer_->Read(epoch.step, *config_);
    if (!restored.ok()) {
      spdlog::warn("{}: {}", name_, std::string(restored.status().message()));
      if (absl::IsDataLoss(restored.status()) || absl::IsNotFound(restored.status())) return false;
      End(restored.status());
      return true;
    }
    shard.emplace(std::move(restored->shard));
    rule = WithoutProcesses(std::move(restored->rule));
  } else if (!shard) {
    auto created = Shard::Create(*config_, options_.shard_index, shard_count());
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
  return true;
}

ps::ShardJoin Server::OwnJoin() const {
  ps::ShardJoin join;
  join.set_shard_index(static_cast<uint32_t>(options_.shard_index));
  join.set_shard_count(static_cast<uint32_t>(shard_count()));
  join.set_generation(options_.generation);
  join.set_server_uuid(uuid_);
  join.set_incarnation(options_.incarnation);
  join.set_epoch(epoch().number);
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
  if (link_ != nullptr) link_->SendJoin(OwnJoin());
}

// Whoever still waits is told why in vain.
void Server::End(const absl::Status& status) {
  if (end_) return;
  end_ = status;
  changed_.notify_all();
  if (host_) TellOthers(/*always=*/true);
  AnswerFinishes();  // what becomes of the others is not their failure
  if (status.ok()) return;
  requests_->RefuseAll(status);
  for (const PendingJoin& pending : std::exchange(pending_joins_, {})) {
    requests_->SendError(pending.stream, pending.request, status);
  }
}

void Server::Coordinate(bool always) {
  if (end_) return;
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
  const bool waits = !is_async() && coordinator()->waiting_since() < Now() - kStallAfter;
  LogStall(waits ? host_->DescribeWait() : "");
  TellOthers(always);
  const auto& end = coordinator()->end();
  if (end && (!end->ok() || !AwaitsLastCheckpoint())) End(*end);
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
    JournalDecisions(decisions);
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
  host_->Tell(std::move(word), always, journal_ ? journaled_decisions_ : UINT64_MAX);
}

void Server::CoordinateAsOther(bool always) {
  if (always) link_->SendJoin(OwnJoin());
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
  link_->Send(out);
}

void Server::OnCoordination(const ps::Coordination& coordination) {
  const std::lock_guard lock(mutex_);
  if (end_) return;
  WithinMemory([&] { HandleCoordination(coordination); });
}

// On threads where nobody else would hear of it.
void Server::WithinMemory(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
    End(OutOfMemory());
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
        return End(
            InvalidArgument("ps:0 has chosen contributors of step %d that there cannot be", decision.step()));
      }
      decisions[decision.step()] = {decision.ranks().begin(), decision.ranks().end()};
    }
    for (const auto& decision : decisions) {
      // One by one: a checkpoint between two of them begins another segment.
      JournalDecisions({decision});
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
    End(coordination.has_end() ? StatusOf(coordination.end(), "ps:0") : absl::OkStatus());
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
  if (!recovered.ok()) {
    spdlog::warn("{}: without its journal, all go back to a checkpoint: {}", name_,
                 std::string(recovered.status().message()));
    return;
  }
  if (!*recovered) return;
  RecoveredShard& before = **recovered;
  auto update = UpdateOf(before.config);
  if (!update.ok() || update->rule.worker_count != options_.cluster.rank_count()) {
    spdlog::warn("{}: its journal is of another job; all go back to a checkpoint", name_);
    return;
  }
  update_ = *std::move(update);
  MakeShardEpoch(before.epoch, *std::move(before.shard), std::move(before.rule));
  std::map<uint64_t, std::vector<int>> decisions;
  absl::Status replayed;
  while (replayed.ok()) {
    const auto entry = before.Next();
    if (entry.ok() && !*entry) break;
    replayed = entry.ok() ? Replay(**entry, &decisions) : entry.status();
  }
  if (!replayed.ok()) {
    spdlog::warn("{}: without its journal, all go back to a checkpoint: {}", name_,
                 std::string(replayed.message()));
    shard_.reset();
    return;
  }
  config_ = before.config;
  last_snapshot_ = before.checkpoint;
  if (before.file) checkpointer_->AddWritten(before.checkpoint, *before.file);
  last_commit_ = before.epoch.step;
  journaled_decisions_ =
      std::max(shard_->rule().step(), decisions.empty() ? 0 : decisions.rbegin()->first + 1);
  if (!Journaled(journal_->Continue(before))) return;
  spdlog::info("{}: at step {} again, as its journal says", name_, shard_->rule().step());
  if (!host_) return;
  BeginCoordinator();
  awaits_first_worker_ = true;
  coordinator()->Resume(before.epoch, journaled_decisions_, decisions);
  TellOwnCheckpoints();
}

absl::Status Server::Replay(const JournalReader::Entry& entry,
                            std::map<uint64_t, std::vector<int>>* decisions) {
  const auto bad = [] { return DataLoss("the journal has what the job cannot have"); };
  const auto is_rank = [this](uint32_t rank) {
    return rank < static_cast<uint32_t>(update_.rule.worker_count);
  };
  if (entry.record.has_join()) {
    const journal::Join& join = entry.record.join();
    if (!is_rank(join.rank())) return bad();
    return shard_->Join({static_cast<int>(join.rank()), join.worker_uuid(), join.incarnation()}).status();
  }
  if (entry.record.has_push()) {
    const journal::Push& push = entry.record.push();
    const WorkerIdentity worker{.rank = static_cast<int>(push.rank()), .uuid = push.worker_uuid()};
    ShardGradient gradient{.values = FloatPayload({grpc::Slice(entry.payload)}, 0),
                           .rows = push.push().rows()};
    if (!is_rank(push.rank()) || !shard_->CheckPush(worker, push.push(), gradient).ok()) return bad();
    shard_->Push(worker, requests_->AddNobody(), push.push(), std::move(gradient));
  } else if (entry.record.has_decision()) {
    const journal::Decision& decision = entry.record.decision();
    std::vector<int> ranks(decision.ranks().begin(), decision.ranks().end());
    if (ranks.empty() || !std::all_of(decision.ranks().begin(), decision.ranks().end(), is_rank))
      return bad();
    shard_->Decide({decision.step(), ranks});
    (*decisions)[decision.step()] = std::move(ranks);
  }
  return absl::OkStatus();
}

// What cannot be appended could be lost after it was acknowledged.
bool Server::Journaled(const absl::Status& appended) {
  if (!appended.ok()) End(Annotate(appended, name_ + ": its journal"));
  return appended.ok();
}

void Server::JournalDecisions(const std::map<uint64_t, std::vector<int>>& decisions) {
  if (!journal_) return;
  for (auto next = decisions.lower_bound(journaled_decisions_); next != decisions.end(); ++next) {
    if (!Journaled(journal_->Append(StepDecision{next->first, next->second}))) return;
    journaled_decisions_ = next->first + 1;
  }
}

// From here on the journal comes after this checkpoint, with what that does not have. False: that is the end.
bool Server::BeginSegment(uint64_t checkpoint) {
  absl::Status status = journal_->BeginSegment(*config_, epoch(), checkpoint, shard_->rule().step());
  shard_->VisitHeld([&](const WorkerIdentity& worker, const ps::Push& push, const ShardGradient& gradient) {
    if (status.ok()) status = journal_->Append(worker, push, gradient, /*carried=*/true);
  });
  std::map<uint64_t, std::vector<int>> decisions = shard_->rule().decisions();
  if (coordinator() != nullptr) {
    decisions.insert(coordinator()->decisions().begin(), coordinator()->decisions().end());
  }
  for (auto next = decisions.begin(); status.ok() && next != decisions.end(); ++next) {
    if (next->first >= journaled_decisions_) break;
    status = journal_->Append(StepDecision{next->first, next->second}, /*carried=*/true);
  }
  return Journaled(status);
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

absl::StatusOr<std::unique_ptr<ParameterServer>> ParameterServer::Start(
    const ParameterServerOptions& options) {
  MUSTER_CHECK(options.shard_index >= 0 && options.shard_index < static_cast<int>(options.cluster.ps.size()));
  auto server = std::make_unique<Server>(options);
  MUSTER_RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace muster
