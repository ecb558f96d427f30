// What `muster export` prints runs: this test plays Kubernetes. It starts the container of every pod of the
// manifests as Kubernetes does, in a network of its own and with names that resolve, from the image that the
// build context makes, and reads the chief's termination message. Needs root.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/archive.h"
#include "base/process.h"
#include "base/sha256.h"
#include "tests/support/checkout.h"
#include "tests/support/network_hosts.h"

namespace muster {
namespace {

using Json = nlohmann::json;
using Variables = std::map<std::string, std::string>;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kMostPods = 4;

struct Pod {
  std::string host_name;  // under which the others find it
  YAML::Node container;
  Variables environment;  // what the manifest does not say
};

// kubelet's rule: $(NAME) of a variable that is known, and "$$" for a '$'.
std::string Expanded(const std::string& text, const Variables& variables) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_dollar = text[i] == '$' && i + 1 < text.size();
    if (is_dollar && text[i + 1] == '$') {
      out += text[++i];
      continue;
    }
    const size_t end = is_dollar && text[i + 1] == '(' ? text.find(')', i) : std::string::npos;
    const auto known =
        end == std::string::npos ? variables.end() : variables.find(text.substr(i + 2, end - i - 2));
    if (known == variables.end()) {
      out += text[i];
    } else {
      out += known->second;
      i = end;
    }
  }
  return out;
}

// The container's variables, each of which may name those before it.
Variables EnvironmentOf(const Pod& pod) {
  Variables variables = pod.environment;
  for (const YAML::Node& entry : pod.container["env"]) {
    if (!entry["value"]) continue;  // the index: pod.environment has it
    variables[entry["name"].as<std::string>()] = Expanded(entry["value"].as<std::string>(), variables);
  }
  return variables;
}

std::vector<std::string> CommandOf(const Pod& pod) {
  const Variables variables = EnvironmentOf(pod);
  std::vector<std::string> command;
  for (const char* part : {"command", "args"}) {
    for (const YAML::Node& word : pod.container[part]) {
      command.push_back(Expanded(word.as<std::string>(), variables));
    }
  }
  return command;
}

// As the Job controller makes them.
std::vector<Pod> PodsOfJobs(const std::string& manifests) {
  std::vector<Pod> pods;
  for (const YAML::Node& part : YAML::LoadAll(manifests)) {
    if (!part.IsMap() || part["kind"].as<std::string>() != "Job") continue;
    const YAML::Node spec = part["spec"]["template"]["spec"];
    for (int i = 0; i < part["spec"]["completions"].as<int>(); ++i) {
      const std::string index = std::to_string(i);
      pods.push_back({part["metadata"]["name"].as<std::string>() + "-" + index + "." +
                          spec["subdomain"].as<std::string>(),
                      spec["containers"][0],
                      {{"JOB_COMPLETION_INDEX", index}}});
    }
  }
  return pods;
}

// As Kubeflow's operator makes them.
std::vector<Pod> PodsOfTfJob(const std::string& manifests) {
  const YAML::Node job = YAML::LoadAll(manifests).back();
  std::vector<Pod> pods;
  Json cluster;
  std::vector<Json> tasks;
  for (const auto& replicas : job["spec"]["tfReplicaSpecs"]) {
    std::string type = replicas.first.as<std::string>();
    std::transform(type.begin(), type.end(), type.begin(), [](unsigned char c) { return std::tolower(c); });
    const YAML::Node container = replicas.second["template"]["spec"]["containers"][0];
    EXPECT_EQ(container["name"].as<std::string>(), "tensorflow");
    EXPECT_EQ(container["ports"][0]["name"].as<std::string>(), "tfjob-port");
    for (int i = 0; i < replicas.second["replicas"].as<int>(); ++i) {
      const std::string name =
          job["metadata"]["name"].as<std::string>() + "-" + type + "-" + std::to_string(i) + ".default.svc";
      cluster[type].push_back(name + ":" + container["ports"][0]["containerPort"].as<std::string>());
      tasks.push_back({{"type", type}, {"index", i}});
      pods.push_back({name, container, {}});
    }
  }
  for (size_t i = 0; i < pods.size(); ++i) {
    pods[i].environment["TF_CONFIG"] =
        Json({{"cluster", cluster}, {"task", tasks[i]}, {"environment", "cloud"}}).dump();
  }
  return pods;
}

// Its arguments: a file for /etc/hosts, one for the termination log, an empty folder, and what is started,
// which is not root (`runAsNonRoot`): it may write to its termination log and nowhere else in /dev.
constexpr char kContainer[] = R"(set -e
mount --bind "$1" /etc/hosts
mount -t tmpfs -o mode=755 none "$3"
for device in null zero random urandom; do
  touch "$3/$device"
  mount --bind "/dev/$device" "$3/$device"
done
touch "$3/termination-log"
mount --bind "$2" "$3/termination-log"
mount --move "$3" /dev
shift 3
exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@")";

class KubernetesPods : public testing::Test {
 protected:
  void SetUp() override {
    if (!network_.status().ok()) GTEST_SKIP() << network_.status().message();
    std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
  }

  std::string Path(const std::string& name) const { return (folder_.path() / name).string(); }

  // What muster prints.
  std::string Muster(const std::vector<std::string>& arguments) {
    std::vector<std::string> argv = {BuildPath("bin/muster")};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    const auto result = RunCommand(
        {.argv = argv, .environment = std::vector<std::string>{"HOME=" + Path(""), "PATH=/usr/bin:/bin"}},
        Now() + std::chrono::minutes(1));
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return "";
    EXPECT_EQ(result->exit_code, 0) << result->stderr_text;
    return result->stdout_text;
  }

  std::string Export(const std::string& job, const std::vector<std::string>& flags) {
    EXPECT_TRUE(WriteFileAtomically(Path("job.yaml"), job).ok());
    std::vector<std::string> arguments = {"export", Path("job.yaml"), "--image", "mnist:1"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return Muster(arguments);
  }

  // As `docker build` of the context: /opt/muster of the image is at Path("image").
  void BuildImage() {
    const std::string trainer = ReadFile(Path("context/trainer.tar")).value_or("");
    ASSERT_TRUE(MakeDirectories(Path("image")).ok());
    ASSERT_TRUE(UnpackArchive(trainer, Path("image")).ok());
    program_sha256_ = Sha256Hex(trainer);
    const std::string dockerfile = ReadFile(Path("context/Dockerfile")).value_or("");
    EXPECT_THAT(dockerfile, HasSubstr("ADD trainer.tar /opt/muster/\n"));
    EXPECT_THAT(dockerfile,
                HasSubstr("ENV PATH=/opt/muster/bin:${PATH} MUSTER_PROGRAM_SHA256=" + program_sha256_));
  }

  // Names resolve when the addresses of pods are known; a pod's own may do so last.
  /// The job as Indexed Jobs, in pods of the image that it is exported with. Failures are fatal.
  void StartJobs(const std::string& job) {
    const std::vector<Pod> pods = PodsOfJobs(Export(job, {"--context", Path("context")}));
    ASSERT_NO_FATAL_FAILURE(BuildImage());
    Start(pods);
  }
  void Start(const std::vector<Pod>& pods) {
    ASSERT_LE(pods.size(), static_cast<size_t>(kMostPods));
    pods_ = pods;
    hosts_.resize(pods.size());
    std::iota(hosts_.begin(), hosts_.end(), 0);
    processes_.clear();
    for (size_t i = 0; i < pods.size(); ++i) processes_.push_back(StartPod(i));
    Publish(/*own_names=*/false);
  }

  // Kills a pod without a word; another one takes its place, with its name and another address.
  void Replace(size_t pod) {
    processes_[pod].Signal(SIGKILL);
    EXPECT_EQ(processes_[pod].Wait(Now() + std::chrono::minutes(1)).value_or(-1), 128 + SIGKILL);
    hosts_[pod] = kMostPods;
    processes_[pod] = StartPod(pod);
    Publish(/*own_names=*/true);
  }

  void AwaitLogged(size_t pod, const std::string& text) {
    const TimePoint deadline = Now() + std::chrono::minutes(2);
    while (LogOf(pod).find(text) == std::string::npos && Now() < deadline) {
      if (processes_[pod].Wait(Now() + std::chrono::milliseconds(5)).ok()) break;
    }
    ASSERT_THAT(LogOf(pod), HasSubstr(text));
  }

  // Waits for the end of all, and returns their termination messages by host name.
  std::map<std::string, std::string> Finish() {
    std::map<std::string, std::string> messages;
    const TimePoint deadline = Now() + std::chrono::minutes(3);
    for (size_t i = 0; i < processes_.size(); ++i) {
      const auto code = processes_[i].Wait(deadline);
      EXPECT_TRUE(code.ok() && *code == 0) << pods_[i].host_name << ": " << (code.ok() ? *code : -1) << "\n"
                                           << LogOf(i);
      messages[pods_[i].host_name] = ReadFile(PathOf(i, ".message")).value_or("");
    }
    return messages;
  }

  // The record that only the chief may have left.
  Json FinishWithResult(const std::string& chief) {
    Json result;
    for (const auto& [name, message] : Finish()) {
      EXPECT_EQ(message.empty(), name != chief) << name;
      if (name == chief) result = Json::parse(message, nullptr, /*allow_exceptions=*/false);
      EXPECT_LE(message.size(), 4096u);  // of more, Kubernetes keeps only the end
    }
    EXPECT_TRUE(result.is_object());
    return result.is_object() ? result : Json::object();
  }

  static std::vector<std::string> HostNames(const std::vector<Pod>& pods) {
    std::vector<std::string> names;
    for (const Pod& pod : pods) names.push_back(pod.host_name);
    return names;
  }

  std::string program_sha256_;

 private:
  std::string PathOf(size_t pod, const char* what) const { return Path(pods_[pod].host_name + what); }
  std::string LogOf(size_t pod) const { return ReadFile(PathOf(pod, ".log")).value_or(""); }

  // In place: the files are mounted.
  void Publish(bool own_names) {
    for (size_t pod = 0; pod < pods_.size(); ++pod) {
      std::ofstream file(PathOf(pod, ".hosts"));
      for (size_t i = 0; i < pods_.size(); ++i) {
        if (i != pod || own_names) file << network_.Address(hosts_[i]) << " " << pods_[i].host_name << "\n";
      }
    }
  }

  Process StartPod(size_t pod) {
    for (const char* file : {".hosts", ".message", ".log"}) {
      EXPECT_TRUE(WriteFileAtomically(PathOf(pod, file), "").ok());
    }
    std::filesystem::permissions(PathOf(pod, ".message"), std::filesystem::perms(0666));
    EXPECT_TRUE(MakeDirectories(PathOf(pod, ".dev")).ok());
    std::vector<std::string> argv = network_.On(hosts_[pod]);
    for (const char* word : {"unshare", "--mount", "sh", "-c", kContainer, "pod"}) argv.emplace_back(word);
    for (const char* file : {".hosts", ".message", ".dev"}) argv.push_back(PathOf(pod, file));
    for (const std::string& word : CommandOf(pods_[pod])) argv.push_back(word);
    std::vector<std::string> environment = {"KUBERNETES_SERVICE_HOST=10.96.0.1",
                                            "MUSTER_PROGRAM_SHA256=" + program_sha256_,
                                            "PATH=" + Path("image/bin") + ":/usr/sbin:/usr/bin:/sbin:/bin"};
    for (const auto& [name, value] : EnvironmentOf(pods_[pod])) environment.push_back(name + "=" + value);
    const UniqueFd log(::open(PathOf(pod, ".log").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
    auto process = Process::Spawn(
        {.argv = argv, .environment = environment, .stdout_fd = log.get(), .stderr_fd = log.get()});
    MUSTER_CHECK(process.ok(), std::string(process.status().message()));
    return *std::move(process);
  }

  TemporaryDirectory folder_;
  NetworkHosts network_{kMostPods + 1};
  std::vector<Pod> pods_;
  std::vector<int> hosts_;  // of the network, by pod
  std::vector<Process> processes_;
};

constexpr char kServersJob[] = R"(name: mnist
model: mnist_softmax
update: {mode: sync}
replicas: {ps: {count: 2}, worker: {count: 2, restart: on_failure}}
train: {steps: 30, batch_size: 20, seed: 3}
)";

TEST_F(KubernetesPods, TrainOnServersAsIndexedJobsAndAsATfJob) {
  const std::vector<Pod> pods = PodsOfJobs(Export(kServersJob, {"--context", Path("context")}));
  ASSERT_THAT(HostNames(pods), ElementsAre("mnist-ps-0.mnist", "mnist-ps-1.mnist", "mnist-worker-0.mnist",
                                           "mnist-worker-1.mnist"));
  ASSERT_NO_FATAL_FAILURE(BuildImage());
  Start(pods);
  const Json result = FinishWithResult("mnist-worker-0.mnist");
  EXPECT_EQ(result["platform"], "kubernetes");
  EXPECT_EQ(result["strategy"], "parameter_server");
  EXPECT_EQ(result["steps"], 30);
  EXPECT_EQ(result["workers"], 2);
  EXPECT_EQ(result["ps"], 2);
  EXPECT_EQ(result["hosts"], Json(HostNames(pods)));
  EXPECT_EQ(result["program_sha256"], program_sha256_);

  const std::vector<Pod> tfjob_pods = PodsOfTfJob(Export(kServersJob, {"--format", "tfjob"}));
  ASSERT_EQ(tfjob_pods.size(), 4u);
  Start(tfjob_pods);
  const Json same = FinishWithResult("mnist-worker-0.default.svc");
  EXPECT_EQ(same["platform"], "kubernetes");
  EXPECT_EQ(same["hosts"], Json(HostNames(tfjob_pods)));
  EXPECT_EQ(same["parameters_crc32c"], result["parameters_crc32c"]);
  ASSERT_TRUE(WriteFileAtomically(Path("jobs.json"), result.dump()).ok());
  ASSERT_TRUE(WriteFileAtomically(Path("tfjob.json"), same.dump()).ok());
  EXPECT_THAT(Muster({"compare", Path("jobs.json"), Path("tfjob.json")}), HasSubstr("kubernetes"));
}

TEST_F(KubernetesPods, TrainByAllReduceWithAChief) {
  ASSERT_NO_FATAL_FAILURE(StartJobs(
      "name: sum\nmodel: mnist_softmax\nstrategy: allreduce\n"
      "replicas: {chief: {count: 1}, worker: {count: 2}}\ntrain: {steps: 30, batch_size: 20, seed: 3}\n"));
  const Json result = FinishWithResult("sum-chief-0.sum");
  EXPECT_EQ(result["strategy"], "allreduce");
  EXPECT_EQ(result["workers"], 3);
  EXPECT_EQ(result["steps"], 30);
}

TEST_F(KubernetesPods, APodThatIsReplacedIsFoundByItsName) {
  ASSERT_NO_FATAL_FAILURE(
      StartJobs("name: kept\nmodel: mnist_softmax\nupdate: {mode: sync}\ndurability: replicated\n"
                "replicas: {ps: {count: 2, restart: on_failure}, worker: {count: 2}}\n"
                "train: {steps: 1000, batch_size: 20, seed: 3}\n"));
  ASSERT_NO_FATAL_FAILURE(AwaitLogged(2, "step 100:"));
  Replace(1);
  const Json result = FinishWithResult("kept-worker-0.kept");
  EXPECT_EQ(result["steps"], 1000);
  EXPECT_EQ(result["ps"], 2);
}

TEST_F(KubernetesPods, ProgramsKnowWhoTheyAre) {
  const std::vector<Pod> pods =
      PodsOfJobs(Export("name: any\n"
                        "program: [sh, -c, 'echo \"$RANK of $WORLD_SIZE at $MASTER_ADDR: $TF_CONFIG\" > "
                        "/dev/termination-log']\n"
                        "replicas: {chief: {count: 1}, worker: {count: 2}}\n",
                        {}));
  Start(pods);
  const auto messages = Finish();
  const std::string cluster =
      R"({"cluster":{"chief":["any-chief-0.any:2222"],"worker":["any-worker-0.any:2222","any-worker-1.any:2222"]})";
  EXPECT_EQ(messages.at("any-chief-0.any"),
            "0 of 3 at any-chief-0.any: " + cluster + R"(,"task":{"type":"chief","index":0}})" + "\n");
  EXPECT_EQ(messages.at("any-worker-1.any"),
            "2 of 3 at any-chief-0.any: " + cluster + R"(,"task":{"type":"worker","index":1}})" + "\n");
}

TEST(KubernetesCommand, WhatCannotBeIsBadInput) {
  TemporaryDirectory folder;
  const auto run = [&](const std::string& job, std::vector<std::string> flags) {
    EXPECT_TRUE(WriteFileAtomically(folder.path() / "job.yaml", job).ok());
    std::vector<std::string> argv = {BuildPath("bin/muster"), "export",
                                     (folder.path() / "job.yaml").string()};
    argv.insert(argv.end(), flags.begin(), flags.end());
    const auto result = RunCommand({.argv = argv}, Now() + std::chrono::minutes(1));
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return std::string();
    EXPECT_EQ(result->exit_code, 2) << result->stderr_text;
    EXPECT_EQ(result->stdout_text, "");
    return result->stderr_text;
  };
  EXPECT_THAT(run(kServersJob, {}), HasSubstr("--image"));
  EXPECT_THAT(run(kServersJob, {"--image", "no image"}), HasSubstr("no image"));
  EXPECT_THAT(run(kServersJob, {"--image", "a:1", "--format", "helm"}), HasSubstr("tfjob"));
  EXPECT_THAT(run("name: 1st\n" + std::string(kServersJob).substr(12), {"--image", "a:1"}),
              HasSubstr("begin with a letter"));
  EXPECT_THAT(run(kServersJob, {"--image", "a:1", "--context", folder.path().string()}),
              HasSubstr("job.yaml"));
}

}  // namespace
}  // namespace muster
