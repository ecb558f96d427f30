// How ShardSessions begins sessions, and takes them up again.

#include <algorithm>

#include "base/logging.h"
#include "cluster/replica_view.h"
#include "ps/shard_sessions.h"
#include "ps/wire.h"

namespace muster {
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

}  // namespace

absl::StatusOr<std::vector<ps::JoinReply>> ShardSessions::Join(std::span<float> parameters) {
  const Use use(*this);
  finishing_ = has_finished_ = false;
  kept_ = absl::OkStatus();
  // Servers that were there come back sooner than ones that are still to be started.
  const TimePoint deadline = Now() + (epoch_ == 0 ? options_.connect_timeout : options_.server_timeout);
  for (const auto& shard : shards_) {
    shard->epoch = 0;
    shard->in_flight.reset();
  }
  MUSTER_RETURN_IF_ERROR(JoinEpoch(deadline, parameters));
  std::vector<ps::JoinReply> replies;
  for (const auto& shard : shards_) {
    shard->last_heard = Now();
    replies.push_back(shard->joined_as);
  }
  return replies;
}

// Joins all shards, and again as long as they are not in the same epoch: ps:0 may be a new process as well as
// any other.
absl::Status ShardSessions::JoinEpoch(TimePoint deadline, std::span<float> parameters) {
  while (true) {
    for (const auto& shard : shards_) {
      shard->wanted = shard->epoch != shards_[0]->epoch || shard->epoch == 0;
      if (shard->wanted) Replace(*shard, nullptr, false);
    }
    MUSTER_RETURN_IF_ERROR(JoinShards(deadline, parameters));
    for (const auto& shard : shards_) {
      if (!shard->wanted) continue;
      shard->epoch = shard->joined_as.epoch();
      shard->step = shard->joined_as.step();
    }
    epoch_ = shards_[0]->epoch;
    const auto is_same = [&](const auto& shard) { return shard->epoch == epoch_; };
    if (std::all_of(shards_.begin(), shards_.end(), is_same)) return absl::OkStatus();
    if (Now() >= deadline) return DeadlineExceeded("the servers did not all begin again from one checkpoint");
    shards_[0]->epoch = 0;
    std::this_thread::sleep_for(kConnectPause);
  }
}

// Joins every shard that is wanted, all at the same time: of a replicated one a view may wait for the
// promises of this worker, and for those of others that wait for another shard. What joined shards say
// meanwhile is kept for later.
absl::Status ShardSessions::JoinShards(TimePoint deadline, std::span<float> parameters) {
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
  // One that answers may only wait for another.
  const auto is_silent = [&](const auto& shard) { return is_missing(shard) && shard->join == 0; };
  // Where all are there and wait for others, to which they set a limit themselves, they are waited for as for
  // any answer.
  const auto patience_ends = [&] {
    const auto is_held_up = [&](const auto& shard) { return is_missing(shard) && shard->is_held_up; };
    const bool wait_for_others =
        std::ranges::none_of(shards_, is_silent) && std::ranges::any_of(shards_, is_held_up);
    return wait_for_others ? std::max(deadline, start + options_.answer_timeout) : deadline;
  };
  while (status.ok()) {
    auto missing = std::find_if(shards_.begin(), shards_.end(), is_silent);
    if (missing == shards_.end()) missing = std::find_if(shards_.begin(), shards_.end(), is_missing);
    if (missing == shards_.end() || has_finished_) break;
    for (const auto& shard : shards_) {
      if (!is_missing(shard)) continue;
      status = Interruption();
      if (!status.ok()) break;
      if (shard->join == 0 && Now() >= shard->next_attempt) BeginJoin(*shard, deadline);
      if (shard->join != 0 && Now() >= shard->join_deadline)
        GiveUpJoin(*shard, Unavailable("it does not answer"));
    }
    if (!status.ok()) break;
    if (options_.view->Address(options_.task).empty()) {
      status = Aborted("%s", kHasLeft);
    } else if (Now() >= patience_ends()) {
      status =
          Unavailable("%s at %s has not answered for %.0f s (%s): does it run, and may this host reach it?",
                      TaskName((*missing)->task), AddressOf(**missing), ToSeconds(Now() - start),
                      std::string((*missing)->last_error.message()));
    }
    if (!status.ok()) break;
    if (auto event = queue_->Pop(Now() + kJoinPoll)) {
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

void ShardSessions::BeginJoin(Shard& shard, TimePoint deadline) {
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
  shard.is_held_up = false;
  shard.join_deadline =
      options_.replicated ? Now() + kReplicaJoinTimeout + PatienceWith(shard) : TimePoint::max();
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
  if (options_.view->workers_may_come_and_go()) *join->mutable_ranks() = RanksNow();
  bytes_sent_ += shard.connection->Send(header, {});
  shard.last_error = Unavailable("connected, but not let in yet");
  // After the join itself, so that no heartbeat asks for what cannot be there.
  const std::lock_guard lock(connections_mutex_);
  shard.join = number;
}

// Until the next attempt, at the other server if there is one.
void ShardSessions::GiveUpJoin(Shard& shard, absl::Status why) {
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

absl::Status ShardSessions::HandleJoinEvent(FrameQueue::Event event, std::span<float> parameters,
                                            std::vector<FrameQueue::Event>* of_others) {
  Shard* shard = Find(event.connection);
  if (shard == nullptr) return absl::OkStatus();
  const auto reply = shard->connection->Decode(event);
  if (shard->joined) {
    // It may be what the missing one waits for, if it has not just ended.
    if (!event.frame && (options_.replicated || !finishing_)) {
      shard->wanted = true;
      shard->last_error = reply.status();
      Replace(*shard, nullptr, false);
      return absl::OkStatus();
    }
    if (finishing_ && reply.ok() && SaysThatAllIsOver(reply->header)) has_finished_ = true;
    if (reply.ok() && reply->header.has_error() && reply->header.request() == shard->awaiting) {
      const absl::Status error = StatusOf(reply->header.error(), TaskName(shard->task));
      if (!absl::IsUnavailable(error) && !absl::IsCancelled(error)) return error;
    }
    of_others->push_back(std::move(event));
    return absl::OkStatus();
  }
  const absl::Status status = reply.ok() ? HandleJoinReply(*shard, *reply, parameters) : reply.status();
  if (absl::IsUnavailable(status)) {
    GiveUpJoin(*shard, status);
    return absl::OkStatus();
  }
  return reply.ok() ? status : Annotate(status, TaskName(shard->task));
}

// Unavailable: it is to be tried again.
absl::Status ShardSessions::HandleJoinReply(Shard& shard, const ShardReply& reply,
                                            std::span<float> parameters) {
  const ps::ServerHeader& header = reply.header;
  if (header.has_not_primary()) {
    GiveBack(shard, header.not_primary());
    return Unavailable("this server does not speak for it");
  }
  if (header.has_heartbeat()) {
    const ps::HeartbeatReply& heartbeat = header.heartbeat();
    shard.is_held_up = !heartbeat.waits_for().empty();
    if (shard.is_held_up) shard.last_error = Unavailable("%s", heartbeat.waits_for());
    const bool is_lost = heartbeat.unknown() && heartbeat.awaiting() == shard.join;
    return is_lost ? Unavailable("it does not have what was sent to it") : absl::OkStatus();
  }
  if (header.request() != shard.join) return absl::OkStatus();
  if (header.has_finish()) {
    // Of a standing server. What it was told last was heard, even if the answer was not.
    if (!finishing_) return Unavailable("this job is over");
    has_finished_ = true;
    return absl::OkStatus();
  }
  bytes_received_ += reply.bytes;
  if (header.has_error()) {
    const absl::Status error = StatusOf(header.error(), TaskName(shard.task));
    // The join has not come, what came after it has.
    return absl::IsCancelled(error) ? absl::UnavailableError(error.message()) : error;
  }
  shard.joined_as = header.join();
  bool is_primary = true;
  if (options_.replicated) {
    const std::lock_guard lock(connections_mutex_);
    is_primary = shard.ballot.Follow(shard.joined_as.view(), shard.server);
  }
  if (!is_primary) return Unavailable("another server speaks for it now");
  MUSTER_RETURN_IF_ERROR(ReceiveFloats(shard, reply, {.parameters = parameters}));
  const std::lock_guard lock(connections_mutex_);
  shard.joined = true;
  shard.join = 0;
  shard.awaiting = 0;
  shard.asking = false;
  if (!shard.in_flight) shard.waited_since.reset();
  return absl::OkStatus();
}

// Whatever is asked for, or may have to be; what is in flight there is sent again.
absl::Status ShardSessions::JoinAgain() {
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
    if (shard->joined_as.step() < shard->step) {
      return DataLoss("%s was at step %d and is at step %d: it has lost updates", TaskName(shard->task),
                      shard->step, shard->joined_as.step());
    }
    if (shard->in_flight) Send(*shard);
  }
  return absl::OkStatus();
}

void ShardSessions::Replace(Shard& shard, std::unique_ptr<ShardConnection> connection, bool joined) {
  const std::unique_ptr<ShardConnection> old = [&] {
    const std::lock_guard lock(connections_mutex_);
    shard.joined = joined;
    return std::exchange(shard.connection, std::move(connection));
  }();  // it ends outside of the lock
}

TaskId ShardSessions::ServerOf(const Shard& shard) const {
  const int index = shard.task.index;
  return {Role::kPs, shard.server == 0 ? index : FirstBackupOf(index, static_cast<int>(shards_.size()))};
}

std::string ShardSessions::AddressOf(const Shard& shard) const {
  return options_.view->Address(ServerOf(shard));
}

}  // namespace muster
