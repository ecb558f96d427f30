// How the launcher runs commands on a host and moves bytes to and from them: over SSH, or on this machine
// without it.
//
// A Transport is one connection. It and all its channels belong to one thread, which sleeps in Poll until
// bytes arrive on any of the channels or another thread wakes it through a descriptor (an eventfd). So one
// thread can hold a long conversation on one channel while it uploads through a second one:
//
//   while (!remaining.empty()) {
//     PollItem items[] = {{.channel = bridge, .read = true}, {.channel = upload, .write = true}};
//     MUSTER_RETURN_IF_ERROR(transport.Poll(items, wake_fd, deadline));
//     ... bridge->TryRead(...), upload->TryWrite(remaining), show progress ...
//   }
//
// A program that uses this ignores SIGPIPE.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace muster {

/// True for a failure that will not go away by itself, so that trying again is pointless: an unknown or
/// changed host key, a refused login. It is a property beside the code, which is Unavailable for all failures
/// to connect.
bool NeedsUser(const absl::Status& status);

/// `status` with that property.
absl::Status WithNeedsUser(absl::Status status);

/// True if what answers at the address is not the host that was meant, which may be elsewhere: another
/// property beside the code.
bool IsOtherMachine(const absl::Status& status);
absl::Status WithOtherMachine(absl::Status status);

/// For the implementations: keeps the last 8 KiB of what is appended.
class TailBuffer {
 public:
  void Append(std::string_view bytes);
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// stdin, stdout and stderr of one command on a host. Destroying it closes all three; a command that still
/// runs is not waited for, and over SSH not killed. Errors: Unavailable when the connection is lost. All of
/// them name the host.
class CommandChannel {
 public:
  virtual ~CommandChannel() = default;

  /// Takes up to buffer.size() bytes of stdout that have arrived, without waiting. 0: none now, or
  /// end_of_output().
  virtual absl::StatusOr<size_t> TryRead(std::span<char> buffer) = 0;

  /// Sends the first bytes to stdin, as many as fit without waiting (at most what the host has granted), and
  /// returns how many. FailedPrecondition when the command has closed its stdin or has ended.
  virtual absl::StatusOr<size_t> TryWrite(std::string_view bytes) = 0;

  /// End of stdin. What was written before still arrives.
  virtual absl::Status CloseInput() = 0;

  /// All of stdout has been read. Known after a TryRead. TryRead goes on giving 0 then, or Unavailable once
  /// it is certain that there will be no exit code.
  virtual bool end_of_output() const = 0;

  /// The exit code, or 128 + signal, once it is known. It may be known before all of stdout is read.
  virtual std::optional<int> exit_code() const = 0;

  /// The last 8 KiB of stderr seen so far, for error messages.
  const std::string& StderrTail() const { return errors_.text(); }

  /// `sink` gets all of stderr as it comes, from inside of this channel's and its transport's methods.
  void SetErrorSink(std::function<void(std::string_view)> sink) { error_sink_ = std::move(sink); }
  /// Of stderr, seen so far.
  uint64_t error_bytes() const { return error_bytes_; }

 protected:
  void TakeErrors(std::string_view bytes) {
    errors_.Append(bytes);
    error_bytes_ += bytes.size();
    if (error_sink_) error_sink_(bytes);
  }

 private:
  TailBuffer errors_;
  uint64_t error_bytes_ = 0;
  std::function<void(std::string_view)> error_sink_;
};

/// What a channel, or a descriptor beside it, is waited for; any of it ends the wait.
struct PollItem {
  CommandChannel* channel = nullptr;
  int fd = -1;                          // where there is no channel: readable, or writable
  bool read = false;                    // TryRead would return bytes, the end or an error
  bool write = false;                   // TryWrite would take bytes or return an error
  bool exit = false;                    // exit_code() is known, or never will be
  uint64_t errors_beyond = UINT64_MAX;  // error_bytes() is larger
};

/// A connection to one host. One thread at a time. Its channels must be gone before it is.
class Transport {
 public:
  virtual ~Transport() = default;

  /// The host's name in the inventory.
  virtual const std::string& host() const = 0;

  /// Starts `command`, a line for sh without line breaks, in the account's home whatever its login shell is.
  /// A shell that prints on start-up adds to stdout before the command does: look for a sentinel of your own.
  virtual absl::StatusOr<std::unique_ptr<CommandChannel>> Start(const std::string& command,
                                                                TimePoint deadline) = 0;

  /// Sleeps until an item is ready or `wake_fd` (-1: none) is readable. DeadlineExceeded when neither came;
  /// Unavailable when the connection is lost.
  virtual absl::Status Poll(std::span<const PollItem> items, int wake_fd, TimePoint deadline) = 0;

  /// For how long nothing has come from the host, not even that it has received something; 0 where nobody
  /// knows.
  virtual Duration silence() const { return Duration::zero(); }

  /// From now on the connection is lost only after so much of it.
  virtual void BearSilence(std::chrono::milliseconds) {}

  /// Waits for output. 0: end of output.
  absl::StatusOr<size_t> Read(CommandChannel& channel, std::span<char> buffer, TimePoint deadline);

  /// Sends all of `bytes`. Output is left alone meanwhile: a command that answers while it reads may stall;
  /// use Poll.
  absl::Status Write(CommandChannel& channel, std::string_view bytes, TimePoint deadline);

  /// Throws the rest of stdout away and waits for its end and the command's: exit code, or 128 + signal. All
  /// that was written to stderr is in StderrTail() then.
  absl::StatusOr<int> Wait(CommandChannel& channel, TimePoint deadline);
};

struct HostCommandResult {
  int exit_code = 0;  // or 128 + signal
  std::string stdout_text;
  std::string stderr_tail;
};

/// Runs `command` to its end with `input` as its stdin, sending and receiving at the same time. The command
/// may end without reading all of its input. Unavailable if stdout grows beyond `max_output_bytes`.
/// Cancelled: `cancel_fd` (-1: none) has become readable.
absl::StatusOr<HostCommandResult> RunOnHost(Transport& transport, const std::string& command,
                                            std::string_view input, TimePoint deadline,
                                            size_t max_output_bytes = size_t{64} << 20, int cancel_fd = -1);

/// The same, but stdout goes to `take` as it comes, which may end it with an error, and `stdout_text` is
/// empty; and stderr to `take_errors`, if there is one, which may end it likewise.
absl::StatusOr<HostCommandResult> RunOnHost(
    Transport& transport, const std::string& command, std::string_view input, TimePoint deadline,
    const std::function<absl::Status(std::string_view)>& take,
    const std::function<absl::Status(std::string_view)>& take_errors = {}, int cancel_fd = -1);

/// The lines of what a command prints, as it comes. Of long ones, which are a login shell's, it keeps the
/// first 200 bytes.
class LineBuffer {
 public:
  /// Those that end in `bytes`, without their ends.
  std::vector<std::string> Append(std::string_view bytes);

 private:
  std::string line_;
};

/// For the implementations: what poll(2) is to wait for; `wake_fd` (-1: none) first, then the items without a
/// channel.
std::vector<pollfd> DescriptorsOf(std::span<const PollItem> items, int wake_fd);

}  // namespace muster
