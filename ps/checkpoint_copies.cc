#include "ps/checkpoint_copies.h"

#include <algorithm>
#include <functional>

#include "base/logging.h"
#include "ps/shard_connection.h"
#include "ps/wire.h"

namespace muster {
namespace {

constexpr size_t kPieceBytes = 1 << 20;
constexpr size_t kMaxPieceBytes = 2 << 20;
constexpr size_t kMaxWaiting = 256;  // requests; each asker sends one at a time
constexpr Duration kConnectTimeout = std::chrono::seconds(1);
constexpr Duration kAnswerTimeout = std::chrono::minutes(1);  // others may be before it at a slow disk
constexpr Duration kStopTick = std::chrono::milliseconds(200);
constexpr Duration kPause = std::chrono::milliseconds(200);
constexpr Duration kWarnAfter = std::chrono::seconds(3);

CheckpointCopiesOptions WithView(CheckpointCopiesOptions options) {
  if (options.view == nullptr) {
    options.view = std::make_shared<ClusterView>(options.cluster, TaskId{Role::kPs, options.shard_index});
  }
  return options;
}

}  // namespace

int BuddyOf(const ClusterSpec& cluster, int server) {
  const int count = static_cast<int>(cluster.ps.size());
  MUSTER_CHECK(count >= 2);
  const auto host = [&](int of) { return HostOfAddress(cluster.ps[of]); };
  int place = 0;  // among the servers of its host
  for (int other = 0; other < server; ++other) place += host(other) == host(server);
  int next = (server + 1) % count;
  while (next != server && host(next) == host(server)) next = (next + 1) % count;
  if (next == server) return (server + 1) % count;
  std::vector<int> there;
  for (int other = 0; other < count; ++other) {
    if (host(other) == host(next)) there.push_back(other);
  }
  return there[place % there.size()];
}

// One request and its answer after the other, over one connection.
class CheckpointCopies::Conversation {
 public:
  static absl::StatusOr<Conversation> Begin(const CheckpointCopiesOptions& options, int server) {
    Conversation conversation(options, server);
    MUSTER_ASSIGN_OR_RETURN(conversation.connection_,
                            ShardConnection::Connect(options.view, {Role::kPs, server}, options.tls,
                                                     options.transport, Now() + kConnectTimeout));
    return conversation;
  }

  absl::StatusOr<checkpoint_copy::Answer> Ask(checkpoint_copy::Request request, const std::stop_token& stop) {
    request.set_shard_index(static_cast<uint32_t>(options_->shard_index));
    request.set_shard_count(static_cast<uint32_t>(options_->cluster.ps.size()));
    request.set_generation(options_->generation);
    ps::ClientHeader header;
    header.set_version(kWireVersion);
    header.set_request(++number_);
    header.set_checkpoint_copy(request.SerializeAsString());
    connection_->Send(header, {});
    const std::string name = TaskName({Role::kPs, server_});
    const TimePoint deadline = Now() + kAnswerTimeout;
    while (!stop.stop_requested()) {
      const auto reply = connection_->Receive(std::min(deadline, Now() + kStopTick));
      if (absl::IsDeadlineExceeded(reply.status())) {
        if (Now() < deadline) continue;
        return absl::DeadlineExceededError(
            absl::StrFormat("%s has not answered for %s", name, FormatAge(kAnswerTimeout)));
      }
      MUSTER_RETURN_IF_ERROR(Annotate(reply.status(), name));
      if (reply->header.request() != number_) continue;
      if (reply->header.has_error()) return StatusOf(reply->header.error(), name);
      checkpoint_copy::Answer answer;
      if (!answer.ParseFromString(reply->header.checkpoint_copy())) {
        return DataLoss("%s has answered what is no answer", name);
      }
      return answer;
    }
    return absl::CancelledError("stopped");
  }

 private:
  Conversation(const CheckpointCopiesOptions& options, int server) : options_(&options), server_(server) {}

  const CheckpointCopiesOptions* options_;
  int server_;
  std::unique_ptr<ShardConnection> connection_;
  uint64_t number_ = 0;
};

CheckpointCopies::CheckpointCopies(CheckpointCopiesOptions options)
    : options_(WithView(std::move(options))), store_(options_.folder) {}

absl::Status CheckpointCopies::Send(uint64_t step, const checkpoint::Manifest::File& file,
                                    const std::stop_token& stop) const {
  Progress progress;
  while (true) {
    absl::Status status = SendOnce(step, file, stop, &progress);
    const bool may_pass = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    if (!may_pass || Now() >= progress.last + options_.patience || stop.stop_requested()) return status;
    std::this_thread::sleep_for(kPause);
  }
}

absl::Status CheckpointCopies::SendOnce(uint64_t step, const checkpoint::Manifest::File& file,
                                        const std::stop_token& stop, Progress* progress) const {
  const int server = BuddyOf(options_.cluster, options_.shard_index);
  MUSTER_ASSIGN_OR_RETURN(Conversation buddy, Conversation::Begin(options_, server));
  checkpoint_copy::Request request;
  request.mutable_offer()->set_step(step);
  *request.mutable_offer()->mutable_file() = file;
  MUSTER_ASSIGN_OR_RETURN(checkpoint_copy::Answer answer, buddy.Ask(std::move(request), stop));
  while (answer.next() < file.bytes()) {
    const uint64_t offset = answer.next();
    checkpoint_copy::Request next;
    next.mutable_piece()->set_offset(offset);
    MUSTER_ASSIGN_OR_RETURN(*next.mutable_piece()->mutable_data(),
                            store_.ReadPiece(step, file.name(), offset, kPieceBytes));
    if (next.piece().data().empty()) {
      return DataLoss("%s is shorter than it was", store_.PathOf(step, file.name()).string());
    }
    MUSTER_ASSIGN_OR_RETURN(answer, buddy.Ask(std::move(next), stop));
    if (answer.next() <= offset) return DataLoss("ps:%d does not take what it was sent", server);
    if (answer.next() > progress->furthest) *progress = {.furthest = answer.next()};
  }
  return absl::OkStatus();
}

bool CheckpointCopies::HasUncommitted() const {
  return store_
      .HasUncommitted(
          CheckpointStore::ShardFileName(options_.shard_index, static_cast<int>(options_.cluster.ps.size())))
      .value_or(false);
}

uint64_t CheckpointCopies::NewestWhole() const {
  for (const uint64_t step : store_.List().value_or(std::vector<uint64_t>())) {
    const auto manifest = store_.ReadManifest(step);
    if (!manifest.ok() || manifest->files_size() != static_cast<int>(options_.cluster.ps.size())) continue;
    if (store_.HasShard(step, manifest->files(options_.shard_index), /*read=*/true)) return step;
  }
  return 0;
}

void CheckpointCopies::Fetch(Duration patience, const std::stop_token& stop) const {
  const std::string name = TaskName({Role::kPs, options_.shard_index});
  const TimePoint begin = Now();
  uint64_t newest = NewestWhole();
  bool warned = false;
  std::map<int, absl::Status> to_ask;
  for (int i = 0; i < static_cast<int>(options_.cluster.ps.size()); ++i) {
    if (i != options_.shard_index) to_ask[i] = absl::OkStatus();
  }
  while (true) {
    for (auto& [server, status] : to_ask) status = FetchFrom(server, stop, &newest);
    std::erase_if(to_ask, [](const auto& entry) { return entry.second.ok(); });
    if (to_ask.empty() || stop.stop_requested()) return;
    const bool is_over = Now() - begin >= patience;
    if (is_over || (!warned && Now() - begin >= kWarnAfter)) {
      warned = true;
      for (const auto& [server, status] : to_ask) {
        spdlog::warn("{}: {} what ps:{} has of its checkpoints: {}", name,
                     is_over ? "it is not known" : "asks", server, std::string(status.message()));
      }
    }
    if (is_over) return;
    std::this_thread::sleep_for(kPause);
  }
}

// Fails if it is to be asked again.
absl::Status CheckpointCopies::FetchFrom(int server, const std::stop_token& stop, uint64_t* newest) const {
  MUSTER_ASSIGN_OR_RETURN(Conversation other, Conversation::Begin(options_, server));
  checkpoint_copy::Request list;
  list.mutable_list();
  MUSTER_ASSIGN_OR_RETURN(const checkpoint_copy::Answer listed, other.Ask(std::move(list), stop));
  const std::string name = TaskName({Role::kPs, options_.shard_index});
  std::map<uint64_t, checkpoint::Manifest, std::greater<>> manifests;
  for (const checkpoint::Manifest& manifest : listed.manifests()) {
    if (manifest.files_size() == static_cast<int>(options_.cluster.ps.size()) && manifest.step() > *newest) {
      manifests[manifest.step()] = manifest;
    }
  }
  for (const auto& [step, manifest] : manifests) {
    const checkpoint::Manifest::File& file = manifest.files(options_.shard_index);
    if (file.name() != CheckpointStore::ShardFileName(options_.shard_index, manifest.files_size())) {
      spdlog::warn("{}: checkpoint {} of ps:{} is not used: a file of another name: {}", name, step, server,
                   file.name());
      continue;
    }
    const bool is_here = store_.HasShard(step, file, /*read=*/true);
    if (!is_here && std::ranges::count(listed.without_file(), step) > 0) continue;
    absl::Status status = is_here ? absl::OkStatus() : FetchFile(other, step, file, stop);
    if (status.ok()) status = store_.Commit(manifest);
    if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsCancelled(status)) {
      return status;
    }
    if (status.ok()) {
      *newest = step;
      is_here ? spdlog::info("{}: checkpoint {} was made, says ps:{}", name, step, server)
              : spdlog::info("{}: has its part of checkpoint {} from ps:{} again", name, step, server);
      return absl::OkStatus();
    }
    spdlog::warn("{}: checkpoint {} of ps:{} is not used: {}", name, step, server,
                 std::string(status.message()));
  }
  return absl::OkStatus();
}

absl::Status CheckpointCopies::FetchFile(Conversation& other, uint64_t step,
                                         const checkpoint::Manifest::File& file,
                                         const std::stop_token& stop) const {
  MUSTER_ASSIGN_OR_RETURN(ShardFileCopy copy, ShardFileCopy::Begin(store_, step, file));
  while (!copy.is_complete()) {
    checkpoint_copy::Request read;
    read.mutable_read()->set_step(step);
    read.mutable_read()->set_offset(copy.received());
    MUSTER_ASSIGN_OR_RETURN(const checkpoint_copy::Answer answer, other.Ask(std::move(read), stop));
    if (answer.data().empty()) return DataLoss("the copy is shorter than the file was");
    MUSTER_RETURN_IF_ERROR(copy.Append(answer.data()));
  }
  return copy.Finish();
}

CopyKeeper::CopyKeeper(CheckpointCopiesOptions own, FrameServer* frames)
    : own_(std::move(own)),
      store_(own_.folder),
      frames_(frames),
      thread_([this](const std::stop_token& stop) { Run(stop); }) {}

void CopyKeeper::OnRequest(FrameServer::StreamId stream, uint64_t number, const std::string& request) {
  Waiting waiting{.stream = stream, .number = number};
  const bool is_one = waiting.request.ParseFromString(request);
  const absl::Status status = is_one ? Check(stream, waiting.request)
                                     : InvalidArgument("what is no request about copies of checkpoints");
  {
    const std::lock_guard lock(mutex_);
    if (status.ok() && waiting_.size() < kMaxWaiting) {
      waiting_.push_back(std::move(waiting));
      changed_.notify_all();
      return;
    }
  }
  ps::ServerHeader header;
  header.set_version(kWireVersion);
  header.set_request(number);
  SetError(status.ok() ? Unavailable("too many ask for copies of checkpoints") : status,
           header.mutable_error());
  frames_->Send(stream, EncodeFrame(header));
}

void CopyKeeper::OnClosed(FrameServer::StreamId stream) {
  const std::lock_guard lock(mutex_);
  std::erase_if(waiting_, [stream](const Waiting& waiting) { return waiting.stream == stream; });
  closed_.insert(stream);
  changed_.notify_all();
}

absl::Status CopyKeeper::Check(FrameServer::StreamId stream, const checkpoint_copy::Request& request) const {
  const auto count = static_cast<uint32_t>(own_.cluster.ps.size());
  const std::string name = TaskName({Role::kPs, own_.shard_index});
  if (request.shard_count() != count || request.shard_index() >= count ||
      static_cast<int>(request.shard_index()) == own_.shard_index) {
    return FailedPrecondition("%s of %d keeps no copies for ps:%d of %d: compare --ps_hosts", name, count,
                              request.shard_index(), request.shard_count());
  }
  if (request.generation() != own_.generation) {
    return FailedPrecondition("%s belongs to generation %d of the cluster, ps:%d to generation %d", name,
                              own_.generation, request.shard_index(), request.generation());
  }
  if (request.piece().data().size() > kMaxPieceBytes) {
    return InvalidArgument("a piece of %d bytes", request.piece().data().size());
  }
  if (!own_.tls) return absl::OkStatus();
  return frames_->CheckPeer(stream, {Role::kPs, static_cast<int>(request.shard_index())});
}

void CopyKeeper::Run(const std::stop_token& stop) {
  while (true) {
    std::optional<Waiting> next;
    std::set<FrameServer::StreamId> closed;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, stop, [this] { return !waiting_.empty() || !closed_.empty(); });
      if (stop.stop_requested()) return;
      closed.swap(closed_);
      if (!waiting_.empty()) {
        next = std::move(waiting_.front());
        waiting_.pop_front();
      }
    }
    for (const FrameServer::StreamId stream : closed) copies_.erase(stream);
    if (!next) continue;
    try {
      const auto answer = Handle(*next);
      ps::ServerHeader header;
      header.set_version(kWireVersion);
      header.set_request(next->number);
      if (answer.ok()) {
        header.set_checkpoint_copy(answer->SerializeAsString());
      } else {
        spdlog::warn("{}: for ps:{}: {}", TaskName({Role::kPs, own_.shard_index}),
                     next->request.shard_index(), std::string(answer.status().message()));
        SetError(answer.status(), header.mutable_error());
      }
      frames_->Send(next->stream, EncodeFrame(header));
    } catch (const std::bad_alloc&) {
      spdlog::error("{}: not enough memory to keep copies of checkpoints",
                    TaskName({Role::kPs, own_.shard_index}));
      copies_.erase(next->stream);  // its sender asks again
    }
  }
}

std::string CopyKeeper::FileOf(int shard) const {
  return CheckpointStore::ShardFileName(shard, static_cast<int>(own_.cluster.ps.size()));
}

absl::StatusOr<checkpoint_copy::Answer> CopyKeeper::Handle(const Waiting& waiting) {
  const checkpoint_copy::Request& request = waiting.request;
  const int shard = static_cast<int>(request.shard_index());
  switch (request.kind_case()) {
    case checkpoint_copy::Request::kOffer:
      return HandleOffer(waiting.stream, shard, request.offer());
    case checkpoint_copy::Request::kPiece:
      return HandlePiece(waiting.stream, shard, request.piece());
    case checkpoint_copy::Request::kList:
      return HandleList(shard);
    case checkpoint_copy::Request::kRead: {
      const checkpoint_copy::Read& read = request.read();
      checkpoint_copy::Answer answer;
      MUSTER_ASSIGN_OR_RETURN(*answer.mutable_data(),
                              store_.ReadPiece(read.step(), FileOf(shard), read.offset(), kPieceBytes));
      return answer;
    }
    default:
      return InvalidArgument("a request about copies of checkpoints that this version does not know");
  }
}

absl::StatusOr<checkpoint_copy::Answer> CopyKeeper::HandleOffer(FrameServer::StreamId stream, int shard,
                                                                const checkpoint_copy::Offer& offer) {
  if (!own_.has_buddy) {
    return FailedPrecondition("%s keeps no copies of checkpoints: give all parameter servers the same flags",
                              TaskName({Role::kPs, own_.shard_index}));
  }
  const checkpoint::Manifest::File& file = offer.file();
  if (file.name() != FileOf(shard)) return InvalidArgument("a file of another name: %s", file.name());
  copies_.erase(stream);
  checkpoint_copy::Answer answer;
  // As when the last answer was lost, or where both use one folder.
  if (store_.HasShard(offer.step(), file, /*read=*/true)) {
    answer.set_next(file.bytes());
    return answer;
  }
  MUSTER_RETURN_IF_ERROR(CheckNotMade(shard, offer.step(), file));
  MUSTER_ASSIGN_OR_RETURN(ShardFileCopy copy, ShardFileCopy::Begin(store_, offer.step(), file));
  copies_.emplace(stream, UnderWay{offer.step(), std::move(copy)});
  return answer;
}

// Of another file: then an earlier process has woken up.
absl::Status CopyKeeper::CheckNotMade(int shard, uint64_t step,
                                      const checkpoint::Manifest::File& file) const {
  const auto manifest = store_.ReadManifest(step);
  if (!manifest.ok() || manifest->files_size() != static_cast<int>(own_.cluster.ps.size())) {
    return absl::OkStatus();
  }
  const checkpoint::Manifest::File& its = manifest->files(shard);
  if (its.bytes() == file.bytes() && its.digest() == file.digest()) return absl::OkStatus();
  return FailedPrecondition("checkpoint %d is made, and %s is not its file", step, file.name());
}

absl::StatusOr<checkpoint_copy::Answer> CopyKeeper::HandlePiece(FrameServer::StreamId stream, int shard,
                                                                const checkpoint_copy::Piece& piece) {
  const auto found = copies_.find(stream);
  if (found == copies_.end()) return FailedPrecondition("a piece of no file");
  auto& [step, copy] = found->second;
  checkpoint_copy::Answer answer;
  answer.set_next(copy.received());
  if (piece.offset() != copy.received()) return answer;  // it has come before
  const auto take = [&, step = step, &copy = copy]() -> absl::Status {
    MUSTER_RETURN_IF_ERROR(copy.Append(piece.data()));
    if (!copy.is_complete()) return absl::OkStatus();
    MUSTER_RETURN_IF_ERROR(CheckNotMade(shard, step, copy.file()));  // it may have been made meanwhile
    return copy.Finish();
  };
  const absl::Status status = take();
  answer.set_next(copy.received());
  if (!status.ok() || copy.is_complete()) copies_.erase(found);
  MUSTER_RETURN_IF_ERROR(status);
  return answer;
}

absl::StatusOr<checkpoint_copy::Answer> CopyKeeper::HandleList(int shard) const {
  checkpoint_copy::Answer answer;
  MUSTER_ASSIGN_OR_RETURN(const std::vector<uint64_t> steps, store_.List());
  for (const uint64_t step : steps) {
    auto manifest = store_.ReadManifest(step);
    if (!manifest.ok() || manifest->files_size() != static_cast<int>(own_.cluster.ps.size())) continue;
    if (!store_.HasShard(step, manifest->files(shard), /*read=*/false)) answer.add_without_file(step);
    *answer.add_manifests() = *std::move(manifest);
  }
  return answer;
}

}  // namespace muster
