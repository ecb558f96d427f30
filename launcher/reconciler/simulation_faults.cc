// What goes wrong in a simulation: hosts that crash, move, are cut off or forget all that ran there, and the
// rest, at times that the seed says.
#include "launcher/reconciler/simulation.h"
#include "launcher/reconciler/task_life.h"

namespace muster::reconcile {
namespace {

constexpr int64_t kBusyMs = 12'000;  // more than a request or an attempt to connect may take

}  // namespace

void Simulation::CrashHost(const HostId& host) {
  Agent& agent = agents_[host];
  if (!agent.up) return;
  Note("host crashes", host);
  agent.up = false;
  invariants_.OnOutage(host, true, now_);
  Break(host, Between(0, 3000));
  for (auto& [id, task] : agent.tasks) {
    if (!Live(task.report)) continue;
    task.run = ++runs_;  // its process is gone; nobody has written down how it ended
    invariants_.OnEnded(host, task.report);
  }
  for (const auto& [id, orphan] : agent.orphans) invariants_.OnOrphanEnded(host, id);
  agent.orphans.clear();
  if (Chance(0.3)) return Note("host stays away", host);
  const bool is_empty = Chance(0.3);
  After(Between(1000, 40000), [=, this] {
    Agent& agent = agents_[host];
    Note("host returns", host);
    if (is_empty) EmptyHost(host, false);
    agent.up = true;
    if (agent.reachable) invariants_.OnOutage(host, false, now_);
    for (auto& [id, task] : agent.tasks) {
      if (Live(task.report)) Exit(agent, task, task.report.stopped ? 143 : 137);
    }
  });
}

// Its folder is gone: with its disk, or from under its tasks, which live on. Of those that nobody has heard
// of nobody can know, so they end.
void Simulation::EmptyHost(const HostId& host, bool tasks_live_on) {
  Agent& agent = agents_[host];
  Note("host is empty", host);
  invariants_.OnOutage(host, true, now_);
  if (agent.up && agent.reachable) invariants_.OnOutage(host, false, now_);
  for (auto& [id, task] : agent.tasks) {
    invariants_.OnForgotten(host, task.report);
    if (!Live(task.report)) continue;
    invariants_.OnEnded(host, task.report);
    if (!tasks_live_on || task.report.state == TaskState::kRestarting || !invariants_.IsNoted(task.report))
      continue;
    Note("orphaned", id + " on " + host);
    agent.orphans[id] = task.report;
    invariants_.OnOrphaned(host, task.report);
  }
  agent.tasks.clear();
  agent.leases.clear();
  agent.minimum_generation = 0;
  ++agent.folder;
  invariants_.OnSetback();
  Break(host, Between(0, 3000));
}

void Simulation::CutHost(const HostId& host) {
  Agent& agent = agents_[host];
  if (!agent.reachable) return;
  Note("host cut off", host);
  agent.reachable = false;
  invariants_.OnOutage(host, true, now_);
  Break(host, Between(0, 3000));
  After(Between(1000, 80000), [=, this] {
    agents_[host].reachable = true;
    if (agents_[host].up) invariants_.OnOutage(host, false, now_);
  });
}

// Its tasks live on. What was on its way to it or from it may still arrive.
void Simulation::MoveHost(const HostId& host) {
  agents_[host].address = absl::StrFormat("10.0.1.%d", ++moves_);
  Note("host moves", host + " to " + agents_[host].address);
  invariants_.OnSetback();
  Break(host, Between(0, 3000));
  After(Between(0, 5000), [=, this] { Feed(life_, HostSighted{host}); });
}

void Simulation::ScheduleFaults() {
  auto any_host = [this] { return desired_.hosts[random_.NextBelow(desired_.hosts.size())].id; };
  auto some = [&](double chance, const std::function<void()>& fault) {
    if (Chance(chance)) After(Between(0, kFaultsMs), fault);
  };
  for (int i = 0; i < 2; ++i) {
    some(0.15, [=, this] { CrashHost(any_host()); });
    some(0.1, [=, this] {
      const HostId host = any_host();
      EmptyHost(host, agents_[host].up && Chance(0.5));
    });
    some(0.2, [=, this] { CutHost(any_host()); });
    some(0.2, [=, this] { MoveHost(any_host()); });
    some(0.1, [=, this] { Feed(life_, HostSighted{any_host()}); });
    some(0.5, [=, this] { Break(any_host(), Between(0, 3000)); });  // a daemon restart looks like this
    some(desired_.elastic ? 0.7 : 0.4, [this] { KillLauncher(); });
    some(0.3, [this] { Grow(); });
  }
  some(0.1, [this] {
    Note("servers move");
    invariants_.OnSetback();
    Feed(life_, ServersMoved{});
  });
  some(0.3, [this] { disk_full_until_ = now_ + std::chrono::milliseconds(Between(1000, 7000)); });
  // A first start and an end are bounded, whoever is late. What happens at its last moment comes before its
  // end.
  some(0.3, [this] {
    if (record_.generation == 0) return;
    Note("driver busy");
    busy_until_ = now_ + std::chrono::milliseconds(Between(1000, kBusyMs)) + std::chrono::microseconds(500);
    for (const auto& [host, agent] : agents_) invariants_.OnDelay(host, busy_until_);
  });
  some(0.25, [this] {
    Note("stop requested");
    Feed(life_, StopRequested{});
  });
}

}  // namespace muster::reconcile
