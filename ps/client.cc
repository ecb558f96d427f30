#include "ps/client.h"

#include <algorithm>
#include <thread>

#include "base/logging.h"
#include "base/random.h"

namespace muster {

struct ParameterServerClient::Shard {
  TaskId task;
  std::string address;
  LayoutRange range;
  std::unique_ptr<ShardConnection> connection;
  std::string server_uuid;  // of the process that this worker joined first
  uint64_t request = 0;     // in flight
  uint64_t step = 0;        // of the parameters received last; in async mode each shard counts its own
};

namespace {

constexpr Duration kConnectPause = std::chrono::milliseconds(200);

// Copies what a shard sent to its places: its range of `parameters` ([layout.size()], or empty if none are
// expected), then `rows`.
absl::Status ReceiveFloats(const ShardReply& reply, const std::string& who, LayoutRange range,
                           std::span<float> parameters, std::span<float> rows = {}) {
  const int64_t own = parameters.empty() ? 0 : range.size(), of_rows = std::ssize(rows);
  if (reply.payload.size_bytes() != (own + of_rows) * static_cast<int64_t>(sizeof(float))) {
    return Internal("%s sent %d bytes for %d parameters and rows of %d", who, reply.payload.size_bytes(), own,
                    of_rows);
  }
  if (own > 0) reply.payload.Part(0, own).CopyTo(parameters.subspan(range.begin, own));
  reply.payload.Part(own, of_rows).CopyTo(rows);
  return absl::OkStatus();
}

}  // namespace

ParameterServerClient::ParameterServerClient(ParameterServerClientOptions options)
    : options_(std::move(options)),
      uuid_(RandomName(20)),
      rows_(static_cast<int>(options_.cluster.ps.size())),
      next_rows_(static_cast<int>(options_.cluster.ps.size())) {
  const int count = static_cast<int>(options_.cluster.ps.size());
  for (int i = 0; i < count; ++i) {
    auto shard = std::make_unique<Shard>();
    shard->task = {Role::kPs, i};
    shard->address = options_.cluster.ps[i];
    shard->range = options_.layout.Shard(i, count);
    shards_.push_back(std::move(shard));
  }
}

ParameterServerClient::~ParameterServerClient() = default;

absl::StatusOr<JoinResult> ParameterServerClient::Join(std::span<float> parameters) {
  const TimePoint deadline = Now() + options_.connect_timeout;
  uint64_t pushes = 0;
  for (const auto& shard : shards_) {
    MUSTER_ASSIGN_OR_RETURN(const ps::JoinReply reply, Connect(*shard, deadline, parameters));
    shard->server_uuid = reply.server_uuid();
    shard->step = reply.step();
    if (shard->task.index == 0) pushes = reply.pushes();
  }
  if (options_.config.mode() == ps::SYNC) MUSTER_RETURN_IF_ERROR(AlignSteps(parameters));
  return JoinResult{.step = shards_[0]->step, .pushes = pushes};
}

// A worker that died in the middle of an exchange leaves shards that have its contribution, and so have
// completed the step, and shards that wait for it. They cannot be further apart: the other workers wait for
// all of them.
absl::Status ParameterServerClient::AlignSteps(std::span<float> parameters) {
  const auto by_step = [](const auto& a, const auto& b) { return a->step < b->step; };
  const auto [behind, ahead] = std::minmax_element(shards_.begin(), shards_.end(), by_step);
  const uint64_t step = (*behind)->step;
  if ((*ahead)->step > step + 1) {
    return DataLoss(
        "%s is at step %d and %s at step %d: one has started again and lost its parameters; start the whole "
        "job again",
        TaskName((*ahead)->task), (*ahead)->step, TaskName((*behind)->task), step);
  }
  for (const auto& shard : shards_) {
    if (shard->step == step) continue;
    Request request;
    request.header.mutable_pull()->set_step(step);
    Send(*shard, request);
    MUSTER_ASSIGN_OR_RETURN(const ShardReply reply, Receive(*shard, Now() + options_.server_timeout));
    MUSTER_RETURN_IF_ERROR(ReceiveFloats(reply, TaskName(shard->task), shard->range, parameters));
    shard->step = step;
  }
  return absl::OkStatus();
}

absl::StatusOr<ps::JoinReply> ParameterServerClient::Connect(Shard& shard, TimePoint deadline,
                                                             std::span<float> parameters) {
  const std::string who = TaskName(shard.task);
  const TimePoint start = Now();
  shard.connection = nullptr;
  absl::Status last_error;
  while (true) {
    auto connection = ShardConnection::Connect(shard.address, shard.task, options_.tls,
                                               std::min(deadline, Now() + std::chrono::seconds(10)));
    if (connection.ok()) {
      shard.connection = *std::move(connection);
      Request request;
      ps::Join* join = request.header.mutable_join();
      join->set_rank(RankOf(options_.cluster, options_.task));
      join->set_worker_uuid(uuid_);
      join->set_incarnation(static_cast<uint32_t>(options_.incarnation));
      join->set_generation(options_.generation);
      join->set_shard_index(shard.task.index);
      join->set_shard_count(static_cast<uint32_t>(shards_.size()));
      *join->mutable_config() = options_.config;
      Send(shard, request);
      auto reply = Receive(shard, deadline);
      if (reply.ok()) {
        MUSTER_RETURN_IF_ERROR(ReceiveFloats(*reply, who, shard.range, parameters));
        return reply->header.join();
      }
      if (!absl::IsUnavailable(reply.status())) return reply.status();
      last_error = reply.status();
    } else {
      last_error = connection.status();
    }
    if (Now() >= deadline) {
      return Unavailable(
          "%s at %s has not answered for %.0f s (%s): does it run, and may this host reach it?", who,
          shard.address, ToSeconds(Now() - start), std::string(last_error.message()));
    }
    spdlog::info("waiting for {} at {}", who, shard.address);
    // One that hangs up at once, because it is just ending, say, is not asked a thousand times a second.
    std::this_thread::sleep_for(std::min<Duration>(kConnectPause, deadline - Now()));
  }
}

absl::Status ParameterServerClient::Reconnect(Shard& shard) {
  spdlog::warn("{} at {}: the connection broke; connecting again", TaskName(shard.task), shard.address);
  std::vector<float> ignored(options_.layout.size());  // the request that is sent again brings the parameters
  MUSTER_ASSIGN_OR_RETURN(const ps::JoinReply reply,
                          Connect(shard, Now() + options_.server_timeout, ignored));
  if (reply.server_uuid() != shard.server_uuid) {
    return DataLoss("%s at %s has started again and lost its parameters: start the whole job again",
                    TaskName(shard.task), shard.address);
  }
  return absl::OkStatus();
}

void ParameterServerClient::Send(Shard& shard, Request& request) {
  ps::ClientHeader& header = request.header;
  header.set_version(kWireVersion);
  header.set_request(shard.request = ++last_request_);
  if (header.has_push()) header.mutable_push()->set_step(shard.step);
  if (header.has_pull_rows()) header.mutable_pull_rows()->set_step(shard.step);
  std::vector<grpc::Slice> payload = {BorrowFloats(request.gradient)};
  if (request.row_gradients != nullptr) payload.push_back(ShareFloats(request.row_gradients));
  bytes_pushed_ += shard.connection->Send(header, payload);
}

absl::StatusOr<ShardReply> ParameterServerClient::Receive(Shard& shard, TimePoint deadline) {
  while (true) {
    auto received = shard.connection->Receive(deadline);
    if (!received.ok()) return Annotate(received.status(), TaskName(shard.task));
    ShardReply reply = *std::move(received);
    if (reply.header.request() != shard.request) continue;  // an answer to a request that was given up
    bytes_pulled_ += reply.bytes;
    if (!reply.header.has_error()) return reply;
    const ps::Error& error = reply.header.error();
    return absl::Status(static_cast<absl::StatusCode>(error.code()),
                        TaskName(shard.task) + ": " + error.message());
  }
}

absl::StatusOr<std::vector<ps::ServerHeader>> ParameterServerClient::ExchangeWithAll(
    std::vector<Request> requests, const Destination& destination) {
  for (size_t i = 0; i < shards_.size(); ++i) Send(*shards_[i], requests[i]);
  std::vector<ps::ServerHeader> replies;
  std::vector<float> rows;
  const TimePoint deadline = Now() + options_.answer_timeout;
  for (size_t i = 0; i < shards_.size(); ++i) {
    Shard& shard = *shards_[i];
    auto reply = Receive(shard, deadline);
    while (absl::IsUnavailable(reply.status()) && Now() < deadline) {
      MUSTER_RETURN_IF_ERROR(Reconnect(shard));
      Send(shard, requests[i]);
      reply = Receive(shard, deadline);
    }
    if (!reply.ok()) return Annotate(reply.status(), TaskName(options_.task));
    rows.resize(destination.rows == nullptr ? 0 : destination.rows->size(static_cast<int>(i)));
    MUSTER_RETURN_IF_ERROR(
        ReceiveFloats(*reply, TaskName(shard.task), shard.range, destination.parameters, rows));
    if (destination.rows != nullptr) {
      destination.rows->Scatter(static_cast<int>(i), rows, destination.row_values);
    }
    if (reply->header.has_push()) shard.step = reply->header.push().step();
    if (reply->header.has_await_finished()) shard.step = reply->header.await_finished().step();
    replies.push_back(std::move(reply->header));
  }
  return replies;
}

absl::StatusOr<PushResult> ParameterServerClient::PushPull(const Contribution& contribution,
                                                           std::span<float> parameters,
                                                           const RowIndex& next_rows,
                                                           std::span<float> next_row_values) {
  const std::span<const float> row_gradients = contribution.gradient.subspan(options_.layout.size());
  rows_.Build(contribution.rows);
  next_rows_.Build(next_rows);
  std::vector<Request> requests(shards_.size());
  ++sequence_;
  for (int i = 0; i < static_cast<int>(requests.size()); ++i) {
    ps::Push* push = requests[i].header.mutable_push();
    push->set_sequence(sequence_);
    push->set_samples(contribution.samples);
    push->set_loss_sum(contribution.loss_sum);
    *push->mutable_rows() = rows_.rows(i);
    *push->mutable_next_rows() = next_rows_.rows(i);
    const LayoutRange range = shards_[i]->range;
    requests[i].gradient = contribution.gradient.subspan(range.begin, range.size());
    auto of_rows = std::make_shared<std::vector<float>>(rows_.size(i));
    rows_.Gather(i, row_gradients, *of_rows);
    requests[i].row_gradients = std::move(of_rows);
  }
  MUSTER_ASSIGN_OR_RETURN(
      const auto replies,
      ExchangeWithAll(std::move(requests),
                      {.parameters = parameters, .rows = &next_rows_, .row_values = next_row_values}));
  const ps::PushReply& first = replies[0].push();
  return PushResult{.outcome = first.outcome() == ps::APPLIED ? PushOutcome::kApplied
                               : first.outcome() == ps::STALE ? PushOutcome::kStale
                                                              : PushOutcome::kDuplicate,
                    .step = first.step(),
                    .mean_loss = first.mean_loss(),
                    .samples = first.samples(),
                    .staleness = first.staleness()};
}

absl::Status ParameterServerClient::PullRows(const RowIndex& rows, std::span<float> values) {
  next_rows_.Build(rows);
  std::vector<Request> requests(shards_.size());
  for (int i = 0; i < static_cast<int>(requests.size()); ++i) {
    *requests[i].header.mutable_pull_rows()->mutable_rows() = next_rows_.rows(i);
  }
  return ExchangeWithAll(std::move(requests), {.rows = &next_rows_, .row_values = values}).status();
}

absl::StatusOr<ps::AwaitFinishedReply> ParameterServerClient::AwaitOthers(std::span<float> parameters) {
  std::vector<Request> requests(shards_.size());
  for (Request& request : requests) request.header.mutable_await_finished();
  MUSTER_ASSIGN_OR_RETURN(const auto replies,
                          ExchangeWithAll(std::move(requests), {.parameters = parameters}));
  return replies[0].await_finished();
}

absl::Status ParameterServerClient::Finish() {
  std::vector<Request> requests(shards_.size());
  for (Request& request : requests) request.header.mutable_finish();
  return ExchangeWithAll(std::move(requests), {}).status();
}

}  // namespace muster
