// A host that stays lost: its tasks go to a spare one, or the job does without them until it returns.
#include <algorithm>

#include "launcher/reconciler/reconciler.h"
#include "launcher/reconciler/task_life.h"

namespace muster::reconcile {

bool Reconciler::CanDoWithout(const Host& host) const {
  int missing = totals_.missing;
  for (const int index : host.tasks) {
    const Task& task = tasks_[index];
    if (Succeeded(task) || task.missing || IsNew(task) || task.desired.can_fail) continue;
    if (!task.desired.can_be_missing) return false;
    ++missing;
  }
  return phase_ == Phase::kRunning && missing <= max_missing_;
}

void Reconciler::GiveUp(Host& host) {
  // It is let in with its next connection.
  if (host.link != Link::kDown) LoseConnection(host, host.last_error);
  host.given_up = true;
  host.refused = false;
  host.silences = 0;
  host.attempts = 0;
  for (const int index : host.tasks) tasks_[index].missing = !Succeeded(tasks_[index]);
  const Duration cooldown = options_.cooldown_first * (int64_t{1} << std::min(host.times_given_up++, 20));
  host.connect_at = now_ + std::min(cooldown, options_.cooldown_limit);
  Touch(host);
}

Reconciler::Host* Reconciler::FindSpare(const std::vector<int>& tasks) {
  for (const HostId& id : tasks_[tasks.front()].desired.spares) {
    Host& spare = hosts_[host_index_.at(id)];
    const bool suits_all = std::all_of(tasks.begin(), tasks.end(), [&](int index) {
      const std::vector<HostId>& spares = tasks_[index].desired.spares;
      return std::find(spares.begin(), spares.end(), id) != spares.end();
    });
    if (suits_all && spare.tasks.empty() && !spare.given_up && !spare.refused) return &spare;
  }
  return nullptr;
}

// Then there is nothing to do elsewhere, and what a host that stays lost has made can only be fetched from
// there.
bool Reconciler::EndIfWorkIsDone() {
  if (phase_ != Phase::kRunning) return false;
  const auto last = std::ranges::find_if(
      tasks_, [this](const Task& task) { return task.desired.ends_last && Succeeded(task); });
  if (last == tasks_.end()) return false;
  BeginEnding({.result = Result::kSucceeded,
               .message = absl::StrFormat("all tasks succeeded, as %s says", last->desired.id)});
  return true;
}

bool Reconciler::PlaceElsewhere(Host& host) {
  std::vector<int> moving;
  std::vector<int> staying;
  for (const int index : host.tasks) (Succeeded(tasks_[index]) ? staying : moving).push_back(index);
  if (phase_ != Phase::kRunning || moving.empty()) return false;
  Host* const spare = FindSpare(moving);
  if (spare == nullptr) return false;
  // Before anything happens there: whoever goes on with the job has to look there too.
  for (const HostId& id : {host.desired.id, spare->desired.id}) AddStray(id);
  Persist();
  for (const int index : moving) {
    Task& task = tasks_[index];
    // More than its old host can have come to, which may only be cut off, or to whatever it was told before.
    const std::optional<TaskReport>& last = task.report ? task.report : task.noted;
    task.minimum_incarnation =
        std::max(task.minimum_incarnation, last ? last->incarnation : 0) + kMostRestarts + 1;
    // What is displaced has been counted already.
    if (last && last->spec_hash == task.desired.spec_hash && !task.displaced) task.restarts = last->restarts;
    if (last && Live(*last)) host.former.push_back(*last);
    task.report.reset();
    task.noted.reset();
    task.host = host_index_.at(spare->desired.id);
    task.desired.host = spare->desired.id;
    task.displaced = true;
    task.missing = task.leased = false;
    task.attempts = 0;
  }
  host.tasks = std::move(staying);
  GiveUp(host);
  host.unheard = host.stray = true;
  spare->tasks = std::move(moving);
  BearLoss(*spare);
  if (spare->link == Link::kDown) spare->connect_at = now_;
  Touch(*spare);
  return true;
}

// Of one that the next cluster has no task on only an end is awaited, of what it ran. As of a lost host whose
// tasks are elsewhere, it is stopped at the next contact.
bool Reconciler::LeaveBehind(Host& host) {
  if (phase_ != Phase::kGathering || record_.generation == 0 || !host.tasks.empty()) return false;
  AddStray(host.desired.id);
  Persist();
  GiveUp(host);
  host.unheard = host.stray = true;
  return true;
}

// As if it were lost only now, if it is.
void Reconciler::BearLoss(Host& host) {
  if (host.lost_since) host.lost_since = now_;
  host.lost_for = {};
}

void Reconciler::LetIn(Host& host) {
  host.given_up = false;
  host.lost_for = {};
  host.contents_ready = host.desired.contents.empty();  // it may have been away with its disk
  bool any_dead = false;
  for (const int index : host.tasks) {
    Task& task = tasks_[index];
    if (!task.missing) continue;
    task.missing = SinceBase(task) && !Live(*task.report) && !Succeeded(task);
    any_dead = any_dead || task.missing;
  }
  // An agent starts nothing twice for one generation. Tasks that do not follow would pay for the next one
  // with a restart: they go on without what died.
  const bool all_follow = std::all_of(tasks_.begin(), tasks_.end(), [this](const Task& task) {
    return task.desired.follows_cluster || Succeeded(task);
  });
  if (!any_dead || !all_follow || phase_ != Phase::kRunning) return;
  bool is_known = false;  // any of them, to the host
  for (const int index : host.tasks) {
    Task& task = tasks_[index];
    if (!task.missing) continue;
    if (MayRunForgotten(task) || task.displaced) {
      StartAnew(task);
    } else {
      is_known = true;
    }
  }
  if (is_known) FixCluster();
}

}  // namespace muster::reconcile
