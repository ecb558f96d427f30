#include "agent/daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <optional>

#include "agent/connection.h"
#include "agent/facts.h"
#include "agent/file_part.h"
#include "agent/names.h"
#include "agent/records.h"
#include "agent/supervisor.h"
#include "agent/task_log.h"
#include "base/clock.h"
#include "base/descriptor_limit.h"
#include "base/file.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kLinger = seconds(1);
constexpr Duration kAcceptInterval = milliseconds(100);
constexpr Duration kFollowInterval = milliseconds(50);
constexpr Duration kSweepInterval = milliseconds(20);
constexpr Duration kStartTimeout = seconds(30);
constexpr size_t kFileChunkBytes = size_t{256} << 10;
constexpr size_t kMaxConnections = 256;
constexpr size_t kMaxPendingPerConnection = 256;
constexpr size_t kMaxListedFiles = 10'000;

// Where the answer goes. The connection may be gone by then.
struct Caller {
  uint64_t connection = 0;
  uint64_t id = 0;
};

struct PendingStart {
  Caller caller;
  std::string job, task;
  bool already_running = false;
  TimePoint deadline;
};

struct PendingStop {
  Caller caller;
  agent::StopTasksRequest request;
  TimePoint deadline;
  std::optional<TimePoint> next_sweep;  // once its tasks have ended
};

struct FileStream {
  Caller caller;
  agent::ReadFileRequest request;
  std::filesystem::path path;
  uint64_t offset = 0;
  std::optional<TaskLogReader> log;  // set: that is what is read
  TimePoint wake_at;
};

struct WatchStream {
  Caller caller;
  std::string job;
  uint64_t seen_changes = 0;
  std::optional<std::string> sent;  // the last list without log_bytes
};

class Daemon {
 public:
  Daemon(const UniqueFd& lock, UniqueFd listener, Supervisor& supervisor)
      : lock_(lock),
        lock_path_(supervisor.root() / kDaemonLock),
        listener_(std::move(listener)),
        supervisor_(supervisor) {}

  void Serve();
  /// Whether the folder is the one that it began in. Where it is not, another daemon may serve it.
  bool HasItsFolder() const;

 private:
  void Poll();
  TimePoint WakeAt() const;
  void Accept();
  void ServeConnections();
  void Handle(const Caller& caller, const agent::Envelope& envelope);
  void Answer(const Caller& caller, const absl::StatusOr<agent::Response>& response);
  absl::StatusOr<agent::Response> Immediate(const agent::Request& request);
  void HandleStart(const Caller& caller, const agent::StartTaskRequest& request);
  void HandleStop(const Caller& caller, const agent::StopTasksRequest& request);
  absl::StatusOr<const Task*> FindTask(const std::string& job, const std::string& task) const;
  absl::StatusOr<agent::ListFilesResponse> ListFiles(const agent::ListFilesRequest& request) const;
  void HandleReadFile(const Caller& caller, const agent::ReadFileRequest& request);
  bool Step(PendingStart& start, TimePoint now);
  bool Step(PendingStop& stop, TimePoint now);
  bool Step(FileStream& stream, TimePoint now);
  bool Step(WatchStream& watch, TimePoint now);
  template <typename Operation>
  void StepAll(std::list<Operation>& operations, TimePoint now);
  size_t PendingOf(uint64_t connection) const;
  Connection* Find(const Caller& caller);
  bool Idle() const { return connections_.empty() && stops_.empty() && !supervisor_.AnyActive(); }

  const UniqueFd& lock_;
  const std::filesystem::path lock_path_;  // of a folder that was moved, not where it is now
  UniqueFd listener_;
  std::optional<TimePoint> accept_at_;  // set: not before, for there were no descriptors left
  Supervisor& supervisor_;
  bool drained_ = false;  // a connection was congested and no longer is
  uint64_t next_connection_ = 1;
  std::map<uint64_t, Connection> connections_;
  std::list<PendingStart> starts_;
  std::list<PendingStop> stops_;
  std::list<FileStream> files_;
  std::list<WatchStream> watches_;
};

// Each Step returns whether the operation is finished.
template <typename Operation>
void Daemon::StepAll(std::list<Operation>& operations, TimePoint now) {
  operations.remove_if([&](Operation& operation) { return Step(operation, now); });
}

void Daemon::Serve() {
  TimePoint idle_since = Now();
  while (true) {
    Poll();
    if (!HasItsFolder()) return;
    const TimePoint now = Now();
    Accept();
    ServeConnections();
    supervisor_.Step(now);
    StepAll(starts_, now);
    StepAll(stops_, now);
    StepAll(files_, now);
    StepAll(watches_, now);
    drained_ = false;
    for (auto& [id, connection] : connections_) {
      const bool was_congested = connection.congested();
      connection.Flush();
      if (was_congested && !connection.congested()) drained_ = true;
    }
    std::erase_if(connections_, [](const auto& entry) { return entry.second.finished(); });
    if (!Idle()) idle_since = now;
    if (now - idle_since >= kLinger) return;
  }
}

bool Daemon::HasItsFolder() const {
  struct stat mine {
  }, there{};
  if (::stat(lock_path_.c_str(), &there) != 0) return errno != ENOENT && errno != ESTALE;
  return ::fstat(lock_.get(), &mine) != 0 || (mine.st_dev == there.st_dev && mine.st_ino == there.st_ino);
}

void Daemon::Poll() {
  std::vector<pollfd> fds;
  if (connections_.size() < kMaxConnections && !accept_at_)
    fds.push_back({.fd = listener_.get(), .events = POLLIN, .revents = 0});
  for (const auto& [id, connection] : connections_) {
    const int events = (connection.wants_input() ? POLLIN : 0) | (connection.wants_output() ? POLLOUT : 0);
    fds.push_back({.fd = connection.fd(), .events = static_cast<short>(events), .revents = 0});
  }
  supervisor_.AppendPollFds(fds);
  // Requests already received, streams and watches may have waited for the drain, and no descriptor will tell
  // of them.
  if (drained_) {
    (void)::poll(fds.data(), fds.size(), 0);
    return;
  }
  const TimePoint wake_at = Idle() ? std::min(WakeAt(), Now() + kLinger) : WakeAt();
  (void)::poll(fds.data(), fds.size(), wake_at == TimePoint::max() ? -1 : MillisecondsUntil(wake_at));
}

TimePoint Daemon::WakeAt() const {
  TimePoint earliest = std::min(supervisor_.wake_at(), accept_at_.value_or(TimePoint::max()));
  for (const PendingStart& start : starts_) earliest = std::min(earliest, start.deadline);
  for (const PendingStop& stop : stops_)
    earliest = std::min({earliest, stop.deadline, stop.next_sweep.value_or(stop.deadline)});
  for (const FileStream& stream : files_) earliest = std::min(earliest, stream.wake_at);
  return earliest;
}

void Daemon::Accept() {
  if (accept_at_ && Now() < *accept_at_) return;
  accept_at_.reset();
  while (connections_.size() < kMaxConnections) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      // Whoever waits stays, and poll would say so for ever.
      const bool has_room = errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
      if (!has_room) accept_at_ = Now() + kAcceptInterval;
      return;
    }
    ucred peer{};
    socklen_t size = sizeof peer;
    // The folder's mode keeps others out already, where the file system honours it.
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != ::geteuid())
      continue;
    connections_.emplace(next_connection_++, Connection(std::move(socket)));
  }
}

void Daemon::ServeConnections() {
  for (auto& [connection_id, connection] : connections_) {
    if (connection.wants_input()) connection.Read();
    while (const std::optional<agent::Envelope> envelope = connection.Next()) {
      Handle({.connection = connection_id, .id = envelope->id()}, *envelope);
    }
  }
}

Connection* Daemon::Find(const Caller& caller) {
  const auto found = connections_.find(caller.connection);
  return found == connections_.end() ? nullptr : &found->second;
}

size_t Daemon::PendingOf(uint64_t connection) const {
  const auto of_it = [&](const auto& operation) { return operation.caller.connection == connection; };
  return std::count_if(starts_.begin(), starts_.end(), of_it) +
         std::count_if(stops_.begin(), stops_.end(), of_it) +
         std::count_if(files_.begin(), files_.end(), of_it) +
         std::count_if(watches_.begin(), watches_.end(), of_it);
}

void Daemon::Answer(const Caller& caller, const absl::StatusOr<agent::Response>& response) {
  Connection* connection = Find(caller);
  if (connection == nullptr) return;
  if (!response.ok()) return connection->SendError(caller.id, response.status());
  connection->Send(caller.id, *response);
}

void Daemon::Handle(const Caller& caller, const agent::Envelope& envelope) {
  if (PendingOf(caller.connection) >= kMaxPendingPerConnection) {
    return Answer(caller, absl::ResourceExhaustedError(absl::StrFormat(
                              "%d requests of this connection are under way", kMaxPendingPerConnection)));
  }
  const agent::Request& request = envelope.request();
  switch (request.kind_case()) {
    case agent::Request::kStartTask:
      return HandleStart(caller, request.start_task());
    case agent::Request::kStopTasks:
      return HandleStop(caller, request.stop_tasks());
    case agent::Request::kReadFile:
      return HandleReadFile(caller, request.read_file());
    case agent::Request::kWatch:
      watches_.push_back({.caller = caller, .job = request.watch().job()});
      return supervisor_.GoOn(request.watch().job());
    default:
      return Answer(caller, Immediate(request));
  }
}

absl::StatusOr<agent::Response> Daemon::Immediate(const agent::Request& request) {
  agent::Response response;
  response.set_last(true);
  switch (request.kind_case()) {
    case agent::Request::kFacts:
      *response.mutable_facts() = CollectFacts(supervisor_.root());
      return response;
    case agent::Request::kStore:
      *response.mutable_store() = supervisor_.Store(request.store());
      return response;
    case agent::Request::kLeasePorts: {
      MUSTER_ASSIGN_OR_RETURN(*response.mutable_lease_ports(), supervisor_.LeasePorts(request.lease_ports()));
      return response;
    }
    case agent::Request::kListTasks:
      *response.mutable_list_tasks() = supervisor_.List(request.list_tasks().job());
      return response;
    case agent::Request::kForgetJob:
      MUSTER_RETURN_IF_ERROR(supervisor_.Forget(request.forget_job().job()));
      response.mutable_forget_job();
      return response;
    case agent::Request::kCollectGarbage: {
      MUSTER_ASSIGN_OR_RETURN(*response.mutable_collect_garbage(),
                              supervisor_.CollectGarbage(request.collect_garbage()));
      return response;
    }
    case agent::Request::kListFiles: {
      MUSTER_ASSIGN_OR_RETURN(*response.mutable_list_files(), ListFiles(request.list_files()));
      return response;
    }
    default:
      return absl::UnimplementedError(absl::StrFormat(
          "an unknown kind of request; this agent speaks protocol version %d", kAgentProtocolVersion));
  }
}

void Daemon::HandleStart(const Caller& caller, const agent::StartTaskRequest& request) {
  for (const PendingStop& stop : stops_) {
    const auto& targets = stop.request.targets();
    if (stop.request.job() == request.job() &&
        (targets.empty() ||
         std::ranges::any_of(targets, [&](const auto& target) { return target.task() == request.task(); }))) {
      return Answer(caller,
                    FailedPrecondition("%s is being stopped: wait for the stop to end", request.task()));
    }
  }
  bool already_running = false;
  const absl::StatusOr<Task*> task = supervisor_.Start(request, &already_running);
  if (!task.ok()) return Answer(caller, task.status());
  starts_.push_back({.caller = caller,
                     .job = request.job(),
                     .task = request.task(),
                     .already_running = already_running,
                     .deadline = Now() + kStartTimeout});
}

bool Daemon::Step(PendingStart& start, TimePoint now) {
  const Task* task = supervisor_.Find(start.job, start.task);
  if (task != nullptr && !task->start_settled() && now < start.deadline) return false;
  agent::Response response;
  response.set_last(true);
  response.mutable_start_task()->set_already_running(start.already_running);
  if (task != nullptr) *response.mutable_start_task()->mutable_status() = task->Status();
  Answer(start.caller, response);
  return true;
}

void Daemon::HandleStop(const Caller& caller, const agent::StopTasksRequest& request) {
  agent::StopTasksRequest stop = request;
  const absl::StatusOr<std::optional<TimePoint>> deadline = supervisor_.Stop(stop);
  if (!deadline.ok()) return Answer(caller, deadline.status());
  if (!*deadline) {
    agent::Response response;
    response.set_last(true);
    *response.mutable_stop_tasks()->mutable_tasks() = std::move(*supervisor_.List(stop).mutable_tasks());
    return Answer(caller, response);
  }
  stops_.push_back({.caller = caller, .request = std::move(stop), .deadline = **deadline});
}

// Goes on when the connection is gone: what was asked to stop stops.
bool Daemon::Step(PendingStop& stop, TimePoint now) {
  if (now < stop.deadline && (supervisor_.AnyActive(stop.request) || now < stop.next_sweep.value_or(now)))
    return false;
  const absl::StatusOr<int> left = supervisor_.KillLeftovers(stop.request);
  absl::StatusOr<int> ports_left = 0;
  // What is going is no longer found by its token a moment before its sockets are closed.
  if (left.ok() && *left == 0) ports_left = supervisor_.ReleasePorts(stop.request);
  const absl::Status looked = left.ok() ? ports_left.status() : left.status();
  if ((!looked.ok() || *left > 0 || *ports_left > 0) && now < stop.deadline) {
    stop.next_sweep = now + kSweepInterval;
    return false;
  }
  if (!looked.ok()) {
    Answer(stop.caller,
           Annotate(looked, "what is left of job " + stop.request.job() + " on this host is not known"));
    return true;
  }
  agent::Response response;
  response.set_last(true);
  response.mutable_stop_tasks()->set_processes_left(*left);
  response.mutable_stop_tasks()->set_ports_left(*ports_left);
  *response.mutable_stop_tasks()->mutable_tasks() =
      std::move(*supervisor_.List(stop.request).mutable_tasks());
  Answer(stop.caller, response);
  return true;
}

absl::StatusOr<const Task*> Daemon::FindTask(const std::string& job, const std::string& task) const {
  const Task* found = supervisor_.Find(job, task);
  if (found == nullptr) return NotFound("no task %s of job %s on this host", task, job);
  return found;
}

absl::StatusOr<agent::ListFilesResponse> Daemon::ListFiles(const agent::ListFilesRequest& request) const {
  MUSTER_ASSIGN_OR_RETURN(const Task* task, FindTask(request.job(), request.task()));
  MUSTER_RETURN_IF_ERROR(ValidateRelativePath(request.folder()));
  const std::filesystem::path folder = task->folder() / request.folder();
  MUSTER_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(folder));
  if (names.size() > kMaxListedFiles) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s holds more than %d files", folder.string(), kMaxListedFiles));
  }
  agent::ListFilesResponse response;
  for (const std::string& name : names) {
    std::error_code error;
    if (std::filesystem::is_regular_file(folder / name, error)) response.add_names(name);
  }
  return response;
}

void Daemon::HandleReadFile(const Caller& caller, const agent::ReadFileRequest& request) {
  const absl::StatusOr<const Task*> task = FindTask(request.job(), request.task());
  if (!task.ok()) return Answer(caller, task.status());
  if (const absl::Status status = ValidateRelativePath(request.path()); !status.ok())
    return Answer(caller, status);
  const std::filesystem::path& folder = (*task)->folder();
  FileStream stream{.caller = caller,
                    .request = request,
                    .path = folder / request.path(),
                    .offset = request.offset(),
                    .wake_at = Now()};
  const bool is_log = stream.path == LogPath(folder);
  if (request.tail_bytes() > 0) {
    std::error_code error;
    const uint64_t size = is_log ? FindLogExtent(folder).value_or(LogExtent{}).end
                                 : std::filesystem::file_size(stream.path, error);
    stream.offset = error ? 0 : size - std::min(size, request.tail_bytes());
  }
  if (is_log) {
    // Another log than its reader knows, or one whose end is lost: nobody has seen what the latest
    // incarnation has printed.
    const absl::StatusOr<LogExtent> log = FindLogExtent(folder);
    if (log.ok() && stream.offset > log->end) stream.offset = std::min(log->end, (*task)->log_begin());
    stream.log.emplace(folder, stream.offset);
  }
  files_.push_back(std::move(stream));
}

// One chunk a turn, and none while the connection has enough to send: a slow reader holds up its own stream
// and nothing else.
bool Daemon::Step(FileStream& stream, TimePoint now) {
  const Connection* connection = Find(stream.caller);
  if (connection == nullptr) return true;
  if (connection->congested()) {
    stream.wake_at = TimePoint::max();  // its drain wakes the loop
    return false;
  }
  if (now < stream.wake_at && stream.wake_at != TimePoint::max()) return false;
  // Asked before reading: what ended before the end of the file was seen has written all there is.
  const Task* task = supervisor_.Find(stream.request.job(), stream.request.task());
  const bool more_may_come = stream.request.follow() && task != nullptr && task->active();
  const absl::StatusOr<LogPiece> read =
      stream.log ? stream.log->Read(kFileChunkBytes)
                 : ReadFilePart(stream.path, stream.offset, kFileChunkBytes, more_may_come);
  if (!read.ok() && !(more_may_come && absl::IsNotFound(read.status()))) {
    Answer(stream.caller, read.status());
    return true;
  }
  const LogPiece piece = read.value_or(LogPiece{.at_end = true});  // one that is yet to be made begins at 0
  const bool last = piece.at_end && !more_may_come;
  if (!piece.bytes.empty() || last) {
    agent::Response response;
    response.set_last(last);
    response.mutable_read_file()->set_offset(piece.offset);
    response.mutable_read_file()->set_data(piece.bytes);
    Answer(stream.caller, response);
  }
  stream.offset = piece.offset + piece.bytes.size();
  stream.wake_at = piece.at_end ? now + kFollowInterval : now;
  return last;
}

bool Daemon::Step(WatchStream& watch, TimePoint) {
  const Connection* connection = Find(watch.caller);
  if (connection == nullptr) return true;
  if (connection->congested() || (watch.sent && watch.seen_changes == supervisor_.changes())) return false;
  // What it did not say would count as gone.
  if (!supervisor_.CheckRead(watch.job).ok()) return false;
  watch.seen_changes = supervisor_.changes();
  agent::ListTasksResponse list = supervisor_.List(watch.job);
  agent::Response response;
  *response.mutable_watch() = list;
  for (agent::TaskStatus& task : *list.mutable_tasks()) task.clear_log_bytes();
  std::string without_log_bytes = list.SerializeAsString();
  if (watch.sent == without_log_bytes) return false;
  watch.sent = std::move(without_log_bytes);
  Answer(watch.caller, response);
  return false;
}

absl::StatusOr<UniqueFd> Listen() {
  ::unlink(kDaemonSocket);  // of a killed daemon: this one holds the lock
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return ErrnoError(errno, "socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, kDaemonSocket, sizeof kDaemonSocket);
  const mode_t old_mask = ::umask(077);
  const int bound = ::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  const int error = errno;
  ::umask(old_mask);
  if (bound != 0) return ErrnoError(error, kDaemonSocket);
  if (::listen(listener.get(), 128) != 0) return ErrnoError(errno, kDaemonSocket);
  return listener;
}

// Null where another daemon has it.
absl::StatusOr<std::optional<UniqueFd>> TakeLock() {
  UniqueFd lock(::open(kDaemonLock, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return ErrnoError(errno, kDaemonLock);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return std::optional(std::move(lock));
  if (errno == EWOULDBLOCK) return std::nullopt;
  return ErrnoError(errno, kDaemonLock);
}

}  // namespace

absl::Status RunDaemon(const std::filesystem::path& root) {
  ::signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();  // each task takes some, and each who follows its log
  ::prctl(PR_SET_NAME, "muster-daemon");
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return ErrnoError(errno, "become subreaper");
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::canonical(root, error);
  if (error || ::chdir(canonical.c_str()) != 0)
    return ErrnoError(error ? error.value() : errno, root.string());
  MUSTER_ASSIGN_OR_RETURN(const std::optional<UniqueFd> lock, TakeLock());
  if (!lock) return absl::OkStatus();
  MUSTER_ASSIGN_OR_RETURN(UniqueFd listener, Listen());
  absl::StatusOr<std::unique_ptr<Supervisor>> supervisor = Supervisor::Create(canonical);
  if (!supervisor.ok()) return Annotate(supervisor.status(), "what runs here is not known");
  Daemon daemon(*lock, std::move(listener), **supervisor);
  (void)WriteAll(1, kDaemonReady);
  // The bridge that started this waits for the end of its pipe.
  UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.valid() || ::dup2(null.get(), 1) < 0) return ErrnoError(errno, "/dev/null");
  daemon.Serve();
  if (daemon.HasItsFolder()) ::unlink(kDaemonSocket);
  return absl::OkStatus();
}

}  // namespace muster
