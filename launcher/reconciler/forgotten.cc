// A host that comes back and does not know of tasks that ran there: its folder is gone, be it with its disk
// or from under them. And what is noted of tasks, so that whoever goes on with the job can tell.
#include <algorithm>

#include "launcher/reconciler/reconciler.h"
#include "launcher/reconciler/task_life.h"

namespace muster::reconcile {
namespace {

// So that of many tasks that start together the record is written once.
constexpr Duration kWriteIncarnationsAfter = std::chrono::seconds(1);

}  // namespace

// What a host knew on an older connection, or of an older launcher, it must know on a newer one.
void Reconciler::FindForgotten(Host& host) {
  for (const TaskReport& former : std::exchange(host.former, {})) {
    const auto own = task_index_.find(former.task);  // it may have come back here
    const bool is_known = host.strangers.contains(former.task) ||
                          (own != task_index_.end() && &hosts_[tasks_[own->second].host] == &host &&
                           tasks_[own->second].reported_on == host.connection);
    if (!is_known) Forget(host, former);
  }
  for (const int index : host.tasks) {
    Task& task = tasks_[index];
    if (task.displaced)
      task.leased = false;  // it may have forgotten that, too; if not, it gives the same port
    if (task.reported_on == host.connection || Succeeded(task)) continue;
    if (!task.report) task.report = std::exchange(task.noted, std::nullopt);
    if (task.report) JudgeForgotten(task);
  }
  // Before anything is stopped there, which another launcher would take for somebody's wish.
  if (phase_ == Phase::kRunning && !host.forgotten.empty()) Persist();
}

void Reconciler::JudgeForgotten(Task& task) {
  Host& host = hosts_[task.host];
  host.contents_ready = host.desired.contents.empty();
  TaskReport& report = *task.report;
  const bool was_live = Live(report);
  if (!was_live && !std::exchange(task.start_unheard, false)) return;
  Forget(host, report);
  // What it can have come to since it was heard of. Until there is another cluster, another launcher takes
  // that one for forgotten, and what its host may tell after all for older.
  const uint32_t newest = std::max(task.minimum_incarnation, report.incarnation) + kMostRestarts;
  task.minimum_incarnation = newest + kMostRestarts + 1;
  report.state = TaskState::kLost;
  NoteIncarnation(task, newest);
  report.reason =
      absl::StrFormat("%s no longer knows of %s: its folder is gone", host.desired.id, report.task);
  if (phase_ != Phase::kRunning || task.missing || task.displaced) return;
  if (!was_live || !SinceBase(task)) return StartAnew(task);  // it was to be replaced anyway
  if (EndIfWorkIsDone()) return;
  const int most = task.desired.max_restarts;
  if (task.desired.needs_its_folder) {
    report.reason += ", and what it had kept there";
    return FailTask(task, FailureExitCode(report), FailureText(report));
  }
  if (most < 0 || report.restarts < static_cast<uint32_t>(most)) {
    task.restarts = report.restarts + 1;
    return StartAnew(task);
  }
  if (most > 0) report.reason += absl::StrFormat("; its %d restarts are used up", most);
  task.missing = task.desired.can_fail;
  if (!task.missing) FailTask(task, FailureExitCode(report), FailureText(report));
}

void Reconciler::Forget(Host& host, const TaskReport& report) {
  host.may_run = true;
  const Deployment deployment = DeploymentOf(report);
  if (std::ranges::find(host.forgotten, deployment) == host.forgotten.end())
    host.forgotten.push_back(deployment);
}

bool Reconciler::MayRunForgotten(const Task& task) const {
  return std::ranges::find(hosts_[task.host].forgotten, task.desired.id, &Deployment::task) !=
         hosts_[task.host].forgotten.end();
}

// The host gives it a port once more, which may be another one.
void Reconciler::StartAnew(Task& task) {
  task.displaced = true;
  task.missing = task.leased = false;
  task.attempts = 0;
}

void Reconciler::NoteIncarnation(Task& task, uint32_t number) {
  const TaskReport& report = *task.report;
  if (phase_ != Phase::kRunning || task.member < 0) return;
  const bool has_ended = !Live(report) && report.state != TaskState::kLost;
  const Incarnation heard{report.task, report.spec_hash, number, report.restarts, has_ended};
  if (task.note < 0) {
    task.note = static_cast<int>(record_.incarnations.size());
    record_.incarnations.emplace_back();
  }
  if (std::exchange(record_.incarnations[task.note], heard) == heard) return;
  if (!persist_at_) persist_at_ = now_ + kWriteIncarnationsAfter;
}

// By a launcher that goes on with the cluster in force.
void Reconciler::RecallIncarnations() {
  IndexIncarnations();
  std::map<TaskId, const Member*> members;
  for (const Member& member : *record_.cluster) members.emplace(member.task, &member);
  for (const Incarnation& last : record_.incarnations) {
    const auto member = members.find(last.task);
    if (member == members.end()) continue;
    // Where a much later one was to be started, this one was lost, which is known.
    const bool is_lost = last.number + kMostRestarts < member->second->minimum_incarnation;
    const TaskReport noted{.task = last.task,
                           .state = last.has_ended ? TaskState::kFailed : TaskState::kRunning,
                           .generation = last.has_ended ? 0 : record_.base_generation,
                           .spec_hash = last.spec_hash,
                           .incarnation = last.number,
                           .restarts = last.restarts};
    const auto known = task_index_.find(last.task);
    if (known == task_index_.end()) {
      if (!is_lost && !last.has_ended) hosts_[host_index_.at(member->second->host)].former.push_back(noted);
      continue;
    }
    Task& task = tasks_[known->second];
    if (last.spec_hash != task.desired.spec_hash) task.restarts = 0;
    if (!is_lost && !task.report) task.noted = noted;
  }
}

void Reconciler::IndexIncarnations() {
  for (Task& task : tasks_) task.note = -1;
  for (size_t i = 0; i < record_.incarnations.size(); ++i) {
    const auto found = task_index_.find(record_.incarnations[i].task);
    if (found != task_index_.end()) tasks_[found->second].note = static_cast<int>(i);
  }
}

}  // namespace muster::reconcile
