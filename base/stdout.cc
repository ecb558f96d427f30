#include "base/stdout.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace muster {
namespace {

// The errno of the first write that failed. A process has one stdout, so there is one of these.
std::atomic<int> stdout_error = 0;

}  // namespace

void PrintToStdout(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(n);
    } else if (errno == EAGAIN) {
      // Whoever shares the pipe or terminal has made it non-blocking.
      pollfd room{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
      ::poll(&room, 1, -1);
    } else if (errno != EINTR) {
      int none = 0;
      stdout_error.compare_exchange_strong(none, errno);
      return;
    }
  }
}

bool ReaderIsGone(int fd, Duration wait) {
  const TimePoint deadline = Now() + wait;
  pollfd reader{.fd = fd, .events = 0, .revents = 0};
  if (::poll(&reader, 1, MillisecondsUntil(deadline)) <= 0) return false;
  // One that was closed from the start had no reader who could go.
  if ((reader.revents & POLLNVAL) != 0) (void)::poll(nullptr, 0, MillisecondsUntil(deadline));
  return (reader.revents & (POLLERR | POLLHUP)) != 0;
}

absl::Status StdoutStatus() {
  const int error = stdout_error.load();
  return error == 0 || error == EPIPE ? absl::OkStatus() : ErrnoError(error, "stdout");
}

}  // namespace muster
