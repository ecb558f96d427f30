#include "ps/shard_connection.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace muster {

namespace {

constexpr Duration kLetGoTimeout = std::chrono::seconds(5);
constexpr Duration kLetGoPoll = std::chrono::microseconds(200);

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

class ShardConnection::Stream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stream(const std::shared_ptr<grpc::Channel>& channel, FrameQueue* queue, uint64_t id)
      : stub_(channel), queue_(queue), id_(id) {
    if (const auto faults = injected.Get()) {
      const uint64_t stream = 2 * injected.NextStream();
      outgoing_faults_.emplace(*faults, stream,
                               [this](grpc::ByteBuffer frame) { SendNow(std::move(frame)); });
      incoming_faults_.emplace(*faults, stream + 1, [this](grpc::ByteBuffer frame) {
        queue_->Push({id_, std::move(frame)});
      });
    }
    stub_.PrepareBidiStreamingCall(&context_, "/muster.ps.ParameterServer/Exchange", {}, this);
    StartRead(&incoming_);
    AddHold();  // so that writes may be started from outside a reaction
    StartCall();
  }

  /// After this no reaction runs.
  ~Stream() override {
    outgoing_faults_.reset();
    context_.TryCancel();
    RemoveHold();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
    lock.unlock();
    incoming_faults_.reset();
  }

  void Send(grpc::ByteBuffer frame) {
    if (outgoing_faults_) return outgoing_faults_->Pass(frame);
    SendNow(std::move(frame));
  }

  void SendNow(grpc::ByteBuffer frame) {
    const std::lock_guard lock(mutex_);
    outgoing_.push_back(std::move(frame));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      // Without the mutex: whoever takes it may send.
      if (incoming_faults_) {
        incoming_faults_->Pass(incoming_);
      } else {
        queue_->Push({id_, std::move(incoming_)});
      }
      incoming_ = grpc::ByteBuffer();
      StartRead(&incoming_);
    } else {
      const std::lock_guard lock(mutex_);
      Break();
    }
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    outgoing_.pop_front();
    if (ok && !outgoing_.empty()) StartWrite(&outgoing_.front());
    if (!ok) Break();
  }

  void OnDone(const grpc::Status&) override {
    const std::lock_guard lock(mutex_);
    Break();
    done_ = true;
    changed_.notify_all();
  }

 private:
  void Break() {
    if (!broken_) queue_->Push({id_, std::nullopt});
    broken_ = true;
  }

  grpc::GenericStub stub_;
  FrameQueue* const queue_;
  const uint64_t id_;
  grpc::ClientContext context_;
  grpc::ByteBuffer incoming_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<grpc::ByteBuffer> outgoing_;  // the front one is being written
  bool broken_ = false;
  bool done_ = false;
  std::optional<FrameFaults> outgoing_faults_, incoming_faults_;  // in tests
};

absl::StatusOr<std::unique_ptr<ShardConnection>> ShardConnection::Connect(
    const std::string& address, TaskId server, const std::optional<TlsIdentity>& tls, TimePoint deadline,
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
  const auto wall_deadline = std::chrono::time_point_cast<std::chrono::system_clock::duration>(
      std::chrono::system_clock::now() + (deadline - Now()));
  for (auto state = channel->GetState(/*try_to_connect=*/true); state != GRPC_CHANNEL_READY;
       state = channel->GetState(true)) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) {
      return Unavailable("%s at %s cannot be reached", TaskName(server), address);
    }
    if (!channel->WaitForStateChange(state, wall_deadline)) {
      return Unavailable("%s at %s does not answer", TaskName(server), address);
    }
  }
  return std::unique_ptr<ShardConnection>(
      new ShardConnection(std::move(channel), address, std::move(queue), id));
}

ShardConnection::ShardConnection(std::shared_ptr<grpc::Channel> channel, std::string address,
                                 std::shared_ptr<FrameQueue> queue, uint64_t id)
    : channel_(std::move(channel)),
      address_(std::move(address)),
      queue_(std::move(queue)),
      id_(id),
      stream_(std::make_unique<Stream>(channel_, queue_.get(), id)) {}

ShardConnection::~ShardConnection() {
  stream_ = nullptr;
  channel_ = nullptr;
  const TimePoint deadline = Now() + kLetGoTimeout;
  while (lease_.use_count() > 1 && Now() < deadline) std::this_thread::sleep_for(kLetGoPoll);
}

uint64_t ShardConnection::Send(const ps::ClientHeader& header, const std::vector<grpc::Slice>& payload) {
  grpc::ByteBuffer frame = EncodeFrame(header, payload);
  const uint64_t bytes = frame.Length();
  stream_->Send(std::move(frame));
  return bytes;
}

absl::StatusOr<ShardReply> ShardConnection::Receive(TimePoint deadline) {
  const auto event = queue_->Pop(deadline, id_);
  if (!event) return DeadlineExceeded("%s: no answer", address_);
  return Decode(*event);
}

absl::StatusOr<ShardReply> ShardConnection::Decode(const FrameQueue::Event& event) const {
  if (!event.frame) return Unavailable("%s: the connection broke", address_);
  ShardReply reply = {.bytes = event.frame->Length()};
  MUSTER_RETURN_IF_ERROR(Annotate(DecodeFrame(*event.frame, &reply.header, &reply.payload), address_));
  if (reply.header.version() != kWireVersion) {
    return FailedPrecondition("%s speaks version %d of the protocol, this worker version %d", address_,
                              reply.header.version(), kWireVersion);
  }
  return reply;
}

}  // namespace muster
