// A cluster in one thread: agents, a network and a launcher that can all fail, driven by one seed. The
// launcher runs the real Reconciler; an Invariants object watches.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "launcher/reconciler/invariants.h"
#include "launcher/reconciler/reconciler.h"

namespace muster::reconcile {

class Simulation {
 public:
  explicit Simulation(uint64_t seed);

  /// Runs to the end of the job, and until what is still under way has arrived.
  void Run();

  const std::vector<std::string>& violations() const { return invariants_.violations(); }
  /// The last events and actions, for a person who looks for the reason.
  const std::vector<std::string>& transcript() const { return transcript_; }
  /// What happened, to show that the faults are reached.
  const std::map<std::string, int>& tally() const { return tally_; }

 private:
  // What an agent keeps on disk of a task.
  struct AgentTask {
    TaskReport report;
    std::set<std::pair<uint64_t, std::string>> started;  // deployments
    uint64_t base_generation = 0;
    int run = 0;  // of its process, unlike any other: an old one's end is ignored
  };
  struct Agent {
    HostId id;
    std::string address;
    bool up = true;
    bool reachable = true;
    int watcher_life = 0;  // which launcher watches, on which connection
    ConnectionId watcher = 0;
    uint64_t minimum_generation = 0;
    std::map<TaskId, AgentTask> tasks;
    std::map<TaskId, TaskReport> orphans;  // run there, and only their tokens tell
    int folder = 0;                        // how many there were before: each has another daemon
    std::map<TaskId, uint32_t> leases;
  };
  // The driver's end of a connection. Broken: nothing arrives any more, and soon somebody notices.
  struct Wire {
    ConnectionId connection = 0;
    bool broken = false;
  };

  using Work = std::function<void()>;
  struct Item {
    TimePoint when;
    uint64_t order;
    Work work;
    bool operator>(const Item& other) const {
      return std::tie(when, order) > std::tie(other.when, other.order);
    }
  };

  void AddHost(const HostId& id, const std::string& address);
  void AddSpares();
  DesiredTask MakeTask(const std::string& job, int index);
  void After(int64_t milliseconds, Work work);
  void RunUntil(TimePoint limit, const std::function<bool()>& done);
  bool Chance(double probability) { return random_.NextDouble() < probability; }
  bool Fault(double probability) { return now_ < faults_end_ && Chance(probability); }
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_.NextBelow(high - low + 1));
  }
  void Note(const std::string& what, const std::string& details = "");

  // The launcher and its driver.
  void Launch(bool replan);
  void Grow();
  Desired Needed() const;
  bool MoveTask();
  int Workers() const;
  bool Scale(int wanted);
  void KillLauncher();
  void Feed(int life, const Event& event);
  void Execute(const Action& action);
  void Sleep();
  void NoteGivenUp();

  // The network.
  void ToAgent(const HostId& host, std::function<void(Agent&)> work);
  void ToLauncher(const HostId& host, int life, ConnectionId connection, Event event);
  void Break(const HostId& host, int64_t notice_milliseconds);

  // Agents.
  void Snapshot(Agent& agent);
  std::vector<TaskReport> Reports(const Agent& agent) const;
  void Start(Agent& agent, int life, ConnectionId connection, const StartTask& start);
  void Stop(Agent& agent, int life, ConnectionId connection, const StopTasks& stop);
  void Spawn(Agent& agent, AgentTask& task);
  void RunOn(const HostId& host, const TaskId& task, int run, int64_t milliseconds_left);
  AgentTask* FindRun(const HostId& host, const TaskId& task, int run);
  void KillOrphans(Agent& agent, const StopTasks& stop);
  void Exit(Agent& agent, AgentTask& task, int exit_code);
  bool IsServer(const TaskId& task) const { return task.starts_with("ps"); }
  bool WorkersSucceeded(uint64_t base_generation) const;
  void CrashHost(const HostId& host);
  void EmptyHost(const HostId& host, bool tasks_live_on);
  void CutHost(const HostId& host);
  void MoveHost(const HostId& host);
  void ScheduleFaults();

  static constexpr int64_t kFaultsMs = 60'000;
  RandomStream random_;
  TimePoint now_{};
  TimePoint faults_end_;
  TimePoint busy_until_{};       // the driver; what comes meanwhile waits
  TimePoint disk_full_until_{};  // the launcher's; less than anybody waits for a record
  uint64_t order_ = 0;
  std::priority_queue<Item, std::vector<Item>, std::greater<>> queue_;
  Invariants invariants_;
  Options options_;
  Desired desired_;
  bool follow_ = false;              // tasks may
  std::map<TaskId, bool> follows_;   // those that there have been
  std::map<TaskId, bool> can_fail_;  // likewise: some of those that join later
  Record record_;                    // on the launcher's disk
  std::unique_ptr<Reconciler> reconciler_;
  int life_ = 0;
  int moves_ = 0;
  int spares_ = 0;
  int late_ = 0;  // hosts that were added for those who join
  int runs_ = 0;
  static constexpr int kNobody = std::numeric_limits<int>::max();
  int first_that_left_ = kNobody;  // of the workers, in this life of the launcher
  std::map<HostId, Wire> wires_;
  std::map<HostId, Agent> agents_;
  TimePoint tick_at_ = TimePoint::max();
  bool finished_ = false;
  std::set<HostId> given_up_;
  std::map<TaskId, HostId> places_;
  std::vector<std::string> transcript_;
  std::map<std::string, int> tally_;
};

}  // namespace muster::reconcile
