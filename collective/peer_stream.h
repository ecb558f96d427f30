// PeerStream: bytes to and from another rank, over TCP, with or without TLS.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "cluster/tls_identity.h"

namespace muster {

/// Never waits. One thread at a time. Failures are Unavailable and do not name the peer.
class PeerStream {
 public:
  virtual ~PeerStream() = default;

  /// As many bytes as go without waiting; 0: none now.
  virtual absl::StatusOr<size_t> Send(std::span<const std::byte> bytes) = 0;
  virtual absl::StatusOr<size_t> Receive(std::span<std::byte> room) = 0;

  /// Goes on with the greetings of TLS; true: they are done. What is sent or received before waits for them.
  virtual absl::StatusOr<bool> Greet() = 0;
  /// Whether the certificate of the other end is that of `name`, after Greet: PermissionDenied. Without TLS
  /// all names are.
  virtual absl::Status CheckPeerName(const std::string& name) = 0;

  /// What to poll for before Send, or Receive and Greet, are tried again after they could do nothing.
  virtual short events_to_send() const = 0;
  virtual short events_to_receive() const = 0;
  virtual int fd() const = 0;
};

/// Since anything came from the kernel at the other end, which is asked every second while nothing is on its
/// way. Zero while what is to be sent waits for room there: a rank that computes for long takes nothing, and
/// its kernel is hardly asked then. Whether it is still reached it finds out itself, when it wants more.
Duration SilenceOf(const PeerStream& stream);

/// Until the kernel at the other end has acknowledged something.
struct RoundTripTimes {
  Duration least = Duration::zero();
  Duration mean = Duration::zero();  // queues included
};
RoundTripTimes RoundTripOf(const PeerStream& stream);

/// What both ends of TLS need, read once.
class TlsContext {
 public:
  /// InvalidArgument: certificate, key or authority that are no PEM or do not fit together.
  static absl::StatusOr<std::shared_ptr<TlsContext>> Create(const TlsIdentity& identity);
  SSL_CTX* get() const { return context_.get(); }

 private:
  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  explicit TlsContext(SSL_CTX* context) : context_(context) {}
  const std::unique_ptr<SSL_CTX, Free> context_;
};

enum class StreamEnd { kDialed, kAccepted };

/// Over a connected socket that does not block. `tls` null: as it is.
absl::StatusOr<std::unique_ptr<PeerStream>> OpenPeerStream(UniqueFd socket, const TlsContext* tls,
                                                           StreamEnd end);

}  // namespace muster
