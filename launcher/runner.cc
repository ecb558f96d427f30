#include "launcher/runner.h"

#include <absl/strings/str_join.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <thread>

#include "base/wake.h"
#include "launcher/cluster_texts.h"
#include "launcher/event_queue.h"
#include "launcher/host_records.h"
#include "launcher/job_reporter.h"
#include "launcher/reconciler/reconciler.h"
#include "launcher/running_job.h"
#include "launcher/task_output.h"
#include "launcher/transport/guest_commands.h"

namespace muster {
namespace {

// At what other musters have written: where standing servers are, and whether the job is to be stopped.
constexpr Duration kLookEvery = std::chrono::seconds(1);
// If there was no plan, or one without some hosts: twice as long each time.
constexpr Duration kPlanAgainAfter = std::chrono::seconds(30), kPlanAgainAtMost = std::chrono::minutes(10);

// How soon a host counts as lost that does not even acknowledge. Its tasks do not mind, if it is not.
constexpr std::chrono::milliseconds kSilenceLimit{3000};

struct Warning {
  std::string text;
};

struct HostNames {
  std::set<std::string> names;  // of the inventory's hosts
};

// What RunOptions::replan has said.
struct Planned {
  std::set<std::string> hosts;  // that it was asked about
  int tasks = 0;                // that the job had then
  absl::StatusOr<std::optional<NewPlan>> plan;
};

using RunnerEvent =
    std::variant<SessionEvent, HostSighting, HostNames, Planned, Warning, std::shared_ptr<Guest>>;

class Runner {
 public:
  Runner(const JobStore& store, record::JobRecord record, const Contents& contents, const RunOptions& options,
         RunObserver& observer)
      : store_(store),
        record_(std::move(record)),
        contents_(contents),
        options_(options),
        connect_(options.connect),
        reporter_(store_.JobFolder(record_.id()) / kHistoryFile, observer),
        output_(record_, store_.JobFolder(record_.id()), options_.follow_logs,
                {.session_of = [this](const std::string& host) -> HostSession& { return SessionOf(host); },
                 .wait = [this](TimePoint deadline) { return WaitForSessions(deadline); },
                 .is_interrupted = [this] { return Interrupts() > interrupts_handled_; }},
                reporter_) {
    connect_.ssh.silence_limit = kSilenceLimit;
  }
  ~Runner() { planning_ends_.Set(); }

  absl::StatusOr<RunResult> Run();

 private:
  absl::Status Loop(reconcile::Reconciler& reconciler);
  void BeginPlanning();
  void Handle(reconcile::Reconciler& reconciler, const std::deque<RunnerEvent>& events);
  void Handle(reconcile::Reconciler& reconciler, const RunnerEvent& event);
  void Handle(reconcile::Reconciler& reconciler, const SessionEvent& event);
  void Handle(reconcile::Reconciler& reconciler, const HostSighting& sighting);
  void Handle(reconcile::Reconciler& reconciler, Planned planned);
  absl::Status Adopt(reconcile::Reconciler& reconciler, const NewPlan& plan);
  void NoteReached(const std::deque<RunnerEvent>& events);
  void Learn(reconcile::Reconciler& reconciler, const HostFacts& facts);
  void Watch();
  void ReportMissing(const reconcile::View& view);
  void LookAround(reconcile::Reconciler& reconciler);
  void FollowServers(reconcile::Reconciler& reconciler);
  void Lend();
  void Handle(const std::shared_ptr<Guest>& guest);
  int Interrupts();
  absl::Status HandleInterrupts(reconcile::Reconciler& reconciler);
  void Step(reconcile::Reconciler& reconciler, const reconcile::Event& event);
  void Perform(reconcile::Reconciler& reconciler, const std::vector<reconcile::Action>& actions);
  absl::Status Persist(const reconcile::Record& cluster);
  absl::Status Save();
  void Start(const reconcile::StartTask& start);
  HostSession& SessionOf(const std::string& host);
  std::vector<SessionEvent> WaitForSessions(TimePoint deadline);
  bool EverythingRuns(const reconcile::View& view) const;
  RunResult Finish(const reconcile::Reconciler& reconciler);

  const JobStore& store_;
  record::JobRecord record_;
  ClusterTexts cluster_texts_;
  const Contents& contents_;
  const RunOptions& options_;
  ConnectOptions connect_;
  JobReporter reporter_;
  TaskOutput output_;
  EventQueue<RunnerEvent> queue_;  // from the threads of the sessions, the watch, and who listens
  ContentRelay relay_;
  std::map<std::string, std::unique_ptr<HostSession>> sessions_;
  std::map<std::pair<std::string, std::string>, std::string> machines_;  // (host key, machine-id): its name
  std::set<std::string> missing_;
  std::unique_ptr<HostWatch> watch_;
  std::optional<std::set<std::string>> named_hosts_;  // by the inventory, as nobody has looked at yet
  TimePoint plan_at_;                                 // not before
  Duration plan_again_after_ = kPlanAgainAfter;
  std::string said_of_plan_;                 // why there is none
  bool is_unwritten_ = false;                // the record, which has been said
  bool has_learned_ = false;                 // where hosts are, which is not written yet
  std::unique_ptr<GuestListener> listener_;  // null: not (yet) lent
  std::optional<reconcile::Outcome> outcome_;
  TimePoint next_look_;  // kLookEvery
  bool servers_are_there_ = true;
  bool everything_runs_ = false;  // which has been said
  bool is_ending_ = false;        // likewise
  int interrupts_handled_ = 0;
  bool stop_requested_ = false;   // by an interrupt
  bool is_told_to_stop_ = false;  // by another muster
  Wake planning_ends_;
  std::optional<std::jthread> planning_;  // last: it uses the above
};

void SayOnce(const std::function<void()>& say, bool& is_said) {
  if (!std::exchange(is_said, true) && say) say();
}

absl::StatusOr<RunResult> Runner::Run() {
  // What runs can be found by an older record: to end it, or to watch over it, does not wait for a newer one.
  if (const absl::Status saved = Save(); !saved.ok() && !store_.Load(record_.id()).ok()) return saved;
  reconcile::Options reconciler_options;
  reconciler_options.run_deadline = options_.run_deadline;
  if (options_.lost_deadline) reconciler_options.lost_deadline = *options_.lost_deadline;
  reconciler_options.start_timeout = StartTimeout(record_);
  reconcile::Reconciler reconciler(DesiredOf(record_), FromProto(record_.cluster()), reconciler_options,
                                   Now());
  Watch();
  if (options_.stop) Step(reconciler, reconcile::StopRequested{});
  Step(reconciler, reconcile::Tick{});
  MUSTER_RETURN_IF_ERROR(Loop(reconciler));
  listener_ = nullptr;
  if (!outcome_) {
    // Whoever goes on with it knows what this process knows.
    MUSTER_RETURN_IF_ERROR(Persist(reconciler.record()));
    return RunResult{.is_left = true};
  }
  return Finish(reconciler);
}

RunResult Runner::Finish(const reconcile::Reconciler& reconciler) {
  RunResult result{.outcome = *outcome_};
  bool is_given_up = false;
  interrupts_handled_ = Interrupts();  // a stop comes too late; to bring what there is may take long, though
  output_.FinishFollowing(reconciler.GetView());
  if (outcome_->result == reconcile::Result::kSucceeded) {
    if (const absl::Status fetched = output_.FetchResults(); !fetched.ok()) {
      const std::string later = absl::StrFormat(
          "; `muster wait %s` tries again, `muster stop %s` gives them up", record_.id(), record_.id());
      is_given_up = options_.stop && !absl::IsCancelled(fetched);
      result.fetched = absl::Status(fetched.code(),
                                    std::string(fetched.message()) + (is_given_up ? std::string() : later));
      reporter_.NoteUnfetched(fetched);
    }
    if (options_.fetch_task_metrics) result.task_metrics = output_.FetchTaskMetrics();
  }
  if (outcome_->result == reconcile::Result::kFailed && outcome_->first_cause) {
    result.last_words = output_.FetchLastWords(*outcome_->first_cause);
    reporter_.NoteFailure(*outcome_, result.last_words);
  }
  result.result_json = output_.result_json();
  reporter_.OnView(reconciler.GetView());
  // What is still to be had is still somebody's to bring.
  if (result.fetched.ok() || is_given_up) record_.set_ended_micros(WallTimeMicros());
  *record_.mutable_cluster() = ToProto(reconciler.record());
  result.fetched.Update(store_.Save(record_));
  watch_ = nullptr;
  relay_.Close();
  sessions_.clear();
  return result;
}

absl::Status Runner::Loop(reconcile::Reconciler& reconciler) {
  while (!outcome_) {
    // At least once a second, so that tables of ages and the live line go on.
    const TimePoint deadline = std::min(reconciler.NextDeadline(), Now() + std::chrono::seconds(1));
    const auto events = queue_.Wait(options_.interrupt_fd, deadline);
    // Once it ends, it is this process's to bring to its end.
    if (options_.leave != nullptr && *options_.leave && !is_ending_) return absl::OkStatus();
    MUSTER_RETURN_IF_ERROR(HandleInterrupts(reconciler));
    if (options_.give_up_at && Now() >= *options_.give_up_at) {
      return DeadlineExceeded("job %s has not ended", record_.id());
    }
    Handle(reconciler, events);
    if (Now() >= next_look_) LookAround(reconciler);
    if (!outcome_ && Now() >= reconciler.NextDeadline()) {
      // What has come while this thread was busy, with starts perhaps, is not overdue.
      Handle(reconciler, queue_.Wait(-1, Now()));
      if (!outcome_) Step(reconciler, reconcile::Tick{});
    }
    // Of many that move at once only one record is written.
    if (std::exchange(has_learned_, false)) (void)Save();
    const reconcile::View view = reconciler.GetView();
    if (options_.follow_logs || options_.on_everything_runs || options_.leave_running) output_.Follow(view);
    reporter_.OnView(view);
    ReportMissing(view);
    if (!outcome_ && EverythingRuns(view)) {
      // Guests are heard from the next turn on.
      if (!everything_runs_) Lend();
      SayOnce(options_.on_everything_runs, everything_runs_);
      // Interrupted in the last moment, it is not in the background.
      if (options_.interrupts != nullptr && *options_.interrupts > interrupts_handled_) listener_ = nullptr;
      if (options_.leave_running && !view.ending) return absl::OkStatus();
      if (!view.ending) BeginPlanning();
    }
    if (view.ending) SayOnce(options_.on_ending, is_ending_);
  }
  return absl::OkStatus();
}

void Runner::Handle(reconcile::Reconciler& reconciler, const std::deque<RunnerEvent>& events) {
  NoteReached(events);
  for (const RunnerEvent& event : events) Handle(reconciler, event);
}

void Runner::Handle(reconcile::Reconciler& reconciler, const RunnerEvent& event) {
  if (const auto* warning = std::get_if<Warning>(&event)) reporter_.Notice(warning->text);
  if (const auto* sighting = std::get_if<HostSighting>(&event)) Handle(reconciler, *sighting);
  if (const auto* hosts = std::get_if<HostNames>(&event)) {
    named_hosts_ = hosts->names;
    plan_at_ = {};
    plan_again_after_ = kPlanAgainAfter;
  }
  if (const auto* planned = std::get_if<Planned>(&event)) Handle(reconciler, *planned);
  if (const auto* session = std::get_if<SessionEvent>(&event)) Handle(reconciler, *session);
  if (const auto* guest = std::get_if<std::shared_ptr<Guest>>(&event)) Handle(*guest);
}

void Runner::Lend() {
  if (options_.guests == nullptr) return;
  auto listener =
      GuestListener::Open(store_.JobFolder(record_.id()) / kConnectionsSocket,
                          [this](Guest guest) { queue_.Push(std::make_shared<Guest>(std::move(guest))); });
  if (listener.ok()) {
    listener_ = *std::move(listener);
  } else {
    reporter_.Notice("the job's connections are not lent: " + std::string(listener.status().message()));
  }
}

void Runner::Handle(const std::shared_ptr<Guest>& guest) {
  const auto session = sessions_.find(guest->wanted.host());
  if (session == sessions_.end()) return guest->Refuse("it is no host of the job");
  session->second->Lend(guest);
}

void Runner::Handle(reconcile::Reconciler& reconciler, const SessionEvent& event) {
  output_.OnEvent(event);
  if (const auto* upload = std::get_if<UploadStep>(&event)) reporter_.observer().OnUpload(*upload);
  if (const auto* facts = std::get_if<HostFacts>(&event)) {
    reporter_.observer().OnHostFacts(*facts);
    Learn(reconciler, *facts);
  }
  if (const auto* change = std::get_if<reconcile::Event>(&event); change != nullptr && !outcome_) {
    Step(reconciler, *change);
  }
}

void Runner::Handle(reconcile::Reconciler& reconciler, const HostSighting& sighting) {
  if (outcome_ || !SessionOf(sighting.host).Relocate(sighting)) return;
  reporter_.Notice(
      absl::StrFormat("%s may be at %s, as %s says", sighting.host, sighting.ssh_address, sighting.source));
  Step(reconciler, reconcile::HostSighted{sighting.host});
}

// Before anything is asked of them: whoever goes on with the job looks there from now on. Of all that come at
// once only one record is written.
void Runner::NoteReached(const std::deque<RunnerEvent>& events) {
  std::vector<record::Host*> reached;
  for (const RunnerEvent& event : events) {
    const auto* session = std::get_if<SessionEvent>(&event);
    const auto* facts = session != nullptr ? std::get_if<HostFacts>(session) : nullptr;
    if (facts == nullptr) continue;
    const auto host = std::ranges::find(*record_.mutable_hosts(), facts->host, &record::Host::name);
    if (host == record_.mutable_hosts()->end() || !host->unreached()) continue;
    host->set_unreached(false);
    reached.push_back(&*host);
  }
  if (reached.empty() || Save().ok()) return;
  for (record::Host* host : reached) host->set_unreached(true);
}

// Whoever goes on with the job looks for the host where it was seen last.
void Runner::Learn(reconcile::Reconciler& reconciler, const HostFacts& facts) {
  for (record::Host& host : *record_.mutable_hosts()) {
    if (host.name() != facts.host) continue;
    if (host.unreached()) {
      // It is there: that is not what it is waited for.
      Step(reconciler, reconcile::HostComing{.host = facts.host, .connection = facts.connection});
      return Step(reconciler,
                  reconcile::HostFailed{
                      .host = facts.host,
                      .connection = facts.connection,
                      .status = Unavailable("%s: that it was reached cannot be written into the job's record",
                                            facts.host)});
    }
    const bool is_elsewhere = host.ssh_address() != facts.place.ssh_address() ||
                              host.ssh_port() != facts.place.ssh_port() ||
                              host.data_address() != facts.place.data_address();
    host = facts.place;
    host.set_reached(true);
    host.set_unreached(false);
    has_learned_ = has_learned_ || is_elsewhere;
  }
  if (facts.host_key.empty() || facts.facts.machine_id().empty()) return;
  const auto [known, is_new] = machines_.try_emplace({facts.host_key, facts.facts.machine_id()}, facts.host);
  if (known->second == facts.host || outcome_) return;
  Step(reconciler,
       reconcile::HostFailed{
           .host = facts.host,
           .connection = facts.connection,
           .status = FailedPrecondition(
               "%s and %s are one machine: both have the host key %s and the machine-id %s; take one "
               "of them out of the inventory",
               known->second, facts.host, facts.host_key, facts.facts.machine_id())});
}

// It reads files, runs the discovery command, and may ask hosts for their GPUs: not on this thread.
void Runner::BeginPlanning() {
  if (!named_hosts_ || options_.replan == nullptr || planning_ || Now() < plan_at_) return;
  planning_.emplace([this, hosts = *std::exchange(named_hosts_, std::nullopt), record = record_]() mutable {
    absl::StatusOr<std::optional<NewPlan>> plan = options_.replan(hosts, record, planning_ends_.fd());
    queue_.Push(Planned{std::move(hosts), record.tasks_size(), std::move(plan)});
  });
}

void Runner::Handle(reconcile::Reconciler& reconciler, Planned planned) {
  planning_.reset();
  if (planned.plan.ok() && !*planned.plan) return;
  const reconcile::View view = reconciler.GetView();
  if (view.phase != reconcile::Phase::kRunning || view.has_leavers) {
    if (!named_hosts_) named_hosts_ = std::move(planned.hosts);  // for when everything runs again
    return;
  }
  MUSTER_CHECK(record_.tasks_size() == planned.tasks, "only plans change the tasks");
  const absl::Status status = planned.plan.ok() ? Adopt(reconciler, **planned.plan) : planned.plan.status();
  const std::string why(status.message());
  if (std::exchange(said_of_plan_, why) != why && !status.ok()) reporter_.Notice(why);
  if (status.ok()) return;
  // What is wrong may be over soon.
  if (named_hosts_) return;
  named_hosts_ = std::move(planned.hosts);
  plan_at_ = Now() + plan_again_after_;
  plan_again_after_ = std::min(2 * plan_again_after_, kPlanAgainAtMost);
}

absl::Status Runner::Adopt(reconcile::Reconciler& reconciler, const NewPlan& plan) {
  record::JobRecord grown = record_;
  GrowJob(plan.record, &grown);
  MUSTER_RETURN_IF_ERROR(store_.Save(grown));
  record_ = std::move(grown);
  reporter_.Notice(plan.what);
  if (watch_ != nullptr) watch_->Add(AllHosts(record_));
  Step(reconciler, reconcile::MoreDesired{DesiredOf(record_)});
  return plan.rest;
}

void Runner::Watch() {
  if (options_.home.empty()) return;
  watch_ = std::make_unique<HostWatch>(HostWatchOptions{
      .inventory = record_.inventory_file(),
      .home = options_.home,
      .known_hosts = options_.connect.ssh.known_hosts,
      .hosts = AllHosts(record_),
      .sighted = [this](HostSighting sighting) { queue_.Push(std::move(sighting)); },
      .named = [this](std::set<std::string> names) { queue_.Push(HostNames{std::move(names)}); },
      .warn = [this](std::string text) { queue_.Push(Warning{std::move(text)}); }});
}

void Runner::LookAround(reconcile::Reconciler& reconciler) {
  next_look_ = Now() + kLookEvery;
  // The reconciler tries again only what it waits for.
  if (is_unwritten_) (void)Save();
  if (record_.has_servers()) FollowServers(reconciler);
  if (outcome_ || !store_.IsToStop(record_.id()) || std::exchange(is_told_to_stop_, true)) return;
  if (!reconciler.GetView().ending) {
    reporter_.Notice(absl::StrFormat("job %s was stopped by another command", record_.id()));
  }
  Step(reconciler, reconcile::StopRequested{});
}

// Whoever drives the standing servers writes down where they are.
void Runner::FollowServers(reconcile::Reconciler& reconciler) {
  const absl::StatusOr<record::JobRecord> servers = store_.Load(record_.servers().job());
  if (const bool are_there = servers.ok() && AreThere(*servers); !are_there) {
    if (std::exchange(servers_are_there_, false)) {
      reporter_.Notice(absl::StrFormat("the servers of %s do not stand any more", record_.servers().job()));
    }
    return;
  }
  servers_are_there_ = true;
  std::vector<std::string> before, now;
  for (const auto& member : record_.servers().members()) before.push_back(AddressOfMember(member));
  for (const auto& member : servers->cluster().members()) now.push_back(AddressOfMember(member));
  // With another number of servers the workers have nothing to do.
  if (now == before || now.size() != before.size() || outcome_) return;
  *record_.mutable_servers()->mutable_members() = servers->cluster().members();
  reporter_.Notice(
      absl::StrFormat("the servers of %s are at %s now", servers->id(), absl::StrJoin(now, ", ")));
  Step(reconciler, reconcile::ServersMoved{});
}

void Runner::ReportMissing(const reconcile::View& view) {
  std::set<std::string> missing;
  for (const reconcile::HostView& host : view.hosts) {
    const bool is_there =
        host.state == reconcile::HostState::kConnected || host.state == reconcile::HostState::kReady;
    if (!is_there && host.attempts > 0) missing.insert(host.host);
  }
  if (watch_ == nullptr || missing == missing_) return;
  missing_ = missing;
  watch_->SetMissing(std::move(missing));
}

// How many there have been.
int Runner::Interrupts() {
  if (options_.interrupt_fd >= 0) {
    uint64_t ignored;
    (void)!::read(options_.interrupt_fd, &ignored, sizeof ignored);
  }
  return options_.interrupts == nullptr ? 0 : options_.interrupts->load();
}

absl::Status Runner::HandleInterrupts(reconcile::Reconciler& reconciler) {
  if (Interrupts() == interrupts_handled_) return absl::OkStatus();
  ++interrupts_handled_;  // one at a time: the stop is begun first, whatever came meanwhile
  if (!stop_requested_) {
    stop_requested_ = true;
    Step(reconciler, reconcile::StopRequested{});
    return absl::OkStatus();
  }
  return Cancelled("interrupted again: tasks of job %s may still run; `muster stop %s` ends them",
                   record_.id(), record_.id());
}

void Runner::Step(reconcile::Reconciler& reconciler, const reconcile::Event& event) {
  Perform(reconciler, reconciler.Step(event, Now()));
}

void Runner::Perform(reconcile::Reconciler& reconciler, const std::vector<reconcile::Action>& actions) {
  absl::Status saved;
  for (const reconcile::Action& action : actions) {
    if (const auto* finish = std::get_if<reconcile::Finish>(&action)) {
      outcome_ = finish->outcome;
    } else if (const auto* persist = std::get_if<reconcile::PersistRecord>(&action)) {
      if (saved.ok()) saved = Persist(persist->record);
    } else if (!saved.ok() && reconcile::IsRequest(action)) {
      continue;  // without its record, nobody could find again what comes of it
    } else if (const auto* start = std::get_if<reconcile::StartTask>(&action)) {
      Start(*start);
    } else {
      const std::string& host = std::visit(
          [](const auto& a) -> const std::string& {
            if constexpr (requires { a.host; }) return a.host;
            static const std::string none;
            return none;
          },
          action);
      SessionOf(host).Execute(action);
    }
  }
  if (!saved.ok()) Step(reconciler, reconcile::RecordFailed{saved});
}

absl::Status Runner::Persist(const reconcile::Record& cluster) {
  *record_.mutable_cluster() = ToProto(cluster);
  for (const reconcile::HostId& host : cluster.strays) UseSpareHost(host, &record_);
  std::map<std::string, std::string> places;
  if (cluster.fixed && !cluster.ending) {
    for (const reconcile::Member& member : *cluster.cluster) places[member.task] = member.host;
  }
  for (record::Task& task : *record_.mutable_tasks()) {
    if (const auto place = places.find(task.id()); place != places.end()) task.set_host(place->second);
  }
  return Save();
}

absl::Status Runner::Save() {
  has_learned_ = false;
  const absl::Status saved = store_.Save(record_);
  if (!std::exchange(is_unwritten_, !saved.ok()) && !saved.ok()) {
    reporter_.Notice("the job record cannot be written, which is tried again: " +
                     std::string(saved.message()));
  }
  return saved;
}

void Runner::Start(const reconcile::StartTask& start) {
  auto request = MakeStartRequest(record_, start, cluster_texts_);
  if (!request.ok()) {
    queue_.Push(reconcile::Event(
        reconcile::RequestFailed{.host = start.host, .request = start.request, .status = request.status()}));
    return;
  }
  SessionOf(start.host).Start(start.request, *std::move(request));
}

HostSession& Runner::SessionOf(const std::string& name) {
  auto& session = sessions_[name];
  if (session == nullptr) {
    record::Host host;
    host.set_name(name);
    if (const record::Host* known = FindHost(record_, name); known != nullptr) host = *known;
    session = std::make_unique<HostSession>(
        HostSessionOptions{.host = std::move(host),
                           .job = record_.id(),
                           .required_glibc = record_.required_glibc(),
                           .connect = connect_,
                           .contents = &contents_,
                           .relay = &relay_,
                           .guests = options_.guests,
                           .start_timeout = StartTimeout(record_),
                           .sink = [this](SessionEvent event) { queue_.Push(std::move(event)); }});
  }
  return *session;
}

std::vector<SessionEvent> Runner::WaitForSessions(TimePoint deadline) {
  std::vector<SessionEvent> of_sessions;
  for (RunnerEvent& event : queue_.Wait(options_.interrupt_fd, deadline)) {
    if (auto* session = std::get_if<SessionEvent>(&event)) of_sessions.push_back(std::move(*session));
  }
  return of_sessions;
}

bool Runner::EverythingRuns(const reconcile::View& view) const {
  return view.phase == reconcile::Phase::kRunning && !view.has_leavers &&
         std::all_of(view.tasks.begin(), view.tasks.end(), [](const reconcile::TaskView& task) {
           return task.state != reconcile::TaskState::kPending;
         });
}

}  // namespace

absl::StatusOr<RunResult> RunJob(const JobStore& store, record::JobRecord record, const Contents& contents,
                                 const RunOptions& options, RunObserver& observer) {
  return Runner(store, std::move(record), contents, options, observer).Run();
}

}  // namespace muster
