#include "launcher/kubernetes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <map>

namespace muster {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

constexpr char kImage[] = "registry.example.org/mnist:1";

Job JobOf(const std::string& text) {
  const auto job = ParseJob(text, "job.yaml", "/home/me");
  EXPECT_TRUE(job.ok()) << job.status();
  return job.value_or(Job());
}

Job ModelJob(const std::string& lines) { return JobOf("name: mnist\nmodel: mnist_mlp\n" + lines); }

Job ServersJob(const std::string& lines = "", const std::string& of_ps = "",
               const std::string& of_worker = "") {
  return ModelJob("replicas: {ps: {count: 2" + of_ps + "}, worker: {count: 3" + of_worker + "}}\n" + lines);
}

KubernetesManifests ManifestsOf(const Job& job, KubernetesFormat format = KubernetesFormat::kJobs) {
  const auto manifests = MakeKubernetesManifests(job, {.image = kImage, .format = format});
  EXPECT_TRUE(manifests.ok()) << manifests.status();
  return manifests.value_or(KubernetesManifests());
}

// Of the plain form, by name: "mnist", the Service, "mnist-worker", a Job.
std::map<std::string, YAML::Node> Parts(const Job& job) {
  std::map<std::string, YAML::Node> parts;
  for (const YAML::Node& part : YAML::LoadAll(ManifestsOf(job).yaml)) {
    if (part.IsMap()) parts[part["metadata"]["name"].as<std::string>()] = part;
  }
  return parts;
}

YAML::Node TfJobOf(const Job& job) {
  return YAML::LoadAll(ManifestsOf(job, KubernetesFormat::kTfJob).yaml).back();
}

YAML::Node PodOf(const YAML::Node& part) { return part["spec"]["template"]["spec"]; }

std::vector<std::string> Strings(const YAML::Node& list) { return list.as<std::vector<std::string>>(); }

std::vector<std::string> Arguments(const YAML::Node& pod) { return Strings(pod["containers"][0]["args"]); }

std::map<std::string, std::string> Environment(const YAML::Node& pod) {
  std::map<std::string, std::string> variables;
  for (const YAML::Node& entry : pod["containers"][0]["env"]) {
    if (entry["value"]) variables[entry["name"].as<std::string>()] = entry["value"].as<std::string>();
  }
  return variables;
}

std::string Refusal(const Job& job, const KubernetesOptions& options) {
  const auto manifests = MakeKubernetesManifests(job, options);
  EXPECT_EQ(manifests.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(manifests.status().message());
}

TEST(Kubernetes, PodsOfARoleAreAnIndexedJobAndAreFoundByName) {
  auto parts = Parts(ServersJob("train: {steps: 5}\nupdate: {mode: sync}\n"));
  ASSERT_EQ(parts.size(), 3u);
  const YAML::Node service = parts["mnist"]["spec"];
  EXPECT_EQ(parts["mnist"]["kind"].as<std::string>(), "Service");
  EXPECT_EQ(service["clusterIP"].as<std::string>(), "None");
  EXPECT_TRUE(service["publishNotReadyAddresses"].as<bool>());

  const YAML::Node job = parts["mnist-worker"];
  EXPECT_EQ(job["kind"].as<std::string>(), "Job");
  EXPECT_EQ(job["spec"]["completionMode"].as<std::string>(), "Indexed");
  EXPECT_EQ(job["spec"]["completions"].as<int>(), 3);
  EXPECT_EQ(job["spec"]["parallelism"].as<int>(), 3);
  EXPECT_EQ(PodOf(job)["subdomain"].as<std::string>(), "mnist");
  for (const auto& [label, value] : service["selector"].as<std::map<std::string, std::string>>()) {
    EXPECT_EQ(job["spec"]["template"]["metadata"]["labels"][label].as<std::string>(), value);
  }
  const YAML::Node container = PodOf(job)["containers"][0];
  EXPECT_EQ(container["image"].as<std::string>(), kImage);
  EXPECT_EQ(container["ports"][0]["containerPort"].as<int>(), 2222);
  EXPECT_THAT(Strings(container["command"]), ElementsAre("muster-trainer"));
  EXPECT_THAT(Arguments(PodOf(job)),
              IsSupersetOf({"--job_name=worker", "--task_index=$(JOB_COMPLETION_INDEX)",
                            "--ps_hosts=mnist-ps-0.mnist:2222,mnist-ps-1.mnist:2222",
                            "--worker_hosts=mnist-worker-0.mnist:2222,mnist-worker-1.mnist:2222,"
                            "mnist-worker-2.mnist:2222",
                            "--sync_replicas", "--train_steps=5", "--result_json=/dev/termination-log"}));
  EXPECT_THAT(Arguments(PodOf(parts["mnist-ps"])), Contains("--job_name=ps"));
  EXPECT_THAT(Arguments(PodOf(parts["mnist-ps"])), Not(Contains(HasSubstr("--result_json"))));
}

// Nothing of a host under muster is there: no folder of a task, no certificates.
TEST(Kubernetes, PodsGetNothingThatOnlyAnAgentGives) {
  const Job job = ServersJob("checkpoint: {every_steps: 5}\n");
  EXPECT_THAT(ManifestsOf(job).yaml, Not(HasSubstr("task_dir")));
  EXPECT_THAT(ManifestsOf(job).yaml, Not(HasSubstr("--tls_dir")));
}

TEST(Kubernetes, AChiefIsAJobOfItsOwn) {
  auto parts = Parts(ModelJob("replicas: {ps: {count: 1}, chief: {count: 1}, worker: {count: 1}}\n"));
  EXPECT_THAT(Arguments(PodOf(parts["mnist-chief"])),
              IsSupersetOf({"--job_name=chief",
                            "--cluster_spec=chief|mnist-chief-0.mnist:2222,worker|mnist-worker-0.mnist:2222,"
                            "ps|mnist-ps-0.mnist:2222"}));
  EXPECT_THAT(
      ManifestsOf(ModelJob("replicas: {ps: {count: 1}, chief: {count: 1}, worker: {count: 1}}\n")).yaml,
      HasSubstr("job-name=mnist-chief,"));
}

TEST(Kubernetes, RestartsAreThoseOfTheRole) {
  const auto spec = [](const std::string& of_worker) {
    return Parts(ServersJob("", "", of_worker))["mnist-worker"]["spec"];
  };
  const YAML::Node never = spec("");
  EXPECT_EQ(never["backoffLimit"].as<int>(), 0);
  EXPECT_FALSE(never["backoffLimitPerIndex"]);
  EXPECT_EQ(never["template"]["spec"]["restartPolicy"].as<std::string>(), "Never");

  const YAML::Node on_failure = spec(", max_restarts: 4");
  EXPECT_EQ(on_failure["backoffLimitPerIndex"].as<int>(), 4);
  EXPECT_EQ(on_failure["maxFailedIndexes"].as<int>(), 0);
  EXPECT_EQ(on_failure["template"]["spec"]["restartPolicy"].as<std::string>(), "Never");
  EXPECT_FALSE(on_failure["podFailurePolicy"]);

  const YAML::Node exit_code = spec(", restart: exit_code");
  EXPECT_EQ(exit_code["backoffLimitPerIndex"].as<int>(), 3);
  const YAML::Node rule = exit_code["podFailurePolicy"]["rules"][0];
  EXPECT_EQ(rule["action"].as<std::string>(), "FailIndex");
  const auto values = rule["onExitCodes"]["values"].as<std::vector<int>>();
  ASSERT_EQ(values.size(), 127u);
  EXPECT_EQ(values.front(), 1);
  EXPECT_EQ(values.back(), 127);

  EXPECT_THAT(ManifestsOf(ServersJob("", "", ", restart: always")).notes,
              Contains("worker: what ends with 0 is not started again"));
}

TEST(Kubernetes, WorkersThatMayBeMissingMayFail) {
  auto parts =
      Parts(ModelJob("strategy: allreduce\nreplicas: {worker: {count: 3, min: 2, restart: never}}\n"));
  EXPECT_EQ(parts["mnist-worker"]["spec"]["backoffLimitPerIndex"].as<int>(), 0);
  EXPECT_EQ(parts["mnist-worker"]["spec"]["maxFailedIndexes"].as<int>(), 1);
  EXPECT_THAT(Arguments(PodOf(parts["mnist-worker"])), Contains("--min_workers=2"));
  auto with_checkpoints = Parts(ModelJob(
      "strategy: allreduce\ncheckpoint: {every_steps: 5}\nreplicas: {worker: {count: 3, min: 2}}\n"));
  EXPECT_EQ(with_checkpoints["mnist-worker"]["spec"]["maxFailedIndexes"].as<int>(), 1);
}

// A pod that is replaced would have none.
TEST(Kubernetes, ServersWithCheckpointsStartAgainInTheirPods) {
  const Job job = ServersJob("checkpoint: {every_steps: 5}\n", ", max_restarts: 4");
  auto parts = Parts(job);
  const YAML::Node spec = parts["mnist-ps"]["spec"];
  EXPECT_EQ(spec["backoffLimit"].as<int>(), 8);
  EXPECT_EQ(PodOf(parts["mnist-ps"])["restartPolicy"].as<std::string>(), "OnFailure");
  EXPECT_THAT(Arguments(PodOf(parts["mnist-ps"])),
              Contains(testing::StartsWith("--checkpoint_dir=/checkpoints/checkpoints-")));
  EXPECT_TRUE(PodOf(parts["mnist-ps"])["volumes"][0]["emptyDir"].IsMap());
  EXPECT_EQ(PodOf(parts["mnist-ps"])["containers"][0]["volumeMounts"][0]["mountPath"].as<std::string>(),
            "/checkpoints");
  EXPECT_FALSE(PodOf(parts["mnist-worker"])["volumes"]);
  EXPECT_THAT(ManifestsOf(job).notes, Contains(HasSubstr("emptyDir")));
  auto all =
      Parts(ModelJob("strategy: allreduce\ncheckpoint: {every_steps: 5}\nreplicas: {worker: {count: 2}}\n"));
  EXPECT_EQ(PodOf(all["mnist-worker"])["restartPolicy"].as<std::string>(), "OnFailure");
  EXPECT_THAT(Arguments(PodOf(all["mnist-worker"])),
              Contains(testing::StartsWith("--checkpoint_dir=/checkpoints/checkpoints-")));
}

TEST(Kubernetes, WhoWantsGpusGetsThem) {
  const auto gpus = [](const Job& job, const std::string& role) {
    const YAML::Node limits = PodOf(Parts(job)["mnist-" + role])["containers"][0]["resources"]["limits"];
    return limits["nvidia.com/gpu"] ? limits["nvidia.com/gpu"].as<int>() : 0;
  };
  EXPECT_EQ(gpus(ServersJob(), "worker"), 0);
  EXPECT_EQ(gpus(ServersJob("", "", ", gpus: 1"), "worker"), 1);
  EXPECT_EQ(gpus(ServersJob("", "", ", gpus: 1"), "ps"), 0);
  EXPECT_EQ(gpus(ServersJob("", ", on: gpu", ", on: gpu"), "worker"), 1);
  EXPECT_EQ(gpus(ServersJob("", ", on: gpu", ", on: gpu"), "ps"), 0);
  EXPECT_EQ(gpus(ServersJob("train: {device: cpu}\n", "", ", on: gpu"), "worker"), 0);
  // The only one that a pod sees is the first.
  const Job third = ServersJob("train: {device: 'cuda:2'}\n");
  EXPECT_EQ(gpus(third, "worker"), 1);
  EXPECT_THAT(Arguments(PodOf(Parts(third)["mnist-worker"])), Contains("--device=cuda:0"));
}

TEST(Kubernetes, DataIsWhereTheImageOrTheNodesHaveIt) {
  const auto pod = [](const std::string& line) { return PodOf(Parts(ServersJob(line))["mnist-worker"]); };
  EXPECT_THAT(Arguments(pod("")), Not(Contains(HasSubstr("--data_dir"))));  // the image's MUSTER_DATA
  EXPECT_THAT(Arguments(pod("data: sets\n")), Contains("--data_dir=/data"));
  const YAML::Node on_nodes = pod("data: {on_hosts: /srv/sets}\n");
  EXPECT_THAT(Arguments(on_nodes), Contains("--data_dir=/srv/sets"));
  EXPECT_EQ(on_nodes["volumes"][0]["hostPath"]["path"].as<std::string>(), "/srv/sets");
  EXPECT_EQ(on_nodes["containers"][0]["volumeMounts"][0]["mountPath"].as<std::string>(), "/srv/sets");
}

TEST(Kubernetes, ProgramsAreToldOfTheirCluster) {
  const Job job = JobOf(
      "name: any\nprogram: [python3, train.py]\nfiles: [train.py]\ndata: sets\nflags: tensorflow\n"
      "replicas: {ps: {count: 1}, worker: {count: 2}}\n");
  auto parts = Parts(job);
  const YAML::Node worker = PodOf(parts["any-worker"]);
  EXPECT_THAT(Strings(worker["containers"][0]["command"]), ElementsAre("python3"));
  EXPECT_THAT(Arguments(worker),
              ElementsAre("train.py", "--job_name=worker", "--task_index=$(JOB_COMPLETION_INDEX)",
                          "--ps_hosts=any-ps-0.any:2222",
                          "--worker_hosts=any-worker-0.any:2222,any-worker-1.any:2222"));
  auto environment = Environment(worker);
  EXPECT_EQ(environment["RANK"], "$(JOB_COMPLETION_INDEX)");
  EXPECT_EQ(environment["LOCAL_RANK"], "0");
  EXPECT_EQ(environment["WORLD_SIZE"], "2");
  EXPECT_EQ(environment["MASTER_ADDR"], "any-worker-0.any");
  EXPECT_EQ(environment["MASTER_PORT"], "2222");
  EXPECT_EQ(environment["MUSTER_DATA"], "/data");
  EXPECT_THAT(environment["TF_CONFIG"],
              HasSubstr(R"("task":{"type":"worker","index":$(JOB_COMPLETION_INDEX)})"));
  // A value can only name variables that stand before it.
  EXPECT_EQ(worker["containers"][0]["env"][0]["name"].as<std::string>(), "JOB_COMPLETION_INDEX");
  EXPECT_FALSE(Environment(PodOf(parts["any-ps"])).contains("RANK"));
}

TEST(Kubernetes, WorkersHaveTheRanksBehindTheChief) {
  auto parts =
      Parts(JobOf("name: any\nprogram: [./train]\nreplicas: {chief: {count: 1}, worker: {count: 2}}\n"));
  const YAML::Node worker = PodOf(parts["any-worker"]);
  EXPECT_THAT(Strings(worker["containers"][0]["command"]), ElementsAre("sh"));
  EXPECT_THAT(Arguments(worker),
              ElementsAre("-c", "RANK=$$((JOB_COMPLETION_INDEX + 1)) exec \"$$@\"", "sh", "./train"));
  EXPECT_EQ(Environment(worker)["MASTER_ADDR"], "any-chief-0.any");
  EXPECT_EQ(Environment(worker)["WORLD_SIZE"], "3");
  EXPECT_THAT(Strings(PodOf(parts["any-chief"])["containers"][0]["command"]), ElementsAre("./train"));
}

TEST(Kubernetes, WhatAJobFileSaysIsTextAndIsNotExpanded) {
  auto parts =
      Parts(JobOf("name: 'on'\nprogram: [./train, '1e3', '$(HOME) costs $5', 'no']\n"
                  "env: {A: '0x1F', B: 'yes', C: \"a\\nb: 'c'\"}\nreplicas: {worker: {count: 1}}\n"));
  const YAML::Node worker = PodOf(parts["on-worker"]);
  for (const YAML::Node& argument : worker["containers"][0]["args"])
    EXPECT_EQ(argument.Tag(), "!");  // quoted
  EXPECT_EQ(parts["on"]["metadata"]["name"].Tag(), "!");
  EXPECT_THAT(Arguments(worker), ElementsAre("1e3", "$$(HOME) costs $$5", "no"));
  auto environment = Environment(worker);
  EXPECT_EQ(environment["A"], "0x1F");
  EXPECT_EQ(environment["C"], "a\nb: 'c'");
  for (const YAML::Node& entry : worker["containers"][0]["env"]) {
    if (!entry["value"]) continue;
    EXPECT_EQ(entry["value"].Tag(), "!") << entry["name"];
  }
}

TEST(Kubernetes, NamesAreThoseOfDns) {
  const auto named = [](const std::string& name) {
    return JobOf("name: " + name + "\nmodel: mnist_mlp\nreplicas: {ps: {count: 2}, worker: {count: 101}}\n");
  };
  EXPECT_TRUE(Parts(named("Big_Job.v2")).contains("big-job-v2-worker"));
  EXPECT_THAT(ManifestsOf(named("Big_Job.v2")).notes, Contains("the job is called big-job-v2 there"));
  EXPECT_THAT(ManifestsOf(named("mnist")).notes, Not(Contains(HasSubstr("is called"))));
  for (const char* name : {"7days", "mnist-"}) {
    EXPECT_THAT(Refusal(named(name), {.image = kImage}), HasSubstr("names begin with a letter"));
  }
  const std::string longest(63 - std::string("-worker-100").size(), 'n');
  EXPECT_TRUE(Parts(named(longest)).contains(longest + "-worker"));
  EXPECT_THAT(Refusal(named(longest + "n"), {.image = kImage}), HasSubstr("shorter name"));
}

TEST(Kubernetes, AnImageIsNamed) {
  for (const char* image : {"", "a b", "-v", "$IMAGE", "a\nb"}) {
    EXPECT_THAT(Refusal(ServersJob(), {.image = image}), HasSubstr("is no image")) << image;
  }
}

// Kubernetes would keep only the end of a record that names all hosts.
TEST(Kubernetes, AResultOfManyHostsIsInTheLog) {
  const auto worker = [](int count) {
    const Job job = ModelJob("replicas: {ps: {count: 1}, worker: {count: " + std::to_string(count) + "}}\n");
    return std::pair(Arguments(PodOf(Parts(job)["mnist-worker"])), ManifestsOf(job).yaml);
  };
  EXPECT_THAT(worker(50).first, Contains("--result_json=/dev/termination-log"));
  EXPECT_THAT(worker(50).second, HasSubstr("state.terminated.message"));
  EXPECT_THAT(worker(500).first, Contains("--result_json=/dev/stdout"));
  EXPECT_THAT(worker(500).second, HasSubstr("kubectl logs "));
}

TEST(Kubernetes, WhatIsNotTheSameIsSaid) {
  const Job job = ServersJob("", "", ", on: big, hung_after: 10s, max_log_bytes: 200000");
  const KubernetesManifests manifests = ManifestsOf(job);
  for (const char* what : {"plain gRPC", "`on: big`", "`hung_after`", "`max_log_bytes`", "synthetic"}) {
    EXPECT_THAT(manifests.notes, Contains(HasSubstr(what)));
  }
  for (const std::string& note : manifests.notes)
    EXPECT_THAT(manifests.yaml, HasSubstr("# - " + note + "\n"));
}

TEST(KubernetesTfJob, ItsOperatorTellsTasksWhoTheyAre) {
  const YAML::Node job = TfJobOf(ServersJob("train: {steps: 5}\n", "", ", max_restarts: 4"));
  EXPECT_EQ(job["apiVersion"].as<std::string>(), "kubeflow.org/v1");
  EXPECT_EQ(job["kind"].as<std::string>(), "TFJob");
  EXPECT_EQ(job["spec"]["runPolicy"]["cleanPodPolicy"].as<std::string>(), "Running");
  EXPECT_EQ(job["spec"]["runPolicy"]["backoffLimit"].as<int>(), 12);
  const YAML::Node specs = job["spec"]["tfReplicaSpecs"];
  EXPECT_EQ(specs["PS"]["replicas"].as<int>(), 2);
  EXPECT_EQ(specs["PS"]["restartPolicy"].as<std::string>(), "Never");
  EXPECT_EQ(specs["Worker"]["replicas"].as<int>(), 3);
  EXPECT_EQ(specs["Worker"]["restartPolicy"].as<std::string>(), "OnFailure");
  EXPECT_FALSE(specs["Chief"]);
  const YAML::Node container = specs["Worker"]["template"]["spec"]["containers"][0];
  EXPECT_EQ(container["name"].as<std::string>(), "tensorflow");
  EXPECT_EQ(container["ports"][0]["name"].as<std::string>(), "tfjob-port");
  EXPECT_EQ(container["ports"][0]["containerPort"].as<int>(), 2222);
  const std::vector<std::string> arguments = Strings(container["args"]);
  EXPECT_THAT(arguments, IsSupersetOf({"--train_steps=5", "--result_json=/dev/termination-log"}));
  EXPECT_THAT(arguments, Not(Contains(HasSubstr("hosts="))));
  EXPECT_THAT(arguments, Not(Contains(HasSubstr("JOB_COMPLETION_INDEX"))));
}

TEST(KubernetesTfJob, KnowsTheSamePolicies) {
  for (const auto& [restart, policy] : {std::pair("never", "Never"), std::pair("on_failure", "OnFailure"),
                                        std::pair("always", "Always"), std::pair("exit_code", "ExitCode")}) {
    const YAML::Node job = TfJobOf(ServersJob("", "", std::string(", restart: ") + restart));
    EXPECT_EQ(job["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"].as<std::string>(), policy);
  }
}

TEST(KubernetesTfJob, WhatItCannotExpressIsRefused) {
  const KubernetesOptions tfjob{.image = kImage, .format = KubernetesFormat::kTfJob};
  const std::string program = "name: any\nprogram: [./train]\n";
  EXPECT_THAT(Refusal(JobOf(program + "flags: tensorflow\nreplicas: {worker: {count: 2}}\n"), tfjob),
              HasSubstr("flags: tensorflow"));
  EXPECT_THAT(Refusal(JobOf(program + "replicas: {worker: {count: 1}}\n"), tfjob), HasSubstr("the only one"));
  EXPECT_THAT(
      ManifestsOf(JobOf(program + "replicas: {worker: {count: 2}}\n"), KubernetesFormat::kTfJob).notes,
      Contains(HasSubstr("no RANK")));
}

}  // namespace
}  // namespace muster
