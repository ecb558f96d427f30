#include "launcher/job_store.h"

#include <absl/strings/str_join.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <sstream>

#include "base/process.h"

namespace muster {
namespace {

constexpr char kLockFile[] = "lock";
constexpr char kStopFile[] = "stop";  // empty
constexpr char kInBackground[] = "background";
constexpr Duration kDecisionTimeout = std::chrono::seconds(30);
constexpr Duration kTakeOverTimeout = std::chrono::seconds(10);
constexpr Duration kTimeToDie = std::chrono::seconds(3);  // after that

// What a lock file says.
JobDriver ParseDriver(const std::string& text) {
  JobDriver driver;
  std::string how;
  std::istringstream(text.substr(0, text.find('\n'))) >> driver.pid >> driver.start_ticks >> how;
  driver.in_background = how == kInBackground;
  return driver;
}

// Who reads it takes no lock: it sees the first line as it was, or as it is. The file keeps its room on a
// disk that becomes full: what it held is overwritten first, and the rest cut off then.
absl::Status WriteLine(int fd, const std::string& line) {
  errno = EIO;
  if (::pwrite(fd, line.data(), line.size(), 0) != static_cast<ssize_t>(line.size()) ||
      ::ftruncate(fd, static_cast<off_t>(line.size())) != 0) {
    return ErrnoError(errno, "the lock of the job");
  }
  return absl::OkStatus();
}

absl::Status WriteDriver(int fd, bool in_background) {
  MUSTER_ASSIGN_OR_RETURN(const ProcessStat self, ReadProcessStat(::getpid()));
  const std::string text = absl::StrFormat("%d %d%s\n", ::getpid(), self.start_ticks,
                                           in_background ? std::string(" ") + kInBackground : std::string());
  return WriteLine(fd, text);
}

reconcile::Casualty FromProto(const record::Casualty& proto) {
  return {.task = proto.task(), .host = proto.host(), .what = proto.what()};
}

void ToProto(const reconcile::Casualty& casualty, record::Casualty* proto) {
  proto->set_task(casualty.task);
  proto->set_host(casualty.host);
  proto->set_what(casualty.what);
}

reconcile::Outcome FromProto(const record::Outcome& proto) {
  reconcile::Outcome outcome{.result = static_cast<reconcile::Result>(proto.result()),
                             .exit_code = proto.exit_code(),
                             .message = proto.message(),
                             .left_behind = {proto.left_behind().begin(), proto.left_behind().end()}};
  if (proto.has_first_cause()) outcome.first_cause = FromProto(proto.first_cause());
  for (const auto& casualty : proto.consequences()) outcome.consequences.push_back(FromProto(casualty));
  return outcome;
}

void ToProto(const reconcile::Outcome& outcome, record::Outcome* proto) {
  proto->set_result(static_cast<int>(outcome.result));
  proto->set_exit_code(outcome.exit_code);
  proto->set_message(outcome.message);
  if (outcome.first_cause) ToProto(*outcome.first_cause, proto->mutable_first_cause());
  for (const auto& casualty : outcome.consequences) ToProto(casualty, proto->add_consequences());
  for (const auto& host : outcome.left_behind) proto->add_left_behind(host);
}

}  // namespace

std::string RecordedState(const record::JobRecord& record) {
  if (!record.cluster().has_ending()) return record.cluster().fixed() ? "Running" : "Pending";
  const bool has_ended = record.ended_micros() != 0;
  switch (static_cast<reconcile::Result>(record.cluster().ending().result())) {
    case reconcile::Result::kSucceeded:
      return has_ended ? "Succeeded" : "Fetching";
    case reconcile::Result::kFailed:
      return has_ended ? "Failed" : "Stopping";
    case reconcile::Result::kStopped:
      return has_ended ? "Stopped" : "Stopping";
  }
  return "";
}

reconcile::Record FromProto(const record::ClusterRecord& proto) {
  // Records of before there was a base generation have none.
  reconcile::Record record{
      .generation = proto.generation(),
      .base_generation = proto.base_generation() > 0 ? proto.base_generation() : proto.generation(),
      .fixed = proto.fixed(),
      .leasing = proto.leasing(),
      .retries = proto.retries()};
  auto cluster = std::make_shared<reconcile::Cluster>();
  for (const auto& member : proto.members()) {
    cluster->push_back({member.task(), member.host(), member.data_address(), member.port(),
                        member.minimum_incarnation(), member.restarts()});
  }
  record.cluster = std::move(cluster);
  record.strays = {proto.strays().begin(), proto.strays().end()};
  for (const auto& left : proto.departures()) {
    record.departures.push_back({left.task(), left.minimum_incarnation()});
  }
  for (const auto& success : proto.successes()) {
    record.successes.push_back({.task = success.task(),
                                .state = reconcile::TaskState::kSucceeded,
                                .generation = success.generation(),
                                .spec_hash = success.spec_hash(),
                                .incarnation = success.incarnation(),
                                .restarts = success.restarts(),
                                .exit_code = 0,
                                .started_micros = success.started_micros(),
                                .ended_micros = success.ended_micros(),
                                .reason = success.reason()});
  }
  for (const auto& last : proto.incarnations()) {
    record.incarnations.push_back(
        {last.task(), last.spec_hash(), last.number(), last.restarts(), last.has_ended()});
  }
  for (const auto& lost : proto.lost_ports()) record.lost_ports.push_back({lost.host(), lost.port()});
  if (proto.has_ending()) record.ending = FromProto(proto.ending());
  return record;
}

record::ClusterRecord ToProto(const reconcile::Record& record) {
  record::ClusterRecord proto;
  proto.set_generation(record.generation);
  proto.set_base_generation(record.base_generation);
  proto.set_fixed(record.fixed);
  proto.set_leasing(record.leasing);
  for (const reconcile::Member& member : *record.cluster) {
    auto* out = proto.add_members();
    out->set_task(member.task);
    out->set_host(member.host);
    out->set_data_address(member.data_address);
    out->set_port(member.port);
    out->set_minimum_incarnation(member.minimum_incarnation);
    out->set_restarts(member.restarts);
  }
  for (const reconcile::LostPort& lost : record.lost_ports) {
    proto.add_lost_ports()->set_host(lost.host);
    proto.mutable_lost_ports()->rbegin()->set_port(lost.port);
  }
  for (const reconcile::HostId& stray : record.strays) proto.add_strays(stray);
  for (const reconcile::Departure& left : record.departures) {
    proto.add_departures()->set_task(left.task);
    proto.mutable_departures()->rbegin()->set_minimum_incarnation(left.minimum_incarnation);
  }
  for (const reconcile::TaskReport& success : record.successes) {
    auto* out = proto.add_successes();
    out->set_task(success.task);
    out->set_generation(success.generation);
    out->set_spec_hash(success.spec_hash);
    out->set_incarnation(success.incarnation);
    out->set_restarts(success.restarts);
    out->set_started_micros(success.started_micros);
    out->set_ended_micros(success.ended_micros);
    out->set_reason(success.reason);
  }
  for (const reconcile::Incarnation& last : record.incarnations) {
    auto* out = proto.add_incarnations();
    out->set_task(last.task);
    out->set_spec_hash(last.spec_hash);
    out->set_number(last.number);
    out->set_restarts(last.restarts);
    out->set_has_ended(last.has_ended);
  }
  proto.set_retries(record.retries);
  if (record.ending) ToProto(*record.ending, proto.mutable_ending());
  return proto;
}

absl::Status JobStore::Save(const record::JobRecord& record) const {
  const std::filesystem::path folder = JobFolder(record.id());
  MUSTER_RETURN_IF_ERROR(MakeDirectories(folder, 0700));
  absl::Status written = WriteFileAtomically(folder / kRecordFile, record.SerializeAsString(), 0600);
  if (!written.ok()) RemoveUnrecorded(record.id());
  return written;
}

void JobStore::RemoveUnrecorded(const std::string& id) const {
  const std::filesystem::path folder = JobFolder(id);
  if (::access((folder / kRecordFile).c_str(), F_OK) == 0 || errno != ENOENT) return;
  (void)::unlink((folder / kLockFile).c_str());
  (void)::rmdir(folder.c_str());  // it stays if somebody has put anything else there
}

absl::Status JobStore::CheckRoom(const record::JobRecord& record) const {
  const std::filesystem::path path = JobFolder(record.id()) / absl::StrFormat("room-%d", ::getpid());
  const absl::Status written = WriteFileAtomically(path, record.SerializeAsString(), 0600);
  (void)::unlink(path.c_str());
  return written;
}

absl::StatusOr<record::JobRecord> LoadJobRecord(const std::filesystem::path& path) {
  MUSTER_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, 1 << 28));
  record::JobRecord record;
  if (!record.ParseFromString(bytes)) return DataLoss("%s is damaged", path.string());
  if (record.version() != kJobRecordVersion) {
    return FailedPrecondition("%s has version %d, this muster knows version %d", path.string(),
                              record.version(), kJobRecordVersion);
  }
  return record;
}

absl::StatusOr<JobStore::Listing> JobStore::ListAll() const {
  const auto ids = ListDirectory(folder_ / "jobs");
  if (!ids.ok() && !absl::IsNotFound(ids.status())) return ids.status();
  Listing listing;
  for (const std::string& id : ids.value_or(std::vector<std::string>())) {
    std::error_code error;
    if (!std::filesystem::is_directory(JobFolder(id), error) && !error) continue;  // somebody else's file
    auto record = Load(id);
    if (record.ok()) {
      listing.records.push_back(*std::move(record));
    } else if (!absl::IsNotFound(record.status())) {
      listing.unreadable[id] = absl::Status(
          record.status().code(), absl::StrFormat("%s; if nothing of the job runs, its folder can be removed",
                                                  std::string(record.status().message())));
    }
  }
  std::sort(listing.records.begin(), listing.records.end(),
            [](const auto& a, const auto& b) { return a.created_micros() > b.created_micros(); });
  return listing;
}

std::vector<record::JobRecord> JobStore::List(std::vector<absl::Status>* problems) const {
  absl::StatusOr<Listing> listing = ListAll();
  if (!listing.ok()) {
    problems->push_back(listing.status());
    return {};
  }
  for (const auto& [id, problem] : listing->unreadable) problems->push_back(problem);
  return std::move(listing->records);
}

absl::StatusOr<record::JobRecord> JobStore::Find(const std::string& id_or_name) const {
  MUSTER_ASSIGN_OR_RETURN(const Listing listing, ListAll());
  const std::vector<record::JobRecord>& records = listing.records;
  for (const auto& record : records) {
    if (record.id() == id_or_name) return record;
  }
  for (const auto& [id, problem] : listing.unreadable) {
    if (id == id_or_name) return problem;
    if (id.substr(0, id.rfind('-')) != id_or_name) continue;
    return Annotate(
        problem,
        absl::StrFormat(
            "job %s may be the newest of that name: another one has to be named by its id (muster list)",
            id));
  }
  const record::JobRecord* newest = nullptr;
  for (const auto& record : records) {
    if (record.name() != id_or_name) continue;
    if (record.ended_micros() == 0) return record;
    if (newest == nullptr) newest = &record;
  }
  if (newest != nullptr) return *newest;
  if (records.empty()) return InvalidArgument("there is no job '%s': no job has been run yet", id_or_name);
  std::vector<std::string> ids;
  for (size_t i = 0; i < records.size() && i < 10; ++i) ids.push_back(records[i].id());
  return InvalidArgument("there is no job '%s'; the newest are %s (muster list shows all)", id_or_name,
                         absl::StrJoin(ids, ", "));
}

std::vector<std::filesystem::path> JobStore::ConnectionsSockets() const {
  std::vector<std::filesystem::path> sockets;
  for (const std::string& id : ListDirectory(folder_ / "jobs").value_or(std::vector<std::string>())) {
    const std::filesystem::path path = JobFolder(id) / kConnectionsSocket;
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) sockets.push_back(path);
  }
  return sockets;
}

absl::StatusOr<JobLock> JobStore::LockDecision() const {
  MUSTER_RETURN_IF_ERROR(MakeDirectories(folder_, 0700));
  const std::filesystem::path path = folder_ / kLockFile;
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoError(errno, path.string());
  const TimePoint deadline = Now() + kDecisionTimeout;
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return ErrnoError(errno, path.string());
    if (Now() > deadline)
      return Unavailable("%s has been locked by another muster for too long", path.string());
    ::usleep(10'000);
  }
  return JobLock(std::move(fd));
}

absl::StatusOr<JobLock> JobStore::Lock(const std::string& id) const {
  MUSTER_RETURN_IF_ERROR(MakeDirectories(JobFolder(id), 0700));
  const std::filesystem::path path = JobFolder(id) / kLockFile;
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoError(errno, path.string());
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    const JobDriver driver = ParseDriver(ReadFile(path).value_or(""));
    return FailedPrecondition(
        "job %s is driven by another muster (process %s); `muster logs -f %s` follows it, `muster stop %s` "
        "ends it",
        id, driver.pid == 0 ? "unknown" : std::to_string(driver.pid), id, id);
  }
  (void)::unlink((JobFolder(id) / kStopFile).c_str());  // it was for another driver
  if (const absl::Status said = WriteDriver(fd.get(), /*in_background=*/false); !said.ok()) {
    RemoveUnrecorded(id);
    return Annotate(said, path.string());
  }
  return JobLock(std::move(fd));
}

absl::StatusOr<JobLock> JobStore::TakeOver(const std::string& id) const {
  const TimePoint deadline = Now() + kTakeOverTimeout;
  std::optional<JobDriver> told;
  while (true) {
    auto lock = Lock(id);
    if (!absl::IsFailedPrecondition(lock.status())) return lock;
    const std::optional<JobDriver> driver = DriverOf(id);
    if (driver && !driver->in_background) return lock;
    if (Now() > deadline + kTimeToDie) return Annotate(lock.status(), "it does not end");
    const absl::StatusOr<UniqueFd> process =
        driver ? OpenPidfdOf(driver->pid, driver->start_ticks) : NotFound("it does not say yet who it is");
    // Somebody has to drive the job, whoever else it may run commands for.
    if (process.ok() && driver == told && Now() > deadline) SignalPidfd(process->get(), SIGKILL);
    // Once: it may live on without the lock, and would be ended by the next.
    if (process.ok() && driver != told) {
      SignalPidfd(process->get(), SIGTERM);
      told = driver;
    }
    if (process.ok()) {
      pollfd ended{.fd = process->get(), .events = POLLIN, .revents = 0};
      (void)::poll(&ended, 1, 10);
    } else {
      ::usleep(10'000);
    }
  }
}

std::optional<JobDriver> JobStore::DriverOf(const std::string& id) const {
  const JobDriver driver = ParseDriver(ReadFile(JobFolder(id) / kLockFile).value_or(""));
  if (driver.pid == 0 || !OpenPidfdOf(driver.pid, driver.start_ticks).ok()) return std::nullopt;
  return driver;
}

absl::Status JobStore::AskToStop(const std::string& id) const {
  return WriteFileAtomically(JobFolder(id) / kStopFile, "", 0600);
}

bool JobStore::IsToStop(const std::string& id) const {
  return ::access((JobFolder(id) / kStopFile).c_str(), F_OK) == 0;
}

// A process may drive other jobs after this one.
JobLock::~JobLock() {
  if (fd_.valid()) (void)WriteLine(fd_.get(), "\n");
}

absl::Status JobLock::SetInBackground(bool in_background) const {
  return WriteDriver(fd_.get(), in_background);
}

}  // namespace muster
