// FrameServer: streams of frames, in and out, of a parameter server: over gRPC, or past the network with
// tasks of the same host.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "ps/tls.h"
#include "ps/transport.h"

namespace muster {

/// Any thread may call any method.
class FrameServer {
 public:
  using StreamId = uint64_t;  // never used twice

  /// For one stream one call after the other, for several at the same time.
  class Handler {
   public:
    virtual ~Handler() = default;
    /// `frame` may be taken, so that its memory is free as soon as what it brought is.
    virtual void OnFrame(StreamId stream, grpc::ByteBuffer* frame) = 0;
    /// Nothing comes from this stream any more.
    virtual void OnClosed(StreamId stream) = 0;
  };

  /// Listens; by Transport::kAuto tasks of this host may also come past the network, if this process can
  /// share memory. AlreadyExists: the port is taken. Unavailable: the address is not one of this machine.
  /// `handler` must live longer than the server, and may be called before this returns.
  static absl::StatusOr<std::unique_ptr<FrameServer>> Listen(const std::string& address,
                                                             const std::optional<TlsIdentity>& tls,
                                                             Transport transport, Handler* handler);

  /// As Shutdown.
  virtual ~FrameServer() = default;

  /// Breaks all streams and frees the port. Handlers that run may call the other methods; when it returns,
  /// none runs any more.
  virtual void Shutdown() = 0;

  /// Listens there as well. Fails as ListenTcp does; not during Shutdown.
  virtual absl::Status ListenAlso(const std::string& address) = 0;

  /// To a stream that is gone: nothing happens.
  virtual void Send(StreamId stream, grpc::ByteBuffer frame) = 0;

  /// PermissionDenied unless the peer's certificate names `task`; Unavailable if it is gone.
  virtual absl::Status CheckPeer(StreamId stream, TaskId task) const = 0;

  /// For people: "ipv4:10.0.0.7:45678".
  virtual std::string PeerOf(StreamId stream) const = 0;

  /// Of all frames that have come, and that were sent, in bytes.
  virtual uint64_t received_bytes() const = 0;
  virtual uint64_t sent_bytes() const = 0;

  /// Until all streams are closed. False: not until the deadline.
  virtual bool AwaitClosed(TimePoint deadline) = 0;
};

}  // namespace muster
