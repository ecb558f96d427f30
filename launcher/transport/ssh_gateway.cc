#include "launcher/transport/ssh_gateway.h"

#include <libssh/callbacks.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace muster {
namespace {

constexpr size_t kBytesAtATime = 64 << 10;

UniqueFd MakeEventFd() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  MUSTER_CHECK(fd.valid());
  return fd;
}

void Signal(const UniqueFd& event) {
  const uint64_t one = 1;
  (void)!::write(event.get(), &one, sizeof one);
}

struct FreeChannel {
  void operator()(ssh_channel channel) const { ssh_channel_free(channel); }
};

}  // namespace

// A channel of the jump host's and the socket here that is joined to it.
struct SshGateway::Tunnel {
  ~Tunnel() {
    if (channel != nullptr) ssh_remove_channel_callbacks(channel.get(), &callbacks);
  }

  std::unique_ptr<ssh_channel_struct, FreeChannel> channel;
  ssh_channel_callbacks_struct callbacks{};
  std::shared_ptr<Request> request;  // until it is open
  UniqueFd socket;                   // from then on
  std::string pending;               // bytes for the socket that have left the channel
  std::string unsent;                // bytes for the channel that have left the socket
  bool has_news = false;             // of the channel: bytes or an end
  bool is_readable = false;          // of the socket, as poll saw it last
  bool is_writable = true;
  bool is_over = false;
};

SshGateway::SshGateway(SshTarget jump, SshOptions options, TimePoint deadline)
    : jump_(std::move(jump)), options_(std::move(options)), stop_(MakeEventFd()), wake_(MakeEventFd()) {
  options_.cancel_fd = stop_.get();
  // Not whoever happened to need it first: this outlives them.
  options_.on_coming = [this] { ++seconds_waited_; };
  try {
    thread_ = std::jthread([this, deadline] { Run(deadline); });
  } catch (const std::system_error&) {
    failure_ = Unavailable("through %s: this account may have no more threads (ulimit -u)", jump_.name);
  }
}

SshGateway::~SshGateway() {
  Signal(stop_);
  if (thread_.joinable()) thread_.join();
}

bool SshGateway::works() const {
  const std::lock_guard lock(mutex_);
  return failure_.ok();
}

std::vector<AcceptedKey> SshGateway::TakeAcceptedKeys() {
  const std::lock_guard lock(mutex_);
  return std::exchange(accepted_, {});
}

absl::StatusOr<UniqueFd> SshGateway::Open(const std::string& address, uint16_t port, Limits& limits,
                                          const std::function<void()>& waiting) {
  auto request = std::make_shared<Request>();
  request->address = address;
  request->port = port;
  request->answered = MakeEventFd();
  {
    const std::lock_guard lock(mutex_);
    MUSTER_RETURN_IF_ERROR(failure_);
    requests_.push_back(request);
  }
  Signal(wake_);
  int known = seconds_waited_;
  absl::Status waited;
  do {
    const TimePoint look = std::min(limits.deadline, Now() + std::chrono::seconds(1));
    waited = WaitForFd(request->answered.get(), POLLIN, {.deadline = look, .cancel_fd = limits.cancel_fd});
    const int before = std::exchange(known, seconds_waited_);
    if (known == before) continue;
    limits.deadline += std::chrono::seconds(known - before);
    if (waiting) waiting();
  } while (absl::IsDeadlineExceeded(waited) && Now() < limits.deadline);
  const std::lock_guard lock(mutex_);
  request->given_up = !waited.ok();
  MUSTER_RETURN_IF_ERROR(Annotate(waited, "through " + jump_.name));
  return std::move(request->socket);
}

void SshGateway::Answer(Request& request, absl::StatusOr<UniqueFd> socket) {
  const std::lock_guard lock(mutex_);
  if (request.given_up) return;
  request.socket = std::move(socket);
  Signal(request.answered);
}

void SshGateway::Fail(const absl::Status& status) {
  std::vector<std::shared_ptr<Request>> waiting;
  {
    const std::lock_guard lock(mutex_);
    failure_ = status;
    waiting = std::move(requests_);
  }
  for (const auto& request : waiting) Answer(*request, status);
  for (const Tunnel& tunnel : tunnels_) {
    if (tunnel.request != nullptr) Answer(*tunnel.request, status);
  }
  tunnels_.clear();  // before their session
}

void SshGateway::Run(TimePoint deadline) {
  SshLogin login;
  absl::Status status = LogIn(jump_, options_, {.deadline = deadline, .cancel_fd = stop_.get()}, login);
  if (status.ok()) {
    {
      const std::lock_guard lock(mutex_);
      accepted_ = login.accepted;
    }
    status = Serve(login.session.get());
  }
  const bool may_come_back = absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
  const absl::Status named = absl::Status(
      may_come_back ? absl::StatusCode::kUnavailable : status.code(),
      absl::StrFormat("through %s (%s:%d): %s", jump_.name, jump_.address, jump_.port, status.message()));
  Fail(NeedsUser(status) ? WithNeedsUser(named) : named);
}

// Returns why it ended.
absl::Status SshGateway::Serve(ssh_session session) {
  SessionPump pump(session);
  // Of a jump host that is reached through another one, TCP says nothing.
  SilenceWatch silence(session, options_.silence_limit);
  std::vector<pollfd> fds;
  for (;;) {
    BeginRequests(session);
    MUSTER_RETURN_IF_ERROR(pump.Pump());
    MUSTER_RETURN_IF_ERROR(silence.Check());
    const uint64_t moved_bytes = silence.moved_bytes();
    bool moved = false;
    for (Tunnel& tunnel : tunnels_) moved = Advance(session, tunnel) || moved;
    tunnels_.remove_if([](const Tunnel& tunnel) { return tunnel.is_over; });
    // libssh takes in and sends for the whole session whatever it is asked about one channel, so a tunnel
    // that had its turn may have news or room again, and the socket nothing more to say.
    moved = moved || silence.moved_bytes() != moved_bytes || !ssh_is_connected(session);
    const bool output = (ssh_get_poll_flags(session) & SSH_WRITE_PENDING) != 0;
    fds.assign({{.fd = ssh_get_fd(session),
                 .events = static_cast<short>(output ? POLLIN | POLLOUT : POLLIN),
                 .revents = 0},
                {.fd = stop_.get(), .events = POLLIN, .revents = 0},
                {.fd = wake_.get(), .events = POLLIN, .revents = 0}});
    for (const Tunnel& tunnel : tunnels_) {
      const bool takes = !tunnel.is_readable;
      const bool gives = !tunnel.pending.empty() && !tunnel.is_writable;
      fds.push_back({.fd = takes || gives ? tunnel.socket.get() : -1,
                     .events = static_cast<short>((takes ? POLLIN : 0) | (gives ? POLLOUT : 0)),
                     .revents = 0});
    }
    const int timeout_ms = moved ? 0 : MillisecondsUntil(silence.next_check());
    if (::poll(fds.data(), fds.size(), timeout_ms) < 0 && errno != EINTR) return ErrnoError(errno, "poll");
    if (fds[1].revents != 0) return Cancelled("nobody needs it any more");
    auto polled = fds.begin() + 3;
    for (Tunnel& tunnel : tunnels_) {
      if ((polled->revents & ~POLLOUT) != 0) tunnel.is_readable = true;
      if ((polled->revents & ~POLLIN) != 0) tunnel.is_writable = true;
      ++polled;
    }
  }
}

void SshGateway::BeginRequests(ssh_session session) {
  uint64_t ignored;
  (void)!::read(wake_.get(), &ignored, sizeof ignored);
  std::vector<std::shared_ptr<Request>> requests;
  {
    const std::lock_guard lock(mutex_);
    requests = std::exchange(requests_, {});
  }
  for (std::shared_ptr<Request>& request : requests) {
    Tunnel& tunnel = tunnels_.emplace_back();
    tunnel.request = std::move(request);
    tunnel.channel.reset(ssh_channel_new(session));
    MUSTER_CHECK(tunnel.channel != nullptr);
    tunnel.callbacks.userdata = &tunnel;
    // Bytes stay in the channel, whose window holds the far end back, until the socket takes them.
    tunnel.callbacks.channel_data_function = [](ssh_session, ssh_channel, void*, uint32_t, int, void* self) {
      static_cast<Tunnel*>(self)->has_news = true;
      return 0;
    };
    tunnel.callbacks.channel_eof_function = [](ssh_session, ssh_channel, void* self) {
      static_cast<Tunnel*>(self)->has_news = true;
    };
    tunnel.callbacks.channel_close_function = [](ssh_session, ssh_channel, void* self) {
      static_cast<Tunnel*>(self)->has_news = true;
    };
    ssh_callbacks_init(&tunnel.callbacks);
    ssh_set_channel_callbacks(tunnel.channel.get(), &tunnel.callbacks);
  }
}

bool SshGateway::Advance(ssh_session session, Tunnel& tunnel) {
  if (tunnel.request != nullptr) {
    AdvanceOpening(session, tunnel);
    return tunnel.request == nullptr;
  }
  const bool gave = ToSocket(tunnel), took = FromSocket(session, tunnel);
  return gave || took;
}

void SshGateway::AdvanceOpening(ssh_session session, Tunnel& tunnel) {
  Request& request = *tunnel.request;
  const int opened =
      ssh_channel_open_forward(tunnel.channel.get(), request.address.c_str(), request.port, "127.0.0.1", 0);
  if (opened == SSH_AGAIN) return;
  if (opened != SSH_OK) {
    tunnel.is_over = true;
    const std::string why = ssh_get_error(session);
    // RFC 4254, 5.1: administratively prohibited.
    const char* const advice = why.find("error (1)") == std::string::npos
                                   ? ""
                                   : "; its sshd may forbid that (AllowTcpForwarding, PermitOpen)";
    Answer(request, Unavailable("through %s: it cannot connect to %s:%d: %s%s", jump_.name, request.address,
                                request.port, why, advice));
    tunnel.request = nullptr;
    return;
  }
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    tunnel.is_over = true;
    Answer(request, ErrnoError(errno, "socketpair"));
    tunnel.request = nullptr;
    return;
  }
  tunnel.socket = UniqueFd(ends[0]);
  tunnel.has_news = true;
  Answer(request, UniqueFd(ends[1]));
  tunnel.request = nullptr;
}

// Moves what the channel has.
bool SshGateway::ToSocket(Tunnel& tunnel) {
  bool moved = false;
  if (tunnel.pending.empty() && tunnel.has_news) {
    tunnel.pending.resize(kBytesAtATime);
    const int n = ssh_channel_read_nonblocking(tunnel.channel.get(), tunnel.pending.data(),
                                               static_cast<uint32_t>(tunnel.pending.size()), 0);
    tunnel.pending.resize(n > 0 ? n : 0);
    moved = n > 0;
    if (n <= 0) {
      tunnel.has_news = false;
      // The socket is closed behind the last byte, which its other end sees.
      tunnel.is_over = n < 0 || ssh_channel_is_eof(tunnel.channel.get()) != 0 ||
                       ssh_channel_is_closed(tunnel.channel.get()) != 0;
    }
  }
  while (!tunnel.pending.empty() && tunnel.is_writable) {
    const ssize_t n = ::send(tunnel.socket.get(), tunnel.pending.data(), tunnel.pending.size(), MSG_NOSIGNAL);
    if (n > 0) {
      tunnel.pending.erase(0, n);
      moved = true;
    } else if (n < 0 && errno == EAGAIN) {
      tunnel.is_writable = false;
    } else if (errno != EINTR) {
      tunnel.is_over = true;  // whoever had the other end has gone
      return moved;
    }
  }
  return moved;
}

// Moves what the socket has, as much as the channel's window takes.
bool SshGateway::FromSocket(ssh_session session, Tunnel& tunnel) {
  if (tunnel.is_over) return false;
  const size_t window = ssh_channel_window_size(tunnel.channel.get());
  if (window == 0 || (ssh_get_status(session) & SSH_WRITE_PENDING) != 0) return false;
  bool moved = false;
  if (tunnel.unsent.empty() && tunnel.is_readable) {
    tunnel.unsent.resize(std::min(window, kBytesAtATime));
    const ssize_t n = ::read(tunnel.socket.get(), tunnel.unsent.data(), tunnel.unsent.size());
    tunnel.unsent.resize(n > 0 ? n : 0);
    moved = n > 0 || (n < 0 && errno == EINTR);
    tunnel.is_readable = moved;
    tunnel.is_over = n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN);
  }
  if (tunnel.unsent.empty()) return moved;
  // Takes fewer, or none, while keys are exchanged again.
  const int n = ssh_channel_write(tunnel.channel.get(), tunnel.unsent.data(),
                                  static_cast<uint32_t>(tunnel.unsent.size()));
  if (n > 0) tunnel.unsent.erase(0, n);
  tunnel.is_over = n < 0 && n != SSH_AGAIN;
  return n > 0;
}

std::shared_ptr<SshGateway> SshGateways::Get(const std::vector<SshTarget>& jumps, const SshOptions& options,
                                             TimePoint deadline, bool* is_new) {
  SshTarget last = jumps.back();
  last.jumps.assign(jumps.begin(), jumps.end() - 1);
  std::string key;
  for (const SshTarget& jump : jumps) {
    key += absl::StrFormat("%s %s@%s:%d", jump.name, jump.user, jump.address, jump.port);
    for (const std::string& identity : jump.identities) key += " " + identity;
    key += '\n';
  }
  const std::lock_guard lock(mutex_);
  std::weak_ptr<SshGateway>& known = gateways_[key];
  std::shared_ptr<SshGateway> gateway = known.lock();
  *is_new = gateway == nullptr || !gateway->works();
  if (*is_new) {
    gateway = std::make_shared<SshGateway>(std::move(last), options, deadline);
    known = gateway;
  }
  return gateway;
}

}  // namespace muster
