#include "ps/shard_sessions.h"

#include <algorithm>
#include <condition_variable>

#include "base/logging.h"
#include "base/random.h"
#include "ps/encoding.h"
#include "ps/wire.h"

namespace muster {
namespace {

constexpr Duration kHeartbeatEvery = std::chrono::milliseconds(250);
constexpr Duration kLookEvery = std::chrono::milliseconds(250);  // for sessions that have broken
constexpr Duration kTellTimeout = std::chrono::seconds(2);
constexpr Duration kSilence = std::chrono::seconds(2);     // of a server that answers heartbeats
constexpr Duration kStandstill = std::chrono::seconds(1);  // of this process
constexpr uint64_t kMostHeldUs = 1'000'000'000'000;        // days: whatever a server says
constexpr Duration kStallAgainAfter = std::chrono::seconds(30);

// Runs `act` again and again until it is to stop.
void Repeat(const std::stop_token& stop, Duration every, const std::function<void()>& act) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  while (!wake.wait_for(lock, stop, every, [&] { return stop.stop_requested(); })) act();
}

}  // namespace

ShardSessions::ShardSessions(ParameterServerClientOptions options)
    : options_(std::move(options)),
      uuid_(RandomName(20)),
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
  if (options_.replicated) {
    keeper_ = std::jthread([this](const std::stop_token& stop) { Keep(stop); });
  }
}

ShardSessions::~ShardSessions() {
  ++asking_;  // the keeper lets go
  keeper_ = {};
  for (const auto& shard : shards_) Replace(*shard, nullptr, false);  // after this nothing comes any more
}

std::vector<Duration> ShardSessions::waiting() {
  const std::lock_guard lock(connections_mutex_);
  std::vector<Duration> waiting;
  for (const auto& shard : shards_) {
    waiting.push_back(shard->waited_since ? Now() - *shard->waited_since : Duration());
  }
  return waiting;
}

// For servers that stand, which see no cluster file of the job.
ps::Ranks ShardSessions::RanksNow() const {
  const ClusterView::Ranks now = options_.view->ranks();
  ps::Ranks ranks;
  ranks.set_generation(now.generation);
  ranks.set_count(static_cast<uint32_t>(now.count));
  return ranks;
}

void ShardSessions::Beat(const std::stop_token& stop) {
  Repeat(stop, kHeartbeatEvery, [this] {
    const std::lock_guard connections(connections_mutex_);
    for (const auto& shard : shards_) {
      if (shard->connection == nullptr || (!shard->joined && shard->join == 0)) continue;
      ps::ClientHeader header;
      header.set_version(kWireVersion);
      header.mutable_heartbeat()->set_awaiting(shard->joined ? shard->awaiting : shard->join);
      header.mutable_heartbeat()->set_asking(shard->joined && shard->asking);
      if (options_.view->workers_may_come_and_go()) {
        *header.mutable_heartbeat()->mutable_ranks() = RanksNow();
      }
      shard->connection->Send(header, {});
    }
  });
}

// While its caller computes, evaluates, or waits for others who may wait for its promise.
void ShardSessions::Keep(const std::stop_token& stop) {
  Repeat(stop, kLookEvery, [this] {
    const std::unique_lock use(use_, std::try_to_lock);
    if (!use || !IsIdle()) return;
    is_keeping_ = true;
    absl::Status status;
    try {
      status = Tend();
    } catch (const std::bad_alloc&) {
      status = absl::ResourceExhaustedError("not enough memory to connect to servers again");
    }
    is_keeping_ = false;
    // Who asks next waits for that server anew, and reports it.
    if (!absl::IsUnavailable(status)) kept_ = std::move(status);
  });
}

bool ShardSessions::IsIdle() const {
  const auto is_asked = [](const auto& shard) { return shard->in_flight.has_value(); };
  return asking_ == 0 && epoch_ != 0 && !finishing_ && kept_.ok() && std::ranges::none_of(shards_, is_asked);
}

absl::Status ShardSessions::Tend() {
  NoteListening();
  while (const auto event = queue_->Pop(TimePoint())) {
    Shard* const shard = Find(event->connection);
    if (shard != nullptr) MUSTER_RETURN_IF_ERROR(HandleEvent(*event, *shard).status());
  }
  MUSTER_RETURN_IF_ERROR(LeaveSilentServers());
  const bool are_joined = std::ranges::all_of(shards_, [](const auto& shard) { return shard->joined; });
  return are_joined ? absl::OkStatus() : JoinAgain();
}

// Who has stood still itself knows nothing of others' silence.
void ShardSessions::NoteListening() {
  const TimePoint before = std::exchange(listened_at_, Now());
  if (listened_at_ - before < kStandstill) return;
  for (const auto& shard : shards_) shard->last_heard = listened_at_;
}

// Why whoever waits is to do so no longer.
absl::Status ShardSessions::Interruption() {
  if (is_keeping_) return asking_ > 0 ? Unavailable("something is asked") : absl::OkStatus();
  return options_.interruption ? options_.interruption() : absl::OkStatus();
}

absl::StatusOr<ShardAnswers> ShardSessions::Exchange(ShardRequests requests, const AnswerTarget& target,
                                                     Patience patience) {
  const Use use(*this);
  return ExchangeInUse(std::move(requests), target, patience);
}

absl::StatusOr<ShardAnswers> ShardSessions::ExchangeInUse(ShardRequests requests, const AnswerTarget& target,
                                                          Patience patience) {
  MUSTER_RETURN_IF_ERROR(Ask(std::move(requests)));
  ShardAnswers answers{.headers = std::vector<ps::ServerHeader>(shards_.size())};
  const TimePoint start = Now();
  const auto is_waiting = [](const auto& shard) { return shard->in_flight.has_value(); };
  const auto is_overdue = [&](const auto& shard) {
    const TimePoint since = patience == Patience::kLife ? shard->last_heard : start;
    return is_waiting(shard) && Now() >= since + options_.answer_timeout;
  };
  while (std::any_of(shards_.begin(), shards_.end(), is_waiting)) {
    if (std::any_of(shards_.begin(), shards_.end(), is_overdue)) {
      return DeadlineExceeded("%s: %s has not answered for %s", TaskName(options_.task),
                              TaskName(LongestSilent().task), FormatAge(Now() - start));
    }
    MUSTER_RETURN_IF_ERROR(Interruption());
    NoteListening();
    // What has come is listened to first.
    if (options_.replicated && queue_->empty()) MUSTER_RETURN_IF_ERROR(LeaveSilentServers());
    const auto event = queue_->Pop(Now() + std::min(kHeartbeatEvery, options_.answer_timeout));
    LogWait(start);
    Shard* shard = event ? Find(event->connection) : nullptr;
    if (shard == nullptr) continue;
    auto reply = HandleEvent(*event, *shard);
    if (!reply.ok()) return Annotate(reply.status(), TaskName(options_.task));
    if (*reply) MUSTER_RETURN_IF_ERROR(TakeAnswer(*shard, **std::move(reply), target, &answers));
  }
  return answers;
}

absl::Status ShardSessions::Ask(ShardRequests requests) {
  MUSTER_RETURN_IF_ERROR(std::exchange(kept_, absl::OkStatus()));
  bool is_lost = false;
  for (size_t i = 0; i < shards_.size(); ++i) {
    Shard& shard = *shards_[i];
    shard.in_flight = std::move(requests[i]);
    if (!shard.in_flight) {
      is_lost = is_lost || (options_.replicated && !shard.joined);  // the keeper was not done with it
      continue;
    }
    {
      const std::lock_guard lock(connections_mutex_);
      shard.waited_since = Now();
    }
    // The answer would go the old way. To the last request that would be its only way: the server ends.
    if (shard.joined && shard.connection->has_moved()) Replace(shard, nullptr, false);
    if (shard.joined) {
      Send(shard);
    } else {
      is_lost = true;
    }
  }
  return is_lost ? JoinAgain() : absl::OkStatus();
}

// Of those that have not answered: the others may only wait for it.
const ShardSessions::Shard& ShardSessions::LongestSilent() const {
  const Shard* longest = nullptr;
  for (const auto& shard : shards_) {
    if (!shard->in_flight) continue;
    if (longest == nullptr || shard->last_heard < longest->last_heard) longest = shard.get();
  }
  MUSTER_CHECK(longest != nullptr);
  return *longest;
}

// What is in flight, under a new number, or the question whether it may be sent.
void ShardSessions::Send(Shard& shard) {
  const ShardRequest& request = *shard.in_flight;
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
  bytes_sent_ += shard.connection->Send(ask, {});
  SetAwaiting(shard, request.header.request(), /*asking=*/true);
}

// In parts, if the shard takes it so: all of them.
void ShardSessions::SendWhole(Shard& shard) {
  ShardRequest& request = *shard.in_flight;
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
    bytes_sent_ += shard.connection->Send(begin == 0 ? request.header : of_part, payload);
    begin = end;
  } while (begin < floats);
  SetAwaiting(shard, request.header.request(), /*asking=*/false);
}

// After the request itself, so that no heartbeat asks for what cannot be there.
void ShardSessions::SetAwaiting(Shard& shard, uint64_t request, bool asking) {
  const std::lock_guard lock(connections_mutex_);
  shard.awaiting = request;
  shard.asking = asking;
  shard.last_heard = Now();
  shard.waits_for.clear();
}

// Null: of a connection that was given up.
ShardSessions::Shard* ShardSessions::Find(uint64_t connection) {
  for (const auto& shard : shards_) {
    if (shard->connection != nullptr && shard->connection->id() == connection) return shard.get();
  }
  return nullptr;
}

// What one event means for what is in flight: its answer, or a part of that, or nothing yet.
absl::StatusOr<std::optional<ShardReply>> ShardSessions::HandleEvent(const FrameQueue::Event& event,
                                                                     Shard& shard) {
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
  bytes_received_ += reply->bytes;
  if (reply->header.has_error()) return StatusOf(reply->header.error(), TaskName(shard.task));
  return *std::move(reply);
}

void ShardSessions::HandleHeartbeat(Shard& shard, const ps::HeartbeatReply& reply) {
  if (!shard.in_flight || reply.awaiting() != shard.awaiting) return;
  shard.waits_for = reply.waits_for();
  if (!reply.unknown()) return;
  spdlog::warn("{} does not have what was sent to it; sending it again", TaskName(shard.task));
  Send(shard);
}

absl::Status ShardSessions::TakeAnswer(Shard& shard, ShardReply reply, const AnswerTarget& target,
                                       ShardAnswers* answers) {
  const ps::ServerHeader& header = reply.header;
  if (header.has_part()) {
    ReceivePart(shard, reply, target);
    return absl::OkStatus();
  }
  if (header.push().early() > static_cast<uint64_t>(shard.early)) {
    spdlog::warn("parts of what {} sent are lost; asking again", TaskName(shard.task));
    Send(shard);
    return absl::OkStatus();
  }
  floats_early_ += header.push().early();
  MUSTER_RETURN_IF_ERROR(ReceiveFloats(shard, reply, target));
  // Before the server had it, if it is not known better.
  const auto held = std::chrono::microseconds(std::min(header.held_us(), kMostHeldUs));
  const TimePoint had = std::max(Now() - held, shard.sent_at);
  const TimePoint sent =
      std::clamp(shard.connection->SentAt(header.request()).value_or(had), shard.sent_at, had);
  answers->times = {.push = sent - shard.sent_at, .pull = had - sent};
  if (SaysThatAllIsOver(header)) has_finished_ = true;
  if (header.has_push()) shard.step = header.push().step();
  if (header.has_pull() && shard.in_flight->header.pull().parameters()) shard.step = header.pull().step();
  {
    const std::lock_guard lock(connections_mutex_);
    shard.awaiting = 0;
    shard.asking = false;
    shard.waited_since.reset();
  }
  shard.in_flight.reset();
  answers->headers[shard.task.index] = std::move(reply.header);
  return absl::OkStatus();
}

// What is not the next is left out: the answer will say that it is missing.
void ShardSessions::ReceivePart(Shard& shard, const ShardReply& reply, const AnswerTarget& target) {
  const auto begin = static_cast<int64_t>(reply.header.part().begin());
  const int64_t count = reply.payload.size_bytes() / int64_t{sizeof(float)};
  if (begin != shard.early || begin + count > shard.range.size() || target.parameters.empty()) return;
  reply.payload.Part(0, count).CopyTo(target.parameters.subspan(shard.range.begin + begin, count));
  shard.early += count;
}

// Copies what a shard sent to its places: its range of the parameters, as far as it was not there early, then
// its rows.
absl::Status ShardSessions::ReceiveFloats(const Shard& shard, const ShardReply& reply,
                                          const AnswerTarget& target) {
  const int index = shard.task.index;
  const auto early = static_cast<int64_t>(reply.header.push().early());
  const std::span<float> own =
      target.parameters.empty()
          ? std::span<float>()
          : target.parameters.subspan(shard.range.begin, shard.range.size()).subspan(early);
  std::vector<float> rows(target.rows == nullptr ? 0 : target.rows->size(index));
  const absl::Status status = DecodeFloats(reply.header.encoding(), reply.payload, own, rows);
  if (!status.ok()) return Internal("%s: %s", TaskName(shard.task), std::string(status.message()));
  if (!rows.empty()) target.rows->Scatter(index, rows, target.row_values);
  return absl::OkStatus();
}

// A replicated server answers when all have finished, any other one at once, if nobody can go back.
bool ShardSessions::SaysThatAllIsOver(const ps::ServerHeader& answer) const {
  return answer.has_finish() && (options_.replicated || answer.finish().over());
}

// Again as soon as a cause is known.
void ShardSessions::LogWait(TimePoint since) {
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

absl::Status ShardSessions::Finish(uint64_t next_step) {
  const Use use(*this);
  finishing_ = true;
  has_finished_ = false;
  ShardRequests requests(shards_.size());
  for (auto& request : requests) request.emplace().header.mutable_finish()->set_next_step(next_step);
  return ExchangeInUse(std::move(requests), {}, Patience::kLife).status();
}

void ShardSessions::Fail(const std::string& why) {
  const Use use(*this);
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

// A server asks for a promise. It is given at once, whatever this worker is doing: others may wait for it.
bool ShardSessions::TakeProposal(const FrameQueue::Event& event) {
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

void ShardSessions::GiveBack(Shard& shard, const ps::NotPrimary& reply) {
  const std::lock_guard lock(connections_mutex_);
  shard.ballot.GiveBack(reply.promised(), shard.server);
}

// All workers' gradients may be on their way to a server in front of a heartbeat, and its parameters to them.
Duration ShardSessions::PatienceWith(const Shard& shard) const {
  const int64_t bytes = shard.range.size() * static_cast<int64_t>(sizeof(float));
  return options_.replica_silence + TimeToSend(bytes * (options_.cluster.rank_count() + 1));
}

// Also one that this worker asks for nothing, since others may, but these are to notice it first.
absl::Status ShardSessions::LeaveSilentServers() {
  bool any = false;
  for (const auto& shard : shards_) {
    const int turns = shard->in_flight ? 1 : 2;
    if (!shard->joined || Now() - shard->last_heard <= turns * PatienceWith(*shard)) continue;
    spdlog::warn("{} at {}: silent for {}", TaskName(shard->task), AddressOf(*shard),
                 FormatAge(Now() - shard->last_heard));
    TurnToOther(*shard);
    any = true;
  }
  return any ? JoinAgain() : absl::OkStatus();
}

void ShardSessions::TurnToOther(Shard& shard) {
  Replace(shard, nullptr, false);
  const std::lock_guard lock(connections_mutex_);
  shard.server = 1 - shard.server;
}

}  // namespace muster
