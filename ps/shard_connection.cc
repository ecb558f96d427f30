#include "ps/shard_connection.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>

#include "base/local_socket.h"
#include "base/logging.h"
#include "ps/local_stream.h"

namespace muster {

namespace {

constexpr Duration kLetGoTimeout = std::chrono::seconds(5);
constexpr Duration kLookEvery = std::chrono::milliseconds(50);  // at addresses, while it connects

// For tests.
class InjectedFaults {
 public:
  void Set(const std::optional<FrameFaultOptions>& faults) {
    const std::lock_guard lock(mutex_);
    faults_ = faults;
  }
  std::optional<FrameFaultOptions> Get() {
    const std::lock_guard lock(mutex_);
    return faults_;
  }
  uint64_t NextStream() {
    const std::lock_guard lock(mutex_);
    return ++streams_;
  }

 private:
  std::mutex mutex_;
  std::optional<FrameFaultOptions> faults_;
  uint64_t streams_ = 0;
};

InjectedFaults injected;

}  // namespace

void ShardConnection::InjectFaults(const std::optional<FrameFaultOptions>& faults) { injected.Set(faults); }

/// What frames come from and go to. After the destructor nothing comes.
class ShardConnection::Stream {
 public:
  using OnFrame = std::function<void(std::optional<grpc::ByteBuffer>)>;  // none: it broke, the last call
  struct Sent {
    uint64_t request = 0;  // 0: a frame that is none
    TimePoint at;
  };
  virtual ~Stream() = default;
  virtual void Send(grpc::ByteBuffer frame, uint64_t request) = 0;
  virtual Sent last_sent() const = 0;
  virtual bool is_local() const { return false; }
};

class ShardConnection::GrpcStream final : public Stream {
 public:
  GrpcStream(std::shared_ptr<grpc::Channel> channel, const char* method, std::shared_ptr<FrameQueue> queue,
             OnFrame on_frame)
      : channel_(std::move(channel)),
        stub_(channel_),
        queue_(std::move(queue)),
        on_frame_(std::move(on_frame)),
        stream_(stub_.PrepareCall(&context_, method, queue_->completions())) {
    const std::lock_guard lock(mutex_);
    queue_->AddAwaited(1);
    ++under_way_;
    stream_->StartCall(on_start_.tag());
  }

  ~GrpcStream() override {
    context_.TryCancel();
    {
      const std::lock_guard lock(mutex_);
      is_broken_ = true;  // nothing more is started
    }
    queue_->Drain(under_way_);
    if (is_awaited_) queue_->AddAwaited(-1);
  }

  /// From here on nobody waits for frames of this stream.
  void LeaveToQueue() {
    if (std::exchange(is_awaited_, false)) queue_->AddAwaited(-1);
  }

  void Send(grpc::ByteBuffer frame, uint64_t request) override {
    const std::lock_guard lock(mutex_);
    if (is_broken_) return;
    outgoing_.push_back({std::move(frame), request});
    if (outgoing_.size() == 1 && is_open_) Write();
  }

  Sent last_sent() const override {
    const std::lock_guard lock(mutex_);
    return last_sent_;
  }

 private:
  struct Outgoing {
    grpc::ByteBuffer frame;
    uint64_t request = 0;
  };

  void OnStart(bool ok) {
    const std::lock_guard lock(mutex_);
    is_open_ = ok;
    if (ok && !is_broken_) {
      Read();
      if (!outgoing_.empty()) Write();
    }
    if (!ok) Break();
    --under_way_;
  }

  void OnRead(bool ok) {
    if (ok) on_frame_(std::move(incoming_));  // without the mutex: whoever takes it may send
    const std::lock_guard lock(mutex_);
    incoming_ = grpc::ByteBuffer();
    if (ok && !is_broken_) Read();
    if (!ok) Break();
    --under_way_;
  }

  // When nothing can be sent any more, the read ends, too: after what has come until then.
  void OnWrite(bool ok) {
    const std::lock_guard lock(mutex_);
    if (const uint64_t request = outgoing_.front().request; request != 0) last_sent_ = {request, Now()};
    outgoing_.pop_front();
    is_open_ = ok;
    if (!ok || is_broken_) outgoing_.clear();
    if (!outgoing_.empty()) Write();
    --under_way_;
  }

  // The mutex is held.
  void Read() {
    ++under_way_;
    stream_->Read(&incoming_, on_read_.tag());
  }

  void Write() {
    ++under_way_;
    stream_->Write(outgoing_.front().frame, on_write_.tag());
  }

  void Break() {
    if (!std::exchange(is_broken_, true)) on_frame_(std::nullopt);
  }

  const std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  const std::shared_ptr<FrameQueue> queue_;
  const OnFrame on_frame_;
  bool is_awaited_ = true;
  std::atomic<int> under_way_ = 0;  // operations
  Completion on_start_{[this](bool ok) { OnStart(ok); }};
  Completion on_read_{[this](bool ok) { OnRead(ok); }};
  Completion on_write_{[this](bool ok) { OnWrite(ok); }};
  grpc::ByteBuffer incoming_;
  mutable std::mutex mutex_;  // guards the following, and that operations are started
  Sent last_sent_;
  std::deque<Outgoing> outgoing_;  // the front one is being written
  bool is_open_ = false;           // for writing
  bool is_broken_ = false;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

/// Frames go past the network. gRPC has shown who the server is, and goes on showing that it lives.
class ShardConnection::SameHostStream final : public Stream {
 public:
  /// Null: the server is on another host, or wants none of this.
  static std::unique_ptr<SameHostStream> Open(std::shared_ptr<grpc::Channel> channel, TimePoint deadline,
                                              std::shared_ptr<FrameQueue> queue, OnFrame on_frame,
                                              const std::atomic<bool>& has_moved) {
    std::unique_ptr<SameHostStream> stream(
        new SameHostStream(std::move(queue), std::move(on_frame), has_moved));
    stream->alive_ = std::make_unique<GrpcStream>(
        std::move(channel), kSameHostMethod, stream->queue_,
        [stream = stream.get()](auto frame) { stream->OnAlive(std::move(frame)); });
    if (!stream->Begin(deadline)) return nullptr;
    stream->alive_->LeaveToQueue();
    return stream;
  }

  ~SameHostStream() override {
    alive_ = nullptr;  // the first: it may want the other
    local_ = nullptr;
  }

  void Send(grpc::ByteBuffer frame, uint64_t request) override {
    (void)local_->Send(std::move(frame));
    if (request == 0) return;
    const std::lock_guard lock(sent_mutex_);
    last_sent_ = {request, Now()};
  }
  Sent last_sent() const override {
    const std::lock_guard lock(sent_mutex_);
    return last_sent_;
  }
  bool is_local() const override { return true; }

 private:
  SameHostStream(std::shared_ptr<FrameQueue> queue, OnFrame on_frame, const std::atomic<bool>& has_moved)
      : queue_(std::move(queue)), on_frame_(std::move(on_frame)), has_moved_(has_moved) {}

  bool Begin(TimePoint deadline) {
    const auto is_locked = [this](const auto& condition) {
      return [this, condition] {
        const std::lock_guard lock(mutex_);
        return condition();
      };
    };
    (void)queue_->Await(deadline, is_locked([this] { return offer_ || is_over_ || has_moved_; }));
    ps::SameHostOffer offer;
    {
      const std::lock_guard lock(mutex_);
      if (!offer_ || is_over_ || !offer.ParseFromString(BytesOf(*offer_))) return false;
      auto socket = ConnectLocal(offer.name());
      if (!socket.ok()) return false;
      auto local = LocalStream::Open(*std::move(socket), LocalStream::Copying::kAtOnce,
                                     [this](std::optional<grpc::ByteBuffer> frame) {
                                       OnLocal(std::move(frame));
                                       return true;
                                     });
      if (!local.ok()) return false;
      local_ = *std::move(local);
      const grpc::Slice token(offer.token());
      (void)local_->Send(grpc::ByteBuffer(&token, 1));
    }
    (void)queue_->Await(deadline, is_locked([this] { return is_welcome_ || is_over_ || has_moved_; }));
    const std::lock_guard lock(mutex_);
    is_over_ = true;  // a welcome that comes later is none
    return is_welcome_;
  }

  void OnAlive(std::optional<grpc::ByteBuffer> frame) {
    {
      const std::lock_guard lock(mutex_);
      if (frame) {
        offer_ = std::move(frame);
      } else {
        is_over_ = true;
        if (local_ != nullptr) local_->Break();
      }
    }
    queue_->Wake();
  }

  void OnLocal(std::optional<grpc::ByteBuffer> frame) {
    if (is_welcome_) return on_frame_(std::move(frame));
    {
      const std::lock_guard lock(mutex_);
      if (frame && !is_over_) is_welcome_ = true;
      is_over_ = true;
    }
    queue_->Wake();
  }

  const std::shared_ptr<FrameQueue> queue_;
  const OnFrame on_frame_;
  const std::atomic<bool>& has_moved_;  // nobody will answer
  std::mutex mutex_;                    // guards the following
  std::optional<grpc::ByteBuffer> offer_;
  bool is_over_ = false;  // nothing is waited for any more
  std::atomic<bool> is_welcome_ = false;
  mutable std::mutex sent_mutex_;
  Sent last_sent_;
  std::unique_ptr<LocalStream> local_;  // never changes once it is there
  std::unique_ptr<GrpcStream> alive_;
};

absl::StatusOr<std::unique_ptr<ShardConnection>> ShardConnection::Connect(
    std::shared_ptr<const ClusterView> view, TaskId server, const std::optional<TlsIdentity>& tls,
    Transport transport, TimePoint deadline, std::shared_ptr<FrameQueue> queue, uint64_t id) {
  Place place(std::move(view), server);
  const std::string address = place.whereabouts.address();
  return Connect(std::move(place), address, server, tls, transport, deadline, std::move(queue), id);
}

absl::StatusOr<std::unique_ptr<ShardConnection>> ShardConnection::Connect(
    const std::string& address, TaskId server, const std::optional<TlsIdentity>& tls, Transport transport,
    TimePoint deadline, std::shared_ptr<FrameQueue> queue, uint64_t id) {
  return Connect(std::nullopt, address, server, tls, transport, deadline, std::move(queue), id);
}

absl::StatusOr<std::unique_ptr<ShardConnection>> ShardConnection::Connect(
    std::optional<Place> place, const std::string& address, TaskId server,
    const std::optional<TlsIdentity>& tls, Transport transport, TimePoint deadline,
    std::shared_ptr<FrameQueue> queue, uint64_t id) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kMaxFrameBytes));
  arguments.SetMaxSendMessageSize(static_cast<int>(kMaxFrameBytes));
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  if (tls) arguments.SetString(GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, TlsName(server));
  auto channel = grpc::CreateCustomChannel(address, MakeChannelCredentials(tls), arguments);
  for (auto state = channel->GetState(/*try_to_connect=*/true); state != GRPC_CHANNEL_READY;
       state = channel->GetState(true)) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) {
      return Unavailable("%s at %s cannot be reached", TaskName(server), address);
    }
    if (place && place->has_changed()) {
      return Unavailable("%s at %s: one of both ends has another address now", TaskName(server), address);
    }
    const TimePoint start = Now();
    if (start >= deadline) return Unavailable("%s at %s does not answer", TaskName(server), address);
    const Duration wait = place ? std::min<Duration>(kLookEvery, deadline - start) : deadline - start;
    (void)channel->WaitForStateChange(state,
                                      std::chrono::time_point_cast<std::chrono::system_clock::duration>(
                                          std::chrono::system_clock::now() + wait));
  }
  std::unique_ptr<ShardConnection> connection(
      new ShardConnection(std::move(place), address, std::move(queue), id));
  connection->Open(std::move(channel), transport, deadline);
  return connection;
}

ShardConnection::ShardConnection(std::optional<Place> place, std::string address,
                                 std::shared_ptr<FrameQueue> queue, uint64_t id)
    : place_(std::move(place)), address_(std::move(address)), queue_(std::move(queue)), id_(id) {
  auto let_go = std::make_shared<std::promise<void>>();
  let_go_ = let_go->get_future();
  lease_ = std::shared_ptr<const void>(let_go.get(), [let_go](const void*) { let_go->set_value(); });
}

void ShardConnection::GiveUpIfMoved() {
  if (place_->has_changed() && !has_moved_.exchange(true)) queue_->Push({id_, std::nullopt});
}

void ShardConnection::Open(std::shared_ptr<grpc::Channel> channel, Transport transport, TimePoint deadline) {
  if (place_) {
    watch_.emplace(place_->view->OnChange([this] { GiveUpIfMoved(); }));
    GiveUpIfMoved();  // since it was dialed
  }
  Stream::OnFrame on_frame = [this](std::optional<grpc::ByteBuffer> frame) {
    queue_->Push({id_, std::move(frame)});
  };
  if (const auto faults = injected.Get()) {
    const uint64_t stream = 2 * injected.NextStream();
    outgoing_faults_ = std::make_unique<FrameFaults>(
        *faults, stream, [this](grpc::ByteBuffer frame) { stream_->Send(std::move(frame), /*request=*/0); });
    incoming_faults_ = std::make_unique<FrameFaults>(*faults, stream + 1, [this](grpc::ByteBuffer frame) {
      queue_->Push({id_, std::move(frame)});
    });
    on_frame = [this](std::optional<grpc::ByteBuffer> frame) {
      frame ? incoming_faults_->Pass(*frame) : queue_->Push({id_, std::nullopt});
    };
  }
  if (transport == Transport::kAuto && LocalStream::IsUsable())
    stream_ = SameHostStream::Open(channel, deadline, queue_, on_frame, has_moved_);
  if (stream_ == nullptr) {
    stream_ = std::make_unique<GrpcStream>(std::move(channel), kExchangeMethod, queue_, std::move(on_frame));
  }
}

ShardConnection::~ShardConnection() {
  outgoing_faults_ = nullptr;
  stream_ = nullptr;
  incoming_faults_ = nullptr;
  lease_ = nullptr;
  if (let_go_.wait_for(kLetGoTimeout) != std::future_status::ready) {
    spdlog::error("{}: what was to be sent is held for {} after the end", address_, FormatAge(kLetGoTimeout));
  }
}

std::optional<TimePoint> ShardConnection::SentAt(uint64_t request) const {
  const Stream::Sent sent = stream_->last_sent();
  return sent.request == request ? std::optional(sent.at) : std::nullopt;
}

bool ShardConnection::is_local() const { return stream_->is_local(); }

uint64_t ShardConnection::Send(const ps::ClientHeader& header, const std::vector<grpc::Slice>& payload) {
  grpc::ByteBuffer frame = EncodeFrame(header, payload);
  const uint64_t bytes = frame.Length();
  outgoing_faults_ ? outgoing_faults_->Pass(frame) : stream_->Send(std::move(frame), header.request());
  return bytes;
}

absl::StatusOr<ShardReply> ShardConnection::Receive(TimePoint deadline) {
  const auto event = queue_->Pop(deadline, id_);
  if (!event) return DeadlineExceeded("%s: no answer", address_);
  return Decode(*event);
}

absl::StatusOr<ShardReply> ShardConnection::Decode(const FrameQueue::Event& event) const {
  if (!event.frame) {
    return Unavailable("%s: %s", address_,
                       has_moved_ ? "one of both ends has another address now" : "the connection broke");
  }
  ShardReply reply = {.bytes = event.frame->Length()};
  MUSTER_RETURN_IF_ERROR(Annotate(DecodeFrame(*event.frame, &reply.header, &reply.payload), address_));
  if (reply.header.version() != kWireVersion) {
    return FailedPrecondition("%s speaks version %d of the protocol, this worker version %d", address_,
                              reply.header.version(), kWireVersion);
  }
  return reply;
}

}  // namespace muster
