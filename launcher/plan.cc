#include "launcher/plan.h"

#include <absl/strings/str_join.h>

#include <algorithm>
#include <set>

#include "base/clock.h"
#include "base/sha256.h"
#include "launcher/host_records.h"
#include "launcher/job_contents.h"
#include "launcher/job_store.h"
#include "launcher/running_job.h"
#include "launcher/trainer_arguments.h"

namespace muster {
namespace {

constexpr size_t kMostSpareHosts = 16;

agent::RestartPolicy PolicyOf(ReplicaSpec::Restart restart) {
  switch (restart) {
    case ReplicaSpec::Restart::kNever:
      return agent::RESTART_POLICY_NEVER;
    case ReplicaSpec::Restart::kOnFailure:
      return agent::RESTART_POLICY_ON_FAILURE;
    case ReplicaSpec::Restart::kAlways:
      return agent::RESTART_POLICY_ALWAYS;
    case ReplicaSpec::Restart::kExitCode:
      return agent::RESTART_POLICY_EXIT_CODE;
  }
  MUSTER_CHECK(false);
}

// Plans one job; the parts of MakePlan.
class Planner {
 public:
  Planner(const Job& job, const Inventory& inventory, const PlanInputs& inputs)
      : job_(job), inventory_(inventory), inputs_(inputs) {}

  absl::StatusOr<JobPlan> Plan();

 private:
  bool is_elastic() const { return !job_.is_standing && WhyNotElastic(job_, inputs_.servers).empty(); }
  absl::Status PlanServers(const record::JobRecord& servers);
  absl::Status GoOnWithBatch();
  absl::Status CheckEncryption(const std::vector<PlacedTask>& placed) const;
  void SetSource();
  absl::Status PackContents();
  void KeepContents(const record::JobRecord& running);
  absl::StatusOr<record::Host> ResolvedHost(int index, TimePoint deadline) const;
  absl::Status AddHosts(const std::vector<PlacedTask>& placed);
  void AddSpareHosts(const std::set<int>& used, TimePoint deadline);
  bool CanBeElsewhere(ReplicaRole role) const;
  std::vector<int> HostsFor(ReplicaRole role) const;
  void AddTask(const PlacedTask& placed);

  const Job& job_;
  const Inventory& inventory_;
  const PlanInputs& inputs_;
  JobPlan plan_;
  std::string program_sha256_;                 // JobContents
  std::string data_;                           // likewise
  std::map<ReplicaRole, std::set<int>> gpus_;  // that its tasks have
};

absl::StatusOr<JobPlan> Planner::Plan() {
  std::vector<std::string> server_hosts;
  if (inputs_.servers != nullptr) {
    for (const auto& member : inputs_.servers->cluster().members()) server_hosts.push_back(member.host());
  }
  MUSTER_ASSIGN_OR_RETURN(const std::vector<PlacedTask> placed,
                          PlaceTasks(job_, inventory_,
                                     inputs_.running == nullptr ? std::map<std::string, TaskPlace>()
                                                                : TaskPlacesOf(*inputs_.running),
                                     server_hosts));
  for (const PlacedTask& task : placed) gpus_[task.role].insert(task.gpus.begin(), task.gpus.end());
  MUSTER_RETURN_IF_ERROR(CheckEncryption(placed));
  plan_.record.set_version(kJobRecordVersion);
  plan_.record.set_name(job_.name);
  plan_.record.set_job_file(std::filesystem::absolute(job_.path).string());
  plan_.record.set_inventory_file(std::filesystem::absolute(inventory_.path).string());
  SetSource();
  if (inputs_.keeps_contents) {
    KeepContents(*inputs_.running);
  } else {
    MUSTER_RETURN_IF_ERROR(PackContents());
  }
  MUSTER_RETURN_IF_ERROR(AddHosts(placed));
  for (const PlacedTask& task : placed) AddTask(task);
  plan_.record.set_elastic(is_elastic());
  plan_.record.set_standing(job_.is_standing);
  plan_.record.set_hears_of_workers(job_.is_standing && !(job_.checkpoint && job_.checkpoint->journal));
  if (inputs_.servers != nullptr) MUSTER_RETURN_IF_ERROR(PlanServers(*inputs_.servers));
  MUSTER_RETURN_IF_ERROR(GoOnWithBatch());
  return std::move(plan_);
}

absl::Status Planner::PlanServers(const record::JobRecord& servers) {
  UseServers(servers, &plan_.record);
  for (const record::Task& server : servers.tasks()) {
    const auto has = [&](const std::string& flag) {
      return std::ranges::any_of(server.start().argv(),
                                 [&](const std::string& word) { return word.starts_with(flag); });
    };
    if (job_.is_hybrid() && has("--checkpoint_dir=") && !has("--durability=journal")) {
      return InvalidArgument(
          "%s: with hybrid nobody can go back to a checkpoint, which is what the servers of %s do: with "
          "`durability: journal`, or without checkpoints, they would not",
          job_.path, servers.id());
    }
  }
  for (const record::Host& host : servers.hosts()) {
    const bool all_are_there = std::ranges::all_of(
        plan_.record.hosts(), [&](const record::Host& own) { return own.name() == host.name(); });
    if (!all_are_there) MUSTER_RETURN_IF_ERROR(CheckReachable(host));
  }
  return absl::OkStatus();
}

// Whoever joins has to make the steps that the others make.
absl::Status Planner::GoOnWithBatch() {
  const int workers = job_.chief.count + job_.worker.count;
  plan_.record.set_first_workers(workers);
  plan_.record.set_fewest_workers(workers);
  if (inputs_.running == nullptr || !GoesOn(*inputs_.running, plan_.record)) return absl::OkStatus();
  const int first = FirstWorkers(*inputs_.running);
  const int fewest = std::min(workers, FewestWorkers(*inputs_.running));
  plan_.record.set_first_workers(first);
  plan_.record.set_fewest_workers(fewest);
  // Those that have joined may be missing anyway.
  if (job_.worker.min) {
    plan_.record.set_max_missing(std::max(0, fewest - job_.chief.count - *job_.worker.min));
  }
  // Ranks that were there know that others have left, and wait for no more; who starts anew is told.
  if (job_.is_allreduce() && !job_.worker.min && fewest < first) plan_.record.set_min_workers(fewest);
  // Who joins is to cost the others nothing.
  int rank = 0;
  for (record::Task& task : *plan_.record.mutable_tasks()) {
    if (!task.id().starts_with("ps:") && rank++ >= fewest) task.set_can_fail(true);
  }
  const TrainSpec& train = job_.train;
  if (!job_.shares_batches() || (!train.batch_size && !train.global_batch_size)) return absl::OkStatus();
  const int64_t samples =
      train.global_batch_size ? *train.global_batch_size : int64_t{*train.batch_size} * first;
  if (samples >= workers) return absl::OkStatus();
  return InvalidArgument(
      "%s: the batch of the %d workers that the training began with has %d samples: %d workers cannot share "
      "it",
      job_.path, first, samples, workers);
}

// All that tasks say to each other is encrypted, but for what NCCL sends. Where the job file leaves it to the
// workers whether they use that, they use it between hosts only if they are allowed to.
absl::Status Planner::CheckEncryption(const std::vector<PlacedTask>& placed) const {
  if (!job_.nccl_position || job_.trusted_network) return absl::OkStatus();
  std::set<int> hosts;
  for (const PlacedTask& task : placed) {
    if (task.role != ReplicaRole::kPs) hosts.insert(task.host_index);
  }
  if (hosts.size() < 2) return absl::OkStatus();
  return InvalidArgument(
      "%s: the GPUs of %d hosts would exchange gradients by NCCL, which has no encryption: add "
      "`trusted_network: true` if nobody else can listen between these hosts, or `collective: native`",
      job_.nccl_position->ToString(), hosts.size());
}

void Planner::SetSource() {
  if (job_.is_standing) return;
  record::JobSource& source = *plan_.record.mutable_source();
  source.set_text(job_.source.text);
  source.set_home(job_.source.home);
  if (job_.source.overrides.workers) source.set_workers(*job_.source.overrides.workers);
  source.set_servers_stand(job_.source.overrides.servers_stand);
}

absl::Status Planner::PackContents() {
  MUSTER_ASSIGN_OR_RETURN(const JobContents packed,
                          PackJob(job_, inputs_.installation, inputs_.data_folder, inputs_.data_cache));
  program_sha256_ = packed.program_sha256;
  data_ = packed.data;
  plan_.data = packed.data_origin;
  plan_.record.set_required_glibc(packed.required_glibc);
  plan_.record.mutable_program_files()->Assign(packed.program_files.begin(), packed.program_files.end());
  for (const Content& content : packed.contents) {
    record::Content* out = plan_.record.add_contents();
    out->set_sha256(content.sha256);
    out->set_name(content.name);
    out->set_size_bytes(content.bytes->size());
    plan_.contents[content.sha256] = content;
  }
  return absl::OkStatus();
}

void Planner::KeepContents(const record::JobRecord& running) {
  const auto sha256_of = [&](const char* name) {
    const record::Content* const content = Named(running.contents(), name, &record::Content::name);
    return content == nullptr ? std::string() : content->sha256();
  };
  program_sha256_ = sha256_of(kTrainerContent);
  data_ = FolderOfData(job_.data, sha256_of(kDataContent));
  plan_.record.set_required_glibc(running.required_glibc());
  *plan_.record.mutable_program_files() = running.program_files();
  *plan_.record.mutable_contents() = running.contents();
}

absl::StatusOr<record::Host> Planner::ResolvedHost(int index, TimePoint deadline) const {
  MUSTER_ASSIGN_OR_RETURN(record::Host out, ResolvedRecordOf(inventory_.hosts[index], deadline));
  for (const record::Content& content : plan_.record.contents()) out.add_contents(content.sha256());
  return out;
}

absl::Status Planner::AddHosts(const std::vector<PlacedTask>& placed) {
  std::set<int> used;
  for (const PlacedTask& task : placed) used.insert(task.host_index);
  const TimePoint lookups_deadline = Now() + kLookupsTimeout;
  for (const int index : used) {
    MUSTER_ASSIGN_OR_RETURN(*plan_.record.add_hosts(), ResolvedHost(index, lookups_deadline));
  }
  AddSpareHosts(used, lookups_deadline);
  for (const record::Host& host : plan_.record.hosts()) {
    if (plan_.record.hosts_size() > 1) MUSTER_RETURN_IF_ERROR(CheckReachable(host));
  }
  return absl::OkStatus();
}

// What a server has is elsewhere too only if the job file says so. A program is told of its new cluster by
// a restart of all its tasks, servers too.
bool Planner::CanBeElsewhere(ReplicaRole role) const {
  return role != ReplicaRole::kPs || !job_.program.empty() || job_.replicated ||
         (job_.checkpoint && job_.checkpoint->buddy);
}

// Where any of its tasks could run as it is: what names its GPUs stays the same.
std::vector<int> Planner::HostsFor(ReplicaRole role) const {
  std::vector<int> hosts = SuitableHosts(job_.replicas(role), inventory_);
  std::erase_if(hosts, [&](int index) {
    const std::vector<int> there = inventory_.hosts[index].gpus.value_or(std::vector<int>());
    return !std::ranges::all_of(gpus_.at(role),
                                [&](int gpu) { return std::ranges::find(there, gpu) != there.end(); });
  });
  return hosts;
}

// One whose address is not known now, or means another machine elsewhere, cannot help.
void Planner::AddSpareHosts(const std::set<int>& used, TimePoint deadline) {
  std::set<int> spares;
  for (const ReplicaRole role : kReplicaRoles) {
    if (job_.replicas(role).count == 0 || !CanBeElsewhere(role)) continue;
    for (const int index : HostsFor(role)) {
      const bool suits = !used.contains(index) && !inventory_.hosts[index].local;
      if (suits && spares.size() < kMostSpareHosts) spares.insert(index);
    }
  }
  for (const int index : spares) {
    if (auto host = ResolvedHost(index, deadline); host.ok() && CheckReachable(*host).ok()) {
      *plan_.record.add_spare_hosts() = *std::move(host);
    }
  }
}

void Planner::AddTask(const PlacedTask& placed) {
  const ReplicaSpec& replicas = job_.replicas(placed.role);
  record::Task task;
  task.set_id(placed.Name());
  task.set_host(inventory_.hosts[placed.host_index].name);
  task.set_is_chief(placed.role == ReplicaRole::kChief ||
                    (placed.role == ReplicaRole::kWorker && placed.index == 0 && job_.chief.count == 0));
  // Servers end when the workers have ended. With allreduce the chief says when all is done, and a worker
  // that was lost then has nothing left to come back for.
  task.set_ends_with_others((placed.role == ReplicaRole::kPs && !job_.is_standing) ||
                            (job_.is_allreduce() && !task.is_chief()));
  agent::StartTaskRequest* start = task.mutable_start();
  start->set_task(placed.Name());
  start->set_restart(PolicyOf(replicas.restart));
  start->set_max_restarts(replicas.max_restarts);
  start->set_hung_after_ms(static_cast<uint32_t>(replicas.hung_after_ms.value_or(0)));
  start->set_max_log_bytes(replicas.max_log_bytes.value_or(0));
  start->add_environment(inventory_.hosts[placed.host_index].local ? "MUSTER_PLATFORM=local"
                                                                   : "MUSTER_PLATFORM=ssh");
  if (job_.program.empty()) {
    start->set_program_sha256(program_sha256_);
    start->add_environment("MUSTER_PROGRAM_SHA256=" + program_sha256_);
    start->add_argv("bin/muster-trainer");
    task.set_tensorflow_flags(true);
    task.set_tls(true);
    task.set_follows_cluster(true);
    task.set_writes_results(task.is_chief());
    task.set_writes_onnx(task.is_chief() && job_.train.save_onnx);
    for (std::string& argument : TrainerArguments(job_, placed.role, data_)) {
      start->add_argv(std::move(argument));
    }
  } else {
    for (const std::string& word : job_.program) start->add_argv(word);
    task.set_tensorflow_flags(job_.tensorflow_flags);
    task.set_rank_environment(true);
    if (!data_.empty()) start->add_environment("MUSTER_DATA=" + data_);
  }
  if (job_.wants_gpus()) {
    task.mutable_gpus()->Assign(placed.gpus.begin(), placed.gpus.end());
    start->add_environment("CUDA_DEVICE_ORDER=PCI_BUS_ID");  // as nvidia-smi counts them
    start->add_environment("CUDA_VISIBLE_DEVICES=" + absl::StrJoin(placed.gpus, ","));
  }
  for (const auto& [name, value] : job_.env) start->add_environment(name + "=" + value);
  // Where it runs is no reason to start it again either, if it runs there.
  record::Task without_host = task;
  without_host.clear_host();
  std::string spec = without_host.SerializeAsString();
  // Servers are told these by the first worker, and keep to them until they end.
  if (job_.program.empty() && !job_.is_standing) spec += absl::StrJoin(ParameterArguments(job_), " ");
  if (inputs_.servers != nullptr) spec += inputs_.servers->id();
  for (const agent::FileContent& file : plan_.record.program_files()) spec += file.SerializeAsString();
  task.set_spec_hash(Sha256Hex(spec));
  // What follows is no reason to start it again. A chief of asynchronous servers ends after the others, too;
  // who has only just joined may find nobody left whom it could tell that it is done.
  if (is_elastic() && !task.is_chief()) task.set_ends_with_others(true);
  if (job_.worker.min && placed.role == ReplicaRole::kWorker && !task.is_chief()) {
    task.set_can_be_missing(true);
    plan_.record.set_max_missing(job_.worker.count - *job_.worker.min);
  }
  if (CanBeElsewhere(placed.role)) {
    for (const int index : HostsFor(placed.role)) {
      const std::string& name = inventory_.hosts[index].name;
      if (FindHost(plan_.record, name) != nullptr) task.add_spares(name);
    }
  }
  *plan_.record.add_tasks() = std::move(task);
}

}  // namespace

absl::StatusOr<JobPlan> MakePlan(const Job& job, const Inventory& inventory, const PlanInputs& inputs) {
  return Planner(job, inventory, inputs).Plan();
}

std::string WhyNotElastic(const Job& job, const record::JobRecord* servers) {
  if (std::string why = WhyNotElastic(job); !why.empty() || servers == nullptr) return why;
  if (servers->hears_of_workers()) return "";
  return absl::StrFormat(
      "the servers of %s know those that there were at first, since they keep a journal, or are of an "
      "earlier "
      "muster (`muster up %s` brings this one)",
      servers->id(), servers->job_file());
}

absl::StatusOr<Job> JobOf(const record::JobRecord& record) {
  if (!record.has_source()) {
    return FailedPrecondition("the record of %s does not say what it was planned from", record.id());
  }
  const record::JobSource& source = record.source();
  JobOverrides overrides{.workers = std::nullopt, .servers_stand = source.servers_stand()};
  if (source.has_workers()) overrides.workers = source.workers();
  return ParseJob(source.text(), record.job_file(), source.home(), overrides);
}

std::map<std::string, TaskPlace> TaskPlacesOf(const record::JobRecord& running) {
  std::map<std::string, TaskPlace> places;
  for (auto& [name, host] : PlacesOf(running)) {
    TaskPlace& place = places[name];
    place.host = host;
    const record::Task* const task = Named(running.tasks(), name, &record::Task::id);
    if (task != nullptr) place.gpus.assign(task->gpus().begin(), task->gpus().end());
  }
  return places;
}

}  // namespace muster
