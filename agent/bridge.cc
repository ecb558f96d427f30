#include "agent/bridge.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "agent/daemon.h"
#include "agent/garbage.h"
#include "agent/task_program.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/framing.h"
#include "base/process.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kConnectTimeout = seconds(10);
constexpr size_t kRelayBytes = 65536;
constexpr off_t kMaxDaemonLogBytes = 1 << 20;
constexpr char kDaemonLog[] = "daemon.log";

// It answers once it knows all tasks that are on its disk.
absl::Status TooSlow(const std::filesystem::path& root) {
  return Unavailable(
      "the daemon under %s does not answer within %d s: it hangs, or its disk is slow, or it has very many "
      "tasks of old jobs to look at, which `muster gc` removes; if it is only slow, try again",
      root.string(), std::chrono::duration_cast<seconds>(kConnectTimeout).count());
}

// Reads once, blocking until the deadline. "" at the end of the stream.
absl::StatusOr<std::string> ReadSome(int fd, TimePoint deadline) {
  while (true) {
    pollfd event{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&event, 1, MillisecondsUntil(deadline));
    if (ready == 0) return DeadlineExceeded("no answer");
    char bytes[4096];
    const ssize_t n = ready < 0 ? -1 : ::read(fd, bytes, sizeof bytes);
    if (n >= 0) return std::string(bytes, n);
    if (errno != EINTR && errno != EAGAIN) return ErrnoError(errno, "read");
  }
}

// What the daemon says about its start: kDaemonReady, nothing (another one is there), or why it cannot.
absl::StatusOr<std::string> StartDaemon(const std::filesystem::path& root, TimePoint deadline) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoError(errno, "pipe2");
  UniqueFd read_end(fds[0]), write_end(fds[1]);
  UniqueFd log(::open(kDaemonLog, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  if (!log.valid()) return ErrnoError(errno, (root / kDaemonLog).string());
  if (struct stat info{}; ::fstat(log.get(), &info) == 0 && info.st_size > kMaxDaemonLogBytes) {
    (void)!::ftruncate(log.get(), 0);
  }
  MUSTER_ASSIGN_OR_RETURN(Process daemon,
                          Process::Spawn({.argv = {"/proc/self/exe", "daemon", "--root", root.string()},
                                          .environment = BaseEnvironment(),
                                          .stdout_fd = write_end.get(),
                                          .stderr_fd = log.get(),
                                          .new_session = true}));
  daemon.Release();
  write_end.reset();
  std::string said;
  while (true) {
    const absl::StatusOr<std::string> part = ReadSome(read_end.get(), deadline);
    if (absl::IsDeadlineExceeded(part.status())) return TooSlow(root);
    MUSTER_RETURN_IF_ERROR(part.status());
    if (part->empty()) return said;
    said += *part;
  }
}

// An invalid one: nobody listens.
absl::StatusOr<UniqueFd> Connect(const std::filesystem::path& root, TimePoint deadline) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // A daemon that hangs takes some more than it accepts; then this would wait for it. Zero would be for ever.
  const int wait_ms = std::max(1, MillisecondsUntil(deadline));
  const timeval wait{.tv_sec = wait_ms / 1000, .tv_usec = wait_ms % 1000 * 1000};
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, kDaemonSocket, sizeof kDaemonSocket);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return socket;
  if (errno == EAGAIN) return TooSlow(root);
  return UniqueFd();
}

struct DaemonConnection {
  UniqueFd socket;
  std::string received;  // after the daemon's hello
};

// Nothing: there is no daemon, or it was just ending and never took the connection.
absl::StatusOr<std::optional<DaemonConnection>> TryDaemon(const std::filesystem::path& root,
                                                          TimePoint deadline) {
  DaemonConnection connection;
  MUSTER_ASSIGN_OR_RETURN(connection.socket, Connect(root, deadline));
  if (!connection.socket.valid()) return std::nullopt;
  HelloScanner scanner(0);
  while (true) {
    const absl::StatusOr<std::string> bytes = ReadSome(connection.socket.get(), deadline);
    if (absl::IsDeadlineExceeded(bytes.status())) return TooSlow(root);
    if (!bytes.ok() || bytes->empty()) return std::nullopt;
    MUSTER_ASSIGN_OR_RETURN(const bool found, scanner.Feed(*bytes));
    if (!found) continue;
    MUSTER_RETURN_IF_ERROR(CheckProtocolVersion(
        scanner.version(), absl::StrFormat("the daemon that runs under %s", root.string()),
        "this muster-agent"));
    connection.received = scanner.TakeRest();
    return connection;
  }
}

absl::StatusOr<DaemonConnection> ConnectToDaemon(const std::filesystem::path& root) {
  const TimePoint deadline = Now() + kConnectTimeout;
  std::string said;
  while (Now() < deadline) {
    MUSTER_ASSIGN_OR_RETURN(std::optional<DaemonConnection> connection, TryDaemon(root, deadline));
    if (connection) return *std::move(connection);
    // Whoever is first takes the daemon's lock; the daemons that others start meanwhile see that and end.
    MUSTER_ASSIGN_OR_RETURN(said, StartDaemon(root, deadline));
    if (!said.empty() && said != kDaemonReady) break;
    if (said.empty()) ::poll(nullptr, 0, 10);  // one that holds the lock is just starting, or just ending
  }
  return Unavailable("cannot start the daemon under %s: %s", root.string(),
                     said.empty() ? "another one holds daemon.lock but does not answer" : said.c_str());
}

// Bytes on their way from one descriptor to another.
struct Flow {
  int from, to;
  std::string bytes;
  bool ended = false;   // nothing more comes
  bool broken = false;  // nothing more can be written

  bool wants_input() const { return !ended && bytes.size() < kRelayBytes; }

  void Pump() {
    char piece[kRelayBytes];
    if (wants_input()) {
      const ssize_t n = ::read(from, piece, sizeof piece);
      if (n > 0) bytes.append(piece, n);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) ended = true;
    }
    if (bytes.empty()) return;
    const ssize_t n = ::write(to, bytes.data(), bytes.size());
    if (n > 0) bytes.erase(0, n);
    if (n < 0 && errno != EAGAIN && errno != EINTR) broken = true;
  }
};

absl::Status Relay(DaemonConnection connection, const std::filesystem::path& root) {
  const int socket = connection.socket.get();
  for (const int fd : {0, 1, socket}) ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  Flow up{.from = 0, .to = socket}, down{.from = socket, .to = 1, .bytes = std::move(connection.received)};
  while (true) {
    up.Pump();
    down.Pump();
    if ((up.ended && up.bytes.empty()) || down.broken) return absl::OkStatus();
    if ((down.ended && down.bytes.empty()) || up.broken) {
      return Unavailable(
          "the daemon under %s ended the connection; its tasks go on, and another one takes them up when "
          "this is run again",
          root.string());
    }
    // Of one that nothing is wanted of, and that has gone away, poll would have to say so for ever.
    const auto wanted = [](int fd, bool input, bool output) {
      const auto events = static_cast<short>((input ? POLLIN : 0) | (output ? POLLOUT : 0));
      return pollfd{.fd = events == 0 ? -1 : fd, .events = events, .revents = 0};
    };
    pollfd fds[3] = {wanted(0, up.wants_input(), false),
                     {.fd = 1, .events = static_cast<short>(down.bytes.empty() ? 0 : POLLOUT), .revents = 0},
                     wanted(socket, down.wants_input(), !up.bytes.empty())};
    if (::poll(fds, 3, -1) < 0 && errno != EINTR) return ErrnoError(errno, "poll");
    // The reader of stdout is gone: its next word would be lost.
    if (fds[1].revents & (POLLERR | POLLHUP)) return absl::OkStatus();
  }
}

}  // namespace

absl::Status RunBridge(const std::filesystem::path& root) {
  ::signal(SIGPIPE, SIG_IGN);
  MUSTER_RETURN_IF_ERROR(WriteAll(1, HelloLine()));
  MUSTER_RETURN_IF_ERROR(MakeDirectories(root, 0700));
  if (::chdir(root.c_str()) != 0) return ErrnoError(errno, root.string());
  MarkUsed("/proc/self/exe");
  MUSTER_ASSIGN_OR_RETURN(DaemonConnection connection, ConnectToDaemon(root));
  return Relay(std::move(connection), root);
}

}  // namespace muster
