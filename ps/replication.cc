#include "ps/replication.h"

#include <algorithm>
#include <cstring>

#include "base/logging.h"
#include "ps/shard_server.h"

namespace muster {
namespace {

constexpr Duration kFirstConnectTimeout = std::chrono::milliseconds(300);
constexpr Duration kMostConnectTimeout = std::chrono::seconds(2);  // Stop() waits for it
constexpr Duration kPause = std::chrono::milliseconds(50);
constexpr Duration kSayWaitingAfter = std::chrono::seconds(3);
constexpr Duration kSayWaitingAgainAfter = std::chrono::seconds(30);
constexpr Duration kPingEvery = std::chrono::milliseconds(200);
constexpr Duration kProposeEvery = std::chrono::milliseconds(500);
constexpr size_t kPieceBytes = 4 << 20;
constexpr uint64_t kMaxBaseBytes = uint64_t{1} << 40;
constexpr Duration kBaseTimeout = std::chrono::seconds(10);  // for one sign of life while it is made

std::vector<double> RankVotes(const ReplicationOptions& options) {
  return VotesOf(options.cluster, options.shard_index).ranks;
}

double OwnVote(const ReplicationOptions& options) {
  const ReplicaVotes votes = VotesOf(options.cluster, options.shard_index);
  return options.own.index == options.shard_index ? votes.primary : votes.backup;
}

}  // namespace

Replication::Replication(ReplicationOptions options, FrameServer* frames, Outbox* outbox, Host* host,
                         std::mutex* mutex)
    : options_(std::move(options)),
      frames_(frames),
      outbox_(outbox),
      host_(host),
      mutex_(*mutex),
      view_(RankVotes(options_), OwnVote(options_)),
      connect_timeout_(kFirstConnectTimeout),
      thread_([this](const std::stop_token& stop) { Run(stop); }) {}

void Replication::Stop() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

// What is on its way in front of an answer takes its time, too.
Duration Replication::Patience() const {
  if (streams_ && !in_sync_) return kBaseTimeout;
  const int64_t bytes = shard_ == nullptr
                            ? host_->FrameBytes()
                            : shard_->shard->shard().range().size() * static_cast<int64_t>(sizeof(float));
  return options_.silence + TimeToSend(bytes);
}

bool Replication::has_finished() const {
  return shard_ != nullptr && static_cast<int>(shard_->finished.size()) == options_.cluster.rank_count();
}

void Replication::Run(const std::stop_token& stop) {
  TimePoint next_word = Now() + kSayWaitingAfter;
  while (!stop.stop_requested()) {
    bool wants_connection;
    {
      const std::lock_guard lock(mutex_);
      wants_connection = WantsConnection();
    }
    if (wants_connection) {
      absl::Status status;
      try {
        status = Converse(stop);
      } catch (const std::bad_alloc&) {
        const std::lock_guard lock(mutex_);
        connection_ = nullptr;
        host_->OnEnd(OutOfMemory());
        return;
      }
      if (stop.stop_requested()) return;
      const std::lock_guard lock(mutex_);
      if (in_sync_) {
        spdlog::warn("{}: lost {}: {}", options_.name, TaskName(options_.partner),
                     std::string(status.message()));
      }
      is_heard_ = streams_ = in_sync_ = drop_ = false;
      offered_ = 0;
      outbox_->Resume();
      // A backup by now is in touch by its primary's connection.
      if (view_.role() != ReplicaRole::kBackup) OnOutOfTouch();
      // It may stand before its job, for as long as it takes.
      if (view_.role() == ReplicaRole::kNone && Now() >= next_word) {
        next_word = Now() + kSayWaitingAgainAfter;
        spdlog::warn("{}: waits for {}, which may have this shard: {}", options_.name,
                     TaskName(options_.partner), std::string(status.message()));
      }
    }
    std::this_thread::sleep_for(kPause);
  }
}

// A primary looks for a backup. So does the first server of the shard when it has just started: another
// process of it may have been the primary.
bool Replication::WantsConnection() {
  const bool is_first = options_.own.index == options_.shard_index;
  return is_primary() || (is_first && view_.role() == ReplicaRole::kNone && view_.view() == 0 && !stream_);
}

// Over one connection. Returns why it is over.
absl::Status Replication::Converse(const std::stop_token& stop) {
  const TimePoint start = Now();
  auto connected = ShardConnection::Connect(options_.view, options_.partner, options_.tls, options_.transport,
                                            start + connect_timeout_);
  // On a long way, or where there is much to do, it takes longer.
  const bool is_late = !connected.ok() && Now() - start >= connect_timeout_;
  connect_timeout_ = is_late ? std::min(2 * connect_timeout_, kMostConnectTimeout) : kFirstConnectTimeout;
  MUSTER_ASSIGN_OR_RETURN(const auto connection, std::move(connected));
  absl::Status over;
  {
    const std::lock_guard lock(mutex_);
    if (!WantsConnection()) return absl::CancelledError("it is the backup by now");
    connection_ = connection.get();
    last_sent_ = 0;
    SayHello();
  }
  for (TimePoint last_heard = Now(); over.ok() && !stop.stop_requested();) {
    const auto reply = connection->Receive(Now() + kPingEvery);
    const std::lock_guard lock(mutex_);
    if (reply.ok()) {
      last_heard = Now();
      replication::Answer answer;
      if (reply->header.has_error()) {
        over = StatusOf(reply->header.error(), TaskName(options_.partner));
      } else if (!reply->header.replication().empty() &&
                 answer.ParseFromString(reply->header.replication())) {
        OnAnswer(answer);
      }
    } else if (absl::IsDeadlineExceeded(reply.status())) {
      SendPing();
      if (Now() - last_heard > Patience()) {
        over = Unavailable("silent for %s", FormatAge(Now() - last_heard));
      }
    } else {
      over = reply.status();
    }
    if (over.ok() && drop_) over = absl::CancelledError("another view");
  }
  const std::lock_guard lock(mutex_);
  connection_ = nullptr;
  return over;
}

void Replication::Send(replication::Message message, const std::vector<grpc::Slice>& payload) {
  if (connection_ == nullptr) return;
  message.set_order(++last_sent_);
  ps::ClientHeader header;
  header.set_version(kWireVersion);
  header.set_replication(message.SerializeAsString());
  connection_->Send(header, payload);
}

void Replication::SayHello() {
  replication::Message hello;
  *hello.mutable_hello() = OwnHello();
  Send(hello);
}

replication::Hello Replication::OwnHello() const {
  replication::Hello hello;
  hello.set_shard_index(static_cast<uint32_t>(options_.shard_index));
  hello.set_shard_count(static_cast<uint32_t>(options_.cluster.ps.size()));
  hello.set_generation(options_.generation);
  hello.set_role(static_cast<uint32_t>(view_.role()));
  hello.set_view(view_.view());
  return hello;
}

void Replication::OnAnswer(const replication::Answer& answer) {
  if (answer.has_hello()) {
    // A backup that is ahead has followed an offer of this server.
    const bool speaks = answer.hello().role() == static_cast<uint32_t>(ReplicaRole::kPrimary);
    const bool has_shard = answer.hello().role() != static_cast<uint32_t>(ReplicaRole::kNone);
    if ((speaks && answer.hello().view() > view_.view()) ||
        (view_.role() == ReplicaRole::kNone && has_shard)) {
      drop_ = true;
      if (is_primary()) StepDownFor(answer.hello());
      return;
    }
    if (view_.role() == ReplicaRole::kNone) {
      view_.Begin();
      begins_ = true;
      host_->TakeOver(nullptr);
      return SayHello();  // as the primary now
    }
    is_heard_ = true;
    return SendBaseIfReady();
  }
  if (answer.ended()) end_heard_ = true;
  if (!streams_ || !is_primary() || answer.applied() < base_number_) return;
  if (offered_ == 0) {
    begins_ = false;
    outbox_->Resume();  // later answers wait for what the backup has
    offered_ = view_.OfferBackup();
    SendPing();
  }
  if (!in_sync_ && answer.follows() == offered_) {
    in_sync_ = true;
    view_.AddBackup(offered_);
    spdlog::info("{}: {} is its backup in view {}", options_.name, TaskName(options_.partner), view_.view());
    host_->GoOn();
  }
  if (in_sync_) outbox_->Release(std::min(answer.applied(), outbox_->events()));
}

// Said again and again, so that it may be lost.
void Replication::SendPing() {
  if (!is_heard_) return SayHello();
  replication::Message message;
  if (offered_ != 0) {
    message.mutable_in_sync()->set_view(offered_);
  } else {
    message.mutable_ping();
  }
  Send(message);
}

void Replication::StepDownFor(const replication::Hello& other) {
  spdlog::warn("{}: {} speaks for this shard since view {}; this server steps down", options_.name,
               TaskName(options_.partner), other.view());
  StepDown();
}

void Replication::StepDown() {
  view_.StepDown();
  host_->StepDown();
}

void Replication::SendBaseIfReady() {
  if (!is_heard_ || streams_ || !is_primary()) return;
  const std::optional<ReplicaBase> base = host_->Base();
  if (!base) return;
  base_bytes_ = 0;
  replication::Message message;
  *message.mutable_base()->mutable_header() = base->image.header;
  message.mutable_base()->set_epoch_step(base->epoch_step);
  for (const CheckpointSection& section : base->image.sections) {
    checkpoint::Section* const out = message.mutable_base()->mutable_header()->add_sections();
    *out = section.section;
    out->set_bytes(section.bytes.size());
    base_bytes_ += section.bytes.size();
  }
  Send(message);
  message.mutable_piece();
  for (const CheckpointSection& section : base->image.sections) {
    for (size_t begin = 0; begin < section.bytes.size(); begin += kPieceBytes) {
      const size_t size = std::min(kPieceBytes, section.bytes.size() - begin);
      Send(message, {ShareBytes(section.bytes.subspan(begin, size), base->owner)});
    }
  }
  for (const auto& [record, payload] : base->carried) {
    *message.mutable_record() = record;
    message.mutable_record()->set_carried(true);
    Send(message, payload.slices());
  }
  base_number_ = outbox_->events();
  behind_bytes_ = 0;
  message.mutable_base_end();
  message.set_number(base_number_);
  Send(message);
  streams_ = true;
}

void Replication::Log(const journal::Record& record, const FloatPayload& payload) {
  const uint64_t number = outbox_->AddEvent();
  if (streams_) {
    replication::Message message;
    *message.mutable_record() = record;
    message.set_number(number);
    Send(message, payload.slices());
    HoldBackIfFarBehind(record.ByteSizeLong() + static_cast<uint64_t>(payload.size_bytes()));
  }
  ReleaseIfAlone();
}

// All of it is in memory until it is sent, which is after the base.
void Replication::HoldBackIfFarBehind(uint64_t bytes) {
  if (offered_ != 0) return;  // who is answered waits for the backup by then
  behind_bytes_ += bytes;
  if (outbox_->is_paused() || behind_bytes_ <= std::max(base_bytes_, options_.most_behind_bytes)) return;
  outbox_->Pause();
  spdlog::info("{}: workers wait until {} has this shard: they bring more than can be sent meanwhile",
               options_.name, TaskName(options_.partner));
}

void Replication::ReleaseIfAlone() {
  if (is_primary() && !view_.has_backup() && !begins_) outbox_->Release(outbox_->events());
}

bool Replication::TellEnd() {
  if (!is_primary() || end_heard_) return true;
  if (is_heard_ && Now() >= next_end_) {
    replication::Message message;
    message.mutable_end();
    Send(message);
    next_end_ = Now() + kPingEvery;
  }
  return false;
}

void Replication::OnOutOfTouch() {
  if (begins_) spdlog::warn("{}: has no backup: if it is lost, what it has is lost", options_.name);
  begins_ = false;
  const ReplicaRole before = view_.role();
  if (view_.Lost()) return OnNextView(before);
  ReleaseIfAlone();
  if (!view_.is_proposing() || Now() < next_proposal_) return;
  next_proposal_ = Now() + kProposeEvery;
  host_->Propose();
}

void Replication::OnNextView(ReplicaRole before) {
  if (before == ReplicaRole::kBackup) {
    spdlog::warn("{}: {} is lost; this server speaks for the shard in view {}, without a backup",
                 options_.name, TaskName(options_.partner), view_.view());
    stream_.reset();
    incoming_.reset();
    return host_->TakeOver(std::move(shard_));
  }
  spdlog::warn("{}: its backup, {}, is lost; it goes on without one in view {}", options_.name,
               TaskName(options_.partner), view_.view());
  drop_ = true;
  streams_ = in_sync_ = false;
  offered_ = 0;
  outbox_->Resume();
  ReleaseIfAlone();
  host_->GoOn();
}

void Replication::Promise(int rank, uint64_t view) {
  const ReplicaRole before = view_.role();
  if (view_.Promise(rank, view)) OnNextView(before);
}

void Replication::Tick(TimePoint now) {
  const bool is_silent = view_.role() == ReplicaRole::kBackup && now - last_heard_ > Patience();
  if (is_silent || view_.is_proposing()) OnOutOfTouch();
}

void Replication::Answer(StreamId stream, const replication::Answer& answer) {
  ps::ServerHeader header;
  header.set_version(kWireVersion);
  header.set_replication(answer.SerializeAsString());
  frames_->Send(stream, EncodeFrame(header));
}

absl::Status Replication::Handle(StreamId stream, const std::string& bytes, FloatPayload payload) {
  replication::Message message;
  if (!message.ParseFromString(bytes)) return InvalidArgument("a message that cannot be read");
  if (message.has_hello()) return HandleHello(stream, message);
  if (is_primary()) {
    // An old primary, which another view has left behind.
    replication::Answer answer;
    *answer.mutable_hello() = OwnHello();
    Answer(stream, answer);
    return absl::OkStatus();
  }
  if (stream != stream_) return FailedPrecondition("another process is the primary");
  if (message.order() <= last_received_) return absl::OkStatus();  // a second time
  if (message.order() != last_received_ + 1) {
    // What it has, it keeps. The primary begins again, over another connection.
    stream_.reset();
    incoming_.reset();
    return DataLoss("a message has been lost");
  }
  last_received_ = message.order();
  last_heard_ = Now();
  if (view_.is_proposing()) {
    // It was silent for long, and workers may have promised. The view after the next base ends that.
    view_.Touch();
    host_->LetGo();
    stream_.reset();
    incoming_.reset();
    return Unavailable("the primary was out of touch");
  }
  const absl::Status status = HandlePart(message, std::move(payload));
  if (status.ok()) return status;
  spdlog::warn("{}: cannot follow its primary: {}", options_.name, std::string(status.message()));
  view_.StepDown();
  shard_.reset();
  incoming_.reset();
  stream_.reset();
  return status;
}

absl::Status Replication::HandleHello(StreamId stream, const replication::Message& message) {
  const replication::Hello& hello = message.hello();
  if (options_.tls) MUSTER_RETURN_IF_ERROR(frames_->CheckPeer(stream, options_.partner));
  if (static_cast<int>(hello.shard_index()) != options_.shard_index ||
      hello.shard_count() != options_.cluster.ps.size()) {
    return FailedPrecondition("shard %d of %d here, %d of %d there: compare --ps_hosts", options_.shard_index,
                              options_.cluster.ps.size(), hello.shard_index(), hello.shard_count());
  }
  if (hello.generation() != options_.generation) {
    return FailedPrecondition("generation %d of the cluster here, %d there", options_.generation,
                              hello.generation());
  }
  const bool is_second = stream == stream_ && message.order() <= last_received_;
  if (hello.role() == static_cast<uint32_t>(ReplicaRole::kNone)) {
    if (!is_second) OnOutOfTouch();  // a process that has just started: the one before it is gone
  } else if (hello.role() == static_cast<uint32_t>(ReplicaRole::kPrimary) && !is_second &&
             (!is_primary() || hello.view() > view_.view())) {
    if (is_primary()) {
      StepDownFor(hello);
    } else if (view_.role() == ReplicaRole::kBackup) {
      view_.Touch();
      host_->LetGo();
    }
    stream_ = stream;
    last_received_ = message.order();
    last_heard_ = Now();
    applied_ = 0;
    incoming_.reset();
  }
  replication::Answer answer;
  *answer.mutable_hello() = OwnHello();
  Answer(stream, answer);
  return absl::OkStatus();
}

absl::Status Replication::HandlePart(const replication::Message& message, FloatPayload payload) {
  replication::Answer answer;
  switch (message.kind_case()) {
    case replication::Message::kBase:
      incoming_.emplace().base = message.base();
      for (const checkpoint::Section& section : message.base().header().sections()) {
        if (section.bytes() > kMaxBaseBytes) return DataLoss("a section of %d bytes", section.bytes());
        incoming_->bytes_left += section.bytes();
      }
      if (incoming_->bytes_left == 0) MUSTER_RETURN_IF_ERROR(BuildShard());
      Answer(*stream_, answer);  // it lives
      return absl::OkStatus();
    case replication::Message::kPiece:
      if (!incoming_ || incoming_->bytes_left < static_cast<uint64_t>(payload.size_bytes())) {
        return DataLoss("more than the shard has");
      }
      incoming_->bytes_left -= payload.size_bytes();
      incoming_->pieces.push_back(std::move(payload));
      if (incoming_->bytes_left == 0) MUSTER_RETURN_IF_ERROR(BuildShard());
      Answer(*stream_, answer);
      return absl::OkStatus();
    case replication::Message::kBaseEnd:
      if (!incoming_ || incoming_->shard == nullptr) return DataLoss("less than the shard has");
      shard_ = std::move(incoming_->shard);
      incoming_.reset();
      break;
    case replication::Message::kRecord: {
      ShardReplay* const shard = incoming_ ? incoming_->shard.get() : shard_.get();
      if (shard == nullptr) return DataLoss("what was done to a shard that is not here");
      MUSTER_RETURN_IF_ERROR(shard->Replay(message.record(), std::move(payload)));
      if (!message.record().carried()) break;
      Answer(*stream_, answer);
      return absl::OkStatus();
    }
    case replication::Message::kInSync:
      if (shard_ == nullptr || message.in_sync().view() < view_.view())
        return DataLoss("no view of this shard");
      if (view_.role() != ReplicaRole::kBackup || view_.view() != message.in_sync().view()) {
        view_.Follow(message.in_sync().view());
        host_->LetGo();
      }
      answer.set_follows(view_.view());
      answer.set_applied(applied_);
      Answer(*stream_, answer);
      return absl::OkStatus();
    case replication::Message::kEnd:
      host_->OnEnd(absl::OkStatus());
      answer.set_ended(true);
      [[fallthrough]];
    default:
      answer.set_applied(applied_);
      Answer(*stream_, answer);
      return absl::OkStatus();
  }
  applied_ = message.number();
  answer.set_applied(applied_);
  Answer(*stream_, answer);
  return absl::OkStatus();
}

// All pieces are there.
absl::Status Replication::BuildShard() {
  const checkpoint::ShardHeader& header = incoming_->base.header();
  const ShardPlace place{.config = header.config(),
                         .index = options_.shard_index,
                         .count = static_cast<int>(options_.cluster.ps.size()),
                         .epoch = header.epoch()};
  std::span<const char> left;  // of the parts of the first piece
  std::deque<std::span<const char>> parts;
  for (const FloatPayload& piece : incoming_->pieces) {
    for (const std::span<const char> part : piece.parts()) parts.push_back(part);
  }
  const ReadSection read = [&](std::span<char> bytes) {
    while (!bytes.empty()) {
      if (left.empty()) {
        if (parts.empty()) return DataLoss("a section is longer than what has come");
        left = parts.front();
        parts.pop_front();
      }
      const size_t size = std::min(left.size(), bytes.size());
      std::memcpy(bytes.data(), left.data(), size);
      bytes = bytes.subspan(size);
      left = left.subspan(size);
    }
    return absl::OkStatus();
  };
  MUSTER_ASSIGN_OR_RETURN(RestoredShard restored, ReadImage(header, read, options_.name, place));
  incoming_->pieces.clear();
  MUSTER_ASSIGN_OR_RETURN(
      incoming_->shard,
      ShardReplay::Begin(header.config(), Epoch{header.epoch(), incoming_->base.epoch_step()},
                         std::move(restored.shard), std::move(restored.rule), options_.cluster.rank_count(),
                         frames_, outbox_));
  return absl::OkStatus();
}

void Replication::OnClosed(StreamId stream) {
  if (stream != stream_) return;
  stream_.reset();
  incoming_.reset();
  OnOutOfTouch();
}

}  // namespace muster
