#include "launcher/kubernetes_pods.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_replace.h>

#include <algorithm>
#include <cstring>

#include "cluster/cluster_spec.h"
#include "launcher/trainer_arguments.h"

namespace muster {
namespace {

constexpr size_t kMaxLabelBytes = 63;  // of a DNS name (RFC 1035)
constexpr char kCheckpointFolder[] = "/checkpoints";
// Pods wait for nodes that have room, and nodes for images.
constexpr int kStartTimeoutS = 1800;

// Kubernetes keeps so much of what a container leaves there, and of more only the end.
constexpr char kTerminationLog[] = "/dev/termination-log";
constexpr size_t kMaxTerminationBytes = 4096;
constexpr size_t kMaxResultBytes = 1600;  // of a result record without its hosts
constexpr size_t kBytesAroundHost = 8;    // quotes, comma, indentation
// An operator's names end in ".NAMESPACE.svc".
constexpr size_t kMaxNamespaceBytes = kMaxLabelBytes + 5;

// So that Kubernetes, which expands $(NAME), leaves it as it is.
std::string Literal(const std::string& text) { return absl::StrReplaceAll(text, {{"$", "$$"}}); }

std::string IndexVariable() { return absl::StrFormat("$(%s)", kCompletionIndex); }

std::string PodsName(const std::string& job, ReplicaRole role) { return job + "-" + ReplicaRoleName(role); }

// Names of pods begin with that of the job and are labels of DNS. Capitals and '_' or '.', which a job may
// have, are no part of them.
absl::StatusOr<std::string> NameInKubernetes(const Job& job) {
  const std::string name = absl::StrReplaceAll(absl::AsciiStrToLower(job.name), {{"_", "-"}, {".", "-"}});
  if (!absl::ascii_isalpha(name[0]) || name.back() == '-') {
    return InvalidArgument(
        "%s: the name %s would be %s in Kubernetes, where names begin with a letter and end with a letter or "
        "digit: give the job another one",
        job.path, job.name, name);
  }
  for (const ReplicaRole role : kReplicaRoles) {
    const int count = job.replicas(role).count;
    const std::string longest = absl::StrFormat("%s-%d", PodsName(name, role), std::max(0, count - 1));
    if (count == 0 || longest.size() <= kMaxLabelBytes) continue;
    return InvalidArgument(
        "%s: a pod would be called %s, which has %d characters; Kubernetes allows %d: give the job a shorter "
        "name",
        job.path, longest, longest.size(), kMaxLabelBytes);
  }
  return name;
}

absl::Status CheckImage(const std::string& image) {
  const auto fits = [](char c) { return absl::ascii_isalnum(c) || std::strchr("./:@_-", c) != nullptr; };
  if (!image.empty() && absl::ascii_isalnum(image[0]) && std::all_of(image.begin(), image.end(), fits)) {
    return absl::OkStatus();
  }
  return InvalidArgument("--image \"%s\" is no image; expected one like registry.example.org/mnist:1", image);
}

// What a TFJob cannot express.
absl::Status CheckTfJob(const Job& job) {
  if (job.tensorflow_flags) {
    return InvalidArgument(
        "%s: the operator of a TFJob sets TF_CONFIG and no flags, which `flags: tensorflow` asks for: leave "
        "`--format tfjob` out",
        job.path);
  }
  if (job.ps.count + job.chief.count + job.worker.count > 1) return absl::OkStatus();
  return InvalidArgument(
      "%s: the operator of a TFJob tells a task nothing if it is the only one: leave `--format tfjob` out",
      job.path);
}

TaskId FirstOf(ReplicaRole role) {
  return {role == ReplicaRole::kPs      ? Role::kPs
          : role == ReplicaRole::kChief ? Role::kChief
                                        : Role::kWorker,
          0};
}

// Makes the pods of one job; the parts of MakePods.
class PodMaker {
 public:
  PodMaker(const Job& job, const KubernetesOptions& options) : job_(job), options_(options) {
    // A pod sees the GPUs that it was given, and no others.
    if (absl::StartsWith(job_.train.device.value_or(""), "cuda")) job_.train.device = "cuda:0";
  }

  absl::StatusOr<JobPods> Make();

 private:
  bool is_model() const { return job_.program.empty(); }
  bool is_tfjob() const { return options_.format == KubernetesFormat::kTfJob; }
  ReplicaRole chief() const { return job_.chief.count > 0 ? ReplicaRole::kChief : ReplicaRole::kWorker; }
  bool IsRestarted(ReplicaRole role) const {
    return job_.replicas(role).restart != ReplicaSpec::Restart::kNever;
  }
  // Where some may be missing, a new pod has from the others what it needs.
  bool KeepsFiles(ReplicaRole role) const {
    return job_.KeepsCheckpoints(role) && IsRestarted(role) && !job_.replicas(role).min;
  }
  bool RetriesEach(ReplicaRole role) const {
    return !is_tfjob() && !KeepsFiles(role) && (IsRestarted(role) || job_.replicas(role).min);
  }
  void MakeCluster();
  bool ResultFits() const;
  std::string DataFolder() const;
  std::vector<std::string> TrainerCommand(ReplicaRole role) const;
  std::vector<std::string> ProgramCommand(ReplicaRole role) const;
  std::vector<std::string> ClusterFlags(ReplicaRole role) const;
  void AddRankEnvironment(RolePods* pods) const;
  RolePods PodsOf(ReplicaRole role) const;
  void NoteData();
  void NoteRole(ReplicaRole role);
  void NoteRestart(ReplicaRole role);
  void Note(const std::string& note) { pods_.notes.push_back(note); }

  Job job_;
  const KubernetesOptions& options_;
  ClusterSpec cluster_;  // as pods find each other; an operator has names of its own
  JobPods pods_;
};

void PodMaker::MakeCluster() {
  const auto add = [&](ReplicaRole role, std::vector<std::string>* addresses) {
    for (int i = 0; i < job_.replicas(role).count; ++i) {
      addresses->push_back(
          absl::StrFormat("%s-%d.%s:%d", PodsName(pods_.name, role), i, pods_.name, kPodPort));
    }
  };
  add(ReplicaRole::kPs, &cluster_.ps);
  add(ReplicaRole::kChief, &cluster_.chief);
  add(ReplicaRole::kWorker, &cluster_.workers);
}

bool PodMaker::ResultFits() const {
  size_t bytes = kMaxResultBytes;
  for (const auto* addresses : {&cluster_.ps, &cluster_.chief, &cluster_.workers}) {
    for (const std::string& address : *addresses) {
      bytes += HostOfAddress(address).size() + kBytesAroundHost + (is_tfjob() ? kMaxNamespaceBytes : 0);
    }
  }
  return bytes <= kMaxTerminationBytes;
}

// Empty: the image's MUSTER_DATA, if it has that.
std::string PodMaker::DataFolder() const {
  switch (job_.data.kind) {
    case DataSource::Kind::kFolder:
      return kImageDataFolder;
    case DataSource::Kind::kOnHosts:
      return job_.data.folder;
    case DataSource::Kind::kNone:
    case DataSource::Kind::kAuto:
      break;
  }
  return "";
}

std::vector<std::string> PodMaker::ClusterFlags(ReplicaRole role) const {
  std::vector<std::string> flags = ToFlags(cluster_, FirstOf(role));
  std::replace(flags.begin(), flags.end(), std::string("--task_index=0"), "--task_index=" + IndexVariable());
  return flags;
}

std::vector<std::string> PodMaker::TrainerCommand(ReplicaRole role) const {
  std::vector<std::string> argv;
  if (!is_tfjob()) argv = ClusterFlags(role);
  argv.insert(argv.begin(), "muster-trainer");
  // The name of a pod may not be known yet when it starts.
  argv.push_back("--bind_host=0.0.0.0");
  argv.push_back(absl::StrFormat("--connect_timeout=%d", kStartTimeoutS));
  argv.push_back(absl::StrFormat("--worker_timeout=%d", kStartTimeoutS));
  for (const std::string& argument : TrainingArguments(job_, role, DataFolder(), kCheckpointFolder)) {
    argv.push_back(Literal(argument));
  }
  if (role != ReplicaRole::kPs) {
    argv.push_back(absl::StrFormat("--result_json=%s", pods_.logs_result ? "/dev/stdout" : kTerminationLog));
  }
  return argv;
}

std::vector<std::string> PodMaker::ProgramCommand(ReplicaRole role) const {
  std::vector<std::string> argv;
  // Kubernetes cannot add: the chief has rank 0.
  if (!is_tfjob() && role == ReplicaRole::kWorker && job_.chief.count > 0) {
    argv = {"sh", "-c", Literal(absl::StrFormat("RANK=$((%s + 1)) exec \"$@\"", kCompletionIndex)), "sh"};
  }
  for (const std::string& word : job_.program) argv.push_back(Literal(word));
  if (!job_.tensorflow_flags) return argv;
  const std::vector<std::string> flags = ClusterFlags(role);
  argv.insert(argv.end(), flags.begin(), flags.end());
  return argv;
}

void PodMaker::AddRankEnvironment(RolePods* pods) const {
  const auto add = [&](const char* name, const std::string& value) {
    pods->environment.emplace_back(name, value);
  };
  const TaskId first = FirstOf(pods->role);
  add("TF_CONFIG", absl::StrReplaceAll(Literal(ToTfConfig(cluster_, first)),
                                       {{"\"index\":0", "\"index\":" + IndexVariable()}}));
  const std::string& master = cluster_.addresses(FirstOf(chief()).role)[0];
  add("MASTER_ADDR", HostOfAddress(master));
  add("MASTER_PORT", std::to_string(kPodPort));
  add("WORLD_SIZE", std::to_string(cluster_.rank_count()));
  if (pods->role == ReplicaRole::kPs) return;
  add("RANK", IndexVariable());
  add("LOCAL_RANK", "0");
}

RolePods PodMaker::PodsOf(ReplicaRole role) const {
  RolePods pods{.role = role,
                .name = PodsName(pods_.name, role),
                .count = job_.replicas(role).count,
                .argv = is_model() ? TrainerCommand(role) : ProgramCommand(role),
                .gpus = GpusOf(job_, role),
                .keeps_files = KeepsFiles(role),
                .retries_each = RetriesEach(role)};
  if (!is_model() && !is_tfjob()) {
    pods.names_index = true;
    AddRankEnvironment(&pods);
  }
  if (!is_model() && !DataFolder().empty()) pods.environment.emplace_back("MUSTER_DATA", DataFolder());
  for (const auto& [name, value] : job_.env) pods.environment.emplace_back(name, Literal(value));
  if (job_.data.kind == DataSource::Kind::kOnHosts) {
    pods.folders.push_back({"data", job_.data.folder, job_.data.folder});
  }
  if (job_.KeepsCheckpoints(role)) pods.folders.push_back({"checkpoints", kCheckpointFolder, ""});
  return pods;
}

void PodMaker::NoteData() {
  if (job_.data.kind == DataSource::Kind::kAuto) {
    Note(
        "data: what the image's MUSTER_DATA names (`muster export --context` puts it in), else a synthetic "
        "set");
  } else if (job_.data.kind == DataSource::Kind::kFolder) {
    Note(absl::StrFormat("data: the image has it under %s (`muster export --context` puts it in)",
                         kImageDataFolder));
  } else if (job_.data.kind == DataSource::Kind::kOnHosts) {
    Note(absl::StrFormat("data: each node has it under %s", job_.data.folder));
  }
}

void PodMaker::NoteRestart(ReplicaRole role) {
  using Restart = ReplicaSpec::Restart;
  const ReplicaSpec& replicas = job_.replicas(role);
  const std::string name = ReplicaRoleName(role);
  if (!IsRestarted(role)) return;
  if (KeepsFiles(role)) {
    Note(name +
         ": started again in its pod, with whose emptyDir its checkpoints go; `max_restarts` is of all");
    if (replicas.restart == Restart::kExitCode) Note(name + ": no exit code is permanent");
  } else if (is_tfjob()) {
    Note(name + ": `max_restarts` is counted for the tasks of all roles together");
  }
  if (replicas.restart == Restart::kAlways && !is_tfjob()) {
    Note(name + ": what ends with 0 is not started again");
  }
}

void PodMaker::NoteRole(ReplicaRole role) {
  const ReplicaSpec& replicas = job_.replicas(role);
  const std::string name = ReplicaRoleName(role);
  NoteRestart(role);
  if (!replicas.on.empty() && GpusOf(job_, role) == 0) {
    Note(absl::StrFormat("%s: on any node; `on: %s` would be a nodeSelector", name, replicas.on));
  }
  if (replicas.hung_after_ms) Note(name + ": one that hangs is not ended (`hung_after`)");
  if (replicas.max_log_bytes) Note(name + ": how much of a log is kept, nodes say (`max_log_bytes`)");
  if (replicas.max) Note(name + ": their number stays (`max`)");
  if (replicas.min) Note(name + ": training goes on with `min` of them, but then ends as failed");
}

absl::StatusOr<JobPods> PodMaker::Make() {
  MUSTER_RETURN_IF_ERROR(CheckImage(options_.image));
  if (is_tfjob()) MUSTER_RETURN_IF_ERROR(CheckTfJob(job_));
  MUSTER_ASSIGN_OR_RETURN(pods_.name, NameInKubernetes(job_));
  MakeCluster();
  pods_.logs_result = !ResultFits();
  if (is_model()) pods_.chief = PodsName(pods_.name, chief());
  if (pods_.name != job_.name) Note(absl::StrFormat("the job is called %s there", pods_.name));
  if (is_model()) {
    Note("what pods send each other is plain gRPC: muster encrypts between tasks that it starts itself");
    Note("the model and the curves go with the pods; the result record does not");
  } else if (is_tfjob()) {
    Note("tasks get TF_CONFIG, but no RANK, WORLD_SIZE and MASTER_ADDR");
  }
  NoteData();
  const auto retries_each = [&](ReplicaRole role) {
    return job_.replicas(role).count > 0 && RetriesEach(role);
  };
  if (std::any_of(kReplicaRoles.begin(), kReplicaRoles.end(), retries_each)) {
    Note("needs Kubernetes 1.29 or newer, which counts the restarts of each task by itself");
  }
  for (const ReplicaRole role : kReplicaRoles) {
    if (job_.replicas(role).count == 0) continue;
    pods_.roles.push_back(PodsOf(role));
    NoteRole(role);
  }
  return std::move(pods_);
}

}  // namespace

int GpusOf(const Job& job, ReplicaRole role) {
  const ReplicaSpec& replicas = job.replicas(role);
  const std::string device = job.train.device.value_or("");
  if (replicas.gpus > 0 || role == ReplicaRole::kPs || device == "cpu") return replicas.gpus;
  return replicas.on == "gpu" || absl::StartsWith(device, "cuda") ? 1 : 0;
}

absl::StatusOr<JobPods> MakePods(const Job& job, const KubernetesOptions& options) {
  return PodMaker(job, options).Make();
}

}  // namespace muster
