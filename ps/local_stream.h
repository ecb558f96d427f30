// LocalStream: frames between two processes of one host, past the network: small ones through a unix socket,
// larger ones through memory that both have.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/file.h"
#include "base/status.h"

namespace muster {

/// One end of a connection. Frames arrive whole, once and in order, until the stream breaks: the other
/// process has ended, has called Break, or sends what this class would not. Any thread.
class LocalStream {
 public:
  /// Called by the stream's thread, one call after the other; may call Send and Break. No frame: the stream
  /// broke, which is the last call. False: nothing more is to be read, and the stream breaks. The first frame
  /// is a small one. A large one may lie in shared memory, which the sender uses again once all copies of the
  /// buffer are gone; as many as one likes may be kept.
  using OnFrame = std::function<bool(std::optional<grpc::ByteBuffer> frame)>;

  enum class Copying {
    kAtOnce,  // by who sends
    kLater,   // large frames by the stream's thread, since who sends may hold a lock that others want
  };

  /// Over a connected SOCK_SEQPACKET socket. ResourceExhausted: no descriptors.
  static absl::StatusOr<std::unique_ptr<LocalStream>> Open(UniqueFd socket, Copying copying,
                                                           OnFrame on_frame);

  /// Whether this process can share memory, as far as it has tried; some containers forbid it.
  static bool IsUsable();

  /// After this no call comes, and nothing that was sent is read any more. Not on the stream's thread.
  virtual ~LocalStream() = default;

  /// Returns how many frames wait, this one included, because the other end takes none, or for the stream's
  /// thread.
  virtual size_t Send(grpc::ByteBuffer frame) = 0;
  /// What has arrived is still given to OnFrame.
  virtual void Break() = 0;
};

/// Takes connections of the same user, under a name that only this network namespace has, and no file system.
class LocalListener {
 public:
  /// `on_connect`: called by a thread of this object.
  static absl::StatusOr<std::unique_ptr<LocalListener>> Listen(const std::string& name,
                                                               std::function<void(UniqueFd)> on_connect);
  ~LocalListener();

 private:
  LocalListener(UniqueFd socket, std::function<void(UniqueFd)> on_connect);

  const UniqueFd socket_;
  const std::function<void(UniqueFd)> on_connect_;
  std::jthread thread_;  // the last member: it uses the others
};

}  // namespace muster
