#include "agent/connection.h"

#include <sys/socket.h>

namespace muster {

Connection::Connection(UniqueFd socket) : socket_(std::move(socket)), output_(HelloLine()) {}

void Connection::Read() {
  char bytes[65536];
  const ssize_t n = ::recv(socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    gone_ = true;
    return;
  }
  if (greeted_) return frames_.Feed({bytes, static_cast<size_t>(n)});
  const absl::StatusOr<bool> found = hello_.Feed({bytes, static_cast<size_t>(n)});
  if (!found.ok())
    return Refuse(InvalidArgument("this is a muster-agent, and what came is no launcher's hello"));
  if (!*found) return;
  if (const absl::Status status = CheckProtocolVersion(hello_.version(), "the launcher", "the agent");
      !status.ok()) {
    return Refuse(status);
  }
  greeted_ = true;
  frames_.Feed(hello_.TakeRest());
}

std::optional<agent::Envelope> Connection::Next() {
  if (closing_ || gone_ || congested()) return std::nullopt;
  absl::StatusOr<std::optional<std::string>> frame = frames_.Next();
  if (!frame.ok()) {
    Refuse(frame.status());
    return std::nullopt;
  }
  if (!frame->has_value()) return std::nullopt;
  agent::Envelope envelope;
  if (!envelope.ParseFromString(**frame)) {
    Refuse(InvalidArgument("a frame of %d bytes is no Envelope", (*frame)->size()));
    return std::nullopt;
  }
  return envelope;
}

void Connection::Send(uint64_t id, agent::Response response) {
  agent::Envelope envelope;
  envelope.set_id(id);
  *envelope.mutable_response() = std::move(response);
  const std::string bytes = envelope.SerializeAsString();
  if (bytes.size() > kMaxFrameBytes) {
    return SendError(
        id, absl::ResourceExhaustedError(absl::StrFormat(
                "the answer has %d bytes, more than a frame can hold: ask for one job", bytes.size())));
  }
  if (sent_ > 0) {
    output_.erase(0, sent_);
    sent_ = 0;
  }
  AppendFrame(output_, bytes);
}

void Connection::SendError(uint64_t id, const absl::Status& status) {
  agent::Response response;
  response.mutable_error()->set_code(static_cast<int>(status.code()));
  response.mutable_error()->set_message(std::string(status.message()));
  response.set_last(true);
  Send(id, std::move(response));
}

void Connection::Refuse(const absl::Status& status) {
  SendError(0, status);
  closing_ = true;
}

void Connection::Flush() {
  while (wants_output()) {
    const ssize_t n =
        ::send(socket_.get(), output_.data() + sent_, output_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      if (errno != EAGAIN) gone_ = true;
      return;
    }
    sent_ += n;
  }
}

}  // namespace muster
