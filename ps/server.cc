#include "ps/server.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "base/logging.h"
#include "base/random.h"
#include "cluster/coordinator.h"
#include "proto/parameter_server.pb.h"
#include "ps/checkpointer.h"
#include "ps/coordinator_link.h"
#include "ps/frame_server.h"
#include "ps/job_config.h"
#include "ps/shard.h"
#include "ps/update_rule.h"
#include "ps/wire.h"

namespace muster {
namespace {

using StreamId = FrameServer::StreamId;

constexpr Duration kTalkEvery =
    std::chrono::seconds(1);  // to the other shards, also when nothing has changed
constexpr Duration kStallAfter = std::chrono::seconds(2);  // what has waited so long is worth a word
constexpr Duration kLastCheckpointTimeout = std::chrono::seconds(60);
constexpr Duration kCloseTimeout = std::chrono::seconds(5);  // for the others to hang up at the end

// Who waits for an answer.
struct Request {
  StreamId stream = 0;
  uint64_t number = 0;
  RepeatedRows rows;  // go with the answer
};

struct WaitingPull {
  PushId id = 0;
  ps::Pull pull;
};

class Server final : public ParameterServer, private FrameServer::Handler {
 public:
  explicit Server(const ParameterServerOptions& options)
      : options_(options), uuid_(RandomName(20)), name_(TaskName({Role::kPs, options.shard_index})) {}
  ~Server() override;

  absl::Status Listen();
  absl::Status Wait() override;

 private:
  bool has_coordinator() const { return options_.shard_index == 0; }
  int shard_count() const { return static_cast<int>(options_.cluster.ps.size()); }
  bool all_finished() const {
    return static_cast<int>(finished_ranks_.size()) == options_.cluster.rank_count();
  }
  bool is_async() const { return update_.rule.mode == UpdateMode::kAsync; }

  void OnFrame(StreamId stream, const grpc::ByteBuffer& frame) override;
  void OnClosed(StreamId stream) override;
  absl::Status Handle(StreamId stream, const ps::ClientHeader& header, ShardGradient gradient);
  absl::Status HandleOfWorker(StreamId stream, const WorkerIdentity& worker, const ps::ClientHeader& header,
                              ShardGradient gradient);
  absl::Status HandleJoin(StreamId stream, uint64_t request, const ps::Join& join);
  absl::Status HandlePush(StreamId stream, const WorkerIdentity& worker, uint64_t request,
                          const ps::Push& push, ShardGradient gradient);
  absl::Status HandlePull(StreamId stream, uint64_t request, const ps::Pull& pull);
  absl::Status HandleAwait(StreamId stream, const WorkerIdentity& worker, uint64_t request);
  absl::Status HandleFinish(StreamId stream, const WorkerIdentity& worker, uint64_t request,
                            const ps::Finish& finish);
  void AnswerFinishes();
  void HandleHeartbeat(StreamId stream, const ps::Heartbeat& heartbeat);
  absl::Status HandleShardJoin(StreamId stream, const ps::ShardJoin& join);
  absl::Status HandleShardReport(StreamId stream, const ps::ShardReport& report);
  void OnCoordination(const ps::Coordination& coordination);
  void HandleCoordination(const ps::Coordination& coordination);
  absl::Status AdoptConfig(const ps::JobConfig& config);
  absl::Status CompleteJoin(StreamId stream, uint64_t request, const ps::Join& join);

  bool BeginEpoch(const Epoch& epoch);
  void TellCoordinator(const ps::ShardJoin& join);
  void TellOwnCheckpoints();
  ps::ShardJoin OwnJoin() const;
  void OnCheckpointsChanged();
  void TakeSnapshotIfDue();
  void TakeSnapshot(uint64_t checkpoint);
  bool AwaitsLastCheckpoint();
  void AddFiles(int shard, const std::map<uint64_t, checkpoint::Manifest::File>& files);

  void Perform(UpdateActions actions);
  void Do(const ApplyAction& action);
  void Do(const DiscardAction& action) { gradients_.erase(action.id); }
  void Do(const AnswerAction& action);
  void Do(const RefuseAction& action);

  // Both sides of what the shards tell each other. `always`: also if nothing has changed.
  void Coordinate(bool always);
  void CoordinateAsFirst(bool always);
  void CoordinateAsOther(bool always);
  void TellOthers(bool always);
  void AnswerAwait(PushId id);
  void LogStall(const std::string& waits_for);
  void End(const absl::Status& status);

  PushId AddRequest(StreamId stream, uint64_t number, RepeatedRows rows = {});
  void AnswerPulls();
  void Reply(PushId id, ps::ServerHeader header, const Floats& parameters = nullptr);
  void Send(StreamId stream, ps::ServerHeader header, const std::vector<grpc::Slice>& payload = {});
  void SendError(StreamId stream, uint64_t request, const absl::Status& status, bool join_again = false);

  const ParameterServerOptions options_;
  const std::string uuid_;
  const std::string name_;

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::unique_ptr<FrameServer> frames_;
  std::map<StreamId, WorkerIdentity> workers_;  // that have joined
  PushId last_id_ = 0;
  std::map<PushId, Request> requests_;
  std::map<PushId, ShardGradient> gradients_;
  std::vector<WaitingPull> pulls_;
  std::set<int> finished_ranks_;
  std::vector<PushId> finishes_;  // to be answered
  uint64_t last_step_ = 0;        // sync, bounded: that those who have finished contributed to
  std::optional<absl::Status> end_;
  std::string waits_for_;  // what the job waits for, if it has for long
  TimePoint next_stall_log_;

  // All made by the first worker that joins.
  std::optional<ps::JobConfig> config_;
  UpdateConfig update_;
  bool is_fresh_ = false;  // the shard has its initial values

  // Made when an epoch begins.
  Epoch epoch_;
  std::optional<UpdateRule> rule_;
  std::optional<Shard> shard_;
  struct PendingJoin {
    StreamId stream = 0;
    uint64_t request = 0;
    ps::Join join;
  };
  std::vector<PendingJoin> pending_joins_;  // until an epoch begins
  std::unique_ptr<Checkpointer> checkpointer_;
  uint64_t checkpoint_every_ = 0;
  uint64_t last_snapshot_ = 0;
  std::optional<TimePoint> last_checkpoint_deadline_;

  // ps:0
  std::optional<Coordinator> coordinator_;
  std::map<int, ps::ShardJoin> shard_joins_;  // of the other shards, the last of each
  std::map<uint64_t, std::map<int, checkpoint::Manifest::File>>
      files_;  // by step and shard, of checkpoints to come
  checkpoint::Manifest committed_;
  uint64_t told_version_ = 0;              // of the coordinator, to the other shards
  std::map<StreamId, int> shard_streams_;  // the other shards
  std::set<StreamId> superseded_;          // of processes that newer ones have taken the place of
  std::map<int, PushId> awaits_;           // by rank

  // The others
  std::unique_ptr<CoordinatorLink> link_;
  Epoch offered_epoch_;  // by the coordinator
  int needed_ = 1;       // parts of a step to report
  uint64_t last_committed_ = 0;

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
    checkpoint_every_ = options_.checkpoint_every;
  }
  auto listening = FrameServer::Listen(address, options_.tls, this);
  if (!listening.ok()) return Annotate(listening.status(), name_);
  frames_ = *std::move(listening);
  spdlog::info(
      "{} listens on {}{}", name_, address,
      options_.tls ? "" : ", without TLS: anyone who reaches this port can read and write the parameters");
  if (has_coordinator()) return absl::OkStatus();
  CoordinatorLinkOptions link{.address = options_.cluster.ps[0],
                              .shard_index = options_.shard_index,
                              .tls = options_.tls,
                              .server_timeout = options_.server_timeout};
  link_ = std::make_unique<CoordinatorLink>(
      std::move(link), CoordinatorLink::Callbacks{
                           .join =
                               [this] {
                                 const std::lock_guard lock(mutex_);
                                 return OwnJoin();
                               },
                           .on_coordination = [this](const ps::Coordination& c) { OnCoordination(c); },
                           .on_lost =
                               [this](const absl::Status& status) {
                                 const std::lock_guard lock(mutex_);
                                 End(all_finished() && checkpointer_ == nullptr ? absl::OkStatus() : status);
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
    if (coordinator_) deadline = std::min(deadline, coordinator_->next_deadline());
    changed_.wait_until(lock, deadline, [this] { return end_.has_value(); });
    if (end_) break;
    const bool talk = Now() >= next_talk;
    if (talk) next_talk = Now() + kTalkEvery;
    if (coordinator_) coordinator_->Tick(Now());
    Coordinate(talk);
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
  shard_streams_.erase(stream);
  superseded_.erase(stream);
  std::erase_if(pending_joins_, [&](const PendingJoin& pending) { return pending.stream == stream; });
  std::erase_if(requests_, [&](const auto& request) { return request.second.stream == stream; });
  std::erase_if(pulls_, [&](const WaitingPull& waiting) { return !requests_.contains(waiting.id); });
}

absl::Status OutOfMemory() {
  return absl::ResourceExhaustedError(
      "not enough memory on its host for this part of the model: use more parameter servers");
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
  SendError(stream, header.request(), status);
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
      MUSTER_RETURN_IF_ERROR(HandleShardReport(stream, header.shard_report()));
      break;
    case ps::ClientHeader::KIND_NOT_SET:
      return InvalidArgument("a request of a kind that this version does not know");
    default: {
      const auto worker = workers_.find(stream);
      if (worker == workers_.end()) {
        if (header.has_heartbeat()) return absl::OkStatus();
        // So it is for a worker that had joined an epoch before.
        SendError(stream, header.request(), InvalidArgument("the first frame is no join"),
                  /*join_again=*/true);
        return absl::OkStatus();
      }
      MUSTER_RETURN_IF_ERROR(HandleOfWorker(stream, worker->second, header, std::move(gradient)));
    }
  }
  Coordinate(/*always=*/false);
  return absl::OkStatus();
}

absl::Status Server::HandleOfWorker(StreamId stream, const WorkerIdentity& worker,
                                    const ps::ClientHeader& header, ShardGradient gradient) {
  if (coordinator_ && rule_->CheckNewest(worker).ok()) {
    header.has_push() ? coordinator_->Pushed(worker.rank, Now()) : coordinator_->Heard(worker.rank, Now());
  }
  switch (header.kind_case()) {
    case ps::ClientHeader::kPush:
      return HandlePush(stream, worker, header.request(), header.push(), std::move(gradient));
    case ps::ClientHeader::kPull:
      return HandlePull(stream, header.request(), header.pull());
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

  if (epoch_.number > 0) return CompleteJoin(stream, request, join);
  pending_joins_.push_back({stream, request, join});
  return absl::OkStatus();
}

absl::Status Server::CompleteJoin(StreamId stream, uint64_t request, const ps::Join& join) {
  const TaskId task = TaskOfRank(options_.cluster, static_cast<int>(join.rank()));
  const WorkerIdentity worker{
      .rank = static_cast<int>(join.rank()), .uuid = join.worker_uuid(), .incarnation = join.incarnation()};
  const bool same_process = rule_->CheckNewest(worker).ok();  // whose connection broke
  UpdateActions actions;
  MUSTER_ASSIGN_OR_RETURN(const JoinAnswer answer, rule_->Join(worker, &actions));
  Perform(actions);
  workers_[stream] = worker;
  if (!same_process) finished_ranks_.erase(worker.rank);
  if (coordinator_) {
    same_process ? coordinator_->Heard(worker.rank, Now()) : coordinator_->Join(worker.rank, Now());
  }
  spdlog::info("{}: {} has joined at step {} from {}", name_, TaskName(task), answer.step,
               frames_->PeerOf(stream));

  ps::ServerHeader header;
  ps::JoinReply* reply = header.mutable_join();
  reply->set_server_uuid(uuid_);
  reply->set_step(answer.step);
  reply->set_pushes(answer.pushes);
  reply->set_next_step(answer.next_step);
  reply->set_epoch(epoch_.number);
  Reply(AddRequest(stream, request), std::move(header), shard_->parameters());
  return absl::OkStatus();
}

absl::Status Server::AdoptConfig(const ps::JobConfig& config) {
  if (config_) return CheckSameJob(*config_, config);
  MUSTER_ASSIGN_OR_RETURN(update_, UpdateOf(config));
  MUSTER_ASSIGN_OR_RETURN(Shard shard, Shard::Create(config, options_.shard_index, shard_count()));
  shard_.emplace(std::move(shard));
  is_fresh_ = true;
  config_ = config;
  if (has_coordinator()) {
    CoordinatorOptions coordinator{.shard_count = shard_count(),
                                   .aggregate = update_.aggregate,
                                   .worker_timeout = options_.worker_timeout,
                                   .lease = options_.worker_lease,
                                   .may_go_back = checkpointer_ != nullptr,
                                   .first_epoch = RandomSeed() >> 1};
    for (int rank = 0; rank < options_.cluster.rank_count(); ++rank) {
      coordinator.rank_names.push_back(TaskName(TaskOfRank(options_.cluster, rank)));
    }
    coordinator_.emplace(coordinator, Now());
    TellOwnCheckpoints();
    for (const auto& [shard, join] : shard_joins_) TellCoordinator(join);
  } else if (offered_epoch_.number == 0 || !BeginEpoch(offered_epoch_)) {
    TellOwnCheckpoints();
  }
  spdlog::info("{} owns parameters [{}, {}) of {}", name_, shard_->range().begin, shard_->range().end,
               shard_->model_size());
  return absl::OkStatus();
}

// What was asked for in the epoch before is to be asked again, after a join. False: the checkpoint cannot be
// read.
bool Server::BeginEpoch(const Epoch& epoch) {
  UpdateRuleState rule{.step = epoch.step};
  if (epoch.step > 0) {
    auto restored = checkpointer_->Read(epoch.step, *config_);
    if (!restored.ok()) {
      spdlog::warn("{}: {}", name_, std::string(restored.status().message()));
      if (absl::IsDataLoss(restored.status()) || absl::IsNotFound(restored.status())) return false;
      End(restored.status());
      return true;
    }
    shard_.emplace(std::move(restored->shard));
    rule = std::move(restored->rule);
    // Those that live join again; those of an earlier job may have had higher incarnations.
    for (UpdateRuleState::Worker& worker : rule.workers) worker.process.reset();
  } else if (!is_fresh_) {
    auto created = Shard::Create(*config_, options_.shard_index, shard_count());
    MUSTER_CHECK(created.ok());  // it was once
    shard_.emplace(*std::move(created));
  }
  is_fresh_ = false;
  rule_.emplace(update_.rule, std::move(rule));
  if (checkpointer_ != nullptr) checkpointer_->BeginAfter(epoch.step);
  epoch_ = epoch;
  last_snapshot_ = epoch.step;
  told_report_ = {};
  files_.clear();
  gradients_.clear();
  pulls_.clear();
  awaits_.clear();
  workers_.clear();
  finished_ranks_.clear();
  finishes_.clear();
  last_step_ = 0;
  last_checkpoint_deadline_.reset();
  const absl::Status gone_back = Aborted("%s has gone back to step %d", name_, epoch.step);
  for (const auto& [id, request] : requests_)
    SendError(request.stream, request.number, gone_back, /*join_again=*/true);
  requests_.clear();
  spdlog::info("{}: epoch {} begins at step {}", name_, epoch.number, epoch.step);
  for (const PendingJoin& pending : std::exchange(pending_joins_, {})) {
    const absl::Status status = CompleteJoin(pending.stream, pending.request, pending.join);
    if (!status.ok()) SendError(pending.stream, pending.request, status);
  }
  return true;
}

void Server::TellCoordinator(const ps::ShardJoin& join) {
  std::set<CheckpointId> checkpoints;
  for (const ps::ShardJoin::Checkpoint& checkpoint : join.checkpoints()) {
    checkpoints.insert({checkpoint.step(), checkpoint.digest()});
  }
  coordinator_->ShardJoin(static_cast<int>(join.shard_index()), join.server_uuid(), join.epoch(), checkpoints,
                          Now());
}

void Server::TellOwnCheckpoints() {
  if (coordinator_) TellCoordinator(OwnJoin());
  if (link_ != nullptr) link_->SendJoin(OwnJoin());
}

ps::ShardJoin Server::OwnJoin() const {
  ps::ShardJoin join;
  join.set_shard_index(static_cast<uint32_t>(options_.shard_index));
  join.set_shard_count(static_cast<uint32_t>(shard_count()));
  join.set_generation(options_.generation);
  join.set_server_uuid(uuid_);
  join.set_incarnation(options_.incarnation);
  join.set_epoch(epoch_.number);
  if (config_) *join.mutable_config() = *config_;
  if (checkpointer_ != nullptr) {
    join.set_keeps_checkpoints(true);
    for (const CheckpointId& id : checkpointer_->available()) {
      ps::ShardJoin::Checkpoint* checkpoint = join.add_checkpoints();
      checkpoint->set_step(id.step);
      checkpoint->set_digest(id.digest);
    }
  }
  return join;
}

void Server::OnCheckpointsChanged() {
  const std::lock_guard lock(mutex_);
  if (end_) return;
  TellOwnCheckpoints();
  Coordinate(/*always=*/true);
}

// Sync, bounded: every so often, and of what the job ends with.
void Server::TakeSnapshotIfDue() {
  const uint64_t step = rule_->step();
  const bool is_last = all_finished() && step == last_step_;
  if (checkpoint_every_ == 0 || step <= last_snapshot_ || (step % checkpoint_every_ != 0 && !is_last)) return;
  TakeSnapshot(step);
}

void Server::TakeSnapshot(uint64_t checkpoint) {
  if (checkpointer_ == nullptr) return;
  last_snapshot_ = checkpoint;
  checkpointer_->Write(checkpoint, *config_, shard_->Snapshot(), rule_->state());
}

// Of ps:0: when all shards have written theirs, the checkpoint is made.
void Server::AddFiles(int shard, const std::map<uint64_t, checkpoint::Manifest::File>& files) {
  for (const auto& [step, file] : files) {
    if (step <= committed_.step() && committed_.files_size() > 0 && step > epoch_.step) continue;
    files_[step][shard] = file;
  }
  for (auto complete = files_.begin(); complete != files_.end();) {
    if (static_cast<int>(complete->second.size()) < shard_count()) {
      ++complete;
      continue;
    }
    committed_.Clear();
    committed_.set_step(complete->first);
    for (const auto& [index, file] : complete->second) *committed_.add_files() = file;
    checkpointer_->Commit(committed_);
    complete = files_.erase(files_.begin(), std::next(complete));  // and older ones, which nobody will finish
  }
}

absl::Status Server::HandlePush(StreamId stream, const WorkerIdentity& worker, uint64_t request,
                                const ps::Push& push, ShardGradient gradient) {
  absl::Status status = shard_->CheckGradient(gradient);
  if (status.ok() && push.next_rows_size() > 0)
    status = shard_->tables().CheckRows(push.next_rows()).status();
  if (!status.ok()) return Annotate(status, absl::StrFormat("rank %d", worker.rank));
  const PushInfo info{.id = AddRequest(stream, request, push.next_rows()),
                      .sequence = push.sequence(),
                      .step = push.step(),
                      .version = push.version(),
                      .samples = push.samples(),
                      .loss_sum = push.loss_sum(),
                      .finite = gradient.finite};
  gradients_.emplace(info.id, std::move(gradient));
  Perform(rule_->Push(worker, info));
  return absl::OkStatus();
}

absl::Status Server::HandlePull(StreamId stream, uint64_t request, const ps::Pull& pull) {
  if (pull.rows_size() > 0) MUSTER_RETURN_IF_ERROR(shard_->tables().CheckRows(pull.rows()).status());
  pulls_.push_back({AddRequest(stream, request, pull.rows()), pull});
  AnswerPulls();
  return absl::OkStatus();
}

void Server::AnswerPulls() {
  std::erase_if(pulls_, [this](const WaitingPull& waiting) {
    if (!is_async() && rule_->step() < waiting.pull.at_least()) return false;
    ps::ServerHeader header;
    header.mutable_pull()->set_step(rule_->step());
    Reply(waiting.id, std::move(header), waiting.pull.parameters() ? shard_->parameters() : nullptr);
    return true;
  });
}

absl::Status Server::HandleAwait(StreamId stream, const WorkerIdentity& worker, uint64_t request) {
  if (!coordinator_) return InvalidArgument("ps:0 knows who has finished, %s does not", name_);
  MUSTER_RETURN_IF_ERROR(rule_->CheckNewest(worker));
  awaits_[worker.rank] = AddRequest(stream, request);  // of an earlier one nobody listens to the answer
  coordinator_->Await(worker.rank, Now());
  return absl::OkStatus();
}

absl::Status Server::HandleFinish(StreamId stream, const WorkerIdentity& worker, uint64_t request,
                                  const ps::Finish& finish) {
  MUSTER_RETURN_IF_ERROR(rule_->CheckNewest(worker));
  finishes_.push_back(AddRequest(stream, request));
  if (checkpoint_every_ == 0 || end_) AnswerFinishes();
  finished_ranks_.insert(worker.rank);
  last_step_ = std::max(last_step_, finish.next_step());
  if (coordinator_) coordinator_->Finish(worker.rank, finish.next_step(), Now());
  if (all_finished()) {
    if (!is_async()) TakeSnapshotIfDue();
    // ps:0 says so too, if it is still there; with checkpoints it does when the last one is made.
    if (!coordinator_ && checkpoint_every_ == 0) End(absl::OkStatus());
  }
  return absl::OkStatus();
}

// With checkpoints, when the last one is there: until then a worker may have to do some of its work again.
void Server::AnswerFinishes() {
  for (const PushId id : std::exchange(finishes_, {})) {
    ps::ServerHeader reply;
    reply.mutable_finish();
    Reply(id, std::move(reply));
  }
}

void Server::HandleHeartbeat(StreamId stream, const ps::Heartbeat& heartbeat) {
  if (heartbeat.awaiting() == 0) return;
  const auto is_awaited = [&](const auto& request) {
    return request.second.stream == stream && request.second.number == heartbeat.awaiting();
  };
  ps::ServerHeader header;
  header.mutable_heartbeat()->set_awaiting(heartbeat.awaiting());
  header.mutable_heartbeat()->set_unknown(std::none_of(requests_.begin(), requests_.end(), is_awaited));
  header.mutable_heartbeat()->set_waits_for(waits_for_);
  Send(stream, std::move(header));
}

absl::Status Server::HandleShardJoin(StreamId stream, const ps::ShardJoin& join) {
  if (!has_coordinator()) return FailedPrecondition("%s is not ps:0", name_);
  const int shard = static_cast<int>(join.shard_index());
  if (shard < 1 || shard >= shard_count() || static_cast<int>(join.shard_count()) != shard_count()) {
    return FailedPrecondition("ps:%d of %d has joined a cluster of %d: compare --ps_hosts", shard,
                              join.shard_count(), shard_count());
  }
  if (join.generation() != options_.generation) {
    return FailedPrecondition("%s belongs to generation %d of the cluster, ps:%d to generation %d", name_,
                              options_.generation, shard, join.generation());
  }
  if (join.keeps_checkpoints() != (checkpointer_ != nullptr)) {
    return FailedPrecondition("%s and ps:%d: only one of them has --checkpoint_dir", name_, shard);
  }
  if (options_.tls) MUSTER_RETURN_IF_ERROR(frames_->CheckPeer(stream, {Role::kPs, shard}));
  ps::ShardJoin& known = shard_joins_[shard];
  const absl::Status superseded =
      FailedPrecondition("ps:%d: a newer process of this task has joined; this one has to end", shard);
  if (superseded_.contains(stream) || join.incarnation() < known.incarnation()) return superseded;
  const bool is_other_process = known.server_uuid() != join.server_uuid();
  known = join;
  known.clear_config();
  if (join.has_config())
    MUSTER_RETURN_IF_ERROR(Annotate(AdoptConfig(join.config()), TaskName({Role::kPs, shard})));
  if (coordinator_) TellCoordinator(join);
  if (shard_streams_.contains(stream)) return absl::OkStatus();
  std::erase_if(shard_streams_, [&](const auto& entry) {
    if (entry.second != shard) return false;
    if (is_other_process) {
      superseded_.insert(entry.first);
      SendError(entry.first, 0, superseded);
    }
    return true;
  });
  shard_streams_[stream] = shard;
  told_version_ = 0;
  return absl::OkStatus();
}

absl::Status Server::HandleShardReport(StreamId stream, const ps::ShardReport& report) {
  const auto shard = shard_streams_.find(stream);
  if (shard == shard_streams_.end())
    return InvalidArgument("a report from a stream that no shard has joined");
  if (!coordinator_) return absl::OkStatus();  // it will be said again
  ShardReport read{.epoch = report.epoch(), .step = report.step()};
  for (const ps::ShardReport::Part& part : report.held()) {
    if (part.rank() >= static_cast<uint32_t>(options_.cluster.rank_count())) {
      return InvalidArgument("ps:%d holds a part of rank %d of %d", shard->second, part.rank(),
                             options_.cluster.rank_count());
    }
    read.held.push_back({part.step(), static_cast<int>(part.rank())});
  }
  coordinator_->Report(shard->second, read, Now());
  if (report.epoch() != epoch_.number || checkpointer_ == nullptr) return absl::OkStatus();
  std::map<uint64_t, checkpoint::Manifest::File> files;
  for (const ps::ShardReport::File& file : report.files()) {
    if (!files[file.checkpoint()].ParseFromString(file.file())) {
      return InvalidArgument("ps:%d reports a file that cannot be read", shard->second);
    }
  }
  AddFiles(shard->second, files);
  return absl::OkStatus();
}

void Server::OnCoordination(const ps::Coordination& coordination) {
  const std::lock_guard lock(mutex_);
  try {
    if (!end_) HandleCoordination(coordination);
  } catch (const std::bad_alloc&) {
    End(OutOfMemory());
  }
}

void Server::HandleCoordination(const ps::Coordination& coordination) {
  needed_ = static_cast<int>(coordination.needed());
  waits_for_ = coordination.waits_for();
  checkpoint_every_ = coordination.checkpoint_every();
  offered_epoch_ = {coordination.epoch(), coordination.epoch_step()};
  if (config_ && offered_epoch_.number > epoch_.number && !BeginEpoch(offered_epoch_)) TellOwnCheckpoints();
  if (rule_ && offered_epoch_ == epoch_) {
    for (const ps::Coordination::Decision& decision : coordination.decisions()) {
      const auto is_bad = [this](uint32_t rank) {
        return rank >= static_cast<uint32_t>(options_.cluster.rank_count());
      };
      if (decision.ranks().empty() || std::any_of(decision.ranks().begin(), decision.ranks().end(), is_bad)) {
        return End(
            InvalidArgument("ps:0 has chosen contributors of step %d that there cannot be", decision.step()));
      }
      Perform(rule_->Decide({decision.step(), {decision.ranks().begin(), decision.ranks().end()}}));
    }
    if (coordination.checkpoint() > last_snapshot_) TakeSnapshot(coordination.checkpoint());
    checkpoint::Manifest committed;
    if (checkpointer_ != nullptr && committed.ParseFromString(coordination.committed()) &&
        committed.step() > last_committed_) {
      last_committed_ = committed.step();
      checkpointer_->Commit(committed);
    }
  }
  if (coordination.ended()) {
    End(coordination.has_end() ? StatusOf(coordination.end(), "ps:0") : absl::OkStatus());
  }
  Coordinate(/*always=*/false);
}

void Server::Coordinate(bool always) {
  if (end_) return;
  if (has_coordinator()) {
    CoordinateAsFirst(always);
  } else {
    CoordinateAsOther(always);
  }
}

void Server::CoordinateAsFirst(bool always) {
  if (coordinator_) {
    while (coordinator_->epoch() != epoch_ && !end_ && !BeginEpoch(coordinator_->epoch()))
      TellOwnCheckpoints();
  }
  if (coordinator_ && epoch_.number > 0) {
    // An update may let workers contribute whose parts are here already, and so on.
    for (uint64_t step = UINT64_MAX; !is_async() && step != rule_->step();) {
      step = rule_->step();
      if (always || rule_->held_of_step() >= coordinator_->needed() || told_report_.step != step) {
        told_report_ = rule_->Report();
        told_report_.epoch = epoch_.number;
        coordinator_->Report(0, told_report_, Now());
      }
      TellOthers(/*always=*/false);  // first, so that all shards apply at the same time
      const auto decisions = coordinator_->decisions();
      for (const auto& [of_step, ranks] : decisions) Perform(rule_->Decide({of_step, ranks}));
    }
    if (is_async() && checkpoint_every_ > 0 && rule_->step() >= last_snapshot_ + checkpoint_every_ &&
        !coordinator_->end()) {
      TakeSnapshot(rule_->step());
      told_version_ = 0;
    }
    if (checkpointer_ != nullptr) AddFiles(0, checkpointer_->written());
  }
  if (coordinator_) {
    for (const MembershipNotice& notice : coordinator_->TakeNotices()) {
      notice.state == MemberState::kLost ? spdlog::warn("{}: {}", name_, notice.text)
                                         : spdlog::info("{}: {}", name_, notice.text);
    }
    std::erase_if(awaits_, [this](const auto& await) {
      if (!coordinator_->AllOthersDone(await.first)) return false;
      if (requests_.contains(await.second)) AnswerAwait(await.second);
      return true;
    });
    const bool waits = !is_async() && coordinator_->waiting_since() < Now() - kStallAfter;
    std::string text = waits ? coordinator_->DescribeWait(Now()) : "";
    for (int shard = 1; waits && shard < shard_count(); ++shard) {
      const auto is_it = [&](const auto& stream) { return stream.second == shard; };
      if (std::none_of(shard_streams_.begin(), shard_streams_.end(), is_it)) {
        text += absl::StrFormat("; ps:%d has no connection to ps:0", shard);
      }
    }
    LogStall(text);
  }
  TellOthers(always);
  if (!coordinator_ || !coordinator_->end()) return;
  if (!coordinator_->end()->ok() || !AwaitsLastCheckpoint()) End(*coordinator_->end());
}

// All workers have finished: what they have trained is to outlive the servers.
bool Server::AwaitsLastCheckpoint() {
  if (checkpoint_every_ == 0 || rule_->step() == 0) return false;
  if (!last_checkpoint_deadline_) {
    last_checkpoint_deadline_ = Now() + kLastCheckpointTimeout;
    if (is_async() && rule_->step() > last_snapshot_) TakeSnapshot(rule_->step());
    TellOthers(/*always=*/true);
  }
  const uint64_t last = is_async() ? last_snapshot_ : last_step_;
  if (committed_.step() >= last || last == epoch_.step) return false;
  if (Now() < *last_checkpoint_deadline_) return true;
  spdlog::warn("{}: the last checkpoint, of step {}, was not made in {}", name_, last,
               FormatAge(kLastCheckpointTimeout));
  return false;
}

void Server::AnswerAwait(PushId id) {
  ps::ServerHeader header;
  ps::AwaitFinishedReply* reply = header.mutable_await_finished();
  reply->set_step(rule_->step());
  const PushCounts& counts = rule_->counts();
  reply->mutable_pushes()->set_received(counts.received);
  reply->mutable_pushes()->set_applied(counts.applied);
  reply->mutable_pushes()->set_stale(counts.stale);
  reply->mutable_pushes()->set_duplicate(counts.duplicate);
  reply->mutable_pushes()->set_rejected(counts.rejected);
  Reply(id, std::move(header));
}

void Server::TellOthers(bool always) {
  const uint64_t version = coordinator_ ? coordinator_->version() : 1;
  if (!always && version == told_version_) return;
  told_version_ = version;
  ps::ServerHeader header;
  ps::Coordination* coordination = header.mutable_coordination();
  coordination->set_server_uuid(uuid_);
  coordination->set_waits_for(waits_for_);
  coordination->set_epoch(epoch_.number);
  coordination->set_epoch_step(epoch_.step);
  coordination->set_checkpoint_every(checkpoint_every_);
  if (is_async()) coordination->set_checkpoint(last_snapshot_);
  coordination->set_committed(committed_.SerializeAsString());
  coordination->set_needed(coordinator_ ? static_cast<uint32_t>(coordinator_->needed()) : 1);
  if (coordinator_) {
    for (const auto& [step, ranks] : coordinator_->decisions()) {
      ps::Coordination::Decision* decision = coordination->add_decisions();
      decision->set_step(step);
      decision->mutable_ranks()->Add(ranks.begin(), ranks.end());
    }
  }
  coordination->set_ended(end_.has_value());
  if (end_ && !end_->ok()) SetError(*end_, coordination->mutable_end());
  for (const auto& [stream, shard] : shard_streams_) Send(stream, header);
}

void Server::CoordinateAsOther(bool always) {
  if (always) link_->SendJoin(OwnJoin());
  if (!rule_) return;
  std::map<uint64_t, checkpoint::Manifest::File> files;
  if (checkpointer_ != nullptr && always) files = checkpointer_->written();
  if (!always && (is_async() || (rule_->held_of_step() < needed_ && told_report_.step == rule_->step())))
    return;
  ShardReport report = rule_->Report();
  report.epoch = epoch_.number;
  if (!always && report == told_report_) return;
  told_report_ = std::move(report);
  ps::ShardReport out;
  out.set_step(told_report_.step);
  out.set_epoch(epoch_.number);
  for (const HeldPart& held : told_report_.held) {
    ps::ShardReport::Part* part = out.add_held();
    part->set_step(held.step);
    part->set_rank(static_cast<uint32_t>(held.rank));
  }
  for (const auto& [step, file] : files) {
    ps::ShardReport::File* written = out.add_files();
    written->set_checkpoint(step);
    written->set_file(file.SerializeAsString());
  }
  link_->Send(out);
}

// Said once, and again when it lasts.
void Server::LogStall(const std::string& waits_for) {
  const bool is_new = waits_for_.empty();
  waits_for_ = waits_for;
  if (waits_for.empty() || (!is_new && Now() < next_stall_log_)) return;
  next_stall_log_ = Now() + std::chrono::seconds(30);
  spdlog::warn("{}: {}", name_, waits_for);
}

// Whoever still waits is told why in vain.
void Server::End(const absl::Status& status) {
  if (end_) return;
  end_ = status;
  changed_.notify_all();
  if (has_coordinator()) TellOthers(/*always=*/true);
  if (status.ok()) return AnswerFinishes();
  for (const auto& [id, request] : requests_) SendError(request.stream, request.number, status);
  for (const PendingJoin& pending : pending_joins_) SendError(pending.stream, pending.request, status);
  requests_.clear();
  pending_joins_.clear();
  pulls_.clear();
  awaits_.clear();
}

void Server::Perform(UpdateActions actions) {
  for (; !actions.empty(); actions = rule_->Proceed()) {
    for (const UpdateAction& action : actions) {
      std::visit([this](const auto& a) { Do(a); }, action);
    }
  }
  AnswerPulls();
}

void Server::Do(const ApplyAction& action) {
  std::vector<const ShardGradient*> gradients;
  for (const PushId id : action.pushes) gradients.push_back(&gradients_.at(id));
  shard_->Apply(gradients, action.samples, action.rate_scale);
  for (const PushId id : action.pushes) gradients_.erase(id);
  if (!is_async()) TakeSnapshotIfDue();
}

void Server::Do(const AnswerAction& action) {
  ps::ServerHeader header;
  ps::PushReply* reply = header.mutable_push();
  constexpr ps::PushOutcome kOutcomes[] = {ps::APPLIED, ps::STALE, ps::DUPLICATE, ps::HELD};
  reply->set_outcome(kOutcomes[static_cast<int>(action.outcome)]);
  reply->set_step(action.step);
  reply->set_mean_loss(action.mean_loss);
  reply->set_samples(action.samples);
  reply->set_staleness(action.staleness);
  Reply(action.id, std::move(header), shard_->parameters());
}

void Server::Do(const RefuseAction& action) {
  const auto request = requests_.extract(action.id);
  if (request.empty()) return;  // its sender has hung up
  spdlog::warn("{}: refused {}: {}", name_, frames_->PeerOf(request.mapped().stream),
               std::string(action.status.message()));
  SendError(request.mapped().stream, request.mapped().number, action.status);
}

PushId Server::AddRequest(StreamId stream, uint64_t number, RepeatedRows rows) {
  const PushId id = ++last_id_;
  requests_.emplace(id, Request{.stream = stream, .number = number, .rows = std::move(rows)});
  return id;
}

void Server::Reply(PushId id, ps::ServerHeader header, const Floats& parameters) {
  const auto request = requests_.extract(id);
  if (request.empty()) return;  // its sender has hung up; it will come back and ask again
  header.set_request(request.mapped().number);
  std::vector<grpc::Slice> payload;
  if (parameters != nullptr) payload.push_back(ShareFloats(parameters));
  if (const RepeatedRows& rows = request.mapped().rows; !rows.empty()) {
    auto values = std::make_shared<std::vector<float>>(*shard_->tables().CheckRows(rows));
    shard_->tables().Read(rows, *values);
    payload.push_back(ShareFloats(std::move(values)));
  }
  Send(request.mapped().stream, std::move(header), payload);
}

void Server::Send(StreamId stream, ps::ServerHeader header, const std::vector<grpc::Slice>& payload) {
  header.set_version(kWireVersion);
  frames_->Send(stream, EncodeFrame(header, payload));
}

void Server::SendError(StreamId stream, uint64_t request, const absl::Status& status, bool join_again) {
  ps::ServerHeader header;
  header.set_request(request);
  SetError(status, header.mutable_error());
  header.mutable_error()->set_join_again(join_again);
  Send(stream, std::move(header));
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
