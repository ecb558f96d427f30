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
constexpr Duration kStallAfter = std::chrono::seconds(2);    // what has waited so long is worth a word
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
  void HandleHeartbeat(StreamId stream, const ps::Heartbeat& heartbeat);
  absl::Status HandleShardJoin(StreamId stream, const ps::ShardJoin& join);
  absl::Status HandleShardReport(StreamId stream, const ps::ShardReport& report);
  void OnCoordination(const ps::Coordination& coordination);
  void HandleCoordination(const ps::Coordination& coordination);
  absl::Status AdoptConfig(const ps::JobConfig& config);

  void Perform(const UpdateActions& actions);
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
  void SendError(StreamId stream, uint64_t request, const absl::Status& status);

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
  std::optional<absl::Status> end_;
  std::string waits_for_;  // what the job waits for, if it has for long
  TimePoint next_stall_log_;

  // All made by the first worker that joins.
  std::optional<ps::JobConfig> config_;
  UpdateConfig update_;
  std::optional<UpdateRule> rule_;
  std::optional<Shard> shard_;

  // ps:0
  std::optional<Coordinator> coordinator_;
  uint64_t told_version_ = 0;              // of the coordinator, to the other shards
  std::map<StreamId, int> shard_streams_;  // the other shards
  std::map<int, std::string> shard_uuids_;
  std::map<int, PushId> awaits_;  // by rank

  // The others
  std::unique_ptr<CoordinatorLink> link_;
  std::string coordinator_uuid_;  // of the process that has it
  int needed_ = 1;                // parts of a step to report

  ShardReport told_report_;  // to the coordinator, wherever that is
};

absl::Status Server::Listen() {
  const std::string address =
      options_.bind_address.empty() ? options_.cluster.ps[options_.shard_index] : options_.bind_address;
  const std::lock_guard lock(mutex_);  // the first frame may be there before Listen returns
  auto listening = FrameServer::Listen(address, options_.tls, this);
  if (!listening.ok()) return Annotate(listening.status(), name_);
  frames_ = *std::move(listening);
  spdlog::info(
      "{} listens on {}{}", name_, address,
      options_.tls ? "" : ", without TLS: anyone who reaches this port can read and write the parameters");
  if (has_coordinator()) return absl::OkStatus();
  CoordinatorLinkOptions link{
      .address = options_.cluster.ps[0], .tls = options_.tls, .server_timeout = options_.server_timeout};
  link.join.set_shard_index(static_cast<uint32_t>(options_.shard_index));
  link.join.set_shard_count(static_cast<uint32_t>(shard_count()));
  link.join.set_generation(options_.generation);
  link.join.set_server_uuid(uuid_);
  link_ = std::make_unique<CoordinatorLink>(
      std::move(link),
      CoordinatorLink::Callbacks{.on_coordination = [this](const ps::Coordination& c) { OnCoordination(c); },
                                 .on_lost =
                                     [this](const absl::Status& status) {
                                       const std::lock_guard lock(mutex_);
                                       End(status);
                                     }});
  return absl::OkStatus();
}

// What runs on the threads of others finds everything in its place until they have ended.
Server::~Server() {
  std::unique_ptr<CoordinatorLink> link;
  {
    const std::lock_guard lock(mutex_);
    if (!end_) end_ = absl::CancelledError(name_ + " has been ended");
    link = std::move(link_);
  }
  link = nullptr;
  if (frames_ != nullptr) frames_->Shutdown();
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
      if (worker == workers_.end()) return InvalidArgument("the first frame is no join");
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
  Reply(AddRequest(stream, request), std::move(header), shard_->parameters());
  return absl::OkStatus();
}

absl::Status Server::AdoptConfig(const ps::JobConfig& config) {
  if (config_) return CheckSameJob(*config_, config);
  MUSTER_ASSIGN_OR_RETURN(update_, UpdateOf(config));
  MUSTER_ASSIGN_OR_RETURN(Shard shard, Shard::Create(config, options_.shard_index, shard_count()));
  shard_.emplace(std::move(shard));
  rule_.emplace(update_.rule);
  config_ = config;
  if (has_coordinator()) {
    CoordinatorOptions coordinator{.shard_count = shard_count(),
                                   .aggregate = update_.aggregate,
                                   .worker_timeout = options_.worker_timeout,
                                   .lease = options_.worker_lease};
    for (int rank = 0; rank < options_.cluster.rank_count(); ++rank) {
      coordinator.rank_names.push_back(TaskName(TaskOfRank(options_.cluster, rank)));
    }
    coordinator_.emplace(coordinator, Now());
  }
  spdlog::info("{} owns parameters [{}, {}) of {}", name_, shard_->range().begin, shard_->range().end,
               shard_->model_size());
  return absl::OkStatus();
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
  ps::ServerHeader reply;
  reply.mutable_finish();
  Reply(AddRequest(stream, request), std::move(reply));
  finished_ranks_.insert(worker.rank);
  if (coordinator_) {
    coordinator_->Finish(worker.rank, finish.next_step(), Now());
  } else if (static_cast<int>(finished_ranks_.size()) == options_.cluster.rank_count()) {
    End(absl::OkStatus());  // ps:0 says so too, if it is still there
  }
  return absl::OkStatus();
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
  if (options_.tls) MUSTER_RETURN_IF_ERROR(frames_->CheckPeer(stream, {Role::kPs, shard}));
  const auto [known, is_new] = shard_uuids_.emplace(shard, join.server_uuid());
  if (!is_new && known->second != join.server_uuid() && config_) {
    const absl::Status lost =
        DataLoss("ps:%d has started again and lost its parameters: start the whole job again", shard);
    End(lost);
    return lost;
  }
  known->second = join.server_uuid();
  std::erase_if(shard_streams_, [&](const auto& entry) { return entry.second == shard; });
  shard_streams_[stream] = shard;
  told_version_ = 0;
  return absl::OkStatus();
}

absl::Status Server::HandleShardReport(StreamId stream, const ps::ShardReport& report) {
  const auto shard = shard_streams_.find(stream);
  if (shard == shard_streams_.end())
    return InvalidArgument("a report from a stream that no shard has joined");
  if (!coordinator_) return absl::OkStatus();  // it will be said again
  ShardReport read{.step = report.step()};
  for (const ps::ShardReport::Part& part : report.held()) {
    if (part.rank() >= static_cast<uint32_t>(options_.cluster.rank_count())) {
      return InvalidArgument("ps:%d holds a part of rank %d of %d", shard->second, part.rank(),
                             options_.cluster.rank_count());
    }
    read.held.push_back({part.step(), static_cast<int>(part.rank())});
  }
  coordinator_->Report(shard->second, read, Now());
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
  if (coordinator_uuid_.empty()) coordinator_uuid_ = coordination.server_uuid();
  if (coordinator_uuid_ != coordination.server_uuid()) {
    if (config_) {
      return End(DataLoss("ps:0 has started again and lost its parameters: start the whole job again"));
    }
    coordinator_uuid_ = coordination.server_uuid();
  }
  needed_ = static_cast<int>(coordination.needed());
  waits_for_ = coordination.waits_for();
  for (const ps::Coordination::Decision& decision : coordination.decisions()) {
    if (!rule_) break;  // it will be said again
    const auto is_bad = [this](uint32_t rank) {
      return rank >= static_cast<uint32_t>(options_.cluster.rank_count());
    };
    if (decision.ranks().empty() || std::any_of(decision.ranks().begin(), decision.ranks().end(), is_bad)) {
      return End(
          InvalidArgument("ps:0 has chosen contributors of step %d that there cannot be", decision.step()));
    }
    Perform(rule_->Decide({decision.step(), {decision.ranks().begin(), decision.ranks().end()}}));
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
    // An update may let workers contribute whose parts are here already, and so on.
    for (uint64_t step = UINT64_MAX; !is_async() && step != rule_->step();) {
      step = rule_->step();
      if (always || rule_->held_of_step() >= coordinator_->needed() || told_report_.step != step) {
        told_report_ = rule_->Report();
        coordinator_->Report(0, told_report_, Now());
      }
      TellOthers(/*always=*/false);  // first, so that all shards apply at the same time
      const auto decisions = coordinator_->decisions();
      for (const auto& [of_step, ranks] : decisions) Perform(rule_->Decide({of_step, ranks}));
    }
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
  if (coordinator_ && coordinator_->end()) End(*coordinator_->end());
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
  if (!rule_ || is_async()) return;
  if (!always && rule_->held_of_step() < needed_ && told_report_.step == rule_->step()) return;
  ShardReport report = rule_->Report();
  if (!always && report == told_report_) return;
  told_report_ = std::move(report);
  ps::ShardReport out;
  out.set_step(told_report_.step);
  for (const HeldPart& held : told_report_.held) {
    ps::ShardReport::Part* part = out.add_held();
    part->set_step(held.step);
    part->set_rank(static_cast<uint32_t>(held.rank));
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
  if (status.ok()) return;
  for (const auto& [id, request] : requests_) SendError(request.stream, request.number, status);
  requests_.clear();
  pulls_.clear();
  awaits_.clear();
}

void Server::Perform(const UpdateActions& actions) {
  for (const UpdateAction& action : actions) {
    std::visit([this](const auto& a) { Do(a); }, action);
  }
  AnswerPulls();
}

void Server::Do(const ApplyAction& action) {
  std::vector<const ShardGradient*> gradients;
  for (const PushId id : action.pushes) gradients.push_back(&gradients_.at(id));
  shard_->Apply(gradients, action.samples, action.rate_scale);
  for (const PushId id : action.pushes) gradients_.erase(id);
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

void Server::SendError(StreamId stream, uint64_t request, const absl::Status& status) {
  ps::ServerHeader header;
  header.set_request(request);
  SetError(status, header.mutable_error());
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
