// How launcher and agent talk over a byte stream: each side first sends a hello line, then frames.
//
//   hello   "\nmuster-agent-protocol 2\n", with the version of what the sender speaks. It starts with a
//   newline, so that it is a
//           line of its own after whatever a login shell printed, and it is how the reader knows where that
//           ends.
//   frame   length (4 bytes, little-endian, at most kMaxFrameBytes), then that many bytes: a serialized
//   agent::Envelope.
//
// Both sides send their hello without waiting for the other's, and each checks what it reads, so that neither
// a launcher nor an agent has to be the newer one to notice a difference. Pure: bytes in, bytes out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace muster {

inline constexpr int kAgentProtocolVersion = 2;
inline constexpr size_t kMaxFrameBytes = size_t{16} << 20;

std::string HelloLine(int version = kAgentProtocolVersion);

/// FailedPrecondition with both numbers unless `their_version` is ours. `they` and `we` are for people: "the
/// agent on gpu-01".
absl::Status CheckProtocolVersion(int their_version, std::string_view they, std::string_view we);

/// Finds the other side's hello line behind noise. One thread at a time.
class HelloScanner {
 public:
  explicit HelloScanner(size_t max_noise_bytes = 65536) : max_noise_bytes_(max_noise_bytes) {}

  /// True once the line has been found; bytes after it are kept for TakeRest. InvalidArgument, quoting the
  /// end of what came, when more than `max_noise_bytes` arrived without one. Not to be called again after
  /// true or an error.
  absl::StatusOr<bool> Feed(std::string_view bytes);

  int version() const { return version_; }

  /// What came before the hello, or so far: the reason, when there is no agent to say one ("muster-agent: not
  /// found").
  const std::string& noise() const { return buffer_; }

  /// What followed the hello: the start of the frames.
  std::string TakeRest() { return std::move(rest_); }

 private:
  size_t max_noise_bytes_;
  int version_ = 0;
  std::string buffer_;
  std::string rest_;
};

/// Appends `payload` as one frame. Longer than kMaxFrameBytes is our own bug.
void AppendFrame(std::string& out, std::string_view payload);

/// Cuts a byte stream into frames, whatever the pieces it arrives in. Holds at most one frame and what was
/// fed with it. One thread at a time.
class FrameDecoder {
 public:
  void Feed(std::string_view bytes);

  /// The next whole frame's payload, or nothing until more is fed. InvalidArgument for a length beyond
  /// kMaxFrameBytes: the stream cannot be read further.
  absl::StatusOr<std::optional<std::string>> Next();

 private:
  std::string buffer_;
  size_t consumed_ = 0;
};

}  // namespace muster
