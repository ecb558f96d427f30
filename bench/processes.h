// Processes that benchmarks talk to.
#pragma once

#include <arpa/inet.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>

#include "base/status.h"

namespace muster {

/// Another process of this program, which ends with this object or with this process.
class Child {
 public:
  explicit Child(const std::function<void()>& run) : pid_(::fork()) {
    MUSTER_CHECK(pid_ >= 0);
    if (pid_ > 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    run();
    ::_exit(0);
  }
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  ~Child() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  /// Until it has ended; well, or this process ends, too.
  void AwaitSuccess() {
    int status = 0;
    MUSTER_CHECK(::waitpid(std::exchange(pid_, -1), &status, 0) > 0);
    MUSTER_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a process of the benchmark has failed");
  }

 private:
  pid_t pid_;
};

/// A socket that listens on loopback, and its port.
inline std::pair<int, uint16_t> ListenOnLoopback() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  MUSTER_CHECK(::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 && ::listen(fd, 1) == 0);
  MUSTER_CHECK(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return {fd, ntohs(address.sin_port)};
}

inline std::string FreeLoopbackAddress() {
  const auto [fd, port] = ListenOnLoopback();
  ::close(fd);
  return absl::StrFormat("127.0.0.1:%d", port);
}

}  // namespace muster
