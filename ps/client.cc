#include "ps/client.h"

#include <algorithm>
#include <condition_variable>

#include "base/logging.h"
#include "base/random.h"
#include "cluster/replica_view.h"

namespace muster {

struct ParameterServerClient::Shard {
  TaskId task;           // by whose name it is known
  int server = 0;        // of the two that it may be with
  ReplicaBallot ballot;  // which of them speaks for it
  LayoutRange range;
  std::unique_ptr<ShardConnection> connection;
  bool joined = false;  // over this connection
  bool wanted = false;  // to be joined, if it is not
  uint64_t join = 0;    // the number of the join in flight, 0 if none
  TimePoint join_deadline, next_attempt;
  Duration connect_timeout{};  // of the next attempt, where there are two servers
  absl::Status last_error;
  ps::JoinReply joined_as;
  uint64_t epoch = 0;                     // number, when it was joined
  uint64_t pushes = 0;                    // applied of this rank, then
  uint64_t awaiting = 0;                  // the number of the request in flight, 0 if none
  bool asking = false;                    // whether that may be sent
  std::optional<TimePoint> waited_since;  // for it to answer, or to be joined
  std::optional<Request> in_flight;
  TimePoint sent_at;  // when it was told to send that, as a whole
  int64_t early = 0;  // floats of the answer to that which are there already, one after the other
  ShardClock clock;   // in async mode each shard counts its own steps
  TimePoint last_heard;
  std::string waits_for;  // the server's last word about that
};

namespace {

constexpr Duration kConnectPause = std::chrono::milliseconds(200);
constexpr Duration kConnectTimeout = std::chrono::seconds(10);  // for one attempt
constexpr Duration kJoinPoll = std::chrono::milliseconds(20);
constexpr Duration kSayWaitingAfter = std::chrono::seconds(1);
constexpr Duration kReplicaPause = std::chrono::milliseconds(20);  // before the other server is asked
// The other server may answer. To begin with: on a long way, or where there is much to do, it takes longer.
constexpr Duration kReplicaConnectTimeout = std::chrono::milliseconds(300);
constexpr Duration kMostReplicaConnectTimeout = std::chrono::seconds(3);
constexpr Duration kReplicaJoinTimeout = std::chrono::seconds(3);
constexpr Duration kHeartbeatEvery = std::chrono::milliseconds(250);
constexpr Duration kTellTimeout = std::chrono::seconds(2);
constexpr Duration kSilence = std::chrono::seconds(2);  // of a server that answers heartbeats
constexpr uint64_t kMostHeldUs = 1'000'000'000'000;     // days: whatever a server says
constexpr Duration kStallAfter = std::chrono::seconds(3);
constexpr Duration kStallAgainAfter = std::chrono::seconds(30);

ParameterServerClientOptions WithView(ParameterServerClientOptions options) {
  if (options.view == nullptr) {
    options.view = std::make_shared<ClusterView>(options.cluster, options.task);
  }
  return options;
}

// For servers that stand, which see no cluster file of the job.
ps::Ranks RanksOf(const ClusterView& view) {
  const ClusterView::Ranks now = view.ranks();
  ps::Ranks ranks;
  ranks.set_generation(now.generation);
  ranks.set_count(static_cast<uint32_t>(now.count));
  return ranks;
}

}  // namespace

ParameterServerClient::ParameterServerClient(ParameterServerClientOptions options)
    : options_(WithView(std::move(options))),
      uuid_(RandomName(20)),
      rows_(static_cast<int>(options_.cluster.ps.size())),
      next_rows_(static_cast<int>(options_.cluster.ps.size())),
      encoder_(options_.config, options_.layout.size()),
      queue_(std::make_shared<FrameQueue>(
          [this](const FrameQueue::Event& event) { return options_.replicated && TakeProposal(event); })) {
  const int count = static_cast<int>(options_.cluster.ps.size());
  for (int i = 0; i < count; ++i) {
    auto shard = std::make_unique<Shard>();
    shard->task = {Role::kPs, i};
    shard->range = options_.layout.Shard(i, count);
    shards_.push_back(std::move(shard));
  }
  heartbeat_ = std::jthread([this](const std::stop_token& stop) { Beat(stop); });
}

ParameterServerClient::~ParameterServerClient() {
  for (const auto& shard : shards_) Replace(*shard, nullptr, false);  // after this nothing comes any more
}

std::vector<Duration> ParameterServerClient::waiting() {
  const std::lock_guard lock(connections_mutex_);
  std::vector<Duration> waiting;
  for (const auto& shard : shards_) {
    waiting.push_back(shard->waited_since ? Now() - *shard->waited_since : Duration());
  }
  return waiting;
}

void ParameterServerClient::Beat(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  while (!wake.wait_for(lock, stop, kHeartbeatEvery, [&] { return stop.stop_requested(); })) {
    const std::lock_guard connections(connections_mutex_);
    for (const auto& shard : shards_) {
      if (shard->connection == nullptr || (!shard->joined && shard->join == 0)) continue;
      ps::ClientHeader header;
      header.set_version(kWireVersion);
      header.mutable_heartbeat()->set_awaiting(shard->joined ? shard->awaiting : shard->join);
      header.mutable_heartbeat()->set_asking(shard->joined && shard->asking);
      if (options_.view->workers_may_come_and_go()) {
        *header.mutable_heartbeat()->mutable_ranks() = RanksOf(*options_.view);
      }
      shard->connection->Send(header, {});
    }
  }
}

absl::StatusOr<JoinResult> ParameterServerClient::Join(std::span<float> parameters) {
  finishing_ = has_finished_ = reads_exactly_ = false;
  encoder_.Reset();
  // Servers that were there come back sooner than ones that are still to be started.
  const TimePoint deadline = Now() + (epoch_ == 0 ? options_.connect_timeout : options_.server_timeout);
  for (const auto& shard : shards_) {
    shard->epoch = 0;
    shard->in_flight.reset();
  }
  MUSTER_RETURN_IF_ERROR(JoinEpoch(deadline, parameters));
  MUSTER_RETURN_IF_ERROR(Align({.parameters = parameters}));
  const ps::JoinReply& joined = shards_[0]->joined_as;
  return JoinResult{.step = is_async() ? shards_[0]->clock.version : step_,
                    .pushes = shards_[0]->pushes,
                    .all_samples = joined.all_samples(),
                    .share_place = static_cast<int>(joined.share_place()),
                    .share_count = static_cast<int>(joined.share_count())};
}

// Joins all shards, and again as long as they are not in the same epoch: ps:0 may be a new process as well as
// any other.
absl::Status ParameterServerClient::JoinEpoch(TimePoint deadline, std::span<float> parameters) {
  while (true) {
    for (const auto& shard : shards_) {
      shard->wanted = shard->epoch != shards_[0]->epoch || shard->epoch == 0;
      if (shard->wanted) Replace(*shard, nullptr, false);
    }
    MUSTER_RETURN_IF_ERROR(JoinShards(deadline, parameters));
    for (const auto& shard : shards_) {
      if (!shard->wanted) continue;
      const ps::JoinReply& reply = shard->joined_as;
      shard->epoch = reply.epoch();
      shard->pushes = reply.pushes();
      // What all make together is made again by all when one is lost, also by those whose part is there.
      const bool is_made_again = options_.config.needs_all_workers();
      shard->clock = {reply.step(), is_made_again ? reply.step() : std::max(reply.step(), reply.next_step())};
    }
    epoch_ = shards_[0]->epoch;
    const auto is_same = [&](const auto& shard) { return shard->epoch == epoch_; };
    if (std::all_of(shards_.begin(), shards_.end(), is_same)) return absl::OkStatus();
    if (Now() >= deadline) return DeadlineExceeded("the servers did not all begin again from one checkpoint");
    shards_[0]->epoch = 0;
    std::this_thread::sleep_for(kConnectPause);
  }
}

// Shards apply a step that has been chosen one after the other, and other workers may have gone on without
// this one: until no shard's parameters are too old for the step that is to be contributed to. A backup
// worker with a slow link may be behind for long, which holds up nobody: it has a deadline only as long as
// nothing moves.
absl::Status ParameterServerClient::Align(const Destination& destination) {
  if (is_async()) return absl::OkStatus();
  TimePoint deadline = Now() + options_.answer_timeout;
  while (true) {
    std::vector<ShardClock> clocks;
    for (const auto& shard : shards_) clocks.push_back(shard->clock);
    const uint64_t step = NextStep(clocks);
    if (step != std::exchange(step_, step)) deadline = Now() + options_.answer_timeout;
    std::vector<std::optional<Request>> requests(shards_.size());
    bool aligned = true;
    for (size_t i = 0; i < shards_.size(); ++i) {
      if (!IsTooOldFor(step_, clocks[i], options_.config.staleness())) continue;
      aligned = false;
      ps::Pull* pull = requests[i].emplace().header.mutable_pull();
      pull->set_parameters(true);
      pull->set_at_least(step_ - options_.config.staleness());
      if (destination.rows != nullptr) *pull->mutable_rows() = destination.rows->rows(static_cast<int>(i));
    }
    if (aligned) return absl::OkStatus();
    if (Now() >= deadline)
      return DeadlineExceeded("the other workers' steps are faster than a pull of step %d", step_);
    MUSTER_RETURN_IF_ERROR(Exchange(std::move(requests), destination).status());
  }
}

TaskId ParameterServerClient::ServerOf(const Shard& shard) const {
  const int index = shard.task.index;
  return {Role::kPs, shard.server == 0 ? index : FirstBackupOf(index, static_cast<int>(shards_.size()))};
}

std::string ParameterServerClient::AddressOf(const Shard& shard) const {
  return options_.view->Address(ServerOf(shard));
}

void ParameterServerClient::Replace(Shard& shard, std::unique_ptr<ShardConnection> connection, bool joined) {
  const std::unique_ptr<ShardConnection> old = [&] {
    const std::lock_guard lock(connections_mutex_);
    shard.joined = joined;
    return std::exchange(shard.connection, std::move(connection));
  }();  // it ends outside of the lock
}

// Joins every shard that is wanted, all at the same time: of a replicated one a view may wait for the
// promises of this worker, and for those of others that wait for another shard. What joined shards say
// meanwhile is kept for later.
absl::Status ParameterServerClient::JoinShards(TimePoint deadline, std::span<float> parameters) {
  const TimePoint start = Now();
  for (const auto& shard : shards_) {
    const std::lock_guard lock(connections_mutex_);
    shard->join = 0;
    shard->next_attempt = start;
    shard->connect_timeout = kReplicaConnectTimeout;
    if (shard->wanted && !shard->waited_since) shard->waited_since = start;
  }
  std::vector<FrameQueue::Event> of_others;
  absl::Status status;
  const auto is_missing = [](const auto& shard) { return shard->wanted && !shard->joined; };
  while (status.ok()) {
    const auto missing = std::find_if(shards_.begin(), shards_.end(), is_missing);
    if (missing == shards_.end() || has_finished_) break;
    for (const auto& shard : shards_) {
      if (!is_missing(shard)) continue;
      if (shard->join == 0 && Now() >= shard->next_attempt) BeginJoin(*shard, deadline);
      if (shard->join != 0 && Now() >= shard->join_deadline)
        GiveUpJoin(*shard, Unavailable("it does not answer"));
    }
    if (options_.interruption) status = options_.interruption();
    if (options_.view->Address(options_.task).empty()) {
      status = Aborted("%s", kHasLeft);
    } else if (Now() >= deadline) {
      status =
          Unavailable("%s at %s has not answered for %.0f s (%s): does it run, and may this host reach it?",
                      TaskName((*missing)->task), AddressOf(**missing), ToSeconds(Now() - start),
                      std::string((*missing)->last_error.message()));
    }
    if (!status.ok()) break;
    if (auto event = queue_->Pop(std::min(deadline, Now() + kJoinPoll))) {
      status = HandleJoinEvent(*std::move(event), parameters, &of_others);
    }
    if (Now() - start > kSayWaitingAfter && Now() >= next_wait_log_) {
      next_wait_log_ = Now() + kStallAfter;
      spdlog::info("waiting for {} at {}: {}", TaskName((*missing)->task), AddressOf(**missing),
                   std::string((*missing)->last_error.message()));
    }
  }
  queue_->PutBack(std::move(of_others));
  return status;
}

void ParameterServerClient::BeginJoin(Shard& shard, TimePoint deadline) {
  const Duration timeout = options_.replicated ? shard.connect_timeout : kConnectTimeout;
  const TimePoint start = Now();
  auto connection = ShardConnection::Connect(options_.view, ServerOf(shard), options_.tls, options_.transport,
                                             std::min(deadline, start + timeout), queue_, ++last_connection_);
  if (!connection.ok()) {
    if (Now() - start >= timeout) {
      shard.connect_timeout = std::min(2 * shard.connect_timeout, kMostReplicaConnectTimeout);
    }
    return GiveUpJoin(shard, connection.status());
  }
  if ((*connection)->is_local()) {
    spdlog::debug("{} is on this host: frames go past the network", TaskName(ServerOf(shard)));
  }
  Replace(shard, *std::move(connection), false);
  const uint64_t number = ++last_request_;
  shard.join_deadline = options_.replicated ? Now() + kReplicaJoinTimeout + PatienceWith(shard) : deadline;
  ps::ClientHeader header;
  header.set_version(kWireVersion);
  header.set_request(number);
  ps::Join* join = header.mutable_join();
  join->set_rank(RankOf(options_.cluster, options_.task));
  join->set_worker_uuid(uuid_);
  join->set_incarnation(static_cast<uint32_t>(options_.incarnation));
  join->set_generation(options_.generation);
  join->set_shard_index(shard.task.index);
  join->set_shard_count(static_cast<uint32_t>(shards_.size()));
  *join->mutable_config() = options_.config;
  join->set_has_chief(!options_.cluster.chief.empty());
  join->set_train_steps(options_.train_steps);
  if (options_.view->workers_may_come_and_go()) *join->mutable_ranks() = RanksOf(*options_.view);
  bytes_pushed_ += shard.connection->Send(header, {});
  shard.last_error = Unavailable("connected, but not let in yet");
  // After the join itself, so that no heartbeat asks for what cannot be there.
  const std::lock_guard lock(connections_mutex_);
  shard.join = number;
}

// Until the next attempt, at the other server if there is one.
void ParameterServerClient::GiveUpJoin(Shard& shard, absl::Status why) {
  shard.last_error = std::move(why);
  {
    const std::lock_guard lock(connections_mutex_);
    shard.join = 0;
  }
  if (options_.replicated) {
    TurnToOther(shard);
  } else {
    Replace(shard, nullptr, false);
  }
  // One that hangs up at once, because it is just ending, say, is not asked a thousand times a second.
  shard.next_attempt = Now() + (shard.server == 1 ? kReplicaPause : kConnectPause);
}

absl::Status ParameterServerClient::HandleJoinEvent(FrameQueue::Event event, std::span<float> parameters,
                                                    std::vector<FrameQueue::Event>* of_others) {
  const auto found = std::find_if(shards_.begin(), shards_.end(), [&](const auto& shard) {
    return shard->connection != nullptr && shard->connection->id() == event.connection;
  });
  if (found == shards_.end()) return absl::OkStatus();  // a connection that was given up
  Shard& shard = **found;
  if (shard.joined) {
    const bool is_lost = !event.frame && options_.replicated;
    if (is_lost) {
      shard.wanted = true;
      Replace(shard, nullptr, false);
    } else {
      if (finishing_ && event.frame) {
        const auto reply = shard.connection->Decode(event);
        has_finished_ = has_finished_ || (reply.ok() && SaysThatAllIsOver(reply->header));
      }
      of_others->push_back(std::move(event));
    }
    return absl::OkStatus();
  }
  const auto give_up = [&](absl::Status why) {
    GiveUpJoin(shard, std::move(why));
    return absl::OkStatus();
  };
  auto reply = shard.connection->Decode(event);
  if (absl::IsUnavailable(reply.status())) return give_up(reply.status());
  if (!reply.ok()) return Annotate(reply.status(), TaskName(shard.task));
  if (reply->header.has_not_primary()) {
    GiveBack(shard, reply->header.not_primary());
    return give_up(Unavailable("this server does not speak for it"));
  }
  if (reply->header.has_heartbeat()) {
    const ps::HeartbeatReply& heartbeat = reply->header.heartbeat();
    const bool is_lost = heartbeat.unknown() && heartbeat.awaiting() == shard.join;
    return is_lost ? give_up(Unavailable("it does not have what was sent to it")) : absl::OkStatus();
  }
  if (reply->header.request() != shard.join) return absl::OkStatus();
  if (reply->header.has_finish()) {
    // Of a standing server. What it was told last was heard, even if the answer was not.
    if (!finishing_) return give_up(Unavailable("this job is over"));
    has_finished_ = true;
    return absl::OkStatus();
  }
  bytes_pulled_ += reply->bytes;
  if (reply->header.has_error()) {
    const absl::Status error = StatusOf(reply->header.error(), TaskName(shard.task));
    // Cancelled: the join has not come, what came after it has.
    return absl::IsUnavailable(error) || absl::IsCancelled(error) ? give_up(error) : error;
  }
  shard.joined_as = reply->header.join();
  bool is_primary = true;
  if (options_.replicated) {
    const std::lock_guard lock(connections_mutex_);
    is_primary = shard.ballot.Follow(shard.joined_as.view(), shard.server);
  }
  if (!is_primary) return give_up(Unavailable("another server speaks for it now"));
  MUSTER_RETURN_IF_ERROR(ReceiveFloats(shard, *reply, {.parameters = parameters}));
  const std::lock_guard lock(connections_mutex_);
  shard.joined = true;
  shard.awaiting = 0;
  shard.asking = false;
  if (!shard.in_flight) shard.waited_since.reset();
  return absl::OkStatus();
}

// A replicated server answers when all have finished, any other one at once, if nobody can go back.
bool ParameterServerClient::SaysThatAllIsOver(const ps::ServerHeader& answer) const {
  return answer.has_finish() && (options_.replicated || answer.finish().over());
}

// Whatever is asked for, or may have to be; what is in flight there is sent again.
absl::Status ParameterServerClient::JoinAgain() {
  for (const auto& shard : shards_) {
    shard->wanted = !shard->joined && (shard->in_flight || options_.replicated);
    if (shard->wanted) {
      spdlog::warn("{} at {}: there is no connection; connecting again", TaskName(shard->task),
                   AddressOf(*shard));
    }
  }
  std::vector<float> ignored(options_.layout.size());  // the request that is sent again brings the parameters
  MUSTER_RETURN_IF_ERROR(JoinShards(Now() + options_.server_timeout, ignored));
  for (const auto& shard : shards_) {
    shard->last_heard = Now();  // meanwhile nobody listened
    if (!shard->wanted) continue;
    if (!shard->joined) {  // all have finished: it has ended, or need not know
      shard->in_flight.reset();
      const std::lock_guard lock(connections_mutex_);
      shard->waited_since.reset();
      continue;
    }
    if (shard->joined_as.epoch() != epoch_) {
      shard->epoch = 0;
      return absl::CancelledError(TaskName(shard->task) + " was replaced");
    }
    // What has changed since would be of another history.
    if (shard->joined_as.step() < shard->clock.version) {
      return DataLoss("%s was at step %d and is at step %d: it has lost updates", TaskName(shard->task),
                      shard->clock.version, shard->joined_as.step());
    }
    if (shard->in_flight) Send(*shard);
  }
  return absl::OkStatus();
}

// What is in flight, under a new number, or the question whether it may be sent.
void ParameterServerClient::Send(Shard& shard) {
  const Request& request = *shard.in_flight;
  shard.in_flight->header.set_version(kWireVersion);
  shard.in_flight->header.set_request(++last_request_);
  auto bytes = static_cast<int64_t>(request.borrowed.size_bytes());
  for (const grpc::Slice& slice : request.payload) bytes += static_cast<int64_t>(slice.size());
  const auto ask_above = static_cast<int64_t>(shard.joined_as.ask_above());
  if (ask_above == 0 || bytes <= ask_above || !request.header.has_push()) return SendWhole(shard);
  ps::ClientHeader ask;
  ask.set_version(kWireVersion);
  ask.set_request(request.header.request());
  ask.mutable_ask()->set_bytes(bytes);
  bytes_pushed_ += shard.connection->Send(ask, {});
  SetAwaiting(shard, request.header.request(), /*asking=*/true);
}

// In parts, if the shard takes it so: all of them.
void ParameterServerClient::SendWhole(Shard& shard) {
  Request& request = *shard.in_flight;
  shard.sent_at = Now();
  shard.early = 0;
  const size_t floats = request.borrowed.size();
  size_t part = shard.connection->is_local() ? 0 : shard.joined_as.part_floats();
  if (part == 0 || !request.header.has_push()) part = floats;
  if (request.header.has_push()) {
    size_t bytes = request.borrowed.size_bytes();
    for (const grpc::Slice& slice : request.payload) bytes += slice.size();
    request.header.mutable_push()->set_floats(part < floats ? bytes / sizeof(float) : 0);
  }
  ps::ClientHeader of_part;
  of_part.set_version(kWireVersion);
  of_part.set_request(request.header.request());
  size_t begin = 0;
  do {
    const size_t end = std::min(floats, begin + part);
    std::vector<grpc::Slice> payload = {
        BorrowFloats(request.borrowed.subspan(begin, end - begin), shard.connection->Lease())};
    if (end == floats) payload.insert(payload.end(), request.payload.begin(), request.payload.end());
    of_part.mutable_part()->set_begin(begin);
    bytes_pushed_ += shard.connection->Send(begin == 0 ? request.header : of_part, payload);
    begin = end;
  } while (begin < floats);
  SetAwaiting(shard, request.header.request(), /*asking=*/false);
}

// After the request itself, so that no heartbeat asks for what cannot be there.
void ParameterServerClient::SetAwaiting(Shard& shard, uint64_t request, bool asking) {
  const std::lock_guard lock(connections_mutex_);
  shard.awaiting = request;
  shard.asking = asking;
  shard.last_heard = Now();
  shard.waits_for.clear();
}

// What is not the next is left out: the answer will say that it is missing.
void ParameterServerClient::ReceivePart(Shard& shard, const ShardReply& reply,
                                        const Destination& destination) {
  const auto begin = static_cast<int64_t>(reply.header.part().begin());
  const int64_t count = reply.payload.size_bytes() / int64_t{sizeof(float)};
  if (begin != shard.early || begin + count > shard.range.size() || destination.parameters.empty()) return;
  reply.payload.Part(0, count).CopyTo(destination.parameters.subspan(shard.range.begin + begin, count));
  shard.early += count;
}

// Copies what a shard sent to its places: its range of the parameters, as far as it was not there early, then
// its rows.
absl::Status ParameterServerClient::ReceiveFloats(const Shard& shard, const ShardReply& reply,
                                                  const Destination& destination) {
  const int index = shard.task.index;
  const auto early = static_cast<int64_t>(reply.header.push().early());
  const std::span<float> own =
      destination.parameters.empty()
          ? std::span<float>()
          : destination.parameters.subspan(shard.range.begin, shard.range.size()).subspan(early);
  std::vector<float> rows(destination.rows == nullptr ? 0 : destination.rows->size(index));
  const absl::Status status = DecodeFloats(reply.header.encoding(), reply.payload, own, rows);
  if (!status.ok()) return Internal("%s: %s", TaskName(shard.task), std::string(status.message()));
  if (!rows.empty()) destination.rows->Scatter(index, rows, destination.row_values);
  return absl::OkStatus();
}

// What one event means for what is in flight: its answer, or nothing yet.
absl::StatusOr<std::optional<ShardReply>> ParameterServerClient::HandleEvent(const FrameQueue::Event& event,
                                                                             Shard** from) {
  const auto found = std::find_if(shards_.begin(), shards_.end(), [&](const auto& shard) {
    return shard->connection != nullptr && shard->connection->id() == event.connection;
  });
  if (found == shards_.end()) return std::nullopt;  // a connection that was given up
  *from = found->get();
  Shard& shard = **from;
  auto reply = shard.connection->Decode(event);
  if (absl::IsUnavailable(reply.status())) {
    Replace(shard, nullptr, false);
    // It may have ended, and need never be asked again. But of a replicated shard the backup waits for the
    // workers, even if this one does not wait for it.
    if (shard.in_flight || options_.replicated) MUSTER_RETURN_IF_ERROR(JoinAgain());
    return std::nullopt;
  }
  if (!reply.ok()) return Annotate(reply.status(), TaskName(shard.task));
  shard.last_heard = Now();
  if (reply->header.has_not_primary()) {
    GiveBack(shard, reply->header.not_primary());
    TurnToOther(shard);
    MUSTER_RETURN_IF_ERROR(JoinAgain());
    return std::nullopt;
  }
  if (reply->header.has_heartbeat()) {
    HandleHeartbeat(shard, reply->header.heartbeat());
    return std::nullopt;
  }
  if (!shard.in_flight || reply->header.request() != shard.awaiting) return std::nullopt;
  if (reply->header.has_go_ahead()) {
    if (shard.asking) SendWhole(shard);
    return std::nullopt;
  }
  bytes_pulled_ += reply->bytes;
  if (reply->header.has_error()) return StatusOf(reply->header.error(), TaskName(shard.task));
  return *std::move(reply);
}

void ParameterServerClient::TurnToOther(Shard& shard) {
  Replace(shard, nullptr, false);
  const std::lock_guard lock(connections_mutex_);
  shard.server = 1 - shard.server;
}

// A server asks for a promise. It is given at once, whatever this worker is doing: others may wait for it.
bool ParameterServerClient::TakeProposal(const FrameQueue::Event& event) {
  constexpr size_t kLargest = 64;  // bytes
  if (!event.frame || event.frame->Length() > kLargest) return false;
  ps::ServerHeader header;
  FloatPayload none;
  if (!DecodeFrame(*event.frame, &header, &none).ok() || !header.has_propose()) return false;
  const ps::Propose& propose = header.propose();
  const std::lock_guard lock(connections_mutex_);
  for (const auto& shard : shards_) {
    if (shard->connection == nullptr || shard->connection->id() != event.connection) continue;
    const int primary = propose.is_primary() ? shard->server : 1 - shard->server;
    if (!shard->ballot.Promise(propose.view(), shard->server, propose.earlier(), primary,
                               propose.is_sole())) {
      break;
    }
    ps::ClientHeader promise;
    promise.set_version(kWireVersion);
    promise.mutable_promise()->set_view(propose.view());
    shard->connection->Send(promise, {});
  }
  return true;
}

void ParameterServerClient::GiveBack(Shard& shard, const ps::NotPrimary& reply) {
  const std::lock_guard lock(connections_mutex_);
  shard.ballot.GiveBack(reply.promised(), shard.server);
}

// All workers' gradients may be on their way to a server in front of a heartbeat, and its parameters to them.
Duration ParameterServerClient::PatienceWith(const Shard& shard) const {
  const int64_t bytes = shard.range.size() * static_cast<int64_t>(sizeof(float));
  return options_.replica_silence + TimeToSend(bytes * (options_.cluster.rank_count() + 1));
}

absl::Status ParameterServerClient::LeaveSilentServers() {
  bool any = false;
  for (const auto& shard : shards_) {
    if (!shard->in_flight || Now() - shard->last_heard <= PatienceWith(*shard)) continue;
    spdlog::warn("{} at {}: silent for {}", TaskName(shard->task), AddressOf(*shard),
                 FormatAge(Now() - shard->last_heard));
    TurnToOther(*shard);
    any = true;
  }
  return any ? JoinAgain() : absl::OkStatus();
}

void ParameterServerClient::HandleHeartbeat(Shard& shard, const ps::HeartbeatReply& reply) {
  if (!shard.in_flight || reply.awaiting() != shard.awaiting) return;
  shard.waits_for = reply.waits_for();
  if (!reply.unknown()) return;
  spdlog::warn("{} does not have what was sent to it; sending it again", TaskName(shard.task));
  Send(shard);
}

// Again as soon as a cause is known.
void ParameterServerClient::LogWait(TimePoint since) {
  if (Now() - since < kStallAfter) return;
  const auto is_silent = [](const Shard& shard) { return Now() - shard.last_heard > kSilence; };
  const bool has_cause = std::any_of(shards_.begin(), shards_.end(), [&](const auto& shard) {
    return shard->in_flight && (is_silent(*shard) || !shard->waits_for.empty());
  });
  const bool is_news = has_cause && logged_without_cause_;
  if (Now() < next_wait_log_ && !is_news) return;
  logged_without_cause_ = !has_cause;
  next_wait_log_ = Now() + kStallAgainAfter;
  for (const auto& shard : shards_) {
    if (!shard->in_flight) continue;
    const std::string why = is_silent(*shard)          ? "silent for " + FormatAge(Now() - shard->last_heard)
                            : shard->waits_for.empty() ? "no answer for " + FormatAge(Now() - since)
                                                       : shard->waits_for;
    spdlog::warn("waiting for {} at {}: {}", TaskName(shard->task), AddressOf(*shard), why);
  }
}

// `patient`: as long as servers show that they live, since others may have hours of work left.
absl::StatusOr<std::vector<ps::ServerHeader>> ParameterServerClient::Exchange(
    std::vector<std::optional<Request>> requests, const Destination& destination, bool patient) {
  std::vector<ps::ServerHeader> replies(shards_.size());
  for (size_t i = 0; i < shards_.size(); ++i) {
    shards_[i]->in_flight = std::move(requests[i]);
    if (shards_[i]->in_flight) {
      const std::lock_guard lock(connections_mutex_);
      shards_[i]->waited_since = Now();
    }
    if (!shards_[i]->in_flight || !shards_[i]->joined) continue;
    // The answer would go the old way. To the last request that would be its only way: the server ends.
    shards_[i]->connection->has_moved() ? Replace(*shards_[i], nullptr, false) : Send(*shards_[i]);
  }
  const auto is_lost = [](const auto& shard) { return shard->in_flight && !shard->joined; };
  if (std::any_of(shards_.begin(), shards_.end(), is_lost)) MUSTER_RETURN_IF_ERROR(JoinAgain());
  const TimePoint start = Now();
  const auto is_waiting = [](const auto& shard) { return shard->in_flight.has_value(); };
  const auto is_overdue = [&](const auto& shard) {
    return is_waiting(shard) && Now() >= (patient ? shard->last_heard : start) + options_.answer_timeout;
  };
  while (std::any_of(shards_.begin(), shards_.end(), is_waiting)) {
    const auto overdue = std::find_if(shards_.begin(), shards_.end(), is_overdue);
    if (overdue != shards_.end()) {
      return DeadlineExceeded("%s: %s has not answered for %s", TaskName(options_.task),
                              TaskName((*overdue)->task), FormatAge(Now() - start));
    }
    if (options_.interruption) MUSTER_RETURN_IF_ERROR(options_.interruption());
    // What has come is listened to first.
    if (options_.replicated && queue_->empty()) MUSTER_RETURN_IF_ERROR(LeaveSilentServers());
    const auto event = queue_->Pop(Now() + std::min(kHeartbeatEvery, options_.answer_timeout));
    LogWait(start);
    if (!event) continue;
    Shard* shard = nullptr;
    auto reply = HandleEvent(*event, &shard);
    if (!reply.ok()) return Annotate(reply.status(), TaskName(options_.task));
    if (!*reply) continue;
    const ps::ServerHeader& header = (*reply)->header;
    if (header.has_part()) {
      ReceivePart(*shard, **reply, destination);
      continue;
    }
    if (header.push().early() > static_cast<uint64_t>(shard->early)) {
      spdlog::warn("parts of what {} sent are lost; asking again", TaskName(shard->task));
      Send(*shard);
      continue;
    }
    floats_early_ += header.push().early();
    MUSTER_RETURN_IF_ERROR(ReceiveFloats(*shard, **reply, destination));
    // Before the server had it, if it is not known better.
    const auto held = std::chrono::microseconds(std::min(header.held_us(), kMostHeldUs));
    const TimePoint had = std::max(Now() - held, shard->sent_at);
    const TimePoint sent =
        std::clamp(shard->connection->SentAt(header.request()).value_or(had), shard->sent_at, had);
    times_ = {.push = sent - shard->sent_at, .pull = had - sent};
    if (SaysThatAllIsOver(header)) has_finished_ = true;
    if (header.has_push()) {
      const uint64_t version = header.push().step();
      shard->clock = {version, std::max(version, shard->in_flight->header.push().step() + 1)};
    }
    if (header.has_pull() && shard->in_flight->header.pull().parameters()) {
      shard->clock.version = header.pull().step();
      shard->clock.next_step = std::max(shard->clock.next_step, shard->clock.version);
    }
    {
      const std::lock_guard lock(connections_mutex_);
      shard->awaiting = 0;
      shard->asking = false;
      shard->waited_since.reset();
    }
    shard->in_flight.reset();
    replies[shard->task.index] = std::move((*reply)->header);
  }
  return replies;
}

absl::StatusOr<PushResult> ParameterServerClient::PushPull(const Contribution& contribution,
                                                           std::span<float> parameters,
                                                           const RowIndex& next_rows,
                                                           std::span<float> next_row_values) {
  const TimePoint start = Now();
  const std::span<const float> row_gradients = contribution.gradient.subspan(options_.layout.size());
  rows_.Build(contribution.rows);
  next_rows_.Build(next_rows);
  std::vector<std::optional<Request>> requests(shards_.size());
  ++sequence_;
  if (!encoder_.is_identity()) encoder_.Begin(contribution.gradient);
  for (int i = 0; i < static_cast<int>(requests.size()); ++i) {
    Request& request = requests[i].emplace();
    ps::Push* push = request.header.mutable_push();
    push->set_sequence(sequence_);
    push->set_step(step_);
    push->set_version(shards_[i]->clock.version);
    push->set_samples(contribution.samples);
    push->set_loss_sum(contribution.loss_sum);
    *push->mutable_rows() = rows_.rows(i);
    *push->mutable_next_rows() = next_rows_.rows(i);
    const LayoutRange range = shards_[i]->range;
    const auto of_rows = std::make_shared<std::vector<float>>(rows_.size(i));
    rows_.Gather(i, row_gradients, *of_rows);
    if (encoder_.is_identity()) {
      request.borrowed = contribution.gradient.subspan(range.begin, range.size());
      request.payload.push_back(ShareFloats(of_rows));
    } else {
      EncodedFloats encoded = encoder_.Encode(range, *of_rows);
      *request.header.mutable_encoding() = std::move(encoded.encoding);
      request.payload = std::move(encoded.payload);
    }
  }
  const Destination destination{.parameters = parameters, .rows = &next_rows_, .row_values = next_row_values};
  const Duration encoding = Now() - start;
  MUSTER_ASSIGN_OR_RETURN(const auto replies, Exchange(std::move(requests), destination));
  ExchangeTimes times = times_;
  MUSTER_RETURN_IF_ERROR(Align(destination));
  times.push += encoding;
  times.wait = std::max(Now() - start - times.push - times.pull, Duration::zero());
  const ps::PushReply& first = replies[0].push();
  constexpr PushOutcome kOutcomes[] = {PushOutcome::kApplied, PushOutcome::kStale, PushOutcome::kDuplicate,
                                       PushOutcome::kHeld};
  return PushResult{.outcome = kOutcomes[std::clamp<int>(first.outcome(), 0, 3)],
                    .step = is_async() ? first.step() : step_,
                    .mean_loss = first.mean_loss(),
                    .samples = first.samples(),
                    .staleness = first.staleness(),
                    .all_samples = first.all_samples(),
                    .times = times};
}

absl::StatusOr<uint64_t> ParameterServerClient::PullRows(const RowIndex& rows, std::span<float> values) {
  next_rows_.Build(rows);
  std::vector<std::optional<Request>> requests(shards_.size());
  for (int i = 0; i < static_cast<int>(requests.size()); ++i) {
    ps::Pull* pull = requests[i].emplace().header.mutable_pull();
    pull->set_at_least(shards_[i]->clock.version);
    pull->set_exact(reads_exactly_);
    *pull->mutable_rows() = next_rows_.rows(i);
  }
  MUSTER_ASSIGN_OR_RETURN(const std::vector<ps::ServerHeader> replies,
                          Exchange(std::move(requests), {.rows = &next_rows_, .row_values = values}));
  uint64_t newest = 0;
  for (const ps::ServerHeader& reply : replies) newest = std::max(newest, reply.pull().step());
  return newest;
}

absl::StatusOr<ps::AwaitFinishedReply> ParameterServerClient::AwaitFinished() {
  std::vector<std::optional<Request>> requests(shards_.size());
  requests[0].emplace().header.mutable_await_finished();
  MUSTER_ASSIGN_OR_RETURN(const auto replies, Exchange(std::move(requests), {}, /*patient=*/true));
  return replies[0].await_finished();
}

absl::StatusOr<ps::AwaitFinishedReply> ParameterServerClient::AwaitOthers(std::span<float> parameters) {
  MUSTER_ASSIGN_OR_RETURN(const ps::AwaitFinishedReply reply, AwaitFinished());
  reads_exactly_ = true;
  std::vector<std::optional<Request>> requests(shards_.size());
  for (auto& request : requests) {
    ps::Pull* pull = request.emplace().header.mutable_pull();
    pull->set_parameters(true);
    // What this worker has contributed to is made by now, or on its way to the shards.
    pull->set_at_least(step_);
    pull->set_exact(true);
  }
  MUSTER_RETURN_IF_ERROR(Exchange(std::move(requests), {.parameters = parameters}).status());
  // A bounded shard may have held contributions when the first answer came.
  if (options_.config.mode() == ps::BOUNDED) return AwaitFinished();
  return reply;
}

void ParameterServerClient::Fail(const std::string& why) {
  Shard& shard = *shards_[0];
  if (shard.connection == nullptr || !shard.joined) return;
  ps::ClientHeader header;
  header.set_version(kWireVersion);
  header.set_request(++last_request_);
  header.mutable_fail()->set_why(why);
  shard.connection->Send(header, {});
  // A process that ends takes with it what it has not sent yet.
  const TimePoint deadline = Now() + kTellTimeout;
  while (const auto event = queue_->Pop(deadline, shard.connection->id())) {
    const auto reply = shard.connection->Decode(*event);
    if (!reply.ok() || reply->header.request() == header.request()) return;
  }
}

absl::Status ParameterServerClient::Finish() {
  finishing_ = true;
  has_finished_ = false;
  std::vector<std::optional<Request>> requests(shards_.size());
  for (auto& request : requests) request.emplace().header.mutable_finish()->set_next_step(step_);
  return Exchange(std::move(requests), {}, /*patient=*/true).status();
}

}  // namespace muster
