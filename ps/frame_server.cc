#include "ps/frame_server.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/logging.h"
#include "base/random.h"
#include "cluster/acceptor.h"
#include "cluster/listening.h"
#include "proto/parameter_server.pb.h"
#include "ps/completion.h"
#include "ps/local_stream.h"
#include "ps/wire.h"

namespace muster {
namespace {

class Service;

constexpr int kTokenLength = 40;      // 206 bits
constexpr size_t kMaxArrivals = 256;  // processes of this host that have not shown a token
// What is done with larger frames takes so long that others are to be received meanwhile.
constexpr size_t kLargeFrame = 256 << 10;
// Who is sent so many and reads none of them is hung up on.
constexpr size_t kMaxOutgoing = 4096;
constexpr Duration kTakeOverAfter = std::chrono::milliseconds(10);

// A call, from before it comes until none of its operations is under way any more; the service has a share of
// it until then. Any thread, but for the completions.
class Stream final {
 public:
  Stream(Service* service, FrameServer::StreamId id) : service_(service), id_(id) {}

  grpc::GenericServerContext* context() { return &context_; }
  const grpc::GenericServerContext& context() const { return context_; }
  grpc::GenericServerAsyncReaderWriter* call() { return &call_; }
  Completion* on_call() { return &on_call_; }

  void Begin() {
    const std::lock_guard lock(mutex_);
    Read();
  }

  /// Instead of all frames: to a client that may be on this host.
  void Offer(const std::string& name, const std::string& token) {
    ps::SameHostOffer offer;
    offer.set_name(name);
    offer.set_token(token);
    const grpc::Slice bytes(offer.SerializeAsString());
    is_offer_ = true;
    Send(grpc::ByteBuffer(&bytes, 1));
  }

  void Send(grpc::ByteBuffer frame) {
    const std::lock_guard lock(mutex_);
    if (end_) return;
    if (local_ != nullptr) {
      if (local_->Send(std::move(frame)) > kMaxOutgoing) local_->Break();
      return;
    }
    if (outgoing_.size() == kMaxOutgoing) return context_.TryCancel();
    outgoing_.push_back(std::move(frame));
    if (outgoing_.size() == 1) Write();
  }

  /// From now on frames go through it, and gRPC only says how long. False: the stream has ended.
  bool GoLocal(std::unique_ptr<LocalStream>& local) {
    const std::lock_guard lock(mutex_);
    if (end_) return false;
    local_ = std::move(local);
    (void)local_->Send(grpc::ByteBuffer());
    return true;
  }

  void OnLocalFrame(const std::optional<grpc::ByteBuffer>& frame);

  /// Ends the stream after what is being sent; the client sees `status`.
  void Close(const grpc::Status& status) {
    const std::lock_guard lock(mutex_);
    CloseLocked(status);
  }

 private:
  // A local stream ends first, so that nothing of it runs when this does.
  void End() {
    const std::lock_guard lock(mutex_);
    if (local_ != nullptr) return local_->Break();
    CloseLocked(grpc::Status::OK);
  }

  void CloseLocked(const grpc::Status& status) {
    if (end_) return;
    end_ = status;
    if (outgoing_.empty()) return Finish();
    outgoing_.erase(outgoing_.begin() + 1, outgoing_.end());
  }

  // The mutex is held.
  void Read() {
    ++under_way_;
    call_.Read(&incoming_, on_read_.tag());
  }
  void Write() {
    ++under_way_;
    call_.Write(outgoing_.front(), on_write_.tag());
  }
  void Finish() {
    ++under_way_;
    call_.Finish(*end_, on_finish_.tag());
  }

  void OnRead(bool ok);
  void HandleFrame();
  void OnWrite(bool ok);
  void OnFinish();
  void OperationDone();

  Service* const service_;
  const FrameServer::StreamId id_;
  Completion on_call_, on_read_{[this](bool ok) { OnRead(ok); }}, on_write_{[this](bool ok) { OnWrite(ok); }},
      on_finish_{[this](bool) { OnFinish(); }};
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter call_{&context_};
  grpc::ByteBuffer incoming_;
  bool is_offer_ = false;                  // never changes once reading has begun
  std::mutex mutex_;                       // guards the following, and that operations are started
  int under_way_ = 0;                      // operations
  std::deque<grpc::ByteBuffer> outgoing_;  // the front one is being written
  std::optional<grpc::Status> end_;
  bool has_finished_ = false;
  std::unique_ptr<LocalStream> local_;
};

// Threads that handle what comes out of a completion queue. One of them takes it out, so that no message
// wakes up another; when that one has not come back to it for a while, because it waits for a lock, the next
// takes its place.
class Handlers {
 public:
  Handlers(grpc::CompletionQueue* queue, size_t count) : queue_(queue) {
    for (size_t i = 0; i < count; ++i) {
      threads_.emplace_back([this] { Run(); });
    }
  }

  /// By another of the threads: what takes its time.
  void Add(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(work));
    changed_.notify_one();
  }

  /// Waits until the queue is shut down and empty, and all is done.
  ~Handlers() = default;

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (!waiting_.empty() || !is_over_) {
      if (!waiting_.empty()) {
        const auto work = std::move(waiting_.front());
        waiting_.pop_front();
        if (!is_watched_) changed_.notify_one();
        lock.unlock();
        work();
        lock.lock();
      } else if (!poller_ || IsLate()) {
        Poll(lock);
      } else if (!is_watched_) {
        is_watched_ = true;
        changed_.wait_for(lock, kTakeOverAfter);
        is_watched_ = false;
      } else {
        changed_.wait(lock);
      }
    }
  }

  // Until another thread has taken over.
  void Poll(std::unique_lock<std::mutex>& lock) {
    poller_ = std::this_thread::get_id();
    busy_since_ = TimePoint();
    changed_.notify_one();  // somebody is to watch
    while (poller_ == std::this_thread::get_id()) {
      lock.unlock();
      void* tag;
      bool ok;
      const bool has_more = queue_->Next(&tag, &ok);
      if (has_more) {
        busy_since_ = Now();
        Completion::Run(tag, ok);
      }
      lock.lock();
      if (poller_ == std::this_thread::get_id()) busy_since_ = TimePoint();
      if (!has_more) {
        is_over_ = true;
        changed_.notify_all();
        return;
      }
    }
  }

  bool IsLate() const {
    const TimePoint since = busy_since_;
    return since != TimePoint() && Now() > since + kTakeOverAfter;
  }

  grpc::CompletionQueue* const queue_;
  std::atomic<TimePoint> busy_since_ = TimePoint();  // the poller; TimePoint(): it waits for the queue
  std::mutex mutex_;                                 // guards the following
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::optional<std::thread::id> poller_;
  bool is_watched_ = false;
  bool is_over_ = false;
  std::vector<std::jthread> threads_;  // the last member: they use the others
};

// To gRPC, which keeps it.
void HandOver(grpc::experimental::ExternalConnectionAcceptor& grpc, UniqueFd connection, int listening) {
  const int on = 1;
  (void)::setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.listener_fd = listening;
  parameters.fd = connection.release();
  grpc.HandleNewConnection(&parameters);
}

class Service final : public FrameServer {
 public:
  Service(Transport transport, FrameServer::Handler* handler) : transport_(transport), handler_(handler) {}
  ~Service() override { Service::Shutdown(); }

  void Shutdown() override {
    listener_ = nullptr;
    {
      const std::lock_guard lock(elsewhere_mutex_);
      is_over_ = true;
      elsewhere_.reset();
    }
    if (server_ != nullptr) {
      server_->Shutdown(std::chrono::system_clock::now());
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return streams_.empty() && next_ == nullptr; });
    }
    server_ = nullptr;
    external_ = nullptr;
    if (queue_ != nullptr) queue_->Shutdown();
    handlers_.reset();
    queue_ = nullptr;
    std::vector<std::unique_ptr<LocalStream>> locals;  // whose threads may want the mutex
    {
      const std::lock_guard lock(mutex_);
      for (const auto& arrival : arrivals_) locals.push_back(std::move(arrival->local));
      arrivals_.clear();
    }
  }

  absl::Status Listen(const std::string& address, const std::optional<TlsIdentity>& tls);

  absl::Status ListenAlso(const std::string& address) override {
    MUSTER_ASSIGN_OR_RETURN(UniqueFd socket, ListenTcp(address));
    const std::lock_guard lock(elsewhere_mutex_);
    if (is_over_) return Cancelled("the server has ended");
    if (!elsewhere_) {
      elsewhere_.emplace([this](UniqueFd connection, int listening) {
        HandOver(*external_, std::move(connection), listening);
      });
    }
    elsewhere_->Add(std::move(socket));
    return absl::OkStatus();
  }

  void Send(StreamId id, grpc::ByteBuffer frame) override {
    const std::shared_ptr<Stream> stream = Find(id);
    if (stream == nullptr) return;
    sent_bytes_ += frame.Length();
    stream->Send(std::move(frame));
  }

  absl::Status CheckPeer(StreamId id, TaskId task) const override {
    const std::shared_ptr<Stream> stream = Find(id);
    if (stream == nullptr) return Unavailable("%s has hung up", TaskName(task));
    return muster::CheckPeer(*stream->context()->auth_context(), task);
  }

  std::string PeerOf(StreamId id) const override {
    const std::shared_ptr<Stream> stream = Find(id);
    return stream == nullptr ? "a peer that has hung up" : stream->context()->peer();
  }

  bool AwaitClosed(TimePoint deadline) override {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline, [this] { return streams_.empty(); });
  }

  uint64_t received_bytes() const override { return received_bytes_; }
  uint64_t sent_bytes() const override { return sent_bytes_; }

  /// From streams.
  void OnFrame(StreamId id, grpc::ByteBuffer* frame) {
    received_bytes_ += frame->Length();
    handler_->OnFrame(id, frame);
  }
  void HandleLater(std::function<void()> handle) { handlers_->Add(std::move(handle)); }
  void Remove(StreamId id) {
    std::shared_ptr<Stream> stream;  // its end waits for threads that may want the mutex
    {
      const std::lock_guard lock(mutex_);
      stream = std::move(streams_.extract(id).mapped());
      std::erase_if(offers_, [&](const auto& offer) { return offer.second == stream.get(); });
      changed_.notify_all();
    }
    handler_->OnClosed(id);
  }

 private:
  std::shared_ptr<Stream> Find(StreamId id) const {
    const std::lock_guard lock(mutex_);
    const auto stream = streams_.find(id);
    return stream == streams_.end() ? nullptr : stream->second;
  }

  // Lets the next call come. The mutex is held.
  void Accept() {
    next_ = std::make_shared<Stream>(this, ++last_id_);
    next_->on_call()->done = [this](bool ok) { OnCall(ok); };
    generic_.RequestCall(next_->context(), next_->call(), queue_.get(), queue_.get(),
                         next_->on_call()->tag());
  }

  void OnCall(bool ok) {
    std::shared_ptr<Stream> stream;
    const std::string token = RandomName(kTokenLength);
    bool is_local = false;
    {
      const std::lock_guard lock(mutex_);
      stream = std::exchange(next_, nullptr);
      changed_.notify_all();
      if (!ok) return;  // the server has ended
      streams_[last_id_] = stream;
      is_local = stream->context()->method() == kSameHostMethod && offers_local_ && LocalStream::IsUsable();
      if (is_local) offers_[token] = stream.get();
      Accept();
    }
    if (!is_local && stream->context()->method() != kExchangeMethod) {
      return stream->Close({grpc::StatusCode::UNIMPLEMENTED, "no such method"});
    }
    if (is_local) stream->Offer(local_name_, token);
    stream->Begin();
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
  grpc::AsyncGenericService generic_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> external_;  // of server_
  std::mutex elsewhere_mutex_;                                                // guards the following
  std::optional<Acceptor> elsewhere_;  // none: it listens where it began only
  bool is_over_ = false;
  std::optional<Handlers> handlers_;
  mutable std::mutex mutex_;  // guards the following
  std::condition_variable changed_;
  std::shared_ptr<Stream> next_;  // the call that is to come
  std::map<StreamId, std::shared_ptr<Stream>> streams_;
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
  if (!offer.mapped()->GoLocal(arrival.local)) {
    arrival.is_over = true;
    return false;
  }
  arrival.stream = offer.mapped();
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

void Stream::OnRead(bool ok) {
  if (ok && !is_offer_) {
    if (incoming_.Length() < kLargeFrame) return HandleFrame();
    return service_->HandleLater([this] { HandleFrame(); });
  }
  End();
  OperationDone();
}

void Stream::HandleFrame() {
  service_->OnFrame(id_, &incoming_);
  incoming_.Clear();
  {
    const std::lock_guard lock(mutex_);
    if (!end_) Read();
  }
  OperationDone();
}

void Stream::OnWrite(bool ok) {
  {
    const std::lock_guard lock(mutex_);
    outgoing_.pop_front();
    if (!ok) {
      outgoing_.clear();
      context_.TryCancel();  // nothing is to come that builds upon what was lost
    }
    if (!outgoing_.empty()) {
      Write();
    } else if (end_) {
      Finish();
    }
  }
  OperationDone();
}

void Stream::OnFinish() {
  {
    const std::lock_guard lock(mutex_);
    has_finished_ = true;
  }
  OperationDone();
}

// The last that a completion does: it may be the end of this object.
void Stream::OperationDone() {
  {
    const std::lock_guard lock(mutex_);
    if (--under_way_ > 0 || !has_finished_) return;
  }
  service_->Remove(id_);
}

// gRPC does not say why.
absl::Status ExplainListenFailure(const std::string& address) {
  const absl::Status here = ListenTcp(address).status();
  if (here.ok()) return AlreadyExists("cannot listen on %s: another process has the port", address);
  if (absl::IsAlreadyExists(here)) return here;
  return Unavailable("%s; if this machine has it behind another address, give --bind_host=0.0.0.0",
                     std::string(here.message()));
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
  external_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, MakeServerCredentials(tls));
  builder.RegisterAsyncGenericService(&generic_);
  queue_ = builder.AddCompletionQueue();
  builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxFrameBytes));
  builder.SetMaxSendMessageSize(static_cast<int>(kMaxFrameBytes));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Until then a stranger who says nothing keeps a descriptor.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
  // Clients ping every 10 s to notice a dead server; gRPC's default would call that abuse and hang up.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  server_ = builder.BuildAndStart();
  handlers_.emplace(queue_.get(), std::clamp<size_t>(std::thread::hardware_concurrency(), 4, 8));
  if (server_ == nullptr || port == 0) return ExplainListenFailure(address);
  const std::lock_guard lock(mutex_);
  Accept();
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
