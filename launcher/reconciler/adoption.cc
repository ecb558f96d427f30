// A cluster that is in force when a launcher begins: whether it goes on, who joins it, and who leaves it.
#include <algorithm>

#include "launcher/reconciler/reconciler.h"
#include "launcher/reconciler/task_life.h"

namespace muster::reconcile {

bool Reconciler::Adoptable() const {
  if (!record_.fixed) return false;
  size_t known = 0;
  for (const Member& member : *record_.cluster) {
    const auto found = task_index_.find(member.task);
    if (found == task_index_.end()) continue;
    const DesiredTask& task = tasks_[found->second].desired;
    if (member.host != task.host || (member.port != 0) != task.needs_port) return false;
    ++known;
  }
  const bool are_all = known == record_.cluster->size() && known == tasks_.size();
  return are_all || (elastic_ && known > 0);
}

// What is in force, and what differs from it.
void Reconciler::Adopt() {
  for (size_t i = 0; i < record_.cluster->size(); ++i) {
    const Member& member = (*record_.cluster)[i];
    Host& host = hosts_[host_index_.at(member.host)];
    const auto found = task_index_.find(member.task);
    if (found == task_index_.end()) {
      has_leavers_ = true;
      // Once the cluster does not say so, nobody else would look there.
      if (!host.tasks.empty()) continue;
      host.unheard = host.stray = true;
      persist_first_ = AddStray(member.host) || persist_first_;
      continue;
    }
    Task& task = tasks_[found->second];
    task.member = static_cast<int>(i);
    task.minimum_incarnation = member.minimum_incarnation;
    task.port = member.port;
    task.leased = member.port != 0;
    // Where it was; where it is, its connection says.
    host.desired.data_address = member.data_address;
  }
  for (Task& task : tasks_) {
    if (!IsNew(task)) continue;
    task.displaced = true;
    for (const Departure& departure : record_.departures) {
      if (departure.task == task.desired.id) task.minimum_incarnation = departure.minimum_incarnation;
    }
  }
}

bool Reconciler::AddStray(const HostId& host) {
  if (std::ranges::find(record_.strays, host) != record_.strays.end()) return false;
  record_.strays.push_back(host);
  return true;
}

// It may come back, on another host, while what ran here is only cut off.
void Reconciler::NoteDepartures() {
  for (const Member& member : *record_.cluster) {
    if (task_index_.contains(member.task)) continue;
    std::erase_if(record_.departures,
                  [&](const Departure& departure) { return departure.task == member.task; });
    record_.departures.push_back({member.task, member.minimum_incarnation + kMostRestarts + 1});
  }
}

}  // namespace muster::reconcile
