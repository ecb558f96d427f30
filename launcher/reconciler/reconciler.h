// The reconciler: (desired, observed, now) -> actions. Everything muster does to a cluster is this one loop.
//
// A job goes through phases:
// - gathering: every host is connected, has the contents, is rid of what an older generation left, and leases
//   ports. When all of that holds for all hosts (the gang), the next generation is fixed: its record is
//   persisted, then every task is started.
// - running: each host is brought from what its agent reported to what is desired, by itself. A task that has
//   run under the current generation and spec_hash is adopted, never started again: restarts on a host are
//   the agent's. A task with another spec_hash is stopped and started. A lost port goes back to gathering,
//   for the next generation, as do starts that a host refuses because of what is there. A host that is
//   reached at another address has moved: the next generation has the same members, on the same ports, and
//   nothing else changes. Tasks that follow their cluster go on under it; the others are stopped and started.
//   A host that stays lost is given up, if its tasks can go to a spare one, or else if the job can do without
//   them (Desired::max_missing). The spare one gets the contents and leases ports before the next generation
//   says that they are there. When the lost one returns, after a pause that grows, what runs elsewhere now is
//   stopped there; else, what still runs is adopted, and what died is started again under another generation
//   of the same members.
//   A host that comes back without knowing of what ran there has lost it, though it may still run: that is
//   stopped there, and what its restart policy lets begin again goes to this host as to a spare one.
//   Of an elastic job other tasks may be wanted than the cluster has. Those that it lacks get the contents
//   and lease ports like those of a spare host; whose host cannot take them are missing, and cost nobody else
//   anything. Then the next generation has them, without those that are wanted no more, which are stopped.
// - ending: the outcome is decided and persisted; nothing is started any more. All is stopped, within a
//   deadline.
// - finished: Finish was the last action.
// A record with a fixed cluster that still fits what is desired begins in `running` (the launcher was gone),
// though nothing is started before the gang is there; a record with an ending begins in `ending`.
//
// Why lost, doubled, late and reordered messages do no harm: decisions depend on state, not on the order of
// events. Reports of a task are ordered by its life (task_life.h) and only the newest counts;
// requests are idempotent and carry ids, and a request without an answer breaks its connection, after which
// everything still wanted is asked for again. Starts that are still under way when the job stops or changes
// its cluster are fenced off by generation.
//
// A record that cannot be written holds up the requests that come after it, which count as never sent, and
// nothing else; it is tried again.
//
// Relied upon: the agent never starts a task twice for one (generation, spec_hash), be it running or ended;
// its task states outlive its daemon, and are gone only with its folder; what it is told to stop without
// knowing of it, it finds by its token.
//
// One thread at a time. No I/O and no clock. An event costs O(log hosts + tasks of its host); a change of
// phase costs O(tasks).
#pragma once

#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "launcher/reconciler/messages.h"

namespace muster::reconcile {

class Reconciler {
 public:
  /// `desired` is already planned and valid: task ids are unique and their hosts listed. `record` is a
  /// default one for a new job, what was last persisted for one that may be running, NextRun() of that for
  /// one that has ended.
  Reconciler(const Desired& desired, Record record, const Options& options, TimePoint now);

  /// Takes an event and returns what to do, to be begun in this order. The first call (a Tick will do) asks
  /// for the connections. Events about unknown hosts, old connections or answered requests are ignored. `now`
  /// never goes back. Only a Tick has it that something is overdue: before one the driver hands in what has
  /// come, also what has come while it was busy.
  std::vector<Action> Step(const Event& event, TimePoint now);

  /// When Step wants a Tick, whatever happens before; TimePoint::max() once finished.
  TimePoint NextDeadline() const;

  /// Everything, for tables. O(tasks).
  View GetView() const;

  bool finished() const { return phase_ == Phase::kFinished; }
  const Record& record() const { return record_; }

 private:
  enum class Link { kDown, kConnecting, kUp };
  enum class Ask { kReport, kContents, kLease, kStart, kStopSome, kStopAll };

  struct Request {
    RequestId id = 0;
    Ask ask = Ask::kReport;
    int task = -1;
    TimePoint deadline;
    std::vector<Deployment> targets;  // of a stop
    Deployment deployment;            // of a start
    uint64_t below = 0;               // of a stop of all: the generations that it ends
  };

  // What a host adds to the totals by which phases change. Kept per host so that one event costs no walk over
  // all of them.
  struct Counts {
    int not_ready = 0, undecided = 0, refused = 0, may_run = 0, unleased = 0, unfinished = 0, unstopped = 0,
        missing = 0, displaced = 0, unplaced = 0, unstopped_lost = 0, connecting = 0;
    void Add(const Counts& other, int sign);
  };

  struct Task {
    DesiredTask desired;
    int host = 0;
    int member = -1;  // its place in the cluster in force; -1: it has none yet
    uint32_t port = 0;
    bool leased = false;
    std::optional<TaskReport> report;
    ConnectionId reported_on = 0;
    bool start_unheard = false;  // it was sent where the task was known, and its connection was lost
    bool missing = false;        // the job goes on without it
    bool displaced = false;      // it goes to a host that the cluster does not say yet
    uint32_t minimum_incarnation = 0;
    uint32_t restarts = 0;            // that a start of it counts from
    std::optional<TaskReport> noted;  // what an earlier launcher heard last; not heard by this one
    int note = -1;                    // its place in Record::incarnations
    bool success_noted = false;
    TimePoint failed_seen;  // when its failure became known here
    int attempts = 0;
    TimePoint retry_at;
    absl::Status last_error;
  };

  struct Host {
    DesiredHost desired;
    std::vector<int> tasks;
    std::map<TaskId, TaskReport> strangers;  // tasks of this job that do not belong here
    std::vector<TaskReport> former;          // likewise, as they were last heard of before
    std::vector<Deployment> forgotten;       // may still run there, though it does not know of them any more
    Link link = Link::kDown;
    ConnectionId connection = 0;
    bool reported = false;                // on this connection
    bool reported_once = false;           // on any
    std::optional<TimePoint> lost_since;  // until it reports
    Duration lost_for{};                  // before that, if it has got no further since
    bool refused = false;                 // no use trying again
    bool given_up = false;                // its tasks are missing; it is let in again when it returns
    int times_given_up = 0;
    bool unheard = false;  // something may run there of which it has not reported
    bool stray = false;    // one of Record::strays
    int failed_connects = 0;
    int lost_while_ending = 0;  // how often
    int silences = 0;           // requests in a row that got no answer
    absl::Status last_error;
    TimePoint heard_at;      // on its way
    TimePoint logged_in_at;  // by the attempt under way
    TimePoint connect_at;    // next attempt, or the deadline of the one under way
    std::vector<Request> requests;
    bool contents_ready = false;
    int attempts = 0;  // at contents or stops
    TimePoint retry_at;
    bool may_run = false;    // a task of the job, or a start of one on its way, may be there
    bool may_lease = false;  // a port leased to the job may be there
    bool dirty = false;
    TimePoint wake = TimePoint::max();
    Counts counts;
  };

  // Events.
  void On(const Tick&) {}
  void On(const HostConnected& event);
  void On(const HostFailed& event);
  void On(const HostComing& event);
  void On(const HostSighted& event);
  void On(const HostReported& event);
  void On(const ContentsReady& event);
  void On(const ContentsComing& event);
  void On(const PortLeased& event);
  void On(const TaskStarted& event);
  void On(const TasksStopped& event);
  void On(const RequestFailed& event);
  void On(const ServersMoved& event);
  void On(const MoreDesired& event);
  void On(const StopRequested& event);
  void On(const RecordFailed& event);
  Host* FindHost(const HostId& id, ConnectionId connection);
  std::optional<Request> TakeRequest(const HostId& host, RequestId id);
  void NoteProgress(Host& host);
  void BearLoss(Host& host);
  void Move(Host& host, const std::string& data_address);
  void Merge(Host& host, const TaskReport& report);
  void Judge(Task& task);
  void FindForgotten(Host& host);
  void Forget(Host& host, const TaskReport& report);
  void JudgeForgotten(Task& task);
  bool MayRunForgotten(const Task& task) const;
  void StartAnew(Task& task);
  void Refused(Host& host, const Request& request, const absl::Status& status);
  bool CanDoWithout(const Host& host) const;
  void GiveUp(Host& host);
  bool PlaceElsewhere(Host& host);
  bool LeaveBehind(Host& host);
  bool EndIfWorkIsDone();
  Host* FindSpare(const std::vector<int>& tasks);
  void LetIn(Host& host);

  // One host, level-triggered.
  void ReconcileHost(Host& host);
  void CheckDeadlines(Host& host);
  void GatherHost(Host& host);
  void RunHost(Host& host);
  void LeaseForTask(Host& host, int task);
  void EnsureHostContents(Host& host);
  void StopAll(Host& host);
  Request& AddRequest(Host& host, Ask ask, int task, Duration timeout);
  bool Asked(const Host& host, Ask ask, int task = -1) const;
  void LoseConnection(Host& host, const absl::Status& status);
  Duration ConnectAttempt() const;
  Duration Backoff(int failures, const std::string& salt) const;
  TimePoint WakeTime(const Host& host) const;
  TimePoint LostLimit(const Host& host) const;
  bool HasMembers(const Host& host) const;  // of the cluster, among the tasks that are to run there
  bool WasThere(const Host& host) const;
  Counts Count(const Host& host) const;
  void Touch(Host& host);
  void TouchAll();

  // The whole job.
  int AddHost(const DesiredHost& desired);  // its index, also if it is there already
  void AddTask(const DesiredTask& desired);
  void BeginJoining(Task& task);
  bool Adoptable() const;
  void Adopt();
  bool AddStray(const HostId& host);  // false: it is one already
  void NoteDepartures();
  void Settle();
  bool Advance();
  void BeginGathering();
  bool TakeRetry();  // with another generation; false: there have been enough
  void LosePort(Task& task);
  void FixGeneration();
  void FixCluster();
  TimePoint MovesUntil() const;
  void Persist();
  void NoteSuccess(Task& task);
  void NoteIncarnation(Task& task, uint32_t number);
  void RecallIncarnations();
  void IndexIncarnations();
  void LookEverywhere();
  void BeginEnding(Outcome outcome);
  void FailTask(Task& task, int exit_code, const std::string& why);
  void FailUnreachable();
  void Supersede(const Host& host, const TaskReport& report);
  void FinishNow();
  Outcome FinalOutcome() const;
  void RefineFirstCause(Outcome& outcome) const;
  std::vector<Casualty> Consequences(const Outcome& outcome) const;

  TimePoint RunDeadline() const;
  bool IsNew(const Task& task) const;      // it has not joined the cluster yet
  bool SinceBase(const Task& task) const;  // reported under the spec in force, in a cluster of its members
  bool Current(const Task& task) const;    // and under the generation in force
  bool Succeeded(const Task& task) const;  // so has it since the base generation
  bool Done(const Task& task) const;       // or failed under the one in force, and does not begin anew
  bool Died(const Task& task) const;       // failed by itself, not because it was stopped
  bool Ready(const Host& host) const;
  bool Matters(const Host& host) const;  // the job cannot go on without it
  bool HasSucceeded(const Host& host) const;
  bool Bystander(const Host& host) const;  // only what it ran before is still to be stopped there
  bool Idle(const Host& host) const;       // a spare that is not needed
  bool NeedsStop(const Host& host) const;

  const Options options_;
  const int max_missing_;
  const bool elastic_;
  Record record_;
  std::vector<Host> hosts_;
  std::vector<Task> tasks_;
  std::unordered_map<std::string, int> host_index_;
  std::unordered_map<std::string, int> task_index_;
  Phase phase_ = Phase::kGathering;
  std::optional<TimePoint> moved_at_;    // the first host, as the cluster in force does not say
  TimePoint in_force_since_;             // what the tasks have ports for, at least as this launcher knows
  std::optional<TimePoint> persist_at_;  // for successes, or again
  std::optional<RequestId> persisted_after_;  // in the Step under way, or the last one: what was sent before
  bool is_awaited_ = false;                   // that record, by what was sent after it
  bool is_held_ = false;                      // no requests before a record is written
  std::optional<TimePoint> unwritten_since_;  // one that is awaited
  int record_failures_ = 0;                   // in a row
  bool persist_first_ = false;                // the record that was given changed before the first Step
  bool has_leavers_ = false;                  // the cluster has members that are wanted no more
  bool gang_complete_ = false;                // every host has been ready at once, in this life
  bool stop_requested_ = false;               // whoever has made what there is
  bool stopping_ = false;                     // ending, and past the servers' grace
  bool only_lost_left_ = false;  // ending, and nothing is left but what hosts that are given up may have
  TimePoint stop_from_;
  TimePoint give_up_at_;
  TimePoint run_deadline_ = TimePoint::max();
  TimePoint hear_until_;  // for hosts to be heard, also after that
  TimePoint now_;
  TimePoint judged_at_;  // the last Tick
  uint64_t last_id_ = 0;
  Counts totals_;
  std::vector<int> dirty_;
  std::set<std::pair<TimePoint, int>> timers_;
  std::vector<Action> actions_;
};

}  // namespace muster::reconcile
