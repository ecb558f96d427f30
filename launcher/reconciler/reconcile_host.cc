// What is done to one host. Level-triggered: each call looks at what is and asks for what is missing and not
// yet asked for, so that nothing depends on which event came before.
#include <algorithm>

#include "launcher/reconciler/reconciler.h"
#include "launcher/reconciler/task_life.h"

namespace muster::reconcile {
void Reconciler::ReconcileHost(Host& host) {
  if (Idle(host)) return;
  CheckDeadlines(host);
  // Deadlines may have ended the job.
  const bool wanted = phase_ == Phase::kEnding ? NeedsStop(host) : !host.refused;
  if (host.link == Link::kDown && wanted && !host.refused && now_ >= host.connect_at) {
    host.link = Link::kConnecting;
    host.connection = ++last_id_;
    host.connect_at = now_ + ConnectAttempt();
    if (host.lost_since && phase_ != Phase::kEnding && Matters(host)) {
      host.connect_at = std::min(host.connect_at, LostLimit(host));
    }
    actions_.push_back(Connect{host.desired.id, host.connection, host.connect_at});
  }
  if (host.link != Link::kUp || !host.reported || is_held_) return;
  switch (phase_) {
    case Phase::kGathering:
      GatherHost(host);
      break;
    case Phase::kRunning:
      RunHost(host);
      break;
    case Phase::kEnding:
      if (stopping_ && NeedsStop(host)) StopAll(host);
      break;
    case Phase::kFinished:
      break;
  }
  // It has answered all that it was asked for, though perhaps by a report.
  if (host.requests.empty()) NoteProgress(host);
}

void Reconciler::CheckDeadlines(Host& host) {
  if (host.link == Link::kConnecting && judged_at_ >= host.connect_at) {
    LoseConnection(host, DeadlineExceeded("%s: no connection within its deadline", host.desired.id));
  }
  const bool silent = std::any_of(host.requests.begin(), host.requests.end(),
                                  [this](const Request& request) { return judged_at_ >= request.deadline; });
  if (silent) {
    ++host.silences;
    LoseConnection(host, DeadlineExceeded("%s: connected, but a request got no answer", host.desired.id));
    host.connect_at = now_;
  }
  if (phase_ == Phase::kEnding || !Matters(host)) return;
  if (host.silences >= options_.max_silences) {
    host.refused = true;
    host.last_error = Unavailable("%s: %d requests in a row got no answer", host.desired.id, host.silences);
  }
  if (host.lost_since && judged_at_ >= LostLimit(host)) host.refused = true;
  if (host.refused && (EndIfWorkIsDone() || PlaceElsewhere(host) || LeaveBehind(host))) return;
  if (host.refused && CanDoWithout(host)) return GiveUp(host);
  // A first start waits for the verdict on the other hosts: Advance.
  if (host.refused && (phase_ == Phase::kRunning || record_.generation > 0)) FailUnreachable();
}

void Reconciler::EnsureHostContents(Host& host) {
  if (host.contents_ready || host.tasks.empty() || Asked(host, Ask::kContents) || now_ < host.retry_at)
    return;
  const Request& request = AddRequest(host, Ask::kContents, -1, options_.contents_timeout);
  actions_.push_back(EnsureContents{request.id, host.desired.id, host.desired.contents});
}

void Reconciler::GatherHost(Host& host) {
  EnsureHostContents(host);
  if (host.may_run) return StopAll(host);
  for (const int index : host.tasks) LeaseForTask(host, index);
}

void Reconciler::LeaseForTask(Host& host, int index) {
  const Task& task = tasks_[index];
  if (!task.desired.needs_port || task.leased || now_ < task.retry_at || Asked(host, Ask::kLease, index))
    return;
  std::vector<uint32_t> avoid;
  for (const LostPort& lost : record_.lost_ports) {
    if (lost.host == host.desired.id) avoid.push_back(lost.port);
  }
  host.may_lease = true;
  if (!std::exchange(record_.leasing, true)) Persist();
  const Request& request = AddRequest(host, Ask::kLease, index, options_.request_timeout);
  actions_.push_back(
      LeasePort{request.id, host.desired.id, task.desired.id, host.desired.data_address, std::move(avoid)});
}

void Reconciler::RunHost(Host& host) {
  EnsureHostContents(host);
  if (!gang_complete_) return;
  std::vector<Deployment> outdated;
  for (const auto& [id, report] : host.strangers) {
    // As long as the cluster says that it runs here, another launcher would take its end for somebody's wish.
    const auto known = task_index_.find(id);
    if (known == task_index_.end() ? has_leavers_ : tasks_[known->second].displaced) continue;
    if (Live(report)) outdated.push_back(DeploymentOf(report));
  }
  outdated.insert(outdated.end(), host.forgotten.begin(), host.forgotten.end());
  bool keep_ports = false;
  for (const int index : host.tasks) {
    Task& task = tasks_[index];
    if (MayRunForgotten(task)) continue;
    if (task.displaced) {
      if (!task.missing) LeaseForTask(host, index);
      continue;
    }
    // Who leaves, or has just moved, may be at another address than the cluster says.
    if (Current(task) || Succeeded(task) || has_leavers_) continue;
    const bool goes_on = task.desired.follows_cluster && SinceBase(task);
    if (task.report && Live(*task.report) && !goes_on) {
      keep_ports = true;
      outdated.push_back(DeploymentOf(*task.report));
    } else if (host.contents_ready && !moved_at_ && now_ >= task.retry_at &&
               !Asked(host, Ask::kStart, index)) {
      host.may_run = true;
      Request& request = AddRequest(host, Ask::kStart, index, options_.start_timeout);
      request.deployment = {task.desired.id, record_.generation, task.desired.spec_hash};
      actions_.push_back(StartTask{
          request.id, host.desired.id, task.desired.id, record_.generation, record_.base_generation,
          task.desired.follows_cluster, task.desired.spec_hash, record_.cluster,
          std::max(task.minimum_incarnation, task.report ? task.report->incarnation + 1 : 0), task.restarts});
    }
  }
  if (outdated.empty() || now_ < host.retry_at || Asked(host, Ask::kStopSome)) return;
  Request& request = AddRequest(host, Ask::kStopSome, -1, options_.stop_grace + options_.request_timeout);
  request.targets = outdated;
  actions_.push_back(
      StopTasks{request.id, host.desired.id, std::move(outdated), 0, keep_ports, options_.stop_grace});
}

void Reconciler::StopAll(Host& host) {
  if (Asked(host, Ask::kStopAll) || now_ < host.retry_at) return;
  // What is still under way for the host no longer matters, and nobody shall wait for it.
  std::erase_if(host.requests,
                [](const Request& r) { return r.ask == Ask::kStart || r.ask == Ask::kStopSome; });
  Request& request = AddRequest(host, Ask::kStopAll, -1, options_.stop_grace + options_.request_timeout);
  request.below = record_.generation + 1;
  actions_.push_back(StopTasks{request.id, host.desired.id, {}, request.below, false, options_.stop_grace});
}

Reconciler::Request& Reconciler::AddRequest(Host& host, Ask ask, int task, Duration timeout) {
  return host.requests.emplace_back(Request{++last_id_, ask, task, now_ + timeout});
}

bool Reconciler::Asked(const Host& host, Ask ask, int task) const {
  return std::any_of(host.requests.begin(), host.requests.end(),
                     [&](const Request& request) { return request.ask == ask && request.task == task; });
}

void Reconciler::LoseConnection(Host& host, const absl::Status& status) {
  host.link = Link::kDown;
  if (phase_ == Phase::kEnding) ++host.lost_while_ending;
  host.logged_in_at = {};
  host.reported = false;
  for (const Request& request : host.requests) {
    if (request.ask != Ask::kStart) continue;
    Task& task = tasks_[request.task];
    task.start_unheard = task.reported_on == host.connection;
  }
  host.requests.clear();
  host.last_error = status;
  if (!host.lost_since) host.lost_since = now_;
  const bool is_final = !WorthTryingAgain(status) && !WasThere(host);
  host.refused = !host.given_up && !Bystander(host) && (host.refused || is_final);
  host.connect_at = now_ + Backoff(++host.failed_connects, host.desired.id);
  if (persist_at_) persist_at_ = now_;  // what it has said it may never say again
  Touch(host);
}

// An end is shorter than a usual attempt, and has to leave time for a second one.
Duration Reconciler::ConnectAttempt() const {
  const Duration attempt = phase_ == Phase::kEnding ? options_.stop_deadline / 3 : options_.connect_attempt;
  return std::min(options_.connect_attempt, attempt);
}

Duration Reconciler::Backoff(int failures, const std::string& salt) const {
  const int doublings = std::min(failures - 1, 20);
  const Duration base =
      std::min<Duration>(options_.backoff_first * (int64_t{1} << doublings),
                         phase_ == Phase::kEnding ? options_.stop_deadline / 8 : options_.backoff_limit);
  RandomStream random(std::hash<std::string>{}(salt), static_cast<uint64_t>(failures));
  return std::chrono::duration_cast<Duration>(base * (0.75 + 0.5 * random.NextDouble()));
}

TimePoint Reconciler::LostLimit(const Host& host) const {
  // A host that was there is worth waiting for longer than one of which that is not known.
  const bool is_in_cluster = record_.generation > 0 && (host.tasks.empty() || HasMembers(host));
  return std::max({*host.lost_since - host.lost_for, host.heard_at, host.logged_in_at}) +
         (is_in_cluster ? options_.lost_deadline : options_.connect_deadline);
}

bool Reconciler::HasMembers(const Host& host) const {
  return std::any_of(host.tasks.begin(), host.tasks.end(), [&](int index) {
    const Task& task = tasks_[index];
    return !task.displaced || (task.member >= 0 && (*record_.cluster)[task.member].host == host.desired.id);
  });
}

// A refusal by such a host may pass: its home may not be mounted yet.
bool Reconciler::WasThere(const Host& host) const {
  return host.reported_once || (phase_ == Phase::kRunning && HasMembers(host));
}

TimePoint Reconciler::WakeTime(const Host& host) const {
  TimePoint wake = TimePoint::max();
  if (Idle(host)) return wake;
  auto at = [&](TimePoint when) { wake = when > judged_at_ ? std::min(wake, when) : wake; };
  if (phase_ == Phase::kFinished) return wake;
  const bool ending = phase_ == Phase::kEnding;
  if (host.link == Link::kConnecting ||
      (host.link == Link::kDown && !host.refused && (!ending || NeedsStop(host)))) {
    at(host.connect_at);
  }
  for (const Request& request : host.requests) at(request.deadline);
  if (!ending && host.lost_since && Matters(host)) at(LostLimit(host));
  at(host.retry_at);
  if (!ending) {
    for (const int index : host.tasks) at(tasks_[index].retry_at);
  }
  return wake;
}

Reconciler::Counts Reconciler::Count(const Host& host) const {
  Counts counts;
  if (Idle(host)) return counts;
  const bool awaited = !host.given_up && !Bystander(host) && !HasSucceeded(host);
  counts.not_ready = !Ready(host) && awaited;
  counts.refused = host.refused;
  counts.undecided = !Ready(host) && !host.refused && awaited;
  counts.may_run = host.may_run && awaited;
  counts.connecting = host.link == Link::kConnecting && awaited;
  counts.unstopped = NeedsStop(host) && !host.refused;
  const bool stays_lost = host.given_up || (host.lost_since && judged_at_ >= LostLimit(host));
  counts.unstopped_lost = counts.unstopped && stays_lost;
  for (const int index : host.tasks) {
    const Task& task = tasks_[index];
    counts.unleased += task.desired.needs_port && !task.leased;
    counts.unfinished += !task.desired.ends_with_others && !Succeeded(task) && !task.missing;
    counts.missing += task.missing && !IsNew(task) && !task.desired.can_fail;
    counts.displaced += task.displaced && !task.missing;
    counts.unplaced += task.displaced && !task.missing &&
                       (!Ready(host) || MayRunForgotten(task) || (task.desired.needs_port && !task.leased));
  }
  return counts;
}

void Reconciler::Counts::Add(const Counts& other, int sign) {
  not_ready += sign * other.not_ready;
  undecided += sign * other.undecided;
  refused += sign * other.refused;
  may_run += sign * other.may_run;
  unleased += sign * other.unleased;
  unfinished += sign * other.unfinished;
  unstopped += sign * other.unstopped;
  missing += sign * other.missing;
  displaced += sign * other.displaced;
  unplaced += sign * other.unplaced;
  unstopped_lost += sign * other.unstopped_lost;
  connecting += sign * other.connecting;
}

void Reconciler::Touch(Host& host) {
  const int index = static_cast<int>(&host - hosts_.data());
  if (host.wake != TimePoint::max()) timers_.erase({std::exchange(host.wake, TimePoint::max()), index});
  if (!std::exchange(host.dirty, true)) dirty_.push_back(index);
}

void Reconciler::TouchAll() {
  for (Host& host : hosts_) Touch(host);
}

TimePoint Reconciler::NextDeadline() const {
  TimePoint next = TimePoint::max();
  if (finished()) return next;
  if (!dirty_.empty()) return now_;  // before the first Step
  if (!timers_.empty()) next = timers_.begin()->first;
  if (persist_at_) next = std::min(next, *persist_at_);
  if (phase_ == Phase::kRunning && moved_at_) next = std::min(next, MovesUntil());
  if (phase_ != Phase::kEnding) return std::min(next, RunDeadline());
  return std::min({next, give_up_at_, stopping_ ? TimePoint::max() : stop_from_});
}

TimePoint Reconciler::RunDeadline() const {
  return gang_complete_ ? run_deadline_ : std::max(run_deadline_, hear_until_);
}

bool Reconciler::IsNew(const Task& task) const { return record_.fixed && task.member < 0; }

bool Reconciler::SinceBase(const Task& task) const {
  return record_.fixed && task.report && task.report->generation >= record_.base_generation &&
         task.report->spec_hash == task.desired.spec_hash;
}

bool Reconciler::Current(const Task& task) const {
  return SinceBase(task) && task.report->generation == record_.generation;
}

bool Reconciler::Succeeded(const Task& task) const {
  return SinceBase(task) && task.report->state == TaskState::kSucceeded;
}

bool Reconciler::Done(const Task& task) const {
  return Succeeded(task) || (Current(task) && !Live(*task.report) && !task.displaced);
}

bool Reconciler::Died(const Task& task) const {
  return Current(task) && task.report->state == TaskState::kFailed && !task.report->stopped;
}

bool Reconciler::Ready(const Host& host) const {
  return host.link == Link::kUp && host.reported && (host.contents_ready || host.tasks.empty());
}

bool Reconciler::Matters(const Host& host) const {
  if (host.given_up || Bystander(host) || HasSucceeded(host)) return false;
  return phase_ == Phase::kGathering || (phase_ == Phase::kRunning && !gang_complete_) ||
         std::any_of(host.tasks.begin(), host.tasks.end(),
                     [this](int index) { return !Done(tasks_[index]); });
}

// Nothing of it is wanted any more, also where it was never heard by this launcher.
bool Reconciler::HasSucceeded(const Host& host) const {
  return phase_ == Phase::kRunning && !host.tasks.empty() &&
         std::ranges::all_of(host.tasks, [this](int index) { return Succeeded(tasks_[index]); });
}

bool Reconciler::Bystander(const Host& host) const { return host.stray && host.tasks.empty(); }

bool Reconciler::Idle(const Host& host) const {
  return host.tasks.empty() && !host.may_run && !host.may_lease && !host.given_up && !host.refused &&
         host.link == Link::kDown;
}

bool Reconciler::NeedsStop(const Host& host) const {
  if (!(host.may_run || host.may_lease) || phase_ != Phase::kEnding) return false;
  // After a success there is nothing to fence off: all tasks have been started once and have ended, and their
  // ports with them. Of a host that only an earlier launcher heard, nobody knows what else there is.
  const bool quiet =
      record_.ending->result == Result::kSucceeded && !host.unheard && host.reported_once &&
      host.forgotten.empty() && !(host.tasks.empty() && host.may_lease) &&
      std::all_of(host.tasks.begin(), host.tasks.end(), [this](int index) { return Done(tasks_[index]); }) &&
      std::none_of(host.strangers.begin(), host.strangers.end(),
                   [](const auto& stranger) { return Live(stranger.second); });
  return !quiet;
}

}  // namespace muster::reconcile
