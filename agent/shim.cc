#include "agent/shim.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "agent/evidence.h"
#include "agent/names.h"
#include "agent/proc_scan.h"
#include "agent/records.h"
#include "agent/task_log.h"
#include "agent/task_program.h"
#include "base/boot_id.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/process.h"
#include "proto/agent.pb.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kKillTimeout = seconds(10);  // a process in an uninterruptible wait outlives SIGKILL
constexpr milliseconds kKillInterval{20};
constexpr milliseconds kProgressInterval{250};
constexpr seconds kLateLook{1};
constexpr seconds kTimeForStrangers{2};  // a descriptor passed to one could write for ever
constexpr size_t kLogPieceBytes = 65536;
constexpr int kPipeBytes = 1 << 20;

struct Pipe {
  UniqueFd read, write;
};

absl::StatusOr<Pipe> MakePipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoError(errno, "pipe2");
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& s : strings) pointers.push_back(const_cast<char*>(s.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

int ExitCodeForExecError(int error) { return error == ENOENT || error == ENOTDIR ? 127 : 126; }

// A reason goes into a protobuf string, which has to be UTF-8; file names and arguments need not be.
std::string Printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  }
  return text;
}

class Shim {
 public:
  explicit Shim(const ShimOptions& options)
      : options_(options), folder_(options.root / "jobs" / options.job / TaskFolder(options.task)) {}

  absl::Status Run();

 private:
  absl::Status Prepare();
  absl::Status Launch();
  [[noreturn]] void RunChild(const TaskProgram& program, const char* const* argv,
                             const char* const* environment, int go, int error, pid_t shim);
  void ReportStart();
  void Supervise();
  void HandleSignals();
  void Reap();
  void BeginStop(milliseconds grace, bool is_asked);
  void BeginKill();
  void WatchProgress();
  Duration NextWait() const;
  bool DrainLog();
  absl::Status WriteExit();
  bool IsDone() const;
  std::string Reason() const;

  const ShimOptions options_;
  const std::filesystem::path folder_;
  agent::TaskRecord record_;
  agent::ExitRecord exit_;
  std::string start_error_;
  UniqueFd signals_, output_, exec_error_;
  std::optional<TaskLogWriter> log_;
  uint64_t bytes_after_end_ = 0;  // of the output, and not in the log
  pid_t main_pid_ = -1;
  bool main_ended_ = false;
  bool all_ended_ = false;
  std::optional<TimePoint> look_at_;     // for progress
  TimePoint progress_at_;                // the last there was
  timespec progress_seen_{};             // of the progress file
  std::string hung_;                     // why it was killed
  bool interrupted_ = false;             // by a TERM that the daemon has not sent
  std::optional<TimePoint> kill_at_;     // a stop was asked for
  std::optional<TimePoint> give_up_at_;  // being killed
};

absl::Status Shim::Run() {
  absl::Status status = Prepare();
  if (status.ok()) status = Launch();
  if (!status.ok()) {
    // The lock, the record and the log are the agent's own: this is the host's trouble (a full disk, no more
    // processes).
    start_error_ = std::string(status.message());
    exit_.set_exit_code(126);
    exit_.set_ended_micros(WallTimeMicros());
    return WriteExit();
  }
  Supervise();
  return WriteExit();
}

absl::Status Shim::Prepare() {
  // Blocked first of all: from here on a TERM waits in the signalfd.
  sigset_t handled;
  sigemptyset(&handled);
  sigaddset(&handled, SIGTERM);
  sigaddset(&handled, SIGCHLD);
  if (::sigprocmask(SIG_SETMASK, &handled, nullptr) != 0) return ErrnoError(errno, "sigprocmask");
  signals_ = UniqueFd(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) return ErrnoError(errno, "signalfd");
  ::signal(SIGPIPE, SIG_IGN);
  ::prctl(PR_SET_NAME, "muster-shim");
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return ErrnoError(errno, "become subreaper");
  exit_.set_exit_code(-1);
  exit_.set_started_micros(WallTimeMicros());
  return ReadRecord(TaskRecordPath(folder_), "task", record_);
}

absl::Status Shim::Launch() {
  const uint64_t max_log_bytes = record_.spec().max_log_bytes();
  MUSTER_ASSIGN_OR_RETURN(
      log_, TaskLogWriter::Open(folder_, max_log_bytes != 0 ? max_log_bytes : kDefaultMaxLogBytes));
  const TaskProgram program = MakeTaskProgram(options_, record_.spec(), folder_);
  if (program.file.empty()) {
    start_error_ = Printable(program.argv[0]) + ": not found in PATH";
    exit_.set_exit_code(127);
    exit_.set_ended_micros(WallTimeMicros());
    main_ended_ = true;
    return absl::OkStatus();
  }
  MUSTER_ASSIGN_OR_RETURN(Pipe output, MakePipe());
  MUSTER_ASSIGN_OR_RETURN(Pipe go, MakePipe());
  MUSTER_ASSIGN_OR_RETURN(Pipe error, MakePipe());
  (void)::fcntl(output.write.get(), F_SETPIPE_SZ, kPipeBytes);  // fewer wake-ups; the default works too
  const std::vector<char*> argv = Pointers(program.argv), environment = Pointers(program.environment);
  const pid_t shim = ::getpid();
  main_pid_ = ::fork();
  if (main_pid_ < 0) return ErrnoError(errno, "fork");
  if (main_pid_ == 0) {
    ::dup2(output.write.get(), 1);
    ::dup2(output.write.get(), 2);
    go.write.reset();
    RunChild(program, argv.data(), environment.data(), go.read.get(), error.write.get(), shim);
  }
  output_ = std::move(output.read);
  ::fcntl(output_.get(), F_SETFL, O_NONBLOCK);
  exec_error_ = std::move(error.read);
  ::fcntl(exec_error_.get(), F_SETFL, O_NONBLOCK);

  // How it ends is known also when it has filled the disk.
  MUSTER_RETURN_IF_ERROR(ReserveRecord(ExitRecordPath(folder_, options_.incarnation), 2 * kMostReasonBytes));
  agent::RunRecord run;
  run.set_boot_id(BootId());
  run.set_shim_pid(shim);
  MUSTER_ASSIGN_OR_RETURN(const ProcessStat self, ReadProcessStat(shim));
  run.set_shim_start_ticks(self.start_ticks);
  run.set_pid(main_pid_);
  run.set_started_micros(exit_.started_micros());
  // Until it is on disk that this incarnation runs, its program does not: nothing ever runs uncounted.
  // Without the record the pipe closes with nothing in it, and the child ends.
  MUSTER_RETURN_IF_ERROR(WriteRecord(RunRecordPath(folder_, options_.incarnation), "run", run));
  if (record_.spec().hung_after_ms() > 0) look_at_ = progress_at_ = Now();
  return WriteAll(go.write.get(), "g");
}

void Shim::RunChild(const TaskProgram& program, const char* const* argv, const char* const* environment,
                    int go, int error, pid_t shim) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != shim) ::_exit(126);  // it died before the line above
  ::setsid();
  const int null = ::open("/dev/null", O_RDONLY);
  char byte;
  bool ok = null >= 0 && ::dup2(null, 0) >= 0 && ::chdir(folder_.c_str()) == 0;
  if (null > 2) ::close(null);
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  ::signal(SIGHUP, SIG_IGN);  // as under nohup: it has no terminal
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (ok && ::read(go, &byte, 1) != 1) ::_exit(126);
  if (ok) ::execve(program.file.c_str(), const_cast<char**>(argv), const_cast<char**>(environment));
  const int failure = errno;
  (void)!::write(error, &failure, sizeof failure);
  ::_exit(ExitCodeForExecError(failure));
}

// The pipe closes without a word when exec succeeds.
void Shim::ReportStart() {
  int failure = 0;
  if (::read(exec_error_.get(), &failure, sizeof failure) == sizeof failure) {
    const std::string hint = failure == ENOENT    ? " (it, or the interpreter or loader it names)"
                             : failure == ENOEXEC ? " (built for another machine?)"
                                                  : "";
    start_error_ = Printable(MakeTaskProgram(options_, record_.spec(), folder_).file) + ": " +
                   std::strerror(failure) + hint;
  } else {
    (void)!::write(1, &kShimStarted, 1);
  }
  exec_error_.reset();
}

void Shim::Supervise() {
  if (main_pid_ < 0) return;
  while (!all_ended_) {
    pollfd events[3] = {{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                        {.fd = output_.get(), .events = POLLIN, .revents = 0},
                        {.fd = exec_error_.get(), .events = POLLIN, .revents = 0}};
    const int timeout = NextWait() == Duration::max() ? -1 : MillisecondsUntil(Now() + NextWait());
    (void)::poll(events, 3, timeout);
    if (events[2].revents != 0) ReportStart();
    if (events[1].revents != 0 && !DrainLog()) output_.reset();
    if (events[0].revents != 0) HandleSignals();
    if (look_at_ && Now() >= *look_at_) WatchProgress();
    if (kill_at_ && Now() >= *kill_at_) BeginKill();
    if (give_up_at_ && !all_ended_) {
      // Direct children cannot be reused pids, because only this process reaps them. What they leave becomes
      // a direct child.
      // Without a look at them now, the next one is soon.
      const absl::StatusOr<std::vector<pid_t>> children = ChildrenOf(::getpid());
      for (const pid_t child : children.value_or(std::vector<pid_t>{})) ::kill(child, SIGKILL);
      Reap();
      if (Now() >= *give_up_at_) break;
    }
  }
  if (exec_error_.valid()) ReportStart();
  if (output_.valid()) bytes_after_end_ = WriteRest(output_.get(), *log_, kTimeForStrangers);
}

Duration Shim::NextWait() const {
  if (give_up_at_) return kKillInterval;
  const TimePoint next = std::min(kill_at_.value_or(TimePoint::max()), look_at_.value_or(TimePoint::max()));
  return next == TimePoint::max() ? Duration::max() : std::max(next - Now(), Duration(0));
}

// By a clock of its own: what the file's time is compared with is only what it was before.
void Shim::WatchProgress() {
  const milliseconds limit(record_.spec().hung_after_ms());
  if (main_ended_ || kill_at_ || give_up_at_) {
    look_at_.reset();
    return;
  }
  struct stat file {};
  if (::stat(ProgressPath(folder_).c_str(), &file) == 0 &&
      (file.st_mtim.tv_sec != progress_seen_.tv_sec || file.st_mtim.tv_nsec != progress_seen_.tv_nsec)) {
    progress_seen_ = file.st_mtim;
    progress_at_ = Now();
  }
  // Who was held up, like the task, with the whole host, has not seen it do nothing.
  if (const Duration late = Now() - *look_at_; late > kLateLook) progress_at_ += late;
  look_at_ = std::min(progress_at_ + limit, Now() + std::min(kProgressInterval, limit));
  if (Now() - progress_at_ < limit) return;
  look_at_.reset();
  hung_ = absl::StrFormat("no progress for %s: it was killed, and its log says what it was doing",
                          FormatAge(Now() - progress_at_));
  // The evidence first.
  log_->Write(
      absl::StrFormat("muster: %s has made no progress for %s. It was doing this:\n%smuster: killed\n",
                      options_.task, FormatAge(Now() - progress_at_), DescribeDescendants(::getpid())));
  BeginKill();
}

void Shim::HandleSignals() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo != SIGTERM) continue;
    const uint32_t configured = record_.spec().stop_grace_ms();
    const bool is_asked = info.ssi_code == SI_QUEUE;
    milliseconds grace(configured != 0 ? configured : kDefaultStopGraceMs);
    if (is_asked && info.ssi_int > 0) grace = milliseconds(info.ssi_int);
    BeginStop(grace, is_asked);
  }
  Reap();
}

void Shim::Reap() {
  while (true) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid < 0 && errno == EINTR) continue;
    if (pid < 0) all_ended_ = true;
    if (pid <= 0) break;
    if (pid != main_pid_) continue;
    main_ended_ = true;
    exit_.set_ended_micros(WallTimeMicros());
    exit_.set_signal(WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    exit_.set_exit_code(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
  }
  // While it is being stopped, the grace is for the whole process group, not only for the first process.
  if (main_ended_ && !all_ended_ && !kill_at_) BeginKill();
}

void Shim::BeginStop(milliseconds grace, bool is_asked) {
  Reap();  // what has ended before is not stopped
  const TimePoint at = Now() + grace;
  kill_at_ = kill_at_ ? std::min(*kill_at_, at) : at;
  if (main_ended_) return;
  if (is_asked) {
    exit_.set_stopped(true);
  } else {
    interrupted_ = true;
  }
  // Not yet reaped, so neither the pid nor the group can belong to anybody else. Before its setsid it has no
  // group of its own.
  if (::kill(-main_pid_, SIGTERM) != 0) ::kill(main_pid_, SIGTERM);
}

void Shim::BeginKill() {
  if (!give_up_at_) give_up_at_ = Now() + kKillTimeout;
}

// One read, so that a task which writes without pause cannot keep signals waiting. False at the end of the
// pipe.
bool Shim::DrainLog() {
  char piece[kLogPieceBytes];
  const ssize_t n = ::read(output_.get(), piece, sizeof piece);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  progress_at_ = Now();
  log_->Write(std::string_view(piece, n));
  return true;
}

// Whatever it was told meanwhile: what has done its work says so (MUSTER_DONE_FILE).
bool Shim::IsDone() const {
  std::error_code error;
  return exit_.exit_code() == 0 && std::filesystem::exists(DoneFilePath(folder_), error);
}

std::string Shim::Reason() const {
  std::string reason;
  if (!start_error_.empty()) {
    reason = "could not start: " + start_error_;
  } else if (!main_ended_) {
    reason = "does not end, even though it was killed";
  } else if (!hung_.empty()) {
    reason = hung_;
  } else if (exit_.signal() != 0) {
    reason = absl::StrFormat("killed by signal %d (%s)", exit_.signal(), ::strsignal(exit_.signal()));
  } else {
    reason = absl::StrFormat("exited with code %d", exit_.exit_code());
  }
  if (exit_.stopped()) reason += " when it was stopped";
  if (interrupted_ && !exit_.stopped() && start_error_.empty() && !IsDone())
    reason += " after a SIGTERM that muster has not sent (does the host shut down?)";
  if (log_ && log_->bytes_lost() > 0) {
    reason += absl::StrFormat("; %d bytes of its log were lost: %s", log_->bytes_lost(),
                              std::strerror(log_->error()));
  }
  if (bytes_after_end_ > 0) {
    reason += absl::StrFormat("; %d bytes that others wrote to its output after its end are not in its log",
                              bytes_after_end_);
  }
  return reason;
}

absl::Status Shim::WriteExit() {
  if (!main_ended_ && start_error_.empty()) {
    exit_.set_exit_code(128 + SIGKILL);
    exit_.set_signal(SIGKILL);
    exit_.set_ended_micros(WallTimeMicros());
  }
  exit_.set_reason(Reason().substr(0, kMostReasonBytes));
  exit_.set_left_nothing(all_ended_ || main_pid_ < 0);
  // It has stopped before its work was done, as it was told, and calls that a success.
  if ((interrupted_ || exit_.stopped()) && exit_.exit_code() == 0 && !IsDone()) {
    exit_.set_exit_code(128 + SIGTERM);
    exit_.set_signal(SIGTERM);
  }
  const std::filesystem::path path = ExitRecordPath(folder_, options_.incarnation);
  MUSTER_RETURN_IF_ERROR(WriteRecord(path, "exit", exit_, Room::kReserved));
  ReleaseRecord(path);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunShim(const ShimOptions& options) {
  // The lock is stdin, which the task must not inherit: it is held as long as this descriptor is open.
  const UniqueFd lock(::fcntl(0, F_DUPFD_CLOEXEC, 3));
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (!lock.valid() || null < 0 || ::dup2(null, 0) < 0) return ErrnoError(errno, "take over the shim's lock");
  ::close(null);
  return Shim(options).Run();
}

}  // namespace muster
