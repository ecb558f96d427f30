#include "launcher/host_session.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "launcher/transport/transport.h"

namespace muster {
namespace {

// At its deadline the reconciler gives a connection up by itself, and would not know why.
constexpr Duration kTimeToReport = std::chrono::milliseconds(500);
// Where it was seen last, and where before that.
constexpr size_t kPlaces = 2;
constexpr char kLog[] = "log";
constexpr uint64_t kTailBytes = 4096;

void Signal(const UniqueFd& event) {
  const uint64_t one = 1;
  (void)!::write(event.get(), &one, sizeof one);
}

reconcile::TaskState StateOf(agent::TaskState state) {
  switch (state) {
    case agent::TASK_STATE_RUNNING:
      return reconcile::TaskState::kRunning;
    case agent::TASK_STATE_RESTARTING:
      return reconcile::TaskState::kRestarting;
    case agent::TASK_STATE_SUCCEEDED:
      return reconcile::TaskState::kSucceeded;
    case agent::TASK_STATE_FAILED:
      return reconcile::TaskState::kFailed;
    case agent::TASK_STATE_LOST:
      return reconcile::TaskState::kLost;
    default:
      return reconcile::TaskState::kPending;
  }
}

bool StopsAll(const reconcile::Action& action) {
  const auto* stop = std::get_if<reconcile::StopTasks>(&action);
  return stop != nullptr && stop->targets.empty();
}

template <typename Tasks>
std::vector<reconcile::TaskReport> ReportsOf(const Tasks& tasks, const AgentConnection& agent) {
  std::vector<reconcile::TaskReport> reports;
  for (const agent::TaskStatus& task : tasks) reports.push_back(ReportOf(agent.InOwnTime(task)));
  return reports;
}

// "2.36" as numbers that compare.
std::vector<int> VersionNumbers(const std::string& version) {
  std::vector<int> numbers;
  for (const auto part : absl::StrSplit(version, '.')) {
    int number = 0;
    (void)absl::SimpleAtoi(part, &number);
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

reconcile::TaskReport ReportOf(const agent::TaskStatus& status) {
  return {.task = status.task(),
          .state = StateOf(status.state()),
          .generation = status.generation(),
          .spec_hash = status.spec_hash(),
          .incarnation = status.incarnation(),
          .restarts = status.restarts(),
          .exit_code = status.exit_code(),
          .stopped = status.stopped(),
          .started_micros = status.started_micros(),
          .ended_micros = status.ended_micros(),
          .reason = status.reason()};
}

absl::StatusOr<std::vector<std::string>> NamesOf(const agent::ListFilesResponse& response) {
  for (const std::string& name : response.names()) {
    if (!ValidateRelativePath(name).ok() || name.find('/') != std::string::npos)
      return DataLoss("'%s' is no name of a file", name);
  }
  return std::vector<std::string>(response.names().begin(), response.names().end());
}

HostSession::HostSession(HostSessionOptions options)
    : options_(std::move(options)),
      name_(options_.host.name()),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      cancel_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      places_{options_.host},
      machine_id_(options_.host.machine_id()) {
  MUSTER_CHECK(wake_.valid() && cancel_.valid());
  if (options_.relay != nullptr) {
    options_.relay->Join(name_, [this](RelayOrder order) { Take(std::move(order)); });
  }
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

HostSession::~HostSession() {
  thread_.request_stop();
  Signal(cancel_);
  Signal(wake_);
  thread_.join();
  if (options_.relay != nullptr) options_.relay->Leave(name_);
}

void HostSession::Execute(reconcile::Action action) {
  if (StopsAll(action)) {
    const std::lock_guard lock(mutex_);
    is_to_stop_ = true;
    if (is_starting_) Signal(cancel_);
  }
  Enqueue(std::move(action));
}

void HostSession::Start(uint64_t request, agent::StartTaskRequest start) {
  Enqueue(StartCommand{request, std::move(start)});
}

void HostSession::Follow(const std::string& task, const std::string& path) {
  Enqueue(FollowCommand{task, path});
}

void HostSession::ListFiles(const std::string& task, const std::string& folder) {
  Enqueue(ListCommand{task, folder});
}

void HostSession::ReadLogTail(const std::string& task) { Enqueue(TailCommand{task}); }

void HostSession::Lend(std::shared_ptr<Guest> guest) { Enqueue(std::move(guest)); }

// Those about the agent are for the attempt that is under way, if any.
void HostSession::Take(RelayOrder order) {
  if (order.content == options_.connect.agent->sha256) return agent_orders_.Push(std::move(order));
  Enqueue(std::move(order));
}

void HostSession::Enqueue(Command command) {
  const std::lock_guard lock(mutex_);
  commands_.push_back(std::move(command));
  Signal(wake_);
}

void HostSession::Run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    uint64_t ignored;
    (void)!::read(wake_.get(), &ignored, sizeof ignored);
    std::deque<Command> commands;
    {
      const std::lock_guard lock(mutex_);
      commands.swap(commands_);
    }
    for (const Command& command : commands) {
      if (stop.stop_requested()) break;
      Do(command);
    }
    if (!commands.empty()) continue;
    if (agent_ != nullptr) {
      ReceiveOne();
    } else {
      pollfd wake{.fd = wake_.get(), .events = POLLIN, .revents = 0};
      ::poll(&wake, 1, -1);  // ends with the next command or with the session
    }
  }
  Disconnect();
}

void HostSession::Do(const Command& command) {
  if (const auto* order = std::get_if<RelayOrder>(&command)) return Do(*order);
  if (const auto* start = std::get_if<StartCommand>(&command)) return Do(*start);
  if (const auto* follow = std::get_if<FollowCommand>(&command)) return Do(*follow);
  if (const auto* list = std::get_if<ListCommand>(&command)) return Do(*list);
  if (const auto* tail = std::get_if<TailCommand>(&command)) return Do(*tail);
  if (const auto* guest = std::get_if<std::shared_ptr<Guest>>(&command)) return Do(*guest);
  const auto& action = std::get<reconcile::Action>(command);
  if (StopsAll(action)) {
    const std::lock_guard lock(mutex_);
    is_to_stop_ = false;
  }
  if (const auto* connect = std::get_if<reconcile::Connect>(&action)) return Do(*connect);
  if (agent_ == nullptr) return;  // its connection was lost, which the reconciler has been told
  if (const auto* ensure = std::get_if<reconcile::EnsureContents>(&action)) Do(*ensure);
  if (const auto* lease = std::get_if<reconcile::LeasePort>(&action)) Do(*lease);
  if (const auto* stop = std::get_if<reconcile::StopTasks>(&action)) Do(*stop);
}

void HostSession::Do(const reconcile::Connect& connect) {
  Disconnect();
  connection_ = connect.connection;
  ConnectOptions options = options_.connect;
  options.ssh.cancel_fd = cancel_.get();
  options.ssh.on_coming = [this] { Emit(reconcile::HostComing{.host = name_, .connection = connection_}); };
  options.on_login = [this] {
    Emit(reconcile::HostComing{.host = name_, .connection = connection_, .has_logged_in = true});
  };
  const Duration time_to_report = std::min<Duration>(kTimeToReport, (connect.deadline - Now()) / 4);
  record::Host place = NextPlace();
  // Between this machine and itself there is no network.
  ContentRelay* const relay = place.local() ? nullptr : options_.relay;
  auto connected =
      AgentConnection::Connect(place, options, connect.deadline - time_to_report,
                               {.relay = relay, .orders = &agent_orders_, .progress = options_.sink});
  absl::Status status = connected.status();
  if (status.ok()) {
    agent_ = *std::move(connected);
    status = Identify(place);
    if (status.ok()) status = CheckFacts(agent_->facts());
  }
  EndAttempt(place, status.ok());
  if (!status.ok()) {
    agent_ = nullptr;
    if (relay != nullptr) relay->GiveUp(name_, options_.connect.agent->sha256);
    // The reconciler tries again after Unavailable, and after any other code only where it knows that the
    // host was there. One that now has another's key is somewhere else.
    const bool may_be_elsewhere =
        absl::IsCancelled(status) || (IsOtherMachine(status) && !machine_id_.empty());
    if (may_be_elsewhere) {
      status = Unavailable("%s", std::string(status.message()));
    } else if (NeedsUser(status)) {
      status = FailedPrecondition("%s", std::string(status.message()));
    }
    Emit(reconcile::HostFailed{.host = name_, .connection = connection_, .status = std::move(status)});
    return;
  }
  if (place.data_is_ssh() && !agent_->peer_address().empty()) {
    place.set_data_address(agent_->peer_address());
  }
  place.set_machine_id(machine_id_);
  place_ = PlaceOf(place);
  heard_at_ = Now();
  is_asked_ = false;
  delivery_.emplace(*agent_, ContentDeliveryOptions{.host = name_,
                                                    .data_address = place.data_address(),
                                                    .contents = options_.contents,
                                                    .agent = options_.connect.agent->sha256,
                                                    .relay = relay,
                                                    .cancel_fd = cancel_.get(),
                                                    .progress = options_.sink,
                                                    .on_coming = [this] { ReportComing(); }});
  options_.sink(HostFacts{name_, agent_->facts(), connection_, agent_->host_key(), place});
  Emit(reconcile::HostConnected{
      .host = name_, .connection = connection_, .data_address = place.data_address()});
  agent::Request watch;
  watch.mutable_watch()->set_job(options_.job);
  Ask(0, watch, [this](const agent::Response& response) {
    if (response.has_error()) return Lose(StatusOf(response, name_));
    Emit(reconcile::HostReported{
        .host = name_, .connection = connection_, .tasks = ReportsOf(response.watch().tasks(), *agent_)});
  });
  for (const auto& [file, followed] : followed_) {
    if (followed.active) SendFollow(file.first, file.second);
  }
}

bool HostSession::Relocate(const HostSighting& sighting) {
  const std::lock_guard lock(mutex_);
  record::Host place = places_.front();
  const bool is_elsewhere =
      place.ssh_address() != sighting.ssh_address || place.ssh_port() != sighting.ssh_port;
  if (!is_elsewhere && (sighting.data_address.empty() || sighting.data_address == place.data_address()))
    return false;
  // An address of its own for data stays where nothing else is said.
  if (!sighting.data_address.empty()) {
    place.set_data_address(sighting.data_address);
    place.set_data_is_ssh(false);
  } else if (place.data_address() == place.ssh_address()) {
    place.set_data_is_ssh(true);
  }
  place.set_ssh_address(sighting.ssh_address);
  place.set_ssh_port(sighting.ssh_port);
  // What is said of one place now holds, and not what was said of it before.
  if (!is_elsewhere) places_.pop_front();
  places_.push_front(std::move(place));
  if (places_.size() > kPlaces) places_.pop_back();
  if (is_trying_) Signal(cancel_);
  return true;
}

record::Host HostSession::NextPlace() {
  const std::lock_guard lock(mutex_);
  ClearCancel();
  is_trying_ = true;
  return places_.front();
}

void HostSession::ClearCancel() {
  uint64_t ignored;
  (void)!::read(cancel_.get(), &ignored, sizeof ignored);
  if (thread_.get_stop_token().stop_requested()) Signal(cancel_);
}

void HostSession::EndAttempt(const record::Host& place, bool was_there) {
  const std::lock_guard lock(mutex_);
  is_trying_ = false;
  // Where it was seen meanwhile is tried next.
  const record::Host& next = places_.front();
  if (was_there || next.ssh_address() != place.ssh_address() || next.ssh_port() != place.ssh_port() ||
      next.data_address() != place.data_address())
    return;
  places_.push_back(places_.front());
  places_.pop_front();
}

// Clones of an image have one host key.
absl::Status HostSession::Identify(const record::Host& place) {
  const std::string& machine_id = agent_->facts().machine_id();
  if (machine_id_.empty()) machine_id_ = machine_id;
  if (machine_id.empty() || machine_id == machine_id_) return absl::OkStatus();
  return WithOtherMachine(
      Unavailable("%s: what answers at %s has its host key, but is another machine (machine-id %s, not %s)",
                  name_, place.ssh_address(), machine_id, machine_id_));
}

absl::Status HostSession::CheckFacts(const agent::FactsResponse& facts) const {
  if (options_.required_glibc.empty()) return absl::OkStatus();
  const std::string& libc = facts.libc();
  if (!libc.starts_with("glibc ")) {
    return FailedPrecondition("%s: it has %s, and the trainer needs glibc %s or newer, and was not sent",
                              name_, libc.empty() ? "an unknown C library" : libc, options_.required_glibc);
  }
  if (VersionNumbers(libc.substr(6)) < VersionNumbers(options_.required_glibc)) {
    return FailedPrecondition("%s: it has %s, and the trainer needs glibc %s or newer, and was not sent",
                              name_, libc, options_.required_glibc);
  }
  return absl::OkStatus();
}

void HostSession::Do(const reconcile::EnsureContents& ensure) {
  ensuring_ = ensure.request;
  delivery_->Ensure(ensure.contents);
  ReportDelivery();
}

// An order may have been given before this connection was there.
void HostSession::Do(const RelayOrder& order) {
  if (agent_ == nullptr) return;
  delivery_->Obey(order);
  ReportDelivery();
}

void HostSession::ReportComing() {
  if (ensuring_) Emit(reconcile::ContentsComing{.host = name_, .request = *ensuring_});
}

void HostSession::ReportDelivery() {
  const std::optional<absl::Status> status = delivery_->TakeResult();
  if (!status) return;
  const reconcile::RequestId request = *std::exchange(ensuring_, std::nullopt);
  if (status->ok()) return Emit(reconcile::ContentsReady{.host = name_, .request = request});
  if (absl::IsUnavailable(*status)) return Lose(*status);
  Emit(reconcile::RequestFailed{.host = name_, .request = request, .status = *status});
}

void HostSession::Do(const reconcile::LeasePort& lease) {
  agent::Request message;
  agent::LeasePortsRequest* ports = message.mutable_lease_ports();
  ports->set_job(options_.job);
  ports->set_task(lease.task);
  ports->set_address(lease.data_address);
  ports->set_count(1);
  for (const uint32_t port : lease.avoid) ports->add_avoid(port);
  Ask(lease.request, message, [this, request = lease.request](const agent::Response& response) {
    Emit(reconcile::PortLeased{.host = name_, .request = request, .port = response.lease_ports().ports(0)});
  });
}

void HostSession::Do(const reconcile::StopTasks& stop) {
  agent::Request message;
  agent::StopTasksRequest* tasks = message.mutable_stop_tasks();
  tasks->set_job(options_.job);
  for (const reconcile::Deployment& deployment : stop.targets) {
    agent::StopTasksRequest::Target* target = tasks->add_targets();
    target->set_task(deployment.task);
    target->set_generation(deployment.generation);
    target->set_spec_hash(deployment.spec_hash);
  }
  tasks->set_minimum_generation(stop.minimum_generation);
  tasks->set_keep_ports(stop.keep_ports);
  tasks->set_grace_ms(
      static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::milliseconds>(stop.grace).count()));
  Ask(stop.request, message, [this, request = stop.request](const agent::Response& response) {
    Emit(reconcile::TasksStopped{.host = name_,
                                 .request = request,
                                 .processes_left = response.stop_tasks().processes_left(),
                                 .ports_left = response.stop_tasks().ports_left(),
                                 .tasks = ReportsOf(response.stop_tasks().tasks(), *agent_)});
  });
}

void HostSession::Do(const StartCommand& start) {
  if (agent_ == nullptr || !BeginStart()) return;
  agent::Request message;
  *message.mutable_start_task() = start.start;
  const auto handler = [this, request = start.request](const agent::Response& response) {
    Emit(reconcile::TaskStarted{.host = name_,
                                .request = request,
                                .task = ReportOf(agent_->InOwnTime(response.start_task().status()))});
  };
  Ask(start.request, message, handler, options_.start_timeout);
  EndStart();
}

bool HostSession::BeginStart() {
  const std::lock_guard lock(mutex_);
  is_starting_ = !is_to_stop_;
  return is_starting_;
}

void HostSession::EndStart() {
  heard_at_ = Now();  // what it has taken in is a word of it, and the rest was not listened to
  const std::lock_guard lock(mutex_);
  is_starting_ = false;
  ClearCancel();
}

void HostSession::Do(const FollowCommand& follow) {
  Followed& followed = followed_[{follow.task, follow.path}];
  if (followed.active) return;
  followed.active = true;
  if (agent_ != nullptr) SendFollow(follow.task, follow.path);
}

void HostSession::Do(const ListCommand& list) {
  agent::Request message;
  agent::ListFilesRequest* request = message.mutable_list_files();
  request->set_job(options_.job);
  request->set_task(list.task);
  request->set_folder(list.folder);
  if (agent_ == nullptr) {
    return options_.sink(FolderNames{list.task, list.folder, Unavailable("%s is not connected", name_)});
  }
  Ask(0, message, [this, list](const agent::Response& response) {
    const absl::Status status = StatusOf(response, name_);
    options_.sink(FolderNames{list.task, list.folder, status.ok() ? NamesOf(response.list_files()) : status});
  });
}

void HostSession::Do(const TailCommand& tail) {
  if (agent_ == nullptr) return options_.sink(LogTail{.task = tail.task, .text = ""});
  agent::Request message;
  agent::ReadFileRequest* read = message.mutable_read_file();
  read->set_job(options_.job);
  read->set_task(tail.task);
  read->set_path(kLog);
  read->set_tail_bytes(kTailBytes);
  // Small enough for one answer.
  Ask(0, message, [this, task = tail.task](const agent::Response& response) {
    const agent::ReadFileResponse& file = response.read_file();
    options_.sink(LogTail{.task = task, .text = file.data(), .is_cut = file.offset() > 0});
  });
}

// It may be meant for another host, or account, of this name; a host that moves is where it is, and where it
// was looked for first.
void HostSession::Do(const std::shared_ptr<Guest>& guest) {
  if (agent_ == nullptr || options_.guests == nullptr) return guest->Refuse(name_ + " is not connected");
  const auto& keys = guest->wanted.host_keys();
  const std::string& place = guest->wanted.place();
  if ((place != place_ && place != PlaceOf(options_.host)) ||
      std::find(keys.begin(), keys.end(), agent_->host_key()) == keys.end()) {
    return guest->Refuse(name_ + " is another host here, or another account");
  }
  agent_->AddGuest(std::move(*guest), options_.guests->count());
}

void HostSession::SendFollow(const std::string& task, const std::string& path) {
  agent::Request message;
  agent::ReadFileRequest* read = message.mutable_read_file();
  read->set_job(options_.job);
  read->set_task(task);
  read->set_path(path);
  read->set_offset(followed_[{task, path}].offset);
  read->set_follow(true);
  Ask(0, message, [this, task, path](const agent::Response& response) {
    Followed& followed = followed_[{task, path}];
    const agent::ReadFileResponse& file = response.read_file();
    // An error, a file that the task never wrote, say, is the end of it as well.
    FileBytes bytes{.task = task,
                    .path = path,
                    .bytes = file.data(),
                    .last = response.last() || response.has_error(),
                    .status = StatusOf(response, name_)};
    if (bytes.status.ok()) {
      const uint64_t reached = std::exchange(followed.offset, file.offset() + file.data().size());
      bytes.missed = file.offset() > reached ? file.offset() - reached : 0;
      bytes.taken_back = file.offset() < reached ? reached - file.offset() : 0;
      if (bytes.last && path != kLog) followed.offset -= file.data().size() - (file.data().rfind('\n') + 1);
    } else if (absl::IsNotFound(bytes.status)) {
      followed.offset = 0;
    }
    followed.active = !bytes.last;
    options_.sink(std::move(bytes));
  });
}

// `request`: the reconciler's, to which an error of the agent is the answer; 0: the handler gets errors too.
// `timeout`: for it to be sent.
void HostSession::Ask(uint64_t request, const agent::Request& message, Handler handler, Duration timeout) {
  if (agent_ == nullptr) return;
  const auto id = agent_->Send(message, Now() + timeout);
  if (!id.ok()) return Lose(id.status());
  handlers_[*id] = [this, request, handler = std::move(handler)](const agent::Response& response) {
    if (request == 0 || !response.has_error()) return handler(response);
    Emit(reconcile::RequestFailed{.host = name_, .request = request, .status = StatusOf(response, name_)});
  };
}

void HostSession::ReceiveOne() {
  const Duration patience = options_.agent_silence_limit / (is_asked_ ? 1 : 2);
  const TimePoint deadline = std::min<TimePoint>(heard_at_ + patience, delivery_->deadline());
  const auto answer = agent_->Receive(wake_.get(), deadline);
  if (!answer.ok()) return Lose(answer.status());
  if (*answer) {
    heard_at_ = Now();
    is_asked_ = false;
    Handle(**answer);
  }
  if (agent_ == nullptr) return;
  CheckSilence();
  if (agent_ == nullptr) return;
  delivery_->Advance();
  ReportDelivery();
}

// What it is asked for is nothing.
void HostSession::CheckSilence() {
  const Duration silence = Now() - heard_at_;
  if (is_asked_ && silence >= options_.agent_silence_limit) {
    return Lose(Unavailable("%s: the daemon of its agent has not answered for %s; does it hang?", name_,
                            FormatAge(silence)));
  }
  if (is_asked_ || silence < options_.agent_silence_limit / 2) return;
  is_asked_ = true;
  agent::Request nothing;
  nothing.mutable_store();
  Ask(0, nothing, [](const agent::Response&) {});
}

void HostSession::Handle(const AgentConnection::Answer& answer) {
  const auto found = handlers_.find(answer.id);
  if (found == handlers_.end()) {
    // About the connection itself.
    return Lose(Unavailable(
        "%s: %s", name_,
        answer.response.has_error() ? answer.response.error().message() : "an answer that nobody asked for"));
  }
  const Handler handler = found->second;  // which may close the connection, and so end its own entry
  if (answer.response.last() || answer.response.has_error()) handlers_.erase(found);
  handler(answer.response);
}

// What is over is the conversation: an agent may have died, or the host be looked for elsewhere.
void HostSession::Disconnect() {
  if (agent_ != nullptr && options_.guests != nullptr) agent_->LeaveToGuests(*options_.guests);
  delivery_.reset();
  agent_ = nullptr;
  handlers_.clear();
  ensuring_.reset();
}

void HostSession::Lose(const absl::Status& status) {
  Disconnect();
  Emit(reconcile::HostFailed{
      .host = name_, .connection = connection_, .status = Unavailable("%s", std::string(status.message()))});
}

}  // namespace muster
