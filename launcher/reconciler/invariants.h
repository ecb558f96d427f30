// What must hold at every moment of a run, whatever the network and the machines do. The simulation tells
// what it sees; this never looks into the Reconciler.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "launcher/reconciler/messages.h"

namespace muster::reconcile {

class Invariants {
 public:
  // A launcher begins its life with what it wants; `replanned`: the cluster it wants is not the one before.
  void OnLaunch(const Desired& desired, bool replanned);
  void OnGrown(const Desired& desired);
  void OnEvent(const Event& event);  // delivered to the reconciler, before its Step
  void OnDecided(const View& view);  // by that Step, before its actions
  void OnAction(const Action& action);
  void OnRecordFailed(const Record& record);                                               // instead
  void OnSettled(const View& view, TimePoint next_deadline, TimePoint now, bool is_tick);  // after each Step

  // The truth about the hosts.
  void OnPortGiven(const TaskId& task, const HostId& host, uint32_t port);
  void OnSetback() { ++setbacks_; }             // what makes a new generation necessary: a lost port
  void OnStartRefused(const StartTask& start);  // by what is there
  void OnStarted(const HostId& host, const TaskReport& report);  // each incarnation
  /// It runs, or has succeeded, and is brought to this start's generation.
  void OnGoesOn(const HostId& host, const TaskReport& report, const StartTask& start);
  void OnDied(const HostId& host, const TaskReport& report);       // for good, by itself
  void OnEnded(const HostId& host, const TaskReport& report);      // each incarnation, in any way
  void OnForgotten(const HostId& host, const TaskReport& report);  // by its agent, whose folder is gone
  void OnOrphaned(const HostId& host, const TaskReport& report);   // and it runs on
  void OnOrphanEnded(const HostId& host, const TaskId& task);
  void OnOutage(const HostId& host, bool begins, TimePoint now);

  void OnBreak(const HostId& host, TimePoint now);    // of a connection
  void OnDelay(const HostId& host, TimePoint until);  // of a message, for seconds
  void OnRefused(const HostId& host) { refused_.insert(host); }

  void OnFinish(const Outcome& outcome, const Options& options, TimePoint now);
  void OnStuck();  // faults have ceased long ago, and the job has not ended
  void OnQuiet();  // all messages that were still under way have arrived

  /// The record has it, or an earlier incarnation of it.
  bool IsNoted(const TaskReport& report) const;

  const std::vector<std::string>& violations() const { return violations_; }

 private:
  void Require(bool condition, const std::string& what);
  void CheckRecord(const Record& record);
  void CheckStart(const StartTask& start);
  void CheckStop(const StopTasks& stop);
  void CheckPortsReleased(const Outcome& outcome);
  void CheckFirstCause(const Outcome& outcome);
  void CheckNothingRuns(const std::string& when);
  void Learn(const TaskReport& report);
  void NoteGang();
  bool IsToBeginAnew(const Member& member) const;
  bool HasForgotten(const HostId& host, const TaskId& task) const;
  void CheckBeginning(const HostId& host, const TaskReport& report);
  bool InPlan(const Deployment& deployment) const;
  bool HasJoined(const TaskId& task) const;

  Desired desired_;
  Record persisted_;
  bool is_unwritten_ = false;         // a later one is not
  bool is_ending_unwritten_ = false;  // nor is that it ends
  std::map<uint64_t, Cluster> clusters_;
  std::map<HostId, ConnectionId> connections_;
  std::map<HostId, std::string> addresses_;  // as this life was told
  std::set<HostId> reported_, contents_;     // in this life; `reported_` on the connection it has now
  std::set<HostId> heard_, barred_;          // in this life; barred: before it was heard, with a final answer
  std::set<HostId> given_up_, needed_;
  std::map<TaskId, HostId> places_;
  bool gang_ = false;           // all of these were there at one moment, in this life and for this cluster
  std::set<Deployment> known_;  // deployments this life was told of
  std::map<RequestId, HostId> contents_requests_;
  std::map<std::pair<HostId, TaskId>, uint32_t> ports_;
  std::set<HostId> leased_;                    // asked for a port since all of the job was last stopped there
  std::map<RequestId, HostId> stop_requests_;  // of everything on a host, in this life
  std::map<std::pair<HostId, TaskId>, TaskReport> live_;
  std::map<std::pair<HostId, TaskId>, TaskReport> newest_;   // of each host's starts of it
  std::map<std::pair<HostId, TaskId>, TaskReport> orphans_;  // run on where nobody knows of them
  std::set<std::pair<HostId, Deployment>> forgotten_;
  // Of what ran where it was forgotten, and was in the record: its next start on that host.
  struct Beginning {
    HostId host;
    std::string spec_hash;
    uint64_t base_generation = 0;
    uint32_t restarts = 0;
  };
  std::map<TaskId, Beginning> beginnings_;
  std::set<Deployment> succeeded_;
  std::map<Deployment, HostId> success_hosts_;
  std::map<TaskId, TaskReport> deaths_;  // under the newest generation
  std::map<TaskId, HostId> death_hosts_;
  std::map<HostId, TimePoint> outage_end_;  // max() while it lasts
  std::map<HostId, TimePoint> last_break_, last_delay_;
  std::map<HostId, int> breaks_;
  std::set<HostId> refused_;
  int plans_ = 0;
  int setbacks_ = 0;
  bool stop_requested_ = false;
  std::optional<Outcome> finish_;
  std::vector<std::string> violations_;
};

}  // namespace muster::reconcile
