#include "collective/message_stream.h"

#include <poll.h>

namespace muster {
namespace {

constexpr size_t kLengthBytes = 4;
constexpr size_t kMaxMessageBytes = 64 << 10;

constexpr size_t kMostTextBytes = 8 << 10;

}  // namespace

std::string ShortText(const std::string& text) {
  if (text.size() <= kMostTextBytes) return text;
  size_t end = kMostTextBytes;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xc0) == 0x80) --end;  // no half of a character
  return text.substr(0, end);
}

void MessageStream::Queue(const google::protobuf::MessageLite& message) {
  const std::string bytes = message.SerializeAsString();
  MUSTER_CHECK(bytes.size() < kMaxMessageBytes);
  for (size_t i = 0; i < kLengthBytes; ++i) to_send_ += static_cast<char>(bytes.size() >> (8 * i));
  to_send_ += bytes;
}

absl::StatusOr<bool> MessageStream::Flush() {
  while (!to_send_.empty()) {
    MUSTER_ASSIGN_OR_RETURN(const size_t sent, stream_->Send(std::as_bytes(std::span(to_send_))));
    if (sent == 0) return false;
    to_send_.erase(0, sent);
  }
  return true;
}

absl::StatusOr<bool> MessageStream::Receive(google::protobuf::MessageLite& message) {
  while (true) {
    size_t wanted = kLengthBytes;
    if (received_.size() >= kLengthBytes) {
      for (size_t i = 0; i < kLengthBytes; ++i) {
        wanted += static_cast<size_t>(static_cast<uint8_t>(received_[i])) << (8 * i);
      }
      if (wanted > kMaxMessageBytes) return InvalidArgument("it does not speak this protocol");
      if (received_.size() == wanted) break;
    }
    const size_t before = received_.size();
    received_.resize(wanted);
    const auto got = stream_->Receive(std::as_writable_bytes(std::span(received_)).subspan(before));
    received_.resize(before + (got.ok() ? *got : 0));
    MUSTER_RETURN_IF_ERROR(got.status());
    if (*got == 0) return false;
  }
  const bool is_one = message.ParseFromArray(received_.data() + kLengthBytes,
                                             static_cast<int>(received_.size() - kLengthBytes));
  received_.clear();
  if (!is_one) return InvalidArgument("it does not speak this protocol");
  return true;
}

absl::Status MessageStream::Send(const google::protobuf::MessageLite& message, TimePoint deadline,
                                 const Interrupt& interrupt) {
  Queue(message);
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const bool is_sent, Flush());
    if (is_sent) return absl::OkStatus();
    MUSTER_RETURN_IF_ERROR(AwaitStream(*stream_, stream_->events_to_send(), deadline, interrupt));
  }
}

absl::Status AwaitStream(const PeerStream& stream, short events, TimePoint deadline,
                         const Interrupt& interrupt) {
  pollfd fds[] = {{.fd = stream.fd(), .events = events, .revents = 0},
                  {.fd = interrupt.fd(), .events = POLLIN, .revents = 0}};
  const int ready = ::poll(fds, 2, MillisecondsUntil(deadline));
  if (interrupt.is_set()) return Cancelled("the group was given up");
  return ready == 0 ? DeadlineExceeded("it does not answer") : absl::OkStatus();
}

}  // namespace muster
