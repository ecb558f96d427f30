#include "ps/frame_server.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <mutex>

#include "base/file.h"
#include "base/logging.h"
#include "base/random.h"
#include "proto/parameter_server.pb.h"
#include "ps/local_stream.h"
#include "ps/wire.h"

namespace muster {
namespace {

class Service;

constexpr int kTokenLength = 40;      // 206 bits
constexpr size_t kMaxArrivals = 256;  // processes of this host that have not shown a token

// Lives until gRPC calls OnDone, which comes after Finish; every method may run on any thread.
class Stream final : public grpc::ServerGenericBidiReactor {
 public:
  Stream(Service* service, FrameServer::StreamId id, grpc::GenericCallbackServerContext* context)
      : service_(service), id_(id), auth_(context->auth_context()), peer_(context->peer()) {}

  void Begin() { StartRead(&incoming_); }

  /// Instead of all frames: to a client that may be on this host.
  void Offer(const std::string& name, const std::string& token) {
    ps::SameHostOffer offer;
    offer.set_name(name);
    offer.set_token(token);
    const grpc::Slice bytes(offer.SerializeAsString());
    Send(grpc::ByteBuffer(&bytes, 1));
    is_offer_ = true;
  }

  void Send(grpc::ByteBuffer frame) {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    if (local_ != nullptr) return local_->Send(std::move(frame));
    outgoing_.push_back(std::move(frame));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  /// From now on frames go through it, and gRPC only says how long.
  void GoLocal(std::unique_ptr<LocalStream> local) {
    const std::lock_guard lock(mutex_);
    local_ = std::move(local);
    local_->Send(grpc::ByteBuffer());
    if (finished_) local_->Break();
  }

  void OnLocalFrame(const std::optional<grpc::ByteBuffer>& frame);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    outgoing_.pop_front();
    if (ok && !finished_ && !outgoing_.empty()) StartWrite(&outgoing_.front());
  }
  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void OnDone() override;

  const grpc::AuthContext& auth() const { return *auth_; }
  const std::string& peer() const { return peer_; }

 private:
  // A local stream ends first, so that nothing of it runs when this does.
  void End(const grpc::Status& status) {
    {
      const std::lock_guard lock(mutex_);
      if (local_ != nullptr) return local_->Break();
    }
    Close(status);
  }

  // Ends the stream after what has been sent; the client sees `status`.
  void Close(const grpc::Status& status) {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    finished_ = true;
    Finish(status);
  }

  Service* const service_;
  const FrameServer::StreamId id_;
  const std::shared_ptr<const grpc::AuthContext> auth_;
  const std::string peer_;
  grpc::ByteBuffer incoming_;
  std::mutex mutex_;
  std::deque<grpc::ByteBuffer> outgoing_;  // the front one is being written
  bool finished_ = false;
  bool is_offer_ = false;  // never changes once reading has begun
  std::unique_ptr<LocalStream> local_;
};

class Service final : public FrameServer, private grpc::CallbackGenericService {
 public:
  Service(Transport transport, FrameServer::Handler* handler) : transport_(transport), handler_(handler) {}
  ~Service() override { Service::Shutdown(); }

  void Shutdown() override {
    listener_ = nullptr;
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_ = nullptr;                                 // waits for all reactions
    std::vector<std::unique_ptr<LocalStream>> locals;  // whose threads may want the mutex
    {
      const std::lock_guard lock(mutex_);
      for (const auto& arrival : arrivals_) locals.push_back(std::move(arrival->local));
      arrivals_.clear();
    }
  }

  absl::Status Listen(const std::string& address, const std::optional<TlsIdentity>& tls);

  void Send(StreamId id, grpc::ByteBuffer frame) override {
    const std::lock_guard lock(mutex_);  // a stream in the map is not deleted
    const auto stream = streams_.find(id);
    if (stream == streams_.end()) return;
    sent_bytes_ += frame.Length();
    stream->second->Send(std::move(frame));
  }

  absl::Status CheckPeer(StreamId id, TaskId task) const override {
    const std::lock_guard lock(mutex_);
    const auto stream = streams_.find(id);
    if (stream == streams_.end()) return Unavailable("%s has hung up", TaskName(task));
    return muster::CheckPeer(stream->second->auth(), task);
  }

  std::string PeerOf(StreamId id) const override {
    const std::lock_guard lock(mutex_);
    const auto stream = streams_.find(id);
    return stream == streams_.end() ? "a peer that has hung up" : stream->second->peer();
  }

  void AwaitClosed(TimePoint deadline) override {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [this] { return streams_.empty(); });
  }

  uint64_t received_bytes() const override { return received_bytes_; }
  uint64_t sent_bytes() const override { return sent_bytes_; }

  void OnFrame(StreamId id, grpc::ByteBuffer* frame) {
    received_bytes_ += frame->Length();
    handler_->OnFrame(id, frame);
  }

  void Remove(StreamId id) {
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(offers_, [&](const auto& offer) { return offer.second == streams_[id]; });
      streams_.erase(id);
      changed_.notify_all();
    }
    handler_->OnClosed(id);
  }

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    const bool is_local = context->method() == kSameHostMethod && offers_local_ && LocalStream::IsUsable();
    if (context->method() != kExchangeMethod && !is_local) {
      return grpc::CallbackGenericService::CreateReactor(context);  // answers UNIMPLEMENTED
    }
    const std::string token = RandomName(kTokenLength);
    Stream* stream;
    {
      const std::lock_guard lock(mutex_);
      stream = new Stream(this, ++last_id_, context);
      streams_[last_id_] = stream;
      if (is_local) offers_[token] = stream;
    }
    if (is_local) stream->Offer(local_name_, token);
    stream->Begin();
    return stream;
  }

  // A process of this host. Its own until it has shown its token, then its stream's, from inside of the local
  // one.
  struct Arrival {
    std::unique_ptr<LocalStream> local;
    Stream* stream = nullptr;
    std::atomic<bool> is_over = false;
  };
  void OnConnect(UniqueFd socket);
  bool OnArrival(Arrival& arrival, const std::optional<grpc::ByteBuffer>& frame);

  const Transport transport_;
  FrameServer::Handler* const handler_;
  const std::string local_name_ = "muster-" + RandomName(kTokenLength);
  std::unique_ptr<LocalListener> listener_;
  bool offers_local_ = false;  // never changes once it listens
  std::atomic<uint64_t> received_bytes_ = 0;
  std::atomic<uint64_t> sent_bytes_ = 0;
  std::unique_ptr<grpc::Server> server_;
  mutable std::mutex mutex_;  // guards the following
  std::condition_variable changed_;
  std::map<StreamId, Stream*> streams_;
  StreamId last_id_ = 0;
  std::map<std::string, Stream*> offers_;  // by token
  std::list<std::shared_ptr<Arrival>> arrivals_;
};

void Service::OnConnect(UniqueFd socket) {
  const std::lock_guard lock(mutex_);
  std::erase_if(arrivals_, [](const auto& arrival) {
    if (arrival->is_over) arrival->local = nullptr;
    return arrival->local == nullptr;
  });
  if (arrivals_.size() == kMaxArrivals) return;  // they have the token when they connect
  const auto arrival = std::make_shared<Arrival>();
  auto local = LocalStream::Open(
      std::move(socket), LocalStream::Copying::kLater,
      [this, arrival](const std::optional<grpc::ByteBuffer>& frame) { return OnArrival(*arrival, frame); });
  if (!local.ok()) return;  // the client takes gRPC
  arrival->local = *std::move(local);
  arrivals_.push_back(arrival);
}

// False: it has no token.
bool Service::OnArrival(Arrival& arrival, const std::optional<grpc::ByteBuffer>& frame) {
  if (arrival.stream != nullptr) {
    arrival.stream->OnLocalFrame(frame);
    return true;
  }
  if (!frame) {
    arrival.is_over = true;
    return false;
  }
  const std::string token = frame->Length() == kTokenLength ? BytesOf(*frame) : "";
  const std::lock_guard lock(mutex_);
  if (arrival.local == nullptr) return false;  // the server has ended
  const auto offer = offers_.extract(token);
  if (offer.empty()) {
    spdlog::warn("a process of this host that has no token is hung up on");
    return false;
  }
  arrival.stream = offer.mapped();
  arrival.stream->GoLocal(std::move(arrival.local));
  return true;
}

void Stream::OnLocalFrame(const std::optional<grpc::ByteBuffer>& frame) {
  if (frame) {
    grpc::ByteBuffer share = *frame;
    service_->OnFrame(id_, &share);
  } else {
    Close(grpc::Status::OK);
  }
}

void Stream::OnReadDone(bool ok) {
  if (!ok || is_offer_) return End(grpc::Status::OK);
  service_->OnFrame(id_, &incoming_);
  incoming_.Clear();
  const std::lock_guard lock(mutex_);
  if (!finished_) StartRead(&incoming_);
}

void Stream::OnDone() {
  service_->Remove(id_);
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

absl::Status Service::Listen(const std::string& address, const std::optional<TlsIdentity>& tls) {
  if (transport_ == Transport::kAuto) {
    auto listener = LocalListener::Listen(local_name_, [this](UniqueFd fd) { OnConnect(std::move(fd)); });
    if (listener.ok() && LocalStream::IsUsable()) {
      listener_ = *std::move(listener);
    } else {
      spdlog::info("workers on this host use TCP, too: this process may not share memory");
    }
    offers_local_ = listener_ != nullptr;
  }
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address, MakeServerCredentials(tls), &port);
  builder.RegisterCallbackGenericService(this);
  builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxFrameBytes));
  builder.SetMaxSendMessageSize(static_cast<int>(kMaxFrameBytes));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // gRPC's own estimate of how much a peer could send ends with megabytes that each idle connection keeps for
  // it. This much is on its way at most, which is 400 MB/s over 10 ms.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4 << 20);
  // Clients ping every 10 s to notice a dead server; gRPC's default would call that abuse and hang up.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port == 0) return ExplainListenFailure(address);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<FrameServer>> FrameServer::Listen(const std::string& address,
                                                                 const std::optional<TlsIdentity>& tls,
                                                                 Transport transport, Handler* handler) {
  auto service = std::make_unique<Service>(transport, handler);
  MUSTER_RETURN_IF_ERROR(service->Listen(address, tls));
  return service;
}

}  // namespace muster
