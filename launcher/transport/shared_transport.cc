#include "launcher/transport/shared_transport.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/file.h"
#include "base/local_socket.h"
#include "launcher/transport/guest_commands.h"
#include "proto/shared_connection.pb.h"

namespace muster {
namespace {

constexpr size_t kInputBytes = 32 << 10;
constexpr size_t kMostAnswerBytes = 64 << 10;
constexpr Duration kTimeToSayReady = std::chrono::seconds(2);  // of all lenders: a login takes less
constexpr Duration kTimeToStart = std::chrono::seconds(15);    // longer than the lender's own

// Nothing: it has not come yet. Unavailable: the lender has gone.
absl::StatusOr<std::optional<shared::Answer>> ReceiveAnswer(const UniqueFd& socket) {
  std::vector<char> room(kMostAnswerBytes);
  LocalMessage message = ReceiveLocal(socket, room);
  // Said before what is still to be read, where the lender had not read all of our own.
  if (message.size < 0 && message.error_number == ECONNRESET) message = ReceiveLocal(socket, room);
  if (message.size < 0 && message.error_number == EAGAIN) return std::nullopt;
  if (message.size <= 0) return Unavailable("the muster whose connection it was has ended");
  shared::Answer answer;
  if (!message.is_whole || !answer.ParseFromArray(room.data(), static_cast<int>(message.size)))
    return Unavailable("the muster whose connection it is said something that is no answer");
  return answer;
}

absl::StatusOr<shared::Answer> AwaitAnswer(const UniqueFd& socket, TimePoint deadline) {
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(std::optional<shared::Answer> answer, ReceiveAnswer(socket));
    if (answer) return *std::move(answer);
    pollfd fd{.fd = socket.get(), .events = POLLIN, .revents = 0};
    if (::poll(&fd, 1, MillisecondsUntil(deadline)) == 0)
      return DeadlineExceeded("the muster whose connection it is does not answer");
  }
}

// False: it is not there, or does not take it.
bool Send(const UniqueFd& socket, const shared::Request& request) {
  return SendLocal(socket, request.SerializeAsString()) == 0;
}

class SharedChannel : public CommandChannel {
 public:
  SharedChannel(const std::string& host, UniqueFd socket) : host_(host), socket_(std::move(socket)) {}

  absl::StatusOr<size_t> TryRead(std::span<char> buffer) override;
  absl::StatusOr<size_t> TryWrite(std::string_view bytes) override;
  absl::Status CloseInput() override;
  bool end_of_output() const override { return end_ && unread_.empty(); }
  std::optional<int> exit_code() const override { return exit_code_; }

  bool Ready(const PollItem& item) const {
    return (item.read && (end_ || !unread_.empty())) || ((item.write || item.exit) && end_);
  }
  pollfd Descriptor(const PollItem& item) const {
    const int events =
        (item.read || item.exit ? POLLIN : 0) | (item.write || owes_end_of_input_ ? POLLOUT : 0);
    return {.fd = socket_.get(), .events = static_cast<short>(events), .revents = 0};
  }
  void SendEndOfInput();

 private:
  void Receive();
  void Take(shared::Answer answer);

  const std::string host_;
  UniqueFd socket_;
  std::string output_;  // of one message
  std::string_view unread_;
  std::optional<absl::Status> end_;  // of the command, which has ended; an error: nobody knows how
  bool input_closed_ = false;
  bool owes_end_of_input_ = false;
  std::optional<int> exit_code_;
};

absl::StatusOr<size_t> SharedChannel::TryRead(std::span<char> buffer) {
  SendEndOfInput();
  if (unread_.empty() && !end_) Receive();
  if (unread_.empty()) {
    if (end_) MUSTER_RETURN_IF_ERROR(*end_);
    return 0;
  }
  const size_t n = std::min(buffer.size(), unread_.size());
  std::memcpy(buffer.data(), unread_.data(), n);
  unread_.remove_prefix(n);
  return n;
}

void SharedChannel::Receive() {
  absl::StatusOr<std::optional<shared::Answer>> answer = ReceiveAnswer(socket_);
  if (!answer.ok()) {
    end_ = Annotate(answer.status(), host_);
  } else if (*answer) {
    Take(**std::move(answer));
  }
}

void SharedChannel::Take(shared::Answer answer) {
  if (answer.has_output()) {
    output_ = std::move(*answer.mutable_output());
    unread_ = output_;
  } else if (answer.has_errors()) {
    TakeErrors(answer.errors());
  } else if (answer.has_end() && !answer.end().error().empty()) {
    end_ = Unavailable("%s", answer.end().error());
  } else if (answer.has_end()) {
    end_ = absl::OkStatus();
    exit_code_ = answer.end().exit_code();
  }
}

absl::StatusOr<size_t> SharedChannel::TryWrite(std::string_view bytes) {
  MUSTER_CHECK(!input_closed_, "write after CloseInput");
  if (bytes.empty()) return 0;
  shared::Request request;
  const size_t size = std::min(bytes.size(), kInputBytes);
  request.set_input(std::string(bytes.substr(0, size)));
  const int error = end_ ? EPIPE : SendLocal(socket_, request.SerializeAsString());
  if (error == 0) return size;
  if (error == EAGAIN) return 0;
  // What it has said last, or that it has gone, is still to be read.
  return FailedPrecondition("%s: the command takes no more input", host_);
}

absl::Status SharedChannel::CloseInput() {
  owes_end_of_input_ = !std::exchange(input_closed_, true);
  SendEndOfInput();
  return absl::OkStatus();
}

// There may be no room for it yet.
void SharedChannel::SendEndOfInput() {
  if (!owes_end_of_input_) return;
  shared::Request request;
  request.set_end_of_input(true);
  owes_end_of_input_ = SendLocal(socket_, request.SerializeAsString()) == EAGAIN;
}

class SharedTransport : public Transport {
 public:
  SharedTransport(SharedTarget target, std::vector<std::filesystem::path> lenders,
                  std::function<absl::StatusOr<std::unique_ptr<Transport>>()> connect)
      : target_(std::move(target)), lenders_(std::move(lenders)), connect_(std::move(connect)) {}

  const std::string& host() const override { return target_.host; }
  absl::StatusOr<std::unique_ptr<CommandChannel>> Start(const std::string& command,
                                                        TimePoint deadline) override;
  absl::Status Poll(std::span<const PollItem> items, int wake_fd, TimePoint deadline) override;

 private:
  absl::StatusOr<std::unique_ptr<CommandChannel>> StartThrough(const std::filesystem::path& lender,
                                                               const std::string& command, TimePoint ready_by,
                                                               TimePoint deadline) const;

  const SharedTarget target_;
  const std::vector<std::filesystem::path> lenders_;
  const std::function<absl::StatusOr<std::unique_ptr<Transport>>()> connect_;
  std::unique_ptr<Transport> own_;  // null: not needed so far
};

// Null: it does not lend that, and the command has not begun.
absl::StatusOr<std::unique_ptr<CommandChannel>> SharedTransport::StartThrough(
    const std::filesystem::path& lender, const std::string& command, TimePoint ready_by,
    TimePoint deadline) const {
  auto socket = ConnectLocalAt(lender);
  if (!socket.ok()) return nullptr;
  shared::Request open, line;
  open.mutable_open()->set_version(kSharedConnectionVersion);
  open.mutable_open()->set_host(target_.host);
  open.mutable_open()->set_place(target_.place);
  *open.mutable_open()->mutable_host_keys() = {target_.host_keys.begin(), target_.host_keys.end()};
  if (!Send(*socket, open)) return nullptr;
  const auto ready = AwaitAnswer(*socket, ready_by);
  if (!ready.ok() || !ready->ready()) return nullptr;
  line.set_command(command);
  if (!Send(*socket, line)) return nullptr;
  // From here on it may run.
  const auto started = AwaitAnswer(*socket, std::min(deadline, Now() + kTimeToStart));
  if (absl::IsDeadlineExceeded(started.status()) && Now() < deadline) {
    return Unavailable("%s: %s; the command may yet begin", target_.host,
                       std::string(started.status().message()));
  }
  MUSTER_RETURN_IF_ERROR(Annotate(started.status(), target_.host));
  if (started->has_refused()) return nullptr;
  if (!started->started()) return Unavailable("%s", started->end().error());
  return std::make_unique<SharedChannel>(target_.host, *std::move(socket));
}

absl::StatusOr<std::unique_ptr<CommandChannel>> SharedTransport::Start(const std::string& command,
                                                                       TimePoint deadline) {
  if (own_ == nullptr) {
    const TimePoint ready_by = std::min(deadline, Now() + kTimeToSayReady);
    for (const std::filesystem::path& lender : lenders_) {
      MUSTER_ASSIGN_OR_RETURN(auto channel, StartThrough(lender, command, ready_by, deadline));
      if (channel != nullptr) return channel;
    }
    if (connect_ == nullptr) return Unavailable("%s: nobody lends a connection to it", target_.host);
    MUSTER_ASSIGN_OR_RETURN(own_, connect_());
  }
  return own_->Start(command, deadline);
}

absl::Status SharedTransport::Poll(std::span<const PollItem> items, int wake_fd, TimePoint deadline) {
  const auto is_shared = [](const PollItem& item) {
    return dynamic_cast<SharedChannel*>(item.channel) != nullptr;
  };
  if (own_ != nullptr && std::none_of(items.begin(), items.end(), is_shared))
    return own_->Poll(items, wake_fd, deadline);
  std::vector<pollfd> fds = DescriptorsOf(items, wake_fd);
  for (const PollItem& item : items) {
    if (item.channel == nullptr) continue;
    MUSTER_CHECK(is_shared(item), "channels of two connections in one wait");
    auto& channel = static_cast<SharedChannel&>(*item.channel);
    channel.SendEndOfInput();
    if (channel.Ready(item)) return absl::OkStatus();
    fds.push_back(channel.Descriptor(item));
  }
  while (true) {
    const int ready = ::poll(fds.data(), fds.size(), MillisecondsUntil(deadline));
    if (ready > 0) return absl::OkStatus();
    if (ready == 0) return DeadlineExceeded("%s: no answer before the deadline", target_.host);
    if (errno != EINTR) return ErrnoError(errno, "poll");
  }
}

}  // namespace

std::vector<std::filesystem::path> ListenedAt(std::vector<std::filesystem::path> paths) {
  std::erase_if(paths, [](const std::filesystem::path& path) { return !ConnectLocalAt(path).ok(); });
  return paths;
}

std::vector<std::string> FingerprintsOf(const KnownHosts& known_hosts, const std::string& host) {
  std::vector<std::string> fingerprints;
  for (const HostKey& key : known_hosts.KeysOf(host)) fingerprints.push_back(key.Fingerprint());
  return fingerprints;
}

std::unique_ptr<Transport> MakeSharedTransport(
    SharedTarget target, std::vector<std::filesystem::path> lenders,
    std::function<absl::StatusOr<std::unique_ptr<Transport>>()> connect) {
  return std::make_unique<SharedTransport>(std::move(target), std::move(lenders), std::move(connect));
}

}  // namespace muster
