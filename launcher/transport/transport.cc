#include "launcher/transport/transport.h"

#include <absl/strings/cord.h>

#include <utility>
#include <vector>

namespace muster {
namespace {

constexpr char kNeedsUser[] = "muster/needs-user";
constexpr char kOtherMachine[] = "muster/other-machine";
constexpr size_t kTailBytes = 8 << 10;
constexpr size_t kReadBytes = 64 << 10;

// Of a command that never stops talking: there is always something, and nothing is waited for.
absl::Status CheckTime(const Transport& transport, TimePoint deadline) {
  if (Now() < deadline) return absl::OkStatus();
  return DeadlineExceeded("%s: the command has not ended before the deadline", transport.host());
}

bool IsReadable(int fd) {
  pollfd item{.fd = fd, .events = POLLIN, .revents = 0};
  return fd >= 0 && ::poll(&item, 1, 0) > 0;
}

}  // namespace

bool NeedsUser(const absl::Status& status) { return status.GetPayload(kNeedsUser).has_value(); }

absl::Status WithNeedsUser(absl::Status status) {
  status.SetPayload(kNeedsUser, absl::Cord());
  return status;
}

bool IsOtherMachine(const absl::Status& status) { return status.GetPayload(kOtherMachine).has_value(); }

absl::Status WithOtherMachine(absl::Status status) {
  status.SetPayload(kOtherMachine, absl::Cord());
  return status;
}

std::vector<pollfd> DescriptorsOf(std::span<const PollItem> items, int wake_fd) {
  std::vector<pollfd> fds;
  if (wake_fd >= 0) fds.push_back({.fd = wake_fd, .events = POLLIN, .revents = 0});
  for (const PollItem& item : items) {
    if (item.channel != nullptr) continue;
    const int events = (item.read ? POLLIN : 0) | (item.write ? POLLOUT : 0);
    fds.push_back({.fd = item.fd, .events = static_cast<short>(events), .revents = 0});
  }
  return fds;
}

std::vector<std::string> LineBuffer::Append(std::string_view bytes) {
  constexpr size_t kMostLineBytes = 200;
  std::vector<std::string> lines;
  for (const char byte : bytes) {
    if (byte == '\n') {
      lines.push_back(std::exchange(line_, ""));
    } else if (line_.size() < kMostLineBytes) {
      line_ += byte;
    }
  }
  return lines;
}

void TailBuffer::Append(std::string_view bytes) {
  text_.append(bytes);
  if (text_.size() > kTailBytes) text_.erase(0, text_.size() - kTailBytes);
}

absl::StatusOr<size_t> Transport::Read(CommandChannel& channel, std::span<char> buffer, TimePoint deadline) {
  const PollItem item{.channel = &channel, .read = true};
  for (bool again = false;; again = true) {
    MUSTER_ASSIGN_OR_RETURN(const size_t n, channel.TryRead(buffer));
    if (n > 0 || channel.end_of_output()) return n;
    if (again) MUSTER_RETURN_IF_ERROR(CheckTime(*this, deadline));
    MUSTER_RETURN_IF_ERROR(Poll({&item, 1}, -1, deadline));
  }
}

absl::Status Transport::Write(CommandChannel& channel, std::string_view bytes, TimePoint deadline) {
  const PollItem item{.channel = &channel, .write = true};
  for (;;) {
    MUSTER_ASSIGN_OR_RETURN(const size_t n, channel.TryWrite(bytes));
    bytes.remove_prefix(n);
    if (bytes.empty()) return absl::OkStatus();
    if (n == 0) MUSTER_RETURN_IF_ERROR(Poll({&item, 1}, -1, deadline));
  }
}

absl::StatusOr<int> Transport::Wait(CommandChannel& channel, TimePoint deadline) {
  std::vector<char> unwanted(kReadBytes);
  for (bool again = false;; again = true) {
    MUSTER_ASSIGN_OR_RETURN(const size_t n, channel.TryRead(unwanted));
    const bool ended = channel.end_of_output();
    if (ended && channel.exit_code()) return *channel.exit_code();
    if (again) MUSTER_RETURN_IF_ERROR(CheckTime(*this, deadline));
    if (n > 0) continue;
    const PollItem item{.channel = &channel, .read = !ended, .exit = ended};
    MUSTER_RETURN_IF_ERROR(Poll({&item, 1}, -1, deadline));
  }
}

absl::StatusOr<HostCommandResult> RunOnHost(Transport& transport, const std::string& command,
                                            std::string_view input, TimePoint deadline,
                                            size_t max_output_bytes, int cancel_fd) {
  std::string text;
  const auto take = [&](std::string_view bytes) -> absl::Status {
    text += bytes;
    if (text.size() <= max_output_bytes) return absl::OkStatus();
    return Unavailable("%s: more than %d bytes of output from: %s", transport.host(), max_output_bytes,
                       command);
  };
  auto result = RunOnHost(transport, command, input, deadline, take, {}, cancel_fd);
  if (result.ok()) result->stdout_text = std::move(text);
  return result;
}

absl::StatusOr<HostCommandResult> RunOnHost(Transport& transport, const std::string& command,
                                            std::string_view input, TimePoint deadline,
                                            const std::function<absl::Status(std::string_view)>& take,
                                            const std::function<absl::Status(std::string_view)>& take_errors,
                                            int cancel_fd) {
  MUSTER_ASSIGN_OR_RETURN(const std::unique_ptr<CommandChannel> channel, transport.Start(command, deadline));
  absl::Status errors_taken;
  if (take_errors) {
    channel->SetErrorSink([&](std::string_view bytes) { errors_taken.Update(take_errors(bytes)); });
  }
  HostCommandResult result;
  std::vector<char> buffer(kReadBytes);
  bool input_open = true;
  while (!channel->end_of_output()) {
    if (input_open && !input.empty()) {
      const absl::StatusOr<size_t> taken = channel->TryWrite(input);
      if (taken.ok()) {
        input.remove_prefix(*taken);
      } else if (absl::IsFailedPrecondition(taken.status())) {
        input_open = false;  // the command wants no more: its exit code tells whether that is an error
      } else {
        return taken.status();
      }
    }
    if (input_open && input.empty()) {
      MUSTER_RETURN_IF_ERROR(channel->CloseInput());
      input_open = false;
    }
    MUSTER_ASSIGN_OR_RETURN(const size_t n, channel->TryRead(buffer));
    MUSTER_RETURN_IF_ERROR(errors_taken);
    if (n > 0) MUSTER_RETURN_IF_ERROR(take({buffer.data(), n}));
    if (channel->end_of_output()) break;
    MUSTER_RETURN_IF_ERROR(CheckTime(transport, deadline));
    if (IsReadable(cancel_fd)) return Cancelled("%s: given up", transport.host());
    if (n > 0) continue;
    const PollItem item{.channel = channel.get(),
                        .read = true,
                        .write = input_open,
                        .errors_beyond = take_errors ? channel->error_bytes() : UINT64_MAX};
    MUSTER_RETURN_IF_ERROR(transport.Poll({&item, 1}, cancel_fd, deadline));
  }
  MUSTER_ASSIGN_OR_RETURN(result.exit_code, transport.Wait(*channel, deadline));
  MUSTER_RETURN_IF_ERROR(errors_taken);
  result.stderr_tail = channel->StderrTail();
  return result;
}

}  // namespace muster
