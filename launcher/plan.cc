#include "launcher/plan.h"

#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "base/certificates.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/random.h"
#include "base/sha256.h"
#include "cluster/cluster_file.h"
#include "cluster/cluster_spec.h"
#include "launcher/data_sets.h"
#include "launcher/job_store.h"
#include "launcher/running_job.h"
#include "launcher/ssh_socket.h"

namespace muster {
namespace {

constexpr uint64_t kMaxProgramFilesBytes = 8
                                           << 20;  // they travel in the start message, whose frame is bounded

constexpr size_t kMostSpareHosts = 16;

record::Host HostRecord(const Host& host) {
  record::Host out;
  out.set_name(host.name);
  out.set_local(host.local);
  out.set_ssh_address(host.ssh_address);
  out.set_ssh_port(static_cast<uint32_t>(host.ssh_port));
  out.set_user(host.user);
  for (const std::string& identity : host.identities) out.add_identities(identity);
  out.set_dir(host.dir);
  for (const JumpHost& jump : host.jumps) {
    record::JumpHost* const to = out.add_jumps();
    to->set_name(jump.name);
    to->set_address(jump.address);
    to->set_port(static_cast<uint32_t>(jump.port));
    to->set_user(jump.user);
    for (const std::string& identity : jump.identities) to->add_identities(identity);
  }
  return out;
}

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

template <typename T>
void AddFlag(const std::string& name, const std::optional<T>& value, std::vector<std::string>& arguments) {
  if (!value) return;
  if constexpr (std::is_same_v<T, bool>) {
    arguments.push_back(absl::StrFormat("--%s=%s", name, *value ? "true" : "false"));
  } else if constexpr (std::is_floating_point_v<T>) {
    arguments.push_back(absl::StrFormat("--%s=%.9g", name, *value));
  } else if constexpr (std::is_integral_v<T>) {
    arguments.push_back(absl::StrFormat("--%s=%d", name, *value));
  } else {
    arguments.push_back(absl::StrFormat("--%s=%s", name, *value));
  }
}

// A cosine without an end of its own ends with the training.
bool RateDependsOnSteps(const TrainSpec& train) {
  const auto depends = [](const OptimizerSpec& optimizer) {
    return optimizer.schedule.kind == "cosine" && !optimizer.schedule.decay_steps;
  };
  return depends(train.optimizer) || depends(train.wide);
}

void AddOptimizerFlags(const std::string& prefix, const OptimizerSpec& optimizer,
                       std::vector<std::string>& arguments) {
  const auto add = [&](const std::string& name, const auto& value) {
    AddFlag(prefix + name, value, arguments);
  };
  add("optimizer", optimizer.kind);
  add("learning_rate", optimizer.learning_rate);
  add("weight_decay", optimizer.weight_decay);
  add("momentum", optimizer.momentum);
  add("nesterov", optimizer.nesterov);
  add("beta1", optimizer.beta1);
  add("beta2", optimizer.beta2);
  add("epsilon", optimizer.epsilon);
  add("initial_accumulator", optimizer.initial_accumulator);
  add("l1", optimizer.l1);
  add("l2", optimizer.l2);
  add("learning_rate_schedule", optimizer.schedule.kind);
  add("learning_rate_gamma", optimizer.schedule.gamma);
  add("learning_rate_power", optimizer.schedule.power);
  add("learning_rate_step_size", optimizer.schedule.step_size);
  add("learning_rate_decay_steps", optimizer.schedule.decay_steps);
  add("learning_rate_final_fraction", optimizer.schedule.final_fraction);
  add("warmup_steps", optimizer.schedule.warmup_steps);
}

// Plans one job; the parts of MakePlan.
class Planner {
 public:
  Planner(const Job& job, const Inventory& inventory, const PlanInputs& inputs)
      : job_(job), inventory_(inventory), inputs_(inputs) {}

  absl::StatusOr<JobPlan> Plan();

 private:
  bool is_elastic() const {
    return !job_.is_standing && inputs_.servers == nullptr && WhyNotElastic(job_).empty();
  }
  absl::Status PlanServers(const record::JobRecord& servers);
  absl::Status GoOnWithBatch();
  absl::Status CheckEncryption(const std::vector<PlacedTask>& placed) const;
  absl::Status PackProgram();
  absl::Status PackData();
  absl::StatusOr<record::Host> ResolvedHost(int index, TimePoint deadline) const;
  absl::Status AddHosts(const std::vector<PlacedTask>& placed);
  static absl::Status CheckReachable(const record::Host& host);
  void AddSpareHosts(const std::set<int>& used, TimePoint deadline);
  bool CanBeElsewhere(ReplicaRole role) const;
  std::vector<int> HostsFor(ReplicaRole role) const;
  void AddTask(const PlacedTask& placed);
  std::vector<std::string> ParameterArguments() const;
  void AddCheckpointArguments(agent::StartTaskRequest* start) const;
  void AddTrainerArguments(const PlacedTask& placed, agent::StartTaskRequest* start) const;
  void AddContent(Content content);

  const Job& job_;
  const Inventory& inventory_;
  const PlanInputs& inputs_;
  JobPlan plan_;
  std::string program_sha256_;
  std::string data_argument_;                  // a folder on the host, or "synthetic"
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
  MUSTER_RETURN_IF_ERROR(PackProgram());
  MUSTER_RETURN_IF_ERROR(PackData());
  MUSTER_RETURN_IF_ERROR(AddHosts(placed));
  for (const PlacedTask& task : placed) AddTask(task);
  plan_.record.set_elastic(is_elastic());
  plan_.record.set_standing(job_.is_standing);
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

// A loopback address that the inventory itself names is meant: a cluster on this machine.
absl::Status Planner::CheckReachable(const record::Host& host) {
  if (!host.data_address().starts_with("127.") || host.ssh_address() == host.data_address()) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "host %s: its address resolves to %s, which other hosts cannot reach: give it `data: ADDRESS`",
      host.name(), host.data_address());
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
  if (!job_.is_allreduce() || (!train.batch_size && !train.global_batch_size)) return absl::OkStatus();
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

absl::Status Planner::PackProgram() {
  if (job_.program.empty()) {
    MUSTER_ASSIGN_OR_RETURN(Content trainer, PackBundle("trainer", inputs_.installation.trainer));
    MUSTER_ASSIGN_OR_RETURN(std::string glibc,
                            ReadFile(inputs_.installation.trainer / "required_glibc", 100));
    plan_.record.set_required_glibc(glibc.substr(0, glibc.find('\n')));
    program_sha256_ = trainer.sha256;
    AddContent(std::move(trainer));
    return absl::OkStatus();
  }
  uint64_t total = 0;
  for (const auto& [name, position] : job_.files) {
    const std::filesystem::path path = std::filesystem::path(job_.path).parent_path() / name;
    auto bytes = ReadFile(path, kMaxProgramFilesBytes);
    if (!bytes.ok())
      return InvalidArgument("%s: %s", position.ToString(), std::string(bytes.status().message()));
    if ((total += bytes->size()) > kMaxProgramFilesBytes) {
      return InvalidArgument("%s: the files together are larger than 8 MiB; put large ones under `data`",
                             position.ToString());
    }
    struct stat info {};
    const bool executable = ::stat(path.c_str(), &info) == 0 && (info.st_mode & 0100) != 0;
    agent::FileContent& file = *plan_.record.add_program_files();
    file.set_path(name);
    file.set_content(*std::move(bytes));
    file.set_mode(executable ? 0755 : 0644);
  }
  return absl::OkStatus();
}

absl::Status Planner::PackData() {
  std::string folder = job_.data.folder;
  std::string origin = job_.data.position.ToString();
  const DataSet& set = DataSetOfModel(job_.model);
  switch (job_.data.kind) {
    case DataSource::Kind::kNone:
      return absl::OkStatus();
    case DataSource::Kind::kOnHosts:
      data_argument_ = folder;
      plan_.data = folder + " on the hosts";
      return absl::OkStatus();
    case DataSource::Kind::kAuto:  // always of a model
      if (!inputs_.data_folder.empty()) {
        folder = inputs_.data_folder;
        origin = "MUSTER_DATA";
      } else if (!inputs_.data_cache.empty() && HasDataSet(inputs_.data_cache, set)) {
        folder = inputs_.data_cache.string();
        origin = "the data cache";
      } else {
        data_argument_ = "synthetic";
        plan_.data = absl::StrFormat(
            "synthetic (for the real set: `muster data fetch %s`, or MUSTER_DATA=FOLDER with %s/)", set.name,
            set.name);
        return absl::OkStatus();
      }
      break;
    case DataSource::Kind::kFolder:
      break;
  }
  if (std::error_code error; !std::filesystem::is_directory(folder, error))
    return InvalidArgument("%s: %s is no folder of this machine", origin, folder);
  if (job_.program.empty() && !HasDataSet(folder, set)) {
    return InvalidArgument("%s: %s does not hold %s/ with its files; `muster data fetch %s DIR` brings them",
                           origin, folder, set.name, set.name);
  }
  // The built-in models take a part of the folder; another program gets all of it.
  const std::string part = job_.program.empty() ? set.name + "/" : "";
  MUSTER_ASSIGN_OR_RETURN(Content data, PackContent("data", folder, [&](std::string_view name) {
                            return name.starts_with(part);
                          }));
  data_argument_ = "{store:" + data.sha256 + "}";
  plan_.data = folder;
  AddContent(std::move(data));
  return absl::OkStatus();
}

void Planner::AddContent(Content content) {
  record::Content* out = plan_.record.add_contents();
  out->set_sha256(content.sha256);
  out->set_name(content.name);
  out->set_size_bytes(content.bytes->size());
  plan_.contents[content.sha256] = std::move(content);
}

absl::StatusOr<record::Host> Planner::ResolvedHost(int index, TimePoint deadline) const {
  const Host& host = inventory_.hosts[index];
  record::Host out = HostRecord(host);
  MUSTER_ASSIGN_OR_RETURN(*out.mutable_data_address(), FindDataAddress(host, deadline));
  out.set_data_is_ssh(!host.local && host.data_address.empty());
  out.set_planned_address(out.data_address());
  for (const auto& [sha256, content] : plan_.contents) out.add_contents(sha256);
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

// One whose address is not known now cannot help.
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
    if (auto host = ResolvedHost(index, deadline); host.ok()) {
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
    AddTrainerArguments(placed, start);
  } else {
    for (const std::string& word : job_.program) start->add_argv(word);
    task.set_tensorflow_flags(job_.tensorflow_flags);
    task.set_rank_environment(true);
    if (!data_argument_.empty()) start->add_environment("MUSTER_DATA=" + data_argument_);
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
  if (job_.program.empty() && !job_.is_standing) spec += absl::StrJoin(ParameterArguments(), " ");
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

// What the parameters are and how they are updated.
std::vector<std::string> Planner::ParameterArguments() const {
  std::vector<std::string> arguments = {"--model=" + job_.model};
  if (!job_.variant.empty()) arguments.push_back("--variant=" + job_.variant);
  if (!job_.hidden.empty()) arguments.push_back("--hidden=" + absl::StrJoin(job_.hidden, ","));
  const UpdateSpec& update = job_.update;
  if (update.mode == UpdateSpec::Mode::kSync) arguments.push_back("--sync_replicas");
  if (update.mode == UpdateSpec::Mode::kBounded) AddFlag("bounded_staleness", update.staleness, arguments);
  AddFlag("replicas_to_aggregate", update.aggregate, arguments);
  AddFlag("max_staleness", update.max_staleness, arguments);
  AddFlag("scale_rate_by_staleness", update.scale_rate, arguments);
  AddFlag("wire_type", update.wire_type, arguments);
  AddFlag("top_k", update.top_k, arguments);
  if (update.evict_rows_after.value_or(0) > 0) {
    AddFlag("evict_rows_after", update.evict_rows_after, arguments);
    if (job_.checkpoint) AddFlag("checkpoint_every", job_.checkpoint->every_steps, arguments);
  }
  AddFlag("bucket_bytes", update.bucket_bytes, arguments);
  AddFlag("seed", job_.train.seed, arguments);
  const TrainSpec& train = job_.train;
  AddOptimizerFlags("", train.optimizer, arguments);
  AddOptimizerFlags("wide_", train.wide, arguments);
  if (RateDependsOnSteps(train)) AddFlag("train_steps", train.steps, arguments);
  return arguments;
}

// A job whose parameters or updates are others begins anew, in another folder.
void Planner::AddCheckpointArguments(agent::StartTaskRequest* start) const {
  if (!job_.checkpoint) return;
  // Standing servers make a folder in it for each job.
  const std::string identity =
      job_.is_standing ? "" : "-" + Sha256Hex(absl::StrJoin(ParameterArguments(), " ")).substr(0, 8);
  std::vector<std::string> arguments = {"--checkpoint_dir={task_dir}/checkpoints" + identity};
  AddFlag("checkpoint_every", job_.checkpoint->every_steps, arguments);
  AddFlag("keep_checkpoints", job_.checkpoint->keep, arguments);
  if (job_.checkpoint->buddy) arguments.push_back("--checkpoint_buddy");
  if (job_.checkpoint->journal) arguments.push_back("--durability=journal");
  for (std::string& argument : arguments) start->add_argv(std::move(argument));
}

void Planner::AddTrainerArguments(const PlacedTask& placed, agent::StartTaskRequest* start) const {
  start->add_argv("--tls_dir={task_dir}/tls");
  start->add_argv(absl::StrFormat("--cluster_file={task_dir}/%s", kClusterFile));
  if (job_.is_standing) start->add_argv("--standing");
  if (job_.replicated) start->add_argv("--durability=replicated");
  if (job_.tcp_only) start->add_argv("--transport=tcp");
  if (job_.is_hybrid()) start->add_argv("--strategy=hybrid");
  if (placed.role != ReplicaRole::kPs) {
    if (job_.collective) start->add_argv("--collective=" + *job_.collective);
    if (job_.trusted_network) start->add_argv("--trusted_network");
  }
  if (job_.is_allreduce()) {
    start->add_argv("--strategy=allreduce");
    // The chief is one of them, and indispensable.
    if (job_.worker.min) {
      start->add_argv(absl::StrFormat("--min_workers=%d", *job_.worker.min + job_.chief.count));
    }
  }
  start->add_argv(absl::StrFormat("--metrics_file={task_dir}/%s", kTaskMetricsFile));
  if (placed.role == ReplicaRole::kPs) return AddCheckpointArguments(start);
  std::vector<std::string> arguments = ParameterArguments();
  if (!RateDependsOnSteps(job_.train)) AddFlag("train_steps", job_.train.steps, arguments);
  AddFlag("batch_size", job_.train.batch_size, arguments);
  AddFlag("global_batch_size", job_.train.global_batch_size, arguments);
  AddFlag("augment", job_.train.augment, arguments);
  AddFlag("eval_every", job_.train.eval_every, arguments);
  AddFlag("threads", job_.train.threads, arguments);
  AddFlag("device", job_.train.device, arguments);
  AddFlag("cuda_math", job_.train.cuda_math, arguments);
  for (std::string& argument : arguments) start->add_argv(std::move(argument));
  start->add_argv("--data_dir=" + data_argument_);
  // Only the chief writes them, and which task that is, the trainer knows.
  const auto add_output = [&](const char* flag, const char* name) {
    start->add_argv(absl::StrFormat("--%s={task_dir}/%s", flag, name));
  };
  add_output("result_json", kResultFile);
  add_output("metrics_jsonl", kMetricsFile);
  add_output("log_dir", kEventsFolder);
  add_output("save_model", kModelFile);
  if (job_.train.save_onnx) add_output("save_onnx", kOnnxFile);
}

}  // namespace

absl::StatusOr<std::string> FindDataAddress(const Host& host, TimePoint deadline) {
  if (!host.data_address.empty()) return host.data_address;
  if (host.local) return "127.0.0.1";
  if (!host.jumps.empty() && !IsIpAddress(host.ssh_address)) {
    return InvalidArgument(
        "%s: host %s: what %s means is known behind its jump host only; give the host `data: ADDRESS`",
        host.position.ToString(), host.name, host.ssh_address);
  }
  const auto address = LookUpAddress(host.ssh_address, {.deadline = deadline});
  if (address.ok()) return address;
  return InvalidArgument("%s: host %s: %s (or give the host `data: ADDRESS`)", host.position.ToString(),
                         host.name, std::string(address.status().message()));
}

absl::StatusOr<JobPlan> MakePlan(const Job& job, const Inventory& inventory, const PlanInputs& inputs) {
  return Planner(job, inventory, inputs).Plan();
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

Host HostOf(const record::Host& record) {
  Host host{.name = record.name(),
            .local = record.local(),
            .ssh_address = record.ssh_address(),
            .ssh_port = static_cast<int>(record.ssh_port()),
            .user = record.user(),
            .identities = {record.identities().begin(), record.identities().end()},
            .data_address = record.data_is_ssh() || record.local() ? "" : record.data_address(),
            .dir = record.dir()};
  for (const record::JumpHost& jump : record.jumps()) {
    host.jumps.push_back({jump.name(),
                          jump.address(),
                          static_cast<int>(jump.port()),
                          jump.user(),
                          {jump.identities().begin(), jump.identities().end()}});
  }
  return host;
}

std::vector<record::Host> AllHosts(const Inventory& inventory) {
  std::vector<record::Host> hosts;
  for (const Host& host : inventory.hosts) hosts.push_back(HostRecord(host));
  return hosts;
}

}  // namespace muster
