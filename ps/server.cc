#include "ps/server.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "cluster/listening.h"
#include "cluster/replica_view.h"
#include "proto/parameter_server.pb.h"
#include "proto/replication.pb.h"
#include "ps/frame_server.h"
#include "ps/shard_server.h"
#include "ps/wire.h"

namespace muster {
namespace {

using StreamId = FrameServer::StreamId;

constexpr Duration kLookEvery = std::chrono::milliseconds(100);  // which shards are needed
constexpr Duration kCloseTimeout = std::chrono::seconds(5);      // for the others to hang up at the end
constexpr Duration kTakeOverTimeout = std::chrono::minutes(1);   // for the other shards, at the end

class Process final : public ParameterServer, private FrameServer::Handler {
 public:
  explicit Process(const ParameterServerOptions& options)
      : options_(options), name_(TaskName({Role::kPs, options.shard_index})) {}

  // To those who talk to it, as if the process had ended: the streams break, and nobody is told why.
  ~Process() override {
    follower_.reset();
    if (frames_ != nullptr) frames_->Shutdown();
  }

  absl::Status Listen();
  absl::Status Wait() override;
  void Kill() override {
    is_killed_ = true;
    frames_->Shutdown();
    for (const auto& shard : shards_) shard->End(absl::CancelledError(name_ + " has been ended"));
  }
  int replicated_shards() const override {
    const auto is_replicated = [](const auto& shard) { return shard->is_replicated(); };
    return static_cast<int>(std::count_if(shards_.begin(), shards_.end(), is_replicated));
  }

  ServerMetrics metrics() const override {
    ServerMetrics metrics{.received_bytes = frames_->received_bytes(), .sent_bytes = frames_->sent_bytes()};
    for (const auto& shard : shards_) metrics.shards.push_back(shard->metrics());
    return metrics;
  }

 private:
  void OnFrame(StreamId stream, grpc::ByteBuffer* frame) override;
  void OnClosed(StreamId stream) override;
  ShardServer* ShardOf(StreamId stream, const ps::ClientHeader& header);
  void SendError(StreamId stream, uint64_t request, const absl::Status& status);

  const ParameterServerOptions options_;
  const std::string name_;
  std::mutex mutex_;  // guards the following; held until all is there
  std::unique_ptr<FrameServer> frames_;
  std::vector<std::unique_ptr<ShardServer>> shards_;  // its own first
  std::map<StreamId, ShardServer*> streams_;
  std::unique_ptr<CopyKeeper> keeper_;  // null: it keeps no copies of checkpoints
  std::atomic<bool> is_killed_ = false;
  std::optional<ListenerFollower> follower_;  // the last member: it uses the others
};

absl::Status Process::Listen() {
  const std::string address =
      ListeningAddress(options_.view->Address(options_.view->own()), options_.bind_host);
  const std::lock_guard lock(mutex_);  // the first frame may be there before Listen returns
  auto listening = FrameServer::Listen(address, options_.tls, options_.transport, this);
  if (!listening.ok()) return Annotate(listening.status(), name_);
  frames_ = *std::move(listening);
  spdlog::info(
      "{} listens on {}{}", name_, address,
      options_.tls ? "" : ", without TLS: anyone who reaches this port can read and write the parameters");
  if (options_.checkpoint_buddy) {
    keeper_ = std::make_unique<CopyKeeper>(CopiesOf(options_), frames_.get());
  }
  const int count = static_cast<int>(options_.cluster.ps.size());
  std::vector<int> shards = {options_.shard_index};
  if (options_.replicated) shards.push_back((options_.shard_index + count - 1) % count);
  for (const int shard : shards) {
    MUSTER_ASSIGN_OR_RETURN(auto server, ShardServer::Start(options_, shard, frames_.get()));
    shards_.push_back(std::move(server));
  }
  follower_.emplace(options_.view.get(), options_.bind_host, address,
                    [this](const std::string& moved_to) { return frames_->ListenAlso(moved_to); });
  return absl::OkStatus();
}

// Until no shard is needed any more.
absl::Status Process::Wait() {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::optional<absl::Status>> ends(shards_.size());  // guarded by the mutex
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < shards_.size(); ++i) {
    threads.emplace_back([&, i] {
      absl::Status end = shards_[i]->Serve();
      const std::lock_guard lock(mutex);
      ends[i] = std::move(end);
      changed.notify_all();
    });
  }
  std::unique_lock lock(mutex);
  const auto has_ended = [&](const auto& end) { return end.has_value(); };
  const auto has_failed = [&](const auto& end) { return end.has_value() && !end->ok(); };
  std::optional<TimePoint> deadline;
  while (!std::all_of(ends.begin(), ends.end(), has_ended)) {
    if (std::any_of(ends.begin(), ends.end(), has_failed)) break;
    if (std::any_of(ends.begin(), ends.end(), has_ended)) {
      if (!deadline) deadline = Now() + kTakeOverTimeout;
      const auto is_needed = [](const auto& shard) { return shard->is_needed(); };
      if (std::none_of(shards_.begin(), shards_.end(), is_needed) || Now() >= *deadline) break;
    }
    changed.wait_for(lock, kLookEvery);
  }
  absl::Status end;
  for (const auto& of_shard : ends) {
    if (of_shard) end.Update(*of_shard);
  }
  lock.unlock();
  for (const auto& shard : shards_) shard->End(end);
  threads.clear();
  // The last answers are on their way; the others close their streams when they have them.
  if (frames_->AwaitClosed(Now() + kCloseTimeout) && !is_killed_) {
    for (const auto& shard : shards_) shard->Close();
  }
  return end;
}

// The first frame says which one a stream is for. One that nobody has is the own one's to refuse.
ShardServer* Process::ShardOf(StreamId stream, const ps::ClientHeader& header) {
  const std::lock_guard lock(mutex_);
  ShardServer*& shard = streams_[stream];
  if (shard != nullptr || shards_.empty()) return shard;
  shard = shards_[0].get();
  if (shards_.size() == 1) return shard;
  replication::Message message;
  const uint32_t wanted = header.has_join() ? header.join().shard_index()
                          : message.ParseFromString(header.replication()) && message.has_hello()
                              ? message.hello().shard_index()
                              : 0;  // another shard, to the coordinator
  if (wanted != static_cast<uint32_t>(options_.shard_index)) shard = shards_[1].get();
  return shard;
}

// What memory was short for may be done by half, so this is the end.
void Process::OnFrame(StreamId stream, grpc::ByteBuffer* frame) {
  {
    const std::lock_guard lock(mutex_);
    if (shards_.empty()) return;  // it could not be started
  }
  ps::ClientHeader header;
  try {
    ShardGradient gradient;
    absl::Status status = DecodeFrame(*frame, &header, &gradient.values);
    frame->Clear();
    if (status.ok() && header.version() != kWireVersion) {
      status = FailedPrecondition("this server speaks version %d of the protocol, the client version %d",
                                  kWireVersion, header.version());
    }
    if (!status.ok()) {
      spdlog::warn("{}: refused {}: {}", name_, frames_->PeerOf(stream), std::string(status.message()));
      return SendError(stream, header.request(), status);
    }
    if (header.has_checkpoint_copy()) {
      if (keeper_ != nullptr) return keeper_->OnRequest(stream, header.request(), header.checkpoint_copy());
      return SendError(stream, header.request(),
                       FailedPrecondition("%s keeps no copies of checkpoints: give all parameter servers the "
                                          "same flags",
                                          name_));
    }
    if (header.has_push()) {
      gradient.rows.Swap(header.mutable_push()->mutable_rows());
    }
    ShardOf(stream, header)->OnFrame(stream, header, std::move(gradient));
  } catch (const std::bad_alloc&) {
    const absl::Status status = OutOfMemory();
    spdlog::error("{}: {}", name_, std::string(status.message()));
    for (const auto& shard : shards_) shard->End(status);
    SendError(stream, header.request(), status);
  }
}

void Process::SendError(StreamId stream, uint64_t request, const absl::Status& status) {
  ps::ServerHeader answer;
  answer.set_version(kWireVersion);
  answer.set_request(request);
  SetError(status, answer.mutable_error());
  frames_->Send(stream, EncodeFrame(answer));
}

void Process::OnClosed(StreamId stream) {
  ShardServer* shard = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.extract(stream);
    if (!found.empty()) shard = found.mapped();
    if (keeper_ != nullptr) keeper_->OnClosed(stream);
  }
  if (shard != nullptr) shard->OnClosed(stream);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ParameterServer>> ParameterServer::Start(
    const ParameterServerOptions& options) {
  const int count = static_cast<int>(options.cluster.ps.size());
  MUSTER_CHECK(options.shard_index >= 0 && options.shard_index < count);
  if (options.replicated && count < 2) {
    return InvalidArgument("replicated shards need two parameter servers at least");
  }
  MUSTER_CHECK(!options.replicated || options.checkpoint_dir.empty());
  MUSTER_CHECK(!options.checkpoint_buddy || (count >= 2 && !options.checkpoint_dir.empty()));
  ParameterServerOptions with_view = options;
  if (with_view.view == nullptr) {
    with_view.view = std::make_shared<ClusterView>(options.cluster, TaskId{Role::kPs, options.shard_index});
  }
  auto server = std::make_unique<Process>(with_view);
  MUSTER_RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace muster
