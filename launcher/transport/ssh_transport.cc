#include "launcher/transport/ssh_transport.h"

#include <libssh/callbacks.h>
#include <libssh/libssh.h>
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "inventory/address.h"
#include "launcher/transport/shell_quote.h"
#include "launcher/transport/ssh_gateway.h"
#include "launcher/transport/ssh_session.h"

namespace muster {
namespace {

constexpr size_t kWriteBytes =
    256 << 10;  // taken at a time: enough to keep the connection busy, little enough for progress
constexpr int kMaxStderrReads = 64;  // in one go, for a command that writes to stderr without end

// RFC 4254 section 6.10 sends a signal's name without SIG.
int SignalNumber(const std::string& name) {
  static constexpr std::pair<const char*, int> kSignals[] = {
      {"ABRT", SIGABRT}, {"ALRM", SIGALRM}, {"BUS", SIGBUS},   {"FPE", SIGFPE},   {"HUP", SIGHUP},
      {"ILL", SIGILL},   {"INT", SIGINT},   {"KILL", SIGKILL}, {"PIPE", SIGPIPE}, {"QUIT", SIGQUIT},
      {"SEGV", SIGSEGV}, {"SYS", SIGSYS},   {"TERM", SIGTERM}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}};
  for (const auto& [known, number] : kSignals) {
    if (name == known) return number;
  }
  return 0;
}

std::string Label(const SshTarget& target) {
  const bool ipv6 = target.address.find(':') != std::string::npos;
  return absl::StrFormat(ipv6 ? "%s ([%s]:%d)" : "%s (%s:%d)", target.name, target.address, target.port);
}

class SshChannel : public CommandChannel {
 public:
  SshChannel(ssh_session session, const std::string& label, int& open_channels);
  ~SshChannel() override;

  absl::Status Open(const std::string& command, const Limits& limits);

  absl::StatusOr<size_t> TryRead(std::span<char> buffer) override;
  absl::StatusOr<size_t> TryWrite(std::string_view bytes) override;
  absl::Status CloseInput() override;
  bool end_of_output() const override { return end_of_output_; }
  std::optional<int> exit_code() const override { return exit_code_; }

  absl::Status CollectStderr();
  bool Ready(const PollItem& item);

 private:
  bool CanWrite() const;
  absl::Status Lost(const char* what) const;

  ssh_session session_;
  const std::string& label_;  // the transport's
  int& open_channels_;        // the transport's
  ssh_channel channel_;
  ssh_channel_callbacks_struct callbacks_{};
  bool end_of_output_ = false;
  bool input_closed_ = false;
  std::optional<int> exit_code_;
};

SshChannel::SshChannel(ssh_session session, const std::string& label, int& open_channels)
    : session_(session), label_(label), open_channels_(open_channels), channel_(ssh_channel_new(session)) {
  MUSTER_CHECK(channel_ != nullptr);
  ++open_channels_;
  callbacks_.userdata = this;
  callbacks_.channel_exit_status_function = [](ssh_session, ssh_channel, int status, void* self) {
    static_cast<SshChannel*>(self)->exit_code_ = status;
  };
  callbacks_.channel_exit_signal_function = [](ssh_session, ssh_channel, const char* signal, int, const char*,
                                               const char*, void* self) {
    static_cast<SshChannel*>(self)->exit_code_ = 128 + SignalNumber(signal);
  };
  ssh_callbacks_init(&callbacks_);
  ssh_set_channel_callbacks(channel_, &callbacks_);
}

SshChannel::~SshChannel() {
  ssh_remove_channel_callbacks(channel_, &callbacks_);
  ssh_channel_free(channel_);
  --open_channels_;
}

absl::Status SshChannel::Open(const std::string& command, const Limits& limits) {
  absl::StatusOr<int> result =
      DriveSession(session_, SSH_AGAIN, limits, [&] { return ssh_channel_open_session(channel_); });
  MUSTER_RETURN_IF_ERROR(Annotate(result.status(), label_ + ": open a channel"));
  if (*result != SSH_OK) return Lost("open a channel (sshd's MaxSessions bounds how many there are)");
  const std::string line = ForAnyLoginShell(command);
  result = DriveSession(session_, SSH_AGAIN, limits,
                        [&] { return ssh_channel_request_exec(channel_, line.c_str()); });
  MUSTER_RETURN_IF_ERROR(Annotate(result.status(), label_ + ": start a command"));
  return *result == SSH_OK ? absl::OkStatus() : Lost("start a command");
}

absl::Status SshChannel::Lost(const char* what) const {
  return Unavailable("%s: %s: %s", label_, what, ssh_get_error(session_));
}

absl::Status SshChannel::CollectStderr() {
  char buffer[16384];
  for (int reads = 0; reads < kMaxStderrReads || end_of_output_; ++reads) {
    const int n = ssh_channel_read_nonblocking(channel_, buffer, sizeof buffer, 1);
    if (n == SSH_ERROR) return Lost("the connection is lost");
    if (n <= 0) break;
    TakeErrors({buffer, static_cast<size_t>(n)});
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> SshChannel::TryRead(std::span<char> buffer) {
  if (end_of_output_) {
    if (exit_code_ || ssh_channel_is_open(channel_)) return 0;
    return Unavailable("%s: the command ended without an exit code", label_);
  }
  // stdout and stderr share one window: unread errors would stop the output.
  MUSTER_RETURN_IF_ERROR(CollectStderr());
  const int n = ssh_channel_read_nonblocking(channel_, buffer.data(), buffer.size(), 0);
  if (n > 0) return n;
  if (n == SSH_ERROR) return Lost("the connection is lost");
  end_of_output_ = n == SSH_EOF || ssh_channel_is_eof(channel_);
  // Errors may have arrived with the end, and nobody reads once that is known.
  if (end_of_output_) MUSTER_RETURN_IF_ERROR(CollectStderr());
  return 0;
}

bool SshChannel::CanWrite() const {
  // Nothing new while libssh still holds bytes for the socket, so that what it buffers stays small.
  return ssh_channel_window_size(channel_) > 0 && (ssh_get_status(session_) & SSH_WRITE_PENDING) == 0;
}

absl::StatusOr<size_t> SshChannel::TryWrite(std::string_view bytes) {
  MUSTER_CHECK(!input_closed_, "write after CloseInput");
  if (!ssh_is_connected(session_)) return Lost("the connection is lost");
  if (exit_code_ || !ssh_channel_is_open(channel_)) {
    return FailedPrecondition("%s: the command has closed its stdin", label_);
  }
  if (bytes.empty() || !CanWrite()) return 0;
  const size_t size = std::min({bytes.size(), kWriteBytes, size_t{ssh_channel_window_size(channel_)}});
  const int n = ssh_channel_write(channel_, bytes.data(), static_cast<uint32_t>(size));
  if (n < 0) return Lost("the connection is lost");
  return n;
}

absl::Status SshChannel::CloseInput() {
  if (std::exchange(input_closed_, true) || exit_code_ || !ssh_channel_is_open(channel_))
    return absl::OkStatus();
  return ssh_channel_send_eof(channel_) == SSH_ERROR ? Lost("the connection is lost") : absl::OkStatus();
}

bool SshChannel::Ready(const PollItem& item) {
  const bool ended = exit_code_.has_value() || !ssh_channel_is_open(channel_);
  if ((item.exit && ended) || error_bytes() > item.errors_beyond) return true;
  if (item.write && (ended || CanWrite())) return true;
  return item.read && (end_of_output_ || ssh_channel_poll(channel_, 0) != 0);
}

class SshTransportImpl : public SshTransport {
 public:
  SshTransportImpl(const SshTarget& target, SshLogin login, Duration silence_limit)
      : name_(target.name),
        label_(Label(target)),
        accepted_keys_(std::move(login.accepted)),
        host_key_(login.key.Fingerprint()),
        peer_address_(login.gateway == nullptr      ? PeerAddress(ssh_get_fd(login.session.get()))
                      : IsIpAddress(target.address) ? target.address
                                                    : ""),
        gateway_(std::move(login.gateway)),
        session_(std::move(login.session)),
        silence_(session_.get(), silence_limit),
        pump_(session_.get()) {}

  ~SshTransportImpl() override { MUSTER_CHECK(open_channels_ == 0, "a channel outlives its transport"); }

  const std::string& host() const override { return name_; }
  const std::string& label() const override { return label_; }
  const std::vector<AcceptedKey>& accepted_keys() const override { return accepted_keys_; }
  const std::string& host_key() const override { return host_key_; }
  const std::string& peer_address() const override { return peer_address_; }
  absl::StatusOr<std::unique_ptr<CommandChannel>> Start(const std::string& command,
                                                        TimePoint deadline) override;
  absl::Status Poll(std::span<const PollItem> items, int wake_fd, TimePoint deadline) override;
  Duration silence() const override {
    return gateway_ == nullptr ? SilenceOf(ssh_get_fd(session_.get())) : Duration::zero();
  }
  void BearSilence(std::chrono::milliseconds limit) override {
    if (gateway_ == nullptr) SetSilenceLimit(ssh_get_fd(session_.get()), limit);
    silence_.set_limit(limit);
  }

 private:
  const std::string name_;
  const std::string label_;
  const std::vector<AcceptedKey> accepted_keys_;
  const std::string host_key_;
  const std::string peer_address_;
  const std::shared_ptr<SshGateway> gateway_;  // null: none
  const SshSession session_;
  SilenceWatch silence_;
  SessionPump pump_;
  int open_channels_ = 0;
};

absl::StatusOr<std::unique_ptr<CommandChannel>> SshTransportImpl::Start(const std::string& command,
                                                                        TimePoint deadline) {
  auto channel = std::make_unique<SshChannel>(session_.get(), label_, open_channels_);
  MUSTER_RETURN_IF_ERROR(channel->Open(command, {.deadline = deadline}));
  return channel;
}

absl::Status SshTransportImpl::Poll(std::span<const PollItem> items, int wake_fd, TimePoint deadline) {
  for (bool again = false;; again = true) {
    MUSTER_RETURN_IF_ERROR(Annotate(pump_.Pump(), label_));
    if (gateway_ != nullptr) MUSTER_RETURN_IF_ERROR(Annotate(silence_.Check(), label_));
    const uint64_t moved_bytes = silence_.moved_bytes();
    for (const PollItem& item : items) {
      if (item.channel == nullptr) continue;
      auto& channel = static_cast<SshChannel&>(*item.channel);
      MUSTER_RETURN_IF_ERROR(channel.CollectStderr());
      if (channel.Ready(item)) return absl::OkStatus();
    }
    // Of a command that writes to stderr without end.
    if (again && Now() >= deadline) return DeadlineExceeded("%s: no answer before the deadline", label_);
    // Looking at one channel may have taken in what is for another, which was looked at before.
    if (silence_.moved_bytes() != moved_bytes) continue;
    const bool output = (ssh_get_poll_flags(session_.get()) & SSH_WRITE_PENDING) != 0;
    std::vector<pollfd> fds = DescriptorsOf(items, wake_fd);
    const size_t others = fds.size();
    fds.push_back({.fd = ssh_get_fd(session_.get()),
                   .events = static_cast<short>(output ? POLLIN | POLLOUT : POLLIN),
                   .revents = 0});
    const TimePoint next_check = gateway_ == nullptr ? deadline : silence_.next_check();
    const int ready = ::poll(fds.data(), fds.size(), MillisecondsUntil(std::min(deadline, next_check)));
    if (ready < 0 && errno != EINTR) return ErrnoError(errno, "poll");
    if (ready == 0 && next_check < deadline) continue;
    if (ready == 0) return DeadlineExceeded("%s: no answer before the deadline", label_);
    const bool other_is_ready =
        ready > 0 && std::any_of(fds.begin(), fds.begin() + static_cast<std::ptrdiff_t>(others),
                                 [](const pollfd& fd) { return fd.revents != 0; });
    if (other_is_ready) return absl::OkStatus();
  }
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The host could not be reached, whatever the reason: for the user that is one kind of failure.
absl::Status AsConnectError(const absl::Status& status, const std::string& label) {
  const bool unreached = absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status);
  const std::string message = label + ": " + std::string(status.message());
  absl::Status result(unreached ? absl::StatusCode::kUnavailable : status.code(), message);
  if (NeedsUser(status)) result = WithNeedsUser(std::move(result));
  return IsOtherMachine(status) ? WithOtherMachine(std::move(result)) : result;
}

}  // namespace

SshOptions SshOptionsFromEnvironment() {
  SshOptions options{.home = Environment("HOME"), .agent_socket = Environment("SSH_AUTH_SOCK")};
  const std::string known_hosts = Environment("MUSTER_KNOWN_HOSTS");
  options.known_hosts = known_hosts.empty() ? options.home + "/.muster/known_hosts" : known_hosts;
  return options;
}

absl::StatusOr<std::unique_ptr<SshTransport>> SshTransport::Connect(const SshTarget& target,
                                                                    const SshOptions& options,
                                                                    TimePoint deadline) {
  SshLogin login;
  const absl::Status status =
      LogIn(target, options, {.deadline = deadline, .cancel_fd = options.cancel_fd}, login);
  if (!status.ok()) return AsConnectError(status, Label(target));
  return std::make_unique<SshTransportImpl>(target, std::move(login), options.silence_limit);
}

}  // namespace muster
