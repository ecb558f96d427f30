#include "base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <utility>

#include "base/descriptor_limit.h"

namespace muster {
namespace {

constexpr size_t kMostOutputBytes = size_t{64} << 20;
constexpr size_t kMostShownBytes = 2000;

// What the child needs, made before fork: between fork and exec only async-signal-safe calls are allowed,
// because another thread may hold malloc's lock.
struct ChildPlan {
  std::vector<char*> argv;
  std::vector<char*> envp;
  const SpawnOptions* options;
  int dev_null;
  int error_pipe;
};

[[noreturn]] void RunChild(const ChildPlan& plan) {
  const SpawnOptions& options = *plan.options;
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  if (options.new_session) ::setsid();
  RestoreDescriptorLimit();
  const int in = options.stdin_fd >= 0 ? options.stdin_fd : plan.dev_null;
  bool ok = ::dup2(in, 0) >= 0;
  if (ok && options.stdout_fd >= 0) ok = ::dup2(options.stdout_fd, 1) >= 0;
  if (ok && options.stderr_fd >= 0) ok = ::dup2(options.stderr_fd, 2) >= 0;
  if (ok && !options.working_directory.empty()) ok = ::chdir(options.working_directory.c_str()) == 0;
  if (ok) ::execvpe(plan.argv[0], plan.argv.data(), options.environment ? plan.envp.data() : environ);
  const int error = errno;
  (void)!::write(plan.error_pipe, &error, sizeof error);
  ::_exit(127);
}

int ExitCodeOfWaitStatus(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& s : strings) pointers.push_back(const_cast<char*>(s.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

absl::StatusOr<Process> Process::Spawn(const SpawnOptions& options) {
  MUSTER_CHECK(!options.argv.empty());
  int error_pipe[2];
  if (::pipe2(error_pipe, O_CLOEXEC) != 0) return ErrnoError(errno, "pipe2");
  UniqueFd error_read(error_pipe[0]), error_write(error_pipe[1]);
  UniqueFd dev_null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!dev_null.valid()) return ErrnoError(errno, "/dev/null");
  const ChildPlan plan{.argv = Pointers(options.argv),
                       .envp = options.environment ? Pointers(*options.environment) : std::vector<char*>(),
                       .options = &options,
                       .dev_null = dev_null.get(),
                       .error_pipe = error_write.get()};
  const pid_t pid = ::fork();
  if (pid < 0) return ErrnoError(errno, "fork");
  if (pid == 0) RunChild(plan);
  error_write.reset();
  Process process(pid, options.new_session);
  int error = 0;
  ssize_t n;
  do {
    n = ::read(error_read.get(), &error, sizeof error);
  } while (n < 0 && errno == EINTR);
  if (n == sizeof error) return ErrnoError(error, "start " + options.argv[0]);
  return process;
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      leads_group_(other.leads_group_),
      exit_code_(std::exchange(other.exit_code_, -1)) {}

Process& Process::operator=(Process&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(leads_group_, other.leads_group_);
  std::swap(exit_code_, other.exit_code_);
  return *this;
}

Process::~Process() {
  if (pid_ < 0) return;
  // By the time that it has begun its program it has its group. Until it is reaped nobody else has its
  // number.
  ::kill(leads_group_ ? -pid_ : pid_, SIGKILL);
  int status;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

absl::StatusOr<int> Process::Wait(TimePoint deadline) {
  if (pid_ < 0) return exit_code_;
  // A pidfd becomes readable when the process ends: a wait with a deadline, without polling or signals.
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (!pidfd.valid()) return ErrnoError(errno, "pidfd_open");
  pollfd wait_for{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  int ready;
  do {
    ready = ::poll(&wait_for, 1, MillisecondsUntil(deadline));
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) return DeadlineExceeded("process %d still runs at the deadline", pid_);
  int status = 0;
  if (::waitpid(pid_, &status, 0) < 0) return ErrnoError(errno, "waitpid");
  pid_ = -1;
  return exit_code_ = ExitCodeOfWaitStatus(status);
}

void Process::Signal(int signal_number) {
  if (pid_ > 0) ::kill(pid_, signal_number);
}

pid_t Process::Release() { return std::exchange(pid_, -1); }

absl::StatusOr<CommandResult> RunCommand(const SpawnOptions& options, TimePoint deadline) {
  int out[2], err[2];
  if (::pipe2(out, O_CLOEXEC) != 0) return ErrnoError(errno, "pipe2");
  UniqueFd out_read(out[0]), out_write(out[1]);
  if (::pipe2(err, O_CLOEXEC) != 0) return ErrnoError(errno, "pipe2");
  UniqueFd err_read(err[0]), err_write(err[1]);
  SpawnOptions child = options;
  child.stdout_fd = out_write.get();
  child.stderr_fd = err_write.get();
  MUSTER_ASSIGN_OR_RETURN(Process process, Process::Spawn(child));
  out_write.reset();
  err_write.reset();

  CommandResult result;
  pollfd ends[2] = {{.fd = out_read.get(), .events = POLLIN, .revents = 0},
                    {.fd = err_read.get(), .events = POLLIN, .revents = 0}};
  std::string* texts[2] = {&result.stdout_text, &result.stderr_text};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    const int ready = ::poll(ends, 2, MillisecondsUntil(deadline));
    if (ready < 0 && errno != EINTR) return ErrnoError(errno, "poll");
    // One that never stops printing is ready each time.
    if (ready == 0 || Now() >= deadline) {
      return DeadlineExceeded("%s: no end at the deadline; it printed: %s%s", options.argv[0],
                              result.stdout_text.substr(0, kMostShownBytes),
                              result.stderr_text.substr(0, kMostShownBytes));
    }
    if (result.stdout_text.size() + result.stderr_text.size() > kMostOutputBytes) {
      return absl::ResourceExhaustedError(absl::StrFormat("%s: it prints without end: %s", options.argv[0],
                                                          result.stdout_text.substr(0, kMostShownBytes)));
    }
    for (int i = 0; i < 2; ++i) {
      if (ends[i].fd < 0 || ends[i].revents == 0) continue;
      char buffer[65536];
      const ssize_t n = ::read(ends[i].fd, buffer, sizeof buffer);
      if (n > 0) texts[i]->append(buffer, n);
      if (n == 0 || (n < 0 && errno != EINTR)) ends[i].fd = -1;
    }
  }
  MUSTER_ASSIGN_OR_RETURN(result.exit_code, process.Wait(deadline));
  return result;
}

std::vector<pid_t> AllProcesses() {
  std::vector<pid_t> processes;
  for (const std::string& name : ListDirectory("/proc").value_or(std::vector<std::string>())) {
    pid_t pid = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (parsed.ec == std::errc() && parsed.ptr == name.data() + name.size()) processes.push_back(pid);
  }
  return processes;
}

absl::StatusOr<ProcessStat> ReadProcessStat(pid_t pid) {
  const std::string path = absl::StrFormat("/proc/%d/stat", pid);
  MUSTER_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  // The name, in parentheses, may itself hold parentheses and spaces: fields are counted from the last one.
  const size_t name_end = text.rfind(')');
  ProcessStat stat;
  unsigned long long start = 0;
  if (name_end == std::string::npos ||
      std::sscanf(text.c_str() + name_end + 1,
                  " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                  &stat.state, &stat.parent, &start) != 3) {
    return NotFound("%s: cannot be parsed", path);
  }
  stat.start_ticks = start;
  return stat;
}

absl::StatusOr<UniqueFd> OpenPidfd(pid_t pid) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd.valid()) return ErrnoError(errno == ESRCH ? ENOENT : errno, absl::StrFormat("process %d", pid));
  return fd;
}

absl::StatusOr<UniqueFd> OpenPidfdOf(pid_t pid, uint64_t start_ticks) {
  MUSTER_ASSIGN_OR_RETURN(UniqueFd pidfd, OpenPidfd(pid));
  MUSTER_ASSIGN_OR_RETURN(const ProcessStat stat, ReadProcessStat(pid));
  if (stat.start_ticks != start_ticks || stat.state == 'Z') return NotFound("process %d has ended", pid);
  return pidfd;
}

void SignalPidfd(int pidfd, int signal_number, int value) {
  siginfo_t info{};
  info.si_signo = signal_number;
  info.si_code = SI_QUEUE;
  info.si_pid = ::getpid();
  info.si_uid = ::getuid();
  info.si_value.sival_int = value;
  (void)::syscall(SYS_pidfd_send_signal, pidfd, signal_number, &info, 0);
}

}  // namespace muster
