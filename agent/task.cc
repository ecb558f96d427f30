#include "agent/task.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "agent/names.h"
#include "agent/proc_scan.h"
#include "agent/records.h"
#include "agent/shim.h"
#include "agent/task_inputs.h"
#include "agent/task_log.h"
#include "base/boot_id.h"
#include "base/process.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kSweepInterval = milliseconds(20);
constexpr Duration kSweepTimeout = seconds(10);
constexpr Duration kAdoptInterval = milliseconds(20);
constexpr Duration kTimeToStop = milliseconds(500);  // who comes to drive a job may come to end it
constexpr int kMostFailedStarts = 6;                 // kLongestRestartDelay apart: for a disk that is full
constexpr Duration kShimStopSlack = seconds(12);     // more than the shim itself spends on killing

bool IsReadable(int fd) {
  pollfd event{.fd = fd, .events = POLLIN, .revents = 0};
  return fd >= 0 && ::poll(&event, 1, 0) > 0;
}

std::string WithMore(const std::string& reason, const std::string& more) {
  return reason.empty() ? more : reason + "; " + more;
}

// The daemon is a subreaper: what a killed shim leaves becomes its child, also where it has overwritten its
// environment and with it the token. Kills and reaps such children and returns how many still live.
int KillOrphans(const std::set<pid_t>& shims) {
  const absl::StatusOr<std::vector<pid_t>> children = ChildrenOf(::getpid());
  if (!children.ok()) return 1;  // there may be
  int left = 0;
  for (const pid_t child : *children) {
    if (shims.contains(child)) continue;
    ::kill(child, SIGKILL);
    if (::waitpid(child, nullptr, WNOHANG) == 0) ++left;
  }
  return left;
}

}  // namespace

Task::Task(TaskContext& context, std::string job, std::string name)
    : context_(context),
      job_(std::move(job)),
      name_(std::move(name)),
      folder_(context.root / "jobs" / job_ / TaskFolder(name_)) {}

void Task::Enter(Phase phase, TimePoint wake_at) {
  phase_ = phase;
  wake_at_ = wake_at;
  ++context_.changes;
}

absl::Status Task::Resume() {
  is_held_ = true;
  sweep_until_ = Now() + kSweepTimeout;
  return TakeUp();
}

absl::Status Task::TakeUp() {
  absl::Status status = ReadRecord(TaskRecordPath(folder_), "task", record_);
  if (absl::IsNotFound(status) && is_read()) return status;
  if (MayPass(status) && Now() < sweep_until_) {
    reason_ = std::string(status.message());
    phase_ = Phase::kUnread;
    wake_at_ = Now() + kSweepInterval;
    return absl::OkStatus();
  }
  reason_.clear();
  if (status.ok() && (record_.spec().job() != job_ || record_.spec().task() != name_)) {
    status = DataLoss("%s: is another task's record", TaskRecordPath(folder_).string());
  }
  if (!status.ok()) {
    record_.Clear();
    damage_ = std::string(status.message());
    final_state_ = agent::TASK_STATE_LOST;
    reason_ = damage_ + "; stop the task and start it again";
    Enter(Phase::kIdle, TimePoint::max());
    return absl::OkStatus();
  }
  tracker_ = RestartTracker(record_.spec().restart(), record_.spec().max_restarts());
  LoadLastExit();
  std::error_code error;
  agent::ExitRecord exit;
  if (ShimLockHeld()) {
    is_held_ = false;
    Enter(Phase::kStarting, Now());
    Adopt();
    return absl::OkStatus();
  }
  is_held_ = true;
  status = ReadRecord(ExitRecordPath(folder_, record_.incarnation()), "exit", exit);
  if (!record_.given_up().empty()) {
    if (status.ok()) last_exit_ = exit;
    GiveUp();
  } else if (status.ok() && (exit.left_nothing() || !exit.has_left_nothing())) {
    Settle(exit);  // so /proc need not be searched: most tasks of an old root end here
  } else if (record_.stop() || !absl::IsNotFound(status) ||
             std::filesystem::exists(RunRecordPath(folder_, record_.incarnation()), error) || error) {
    OnShimEnded();
  } else {
    Enter(Phase::kUnstarted, Now());
  }
  return absl::OkStatus();
}

void Task::GoOn() {
  const bool was_held = is_held();
  is_held_ = false;
  if (was_held) Enter(phase_, Now() + kTimeToStop);
}

bool Task::ShimLockHeld() const {
  UniqueFd lock(::open(ShimLockPath(folder_).c_str(), O_RDWR | O_CLOEXEC));
  return lock.valid() ? ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 : errno != ENOENT;
}

// A shim lives that this daemon did not start. Its run record may be yet to come.
void Task::Adopt() {
  agent::RunRecord run;
  const absl::Status status = ReadRecord(RunRecordPath(folder_, record_.incarnation()), "run", run);
  if (status.ok() && run.boot_id() == BootId()) {
    absl::StatusOr<UniqueFd> pidfd = OpenPidfdOf(static_cast<pid_t>(run.shim_pid()), run.shim_start_ticks());
    if (pidfd.ok()) {
      run_ = run;
      shim_pid_ = static_cast<pid_t>(run.shim_pid());
      pidfd_ = *std::move(pidfd);
      Enter(Phase::kRunning, TimePoint::max());
      if (record_.stop()) Stop(0);
      return;
    }
  }
  if (!ShimLockHeld()) return OnShimEnded();
  if (!status.ok() && status.code() != absl::StatusCode::kNotFound) reason_ = std::string(status.message());
  wake_at_ = Now() + kAdoptInterval;
}

absl::Status Task::Start(const agent::StartTaskRequest& request, bool* already_running) {
  *already_running = false;
  const agent::StartTaskRequest& known = record_.spec();
  const bool has_spec =
      record_.incarnation() > 0 && damage_.empty() && request.spec_hash() == known.spec_hash();
  const bool is_same = has_spec && request.generation() == known.generation();
  // Of the same task, in a cluster with other addresses.
  const bool is_moved =
      has_spec && request.base_generation() > 0 && known.generation() >= request.base_generation();
  if (active()) {
    if (record_.stop()) return FailedPrecondition("%s is being stopped: wait for the stop to end", name_);
    *already_running = true;
    if (is_same) return absl::OkStatus();
    if (is_moved && request.follows_cluster()) {
      MUSTER_RETURN_IF_ERROR(WriteFiles(folder_, request));
      return Respecify(request);
    }
    return FailedPrecondition(
        "%s runs with another spec or generation (%s of %d, asked for %s of %d): stop it first", name_,
        known.spec_hash(), known.generation(), request.spec_hash(), request.generation());
  }
  if (is_same || (is_moved && final_state_ == agent::TASK_STATE_SUCCEEDED)) {
    *already_running = true;  // it has been started, and has ended
    return is_same ? absl::OkStatus() : Respecify(request);
  }
  if (ShimLockHeld()) return FailedPrecondition("%s: %s; stop it first", name_, damage_);
  MUSTER_RETURN_IF_ERROR(CheckContents(context_.root, request));
  MUSTER_RETURN_IF_ERROR(MakeDirectories(AgentFolder(folder_), 0700));
  MUSTER_ASSIGN_OR_RETURN(const uint32_t next, NextIncarnation());
  const agent::TaskRecord before = record_;
  record_.set_incarnation(std::max(next, request.minimum_incarnation()));
  record_.set_first_incarnation(record_.incarnation() -
                                std::min(request.restarts(), record_.incarnation() - 1));
  record_.set_stop(false);
  record_.clear_given_up();
  *record_.mutable_spec() = request;
  tracker_ = RestartTracker(request.restart(), request.max_restarts());
  failed_starts_ = 0;
  ::unlink(DoneFilePath(folder_).c_str());
  const absl::Status status = StartIncarnation();
  if (!status.ok()) {
    record_ = before;
    // Else a later daemon would start it after all.
    if (before.incarnation() == 0) {
      ::unlink(TaskRecordPath(folder_).c_str());
      ReleaseRecord(TaskRecordPath(folder_));
    }
    if (before.incarnation() != 0) {
      (void)WriteRecord(TaskRecordPath(folder_), "task", before, Room::kReserved);
    }
    return Annotate(status, absl::StrFormat("start %s", name_));
  }
  damage_.clear();
  is_held_ = false;
  return absl::OkStatus();
}

// Its next incarnation, if there is one, is started like this.
absl::Status Task::Respecify(const agent::StartTaskRequest& request) {
  agent::TaskRecord record = record_;
  *record.mutable_spec() = request;
  MUSTER_RETURN_IF_ERROR(WriteTaskRecord(record));
  record_ = std::move(record);
  ++context_.changes;
  return absl::OkStatus();
}

// With room for what is to be remembered later, on a disk that may be full then: that it is to stop, or
// cannot be started.
absl::Status Task::WriteTaskRecord(const agent::TaskRecord& record) const {
  constexpr size_t kRoomBytes = 4096;
  const std::filesystem::path path = TaskRecordPath(folder_);
  MUSTER_RETURN_IF_ERROR(ReserveRecord(path, record.ByteSizeLong() + kRoomBytes));
  return WriteRecord(path, "task", record);
}

// One more than the highest that ever ran; files are looked at because the record may have been damaged.
absl::StatusOr<uint32_t> Task::NextIncarnation() const {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(AgentFolder(folder_)));
  uint32_t last = 0;
  for (const std::string& name : names) {
    if (name.ends_with(".run") || name.ends_with(".exit")) {
      last = std::max<uint32_t>(last, std::strtoul(name.c_str(), nullptr, 10));
    }
  }
  return last + 1;
}

// Starts incarnation record_.incarnation(). The lock is held from before the shim exists: whoever finds it
// free knows that there is none.
absl::Status Task::StartIncarnation() {
  UniqueFd lock(::open(ShimLockPath(folder_).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return ErrnoError(errno, ShimLockPath(folder_).string());
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    return FailedPrecondition("an earlier shim of it still runs");
  MUSTER_RETURN_IF_ERROR(WriteTaskRecord(record_));
  MUSTER_RETURN_IF_ERROR(WriteFiles(folder_, record_.spec()));
  log_begin_ = FindLogExtent(folder_).value_or(LogExtent{}).end;
  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) return ErrnoError(errno, "pipe2");
  UniqueFd started_read(pipe_fds[0]), started_write(pipe_fds[1]);
  // Its own file, even if another version has been put in its place: daemon and shim share the records.
  const SpawnOptions options{
      .argv = {"/proc/self/exe", "shim", "--root", context_.root.string(), "--job", job_, "--task", name_,
               "--incarnation", std::to_string(record_.incarnation())},
      .stdin_fd = lock.get(),
      .stdout_fd = started_write.get(),
      .new_session = true};
  MUSTER_ASSIGN_OR_RETURN(Process shim, Process::Spawn(options));
  MUSTER_ASSIGN_OR_RETURN(pidfd_, OpenPidfd(shim.pid()));
  shim_pid_ = shim.Release();
  context_.shims.insert(shim_pid_);
  started_ = std::move(started_read);
  run_.Clear();
  // What the incarnation before the last left is of no use to anybody.
  if (record_.incarnation() > 2) {
    ::unlink(RunRecordPath(folder_, record_.incarnation() - 2).c_str());
    ::unlink(ExitRecordPath(folder_, record_.incarnation() - 2).c_str());
    ReleaseRecord(ExitRecordPath(folder_, record_.incarnation() - 2));
  }
  Enter(Phase::kStarting, TimePoint::max());
  return absl::OkStatus();
}

// `failed`: it has run under the number that the record has.
absl::Status Task::StartNext(bool failed) {
  const uint32_t before = record_.incarnation();
  MUSTER_ASSIGN_OR_RETURN(const uint32_t next, NextIncarnation());
  // Of those that it had elsewhere there are no files.
  record_.set_incarnation(std::max(next, failed ? before + 1 : before));
  const absl::Status status = StartIncarnation();
  if (!status.ok()) record_.set_incarnation(before);
  return status;
}

// The end of a back-off.
void Task::StartAgain() {
  const Phase phase = phase_;
  // Where it could not be written down that it is stopped.
  if (generation() < context_.FenceOf(job_)) return Stop(0);
  const absl::Status status = StartNext(/*failed=*/phase == Phase::kBackoff);
  if (status.ok()) {
    failed_starts_ = 0;
    return;
  }
  if (++failed_starts_ < kMostFailedStarts) return Enter(phase, Now() + kLongestRestartDelay);
  const std::string why = WithMore(reason_, "could not be started again: " + std::string(status.message()));
  record_.set_given_up(why.substr(0, kMostReasonBytes));
  // What is over is over for the next daemon, too.
  if (const absl::Status written = WriteRecord(TaskRecordPath(folder_), "task", record_, Room::kReserved);
      !written.ok()) {
    record_.set_given_up(record_.given_up() + "; " + std::string(written.message()));
  }
  GiveUp();
}

void Task::GiveUp() {
  final_state_ = agent::TASK_STATE_FAILED;
  reason_ = record_.given_up();
  Enter(Phase::kIdle, TimePoint::max());
}

uint32_t Task::StopGraceMs(uint32_t requested_ms) const {
  if (requested_ms != 0) return requested_ms;
  return record_.spec().stop_grace_ms() != 0 ? record_.spec().stop_grace_ms() : kDefaultStopGraceMs;
}

void Task::Stop(uint32_t requested_grace_ms) {
  const uint32_t grace_ms = StopGraceMs(requested_grace_ms);
  if (!damage_.empty() || (!active() && record_.incarnation() == 0)) return;
  if (active() && !record_.stop()) {
    record_.set_stop(true);
    // Not written on a full disk, but no reason to let it run on.
    if (const absl::Status status = WriteRecord(TaskRecordPath(folder_), "task", record_, Room::kReserved);
        !status.ok()) {
      reason_ = std::string(status.message());
    }
  }
  if (phase_ == Phase::kBackoff || phase_ == Phase::kUnstarted) {
    final_state_ = last_exit_ && last_exit_->lost() ? agent::TASK_STATE_LOST : agent::TASK_STATE_FAILED;
    reason_ = WithMore(reason_, "stopped before its next start");
    Enter(Phase::kIdle, TimePoint::max());
  } else if (pidfd_.valid()) {
    SignalPidfd(pidfd_.get(), SIGTERM, static_cast<int>(std::min<uint32_t>(grace_ms, 1u << 30)));
    kill_shim_at_ = std::min(kill_shim_at_, Now() + milliseconds(grace_ms) + kShimStopSlack);
    wake_at_ = std::min(wake_at_, kill_shim_at_);
    ++context_.changes;
  }
}

void Task::AppendPollFds(std::vector<pollfd>& fds) const {
  if (pidfd_.valid()) fds.push_back({.fd = pidfd_.get(), .events = POLLIN, .revents = 0});
  if (started_.valid()) fds.push_back({.fd = started_.get(), .events = POLLIN, .revents = 0});
}

void Task::OnEvent() {
  if (IsReadable(started_.get())) {
    char byte = 0;
    const bool started = ::read(started_.get(), &byte, 1) == 1 && byte == kShimStarted;
    started_.reset();
    if (started && phase_ == Phase::kStarting) TakeRunRecord();
  }
  if (IsReadable(pidfd_.get())) OnShimEnded();
}

// Its program runs.
void Task::TakeRunRecord() {
  const absl::Status read = ReadRecord(RunRecordPath(folder_, record_.incarnation()), "run", run_);
  if (!read.ok()) {
    reason_ = std::string(read.message());
    wake_at_ = std::min(kill_shim_at_, Now() + kAdoptInterval);
    return;
  }
  reason_.clear();
  Enter(Phase::kRunning, kill_shim_at_);
}

void Task::OnTime(TimePoint now) {
  if (now < wake_at_) return;
  wake_at_ = TimePoint::max();
  if (phase_ == Phase::kUnread) {
    const bool is_driven = !is_held_;  // by who came meanwhile
    (void)TakeUp();
    if (is_driven && is_read()) GoOn();
    return;
  }
  if (phase_ == Phase::kSweeping) return Sweep(now);
  if (is_held()) return;
  if (phase_ == Phase::kBackoff || phase_ == Phase::kUnstarted) return StartAgain();
  if (now >= kill_shim_at_ && pidfd_.valid()) {
    SignalPidfd(pidfd_.get(),
                SIGKILL);  // it did not do its work within its deadline; its task is swept up by token
    kill_shim_at_ = TimePoint::max();
  }
  if (phase_ != Phase::kStarting) return;
  if (!pidfd_.valid()) return Adopt();
  if (!started_.valid()) TakeRunRecord();
}

void Task::ForgetShim() {
  if (shim_pid_ > 0 && context_.shims.erase(shim_pid_) > 0) {
    while (::waitpid(shim_pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  shim_pid_ = -1;
  pidfd_.reset();
  started_.reset();
  kill_shim_at_ = TimePoint::max();
}

void Task::OnShimEnded() {
  ForgetShim();
  sweep_until_ = Now() + kSweepTimeout;
  Enter(Phase::kSweeping, Now());
  Sweep(Now());
}

// A shim that ended in order knows that it leaves nothing; a killed one may leave anything, for which all
// processes of the host have to be looked at.
void Task::Sweep(TimePoint now) {
  agent::ExitRecord exit;
  const std::filesystem::path path = ExitRecordPath(folder_, record_.incarnation());
  absl::Status read = ReadRecord(path, "exit", exit);
  if (read.ok() && exit.left_nothing()) return Settle(exit);
  const std::string token = TaskToken(job_, context_.root_id, name_);
  const int left = KillByToken([&](std::string_view other) { return other == token; }).value_or(1) +
                   KillOrphans(context_.shims);
  if ((left > 0 || MayPass(read)) && now < sweep_until_) {
    wake_at_ = now + kSweepInterval;
    return;
  }
  if (!read.ok() && !absl::IsNotFound(read) && !absl::IsDataLoss(read)) {
    // What it says, a later daemon may be able to read. It may have succeeded, so nothing is run again.
    last_exit_.reset();
    final_state_ = agent::TASK_STATE_LOST;
    reason_ = "how it ended is not known: " + std::string(read.message());
    return Enter(Phase::kIdle, TimePoint::max());
  }
  if (!read.ok()) {
    exit = ExitWithoutShim(left);
    if (!absl::IsNotFound(read)) exit.set_reason("how it ended is not known: " + std::string(read.message()));
    if (const absl::Status status = WriteRecord(path, "exit", exit, Room::kReserved); !status.ok()) {
      exit.set_reason(exit.reason() + "; " + std::string(status.message()));
    } else {
      ReleaseRecord(path);
    }
  }
  Settle(exit);
}

agent::ExitRecord Task::ExitWithoutShim(int processes_left) const {
  agent::RunRecord run;
  const bool ran = ReadRecord(RunRecordPath(folder_, record_.incarnation()), "run", run).ok();
  agent::ExitRecord exit;
  exit.set_started_micros(run.started_micros());
  exit.set_ended_micros(WallTimeMicros());
  exit.set_stopped(record_.stop());
  if (!ran && record_.stop()) {
    exit.set_exit_code(128 + SIGTERM);
    exit.set_signal(SIGTERM);
    exit.set_reason("stopped before its program was started");
    return exit;
  }
  exit.set_exit_code(128 + SIGKILL);
  exit.set_signal(SIGKILL);
  exit.set_lost(true);
  exit.set_reason(
      processes_left == 0
          ? "its shim was killed, or the host went down; what was left of the task has been killed"
          : absl::StrFormat("its shim was killed, and %d processes it left cannot be", processes_left));
  return exit;
}

void Task::Settle(const agent::ExitRecord& exit) {
  last_exit_ = exit;
  reason_ = exit.reason();
  const TaskEnd end{.exit_code = exit.exit_code(),
                    .lost = exit.lost(),
                    .ran_for = exit.started_micros() > 0
                                   ? std::chrono::microseconds(exit.ended_micros() - exit.started_micros())
                                   : Duration(0)};
  const bool stopped = exit.stopped() || record_.stop();
  const uint32_t restarts = record_.incarnation() - record_.first_incarnation();
  const RestartDecision decision =
      stopped ? RestartTracker().OnEnd(end, restarts) : tracker_.OnEnd(end, restarts);
  if (decision.restart) return Enter(Phase::kBackoff, Now() + decision.delay);
  if (decision.used_up)
    reason_ += absl::StrFormat("; its %d restarts are used up", record_.spec().max_restarts());
  final_state_ = decision.state;
  Enter(Phase::kIdle, TimePoint::max());
}

// While incarnation n runs, how n - 1 ended is what there is to tell.
void Task::LoadLastExit() {
  agent::ExitRecord exit;
  if (record_.incarnation() > record_.first_incarnation() &&
      ReadRecord(ExitRecordPath(folder_, record_.incarnation() - 1), "exit", exit).ok()) {
    last_exit_ = exit;
  }
}

std::set<std::string> Task::Contents() const { return ContentsOf(record_.spec()); }

agent::TaskStatus Task::Status() const {
  agent::TaskStatus status;
  status.set_job(job_);
  status.set_task(name_);
  status.set_generation(record_.spec().generation());
  status.set_spec_hash(record_.spec().spec_hash());
  status.set_incarnation(record_.incarnation());
  status.set_restarts(record_.incarnation() - record_.first_incarnation());
  switch (phase_) {
    case Phase::kIdle:
      status.set_state(final_state_);
      break;
    case Phase::kUnread:
    case Phase::kUnstarted:
    case Phase::kStarting:
      status.set_state(agent::TASK_STATE_PENDING);
      break;
    case Phase::kRunning:
    case Phase::kSweeping:
      status.set_state(agent::TASK_STATE_RUNNING);
      break;
    case Phase::kBackoff:
      status.set_state(agent::TASK_STATE_RESTARTING);
      break;
  }
  if (phase_ == Phase::kRunning) status.set_pid(run_.pid());
  status.set_exit_code(last_exit_ ? last_exit_->exit_code() : -1);
  if (last_exit_) {
    status.set_signal(last_exit_->signal());
  }
  // Those of this incarnation, which may be still to start.
  if (last_exit_ && phase_ != Phase::kUnstarted && phase_ != Phase::kStarting) {
    status.set_started_micros(last_exit_->started_micros());
    status.set_ended_micros(last_exit_->ended_micros());
  }
  if (phase_ == Phase::kRunning) {
    status.set_started_micros(run_.started_micros());
    status.set_ended_micros(0);
  }
  status.set_stopped(!active() && (record_.stop() || (last_exit_ && last_exit_->stopped())));
  status.set_reason(is_held() ? WithMore(reason_, "it waits for whoever drives the job") : reason_);
  const absl::StatusOr<LogExtent> log = FindLogExtent(folder_);
  status.set_log_bytes(log.ok() ? log->end : 0);
  return status;
}

}  // namespace muster
