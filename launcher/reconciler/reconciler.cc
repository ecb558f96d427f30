// Events in, and phases. How a cluster in force is taken over is in adoption.cc, when there is another one
// and what is written down in generations.cc, what is done to one host in reconcile_host.cc, what becomes of
// the tasks of one that stays lost in lost_hosts.cc, of those that one has forgotten in forgotten.cc, how a
// job ends in ending.cc.
#include "launcher/reconciler/reconciler.h"

#include <algorithm>
#include <limits>

#include "launcher/reconciler/task_life.h"

namespace muster::reconcile {
namespace {

// An event causes at most: running -> gathering -> running -> ending -> finished.
constexpr int kMaxPhaseChanges = 8;

}  // namespace

Reconciler::Reconciler(const Desired& desired, Record record, const Options& options, TimePoint now)
    : options_(options),
      max_missing_(desired.max_missing),
      elastic_(desired.elastic),
      record_(std::move(record)),
      in_force_since_(now),
      now_(now),
      judged_at_(now) {
  std::unordered_map<std::string, const DesiredHost*> listed;
  for (const DesiredHost& host : desired.hosts) listed.emplace(host.id, &host);
  const bool all_end_with_others = std::all_of(desired.tasks.begin(), desired.tasks.end(),
                                               [](const auto& task) { return task.ends_with_others; });
  for (const DesiredTask& task : desired.tasks) {
    const auto host = listed.find(task.host);
    MUSTER_CHECK(host != listed.end(), task.id + " is on a host that is not listed: " + task.host);
    const int index = static_cast<int>(tasks_.size());
    MUSTER_CHECK(task_index_.emplace(task.id, index).second, "two tasks " + task.id);
    tasks_.push_back({.desired = task, .host = AddHost(*host->second), .retry_at = now_});
    if (all_end_with_others) tasks_.back().desired.ends_with_others = false;
    hosts_[tasks_.back().host].tasks.push_back(index);
  }
  const auto add_by_name = [&](const HostId& id) {
    const auto known = listed.find(id);
    return AddHost(known != listed.end() ? *known->second : DesiredHost{.id = id});
  };
  for (const Member& member : *record_.cluster) add_by_name(member.host);
  const size_t cluster_hosts = hosts_.size();
  for (const HostId& stray : record_.strays) {
    const size_t index = add_by_name(stray);
    hosts_[index].unheard = true;
    hosts_[index].stray = index >= cluster_hosts;
  }
  // Whoever goes on with the job after this one has to look at all of them, too.
  if (record_.generation > 0) {
    std::set<HostId> known(record_.strays.begin(), record_.strays.end());
    for (const Member& member : *record_.cluster) known.insert(member.host);
    for (const Task& task : tasks_) {
      if (!known.insert(task.desired.host).second) continue;
      record_.strays.push_back(task.desired.host);
      persist_first_ = true;
    }
  }
  const size_t used_hosts = hosts_.size();
  for (const DesiredTask& task : desired.tasks) {
    for (const HostId& spare : task.spares) {
      const auto host = listed.find(spare);
      MUSTER_CHECK(host != listed.end(), task.id + " has a spare host that is not listed: " + spare);
      AddHost(*host->second);
    }
  }
  for (size_t i = 0; i < hosts_.size(); ++i) {
    Host& host = hosts_[i];
    const bool may_have = i < used_hosts && !host.desired.unreached;
    host.may_run = record_.generation > 0 && may_have;
    host.may_lease = record_.leasing && may_have;
    host.counts = Count(host);
    totals_.Add(host.counts, 1);
  }
  TouchAll();

  if (options_.run_deadline) {
    run_deadline_ = now_ + *options_.run_deadline;
    // Of a job that has gone on meanwhile it is heard first whether it has ended.
    hear_until_ = record_.fixed ? now_ + options_.connect_attempt + options_.request_timeout : now_;
  }
  if (record_.ending) {
    phase_ = Phase::kEnding;
    stop_from_ = now_;
    give_up_at_ = now_ + options_.connect_attempt + options_.stop_deadline;  // there is no connection yet
  } else if (Adoptable()) {
    phase_ = Phase::kRunning;
    Adopt();
  } else if (record_.fixed) {
    record_.fixed = false;
    persist_first_ = true;
  }
}

int Reconciler::AddHost(const DesiredHost& desired) {
  const auto [place, added] = host_index_.emplace(desired.id, static_cast<int>(hosts_.size()));
  if (added) {
    hosts_.push_back({.desired = desired,
                      .lost_since = now_,
                      .connect_at = now_,
                      .contents_ready = desired.contents.empty(),
                      .retry_at = now_});
  }
  return place->second;
}

std::vector<Action> Reconciler::Step(const Event& event, TimePoint now) {
  if (finished()) return {};
  MUSTER_CHECK(now >= now_, "time went back");
  now_ = now;
  if (std::holds_alternative<Tick>(event)) judged_at_ = now;
  // What was to be written is, or this would be the word that it is not.
  if (!std::holds_alternative<RecordFailed>(event) && std::exchange(persisted_after_, std::nullopt)) {
    record_failures_ = 0;
    unwritten_since_.reset();
  }
  if (std::exchange(persist_first_, false)) Persist();
  std::visit([this](const auto& e) { On(e); }, event);
  Settle();
  if (persist_at_ && now_ >= *persist_at_ && !finished()) {
    const bool is_all = !persisted_after_;
    Persist();
    is_awaited_ = !is_all;
  }
  return std::exchange(actions_, {});
}

void Reconciler::Settle() {
  while (!timers_.empty() && timers_.begin()->first <= judged_at_) Touch(hosts_[timers_.begin()->second]);
  for (int changes = 0;; ++changes) {
    MUSTER_CHECK(changes <= kMaxPhaseChanges, "phases do not settle");
    // By index: bringing one host up to date may end the job, which touches all of them.
    for (size_t i = 0; i < dirty_.size(); ++i) {
      MUSTER_CHECK(i <= kMaxPhaseChanges * hosts_.size(), "a host does not settle");
      const int index = dirty_[i];
      Host& host = hosts_[index];
      host.dirty = false;
      if (!finished()) ReconcileHost(host);
      totals_.Add(host.counts, -1);
      host.counts = Count(host);
      totals_.Add(host.counts, 1);
      if (host.wake != TimePoint::max()) timers_.erase({host.wake, index});
      host.wake = WakeTime(host);
      if (host.wake != TimePoint::max()) timers_.emplace(host.wake, index);
    }
    dirty_.clear();
    if (finished() || !Advance()) return;
  }
}

bool Reconciler::Advance() {
  if (is_held_ && now_ >= *persist_at_) {
    Persist();
    return true;
  }
  const bool has_succeeded = phase_ == Phase::kRunning && totals_.unfinished == 0;
  if (phase_ != Phase::kEnding && !has_succeeded && judged_at_ >= RunDeadline()) {
    BeginEnding({.result = Result::kFailed,
                 .exit_code = ExitCodeFor(absl::DeadlineExceededError("")),
                 .message = "the job did not end within its deadline"});
    return true;
  }
  switch (phase_) {
    case Phase::kGathering:
      // A first start names every host that refuses, so it waits for the last one to be decided; each has its
      // deadline.
      if (totals_.refused > 0 && (totals_.undecided == 0 || record_.generation > 0)) {
        FailUnreachable();
        return true;
      }
      if (totals_.not_ready > 0 || totals_.may_run > 0 || totals_.unleased > 0) return false;
      FixGeneration();
      return true;
    case Phase::kRunning:
      if (totals_.unfinished == 0) {
        BeginEnding({.result = Result::kSucceeded, .message = "all tasks succeeded"});
        return true;
      }
      if (totals_.unplaced == 0 && (totals_.displaced > 0 || (has_leavers_ && gang_complete_))) {
        for (Task& task : tasks_) task.displaced = task.displaced && task.missing;
        FixCluster();
        return true;
      }
      if (moved_at_ && now_ >= MovesUntil()) {
        FixCluster();
        return true;
      }
      if (gang_complete_ || totals_.not_ready > 0) return false;
      gang_complete_ = true;
      TouchAll();
      return true;
    case Phase::kEnding:
      if (totals_.unstopped == 0 || judged_at_ >= give_up_at_) {
        FinishNow();
        return false;
      }
      if (totals_.unstopped == totals_.unstopped_lost && !std::exchange(only_lost_left_, true)) {
        // Hosts that have been away for so long get one more chance.
        stopping_ = true;
        give_up_at_ = std::min(give_up_at_, now_ + options_.stop_deadline / 2);
        TouchAll();
        return true;
      }
      if (stopping_ || now_ < stop_from_) return false;
      stopping_ = true;
      TouchAll();
      return true;
    case Phase::kFinished:
      return false;
  }
  return false;
}

// ---- Events
// ---------------------------------------------------------------------------------------------------------

Reconciler::Host* Reconciler::FindHost(const HostId& id, ConnectionId connection) {
  const auto found = host_index_.find(id);
  if (found == host_index_.end()) return nullptr;
  Host& host = hosts_[found->second];
  return host.link != Link::kDown && host.connection == connection ? &host : nullptr;
}

std::optional<Reconciler::Request> Reconciler::TakeRequest(const HostId& id, RequestId request) {
  const auto found = host_index_.find(id);
  if (found == host_index_.end()) return std::nullopt;
  Host& host = hosts_[found->second];
  const auto place = std::find_if(host.requests.begin(), host.requests.end(), [request](const Request& r) {
    return r.id == request && r.ask != Ask::kReport;
  });
  if (place == host.requests.end()) return std::nullopt;
  const Request taken = *place;
  host.requests.erase(place);
  NoteProgress(host);
  Touch(host);
  return taken;
}

// Of what went wrong before, nothing counts any more.
void Reconciler::NoteProgress(Host& host) {
  host.silences = 0;
  host.failed_connects = 0;
  host.lost_for = {};
}

void Reconciler::On(const HostConnected& event) {
  Host* host = FindHost(event.host, event.connection);
  if (host == nullptr || host->link != Link::kConnecting) return;
  host->link = Link::kUp;
  host->logged_in_at = now_;  // whoever says so has as long as a login to report
  AddRequest(*host, Ask::kReport, -1, options_.request_timeout);
  Touch(*host);
  if (!event.data_address.empty() && event.data_address != host->desired.data_address)
    Move(*host, event.data_address);
}

void Reconciler::On(const HostComing& event) {
  Host* host = FindHost(event.host, event.connection);
  if (host == nullptr || host->link != Link::kConnecting) return;
  host->connect_at = now_ + ConnectAttempt();
  (event.has_logged_in ? host->logged_in_at : host->heard_at) = now_;
  // Not for ever: hosts that let nobody in take each other's turns.
  if (phase_ == Phase::kEnding && !event.has_logged_in && host->lost_while_ending < options_.max_attempts)
    give_up_at_ = std::max(give_up_at_, now_ + options_.stop_deadline);
  Touch(*host);
}

void Reconciler::Move(Host& host, const std::string& data_address) {
  host.desired.data_address = data_address;
  if (phase_ == Phase::kGathering) {
    for (const int index : host.tasks) tasks_[index].leased = false;
  } else if (phase_ == Phase::kRunning &&
             std::any_of(host.tasks.begin(), host.tasks.end(),
                         [this](int index) { return !tasks_[index].displaced; }) &&
             !moved_at_) {
    moved_at_ = now_;
  }
}

// The next cluster says so anyway, if there is none in force.
void Reconciler::On(const ServersMoved&) {
  if (phase_ == Phase::kRunning) FixCluster();
}

void Reconciler::On(const HostSighted& event) {
  const auto found = host_index_.find(event.host);
  if (found == host_index_.end()) return;
  Host& host = hosts_[found->second];
  if (host.link != Link::kDown) LoseConnection(host, Unavailable("%s: it may be elsewhere now", event.host));
  host.failed_connects = 0;
  if (!host.given_up) host.connect_at = now_;
  Touch(host);
}

void Reconciler::On(const HostFailed& event) {
  Host* host = FindHost(event.host, event.connection);
  if (host != nullptr) LoseConnection(*host, event.status);
}

void Reconciler::On(const HostReported& event) {
  Host* host = FindHost(event.host, event.connection);
  if (host == nullptr || host->link != Link::kUp) return;
  const bool first = !host->reported;
  if (first) {
    host->unheard = false;
    host->reported = true;
    host->reported_once = true;
    host->lost_for += now_ - host->lost_since.value_or(now_);
    host->lost_since.reset();
    host->last_error = absl::OkStatus();
    // It was only late, and the verdict on the others is still out.
    if (phase_ == Phase::kGathering) host->refused = false;
    std::erase_if(host->requests, [](const Request& request) { return request.ask == Ask::kReport; });
    for (const auto& [id, stranger] : std::exchange(host->strangers, {})) {
      if (Live(stranger)) host->former.push_back(stranger);
    }
  }
  for (const TaskReport& report : event.tasks) Merge(*host, report);
  if (first) {
    FindForgotten(*host);
    if (host->given_up) LetIn(*host);
    for (const int index : host->tasks) {
      Task& task = tasks_[index];
      if (!IsNew(task) || !std::exchange(task.missing, false)) continue;
      task.attempts = 0;
    }
  }
  Touch(*host);
}

void Reconciler::Merge(Host& host, const TaskReport& report) {
  if (report.generation > record_.generation) {
    if (phase_ != Phase::kGathering && !stop_requested_) return Supersede(host, report);
    record_.generation = report.generation;  // our record is gone; theirs is not
    if (stop_requested_) LookEverywhere();
  }
  const auto found = task_index_.find(report.task);
  if (found == task_index_.end() || &hosts_[tasks_[found->second].host] != &host) {
    const auto [stranger, added] = host.strangers.emplace(report.task, report);
    if (!added && !Newer(report, stranger->second)) return;
    stranger->second = report;
    host.may_run = host.may_run || Live(report);
    return;
  }
  Task& task = tasks_[found->second];
  // An agent that has just been started may not know yet how far an incarnation has come, but it knows of it.
  const std::optional<TaskReport>& known = task.report ? task.report : task.noted;
  const bool is_older = known && report.incarnation < known->incarnation;
  if (!is_older) {
    task.reported_on = host.connection;
    task.start_unheard = false;
  } else if (task.reported_on != host.connection && Live(report)) {
    Forget(host, report);  // its disk is older, too
  }
  if (task.report ? !Newer(report, *task.report) : is_older) return;
  task.report = report;
  task.noted.reset();
  host.may_run = host.may_run || Live(report);
  NoteIncarnation(task, report.incarnation);
  if (Succeeded(task)) NoteSuccess(task);
  Judge(task);
}

void Reconciler::Judge(Task& task) {
  const TaskReport& report = *task.report;
  const bool failed = report.state == TaskState::kFailed || report.state == TaskState::kLost;
  if (failed && !report.stopped) task.failed_seen = now_;
  if (task.missing) {
    // It is not news that it has ended, unless well.
    if (!failed && !hosts_[task.host].given_up) task.missing = false;
    return;
  }
  const bool port_lost = task.desired.needs_port && report.exit_code == kPortLostExitCode &&
                         !report.stopped && (failed || report.state == TaskState::kRestarting);
  if (port_lost && phase_ == Phase::kGathering && report.generation == record_.generation) LosePort(task);
  if (phase_ != Phase::kRunning || !Current(task)) return;
  if (task.desired.can_fail && !report.stopped) {
    task.missing = failed;
  } else if (port_lost) {
    if (!TakeRetry()) {
      return FailTask(task, kPortLostExitCode,
                      absl::StrFormat("lost its port %d times", record_.retries + 1));
    }
    LosePort(task);
    BeginGathering();
  } else if (failed && report.stopped) {
    BeginEnding({.result = Result::kStopped,
                 .exit_code = ExitCodeFor(absl::CancelledError("")),
                 .message = absl::StrFormat("%s on %s was stopped by another command", task.desired.id,
                                            task.desired.host)});
  } else if (failed) {
    FailTask(task, FailureExitCode(report), FailureText(report));
  }
}

void Reconciler::On(const ContentsReady& event) {
  if (!TakeRequest(event.host, event.request)) return;
  Host& host = hosts_[host_index_.at(event.host)];
  host.contents_ready = true;
  host.attempts = 0;
}

void Reconciler::On(const ContentsComing& event) {
  const auto found = host_index_.find(event.host);
  if (found == host_index_.end()) return;
  Host& host = hosts_[found->second];
  const auto request = std::ranges::find(host.requests, event.request, &Request::id);
  if (request == host.requests.end() || request->ask != Ask::kContents) return;
  request->deadline = now_ + options_.contents_timeout;
  NoteProgress(host);
  Touch(host);
}

void Reconciler::On(const PortLeased& event) {
  const std::optional<Request> request = TakeRequest(event.host, event.request);
  if (!request || request->ask != Ask::kLease) return;
  Task& task = tasks_[request->task];
  task.port = event.port;
  task.leased = true;
  task.attempts = 0;
}

void Reconciler::On(const TaskStarted& event) {
  const std::optional<Request> request = TakeRequest(event.host, event.request);
  if (!request || request->ask != Ask::kStart) return;
  Host& host = hosts_[host_index_.at(event.host)];
  Task& task = tasks_[request->task];
  Merge(host, event.task);
  if (DeploymentOf(event.task) == request->deployment || Succeeded(task)) {
    task.attempts = 0;
  } else if (phase_ == Phase::kRunning) {
    Refused(host, *request, Internal("its agent started another spec or generation than it was asked for"));
  }
}

void Reconciler::On(const TasksStopped& event) {
  const std::optional<Request> request = TakeRequest(event.host, event.request);
  if (!request) return;
  Host& host = hosts_[host_index_.at(event.host)];
  for (const TaskReport& report : event.tasks) Merge(host, report);
  if (event.processes_left > 0 || event.ports_left > 0) {
    return Refused(host, *request,
                   Internal("%d processes are left after it, and %d ports are listened on",
                            event.processes_left, event.ports_left));
  }
  host.attempts = 0;
  const bool all = request->ask == Ask::kStopAll;
  // Of a newer generation than was known then it has stopped nothing.
  if (all && request->below <= record_.generation) return;
  if (all) host.may_run = host.may_lease = false;
  const auto is_stopped = [&](const TaskReport& report) {
    return all || std::ranges::find(request->targets, DeploymentOf(report)) != request->targets.end();
  };
  for (auto& [id, report] : host.strangers) {
    if (is_stopped(report)) MarkStopped(report);
  }
  std::erase_if(host.forgotten, [&](const Deployment& each) {
    return all || std::ranges::find(request->targets, each) != request->targets.end();
  });
  for (const int index : host.tasks) {
    std::optional<TaskReport>& report = tasks_[index].report;
    if (report && is_stopped(*report)) MarkStopped(*report);
    if (all) tasks_[index].leased = false;
  }
}

void Reconciler::On(const RequestFailed& event) {
  const std::optional<Request> request = TakeRequest(event.host, event.request);
  if (request) Refused(hosts_[host_index_.at(event.host)], *request, event.status);
}

void Reconciler::Refused(Host& host, const Request& request, const absl::Status& status) {
  Task* task = request.task >= 0 ? &tasks_[request.task] : nullptr;
  int& attempts = task ? task->attempts : host.attempts;
  (task ? task->retry_at : host.retry_at) = now_ + Backoff(++attempts, host.desired.id);
  // What it had a moment ago has been taken from it since, by another launcher's `gc`, say.
  if (request.ask == Ask::kStart && absl::IsNotFound(status)) {
    host.contents_ready = host.desired.contents.empty();
  }
  if (attempts < options_.max_attempts || phase_ == Phase::kEnding) return;
  if (Bystander(host)) return;
  const bool can_do_without = task != nullptr && (IsNew(*task) || task->desired.can_fail);
  if (can_do_without && phase_ == Phase::kRunning) {
    // The job goes on as it is. Until its host comes back, nothing says that the next attempt will fare
    // better.
    task->missing = true;
    task->last_error = status;
    return;
  }
  const bool is_tried =
      std::any_of(host.tasks.begin(), host.tasks.end(), [this](int i) { return tasks_[i].displaced; });
  if (is_tried || CanDoWithout(host)) {
    // There may be another one, or the job goes on without it for now: CheckDeadlines.
    host.refused = true;
    host.last_error = status;
    return;
  }
  // By what is there, say a stop that no record says, because the disk was full.
  const bool is_in_the_way = request.ask == Ask::kStart && absl::IsFailedPrecondition(status);
  if (is_in_the_way && phase_ == Phase::kRunning && TakeRetry()) return BeginGathering();
  std::string what;
  switch (request.ask) {
    case Ask::kReport:
      what = "report its tasks";
      break;
    case Ask::kContents:
      what = "take the program and its data";
      break;
    case Ask::kLease:
      what = "lease a port for " + task->desired.id;
      break;
    case Ask::kStart:
      what = "start " + task->desired.id;
      break;
    case Ask::kStopSome:
    case Ask::kStopAll:
      what = "stop what should not run";
      break;
  }
  Outcome outcome{.result = Result::kFailed,
                  .exit_code = request.ask == Ask::kContents ? kUnreachableExitCode : ExitCodeFor(status),
                  .message = absl::StrFormat("%s%s could not %s: %s (%d attempts)",
                                             record_.generation == 0 ? "nothing was started: " : "",
                                             host.desired.id, what, std::string(status.message()), attempts)};
  if (task) outcome.first_cause = Casualty{task->desired.id, host.desired.id, std::string(status.message())};
  BeginEnding(std::move(outcome));
}

}  // namespace muster::reconcile
