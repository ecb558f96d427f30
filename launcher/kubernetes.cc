#include "launcher/kubernetes.h"

#include <absl/strings/str_join.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>

#include "launcher/kubernetes_pods.h"

namespace muster {
namespace {

using Restart = ReplicaSpec::Restart;

constexpr int kLastPermanentExitCode = 127;
constexpr char kPortName[] = "tfjob-port";  // as the operator wants it

// YAML whose values are all quoted, but for numbers and words of Kubernetes' own: nothing that a job file
// says, "on" or "1e3", is to be read as something else.
class Writer {
 public:
  Writer& Key(const std::string& key) {
    out_ << YAML::Key << key << YAML::Value;
    return *this;
  }
  void Word(const std::string& key, const char* word) { Key(key).out_ << word; }
  void Number(const std::string& key, int64_t number) { Key(key).out_ << number; }
  void Text(const std::string& key, const std::string& text) { Key(key).out_ << YAML::DoubleQuoted << text; }
  void Texts(const std::string& key, std::span<const std::string> texts) {
    Key(key).out_ << YAML::BeginSeq;
    for (const std::string& text : texts) out_ << YAML::DoubleQuoted << text;
    out_ << YAML::EndSeq;
  }
  /// `write` fills it in.
  void Map(const auto& write) {
    out_ << YAML::BeginMap;
    write();
    out_ << YAML::EndMap;
  }
  void Map(const std::string& key, const auto& write) {
    Key(key);
    Map(write);
  }
  void EmptyMap(const std::string& key) { Key(key).out_ << YAML::Flow << YAML::BeginMap << YAML::EndMap; }
  /// A list of one thing.
  void ListOfOne(const std::string& key, const auto& write) {
    Key(key).out_ << YAML::BeginSeq;
    Map(write);
    out_ << YAML::EndSeq;
  }
  void BeginList(const std::string& key) { Key(key).out_ << YAML::BeginSeq; }
  void EndList() { out_ << YAML::EndSeq; }
  void FlowNumbers(const std::string& key, std::span<const int> numbers) {
    Key(key).out_ << YAML::Flow << std::vector<int>(numbers.begin(), numbers.end());
  }
  std::string text() const { return out_.c_str() + std::string("\n"); }

 private:
  YAML::Emitter out_;
};

// Writes the manifests of one job; the parts of MakeKubernetesManifests.
class ManifestWriter {
 public:
  ManifestWriter(const Job& job, const KubernetesOptions& options, const JobPods& pods)
      : job_(job), options_(options), pods_(pods) {}

  std::string Jobs() const;
  std::string TfJob() const;

 private:
  std::string Head(const std::vector<std::string>& commands) const;
  std::string ResultOf(const std::string& pod, const char* path) const;
  void Metadata(Writer& out, const std::string& name) const;
  void Labels(Writer& out) const;
  std::string Service() const;
  std::string IndexedJob(const RolePods& pods) const;
  void Retries(Writer& out, const RolePods& pods) const;
  void ReplicaSpecOf(Writer& out, const RolePods& pods) const;
  void Environment(Writer& out, const RolePods& pods) const;
  void Container(Writer& out, const RolePods& pods) const;
  void Containers(Writer& out, const RolePods& pods) const;

  bool is_tfjob() const { return options_.format == KubernetesFormat::kTfJob; }

  const Job& job_;
  const KubernetesOptions& options_;
  const JobPods& pods_;
};

std::string ManifestWriter::Head(const std::vector<std::string>& commands) const {
  std::string head = absl::StrFormat("# The job %s on Kubernetes, made by `muster export`.\n#\n", job_.name);
  for (const std::string& note : pods_.notes) head += "# - " + note + "\n";
  head += "#\n";
  for (const std::string& command : commands) head += "#     " + command + "\n";
  return head;
}

// How the result record comes out of the chief's pod. `path`: of its status, in what kubectl has selected.
std::string ManifestWriter::ResultOf(const std::string& pod, const char* path) const {
  if (pods_.logs_result) {
    return absl::StrFormat("kubectl logs %s --tail=-1 | sed -n '/^{$/,/^}$/p' > k8s.json", pod);
  }
  return absl::StrFormat(
      "kubectl get pods %s -o jsonpath='{%s.containerStatuses[0].state.terminated.message}' > k8s.json", pod,
      path);
}

void ManifestWriter::Labels(Writer& out) const {
  out.Map("labels", [&] {
    out.Text("app.kubernetes.io/instance", pods_.name);
    out.Text("app.kubernetes.io/managed-by", "muster");
  });
}

void ManifestWriter::Metadata(Writer& out, const std::string& name) const {
  out.Map("metadata", [&] {
    out.Text("name", name);
    Labels(out);
  });
}

// Pods are found by name from their start: that is how they become ready.
std::string ManifestWriter::Service() const {
  Writer out;
  out.Map([&] {
    out.Word("apiVersion", "v1");
    out.Word("kind", "Service");
    Metadata(out, pods_.name);
    out.Map("spec", [&] {
      out.Word("clusterIP", "None");
      out.Word("publishNotReadyAddresses", "true");
      out.Map("selector", [&] { out.Text("app.kubernetes.io/instance", pods_.name); });
      out.ListOfOne("ports", [&] {
        out.Word("name", "tasks");
        out.Number("port", kPodPort);
      });
    });
  });
  return out.text();
}

void ManifestWriter::Environment(Writer& out, const RolePods& pods) const {
  if (pods.environment.empty()) return;
  out.BeginList("env");
  if (pods.names_index) {
    // The same that Kubernetes would add itself, but behind those that name it.
    out.Map([&] {
      out.Word("name", kCompletionIndex);
      out.Map("valueFrom", [&] {
        out.Map("fieldRef", [&] {
          out.Text("fieldPath", "metadata.annotations['batch.kubernetes.io/job-completion-index']");
        });
      });
    });
  }
  for (const auto& [name, value] : pods.environment) {
    out.Map([&] {
      out.Text("name", name);
      out.Text("value", value);
    });
  }
  out.EndList();
}

void ManifestWriter::Container(Writer& out, const RolePods& pods) const {
  out.Word("name", is_tfjob() ? "tensorflow" : "task");  // the operator looks for that name
  out.Text("image", options_.image);
  out.Texts("command", std::span(pods.argv).first(1));
  if (pods.argv.size() > 1) out.Texts("args", std::span(pods.argv).subspan(1));
  Environment(out, pods);
  out.ListOfOne("ports", [&] {
    if (is_tfjob()) out.Word("name", kPortName);
    out.Number("containerPort", kPodPort);
  });
  if (pods.gpus > 0) {
    out.Map("resources", [&] { out.Map("limits", [&] { out.Number("nvidia.com/gpu", pods.gpus); }); });
  }
  if (pods.folders.empty()) return;
  out.BeginList("volumeMounts");
  for (const PodFolder& folder : pods.folders) {
    out.Map([&] {
      out.Word("name", folder.name.c_str());
      out.Text("mountPath", folder.path);
      if (!folder.host_folder.empty()) out.Word("readOnly", "true");
    });
  }
  out.EndList();
}

void ManifestWriter::Containers(Writer& out, const RolePods& pods) const {
  out.ListOfOne("containers", [&] { Container(out, pods); });
  if (pods.folders.empty()) return;
  out.BeginList("volumes");
  for (const PodFolder& folder : pods.folders) {
    out.Map([&] {
      out.Word("name", folder.name.c_str());
      if (folder.host_folder.empty()) {
        out.EmptyMap("emptyDir");
      } else {
        out.Map("hostPath", [&] {
          out.Text("path", folder.host_folder);
          out.Word("type", "Directory");
        });
      }
    });
  }
  out.EndList();
}

int64_t RestartsOfAll(const RolePods& pods, const ReplicaSpec& replicas) {
  return std::min<int64_t>(int64_t{replicas.max_restarts} * pods.count, std::numeric_limits<int32_t>::max());
}

// How often what is started again. One task that has failed for good ends those of its role.
void ManifestWriter::Retries(Writer& out, const RolePods& pods) const {
  const ReplicaSpec& replicas = job_.replicas(pods.role);
  if (!pods.retries_each) {
    out.Number("backoffLimit", RestartsOfAll(pods, replicas));
    return;
  }
  out.Number("backoffLimitPerIndex", replicas.max_restarts);
  out.Number("maxFailedIndexes", replicas.min ? pods.count - *replicas.min : 0);
  out.Word("podReplacementPolicy", "Failed");  // never two pods of one task at a time
  if (replicas.restart != Restart::kExitCode) return;
  out.Map("podFailurePolicy", [&] {
    out.ListOfOne("rules", [&] {
      out.Word("action", "FailIndex");
      out.Map("onExitCodes", [&] {
        std::vector<int> permanent(kLastPermanentExitCode);
        std::iota(permanent.begin(), permanent.end(), 1);
        out.Word("operator", "In");
        out.FlowNumbers("values", permanent);
      });
    });
  });
}

std::string ManifestWriter::IndexedJob(const RolePods& pods) const {
  Writer out;
  out.Map([&] {
    out.Word("apiVersion", "batch/v1");
    out.Word("kind", "Job");
    Metadata(out, pods.name);
    out.Map("spec", [&] {
      out.Word("completionMode", "Indexed");
      out.Number("completions", pods.count);
      out.Number("parallelism", pods.count);
      Retries(out, pods);
      out.Map("template", [&] {
        out.Map("metadata", [&] { Labels(out); });
        out.Map("spec", [&] {
          out.Text("subdomain", pods_.name);
          out.Word("restartPolicy", pods.keeps_files ? "OnFailure" : "Never");
          Containers(out, pods);
        });
      });
    });
  });
  return out.text();
}

std::string ManifestWriter::Jobs() const {
  const std::string wait = pods_.chief.empty() ? pods_.roles.back().name : pods_.chief;
  std::vector<std::string> commands = {absl::StrFormat(
      "kubectl apply -f FILE && kubectl wait --for=condition=complete --timeout=24h job/%s", wait)};
  if (!pods_.chief.empty()) {
    commands.push_back(
        ResultOf(absl::StrFormat("-l job-name=%s,batch.kubernetes.io/job-completion-index=0", pods_.chief) +
                     (pods_.logs_result ? "" : " --field-selector=status.phase=Succeeded"),
                 ".items[0].status"));
    commands.push_back("muster compare " + job_.name + " k8s.json");
  }
  commands.push_back("kubectl delete -f FILE");
  std::string yaml = Head(commands) + "---\n" + Service();
  for (const RolePods& pods : pods_.roles) yaml += "---\n" + IndexedJob(pods);
  return yaml;
}

const char* RestartInTfJob(const RolePods& pods, Restart restart) {
  if (pods.keeps_files) return "OnFailure";
  switch (restart) {
    case Restart::kNever:
      return "Never";
    case Restart::kOnFailure:
      return "OnFailure";
    case Restart::kAlways:
      return "Always";
    case Restart::kExitCode:
      return "ExitCode";
  }
  MUSTER_CHECK(false);
}

void ManifestWriter::ReplicaSpecOf(Writer& out, const RolePods& pods) const {
  const char* const type = pods.role == ReplicaRole::kPs      ? "PS"
                           : pods.role == ReplicaRole::kChief ? "Chief"
                                                              : "Worker";
  out.Map(type, [&] {
    out.Number("replicas", pods.count);
    out.Word("restartPolicy", RestartInTfJob(pods, job_.replicas(pods.role).restart));
    out.Map("template", [&] {
      out.Map("metadata", [&] { Labels(out); });
      out.Map("spec", [&] { Containers(out, pods); });
    });
  });
}

std::string ManifestWriter::TfJob() const {
  int64_t restarts = 0;
  for (const RolePods& pods : pods_.roles) restarts += RestartsOfAll(pods, job_.replicas(pods.role));
  std::vector<std::string> commands = {absl::StrFormat(
      "kubectl apply -f FILE && kubectl wait --for=condition=Succeeded --timeout=24h tfjob/%s", pods_.name)};
  if (!pods_.chief.empty()) {
    commands.push_back(ResultOf(pods_.chief + "-0", ".status"));
    commands.push_back("muster compare " + job_.name + " k8s.json");
  }
  commands.push_back("kubectl delete -f FILE");
  Writer out;
  out.Map([&] {
    out.Word("apiVersion", "kubeflow.org/v1");
    out.Word("kind", "TFJob");
    Metadata(out, pods_.name);
    out.Map("spec", [&] {
      out.Map("runPolicy", [&] {
        // What has ended stays, with its result.
        out.Word("cleanPodPolicy", "Running");
        out.Number("backoffLimit", std::min<int64_t>(restarts, std::numeric_limits<int32_t>::max()));
      });
      out.Map("tfReplicaSpecs", [&] {
        for (const RolePods& pods : pods_.roles) ReplicaSpecOf(out, pods);
      });
    });
  });
  return Head(commands) + "---\n" + out.text();
}

}  // namespace

absl::StatusOr<KubernetesManifests> MakeKubernetesManifests(const Job& job,
                                                            const KubernetesOptions& options) {
  MUSTER_ASSIGN_OR_RETURN(JobPods pods, MakePods(job, options));
  const ManifestWriter writer(job, options, pods);
  std::string yaml = options.format == KubernetesFormat::kTfJob ? writer.TfJob() : writer.Jobs();
  return KubernetesManifests{.yaml = std::move(yaml), .notes = std::move(pods.notes)};
}

}  // namespace muster
