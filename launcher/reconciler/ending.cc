// How a job ends: who asks, the outcome, the first cause and its consequences; and the view for tables.
#include <algorithm>

#include "launcher/reconciler/reconciler.h"
#include "launcher/reconciler/task_life.h"

namespace muster::reconcile {
namespace {

std::string Join(const std::vector<std::string>& parts) {
  std::string joined;
  for (const std::string& part : parts) joined += (joined.empty() ? "" : "; ") + part;
  return joined;
}

}  // namespace

int FailureExitCode(const TaskReport& report) {
  return report.state == TaskState::kLost || report.exit_code <= 0 ? kUnreachableExitCode : report.exit_code;
}

std::string FailureText(const TaskReport& report) {
  const std::string how = report.reason.empty() ? TaskStateName(report.state) : report.reason;
  if (report.state == TaskState::kLost) return how;
  return absl::StrFormat("%s (exit code %d, after %d restarts)", how, report.exit_code, report.restarts);
}

void Reconciler::BeginEnding(Outcome outcome) {
  if (phase_ == Phase::kEnding || phase_ == Phase::kFinished) return;
  phase_ = Phase::kEnding;
  const bool success = outcome.result == Result::kSucceeded;
  stopping_ = !success;
  const bool servers = std::any_of(tasks_.begin(), tasks_.end(),
                                   [](const Task& task) { return task.desired.ends_with_others; });
  stop_from_ = success && servers ? now_ + options_.server_grace : now_;
  give_up_at_ = stop_from_ + options_.stop_deadline;
  record_.ending = std::move(outcome);
  Persist();
  for (Host& host : hosts_) {
    host.retry_at = now_;
    host.failed_connects = 0;
    // It may only not have answered in time.
    host.refused = host.refused && !WorthTryingAgain(host.last_error) && !WasThere(host);
    // What only a start would have needed is waited for no longer.
    std::erase_if(host.requests,
                  [](const Request& r) { return r.ask == Ask::kContents || r.ask == Ask::kLease; });
    if (host.link == Link::kDown) host.connect_at = std::min(host.connect_at, now_ + options_.backoff_first);
    if (host.link == Link::kConnecting)
      host.connect_at = std::min(host.connect_at, now_ + options_.stop_deadline / 3);
  }
  TouchAll();
}

void Reconciler::FailTask(Task& task, int exit_code, const std::string& why) {
  BeginEnding({.result = Result::kFailed,
               .exit_code = exit_code,
               .message = absl::StrFormat("%s on %s failed: %s", task.desired.id, task.desired.host, why),
               .first_cause = Casualty{task.desired.id, task.desired.host, why}});
}

void Reconciler::FailUnreachable() {
  std::vector<std::string> reasons;
  std::optional<Casualty> first;
  for (const Host& host : hosts_) {
    const bool down = phase_ == Phase::kGathering && host.link != Link::kUp;
    if (!Matters(host) || Idle(host) || !(host.refused || down)) continue;
    reasons.push_back(host.last_error.ok() ? host.desired.id + ": no answer"
                                           : std::string(host.last_error.message()));
    for (const int index : host.tasks) {
      if (first || Done(tasks_[index])) continue;
      first = {tasks_[index].desired.id, host.desired.id, "lost with its host"};
    }
  }
  const bool started = record_.generation > 0;
  BeginEnding(
      {.result = Result::kFailed,
       .exit_code = kUnreachableExitCode,
       .message =
           (started ? "host lost: " : "nothing was started, because a host was not reached: ") +
           Join(reasons) +
           (totals_.missing > 0 ? absl::StrFormat("; %d tasks were missing already", totals_.missing) : ""),
       .first_cause = started ? first : std::nullopt});
}

void Reconciler::Supersede(const Host& host, const TaskReport& report) {
  BeginEnding({.result = Result::kFailed,
               .exit_code = 1,
               .message = absl::StrFormat(
                   "another muster has taken this job over: %s on %s has generation %d, this one %d; "
                   "look at it with `muster show`",
                   report.task, host.desired.id, report.generation, record_.generation)});
  // Its tasks and ports are not ours to stop and release.
  for (Host& each : hosts_) each.may_run = each.may_lease = false;
}

// The job has been on since this record was written: its tasks may be on any host that can have them.
void Reconciler::LookEverywhere() {
  for (Host& host : hosts_) {
    host.may_run = host.may_lease = true;
    host.unheard = host.unheard || !host.reported_once;
    if (host.link == Link::kDown) host.connect_at = std::min(host.connect_at, now_);
  }
  give_up_at_ = std::max(give_up_at_, now_ + options_.connect_attempt + options_.stop_deadline);
  TouchAll();
}

void Reconciler::On(const StopRequested&) {
  stop_requested_ = true;
  if (phase_ == Phase::kEnding) {
    if (now_ >= stop_from_) return;
    stop_from_ = now_;
    give_up_at_ = now_ + options_.stop_deadline;
    return;
  }
  BeginEnding({.result = Result::kStopped,
               .exit_code = ExitCodeFor(absl::CancelledError("")),
               .message = "stopped on request"});
}

void Reconciler::FinishNow() {
  record_.ending = FinalOutcome();
  phase_ = Phase::kFinished;
  Persist();
  actions_.push_back(Finish{*record_.ending});
  timers_.clear();
}

Outcome Reconciler::FinalOutcome() const {
  Outcome outcome = *record_.ending;
  outcome.left_behind.clear();
  for (const Host& host : hosts_) {
    if (NeedsStop(host)) outcome.left_behind.push_back(host.desired.id);
  }
  if (outcome.result == Result::kSucceeded) return outcome;
  RefineFirstCause(outcome);
  outcome.consequences = Consequences(outcome);
  return outcome;
}

// The first death to be heard of decides that the job ends; which one came first is known when all hosts have
// been heard.
void Reconciler::RefineFirstCause(Outcome& outcome) const {
  if (!outcome.first_cause) return;
  const auto named = task_index_.find(outcome.first_cause->task);
  if (named == task_index_.end() || !Died(tasks_[named->second])) return;
  const Task* first = &tasks_[named->second];
  // What was lost afterwards had no part in it; and who only ends what another began does not know what was
  // lost before.
  const TimePoint decided = std::min(first->failed_seen, stop_from_);
  for (const Task& task : tasks_) {
    if (task.desired.can_fail) continue;
    if (Died(task) && task.report->ended_micros < first->report->ended_micros) first = &task;
  }
  std::string why = FailureText(*first->report);
  outcome.exit_code = FailureExitCode(*first->report);
  for (const Task& task : tasks_) {
    // A host that vanished before and did not come back; one that did has told its side.
    const Host& host = hosts_[task.host];
    if (Done(task) || task.missing || task.desired.can_fail || !host.reported_once || !host.lost_since ||
        *host.lost_since > decided)
      continue;
    first = &task;
    why = absl::StrFormat("lost with its host: %s", std::string(host.last_error.message()));
    outcome.exit_code = kUnreachableExitCode;
    break;
  }
  outcome.message = absl::StrFormat("%s on %s failed: %s", first->desired.id, first->desired.host, why);
  outcome.first_cause = Casualty{first->desired.id, first->desired.host, std::move(why)};
}

std::vector<Casualty> Reconciler::Consequences(const Outcome& outcome) const {
  std::vector<Casualty> consequences;
  for (const Task& task : tasks_) {
    if (!SinceBase(task) || Succeeded(task) ||
        (outcome.first_cause && outcome.first_cause->task == task.desired.id))
      continue;
    const TaskReport& report = *task.report;
    if (outcome.result == Result::kStopped && report.stopped && !Live(report)) continue;  // as was asked
    std::string what = FailureText(report);
    if (report.stopped) what = "stopped";
    if (Live(report)) what = hosts_[task.host].lost_since ? "lost with its host" : "could not be stopped";
    consequences.push_back({task.desired.id, task.desired.host, std::move(what)});
  }
  return consequences;
}

View Reconciler::GetView() const {
  View view{.phase = phase_,
            .generation = record_.generation,
            .has_leavers = has_leavers_,
            .ending = record_.ending};
  view.hosts.reserve(hosts_.size());
  for (const Host& host : hosts_) {
    if (Idle(host)) continue;
    HostState state =
        host.failed_connects > 0 && record_.generation > 0 ? HostState::kLost : HostState::kConnecting;
    if (host.link == Link::kUp && host.reported) state = HostState::kConnected;
    if (Ready(host)) state = HostState::kReady;
    if (host.refused) state = HostState::kRefused;
    if (host.given_up) state = HostState::kGivenUp;
    view.hosts.push_back({host.desired.id, state, host.desired.data_address,
                          host.reported ? 0 : host.failed_connects, host.last_error});
  }
  view.tasks.reserve(tasks_.size());
  for (const Task& task : tasks_) {
    TaskState state = SinceBase(task) ? task.report->state : TaskState::kPending;
    if (hosts_[task.host].lost_since && SinceBase(task) && Live(*task.report)) state = TaskState::kLost;
    if (task.missing) state = TaskState::kLost;
    view.tasks.push_back({task.desired.id, task.desired.host, state,
                          record_.fixed && !IsNew(task) ? Address((*record_.cluster)[task.member]) : "",
                          task.report});
  }
  return view;
}

}  // namespace muster::reconcile
