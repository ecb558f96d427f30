#include "launcher/reconciler/invariants.h"

#include <algorithm>

#include "launcher/reconciler/task_life.h"

namespace muster::reconcile {

void Invariants::Require(bool condition, const std::string& what) {
  if (!condition) violations_.push_back(what);
}

void Invariants::OnLaunch(const Desired& desired, bool replanned) {
  desired_ = desired;
  plans_ += replanned;
  is_unwritten_ = false;
  connections_.clear();
  addresses_.clear();
  reported_.clear();
  contents_.clear();
  heard_.clear();
  barred_.clear();
  given_up_.clear();
  needed_.clear();
  for (const DesiredTask& task : desired.tasks) needed_.insert(task.host);
  // Before its first generation a job forgets a host that it wants no more.
  if (persisted_.generation == 0) {
    std::erase_if(leased_, [this](const HostId& host) { return !needed_.contains(host); });
  }
  gang_ = false;
  known_.clear();
  contents_requests_.clear();
  stop_requests_.clear();
}

void Invariants::OnGrown(const Desired& desired) {
  NoteGang();  // of those that were needed so far
  ++plans_;
  for (const DesiredTask& task : desired.tasks) {
    const auto known = std::ranges::find(desired_.tasks, task.id, &DesiredTask::id);
    if (known == desired_.tasks.end()) {
      desired_.tasks.push_back(task);
    } else {
      known->spares = task.spares;
    }
  }
  desired_.hosts = desired.hosts;
}

bool Invariants::InPlan(const Deployment& deployment) const {
  const auto& [id, generation, spec_hash] = deployment;
  return generation == persisted_.generation && persisted_.fixed &&
         std::any_of(desired_.tasks.begin(), desired_.tasks.end(),
                     [&](const DesiredTask& task) { return task.id == id && task.spec_hash == spec_hash; });
}

bool Invariants::HasJoined(const TaskId& task) const {
  return std::ranges::any_of(*persisted_.cluster, [&](const Member& member) { return member.task == task; });
}

void Invariants::Learn(const TaskReport& report) {
  known_.insert({report.task, report.generation, report.spec_hash});
}

void Invariants::NoteGang() {
  gang_ = gang_ || std::ranges::all_of(needed_, [this](const HostId& host) {
            return given_up_.contains(host) || (reported_.contains(host) && contents_.contains(host));
          });
}

void Invariants::OnDecided(const View& view) {
  std::set<HostId> given_up;
  for (const HostView& host : view.hosts) {
    if (host.state == HostState::kGivenUp) given_up.insert(host.host);
  }
  int missing = 0;
  for (size_t i = 0; i < view.tasks.size(); ++i) {
    const auto& [task, host, state, address, report] = view.tasks[i];
    if (!given_up.contains(host)) continue;
    const bool succeeded = std::any_of(succeeded_.begin(), succeeded_.end(),
                                       [&](const Deployment& done) { return done.task == task; });
    const bool is_new = persisted_.fixed && !HasJoined(task);
    const DesiredTask& desired = desired_.tasks[i];
    Require(desired.can_be_missing || desired.can_fail || succeeded || is_new,
            "I35 only what can be missing is given up: " + task);
    missing += !succeeded && !is_new && !desired.can_fail;
    const bool is_listed =
        host == desired_.tasks[i].host || std::ranges::count(desired_.tasks[i].spares, host) > 0;
    Require(is_listed, "I38 a task is on its host or a spare one of it: " + task + " on " + host);
  }
  Require(missing <= desired_.max_missing, "I36 no more are missing than can be");
  for (const HostId& host : given_up) {
    if (given_up_.contains(host)) continue;
    Require(!outage_end_.empty() || !last_break_.empty() || !refused_.empty(),
            "I37 who is given up was lost: " + host);
    connections_.erase(host);  // what still comes on it does not count
    ++setbacks_;               // what died there is started again when it returns
  }
  given_up_ = std::move(given_up);
  std::erase_if(beginnings_, [this](const auto& each) { return given_up_.contains(each.second.host); });
  needed_.clear();
  for (const TaskView& task : view.tasks) {
    const bool has_succeeded = task.state == TaskState::kSucceeded;
    Require(!has_succeeded || std::ranges::count(succeeded_, task.task, &Deployment::task) > 0,
            "I40 what is said to have succeeded has: " + task.task);
    if (!has_succeeded) needed_.insert(task.host);
    places_[task.task] = task.host;
  }
  NoteGang();
}

void Invariants::OnEvent(const Event& event) {
  if (const auto* connected = std::get_if<HostConnected>(&event)) {
    if (connections_[connected->host] != connected->connection) return;
    addresses_[connected->host] = connected->data_address;
  } else if (const auto* reported = std::get_if<HostReported>(&event)) {
    if (connections_[reported->host] != reported->connection) return;
    reported_.insert(reported->host);
    heard_.insert(reported->host);
    barred_.erase(reported->host);
    for (const TaskReport& report : reported->tasks) Learn(report);
    NoteGang();
  } else if (const auto* failed = std::get_if<HostFailed>(&event)) {
    if (connections_[failed->host] != failed->connection) return;
    connections_.erase(failed->host);  // what still comes on it does not count
    reported_.erase(failed->host);
    if (!WorthTryingAgain(failed->status) && !heard_.contains(failed->host)) barred_.insert(failed->host);
  } else if (const auto* ready = std::get_if<ContentsReady>(&event)) {
    if (contents_requests_.contains(ready->request)) contents_.insert(ready->host);
    NoteGang();
  } else if (const auto* stopped = std::get_if<TasksStopped>(&event)) {
    if (stop_requests_.erase(stopped->request) > 0) leased_.erase(stopped->host);
  } else if (std::holds_alternative<StopRequested>(event)) {
    stop_requested_ = true;
  }
}

void Invariants::OnAction(const Action& action) {
  Require(!finish_, "an action after Finish");
  if (const auto* connect = std::get_if<Connect>(&action)) {
    connections_[connect->host] = connect->connection;
    reported_.erase(connect->host);
  } else if (const auto* contents = std::get_if<EnsureContents>(&action)) {
    contents_requests_[contents->request] = contents->host;
  } else if (const auto* persist = std::get_if<PersistRecord>(&action)) {
    CheckRecord(persist->record);
  } else if (const auto* lease = std::get_if<LeasePort>(&action)) {
    Require(persisted_.leasing, "I30 who asks for a port has written it down: " + lease->host);
    leased_.insert(lease->host);
  } else if (const auto* start = std::get_if<StartTask>(&action)) {
    CheckStart(*start);
  } else if (const auto* stop = std::get_if<StopTasks>(&action)) {
    CheckStop(*stop);
  }
}

void Invariants::OnRecordFailed(const Record& record) {
  is_unwritten_ = true;
  is_ending_unwritten_ = is_ending_unwritten_ || record.ending.has_value();
}

void Invariants::CheckRecord(const Record& record) {
  Require(record.generation >= persisted_.generation, "I1 generations only grow");
  Require(!persisted_.ending || (record.ending && record.ending->result == persisted_.ending->result),
          "I2 a decided ending is not taken back");
  if (record.generation > persisted_.generation) {
    deaths_.clear();
    // The first, one for each plan with another cluster, one for each setback.
    Require(static_cast<int>(record.generation) <= 1 + plans_ + setbacks_, "I3 each generation has a reason");
  }
  if (!record.fixed) {
    gang_ = false;
    NoteGang();
  }
  if (record.fixed) {
    const auto [known, added] = clusters_.emplace(record.generation, *record.cluster);
    Require(known->second == *record.cluster, "I4 a generation has one cluster");
    for (const Member& member : *record.cluster) {
      if (!added || member.port == 0 || IsToBeginAnew(member)) continue;
      Require(ports_[{member.host, member.task}] == member.port,
              absl::StrFormat("I5 the ports of a cluster are leased: generation %d has %d for %s",
                              record.generation, member.port, member.task));
    }
  }
  persisted_ = record;
  is_unwritten_ = false;
  std::erase_if(beginnings_, [this](const auto& each) { return !HasJoined(each.first); });  // it has left
}

void Invariants::CheckStart(const StartTask& start) {
  const std::string who = start.task + " on " + start.host;
  Require(!persisted_.ending, "I6 no start once the end is decided: " + who);
  Require(persisted_.fixed && start.generation == persisted_.generation,
          "I7 starts are of the persisted generation: " + who);
  Require(*start.cluster == clusters_[start.generation], "I8 starts have the persisted cluster: " + who);
  for (const Member& member : *start.cluster) {
    if (places_[member.task] != member.host) continue;  // nobody is there; it is on its way to a spare host
    if (IsToBeginAnew(member)) continue;
    const auto known = addresses_.find(member.host);
    Require(
        known == addresses_.end() || known->second == member.data_address,
        "I32 no start with an old cluster: " + who + " with " + member.task + " at " + member.data_address);
  }
  Require(gang_, "I9 no start before the gang is there: " + who);
  Require(!known_.contains({start.task, start.generation, start.spec_hash}),
          "I10 no start of what is known to have run: " + who);
}

void Invariants::CheckStop(const StopTasks& stop) {
  if (stop.targets.empty()) {
    stop_requests_[stop.request] = stop.host;
    Require(persisted_.ending || is_ending_unwritten_ || !persisted_.fixed,
            "I11 all tasks of a host are stopped only at an end: " + stop.host);
    return;
  }
  for (const Deployment& target : stop.targets) {
    Require(!InPlan(target) || HasForgotten(stop.host, target.task),
            "I12 what is desired is not stopped: " + target.task);
  }
}

void Invariants::OnPortGiven(const TaskId& task, const HostId& host, uint32_t port) {
  ports_[{host, task}] = port;
}

void Invariants::OnStartRefused(const StartTask& start) {
  if (InPlan({start.task, start.generation, start.spec_hash})) OnSetback();
}

void Invariants::OnStarted(const HostId& host, const TaskReport& report) {
  for (const auto& [where, other] : live_) {
    Require(where.second != report.task || where.first == host || other.generation != report.generation,
            "I13 one incarnation of a task in a generation: " + report.task + " on " + host + " and " +
                where.first);
  }
  for (const Deployment& done : succeeded_) {
    // Nobody can know what happened on a host that is lost, or what it has forgotten and no record says.
    const bool is_noted = std::ranges::count(persisted_.successes, done.task, &TaskReport::task) > 0;
    const bool is_known = success_hosts_[done] == host && (is_noted || !forgotten_.contains({host, done}));
    Require(done.task != report.task || done.spec_hash != report.spec_hash ||
                done.generation < persisted_.base_generation || !is_known,
            "I33 what has succeeded is not started again: " + report.task);
  }
  // Whoever wants what was wanted before the last change of it again, wants it to run again.
  std::erase_if(succeeded_, [&](const Deployment& done) {
    return done.task == report.task && done.spec_hash != report.spec_hash && success_hosts_[done] == host &&
           done.generation <= report.generation;
  });
  CheckBeginning(host, report);
  live_[{host, report.task}] = report;
  for (const auto& [where, other] : newest_) {
    if (where.second != report.task || where.first == host) continue;
    if (other.generation < persisted_.base_generation || report.generation < persisted_.base_generation)
      continue;
    Require(report.generation <= other.generation || report.incarnation > other.incarnation,
            "I39 of two hosts' incarnations the later start has the higher: " + report.task + " on " + host);
  }
  newest_[{host, report.task}] = report;
}

void Invariants::CheckBeginning(const HostId& host, const TaskReport& report) {
  const std::string who = report.task + " on " + host;
  Require(!orphans_.contains({host, report.task}),
          "I41 where something of a task may run it is stopped before another is started: " + who);
  const auto desired = std::ranges::find(desired_.tasks, report.task, &DesiredTask::id);
  Require(desired == desired_.tasks.end() || static_cast<int>(report.restarts) <= desired->max_restarts,
          "I42 there are no more restarts than the policy has: " + who);
  const auto newest = newest_.find({host, report.task});
  Require(newest == newest_.end() || report.generation < persisted_.base_generation ||
              newest->second.generation < persisted_.base_generation || !IsNoted(newest->second) ||
              report.incarnation > newest->second.incarnation,
          "I43 an incarnation is one only once: " + who);
  const auto beginning = beginnings_.find(report.task);
  if (beginning == beginnings_.end()) return;
  const Beginning& expected = beginning->second;
  Require(host != expected.host || report.spec_hash != expected.spec_hash ||
              persisted_.base_generation != expected.base_generation || report.restarts == expected.restarts,
          absl::StrFormat("I44 what was forgotten is one restart: %s has %d, not %d", who, report.restarts,
                          expected.restarts));
  beginnings_.erase(beginning);
}

// On the host that has forgotten it: nobody is there.
bool Invariants::IsToBeginAnew(const Member& member) const {
  return !live_.contains({member.host, member.task}) && HasForgotten(member.host, member.task);
}

bool Invariants::HasForgotten(const HostId& host, const TaskId& task) const {
  return std::ranges::any_of(
      forgotten_, [&](const auto& each) { return each.first == host && each.second.task == task; });
}

bool Invariants::IsNoted(const TaskReport& report) const {
  return std::ranges::any_of(persisted_.incarnations, [&](const Incarnation& each) {
    return each.task == report.task && !each.has_ended && each.number <= report.incarnation &&
           report.incarnation - each.number < kMostRestarts;
  });
}

void Invariants::OnForgotten(const HostId& host, const TaskReport& report) {
  const Deployment deployment = DeploymentOf(report);
  forgotten_.insert({host, deployment});
  known_.erase(deployment);  // or what a launcher was told came too late to count
  const Incarnation exactly{report.task, report.spec_hash, report.incarnation, report.restarts, false};
  const auto desired = std::ranges::find(desired_.tasks, report.task, &DesiredTask::id);
  const bool are_used_up =
      desired != desired_.tasks.end() && static_cast<int>(report.restarts) >= desired->max_restarts;
  if (!Live(report) || are_used_up || given_up_.contains(host)) return;
  if (std::ranges::count(persisted_.incarnations, exactly) == 0) return;
  beginnings_[report.task] = {host, report.spec_hash, persisted_.base_generation, report.restarts + 1};
}

void Invariants::OnOrphaned(const HostId& host, const TaskReport& report) {
  orphans_[{host, report.task}] = report;
}

void Invariants::OnOrphanEnded(const HostId& host, const TaskId& task) { orphans_.erase({host, task}); }

void Invariants::OnGoesOn(const HostId& host, const TaskReport& report, const StartTask& start) {
  const auto desired = std::ranges::find(desired_.tasks, report.task, &DesiredTask::id);
  const bool has_left = desired == desired_.tasks.end();  // while the start was on its way
  Require(has_left || desired->follows_cluster || !Live(report),
          "I34 only what follows its cluster goes on under another: " + report.task);
  const auto live = live_.find({host, report.task});
  if (live != live_.end()) live->second.generation = start.generation;
}

void Invariants::OnEnded(const HostId& host, const TaskReport& report) {
  live_.erase({host, report.task});
  if (report.state != TaskState::kSucceeded) return;
  const Deployment done{report.task, report.generation, report.spec_hash};
  succeeded_.insert(done);
  success_hosts_[done] = host;
}

void Invariants::OnDied(const HostId& host, const TaskReport& report) {
  if (report.generation != persisted_.generation) return;
  deaths_[report.task] = report;
  death_hosts_[report.task] = host;
}

void Invariants::OnOutage(const HostId& host, bool begins, TimePoint now) {
  outage_end_[host] = begins ? TimePoint::max() : now;
}

void Invariants::OnBreak(const HostId& host, TimePoint now) {
  last_break_[host] = now;
  // Again and again, it may as well be away.
  if (++breaks_[host] > 2) refused_.insert(host);
}

void Invariants::OnDelay(const HostId& host, TimePoint until) {
  last_delay_[host] = std::max(last_delay_[host], until);
}

void Invariants::CheckNothingRuns(const std::string& when) {
  for (const auto& [where, report] : live_) {
    const bool named = std::count(finish_->left_behind.begin(), finish_->left_behind.end(), where.first) > 0;
    Require(named, "I14 nothing runs " + when + ": " + where.second + " on " + where.first);
  }
  for (const auto& [where, report] : orphans_) {
    const bool named = std::count(finish_->left_behind.begin(), finish_->left_behind.end(), where.first) > 0;
    Require(named, "I14 no orphan runs " + when + ": " + where.second + " on " + where.first);
  }
}

void Invariants::OnFinish(const Outcome& outcome, const Options& options, TimePoint now) {
  finish_ = outcome;
  CheckNothingRuns("at the end");
  for (const HostId& host : outcome.left_behind) {
    const auto since = [&](const std::map<HostId, TimePoint>& last) {
      const auto found = last.find(host);
      return found == last.end() ? TimePoint::min() : found->second;
    };
    const TimePoint trouble = std::max(since(outage_end_), since(last_break_));
    // An end is bounded: what is late three times in a row may be too late for it.
    const bool late = since(last_delay_) >= now - options.stop_deadline;
    Require(late || barred_.contains(host) || trouble > now - options.stop_deadline * 3,
            "I15 a host that can be reached is not left behind: " + host);
  }
  if (outcome.result != Result::kSucceeded) CheckPortsReleased(outcome);
  int missing = 0;
  switch (outcome.result) {
    case Result::kSucceeded:
      for (const DesiredTask& task : desired_.tasks) {
        const bool succeeded = std::any_of(succeeded_.begin(), succeeded_.end(), [&](const Deployment& done) {
          return done.task == task.id && done.spec_hash == task.spec_hash &&
                 done.generation >= persisted_.base_generation;
        });
        if (!HasJoined(task.id)) continue;  // it could not
        if (task.can_fail) continue;
        missing += !task.ends_with_others && !succeeded;
        Require(task.ends_with_others || succeeded || task.can_be_missing,
                "I16 success means that all succeeded: " + task.id);
      }
      Require(missing <= desired_.max_missing, "I16 success means that no more are missing than can be");
      Require(outcome.exit_code == 0, "I17 success exits with 0");
      break;
    case Result::kStopped:
      // Of an end that was not written down, the next launcher sees only the stops.
      Require(stop_requested_ || is_ending_unwritten_, "I18 stopped only on request: " + outcome.message);
      Require(outcome.exit_code == 130, "I19 stopped exits with 130");
      break;
    case Result::kFailed:
      Require(!deaths_.empty() || !outage_end_.empty() || !refused_.empty(),
              "I20 a failure has a cause: " + outcome.message);
      CheckFirstCause(outcome);
      break;
  }
}

void Invariants::CheckPortsReleased(const Outcome& outcome) {
  for (const DesiredHost& host : desired_.hosts) {
    const bool named = std::count(outcome.left_behind.begin(), outcome.left_behind.end(), host.id) > 0;
    Require(named || !leased_.contains(host.id), "I31 an end releases the ports: " + host.id);
  }
}

void Invariants::CheckFirstCause(const Outcome& outcome) {
  if (outcome.exit_code == 69) {
    // Who waits for its turn until the end may as well have vanished.
    const bool is_late = outcome.first_cause && last_delay_.contains(outcome.first_cause->host);
    Require(!outage_end_.empty() || !refused_.empty() || is_late,
            "I21 a host is called lost only after an outage: " + outcome.message);
    return;
  }
  Require(outcome.first_cause.has_value(), "I22 a failure names its first cause: " + outcome.message);
  if (!outcome.first_cause) return;
  const auto named = deaths_.find(outcome.first_cause->task);
  Require(named != deaths_.end(), "I23 the first cause has died by itself: " + outcome.message);
  if (named == deaths_.end()) return;
  Require(outcome.exit_code == named->second.exit_code,
          "I24 the exit code is the first cause's: " + outcome.message);
  // A launcher that only ends what another began cannot compare with a host it never reached, or that has
  // forgotten what it would be.
  const HostId& where = outcome.first_cause->host;
  if (std::count(outcome.left_behind.begin(), outcome.left_behind.end(), where) > 0) return;
  if (forgotten_.contains({where, DeploymentOf(named->second)})) return;
  for (const auto& [task, report] : deaths_) {
    if (!InPlan({task, report.generation, report.spec_hash})) continue;  // replaced since
    if (places_[task] != death_hosts_[task]) continue;                   // it was to run elsewhere by then
    if (forgotten_.contains({death_hosts_[task], DeploymentOf(report)})) continue;
    const auto desired = std::ranges::find(desired_.tasks, task, &DesiredTask::id);
    if (desired != desired_.tasks.end() && desired->can_fail) continue;
    if (outcome.left_behind.end() !=
        std::find(outcome.left_behind.begin(), outcome.left_behind.end(), death_hosts_[task]))
      continue;
    Require(report.ended_micros >= named->second.ended_micros,
            "I25 nothing died before the first cause: " + task + ", but " + outcome.message);
  }
}

void Invariants::OnSettled(const View& view, TimePoint next_deadline, TimePoint now, bool is_tick) {
  Require(!is_tick || next_deadline > now, "I26 a Tick leaves nothing that is due");
  Require(view.phase == Phase::kFinished || next_deadline < TimePoint::max() || view.phase == Phase::kRunning,
          "I27 every wait has a deadline");
  Require(!persisted_.fixed || is_unwritten_ || view.generation == persisted_.generation,
          "I28 the generation in force is the persisted one");
}

void Invariants::OnStuck() { Require(false, "I29 every run ends once the faults have ceased"); }

void Invariants::OnQuiet() {
  if (finish_) CheckNothingRuns("after the end");
}

}  // namespace muster::reconcile
