// ServerSimulation: a job over parameter servers, event by event. Worker computes, pushes to all servers,
// they update, it pulls.
//
// All shards have the same size, are pushed to at the same time and share the same kind of link
// (fair_links.h), so they do the same at the same time; one processor stands for all of them. What it does,
// it does in the order in which it came: a message, a sum, an update, the beginning of an answer.
//
// Workers begin with a pull of the first parameters, all at time 0. Asynchronous ones begin at random within
// a round: on fair links those that begin together end together, so that workers with equal compute times
// would all push, and then all pull, for ever. Neither do those come apart whose transfers overlap, as all
// are held up alike; links are not as fair as that, and Cluster::large_share says by how much.
//
// With several servers a synchronous step takes two messages between them, there and back, after the last
// gradient that it takes (docs/ARCHITECTURE.md, "Whose gradients make a step").
//
// Where servers answer in parts, all pulls begin when the last worker's first part can be there, beside the
// pushes, and end no sooner than the last part takes after the step is made. How far each of them has come
// meanwhile does not hold up the other: of equal links neither waits for the other anyway. On the workers'
// hosts nothing is gained, and whole answers are simulated.
//
// muster lets large asynchronous pushes take turns (ps/push_turns.h); here they all share.
//
// Hybrid: the rows are pushed when a worker has computed, or when its dense parameters are updated
// (HybridOrder), and its next step begins when it has both.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <vector>

#include "bench/simulator/compute_times.h"
#include "bench/simulator/fair_links.h"
#include "bench/simulator/scenario.h"

namespace muster::simulator {

/// What happened, for a Prediction to be made of it. Asynchronous workers are observed from two updates each
/// on: then they have found a rhythm.
struct StepLog {
  /// Synchronous: from each step to the next one. Async: from each gradient of a worker to its next.
  std::vector<double> step_seconds;
  double compute_seconds = 0;  // summed over `cycles`
  double waiting_seconds = 0;  // until the last worker whose gradient the step takes has computed
  int64_t cycles = 0;          // synchronous: gradients that are part of a step; async: step_seconds

  int64_t updates = 0;  // that were observed
  double update_seconds = 0;
  int64_t gradients = 0;  // that are part of those updates
  int64_t stale = 0;      // that came too late for their step

  /// From time 0 on.
  int64_t all_updates = 0;
  double all_seconds = 0;
  std::vector<int64_t> pushes;  // by worker: that have left it
  std::vector<int64_t> pulls;   // that have reached it
};

/// What travels to and from servers, and over which share of the links.
FairLinksOptions ServerLinks(const Scenario& scenario);

/// When an asynchronous worker begins its first step, with the parameters that it needs.
double AsyncStartSeconds(const Scenario& scenario, int worker);

/// Of the links, for pull `number` of a worker, counted from 0.
Share ShareOf(const Scenario& scenario, int worker, int64_t number);

/// `scenario` is valid, of another strategy than allreduce, and lives longer.
class ServerSimulation {
 public:
  explicit ServerSimulation(const Scenario& scenario);

  /// Once. O(workers * steps * log(workers)), however many servers there are.
  StepLog Run();

 private:
  enum class EventKind {
    kStart,   // the worker has all parameters and begins a step
    kPush,    // its gradient begins to leave
    kArrive,  // it is all there
    kTake,    // synchronous: the servers' processors have received it
    kAgreed,  // synchronous: all servers know whose gradients make the step
    kUpdate,  // the parameters are new; synchronous: of no worker
    kEarly,   // in parts: the first ones begin to leave, to all
    kAnswer,  // parameters begin to leave; in parts: the last one does
  };
  struct Event {
    double time;
    uint64_t number;  // of two at the same time the one that was made first
    EventKind kind;
    int worker;
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };
  struct Worker {
    int64_t step = 0;        // that its parameters are of
    int64_t async_step = 0;  // of its own
    int64_t pulls = 0;       // that have begun
    double start = 0;
    double compute_seconds = 0;
    double computed = 0;                  // when it has
    double dense_done = 0;                // hybrid
    std::optional<double> pulled;         // in parts: when it has all but the last part
    std::optional<double> last_part;      // when it has that
    std::optional<double> last_gradient;  // async: when its last one was made an update
  };

  void Schedule(double time, EventKind kind, int worker);
  void Handle(const Event& event);
  void BeginAll();
  void Start(int worker);
  void ReduceDense();
  void CountPush();
  void StartWithParts(int worker);
  void BeginTransfer(Direction direction, int worker);
  void EndTransfer(Direction direction, int worker, double latency_seconds);
  void Arrive(int worker);
  void Take(int worker);
  void AgreeOnStep();
  void MakeStep();
  void UpdateSync();
  void UpdateAsync(int worker);
  void EndStep();

  bool IsAsync() const { return scenario_.strategy == Strategy::kAsyncServers; }
  bool AnswersEarly() const { return traffic_.answer_parts > 1 && !cluster_.servers_on_workers; }
  bool IsHybrid() const { return scenario_.strategy == Strategy::kHybrid; }
  // When the servers' processors have done that, too.
  double Occupy(double seconds) { return processor_free_ = std::max(processor_free_, now_) + seconds; }
  double WorkerMessagesSeconds() const { return cluster_.servers * cluster_.message_seconds; }
  double SumSeconds(int gradients) const;
  // Rows that workers name count for each of them.
  double UpdateSeconds(int gradients) const;

  const Scenario& scenario_;
  const Cluster& cluster_;
  const Traffic& traffic_;
  const ComputeTimes compute_times_;
  const FairLinksOptions link_options_;
  const Cluster dense_cluster_;  // hybrid: with the share of the links that the rows leave
  FairLinks links_;
  const int needed_;  // gradients for a step

  double now_ = 0;
  uint64_t next_number_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Worker> workers_;
  double processor_free_ = 0;      // of each server
  int64_t step_ = 0;               // that is open; async: updates
  bool is_chosen_ = false;         // the open step has its gradients
  std::vector<int> contributors_;  // to the open step
  std::vector<int> unanswered_;    // contributors, and who came after them before the update
  int started_ = 0;                // hybrid: workers, with the open step
  int pushing_ = 0;                // workers that have begun to push it
  double last_step_time_ = 0;
  bool is_over_ = false;
  StepLog log_;
};

}  // namespace muster::simulator
