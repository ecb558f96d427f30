#include "ps/server.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "base/file.h"
#include "base/logging.h"
#include "base/random.h"
#include "kernels/layout_optimizer.h"
#include "kernels/parameter_layout.h"
#include "proto/parameter_server.pb.h"
#include "ps/job_config.h"
#include "ps/shard_tables.h"
#include "ps/update_rule.h"
#include "ps/wire.h"

namespace muster {
namespace {

class Server;

// One worker's stream. Lives until gRPC calls OnDone, which comes after Finish; every method may run on any
// thread.
class Stream final : public grpc::ServerGenericBidiReactor {
 public:
  Stream(Server* server, uint64_t id, grpc::GenericCallbackServerContext* context)
      : server_(server), id_(id), auth_(context->auth_context()), peer_(context->peer()) {}

  void Begin() { StartRead(&incoming_); }

  void Send(grpc::ByteBuffer frame) {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    outgoing_.push_back(std::move(frame));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  /// Ends the stream after what has been sent; the client sees `status`.
  void Close(const grpc::Status& status) {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    finished_ = true;
    Finish(status);
  }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    outgoing_.pop_front();
    if (ok && !finished_ && !outgoing_.empty()) StartWrite(&outgoing_.front());
  }
  void OnCancel() override { Close(grpc::Status::CANCELLED); }
  void OnDone() override;

  uint64_t id() const { return id_; }
  const grpc::AuthContext& auth() const { return *auth_; }
  const std::string& peer() const { return peer_; }

  std::optional<WorkerIdentity> worker;  // set by Join; guarded by the server's mutex

 private:
  Server* const server_;
  const uint64_t id_;
  const std::shared_ptr<const grpc::AuthContext> auth_;
  const std::string peer_;
  grpc::ByteBuffer incoming_;
  std::mutex mutex_;
  std::deque<grpc::ByteBuffer> outgoing_;  // the front one is being written
  bool finished_ = false;
};

// What is sent; never changed once somebody reads it.
using Floats = std::shared_ptr<const std::vector<float>>;

// A request whose answer the rule has not given yet.
struct Pending {
  uint64_t stream_id = 0;
  uint64_t request = 0;
  FloatPayload gradient;  // of the parameters, and behind it that of `rows`
  RepeatedRows rows;
  RepeatedRows next_rows;  // go with the answer
  int64_t next_row_floats = 0;
};

class Server final : public ParameterServer, private grpc::CallbackGenericService {
 public:
  explicit Server(const ParameterServerOptions& options)
      : options_(options), uuid_(RandomName(20)), name_(TaskName({Role::kPs, options.shard_index})) {}
  ~Server() override;

  absl::Status Listen();
  absl::Status Wait() override;

  void OnFrame(Stream* stream, const grpc::ByteBuffer& frame);
  void Remove(Stream* stream);

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

  void Handle(Stream* stream, const grpc::ByteBuffer& frame, ps::ClientHeader& header);
  absl::Status HandleJoin(Stream* stream, uint64_t request, const ps::Join& join);
  absl::Status HandlePull(Stream* stream, uint64_t request, const ps::Pull& pull);
  absl::Status HandlePullRows(Stream* stream, uint64_t request, const ps::PullRows& pull);
  absl::Status HandlePush(Stream* stream, uint64_t request, ps::Push& push, FloatPayload payload);
  absl::Status AdoptConfig(const ps::JobConfig& config);

  void Perform(const UpdateActions& actions);
  void Do(const ApplyAction& action);
  void Do(const AnswerAction& action);
  void Do(const RefuseAction& action);
  void Do(const ReleaseAction& action);
  void Do(const EndAction& action);
  std::shared_ptr<std::vector<float>> NewVersion();

  PushId AddPending(Stream* stream, uint64_t request, Pending pending = {});
  void Reply(PushId id, ps::ServerHeader header, Floats payload = nullptr);
  void SendError(Stream* stream, uint64_t request, const absl::Status& status);

  const ParameterServerOptions options_;
  const std::string uuid_;
  const std::string name_;
  std::unique_ptr<grpc::Server> grpc_server_;

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::map<uint64_t, Stream*> streams_;
  uint64_t last_id_ = 0;
  std::map<PushId, Pending> pending_;
  std::optional<absl::Status> end_;

  // All made by the first worker that joins.
  std::optional<ps::JobConfig> config_;
  std::unique_ptr<UpdateRule> rule_;
  LayoutRange range_;
  std::optional<LayoutOptimizer> optimizer_;
  std::vector<float> gradient_sum_;
  std::vector<float> row_gradients_;  // of one push
  Floats parameters_;
  Floats previous_parameters_;  // sync: of the step before, for Pull
  ShardTables tables_;
  std::vector<std::shared_ptr<std::vector<float>>> versions_;  // buffers to use again once nobody reads them
};

void Stream::OnReadDone(bool ok) {
  if (!ok) {
    Close(grpc::Status::OK);
    return;
  }
  server_->OnFrame(this, incoming_);
  incoming_.Clear();
  const std::lock_guard lock(mutex_);
  if (!finished_) StartRead(&incoming_);
}

void Stream::OnDone() {
  server_->Remove(this);
  delete this;
}

// Why the address cannot be listened on; gRPC does not say.
absl::Status ExplainListenFailure(const std::string& address) {
  const std::string host = HostOfAddress(address), port = address.substr(address.rfind(':') + 1);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return Unavailable("cannot listen on %s: %s", address, ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> guard(found, ::freeaddrinfo);
  const UniqueFd probe(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::bind(probe.get(), found->ai_addr, found->ai_addrlen) == 0 || errno == EADDRINUSE) {
    return AlreadyExists("cannot listen on %s: another process has the port", address);
  }
  return Unavailable(
      "cannot listen on %s: %s; if this machine has it behind another address, give --bind_host=0.0.0.0",
      address, std::strerror(errno));
}

absl::Status Server::Listen() {
  const std::string address =
      options_.bind_address.empty() ? options_.cluster.ps[options_.shard_index] : options_.bind_address;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address, MakeServerCredentials(options_.tls), &port);
  builder.RegisterCallbackGenericService(this);
  builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxFrameBytes));
  builder.SetMaxSendMessageSize(static_cast<int>(kMaxFrameBytes));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Clients ping every 10 s to notice a dead server; gRPC's default would call that abuse and hang up.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  grpc_server_ = builder.BuildAndStart();
  if (grpc_server_ == nullptr || port == 0) return Annotate(ExplainListenFailure(address), name_);
  spdlog::info(
      "{} listens on {}{}", name_, address,
      options_.tls ? "" : ", without TLS: anyone who reaches this port can read and write the parameters");
  return absl::OkStatus();
}

Server::~Server() {
  if (grpc_server_ != nullptr) grpc_server_->Shutdown(std::chrono::system_clock::now());
}

absl::Status Server::Wait() {
  std::unique_lock lock(mutex_);
  while (!end_) {
    const TimePoint deadline = rule_ == nullptr ? TimePoint::max() : rule_->next_deadline();
    // A condition variable may not be given the end of time; waking once a minute costs nothing.
    changed_.wait_until(lock, std::min(deadline, Now() + std::chrono::minutes(1)));
    if (rule_ != nullptr) Perform(rule_->Tick(Now()));
  }
  // The last answers are on their way; workers close their streams when they have them.
  changed_.wait_until(lock, Now() + std::chrono::seconds(5), [this] { return streams_.empty(); });
  return *end_;
}

grpc::ServerGenericBidiReactor* Server::CreateReactor(grpc::GenericCallbackServerContext* context) {
  if (context->method() != "/muster.ps.ParameterServer/Exchange") {
    return grpc::CallbackGenericService::CreateReactor(context);  // answers UNIMPLEMENTED
  }
  uint64_t id;
  Stream* stream;
  {
    const std::lock_guard lock(mutex_);
    id = ++last_id_;
    stream = new Stream(this, id, context);
    streams_[id] = stream;
  }
  stream->Begin();
  return stream;
}

void Server::Remove(Stream* stream) {
  const std::lock_guard lock(mutex_);
  streams_.erase(stream->id());
  changed_.notify_all();
}

// gRPC would swallow an exception together with the request. What memory was short for may be done by half,
// so this is the end.
void Server::OnFrame(Stream* stream, const grpc::ByteBuffer& frame) {
  ps::ClientHeader header;
  try {
    Handle(stream, frame, header);
    return;
  } catch (const std::bad_alloc&) {
  }
  const absl::Status status = absl::ResourceExhaustedError(
      "not enough memory on its host for this part of the model: use more parameter servers");
  spdlog::error("{}: {}", name_, std::string(status.message()));
  const std::lock_guard lock(mutex_);
  if (!end_) end_ = status;
  SendError(stream, header.request(), status);
  changed_.notify_all();
}

void Server::Handle(Stream* stream, const grpc::ByteBuffer& frame, ps::ClientHeader& header) {
  FloatPayload payload;
  absl::Status status = DecodeFrame(frame, &header, &payload);
  if (status.ok() && header.version() != kWireVersion) {
    status = FailedPrecondition("this server speaks version %d of the protocol, the client version %d",
                                kWireVersion, header.version());
  }
  const std::lock_guard lock(mutex_);
  if (status.ok() && end_ && !end_->ok()) status = *end_;
  if (status.ok() && !stream->worker && !header.has_join())
    status = InvalidArgument("the first frame is no join");
  if (status.ok()) {
    const auto& worker = stream->worker;
    if (worker) rule_->Heard(*worker, Now());
    switch (header.kind_case()) {
      case ps::ClientHeader::kJoin:
        status = HandleJoin(stream, header.request(), header.join());
        break;
      case ps::ClientHeader::kPull:
        status = HandlePull(stream, header.request(), header.pull());
        break;
      case ps::ClientHeader::kPullRows:
        status = HandlePullRows(stream, header.request(), header.pull_rows());
        break;
      case ps::ClientHeader::kPush:
        status = HandlePush(stream, header.request(), *header.mutable_push(), std::move(payload));
        break;
      case ps::ClientHeader::kAwaitFinished:
        Perform(rule_->AwaitFinished(*worker, AddPending(stream, header.request()), Now()));
        break;
      case ps::ClientHeader::kFinish: {
        ps::ServerHeader reply;
        reply.mutable_finish();
        Reply(AddPending(stream, header.request()), std::move(reply));
        spdlog::info("{}: rank {} has finished", name_, worker->rank);
        Perform(rule_->Finish(*worker, Now()));
        break;
      }
      case ps::ClientHeader::KIND_NOT_SET:
        status = InvalidArgument("a request of a kind that this version does not know");
    }
  }
  changed_.notify_all();  // the rule's next deadline may have changed
  if (!status.ok()) {
    spdlog::warn("{}: refused {}: {}", name_, stream->peer(), std::string(status.message()));
    SendError(stream, header.request(), status);
  }
}

absl::Status Server::HandleJoin(Stream* stream, uint64_t request, const ps::Join& join) {
  if (static_cast<int>(join.shard_index()) != options_.shard_index ||
      join.shard_count() != options_.cluster.ps.size()) {
    return FailedPrecondition("this is shard %d of %d, the worker wants shard %d of %d: compare --ps_hosts",
                              options_.shard_index, options_.cluster.ps.size(), join.shard_index(),
                              join.shard_count());
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
  if (options_.tls) {
    MUSTER_RETURN_IF_ERROR(
        CheckPeer(stream->auth(), TaskOfRank(options_.cluster, static_cast<int>(join.rank()))));
  }
  MUSTER_RETURN_IF_ERROR(AdoptConfig(join.config()));

  WorkerIdentity worker{
      .rank = static_cast<int>(join.rank()), .uuid = join.worker_uuid(), .incarnation = join.incarnation()};
  UpdateActions actions;
  MUSTER_ASSIGN_OR_RETURN(const JoinAnswer answer, rule_->Join(worker, Now(), &actions));
  Perform(actions);
  spdlog::info("{}: rank {} has joined from {}, incarnation {}, at step {}", name_, worker.rank,
               stream->peer(), worker.incarnation, answer.step);
  stream->worker = std::move(worker);
  ps::ServerHeader reply;
  reply.mutable_join()->set_server_uuid(uuid_);
  reply.mutable_join()->set_step(answer.step);
  reply.mutable_join()->set_pushes(answer.pushes);
  Reply(AddPending(stream, request), std::move(reply), parameters_);
  return absl::OkStatus();
}

absl::Status Server::AdoptConfig(const ps::JobConfig& config) {
  if (config_) return CheckSameJob(*config_, config);
  MUSTER_ASSIGN_OR_RETURN(const ParameterLayout layout, LayoutOf(config));
  MUSTER_ASSIGN_OR_RETURN(const std::vector<OptimizerConfig> optimizers, OptimizersOf(config));
  MUSTER_ASSIGN_OR_RETURN(const std::vector<TableSpec> tables, TablesOf(config));
  MUSTER_ASSIGN_OR_RETURN(const UpdateMode mode, UpdateModeOf(config));
  range_ = layout.Shard(options_.shard_index, static_cast<int>(options_.cluster.ps.size()));
  if (range_.size() * static_cast<int64_t>(sizeof(float)) > kMaxFrameBytes / 2) {
    return InvalidArgument(
        "a shard of %d parameters is too large for one message: use more parameter servers", range_.size());
  }
  MUSTER_ASSIGN_OR_RETURN(
      tables_, ShardTables::Create(tables, optimizers, config.seed(), options_.shard_index,
                                   static_cast<int>(options_.cluster.ps.size()), mode == UpdateMode::kSync));
  MUSTER_ASSIGN_OR_RETURN(optimizer_, LayoutOptimizer::Create(layout, range_, optimizers));
  auto parameters = std::make_shared<std::vector<float>>(range_.size());
  layout.Initialize(config.seed(), range_, *parameters);
  versions_ = {parameters};
  parameters_ = std::move(parameters);
  gradient_sum_.resize(range_.size());
  rule_ =
      std::make_unique<UpdateRule>(UpdateRuleOptions{.mode = mode,
                                                     .worker_count = static_cast<int>(config.worker_count()),
                                                     .worker_timeout = options_.worker_timeout},
                                   Now());
  config_ = config;
  spdlog::info("{} owns parameters [{}, {}) of {}", name_, range_.begin, range_.end, layout.size());
  return absl::OkStatus();
}

absl::Status Server::HandlePull(Stream* stream, uint64_t request, const ps::Pull& pull) {
  Floats parameters;
  if (pull.step() == rule_->step()) parameters = parameters_;
  if (pull.step() + 1 == rule_->step()) parameters = previous_parameters_;
  if (parameters == nullptr) {
    return FailedPrecondition("%s is at step %d and has no parameters of step %d", name_, rule_->step(),
                              pull.step());
  }
  ps::ServerHeader header;
  header.mutable_pull();
  Reply(AddPending(stream, request), std::move(header), parameters);
  return absl::OkStatus();
}

absl::Status Server::HandlePullRows(Stream* stream, uint64_t request, const ps::PullRows& pull) {
  MUSTER_ASSIGN_OR_RETURN(const int64_t floats, tables_.CheckRows(pull.rows()));
  const bool is_sync = config_->mode() == ps::SYNC;
  auto values = std::make_shared<std::vector<float>>(floats);
  if (is_sync && pull.step() + 1 == rule_->step()) {
    tables_.ReadPrevious(pull.rows(), *values);
  } else if (!is_sync || pull.step() == rule_->step()) {
    tables_.Read(pull.rows(), *values);
  } else {
    return FailedPrecondition("%s is at step %d and has no rows of step %d", name_, rule_->step(),
                              pull.step());
  }
  ps::ServerHeader header;
  header.mutable_pull_rows();
  Reply(AddPending(stream, request), std::move(header), std::move(values));
  return absl::OkStatus();
}

absl::Status Server::HandlePush(Stream* stream, uint64_t request, ps::Push& push, FloatPayload payload) {
  MUSTER_ASSIGN_OR_RETURN(const int64_t row_floats, tables_.CheckRows(push.rows()));
  int64_t next_row_floats = 0;
  if (push.next_rows_size() > 0) {
    MUSTER_ASSIGN_OR_RETURN(next_row_floats, tables_.CheckRows(push.next_rows()));
  }
  if (payload.size_bytes() != (range_.size() + row_floats) * static_cast<int64_t>(sizeof(float))) {
    return InvalidArgument("rank %d pushed %d bytes to a shard of %d parameters, with rows of %d",
                           stream->worker->rank, payload.size_bytes(), range_.size(), row_floats);
  }
  Pending pending{.gradient = std::move(payload), .next_row_floats = next_row_floats};
  pending.rows.Swap(push.mutable_rows());
  pending.next_rows.Swap(push.mutable_next_rows());
  const PushInfo info{.id = AddPending(stream, request, std::move(pending)),
                      .sequence = push.sequence(),
                      .step = push.step(),
                      .samples = push.samples(),
                      .loss_sum = push.loss_sum()};
  Perform(rule_->Push(*stream->worker, info, Now()));
  return absl::OkStatus();
}

void Server::Perform(const UpdateActions& actions) {
  for (const UpdateAction& action : actions) {
    std::visit([this](const auto& a) { Do(a); }, action);
  }
}

void Server::Do(const ApplyAction& action) {
  const std::span<float> sum(gradient_sum_);
  bool first = true;
  for (const PushId id : action.pushes) {
    const Pending& push = pending_.at(id);
    const FloatPayload& gradient = push.gradient;
    const FloatPayload of_parameters = gradient.Part(0, range_.size());
    first ? of_parameters.CopyTo(sum) : of_parameters.AddTo(sum);
    first = false;
    row_gradients_.resize(gradient.size_bytes() / sizeof(float) - range_.size());
    gradient.Part(range_.size(), static_cast<int64_t>(row_gradients_.size())).CopyTo(row_gradients_);
    tables_.AddGradients(push.rows, row_gradients_);
  }
  auto updated = NewVersion();
  const float scale = 1.0f / static_cast<float>(action.samples);
  optimizer_->Apply(*parameters_, sum, scale, *updated);
  tables_.Apply(scale);
  // An asynchronous worker never goes back a step: its buffer is free for the next update.
  if (config_->mode() == ps::SYNC) previous_parameters_ = parameters_;
  parameters_ = std::move(updated);
}

std::shared_ptr<std::vector<float>> Server::NewVersion() {
  for (const auto& version : versions_) {
    if (version.use_count() == 1) {
      // Pairs with the release in the last reader's decrement: its reads come before our writes.
      std::atomic_thread_fence(std::memory_order_acquire);
      return version;
    }
  }
  versions_.push_back(std::make_shared<std::vector<float>>(range_.size()));
  return versions_.back();
}

void Server::Do(const AnswerAction& action) {
  ps::ServerHeader header;
  ps::PushReply* reply = header.mutable_push();
  reply->set_outcome(action.outcome == PushOutcome::kApplied ? ps::APPLIED
                     : action.outcome == PushOutcome::kStale ? ps::STALE
                                                             : ps::DUPLICATE);
  reply->set_step(action.step);
  reply->set_mean_loss(action.mean_loss);
  reply->set_samples(action.samples);
  reply->set_staleness(action.staleness);
  Reply(action.id, std::move(header), parameters_);
}

void Server::Do(const RefuseAction& action) {
  const auto pending = pending_.extract(action.id);
  const auto stream = streams_.find(pending.mapped().stream_id);
  if (stream == streams_.end()) return;
  spdlog::warn("{}: refused {}: {}", name_, stream->second->peer(), std::string(action.status.message()));
  SendError(stream->second, pending.mapped().request, action.status);
}

void Server::Do(const ReleaseAction& action) {
  ps::ServerHeader header;
  header.mutable_await_finished()->set_step(rule_->step());
  const PushCounts& counts = rule_->counts();
  ps::PushCounts* pushes = header.mutable_await_finished()->mutable_pushes();
  pushes->set_received(counts.received);
  pushes->set_applied(counts.applied);
  pushes->set_stale(counts.stale);
  pushes->set_duplicate(counts.duplicate);
  pushes->set_rejected(counts.rejected);
  Reply(action.id, std::move(header), parameters_);
}

void Server::Do(const EndAction& action) { end_ = action.status; }

PushId Server::AddPending(Stream* stream, uint64_t request, Pending pending) {
  const PushId id = ++last_id_;
  pending.stream_id = stream->id();
  pending.request = request;
  pending_.emplace(id, std::move(pending));
  return id;
}

void Server::Reply(PushId id, ps::ServerHeader header, Floats payload) {
  const auto pending = pending_.extract(id);
  const auto stream = streams_.find(pending.mapped().stream_id);
  if (stream == streams_.end()) return;  // the worker will come back and ask again
  header.set_version(kWireVersion);
  header.set_request(pending.mapped().request);
  std::vector<grpc::Slice> slices;
  if (payload != nullptr) slices.push_back(ShareFloats(std::move(payload)));
  if (const RepeatedRows& rows = pending.mapped().next_rows; !rows.empty()) {
    auto values = std::make_shared<std::vector<float>>(pending.mapped().next_row_floats);
    tables_.Read(rows, *values);
    slices.push_back(ShareFloats(std::move(values)));
  }
  stream->second->Send(EncodeFrame(header, slices));
}

void Server::SendError(Stream* stream, uint64_t request, const absl::Status& status) {
  ps::ServerHeader header;
  header.set_version(kWireVersion);
  header.set_request(request);
  header.mutable_error()->set_code(static_cast<int>(status.code()));
  header.mutable_error()->set_message(std::string(status.message()));
  stream->Send(EncodeFrame(header));
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
