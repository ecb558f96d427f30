#include "launcher/reconciler/simulation.h"

#include <algorithm>

#include "launcher/reconciler/task_life.h"

namespace muster::reconcile {
namespace {

constexpr int kMaxRestarts = 2;
// Restarts of the longest task, a lost host's deadline, port retries and the end, generously.
constexpr int64_t kPatienceMs = 400'000;
constexpr int kMaxItems = 200'000;  // a run takes some thousands
constexpr size_t kTranscriptLines = 4000;

TimePoint AtMs(int64_t milliseconds) { return TimePoint(std::chrono::milliseconds(milliseconds)); }

int64_t Micros(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

}  // namespace

Simulation::Simulation(uint64_t seed) : random_(seed), faults_end_(AtMs(kFaultsMs)) {
  const int hosts = static_cast<int>(Between(1, 5));
  const int servers = static_cast<int>(Between(0, 3));
  const int workers = static_cast<int>(Between(1, 6));
  for (int i = 0; i < hosts; ++i) {
    AddHost(absl::StrFormat("h%d", i), absl::StrFormat("10.0.0.%d", i + 1));
  }
  options_.contents_timeout = std::chrono::seconds(10);
  follow_ = Chance(0.5);
  for (int i = 0; i < servers; ++i) desired_.tasks.push_back(MakeTask("ps", i));
  for (int i = 0; i < workers; ++i) desired_.tasks.push_back(MakeTask("worker", i));
  desired_.elastic = Chance(0.4);
  // They wait for whoever there was when they ended, and know nothing of who joins later.
  for (DesiredTask& task : desired_.tasks) task.ends_last = IsServer(task.id) && !desired_.elastic;
  if (Chance(0.3)) AddSpares();
  if (workers == 1 || Chance(0.5)) return;
  options_.lost_deadline = std::chrono::seconds(15);
  options_.cooldown_first = std::chrono::seconds(Between(1, 10));
  desired_.max_missing = static_cast<int>(Between(1, workers - 1));
  for (DesiredTask& task : desired_.tasks) {
    task.can_be_missing = !IsServer(task.id) && task.id != "worker:0";
  }
}

void Simulation::AddHost(const HostId& id, const std::string& address) {
  MUSTER_CHECK(!agents_.contains(id), "two hosts " + id);  // or it moves, and nobody has counted that
  desired_.hosts.push_back({id, address, {"agent", "program"}});
  agents_[id].id = id;
  agents_[id].address = address;
}

DesiredTask Simulation::MakeTask(const std::string& job, int index) {
  const TaskId id = absl::StrFormat("%s:%d", job, index);
  return {.id = id,
          .host = desired_.hosts[random_.NextBelow(desired_.hosts.size())].id,
          .spec_hash = "v1",
          .needs_port = true,
          .ends_with_others = job == "ps",
          .follows_cluster = follows_.emplace(id, follow_ && Chance(0.8)).first->second,
          .can_fail = can_fail_.emplace(id, life_ > 0 && Chance(0.5)).first->second,
          .max_restarts = kMaxRestarts};
}

void Simulation::AddSpares() {
  options_.lost_deadline = std::chrono::seconds(15);
  const int count = static_cast<int>(Between(1, 2));
  for (int i = 0; i < count; ++i) {
    const HostId id = absl::StrFormat("spare%d", spares_);
    AddHost(id, absl::StrFormat("10.0.2.%d", ++spares_));
    for (DesiredTask& task : desired_.tasks) task.spares.push_back(id);
  }
}

void Simulation::Run() {
  Launch(/*replan=*/false);
  ScheduleFaults();
  RunUntil(AtMs(kFaultsMs + kPatienceMs), [this] { return finished_; });
  if (!finished_) {
    invariants_.OnStuck();
    return;
  }
  RunUntil(now_ + std::chrono::seconds(30), [] { return false; });
  invariants_.OnQuiet();
}

void Simulation::After(int64_t milliseconds, Work work) {
  queue_.push({now_ + std::chrono::milliseconds(milliseconds), ++order_, std::move(work)});
}

void Simulation::RunUntil(TimePoint limit, const std::function<bool()>& done) {
  for (int items = 0; items < kMaxItems && !queue_.empty() && queue_.top().when <= limit && !done();
       ++items) {
    Item item = queue_.top();
    queue_.pop();
    now_ = item.when;
    item.work();
  }
}

void Simulation::Note(const std::string& what, const std::string& details) {
  ++tally_[what];
  if (transcript_.size() > kTranscriptLines) transcript_.clear();
  transcript_.push_back(absl::StrFormat("%8.3f %s %s", ToSeconds(now_.time_since_epoch()), what, details));
}

// ---- The launcher
// ---------------------------------------------------------------------------------------------------

void Simulation::Launch(bool replan) {
  ++life_;
  // As the driver writes it down together with the record.
  for (const Member& member : *record_.cluster) {
    for (DesiredTask& task : desired_.tasks) {
      if (record_.fixed && task.id == member.task) task.host = member.host;
    }
  }
  bool is_other_cluster = false;
  if (replan) {
    for (DesiredTask& task : desired_.tasks) {
      if (!Chance(0.4)) continue;
      task.spec_hash = absl::StrFormat("v%d", life_);
      Note("spec changed", task.id);
      // Servers that have ended know nothing of that.
      for (DesiredTask& each : desired_.tasks) each.ends_last = false;
    }
    if (Chance(0.3)) is_other_cluster = MoveTask();
    if (desired_.elastic && Chance(0.6)) {
      is_other_cluster = Scale(static_cast<int>(Between(1, 7))) || is_other_cluster;
    }
  }
  const bool any_leaves = std::ranges::any_of(*record_.cluster, [this](const Member& member) {
    return std::ranges::count(desired_.tasks, member.task, &DesiredTask::id) == 0;
  });
  first_that_left_ = any_leaves ? Workers() : kNobody;
  invariants_.OnLaunch(Needed(), is_other_cluster);
  busy_until_ = {};
  wires_.clear();
  reconciler_ = std::make_unique<Reconciler>(Needed(), record_, options_, now_);
  Note("launch", absl::StrFormat("life %d", life_));
  Feed(life_, Tick{});
}

Desired Simulation::Needed() const {
  Desired needed = desired_;
  std::erase_if(needed.hosts, [this](const DesiredHost& host) {
    return std::none_of(desired_.tasks.begin(), desired_.tasks.end(), [&](const auto& task) {
      return task.host == host.id || std::ranges::count(task.spares, host.id) > 0;
    });
  });
  return needed;
}

// The inventory has other hosts.
void Simulation::Grow() {
  if (finished_ || !reconciler_ || now_ < busy_until_) return;
  const View view = reconciler_->GetView();
  if (view.phase != Phase::kRunning || view.has_leavers) return;
  Note("grows");
  if (Chance(0.5)) AddSpares();
  if (desired_.elastic) {
    const int workers = Workers(), wanted = workers + static_cast<int>(Between(0, 2));
    if (wanted <= first_that_left_) Scale(wanted);
  }
  invariants_.OnGrown(Needed());
  Feed(life_, MoreDesired{Needed()});
}

bool Simulation::MoveTask() {
  DesiredTask& task = desired_.tasks[random_.NextBelow(desired_.tasks.size())];
  const HostId& host = desired_.hosts[random_.NextBelow(desired_.hosts.size())].id;
  if (task.host == host) return false;
  task.host = host;
  Note("moved", task.id + " to " + host);
  return true;
}

int Simulation::Workers() const {
  return static_cast<int>(
      std::ranges::count_if(desired_.tasks, [this](const DesiredTask& task) { return !IsServer(task.id); }));
}

// The last workers leave, or others join; some of them on hosts that nothing has run on yet.
bool Simulation::Scale(int wanted) {
  const int workers = Workers();
  if (Chance(0.5)) {
    ++late_;
    AddHost(absl::StrFormat("late%d", late_), absl::StrFormat("10.0.3.%d", late_));
  }
  for (int i = workers; i > wanted; --i) {
    Note("is to leave", desired_.tasks.back().id);
    desired_.tasks.pop_back();
  }
  for (int i = workers; i < wanted; ++i) {
    desired_.tasks.push_back(MakeTask("worker", i));
    if (Chance(0.5)) desired_.tasks.back().host = desired_.hosts.back().id;
    Note("is to join", desired_.tasks.back().id + " on " + desired_.tasks.back().host);
  }
  return wanted != workers;
}

void Simulation::KillLauncher() {
  if (finished_ || !reconciler_) return;
  Note("launcher killed");
  reconciler_.reset();
  ++life_;
  After(Between(500, 5000), [this] {
    if (!finished_) Launch(!record_.ending && Chance(desired_.elastic ? 0.8 : 0.5));
  });
}

void Simulation::Feed(int life, const Event& event) {
  if (life != life_ || !reconciler_ || finished_) return;
  const bool is_tick = std::holds_alternative<Tick>(event);
  if (now_ < busy_until_) {
    const Duration later = is_tick ? std::chrono::microseconds(100) : std::chrono::microseconds(0);
    queue_.push({busy_until_ + later, ++order_, [=, this] { Feed(life, event); }});
    return;
  }
  invariants_.OnEvent(event);
  const std::vector<Action> actions = reconciler_->Step(event, now_);
  NoteGivenUp();
  invariants_.OnDecided(reconciler_->GetView());
  bool has_failed = false;
  for (const Action& action : actions) {
    const auto* persist = std::get_if<PersistRecord>(&action);
    if (persist != nullptr && (has_failed || now_ < disk_full_until_)) {
      has_failed = true;
      Note("record not written");
      invariants_.OnRecordFailed(persist->record);
      continue;
    }
    if (has_failed && IsRequest(action)) continue;
    invariants_.OnAction(action);
    Execute(action);
    if (Fault(0.002)) KillLauncher();
    if (life != life_ || finished_) return;
  }
  if (has_failed) return Feed(life, RecordFailed{absl::ResourceExhaustedError("the disk is full")});
  invariants_.OnSettled(reconciler_->GetView(), reconciler_->NextDeadline(), now_, is_tick);
  Sleep();
}

void Simulation::NoteGivenUp() {
  const View view = reconciler_->GetView();
  std::set<HostId> given_up;
  for (const HostView& host : view.hosts) {
    if (host.state == HostState::kGivenUp) given_up.insert(host.host);
  }
  for (const TaskView& task : view.tasks) {
    HostId& place = places_[task.task];
    if (place != task.host && task.host.starts_with("spare")) Note("placed on a spare", task.task);
    place = task.host;
  }
  for (const HostId& host : given_up) {
    if (!given_up_.contains(host)) Note("host given up", host);
  }
  for (const HostId& host : given_up_) {
    if (!given_up.contains(host)) Note("host let in again", host);
  }
  given_up_ = std::move(given_up);
}

void Simulation::Sleep() {
  tick_at_ = reconciler_->NextDeadline();
  if (tick_at_ == TimePoint::max()) return;
  queue_.push({std::max(now_, tick_at_), ++order_, [this, life = life_, when = tick_at_] {
                 if (when == tick_at_) Feed(life, Tick{});
               }});
}

void Simulation::Execute(const Action& action) {
  const int life = life_;
  if (const auto* connect = std::get_if<Connect>(&action)) {
    const HostId host = connect->host;
    const ConnectionId connection = connect->connection;
    wires_[host] = {connection, false};
    Agent& agent = agents_[host];
    const bool there = agent.up && agent.reachable;
    Note("connect", host + (there ? "" : " in vain"));
    if (Fault(0.03)) {
      invariants_.OnRefused(host);
      invariants_.OnBreak(host, now_);
      // Or whoever answers there lets it in, and nothing more.
      if (Fault(0.5)) {
        After(Between(5, 800), [=, this] {
          if (life != life_ || wires_[host].connection != connection) return;
          Feed(life, HostComing{host, connection, /*has_logged_in=*/true});
        });
      }
      return Note("black hole", host);
    }
    if (Fault(0.02)) {
      invariants_.OnRefused(host);
      invariants_.OnBreak(host, now_);
      Note("login refused", host);
      return After(Between(5, 800), [=, this] {
        if (life != life_ || wires_[host].connection != connection) return;
        Feed(life, HostFailed{host, connection, PermissionDenied("%s takes no key", host)});
      });
    }
    // Some are far behind in the queue, or their links are slow, which they say often enough for an end.
    int64_t way = Between(5, 800);
    if (Fault(0.1)) {
      for (const int64_t limit = Between(1000, 40'000); way < limit; way += Between(300, 3000)) {
        After(way, [=, this] {
          if (life != life_ || wires_[host].connection != connection) return;
          Feed(life, HostComing{host, connection});
        });
      }
      invariants_.OnDelay(host, now_ + std::chrono::milliseconds(way));
    }
    After(way, [=, this] {
      Agent& agent = agents_[host];
      if (life != life_ || wires_[host].connection != connection) return;
      if (!agent.up || !agent.reachable)
        return Feed(life, HostFailed{host, connection, Unavailable("no route to %s", host)});
      Feed(life, HostConnected{host, connection, agent.address});
      if (life != life_) return;
      ToAgent(host, [=, this](Agent& at) {
        if (std::pair(life, connection) < std::pair(at.watcher_life, at.watcher)) return;  // late
        at.watcher_life = life;
        at.watcher = connection;
        Snapshot(at);
      });
    });
  } else if (const auto* contents = std::get_if<EnsureContents>(&action)) {
    const ConnectionId connection = wires_[contents->host].connection;
    const EnsureContents ask = *contents;
    int64_t way = Between(20, 2000);
    if (Fault(0.1)) {
      Note("contents come slowly", ask.host);
      for (const int64_t limit = Between(5000, 40'000); way < limit; way += Between(1000, 6000)) {
        After(way, [=, this] {
          ToLauncher(ask.host, life, connection, ContentsComing{ask.host, ask.request});
        });
      }
      invariants_.OnDelay(ask.host, now_ + std::chrono::milliseconds(way));
    }
    After(way, [=, this] {
      const bool refused = Fault(0.05);
      if (refused) invariants_.OnRefused(ask.host);
      ToLauncher(ask.host, life, connection,
                 refused ? Event(RequestFailed{ask.host, ask.request, Unavailable("the upload broke off")})
                         : Event(ContentsReady{ask.host, ask.request}));
    });
  } else if (const auto* lease = std::get_if<LeasePort>(&action)) {
    ToAgent(lease->host, [=, this, ask = *lease, connection = wires_[lease->host].connection](Agent& agent) {
      const auto avoided = [&](uint32_t port) {
        return std::count(ask.avoid.begin(), ask.avoid.end(), port) > 0;
      };
      uint32_t& port = agent.leases[ask.task];
      while (port == 0 || avoided(port)) port = static_cast<uint32_t>(Between(20000, 20020));
      invariants_.OnPortGiven(ask.task, ask.host, port);
      ToLauncher(ask.host, life, connection, PortLeased{ask.host, ask.request, port});
    });
  } else if (const auto* persist = std::get_if<PersistRecord>(&action)) {
    const Record& next = persist->record;
    if (record_.fixed && next.fixed && next.base_generation == record_.base_generation) {
      if (next.cluster->size() > record_.cluster->size()) Note("joins");
      if (next.cluster->size() < record_.cluster->size()) Note("leaves");
    }
    record_ = next;
    Note("persist", absl::StrFormat("generation %d fixed %d ending %d", record_.generation, record_.fixed,
                                    record_.ending.has_value()));
  } else if (const auto* start = std::get_if<StartTask>(&action)) {
    Note("start", absl::StrFormat("%s on %s generation %d %s", start->task, start->host, start->generation,
                                  start->spec_hash));
    ToAgent(start->host, [=, this, ask = *start, connection = wires_[start->host].connection](Agent& agent) {
      Start(agent, life, connection, ask);
    });
  } else if (const auto* stop = std::get_if<StopTasks>(&action)) {
    Note("stop", absl::StrFormat("%d tasks on %s below %d", stop->targets.size(), stop->host,
                                 stop->minimum_generation));
    ToAgent(stop->host, [=, this, ask = *stop, connection = wires_[stop->host].connection](Agent& agent) {
      Stop(agent, life, connection, ask);
    });
  } else if (const auto* finish = std::get_if<Finish>(&action)) {
    Note("finish", finish->outcome.message);
    if (finish->outcome.message.ends_with(" says")) Note("succeeds with a lost host");
    const char* result[] = {"succeeded", "failed", "stopped"};
    Note(absl::StrFormat("finish %s %d", result[static_cast<int>(finish->outcome.result)],
                         finish->outcome.exit_code));
    invariants_.OnFinish(finish->outcome, options_, now_);
    finished_ = true;
  }
}

// ---- The network
// ----------------------------------------------------------------------------------------------------

void Simulation::ToAgent(const HostId& host, std::function<void(Agent&)> work) {
  Wire& wire = wires_[host];
  if (wire.broken) return;
  if (Fault(0.01)) return Break(host, Between(0, 3000));  // lost: nothing after it arrives either
  if (Fault(0.01)) {                                      // lost without a trace: only a deadline can tell
    Note("request swallowed", host);
    invariants_.OnRefused(host);
    return invariants_.OnBreak(host, now_);
  }
  const int copies = Fault(0.05) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    // What is under way arrives, even when the connection or the launcher is gone by then.
    const bool late = Fault(0.05);
    if (late) invariants_.OnDelay(host, now_);
    After(late ? Between(500, 4000) : Between(1, 60), [=, this, folder = agents_[host].folder] {
      Agent& agent = agents_[host];
      if (agent.up && agent.reachable && agent.folder == folder) work(agent);
    });
  }
}

void Simulation::ToLauncher(const HostId& host, int life, ConnectionId connection, Event event) {
  if (life != life_ || !agents_[host].up || !agents_[host].reachable) return;
  if (wires_[host].connection == connection && wires_[host].broken) return;
  if (Fault(0.01)) return Break(host, Between(0, 3000));
  const int copies = Fault(0.05) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    const bool late = Fault(0.05);
    if (late) invariants_.OnDelay(host, now_);
    After(late ? Between(200, 2000) : Between(1, 60), [=, this] { Feed(life, event); });
  }
}

void Simulation::Break(const HostId& host, int64_t notice_milliseconds) {
  const auto found = wires_.find(host);
  if (found == wires_.end() || found->second.broken) return;
  Note("connection breaks", host);
  found->second.broken = true;
  invariants_.OnBreak(host, now_);
  After(notice_milliseconds, [=, this, life = life_, connection = found->second.connection] {
    Feed(life, HostFailed{host, connection, Unavailable("connection to %s lost", host)});
  });
}

// ---- Agents
// ---------------------------------------------------------------------------------------------------------

std::vector<TaskReport> Simulation::Reports(const Agent& agent) const {
  std::vector<TaskReport> reports;
  for (const auto& [id, task] : agent.tasks) reports.push_back(task.report);
  return reports;
}

void Simulation::Snapshot(Agent& agent) {
  ToLauncher(agent.id, agent.watcher_life, agent.watcher,
             HostReported{agent.id, agent.watcher, Reports(agent)});
}

void Simulation::Start(Agent& agent, int life, ConnectionId connection, const StartTask& start) {
  auto answer = [&](Event event) { ToLauncher(agent.id, life, connection, std::move(event)); };
  const auto known = agent.tasks.find(start.task);
  const std::pair deployment(start.generation, start.spec_hash);
  const bool same_spec = known != agent.tasks.end() && known->second.report.spec_hash == start.spec_hash;
  const bool repeated = known != agent.tasks.end() && known->second.report.generation == start.generation &&
                        known->second.report.spec_hash == start.spec_hash;
  if (repeated) return answer(TaskStarted{agent.id, start.request, known->second.report});
  if (start.generation < agent.minimum_generation) {
    Note("start fenced off", start.task);
    invariants_.OnStartRefused(start);
    return answer(RequestFailed{agent.id, start.request,
                                FailedPrecondition("generation %d is over", start.generation)});
  }
  const bool goes_on = same_spec && known->second.report.generation < start.generation &&
                       known->second.report.generation >= start.base_generation &&
                       (Live(known->second.report) ? start.follows_cluster && !known->second.report.stopped
                                                   : known->second.report.state == TaskState::kSucceeded);
  if (goes_on) {
    const bool succeeded = !Live(known->second.report);
    Note(succeeded ? "start of what has succeeded" : "goes on", start.task);
    invariants_.OnGoesOn(agent.id, known->second.report, start);
    agent.minimum_generation = start.generation;
    known->second.started.insert(deployment);
    known->second.report.generation = start.generation;
    Snapshot(agent);
    return answer(TaskStarted{agent.id, start.request, known->second.report});
  }
  if (known != agent.tasks.end() &&
      (Live(known->second.report) || known->second.started.contains(deployment))) {
    Note("start refused", start.task);
    invariants_.OnStartRefused(start);
    return answer(RequestFailed{agent.id, start.request, FailedPrecondition("another spec runs")});
  }
  agent.minimum_generation = start.generation;
  AgentTask& task = agent.tasks[start.task];
  task.started.insert(deployment);
  task.report.task = start.task;
  task.report.generation = start.generation;
  task.report.spec_hash = start.spec_hash;
  task.report.restarts = start.restarts;
  task.report.incarnation = std::max(task.report.incarnation + 1, start.minimum_incarnation) - 1;
  task.base_generation = start.base_generation;
  if (start.restarts > 0) Note("begins anew", start.task);
  Spawn(agent, task);
  answer(TaskStarted{agent.id, start.request, task.report});
}

void Simulation::Spawn(Agent& agent, AgentTask& task) {
  TaskReport& report = task.report;
  task.run = ++runs_;
  ++report.incarnation;
  report.state = TaskState::kPending;
  report.stopped = false;
  report.started_micros = Micros(now_);
  invariants_.OnStarted(agent.id, report);
  After(Between(1, 100), [=, this, host = agent.id, id = report.task, run = task.run] {
    AgentTask* const task = FindRun(host, id, run);
    if (task == nullptr) return;
    task->report.state = TaskState::kRunning;
    Snapshot(agents_[host]);
  });
  Note("runs", absl::StrFormat("%s on %s incarnation %d", report.task, agent.id, report.incarnation));
  const bool port_lost = Fault(0.04);
  After(port_lost ? 50 : 500, [=, this, host = agent.id, id = report.task, run = task.run] {
    if (!port_lost) return RunOn(host, id, run, Between(5000, 30000));
    AgentTask* const task = FindRun(host, id, run);
    if (task == nullptr) return;
    invariants_.OnSetback();
    Note("port lost", id);
    Exit(agents_[host], *task, kPortLostExitCode);
  });
  Snapshot(agent);
}

Simulation::AgentTask* Simulation::FindRun(const HostId& host, const TaskId& task, int run) {
  const auto found = agents_[host].tasks.find(task);
  return found != agents_[host].tasks.end() && found->second.run == run ? &found->second : nullptr;
}

// One second of a task's life after another, so that faults can end it at any.
void Simulation::RunOn(const HostId& host, const TaskId& id, int run, int64_t milliseconds_left) {
  Agent& agent = agents_[host];
  AgentTask* const found = FindRun(host, id, run);
  if (found == nullptr) return;
  AgentTask& task = *found;
  if (Fault(0.006)) {
    const int codes[] = {1, 3, 137, 139};
    return Exit(agent, task, codes[random_.NextBelow(4)]);
  }
  const bool done = IsServer(id) ? WorkersSucceeded(task.base_generation) : milliseconds_left <= 0;
  const bool never = IsServer(id) && host == "h0" && life_ % 2 == 0;  // a server that has to be stopped
  if (done && !never) return Exit(agent, task, 0);
  After(1000, [=, this] { RunOn(host, id, run, milliseconds_left - 1000); });
}

bool Simulation::WorkersSucceeded(uint64_t base_generation) const {
  const auto succeeded = [&](const TaskId& id) {
    return std::any_of(agents_.begin(), agents_.end(), [&](const auto& agent) {
      const auto found = agent.second.tasks.find(id);
      return found != agent.second.tasks.end() && found->second.report.generation >= base_generation &&
             found->second.report.state == TaskState::kSucceeded;
    });
  };
  return std::all_of(desired_.tasks.begin(), desired_.tasks.end(), [&](const DesiredTask& desired) {
    return IsServer(desired.id) || succeeded(desired.id);
  });
}

void Simulation::Exit(Agent& agent, AgentTask& task, int exit_code) {
  TaskReport& report = task.report;
  task.run = ++runs_;
  report.exit_code = exit_code;
  report.ended_micros = Micros(now_);
  report.reason = exit_code > 128 ? absl::StrFormat("killed by signal %d", exit_code - 128) : "exited";
  // Policy exit_code: 1-127 permanent, 128-255 retryable.
  const bool again = !report.stopped && exit_code > 128 && report.restarts < kMaxRestarts;
  report.state = exit_code == 0 ? TaskState::kSucceeded : again ? TaskState::kRestarting : TaskState::kFailed;
  invariants_.OnEnded(agent.id, report);
  Note(report.stopped   ? exit_code == 0 ? "succeeds though stopped" : "stopped"
       : exit_code == 0 ? "succeeds"
       : again          ? "crashes"
                        : "dies",
       absl::StrFormat("%s on %s exit %d", report.task, agent.id, exit_code));
  if (again) {
    After(500, [=, this, host = agent.id, id = report.task, run = task.run] {
      AgentTask* const task = FindRun(host, id, run);
      if (task == nullptr || !agents_[host].up) return;
      ++task->report.restarts;
      Spawn(agents_[host], *task);
    });
  } else if (report.state == TaskState::kFailed && !report.stopped) {
    invariants_.OnDied(agent.id, report);
    // Others of the cluster may die because of it.
    for (auto& [host, other_agent] : agents_) {
      for (auto& [id, other] : other_agent.tasks) {
        if (!Live(other.report) || other.report.generation != report.generation || !Chance(0.2)) continue;
        After(Between(1, 3000), [=, this, host = host, id = id, run = other.run] {
          AgentTask* const task = FindRun(host, id, run);
          if (task != nullptr) Exit(agents_[host], *task, 1);
        });
      }
    }
  }
  Snapshot(agent);
}

void Simulation::Stop(Agent& agent, int life, ConnectionId connection, const StopTasks& stop) {
  agent.minimum_generation = std::max(agent.minimum_generation, stop.minimum_generation);
  for (auto& [id, task] : agent.tasks) {
    const bool meant = stop.targets.empty() ||
                       std::ranges::find(stop.targets, DeploymentOf(task.report)) != stop.targets.end();
    const bool spared = stop.minimum_generation > 0 && task.report.generation >= stop.minimum_generation;
    if (!meant || spared || !Live(task.report) || task.report.stopped) continue;
    task.report.stopped = true;
    if (!stop.keep_ports) agent.leases.erase(id);
    const bool between_starts = task.report.state == TaskState::kRestarting;
    After(between_starts ? 0 : Between(10, 3000), [=, this, host = agent.id, id = id, run = task.run] {
      // It may have done its work by then.
      const bool is_done = !IsServer(id) && Chance(0.1);
      AgentTask* const task = FindRun(host, id, run);
      if (task != nullptr) Exit(agents_[host], *task, is_done ? 0 : 143);
    });
  }
  KillOrphans(agent, stop);
  // Answers when nothing of it is left.
  After(3100, [=, this, host = agent.id, folder = agent.folder] {
    Agent& agent = agents_[host];
    if (agent.up && agent.folder == folder)
      ToLauncher(host, life, connection, TasksStopped{host, stop.request, 0, 0, Reports(agent)});
  });
}

// A task that it knows under another start than the one that is to be stopped has been started since.
void Simulation::KillOrphans(Agent& agent, const StopTasks& stop) {
  const bool is_late = std::ranges::any_of(agent.tasks, [&](const auto& task) {
    return stop.minimum_generation > 0 && task.second.report.generation >= stop.minimum_generation;
  });
  std::erase_if(agent.orphans, [&](const auto& orphan) {
    const bool meant = stop.targets.empty()
                           ? !is_late
                           : std::ranges::count(stop.targets, orphan.first, &Deployment::task) > 0 &&
                                 !agent.tasks.contains(orphan.first);
    if (meant) Note("orphan killed", orphan.first + " on " + agent.id);
    if (meant) invariants_.OnOrphanEnded(agent.id, orphan.first);
    return meant;
  });
}

}  // namespace muster::reconcile
