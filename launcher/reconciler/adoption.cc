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
    task.restarts = member.restarts;
    task.port = member.port;
    task.leased = member.port != 0;
    // Where it was; where it is, its connection says.
    host.desired.data_address = member.data_address;
  }
  // Of tasks that are wanted otherwise now, it is another one that has succeeded.
  std::erase_if(record_.successes, [this](const TaskReport& success) {
    const auto found = task_index_.find(success.task);
    return found == task_index_.end() || tasks_[found->second].member < 0 ||
           tasks_[found->second].desired.spec_hash != success.spec_hash;
  });
  for (const TaskReport& success : record_.successes) {
    Task& task = tasks_[task_index_.at(success.task)];
    task.report = success;
    task.success_noted = true;
  }
  RecallIncarnations();
  for (Task& task : tasks_) {
    if (IsNew(task)) BeginJoining(task);
  }
}

void Reconciler::BeginJoining(Task& task) {
  task.displaced = true;
  for (const Departure& departure : record_.departures) {
    if (departure.task == task.desired.id) task.minimum_incarnation = departure.minimum_incarnation;
  }
}

// In place, so that all that is known of the others stays.
void Reconciler::On(const MoreDesired& event) {
  if (phase_ != Phase::kRunning || has_leavers_) return;
  for (const DesiredHost& desired : event.desired.hosts) {
    const size_t known = hosts_.size();
    Host& host = hosts_[AddHost(desired)];
    if (hosts_.size() > known) {
      host.counts = Count(host);
      totals_.Add(host.counts, 1);
      Touch(host);
    } else if (host.tasks.empty()) {
      // Of one that something of the job was on before, no more than its name may have been known.
      if (host.desired.data_address.empty()) host.desired.data_address = desired.data_address;
      host.desired.contents = desired.contents;
      host.contents_ready = host.contents_ready && desired.contents.empty();
    }
  }
  const std::vector<HostId> strays = record_.strays;
  for (const DesiredTask& desired : event.desired.tasks) {
    const auto known = task_index_.find(desired.id);
    if (known != task_index_.end()) {
      tasks_[known->second].desired.spares = desired.spares;
    } else if (elastic_) {
      AddTask(desired);
    }
  }
  if (record_.strays != strays) Persist();
  for (Host& host : hosts_) {
    if (host.given_up) PlaceElsewhere(host);
  }
}

void Reconciler::AddTask(const DesiredTask& desired) {
  const int index = static_cast<int>(tasks_.size());
  task_index_.emplace(desired.id, index);
  Host& host = hosts_[host_index_.at(desired.host)];
  Task& task = tasks_.emplace_back(Task{
      .desired = desired, .host = host_index_.at(desired.host), .missing = host.given_up, .retry_at = now_});
  BeginJoining(task);
  host.tasks.push_back(index);
  // Before anything happens there: whoever goes on with the job has to look there too.
  const bool is_member = std::ranges::any_of(
      *record_.cluster, [&](const Member& member) { return member.host == desired.host; });
  if (!is_member) AddStray(desired.host);
  // A spare one was nobody's to reach until now.
  if (host.tasks.size() == 1) BearLoss(host);
  if (host.link == Link::kDown && host.tasks.size() == 1) host.connect_at = now_;
  Touch(host);
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
  std::erase_if(record_.incarnations,
                [this](const Incarnation& each) { return !task_index_.contains(each.task); });
  IndexIncarnations();
}

}  // namespace muster::reconcile
