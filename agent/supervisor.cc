#include "agent/supervisor.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include "agent/garbage.h"
#include "agent/names.h"
#include "agent/proc_scan.h"
#include "agent/records.h"
#include "agent/store.h"
#include "base/file.h"

namespace muster {
namespace {

constexpr char kFenceFile[] = ".fence";
constexpr Duration kStopSlack = std::chrono::seconds(20);
constexpr uint32_t kMostIncarnations = uint32_t{1} << 31;  // so that there are others behind it

bool HasNul(const std::string& text) { return text.find('\0') != std::string::npos; }

absl::Status ValidateStart(const agent::StartTaskRequest& request) {
  MUSTER_RETURN_IF_ERROR(ValidateJobName(request.job()));
  MUSTER_RETURN_IF_ERROR(ValidateTaskName(request.task()));
  const std::string& task = request.task();
  if (request.argv().empty() || request.argv(0).empty())
    return InvalidArgument("%s: no program in argv", task);
  if (std::any_of(request.argv().begin(), request.argv().end(), HasNul)) {
    return InvalidArgument("%s: an argument holds a NUL byte", task);
  }
  for (const std::string& entry : request.environment()) {
    const size_t equals = entry.find('=');
    if (HasNul(entry) || equals == std::string::npos || equals == 0) {
      return InvalidArgument("%s: an environment entry is not NAME=value", task);
    }
  }
  if (!request.program_sha256().empty()) {
    if (!IsSha256(request.program_sha256())) return InvalidArgument("%s: program_sha256 is no SHA-256", task);
    MUSTER_RETURN_IF_ERROR(Annotate(ValidateRelativePath(request.argv(0)), task + ": argv[0]"));
  }
  for (const agent::FileContent& file : request.files()) {
    MUSTER_RETURN_IF_ERROR(Annotate(ValidateRelativePath(file.path()), task + ": files"));
    const std::filesystem::path first = *std::filesystem::path(file.path()).begin();
    if (first == "log" || first == ".muster") {
      return InvalidArgument("%s: files: '%s' is the agent's own", task, file.path());
    }
  }
  if (request.minimum_incarnation() > kMostIncarnations) {
    return InvalidArgument("%s: minimum_incarnation %d is more than %d", task, request.minimum_incarnation(),
                           kMostIncarnations);
  }
  if (!agent::RestartPolicy_IsValid(request.restart())) {
    return InvalidArgument("%s: unknown restart policy %d", task, static_cast<int>(request.restart()));
  }
  return absl::OkStatus();
}

absl::Status ValidateStop(const agent::StopTasksRequest& request) {
  MUSTER_RETURN_IF_ERROR(ValidateJobName(request.job()));
  for (const auto& target : request.targets()) MUSTER_RETURN_IF_ERROR(ValidateTaskName(target.task()));
  return absl::OkStatus();
}

// Nothing where there is no such folder.
absl::StatusOr<std::vector<std::string>> ListIfAny(const std::filesystem::path& folder) {
  absl::StatusOr<std::vector<std::string>> names = ListDirectory(folder);
  if (!names.ok() && !MayPass(names.status())) return std::vector<std::string>{};
  return names;
}

// So that it can be raised on a full disk, which may be why a job is stopped.
absl::Status ReserveFence(const std::filesystem::path& job_folder) {
  agent::FenceRecord largest;
  largest.set_minimum_generation(UINT64_MAX);
  return ReserveRecord(job_folder / kFenceFile, largest.ByteSizeLong());
}

}  // namespace

Supervisor::Supervisor(const std::filesystem::path& root)
    : context_{.root = root, .root_id = RootId(root)}, ports_(root / "ports") {}

absl::StatusOr<std::unique_ptr<Supervisor>> Supervisor::Create(const std::filesystem::path& root) {
  std::unique_ptr<Supervisor> supervisor(new Supervisor(root));
  MUSTER_ASSIGN_OR_RETURN(const std::vector<std::string> jobs, ListIfAny(root / "jobs"));
  for (const std::string& job : jobs) {
    if (ValidateJobName(job).ok()) MUSTER_RETURN_IF_ERROR(supervisor->TakeUp(job));
  }
  return supervisor;
}

absl::Status Supervisor::TakeUp(const std::string& job) {
  const std::filesystem::path job_folder = context_.root / "jobs" / job;
  MUSTER_ASSIGN_OR_RETURN(const std::vector<std::string> folders, ListIfAny(job_folder));
  agent::FenceRecord fence;
  const absl::Status read = ReadRecord(job_folder / kFenceFile, "fence", fence);
  if (MayPass(read)) return read;
  if (read.ok()) context_.fences[job] = fence.minimum_generation();
  for (const std::string& folder : folders) {
    const std::optional<std::string> name = TaskOfFolder(folder);
    if (!name) continue;
    auto task = std::make_unique<Task>(context_, job, *name);
    if (!task->Resume().ok()) continue;
    ReleaseIfEnded(job, *name, *task);  // while there was no daemon
    tasks_[{job, *name}] = std::move(task);
  }
  return absl::OkStatus();
}

absl::StatusOr<Task*> Supervisor::Start(const agent::StartTaskRequest& request, bool* already_running) {
  MUSTER_RETURN_IF_ERROR(ValidateStart(request));
  MUSTER_RETURN_IF_ERROR(CheckRead(request.job()));
  if (request.generation() < context_.FenceOf(request.job())) {
    return FailedPrecondition(
        "%s: generation %d of job %s is older than %d, below which this host starts nothing any more",
        request.task(), request.generation(), request.job(), context_.FenceOf(request.job()));
  }
  for (const auto& [key, task] : tasks_) {
    if (key.first == request.job() && request.generation() < task->generation()) {
      return FailedPrecondition("%s: generation %d of job %s is older than %d, which this host has seen (%s)",
                                request.task(), request.generation(), request.job(), task->generation(),
                                key.second);
    }
  }
  const std::filesystem::path folder = context_.root / "jobs" / request.job();
  absl::Status status = MakeDirectories(folder, 0700);
  if (status.ok()) status = ReserveFence(folder);
  MUSTER_RETURN_IF_ERROR(Annotate(status, "start " + request.task()));
  const std::pair key(request.job(), request.task());
  if (const auto known = tasks_.find(key); known != tasks_.end()) {
    MUSTER_RETURN_IF_ERROR(known->second->Start(request, already_running));
    return known->second.get();
  }
  auto task = std::make_unique<Task>(context_, request.job(), request.task());
  MUSTER_RETURN_IF_ERROR(task->Start(request, already_running));
  return (tasks_[key] = std::move(task)).get();
}

absl::Status Supervisor::CheckRead(const std::string& job) const {
  for (const auto& [key, task] : tasks_) {
    if ((job.empty() || key.first == job) && !task->is_read()) {
      return Aborted("%s of job %s: its record cannot be read: %s; try again", key.second, key.first,
                     task->reason());
    }
  }
  return absl::OkStatus();
}

std::vector<Task*> Supervisor::Select(const agent::StopTasksRequest& request) const {
  std::vector<Task*> selected;
  for (const auto& [key, task] : tasks_) {
    const bool meant =
        request.targets().empty() || std::ranges::any_of(request.targets(), [&](const auto& target) {
          return target.task() == key.second && target.generation() == task->generation() &&
                 target.spec_hash() == task->spec_hash();
        });
    if (key.first == request.job() && meant) selected.push_back(task.get());
  }
  return selected;
}

// On disk before anything is stopped: a daemon that is killed in between must refuse late starts as well.
// Where that cannot be written it would not, but that is no reason to let the tasks run on.
void Supervisor::RaiseFence(const std::string& job, uint64_t minimum_generation) {
  uint64_t& fence = context_.fences[job];
  if (minimum_generation <= fence) return;
  fence = minimum_generation;
  const std::filesystem::path folder = context_.root / "jobs" / job;
  agent::FenceRecord record;
  record.set_minimum_generation(minimum_generation);
  absl::Status status = MakeDirectories(folder, 0700);
  if (status.ok()) status = WriteRecord(folder / kFenceFile, "fence", record, Room::kReserved);
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  (void)ReserveFence(folder);  // for the next one; without room for it, none can be started either
}

absl::StatusOr<std::optional<TimePoint>> Supervisor::Stop(agent::StopTasksRequest& request) {
  MUSTER_RETURN_IF_ERROR(ValidateStop(request));
  std::vector<Task*> selected = Select(request);
  const uint64_t minimum = request.minimum_generation();
  if (minimum > 0) RaiseFence(request.job(), minimum);
  MUSTER_RETURN_IF_ERROR(CheckRead(request.job()));
  if (minimum > 0) {
    // Once a task of a newer generation is here, only the older ones are meant, by name.
    if (std::erase_if(selected, [&](const Task* task) { return task->generation() >= minimum; }) > 0) {
      if (selected.empty()) return std::nullopt;
      request.clear_targets();
      for (const Task* task : selected) {
        agent::StopTasksRequest::Target* target = request.add_targets();
        target->set_task(task->name());
        target->set_generation(task->generation());
        target->set_spec_hash(task->spec_hash());
      }
    }
  }
  TimePoint deadline = Now() + kStopSlack;
  for (Task* task : selected) {
    deadline = std::max(
        deadline, Now() + std::chrono::milliseconds(task->StopGraceMs(request.grace_ms())) + kStopSlack);
    task->Stop(request.grace_ms());
  }
  return deadline;
}

bool Supervisor::AnyActive(const agent::StopTasksRequest& request) const {
  const std::vector<Task*> selected = Select(request);
  return std::any_of(selected.begin(), selected.end(), [](const Task* task) { return task->active(); });
}

absl::StatusOr<int> Supervisor::KillLeftovers(const agent::StopTasksRequest& request) const {
  const std::string prefix = JobTokenPrefix(request.job(), context_.root_id);
  std::set<std::string, std::less<>> meant;
  for (const Task* task : Select(request)) meant.insert(task->name());
  // Of what a folder that is gone knew only the tokens are left.
  for (const auto& target : request.targets()) {
    if (Find(request.job(), target.task()) == nullptr) meant.insert(target.task());
  }
  return KillByToken([&](std::string_view token) {
    return token.starts_with(prefix) &&
           (request.targets().empty() || meant.contains(token.substr(prefix.size())));
  });
}

absl::StatusOr<int> Supervisor::ReleasePorts(const agent::StopTasksRequest& request) {
  for (const Task* task : Select(request)) {
    if (task->has_lost_port()) ports_.GiveAway(request.job(), task->name());
  }
  const auto release = [&](const std::string& task) {
    return request.keep_ports() ? ports_.CountInUse(request.job(), task)
                                : ports_.Release(request.job(), task);
  };
  if (request.targets().empty()) return release("");
  int in_use = 0;
  for (const Task* task : Select(request)) {
    MUSTER_ASSIGN_OR_RETURN(const int of_task, release(task->name()));
    in_use += of_task;
  }
  return in_use;
}

absl::StatusOr<agent::LeasePortsResponse> Supervisor::LeasePorts(const agent::LeasePortsRequest& request) {
  MUSTER_RETURN_IF_ERROR(ValidateJobName(request.job()));
  MUSTER_RETURN_IF_ERROR(ValidateTaskName(request.task()));
  const Task* task = Find(request.job(), request.task());
  MUSTER_ASSIGN_OR_RETURN(const std::vector<uint32_t> ports,
                          ports_.Lease({.job = request.job(),
                                        .task = request.task(),
                                        .address = request.address(),
                                        .count = request.count(),
                                        .avoid = {request.avoid().begin(), request.avoid().end()},
                                        .task_runs = task != nullptr && task->active()}));
  agent::LeasePortsResponse response;
  response.mutable_ports()->Assign(ports.begin(), ports.end());
  return response;
}

agent::StoreResponse Supervisor::Store(const agent::StoreRequest& request) const {
  agent::StoreResponse response;
  for (const std::string& sha256 : request.sha256()) {
    if (IsStored(context_.root, sha256).value_or(false)) response.add_present_sha256(sha256);
  }
  return response;
}

absl::Status Supervisor::Forget(const std::string& job) {
  MUSTER_RETURN_IF_ERROR(ValidateJobName(job));
  MUSTER_RETURN_IF_ERROR(CheckRead(job));
  agent::StopTasksRequest all;
  all.set_job(job);
  for (Task* task : Select(all)) {
    if (task->is_held()) task->Stop(0);  // the job has ended without it
    if (task->active())
      return FailedPrecondition("%s of job %s still runs: stop it first", task->name(), job);
  }
  const std::string prefix = JobTokenPrefix(job, context_.root_id);
  MUSTER_ASSIGN_OR_RETURN(const int left,
                          CountByToken([&](std::string_view token) { return token.starts_with(prefix); }));
  if (left > 0) {
    return FailedPrecondition("%d processes of job %s still run: stop it first", left, job);
  }
  MUSTER_ASSIGN_OR_RETURN(const int in_use, ports_.Release(job, ""));
  if (in_use > 0) {
    return FailedPrecondition("%d ports of job %s are still listened on: stop it first", in_use, job);
  }
  if (const absl::Status moved = MoveToTrash(context_.root, context_.root / "jobs" / job);
      !moved.ok() && !absl::IsNotFound(moved)) {
    return moved;
  }
  std::erase_if(tasks_, [&](const auto& entry) { return entry.first.first == job; });
  context_.fences.erase(job);
  ++context_.changes;
  return absl::OkStatus();
}

absl::StatusOr<agent::CollectGarbageResponse> Supervisor::CollectGarbage(
    const agent::CollectGarbageRequest& request) const {
  MUSTER_RETURN_IF_ERROR(CheckRead(""));  // nobody knows what those need
  std::set<std::string> needed;
  for (const auto& [key, task] : tasks_) needed.merge(task->Contents());
  return muster::CollectGarbage(context_.root, std::move(needed),
                                std::chrono::seconds(request.unused_seconds()));
}

void Supervisor::GoOn(const std::string& job) {
  for (const auto& [key, task] : tasks_) {
    if (key.first == job) task->GoOn();
  }
}

agent::ListTasksResponse Supervisor::List(const std::string& job) const {
  agent::ListTasksResponse list;
  for (const auto& [key, task] : tasks_) {
    if ((job.empty() || key.first == job) && task->is_read()) *list.add_tasks() = task->Status();
  }
  return list;
}

agent::ListTasksResponse Supervisor::List(const agent::StopTasksRequest& request) const {
  agent::ListTasksResponse list;
  for (const Task* task : Select(request)) *list.add_tasks() = task->Status();
  return list;
}

Task* Supervisor::Find(const std::string& job, const std::string& task) const {
  const auto found = tasks_.find({job, task});
  return found == tasks_.end() ? nullptr : found->second.get();
}

bool Supervisor::AnyActive() const {
  return std::any_of(tasks_.begin(), tasks_.end(), [](const auto& entry) { return entry.second->active(); });
}

void Supervisor::AppendPollFds(std::vector<pollfd>& fds) const {
  for (const auto& [key, task] : tasks_) task->AppendPollFds(fds);
}

TimePoint Supervisor::wake_at() const {
  TimePoint earliest = TimePoint::max();
  for (const auto& [key, task] : tasks_) earliest = std::min(earliest, task->wake_at());
  return earliest;
}

void Supervisor::Step(TimePoint now) {
  for (const auto& [key, task] : tasks_) {
    const bool was_active = task->active();
    task->OnEvent();
    task->OnTime(now);
    if (was_active) ReleaseIfEnded(key.first, key.second, *task);
  }
}

// The ports of one that was stopped are its stopper's to release.
void Supervisor::ReleaseIfEnded(const std::string& job, const std::string& name, const Task& task) {
  if (task.active() || task.told_to_stop()) return;
  if (task.has_lost_port()) return ports_.GiveAway(job, name);
  (void)ports_.Release(job, name);
}

}  // namespace muster
