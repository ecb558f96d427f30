#include "ps/frame_server.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <netdb.h>
#include <sys/socket.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "base/file.h"
#include "ps/wire.h"

namespace muster {
namespace {

class Service;

// Lives until gRPC calls OnDone, which comes after Finish; every method may run on any thread.
class Stream final : public grpc::ServerGenericBidiReactor {
 public:
  Stream(Service* service, FrameServer::StreamId id, grpc::GenericCallbackServerContext* context)
      : service_(service), id_(id), auth_(context->auth_context()), peer_(context->peer()) {}

  void Begin() { StartRead(&incoming_); }

  void Send(grpc::ByteBuffer frame) {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    outgoing_.push_back(std::move(frame));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    outgoing_.pop_front();
    if (ok && !finished_ && !outgoing_.empty()) StartWrite(&outgoing_.front());
  }
  void OnCancel() override { Close(grpc::Status::CANCELLED); }
  void OnDone() override;

  const grpc::AuthContext& auth() const { return *auth_; }
  const std::string& peer() const { return peer_; }

 private:
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
};

class Service final : public FrameServer, private grpc::CallbackGenericService {
 public:
  explicit Service(FrameServer::Handler* handler) : handler_(handler) {}
  ~Service() override { Service::Shutdown(); }

  void Shutdown() override {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_ = nullptr;  // waits for all reactions
  }

  absl::Status Listen(const std::string& address, const std::optional<TlsIdentity>& tls);

  void Send(StreamId id, grpc::ByteBuffer frame) override {
    const std::lock_guard lock(mutex_);  // a stream in the map is not deleted
    if (const auto stream = streams_.find(id); stream != streams_.end())
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

  void OnFrame(StreamId id, const grpc::ByteBuffer& frame) { handler_->OnFrame(id, frame); }

  void Remove(StreamId id) {
    {
      const std::lock_guard lock(mutex_);
      streams_.erase(id);
      changed_.notify_all();
    }
    handler_->OnClosed(id);
  }

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    if (context->method() != "/muster.ps.ParameterServer/Exchange") {
      return grpc::CallbackGenericService::CreateReactor(context);  // answers UNIMPLEMENTED
    }
    Stream* stream;
    {
      const std::lock_guard lock(mutex_);
      stream = new Stream(this, ++last_id_, context);
      streams_[last_id_] = stream;
    }
    stream->Begin();
    return stream;
  }

  FrameServer::Handler* const handler_;
  std::unique_ptr<grpc::Server> server_;
  mutable std::mutex mutex_;  // guards the following
  std::condition_variable changed_;
  std::map<StreamId, Stream*> streams_;
  StreamId last_id_ = 0;
};

void Stream::OnReadDone(bool ok) {
  if (!ok) {
    Close(grpc::Status::OK);
    return;
  }
  service_->OnFrame(id_, incoming_);
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
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address, MakeServerCredentials(tls), &port);
  builder.RegisterCallbackGenericService(this);
  builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxFrameBytes));
  builder.SetMaxSendMessageSize(static_cast<int>(kMaxFrameBytes));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
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
                                                                 Handler* handler) {
  auto service = std::make_unique<Service>(handler);
  MUSTER_RETURN_IF_ERROR(service->Listen(address, tls));
  return service;
}

}  // namespace muster
