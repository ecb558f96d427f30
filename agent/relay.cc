#include "agent/relay.h"

#include <absl/cleanup/cleanup.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <span>
#include <thread>

#include "agent/names.h"
#include "agent/secret_stream.h"
#include "agent/sockets.h"
#include "agent/store.h"
#include "base/archive.h"
#include "base/clock.h"

namespace muster {
namespace {

// The conversation: "<sha256>\n" from the one that fetches; then from the server one byte, and behind it the
// archive, or why there is none.
constexpr size_t kQuestionBytes = 65;
constexpr char kArchiveFollows = '+';
constexpr char kReasonFollows = '-';

// Who has no agent yet, and so no TLS, says "agent <ticket>\n", and gets the program. TLS begins otherwise.
constexpr std::string_view kAgentQuestion = "agent ";

constexpr Duration kConnectTimeout = std::chrono::seconds(5);
constexpr Duration kProgressInterval = std::chrono::seconds(1);
constexpr Duration kGreetingTimeout = std::chrono::seconds(10);
constexpr Duration kSlowTimeout = std::chrono::seconds(60);
constexpr Duration kIdleTimeout = std::chrono::minutes(10);
constexpr int kMostAnswered = 8;
constexpr size_t kMostStrangers = 64;  // who may be scanning ports
constexpr size_t kReadBytes = size_t{256} << 10;
constexpr size_t kMostReasonBytes = 1000;

absl::StatusOr<std::string> ReadQuestion(SecretStream& stream) {
  std::string question(kQuestionBytes, '\0');
  for (size_t have = 0; have < question.size();) {
    MUSTER_ASSIGN_OR_RETURN(const size_t n, stream.Read(std::span(question).subspan(have)));
    if (n == 0) return Unavailable("it asks for nothing");
    have += n;
  }
  question.pop_back();
  return question;
}

absl::StatusOr<bool> AsksForAgent(int socket, int stop_fd) {
  MUSTER_RETURN_IF_ERROR(AwaitReady(socket, POLLIN, stop_fd, Now() + kGreetingTimeout));
  char first = '\0';
  return ::recv(socket, &first, 1, MSG_PEEK) == 1 && first == kAgentQuestion[0];
}

absl::Status CheckTicket(int socket, const ServeOptions& options) {
  const std::string right = std::string(kAgentQuestion) + options.ticket + "\n";
  std::string question(right.size(), '\0');
  const TimePoint deadline = Now() + kGreetingTimeout;
  for (size_t have = 0; have < question.size();) {
    MUSTER_RETURN_IF_ERROR(AwaitReady(socket, POLLIN, options.stop_fd, deadline));
    const ssize_t n = ::recv(socket, question.data() + have, question.size() - have, 0);
    if (n <= 0) return Unavailable("it has no ticket");
    have += static_cast<size_t>(n);
  }
  // In a time that says nothing of how much of it was right.
  const bool is_right = CRYPTO_memcmp(question.data(), right.data(), right.size()) == 0;
  return is_right ? absl::OkStatus() : absl::PermissionDeniedError("it has another ticket");
}

absl::Status SendThisProgram(int socket, int stop_fd) {
  const UniqueFd program(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  struct stat file {};
  if (!program.valid() || ::fstat(program.get(), &file) != 0) return ErrnoError(errno, "/proc/self/exe");
  if (::fcntl(socket, F_SETFL, O_NONBLOCK) != 0) return ErrnoError(errno, "fcntl");
  for (off_t sent = 0; sent < file.st_size;) {
    MUSTER_RETURN_IF_ERROR(AwaitReady(socket, POLLOUT, stop_fd, Now() + kSlowTimeout));
    const ssize_t n = ::sendfile(socket, program.get(), &sent, kReadBytes);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return ErrnoError(errno, "sendfile");
    if (n == 0) return Internal("/proc/self/exe has become shorter");
  }
  return absl::OkStatus();
}

// Whatever goes wrong here, the other end sees it. `answered`: how many are, that know secret or ticket.
absl::Status Answer(UniqueFd socket, const ServeOptions& options, std::atomic<int>* answered) {
  const auto take_turn = [answered] {
    return ++*answered > kMostAnswered ? absl::ResourceExhaustedError("others are answered")
                                       : absl::OkStatus();
  };
  MUSTER_ASSIGN_OR_RETURN(const bool asks_for_agent, AsksForAgent(socket.get(), options.stop_fd));
  if (asks_for_agent) {
    MUSTER_RETURN_IF_ERROR(CheckTicket(socket.get(), options));
    const absl::Cleanup leave = [answered] { --*answered; };
    MUSTER_RETURN_IF_ERROR(take_turn());
    return SendThisProgram(socket.get(), options.stop_fd);
  }
  MUSTER_ASSIGN_OR_RETURN(
      SecretStream stream,
      SecretStream::Accept(std::move(socket), {.secret = options.secret, .stop_fd = options.stop_fd}));
  const absl::Cleanup leave = [answered] { --*answered; };
  MUSTER_RETURN_IF_ERROR(take_turn());
  MUSTER_ASSIGN_OR_RETURN(const std::string sha256, ReadQuestion(stream));
  const absl::StatusOr<bool> is_stored = IsStored(options.root, sha256);
  if (!is_stored.ok() || !*is_stored) {
    MUSTER_RETURN_IF_ERROR(stream.Write(std::string(1, kReasonFollows) + "it is not there"));
    return stream.Close();
  }
  MUSTER_RETURN_IF_ERROR(stream.Write({&kArchiveFollows, 1}));
  MUSTER_RETURN_IF_ERROR(
      PackContent(options.root, sha256, [&](std::string_view piece) { return stream.Write(piece); }));
  return stream.Close();
}

// The other side of it.
absl::Status Download(const FetchOptions& options, const ArchiveSink& take) {
  MUSTER_ASSIGN_OR_RETURN(UniqueFd socket,
                          ConnectTo(options.address, options.port, options.stop_fd, Now() + kConnectTimeout));
  MUSTER_ASSIGN_OR_RETURN(SecretStream stream,
                          SecretStream::Connect(std::move(socket), {.secret = options.secret,
                                                                    .stop_fd = options.stop_fd,
                                                                    .idle_timeout = options.silence_limit}));
  MUSTER_RETURN_IF_ERROR(stream.Write(options.sha256 + "\n"));
  std::string bytes(kReadBytes, '\0'), reason;
  MUSTER_ASSIGN_OR_RETURN(size_t n, stream.Read(std::span(bytes).first(1)));
  const bool has_it = n == 1 && bytes[0] == kArchiveFollows;
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(n, stream.Read(bytes));
    if (n == 0) break;
    if (has_it) {
      MUSTER_RETURN_IF_ERROR(take(std::string_view(bytes).substr(0, n)));
    } else {
      reason.append(bytes, 0, std::min(n, kMostReasonBytes - reason.size()));
    }
  }
  return has_it ? absl::OkStatus() : NotFound("%s", reason);
}

// A connection and the thread that answers it.
struct Conversation {
  std::atomic<bool> is_over = false;
  std::jthread thread;
};

}  // namespace

absl::Status Serve(const ServeOptions& options) {
  if (!IsSecret(options.secret) || !IsSecret(options.ticket)) {
    return InvalidArgument("the secret or the ticket is not 64 hexadecimal digits");
  }
  const auto is_leased = [&](uint32_t port) {
    std::error_code error;
    return std::filesystem::exists(options.root / "ports" / std::to_string(port), error);
  };
  MUSTER_ASSIGN_OR_RETURN(const Listener listener,
                          ListenOnFreePort(options.address, /*backlog=*/16, is_leased));
  MUSTER_RETURN_IF_ERROR(options.listening(listener.port));
  std::atomic<int> answered = 0;
  std::list<Conversation> conversations;
  while (true) {
    const absl::Status ready =
        AwaitReady(listener.socket.get(), POLLIN, options.stop_fd, Now() + kIdleTimeout);
    if (absl::IsCancelled(ready) || absl::IsDeadlineExceeded(ready)) return absl::OkStatus();
    MUSTER_RETURN_IF_ERROR(ready);
    UniqueFd socket(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.valid() && errno != ECONNABORTED && errno != EINTR) return ErrnoError(errno, "accept");
    if (!socket.valid()) continue;  // it has gone already
    conversations.remove_if([](const Conversation& each) { return each.is_over.load(); });
    if (conversations.size() >= kMostAnswered + kMostStrangers) continue;
    Conversation& conversation = conversations.emplace_back();
    conversation.thread =
        std::jthread([&options, &answered, &conversation, socket = std::move(socket)]() mutable {
          (void)Answer(std::move(socket), options, &answered);
          conversation.is_over = true;
        });
  }
}

absl::StatusOr<std::string> Fetch(const FetchOptions& options) {
  bool is_sources_fault = false;
  uint64_t come = 0;
  TimePoint said = Now();
  const auto say = [&](size_t bytes) -> absl::Status {
    come += bytes;
    if (!options.progress || Now() - said < kProgressInterval) return absl::OkStatus();
    said = Now();
    return options.progress(come);
  };
  const auto produce = [&](const ArchiveSink& take) {
    absl::Status taken;
    const absl::Status status = Download(options, [&](std::string_view bytes) {
      taken = take(bytes);
      if (taken.ok()) taken = say(bytes.size());
      return taken;
    });
    is_sources_fault =
        !status.ok() && taken.ok() && !absl::IsCancelled(status) && !absl::IsInvalidArgument(status);
    return status;
  };
  absl::StatusOr<std::string> stored = Store(options.root, options.sha256, options.size, produce);
  if (stored.ok()) return stored;
  const std::string reason(stored.status().message());
  // An archive that is none, or another one, is the source's doing as well.
  if (is_sources_fault || absl::IsDataLoss(stored.status())) {
    return Unavailable("from %s port %d: %s", options.address, options.port, reason);
  }
  // What only this host can mend must not look like that.
  return absl::IsUnavailable(stored.status()) ? Internal("%s", reason) : stored.status();
}

}  // namespace muster
