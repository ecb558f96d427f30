// What the reconciler is told (Desired, Record, events) and what it says (actions, Outcome, View).
//
// Plain values. The driver (a thread per host) executes actions and feeds back events; the two meet nowhere
// else.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace muster::reconcile {

using HostId = std::string;     // the host's name in the inventory
using TaskId = std::string;     // "ps:0"
using RequestId = uint64_t;     // of one action; unique within one Reconciler
using ConnectionId = uint64_t;  // of one Connect action; later ones are larger

/// `muster run` ends with it where a host could not be reached or would not take what it was given.
inline constexpr int kUnreachableExitCode = 69;

// ---- What is wanted
// -------------------------------------------------------------------------------------------------

struct DesiredHost {
  HostId id;
  std::string data_address;           // literal IP that its servers bind and others reach
  std::vector<std::string> contents;  // SHA-256 of what must be in its store before anything starts
  bool unreached = false;             // so far nothing has been asked of it: nothing of the job is there
};

struct DesiredTask {
  TaskId id;
  HostId host;            // one of Desired::hosts
  std::string spec_hash;  // of everything that needs a restart when it changes, except the cluster
  bool needs_port = false;
  bool ends_with_others = false;  // the job does not wait for its success
  bool follows_cluster = false;   // takes another cluster while it runs; else it is stopped and started again
  bool can_be_missing = false;    // the job goes on without it, as long as its host is lost
  bool can_fail = false;          // likewise, also once it has failed, and however many are missing
  bool ends_last = false;         // it succeeds only when all others have done their work
  bool needs_its_folder = false;  // what it keeps there, nobody else has: without, it would begin anew
  std::vector<HostId> spares = {};  // where it may run instead, once its host is lost; listed hosts
  int max_restarts = 0;  // after deaths that are nobody's word, by its policy; below 0: without bound
};

/// Hosts without a task are not contacted before they are needed.
struct Desired {
  std::vector<DesiredHost> hosts;
  std::vector<DesiredTask> tasks;
  int max_missing = 0;  // at most so many of those that can be are missing at a time
  // Tasks join a cluster that is in force, and leave it, while the others go on. Else a cluster of other
  // tasks is another one, for which all are stopped and started.
  bool elastic = false;
};

struct Options {
  Duration connect_deadline = std::chrono::seconds(15);  // for a host to be there before the first start
  Duration connect_attempt = std::chrono::seconds(10);   // for one Connect
  Duration lost_deadline = std::chrono::seconds(60);     // for a host to come back after the first start
  // Until a host that was given up is let in again, doubled each time.
  Duration cooldown_first = std::chrono::seconds(10);
  Duration cooldown_limit = std::chrono::minutes(10);
  Duration request_timeout = std::chrono::seconds(10);  // for an answer, beyond what the request itself takes
  Duration start_timeout = std::chrono::seconds(10);    // likewise, with all that starts bring
  Duration contents_timeout = std::chrono::minutes(30);  // for the contents of one host to get any further
  Duration stop_grace = std::chrono::seconds(3);         // from TERM to KILL
  Duration stop_deadline =
      std::chrono::seconds(10);  // for all tasks to be gone, after which their hosts are given up
  Duration server_grace =
      std::chrono::seconds(10);  // for servers to end by themselves after the others' success
  Duration backoff_first =
      std::chrono::milliseconds(250);  // between attempts, doubled each time, -25% to +25%
  Duration backoff_limit = std::chrono::seconds(8);
  // Until the cluster says that a host has moved, for each other one that is connecting.
  Duration moves_wait = std::chrono::milliseconds(100);
  Duration moves_wait_limit = std::chrono::seconds(1);
  // For the whole run, stop not included, as far as it is left; of a job that is taken over, not before its
  // hosts have been heard, or cannot be.
  std::optional<Duration> run_deadline;
  int max_attempts = 3;  // refused starts of a task, refused uploads to a host, ...
  int max_silences = 3;  // unanswered requests in a row before a host counts as broken
  int max_retries = 3;   // new generations because of lost ports or refused starts
  Duration retries_forgotten_after = std::chrono::minutes(10);  // that tasks have had their ports for
};

// ---- What is remembered
// ---------------------------------------------------------------------------------------------

/// One task's place in a cluster.
struct Member {
  TaskId task;
  HostId host;
  std::string data_address;
  uint32_t port = 0;                 // 0: it serves nothing
  uint32_t minimum_incarnation = 0;  // of the task there: others may have seen those below, of another host
  uint32_t restarts = 0;             // that it has had before, where nobody knows of them any more
  bool operator==(const Member&) const = default;
};

/// In the order of Desired::tasks, without those that have not joined yet.
using Cluster = std::vector<Member>;

/// "10.0.0.1:20000", "[fd00::1]:20000", or "" for a member without a port.
std::string Address(const Member& member);

enum class Result { kSucceeded, kFailed, kStopped };

/// A task that did not end well, and how: "stopped", "killed by signal 9", "lost with its host".
struct Casualty {
  TaskId task;
  HostId host;
  std::string what;
  bool operator==(const Casualty&) const = default;
};

/// How a job ended. `exit_code` is that of `muster run` (DESIGN, "Exit codes").
struct Outcome {
  Result result = Result::kSucceeded;
  int exit_code = 0;
  std::string message;                  // one sentence for a person; names host, task and cause
  std::optional<Casualty> first_cause;  // where a task or its host was the cause
  std::vector<Casualty> consequences;   // the tasks that did not end well because of it
  std::vector<HostId> left_behind;      // could not be reached to stop what may still run there
  bool operator==(const Outcome&) const = default;
};

struct LostPort {
  HostId host;
  uint32_t port = 0;
  bool operator==(const LostPort&) const = default;
};

/// A task that has left the cluster, and an incarnation that no start of it before can have come to.
struct Departure {
  TaskId task;
  uint32_t minimum_incarnation = 0;
  bool operator==(const Departure&) const = default;
};

/// The newest of a task that was heard of, or, if its host has forgotten it, that it can have come to.
struct Incarnation {
  TaskId task;
  std::string spec_hash;
  uint32_t number = 0;
  uint32_t restarts = 0;
  bool has_ended = false;  // for good
  bool operator==(const Incarnation&) const = default;
};

enum class TaskState { kPending, kRunning, kRestarting, kSucceeded, kFailed, kLost };

/// "Pending", "Running", ...
const char* TaskStateName(TaskState state);

/// The agent's word about one task: the fields of proto/agent.proto, TaskStatus, that decisions and tables
/// need.
struct TaskReport {
  TaskId task;
  TaskState state = TaskState::kPending;
  uint64_t generation = 0;
  std::string spec_hash;
  uint32_t incarnation = 0;
  uint32_t restarts = 0;
  int exit_code = -1;
  bool stopped = false;
  int64_t started_micros = 0;  // since 1970, by the launcher's clock; 0: never
  int64_t ended_micros = 0;
  std::string reason;
};

/// All that a new Reconciler needs to go on where one was killed; the driver keeps it in a file.
struct Record {
  uint64_t generation = 0;       // the newest that was fixed
  uint64_t base_generation = 0;  // since which nothing but addresses has changed: what succeeded counts
  bool fixed = false;  // `cluster` is that of `generation` and in force; else only where tasks may still run
  bool leasing = false;  // hosts have been asked for ports, whether or not a generation came of it
  std::shared_ptr<const Cluster> cluster =
      std::make_shared<Cluster>();  // shared because every StartTask holds it too
  std::vector<LostPort> lost_ports;
  std::vector<HostId> strays;         // outside the cluster, but something of the job may be there
  std::vector<Departure> departures;  // since the base generation
  // Likewise, what was heard of members that have succeeded: it is written within a second, since their hosts
  // may be gone when another launcher goes on.
  std::vector<TaskReport> successes;
  // Likewise, of all members that were started: a host may come back without knowing of them.
  std::vector<Incarnation> incarnations;
  int retries = 0;                // generations given up because of lost ports or refused starts
  std::optional<Outcome> ending;  // decided: a Reconciler given this record starts nothing, it only stops
};

/// The record with which a job that has ended is run again: higher generations, nothing adopted.
Record NextRun(const Record& ended);

// ---- What happens
// ---------------------------------------------------------------------------------------------------

/// Answers to Connect. A host that is reached at another address than before has moved. HostFailed also tells
/// that an established connection is gone. The driver finds half-open connections with keepalives. `status`
/// names the host.
struct HostConnected {
  HostId host;
  ConnectionId connection = 0;
  std::string data_address;  // as of now; "": as before
};
struct HostFailed {
  HostId host;
  ConnectionId connection = 0;
  absl::Status status;
};
/// The attempt is not over, and gets somewhere: it waits for its turn, or the agent is on its way. It has as
/// much time from now on as a new one.
struct HostComing {
  HostId host;
  ConnectionId connection = 0;
  bool has_logged_in = false;  // and nothing else: if its agent does not answer, it is as lost as before
};
/// Unavailable, DeadlineExceeded and Aborted. Any other code (host key, login) is final, but for a host that
/// was there before: that may pass, and it is lost meanwhile.
bool WorthTryingAgain(const absl::Status& status);
/// There is reason to look for the host elsewhere than at any connection to it: Connect, at once.
struct HostSighted {
  HostId host;
};
/// All tasks of the job on this host: once after each HostConnected, and again at each change. May be late or
/// doubled.
struct HostReported {
  HostId host;
  ConnectionId connection = 0;
  std::vector<TaskReport> tasks;
};
/// Answers to the requests EnsureContents, LeasePort, StartTask, StopTasks.
struct ContentsReady {
  HostId host;
  RequestId request = 0;
};
/// They are not there yet, and get somewhere: they have as much time from now on as at first.
struct ContentsComing {
  HostId host;
  RequestId request = 0;
};
struct PortLeased {
  HostId host;
  RequestId request = 0;
  uint32_t port = 0;
};
struct TaskStarted {
  HostId host;
  RequestId request = 0;
  TaskReport task;
};
struct TasksStopped {
  HostId host;
  RequestId request = 0;
  uint32_t processes_left = 0;
  uint32_t ports_left = 0;  // on which something still listens
  std::vector<TaskReport> tasks;
};
struct RequestFailed {
  HostId host;
  RequestId request = 0;
  absl::Status status;
};
/// Servers of another job, which the tasks of this one are told of with their cluster, are elsewhere now.
struct ServersMoved {};
/// The same tasks, and perhaps more of them, which join an elastic job as if they had been wanted from the
/// start; none of these has left it in this Reconciler's life. All may have other spare hosts. What else
/// differs from what is desired so far does not count, and nothing of it does unless the job is running,
/// without tasks that are about to leave it (View::has_leavers).
struct MoreDesired {
  Desired desired;
};
/// Ctrl-C or `muster stop`.
struct StopRequested {};
/// A PersistRecord could not be executed. The next event after that Step; of what came after it there the
/// driver has dropped other records and all requests. Of several records of a Step it does not say which:
/// what was asked for after the first one may be asked for again.
struct RecordFailed {
  absl::Status status;
};
/// NextDeadline() has come.
struct Tick {};

using Event = std::variant<Tick, HostConnected, HostFailed, HostComing, HostSighted, HostReported,
                           ContentsReady, ContentsComing, PortLeased, TaskStarted, TasksStopped,
                           RequestFailed, ServersMoved, MoreDesired, StopRequested, RecordFailed>;

// ---- What is to be done
// ---------------------------------------------------------------------------------------------

/// Replaces any connection to this host. Requests sent on an older one count as unanswered; their late
/// answers are ignored.
struct Connect {
  HostId host;
  ConnectionId connection = 0;
  TimePoint deadline;
};
/// Makes the contents present in the host's store; uploads those that are not.
struct EnsureContents {
  RequestId request = 0;
  HostId host;
  std::vector<std::string> contents;
};
struct LeasePort {
  RequestId request = 0;
  HostId host;
  TaskId task;
  std::string data_address;
  std::vector<uint32_t> avoid;
};
/// Synchronous and durable: it is done before any later action is begun, or RecordFailed.
struct PersistRecord {
  Record record;
};
/// A task that runs under an older generation goes on under this one if it follows its cluster, else the
/// start is refused. One that has succeeded since the base generation is not started again.
struct StartTask {
  RequestId request = 0;
  HostId host;
  TaskId task;
  uint64_t generation = 0;
  uint64_t base_generation = 0;
  bool follows_cluster = false;
  std::string spec_hash;
  std::shared_ptr<const Cluster> cluster;
  uint32_t minimum_incarnation = 0;  // more than any that others may have seen
  uint32_t restarts = 0;             // that it has had before
};
/// What runs, as its start was named: an agent starts the same one only once.
struct Deployment {
  TaskId task;
  uint64_t generation = 0;
  std::string spec_hash;
  auto operator<=>(const Deployment&) const = default;
};
/// No targets: every task of the job. A task that runs under another start than its target's is left alone,
/// so that a late stop cannot hit what has come since. With a minimum generation (0: none) only tasks below
/// it are stopped, and starts of this job below it are refused by the host from now on: a start that was
/// delayed on its way cannot undo the stop, nor can a delayed stop undo a later start.
struct StopTasks {
  RequestId request = 0;
  HostId host;
  std::vector<Deployment> targets;
  uint64_t minimum_generation = 0;
  bool keep_ports = false;  // they are to be started again in the same cluster
  Duration grace{};
};
/// The last action: the driver closes its connections.
struct Finish {
  Outcome outcome;
};

using Action = std::variant<Connect, EnsureContents, LeasePort, PersistRecord, StartTask, StopTasks, Finish>;

/// EnsureContents, LeasePort, StartTask, StopTasks.
bool IsRequest(const Action& action);

// ---- What tables show
// -----------------------------------------------------------------------------------------------

enum class Phase { kGathering, kRunning, kEnding, kFinished };
/// kGivenUp: lost, and the job goes on without its tasks until it is back.
enum class HostState { kConnecting, kConnected, kReady, kLost, kGivenUp, kRefused };

/// "gathering", "running", ...; "connecting", "connected", ...
const char* PhaseName(Phase phase);
const char* HostStateName(HostState state);

struct HostView {
  HostId host;
  HostState state = HostState::kConnecting;
  std::string data_address;
  int attempts = 0;         // connects in a row that failed
  absl::Status last_error;  // of the connection
};

struct TaskView {
  TaskId task;
  HostId host;
  TaskState state = TaskState::kPending;  // kLost also while its host is
  std::string address;                    // "" before the cluster is fixed, or if it serves nothing
  std::optional<TaskReport> report;       // the newest
};

struct View {
  Phase phase = Phase::kGathering;
  uint64_t generation = 0;
  std::vector<HostView> hosts;
  std::vector<TaskView> tasks;
  bool has_leavers = false;       // the cluster still has tasks that are not wanted any more
  std::optional<Outcome> ending;  // what is being ended as; complete with kFinished
};

/// "host-3 stays lost: the job goes on without worker:2 until it is back; host-3 (10.0.0.3:22): connect:
/// ...", of a host that is given up, or that its tasks are on other hosts now. One that is refused may not
/// have been said to be lost before.
std::string GivenUpText(const View& view, const HostId& host);

}  // namespace muster::reconcile
