#include "launcher/runner.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <set>

#include "launcher/plan.h"
#include "launcher/reconciler/reconciler.h"

namespace muster {
namespace {

constexpr Duration kDrainTimeout = std::chrono::seconds(10);
constexpr const char* kResultFiles[] = {"result.json", "metrics.jsonl", "model.safetensors"};

// Events from the sessions' threads to the runner's, with a descriptor to wait on.
class EventQueue {
 public:
  EventQueue() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { MUSTER_CHECK(wake_.valid()); }

  void Push(SessionEvent event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    const uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);
  }

  /// All there are; waits for the first until the deadline or until `other_fd` is readable.
  std::deque<SessionEvent> Wait(int other_fd, TimePoint deadline) {
    pollfd fds[] = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                    {.fd = other_fd, .events = POLLIN, .revents = 0}};
    ::poll(fds, 2, MillisecondsUntil(deadline));
    uint64_t ignored;
    (void)!::read(wake_.get(), &ignored, sizeof ignored);
    const std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  UniqueFd wake_;
  std::mutex mutex_;
  std::deque<SessionEvent> events_;
};

class Runner {
 public:
  Runner(const JobStore& store, record::JobRecord record, const Contents& contents, const RunOptions& options,
         RunObserver& observer)
      : store_(store),
        record_(std::move(record)),
        contents_(contents),
        options_(options),
        observer_(observer) {
    for (const record::Task& task : record_.tasks()) {
      if (task.is_chief()) chief_ = task.id();
    }
  }

  absl::StatusOr<RunResult> Run();

 private:
  absl::Status Loop(reconcile::Reconciler& reconciler);
  absl::Status HandleInterrupts(reconcile::Reconciler& reconciler);
  void Step(reconcile::Reconciler& reconciler, const reconcile::Event& event);
  void Perform(reconcile::Reconciler& reconciler, const std::vector<reconcile::Action>& actions);
  absl::Status Persist(const reconcile::Record& cluster);
  void Start(const reconcile::StartTask& start);
  HostSession& SessionOf(const std::string& host);
  void Handle(const FileBytes& bytes);
  void FollowOutput(const reconcile::View& view);
  bool EverythingRuns(const reconcile::View& view) const;
  void Drain();
  void FetchResults();

  const JobStore& store_;
  record::JobRecord record_;
  const Contents& contents_;
  const RunOptions& options_;
  RunObserver& observer_;
  std::string chief_;
  EventQueue queue_;
  std::map<std::string, std::unique_ptr<HostSession>> sessions_;
  std::optional<reconcile::Outcome> outcome_;
  bool detached_ = false;
  int interrupts_handled_ = 0;
  std::set<std::pair<std::string, std::string>> following_;  // (task, path)
  std::map<std::string, uint64_t> followed_incarnation_;     // of each task, counted over generations
  std::map<std::string, std::string> results_;               // what has come of the files in kResultFiles
};

absl::StatusOr<RunResult> Runner::Run() {
  const reconcile::Desired desired = DesiredOf(record_);
  MUSTER_RETURN_IF_ERROR(store_.Save(record_));
  reconcile::Options reconciler_options;
  reconciler_options.run_deadline = options_.run_deadline;
  reconcile::Reconciler reconciler(desired, FromProto(record_.cluster()), reconciler_options, Now());
  if (options_.stop) Step(reconciler, reconcile::StopRequested{});
  Step(reconciler, reconcile::Tick{});
  MUSTER_RETURN_IF_ERROR(Loop(reconciler));
  if (!detached_) {
    Drain();
    FetchResults();
    observer_.OnView(reconciler.GetView());
    record_.set_ended_micros(WallTimeMicros());
    *record_.mutable_cluster() = ToProto(reconciler.record());
    MUSTER_RETURN_IF_ERROR(store_.Save(record_));
  }
  sessions_.clear();
  return RunResult{.outcome = outcome_.value_or(reconcile::Outcome{}),
                   .detached = detached_,
                   .result_json = results_["result.json"]};
}

absl::Status Runner::Loop(reconcile::Reconciler& reconciler) {
  while (!outcome_ && !detached_) {
    // At least once a second, so that tables of ages and the live line go on.
    const TimePoint deadline = std::min(reconciler.NextDeadline(), Now() + std::chrono::seconds(1));
    const auto events = queue_.Wait(options_.interrupt_fd, deadline);
    MUSTER_RETURN_IF_ERROR(HandleInterrupts(reconciler));
    for (const SessionEvent& event : events) {
      if (const auto* bytes = std::get_if<FileBytes>(&event)) Handle(*bytes);
      if (const auto* upload = std::get_if<UploadStep>(&event)) observer_.OnUpload(*upload);
      if (const auto* facts = std::get_if<HostFacts>(&event)) observer_.OnHostFacts(*facts);
      if (const auto* change = std::get_if<reconcile::Event>(&event); change != nullptr && !outcome_) {
        Step(reconciler, *change);
      }
    }
    if (!outcome_ && Now() >= reconciler.NextDeadline()) Step(reconciler, reconcile::Tick{});
    const reconcile::View view = reconciler.GetView();
    if (options_.follow_logs || options_.detach) FollowOutput(view);
    observer_.OnView(view);
    detached_ = options_.detach && !outcome_ && EverythingRuns(view);
  }
  return absl::OkStatus();
}

absl::Status Runner::HandleInterrupts(reconcile::Reconciler& reconciler) {
  const int interrupts = options_.interrupts == nullptr ? 0 : options_.interrupts->load();
  if (interrupts == interrupts_handled_) return absl::OkStatus();
  const bool first = interrupts_handled_ == 0;
  interrupts_handled_ = interrupts;
  if (options_.interrupt_fd >= 0) {
    uint64_t ignored;
    (void)!::read(options_.interrupt_fd, &ignored, sizeof ignored);
  }
  if (first && interrupts == 1) {
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
  for (const reconcile::Action& action : actions) {
    if (const auto* persist = std::get_if<reconcile::PersistRecord>(&action)) {
      if (const absl::Status saved = Persist(persist->record); !saved.ok()) {
        // What follows would start tasks that nobody could find again.
        Step(reconciler, reconcile::RecordFailed{saved});
        return;
      }
    } else if (const auto* finish = std::get_if<reconcile::Finish>(&action)) {
      outcome_ = finish->outcome;
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
}

absl::Status Runner::Persist(const reconcile::Record& cluster) {
  *record_.mutable_cluster() = ToProto(cluster);
  return store_.Save(record_);
}

void Runner::Start(const reconcile::StartTask& start) {
  auto request = MakeStartRequest(record_, start);
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
    for (const record::Host& known : record_.hosts()) {
      if (known.name() == name) host = known;
    }
    session = std::make_unique<HostSession>(
        HostSessionOptions{.host = std::move(host),
                           .job = record_.id(),
                           .required_glibc = record_.required_glibc(),
                           .connect = options_.connect,
                           .contents = &contents_,
                           .sink = [this](SessionEvent event) { queue_.Push(std::move(event)); }});
  }
  return *session;
}

// Logs of all tasks and the metrics of the chief, from when they first run; again after each new start.
void Runner::FollowOutput(const reconcile::View& view) {
  for (const reconcile::TaskView& task : view.tasks) {
    if (!task.report || task.report->incarnation == 0) continue;
    const uint64_t incarnation = (task.report->generation << 32) + task.report->incarnation;
    uint64_t& followed = followed_incarnation_[task.task];
    if (incarnation == followed) continue;
    followed = incarnation;
    std::vector<std::string> paths;
    if (options_.follow_logs) paths.push_back("log");
    if (task.task == chief_) paths.push_back("metrics.jsonl");
    for (const std::string& path : paths) {
      following_.insert({task.task, path});
      SessionOf(task.host).Follow(task.task, path);
    }
  }
}

void Runner::Handle(const FileBytes& bytes) {
  if (bytes.last) following_.erase({bytes.task, bytes.path});
  if (bytes.path == "log") return observer_.OnLog(bytes.task, bytes.bytes, bytes.last);
  results_[bytes.path] += bytes.bytes;
  if (bytes.path == "metrics.jsonl") observer_.OnMetrics(bytes.bytes);
}

bool Runner::EverythingRuns(const reconcile::View& view) const {
  return view.phase == reconcile::Phase::kRunning &&
         std::all_of(view.tasks.begin(), view.tasks.end(), [](const reconcile::TaskView& task) {
           return task.state != reconcile::TaskState::kPending;
         });
}

// What the tasks printed last is still on its way when they have ended.
void Runner::Drain() {
  const TimePoint deadline = Now() + kDrainTimeout;
  while (!following_.empty() && Now() < deadline) {
    for (const SessionEvent& event : queue_.Wait(-1, deadline)) {
      if (const auto* bytes = std::get_if<FileBytes>(&event)) Handle(*bytes);
      // A host that is gone sends nothing more.
      if (const auto* change = std::get_if<reconcile::Event>(&event);
          change != nullptr && std::holds_alternative<reconcile::HostFailed>(*change)) {
        return;
      }
    }
  }
}

void Runner::FetchResults() {
  if (!outcome_ || outcome_->result != reconcile::Result::kSucceeded || chief_.empty()) return;
  std::string host;
  for (const record::Task& task : record_.tasks()) {
    if (task.id() == chief_) host = task.host();
  }
  for (const char* path : kResultFiles) {
    if (std::string(path) == "metrics.jsonl" && options_.follow_logs) continue;  // it has come already
    following_.insert({chief_, path});
    SessionOf(host).Follow(chief_, path);
  }
  Drain();
  for (const auto& [path, bytes] : results_) {
    if (!bytes.empty()) (void)WriteFileAtomically(store_.JobFolder(record_.id()) / path, bytes);
  }
}

}  // namespace

absl::StatusOr<RunResult> RunJob(const JobStore& store, record::JobRecord record, const Contents& contents,
                                 const RunOptions& options, RunObserver& observer) {
  return Runner(store, std::move(record), contents, options, observer).Run();
}

}  // namespace muster
