#include "launcher/transport/local_transport.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "base/file.h"
#include "base/process.h"

namespace muster {
namespace {

// More than a pipe holds, so that one call empties it, and a bound for a command that writes without end.
constexpr int kMaxStderrReads = 32;

struct Pipe {
  UniqueFd read, write;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoError(errno, "pipe2");
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

bool SetNonBlocking(const UniqueFd& fd) {
  return ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK) == 0;
}

std::vector<std::string> EnvironmentWithHome(const std::string& home) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::string_view(*entry).substr(0, 5) != "HOME=") environment.emplace_back(*entry);
  }
  environment.push_back("HOME=" + home);
  return environment;
}

class LocalChannel : public CommandChannel {
 public:
  static absl::StatusOr<std::unique_ptr<LocalChannel>> Start(const LocalOptions& options,
                                                             const std::string& command);

  absl::StatusOr<size_t> TryRead(std::span<char> buffer) override;
  absl::StatusOr<size_t> TryWrite(std::string_view bytes) override;
  absl::Status CloseInput() override {
    input_.reset();
    return absl::OkStatus();
  }
  bool end_of_output() const override { return !output_.valid(); }
  std::optional<int> exit_code() const override { return exit_code_; }

  /// Takes in stderr and the exit code, if there is any of it.
  absl::Status Collect();
  bool Ready(const PollItem& item) const {
    return (item.read && end_of_output()) || (item.exit && exit_code_) || error_bytes() > item.errors_beyond;
  }
  void AddPollFds(const PollItem& item, std::vector<pollfd>& fds) const;
  int stderr_fd() const { return errors_.get(); }

 private:
  LocalChannel(std::string host, Process process, UniqueFd pidfd, UniqueFd input, UniqueFd output,
               UniqueFd errors)
      : host_(std::move(host)),
        process_(std::move(process)),
        pidfd_(std::move(pidfd)),
        input_(std::move(input)),
        output_(std::move(output)),
        errors_(std::move(errors)) {}

  const std::string host_;
  Process process_;
  UniqueFd pidfd_;
  UniqueFd input_, output_, errors_;  // not valid: closed, or at the end
  std::optional<int> exit_code_;
};

absl::StatusOr<std::unique_ptr<LocalChannel>> LocalChannel::Start(const LocalOptions& options,
                                                                  const std::string& command) {
  MUSTER_ASSIGN_OR_RETURN(Pipe in, MakePipe());
  MUSTER_ASSIGN_OR_RETURN(Pipe out, MakePipe());
  MUSTER_ASSIGN_OR_RETURN(Pipe err, MakePipe());
  std::vector<std::string> argv = options.command_prefix;
  argv.insert(argv.end(), {"sh", "-c", command});
  MUSTER_ASSIGN_OR_RETURN(Process process, Process::Spawn({.argv = std::move(argv),
                                                           .environment = EnvironmentWithHome(options.home),
                                                           .working_directory = options.home,
                                                           .stdin_fd = in.read.get(),
                                                           .stdout_fd = out.write.get(),
                                                           .stderr_fd = err.write.get(),
                                                           .new_session = true}));
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid(), 0)));
  if (!pidfd.valid()) return ErrnoError(errno, "pidfd_open");
  if (!SetNonBlocking(in.write) || !SetNonBlocking(out.read) || !SetNonBlocking(err.read)) {
    return ErrnoError(errno, "fcntl");
  }
  return std::unique_ptr<LocalChannel>(new LocalChannel(options.name, std::move(process), std::move(pidfd),
                                                        std::move(in.write), std::move(out.read),
                                                        std::move(err.read)));
}

absl::StatusOr<size_t> LocalChannel::TryRead(std::span<char> buffer) {
  MUSTER_RETURN_IF_ERROR(Collect());
  if (!output_.valid()) return 0;
  const ssize_t n = ::read(output_.get(), buffer.data(), buffer.size());
  if (n > 0) return n;
  if (n == 0) output_.reset();
  if (n < 0 && errno != EAGAIN && errno != EINTR) return ErrnoError(errno, host_ + ": read from a command");
  return 0;
}

absl::StatusOr<size_t> LocalChannel::TryWrite(std::string_view bytes) {
  MUSTER_CHECK(input_.valid(), "write after CloseInput");
  const ssize_t n = ::write(input_.get(), bytes.data(), bytes.size());
  if (n >= 0) return n;
  if (errno == EAGAIN || errno == EINTR) return 0;
  if (errno == EPIPE) return FailedPrecondition("%s: the command has closed its stdin", host_);
  return ErrnoError(errno, host_ + ": write to a command");
}

absl::Status LocalChannel::Collect() {
  // The exit code first: what the command wrote to stderr before its end is then in the pipe.
  if (!exit_code_) {
    const absl::StatusOr<int> code = process_.Wait(Now());
    if (code.ok()) {
      exit_code_ = *code;
    } else if (!absl::IsDeadlineExceeded(code.status())) {
      return code.status();
    }
  }
  char buffer[4096];
  for (int reads = 0; errors_.valid() && reads < kMaxStderrReads; ++reads) {
    const ssize_t n = ::read(errors_.get(), buffer, sizeof buffer);
    if (n > 0) TakeErrors({buffer, static_cast<size_t>(n)});
    if (n == 0) errors_.reset();
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0 && errno != EINTR) return ErrnoError(errno, host_ + ": read from a command");
  }
  return absl::OkStatus();
}

void LocalChannel::AddPollFds(const PollItem& item, std::vector<pollfd>& fds) const {
  if (item.read) fds.push_back({.fd = output_.get(), .events = POLLIN, .revents = 0});
  if (item.write) fds.push_back({.fd = input_.get(), .events = POLLOUT, .revents = 0});
  if (item.exit) fds.push_back({.fd = pidfd_.get(), .events = POLLIN, .revents = 0});
}

class LocalTransport : public Transport {
 public:
  explicit LocalTransport(LocalOptions options) : options_(std::move(options)) {}

  const std::string& host() const override { return options_.name; }

  absl::StatusOr<std::unique_ptr<CommandChannel>> Start(const std::string& command, TimePoint) override {
    MUSTER_CHECK(command.find('\n') == std::string::npos, "a line break in a command");
    return LocalChannel::Start(options_, command);
  }

  absl::Status Poll(std::span<const PollItem> items, int wake_fd, TimePoint deadline) override;

 private:
  const LocalOptions options_;
};

absl::Status LocalTransport::Poll(std::span<const PollItem> items, int wake_fd, TimePoint deadline) {
  for (bool again = false;; again = true) {
    std::vector<pollfd> wanted = DescriptorsOf(items, wake_fd);
    for (const PollItem& item : items) {
      if (item.channel == nullptr) continue;
      auto& channel = static_cast<LocalChannel&>(*item.channel);
      MUSTER_RETURN_IF_ERROR(channel.Collect());
      if (channel.Ready(item)) return absl::OkStatus();
      channel.AddPollFds(item, wanted);
    }
    if (again && Now() >= deadline) {
      return DeadlineExceeded("%s: no answer before the deadline", options_.name);
    }
    // stderr is taken in while waiting, but does not end the wait: a command must not stall because nobody
    // reads it.
    std::vector<pollfd> all = wanted;
    for (const PollItem& item : items) {
      if (item.channel == nullptr) continue;
      const int fd = static_cast<LocalChannel&>(*item.channel).stderr_fd();
      if (fd >= 0) all.push_back({.fd = fd, .events = POLLIN, .revents = 0});
    }
    const int ready = ::poll(all.data(), all.size(), MillisecondsUntil(deadline));
    if (ready < 0 && errno != EINTR) return ErrnoError(errno, "poll");
    if (ready == 0) return DeadlineExceeded("%s: no answer before the deadline", options_.name);
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (all[i].revents != 0) return absl::OkStatus();
    }
  }
}

}  // namespace

std::unique_ptr<Transport> MakeLocalTransport(const LocalOptions& options) {
  return std::make_unique<LocalTransport>(options);
}

}  // namespace muster
