// For tests: a process that may start no threads.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <system_error>
#include <thread>

namespace muster {

inline constexpr int kMayStartThreads = 77;  // nothing here can be kept from it

// Ends this process by what `works` says in it.
inline void EndWithoutThreads(const std::function<bool()>& works) noexcept {
  constexpr uid_t kNobody = 65534;  // the limit does not hold for root
  const rlimit none{.rlim_cur = 1, .rlim_max = 1};
  if (::getuid() == 0 && ::setuid(kNobody) != 0) ::_exit(kMayStartThreads);
  if (::setrlimit(RLIMIT_NPROC, &none) != 0) ::_exit(kMayStartThreads);
  try {
    std::thread([] {}).join();
    ::_exit(kMayStartThreads);
  } catch (const std::system_error&) {
  }
  ::_exit(works() ? 0 : 1);
}

/// What `works` says in such a process: 0 if it is true, kMayStartThreads, or how that ended otherwise.
inline int ExitCodeWithoutThreads(const std::function<bool()>& works) {
  const pid_t child = ::fork();
  if (child == 0) EndWithoutThreads(works);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace muster
