// The daemon's end of one bridge: hello, frames in, frames out, never blocking.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/file.h"
#include "base/framing.h"
#include "base/status.h"
#include "proto/agent.pb.h"

namespace muster {

/// Not thread-safe. Answers that the peer does not read are kept up to a bound: then no more requests are
/// taken from it (wants_input), and whoever produces answers without being asked waits (congested).
class Connection {
 public:
  /// A connected, non-blocking stream socket. Sends the hello.
  explicit Connection(UniqueFd socket);

  int fd() const { return socket_.get(); }
  bool wants_input() const { return !closing_ && !congested(); }
  bool wants_output() const { return sent_ < output_.size(); }
  bool congested() const { return output_.size() - sent_ >= kCongestedBytes; }

  /// Reads what is there. After garbage, a frame too long or another version an Error with id 0 is queued,
  /// and nothing more is read.
  void Read();

  /// The next request, while not congested.
  std::optional<agent::Envelope> Next();

  void Send(uint64_t id, agent::Response response);
  void SendError(uint64_t id, const absl::Status& status);

  /// Writes what the socket takes.
  void Flush();

  /// The peer is gone, or was refused and has been told so.
  bool finished() const { return gone_ || (closing_ && !wants_output()); }

 private:
  static constexpr size_t kCongestedBytes = size_t{1} << 20;

  void Refuse(const absl::Status& status);

  UniqueFd socket_;
  HelloScanner hello_{4096};
  bool greeted_ = false;
  bool closing_ = false;
  bool gone_ = false;
  FrameDecoder frames_;
  std::string output_;
  size_t sent_ = 0;
};

}  // namespace muster
