// MessageStream: messages over a PeerStream, each behind its length.
#pragma once

#include <google/protobuf/message_lite.h>

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "collective/interrupt.h"
#include "collective/peer_stream.h"

namespace muster {

/// A text as a message can have it beside others: its first 8 KiB, where it is longer.
std::string ShortText(const std::string& text);

/// Never waits. One thread at a time. Fails as the stream does, and with InvalidArgument: who is there does
/// not speak this protocol.
class MessageStream {
 public:
  explicit MessageStream(std::unique_ptr<PeerStream> stream) : stream_(std::move(stream)) {}

  /// Sends it with the next Flush. Less than 64 KiB: texts of others are cut by ShortText.
  void Queue(const google::protobuf::MessageLite& message);
  /// True: all is sent.
  absl::StatusOr<bool> Flush();
  bool is_flushed() const { return to_send_.empty(); }

  /// True: `message` is the next one. No byte is read beyond it.
  absl::StatusOr<bool> Receive(google::protobuf::MessageLite& message);

  /// Until this one has been sent.
  absl::Status Send(const google::protobuf::MessageLite& message, TimePoint deadline,
                    const Interrupt& interrupt);

  PeerStream& stream() { return *stream_; }
  /// What comes behind the messages.
  std::unique_ptr<PeerStream> Release() { return std::move(stream_); }

 private:
  std::unique_ptr<PeerStream> stream_;
  std::string to_send_;
  std::string received_;
};

/// Until `stream` may go on. Cancelled by `interrupt`; DeadlineExceeded.
absl::Status AwaitStream(const PeerStream& stream, short events, TimePoint deadline,
                         const Interrupt& interrupt);

}  // namespace muster
