#include "launcher/commands/detachment.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "launcher/commands/interrupts.h"

namespace muster {
namespace {

// In the parent, with these signals blocked.
int AwaitChild(pid_t child, int pipe, const sigset_t& signals, Detachment::Interrupted interrupted) {
  const UniqueFd signal_fd(::signalfd(-1, &signals, SFD_CLOEXEC));
  MUSTER_CHECK(signal_fd.valid());
  while (true) {
    pollfd fds[] = {{.fd = pipe, .events = POLLIN, .revents = 0},
                    {.fd = signal_fd.get(), .events = POLLIN, .revents = 0}};
    (void)::poll(fds, 2, -1);
    signalfd_siginfo info{};
    if (fds[1].revents != 0 && ::read(signal_fd.get(), &info, sizeof info) == sizeof info) {
      if (interrupted == Detachment::Interrupted::kEndsParent) return 128 + static_cast<int>(info.ssi_signo);
      (void)::kill(child, static_cast<int>(info.ssi_signo));
    }
    if (fds[0].revents == 0) continue;
    uint8_t exit_code = 0;
    if (::read(pipe, &exit_code, 1) == 1) return exit_code;
    int status = 0;
    while (::waitpid(child, &status, 0) < 0) {
      if (errno != EINTR) return 1;
    }
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    std::fprintf(
        stderr,
        "muster: the process that was to go on in the background was ended by a signal (%s): another "
        "muster may have taken the job over\n",
        ::strsignal(WTERMSIG(status)));
    return 128 + WTERMSIG(status);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Detachment>> Detachment::Fork(int* exit_code, Interrupted interrupted) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoError(errno, "a pipe");
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  sigset_t signals, before;
  ::sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    // One that is blocked comes even if it is ignored.
    if (CountsAsInterrupt(number)) ::sigaddset(&signals, number);
  }
  ::sigprocmask(SIG_BLOCK, &signals, &before);
  std::signal(SIGCHLD, SIG_DFL);  // it may be ignored by inheritance: then nobody could be waited for
  std::fflush(nullptr);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0) {
    const int error = errno;
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    return ErrnoError(error, "a process in the background");
  }
  if (child > 0) {
    write_end.reset();
    *exit_code = AwaitChild(child, read_end.get(), signals, interrupted);
    return nullptr;
  }
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  // A terminal, or whoever ends a whole group, sends them to both.
  TakeInterruptsOnlyFrom(parent);
  CatchInterrupts();
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  return std::unique_ptr<Detachment>(new Detachment(std::move(write_end)));
}

absl::Status Detachment::OpenLog(const std::filesystem::path& path) {
  log_ = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  return log_.valid() ? absl::OkStatus() : ErrnoError(errno, path.string());
}

void Detachment::TakeNoInterrupts() {
  std::signal(SIGTERM, SIG_DFL);
  for (const int number : {SIGINT, SIGHUP, SIGQUIT}) std::signal(number, SIG_IGN);
}

void Detachment::Outlive() {
  TakeNoInterrupts();
  (void)::prctl(PR_SET_PDEATHSIG, 0);
  (void)::setsid();
}

void Detachment::Detach(const std::function<void()>& detached, int exit_code) {
  MUSTER_CHECK(log_.valid() && parent_.valid());
  TakeNoInterrupts();
  if (Interrupts() > 0) return;
  (void)::prctl(PR_SET_PDEATHSIG, 0);
  std::fflush(nullptr);
  if (const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC)); nothing.valid()) {
    ::dup2(nothing.get(), STDIN_FILENO);
  }
  ::dup2(log_.get(), STDOUT_FILENO);
  ::dup2(log_.get(), STDERR_FILENO);
  log_.reset();
  (void)::setsid();
  detached();
  const auto byte = static_cast<uint8_t>(exit_code);
  (void)!::write(parent_.get(), &byte, 1);
  parent_.reset();
}

}  // namespace muster
