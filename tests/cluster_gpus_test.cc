// Hosts with GPUs, in the words of an nvidia-smi that the test has put there: what a job is given of them.
#include "launcher/gpus.h"
#include "tests/support/lifecycle_fixture.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Of four hosts: two with two GPUs and with one, one without, and one whose driver does not work.
class ClusterGpus : public LifecycleTest {
 protected:
  ClusterGpus() : LifecycleTest(LoopbackCluster::Network::kLoopback, /*hosts=*/4) {
    Install("host-1", "echo '1, NVIDIA Test, 81559, 550.54'; echo '0, NVIDIA Test, 81559, 550.54'");
    Install("host-2", "echo '0, NVIDIA Test, 81559, 550.54'");
    Install("host-4", "echo 'NVIDIA-SMI has failed: no driver'; exit 9");
  }

  void Install(const std::string& host, const std::string& script) {
    const std::string bin = cluster_.hosts().HomeOf(host) + "/bin";
    std::filesystem::create_directory(bin);
    ASSERT_TRUE(WriteFileAtomically(bin + "/nvidia-smi", "#!/bin/sh\n" + script + "\n", 0755).ok());
    cluster_.hosts().SetPath(host, bin + ":/usr/local/bin:/usr/bin:/bin");
  }

  std::string GpuJob(const std::string& name, const std::string& replicas) {
    return cluster_.Write(name + ".yaml", "name: " + name +
                                              "\nprogram: [sh, -c, 'echo \"gpus $CUDA_VISIBLE_DEVICES by "
                                              "$CUDA_DEVICE_ORDER\"']\nreplicas: " +
                                              replicas + "\n");
  }
};

TEST_F(ClusterGpus, EachTaskHasItsOwnAndServersGoWhereNoneAre) {
  const CommandResult run = RunJob(GpuJob("shared", "{ps: {count: 1}, worker: {count: 3, gpus: 1}}"));
  EXPECT_EQ(run.exit_code, 0) << run.stderr_text;
  EXPECT_THAT(run.stdout_text, AllOf(HasSubstr("[ps:0@host-3] gpus  by PCI_BUS_ID\n"),
                                     HasSubstr("[worker:0@host-1] gpus 0 by PCI_BUS_ID\n"),
                                     HasSubstr("[worker:1@host-2] gpus 0 by PCI_BUS_ID\n"),
                                     HasSubstr("[worker:2@host-1] gpus 1 by PCI_BUS_ID\n")));
  EXPECT_THAT(run.stderr_text,
              HasSubstr("host-4: nvidia-smi exits with code 9: NVIDIA-SMI has failed: no driver; "
                        "nobody knows which GPUs it has\n"));
  EXPECT_EQ(Show("shared")["tasks"][3]["gpus"], Json{"1"});
  const CommandResult pair = RunJob(GpuJob("pair", "{worker: {count: 1, gpus: 2}}"));
  EXPECT_EQ(pair.exit_code, 0) << pair.stderr_text;
  EXPECT_THAT(pair.stdout_text, HasSubstr("[worker:0@host-1] gpus 0,1 by PCI_BUS_ID\n"));
  const CommandResult plan = Muster(
      {"plan", GpuJob("next", "{ps: {count: 1}, worker: {count: 1, gpus: 2}}"), "-i", cluster_.inventory()});
  EXPECT_THAT(plan.stdout_text, AllOf(ContainsRegex("ps:0 +host-3 +[0-9.]+ +start\n"),
                                      ContainsRegex("worker:0 +host-1 +[0-9.]+ +0,1 +start\n")));
}

TEST_F(ClusterGpus, AJobThatWantsMoreThanThereAreIsRefused) {
  const std::string job = GpuJob("greedy", "{worker: {count: 4, gpus: 1}}");
  const std::string whole = InventoryText();
  const std::string known = cluster_.Write("known.yaml", whole.substr(0, whole.find("  host-4:")));
  const std::string message =
      "greedy.yaml:3:37: there are too few GPUs for 4 tasks of worker with 1 each: host-1 has 2, host-2 has "
      "1";
  for (const char* command : {"run", "plan"}) {
    const CommandResult result = Muster({command, job, "-i", known});
    EXPECT_EQ(result.exit_code, 2) << command;
    EXPECT_THAT(result.stderr_text, HasSubstr(message + "\n"));
    const CommandResult unknown = Muster({command, job, "-i", cluster_.inventory()});
    EXPECT_EQ(unknown.exit_code, 69) << "what the host has may be enough: " << command;
    EXPECT_THAT(unknown.stderr_text, HasSubstr(message + ", host-4 could not be asked\n"));
  }
  // Without a question about GPUs, nobody is asked.
  EXPECT_EQ(RunJob(GpuJob("modest", "{worker: {count: 4}}")).exit_code, 0);
}

TEST_F(ClusterGpus, TheInventoryMayNameThemAndIsHeldToIt) {
  std::string text = ReadFile(cluster_.inventory()).value_or("");
  const size_t host_1 = text.find("labels: [cpu]");
  text.replace(host_1, 13, "labels: [cpu], gpus: [1]");
  const std::string some = cluster_.Write("one.yaml", text);
  const CommandResult run = Muster({"run", GpuJob("some", "{worker: {count: 2, gpus: 1}}"), "-i", some});
  EXPECT_EQ(run.exit_code, 0) << run.stderr_text;
  EXPECT_THAT(run.stdout_text, HasSubstr("[worker:0@host-1] gpus 1 by PCI_BUS_ID\n"));
  text.replace(text.find("gpus: [1]"), 9, "gpus: [2]");
  const std::string wrong = cluster_.Write("wrong.yaml", text);
  const CommandResult refused = Muster({"run", GpuJob("more", "{worker: {count: 2, gpus: 1}}"), "-i", wrong});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.stderr_text,
              ContainsRegex("wrong.yaml:[0-9]+:3: host-1 is to use GPU 2, and has only 0, 1"));
}

// As a machine is that the inventory names before it has booted. It is asked again in half a minute.
// Nor does another new one keep it out, of which the inventory says what is not so.
TEST_F(ClusterGpus, AHostThatCannotBeAskedYetIsSpareOnceItAnswers) {
  std::string whole = ReadFile(cluster_.inventory()).value_or("");
  const size_t host_2 = whole.find("  host-2:"), host_3 = whole.find("  host-3:"),
               host_4 = whole.find("  host-4:");
  ASSERT_NE(host_4, std::string::npos) << whole;
  ASSERT_TRUE(WriteFileAtomically(cluster_.inventory(), whole.substr(0, host_2) + whole.substr(host_4)).ok());
  whole.insert(whole.find("labels:", host_3), "gpus: [0], ");
  cluster_.hosts().Kill("host-2");
  const std::string job = cluster_.Write(
      "job.yaml", "name: job\nprogram: [sleep, \"600\"]\nreplicas: {worker: {count: 1, gpus: 1}}\n");
  Process run = StartJob(job, "run");
  WaitForTasks("job", 1);
  ASSERT_TRUE(WriteFileAtomically(cluster_.inventory(), whole).ok());
  ASSERT_TRUE(cluster_.WaitForText("run", "the job does not use host-2, host-3 yet: "));
  EXPECT_THAT(cluster_.Text("run"), HasSubstr("host-3 is to use GPU 0, and has none"));
  cluster_.hosts().Start("host-2");
  ASSERT_TRUE(cluster_.WaitForText("run", "host-2 is a spare host from now on"));
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
  EXPECT_EQ(ExitCodeOf(run), 130) << cluster_.Text("run");
}

// One that says nothing of its GPUs, say, since its driver hangs.
TEST_F(ClusterGpus, AHostThatIsAskedKeepsNobodyFromEndingTheJob) {
  const std::string whole = ReadFile(cluster_.inventory()).value_or("");
  const size_t host_2 = whole.find("  host-2:"), host_3 = whole.find("  host-3:");
  ASSERT_NE(host_3, std::string::npos) << whole;
  ASSERT_TRUE(WriteFileAtomically(cluster_.inventory(), whole.substr(0, host_2) + whole.substr(host_3)).ok());
  Install("host-2",
          "touch '" + Path("asked") + "'; until [ -e '" + Path("answer") + "' ]; do sleep 0.1; done");
  const std::string job = cluster_.Write(
      "job.yaml", "name: job\nprogram: [sleep, \"600\"]\nreplicas: {worker: {count: 1, gpus: 1}}\n");
  Process run = StartJob(job, "run");
  WaitForTasks("job", 1);
  ASSERT_TRUE(WriteFileAtomically(cluster_.inventory(), whole).ok());
  ASSERT_TRUE(WaitForFile("asked"));
  run.Signal(SIGINT);
  EXPECT_EQ(ExitCodeOf(run, kGpusTimeout / 2), 130) << cluster_.Text("run");
  Touch("answer");
}

// With the keys of hosts that have gone there with the job.
TEST_F(ClusterGpus, AHostThatDrivesAJobAsksThoseThatComeToo) {
  const std::string whole = ReadFile(cluster_.inventory()).value_or("");
  const size_t host_2 = whole.find("  host-2:"), host_3 = whole.find("  host-3:"),
               host_4 = whole.find("  host-4:");
  ASSERT_NE(host_4, std::string::npos) << whole;
  const size_t begin = whole.find("ssh: \"", host_2) + 6;
  const std::string found = "host-2 " + whole.substr(begin, whole.find('"', begin) - begin) + "\n";
  const std::string inventory = cluster_.Write(
      "discovered.yaml", whole.substr(0, host_2) + whole.substr(host_3, host_4 - host_3) +
                             "discover: {command: [cat, \"" + Path("found") + "\"], every: 300ms}\n");
  cluster_.Write("found", "");
  const std::string job = cluster_.Write(
      "job.yaml", "name: job\nprogram: [sleep, \"600\"]\nreplicas: {worker: {count: 1, gpus: 1}}\n");
  const CommandResult run = Muster({"run", job, "-i", inventory, "-d", "--on", "host-3"});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  cluster_.Write("found", found);
  EXPECT_TRUE(Eventually([&] {
    return Muster({"events", "job"}).stdout_text.find("host-2 is a spare host from now on") !=
           std::string::npos;
  })) << Muster({"events", "job"}).stdout_text;
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

TEST_F(ClusterGpus, ATaskKeepsItsPlaceWhileItsHostDoesNotAnswer) {
  const auto write = [&](int workers) {
    return cluster_.Write("job.yaml",
                          absl::StrFormat("name: job\nmodel: mnist_mlp\nhidden: [50]\nstrategy: allreduce\n"
                                          "collective: native\nreplicas: {worker: {count: %d, gpus: 1}}\n"
                                          "train: {steps: 10000000, batch_size: 500, threads: 1}\n",
                                          workers));
  };
  const std::string job = write(2);
  const CommandResult run = RunJob(job, {"-d"});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  const auto first = WaitForTasks("job", 2);
  cluster_.hosts().Kill("host-2");
  const CommandResult plan = Muster({"plan", job, "-i", cluster_.inventory()});
  EXPECT_EQ(plan.exit_code, 0) << plan.stderr_text;
  EXPECT_THAT(plan.stderr_text, HasSubstr("2 unchanged\n"));
  EXPECT_THAT(plan.stdout_text, ContainsRegex("worker:1 +host-2 +[0-9.]+ +0 +unchanged\n"));
  Process scale = cluster_.Start({"scale", "job", "worker=3"}, "scale");
  EXPECT_TRUE(cluster_.WaitForText("scale", "worker:2 on host-1 joins"));
  cluster_.hosts().Start("host-2");
  EXPECT_EQ(ExitCodeOf(scale), 0) << cluster_.Text("scale");
  EXPECT_EQ(WaitForTasks("job", 3).at("worker:0"), first.at("worker:0"));
  // So does another run.
  cluster_.hosts().Kill("host-2");
  Process again = StartJob(write(3), "again", {"-d"});
  EXPECT_TRUE(cluster_.WaitForText("again", "host-2"));
  cluster_.hosts().Start("host-2");
  EXPECT_EQ(ExitCodeOf(again), 0) << cluster_.Text("again");
  EXPECT_EQ(WaitForTasks("job", 3).at("worker:0"), first.at("worker:0"));
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

TEST_F(ClusterGpus, APlanAsksThemWithTheKeysThatItIsGiven) {
  const std::string job = GpuJob("job", "{worker: {count: 1, gpus: 1}}");
  const auto plan = [&](const std::string& keys) {
    return Muster({"plan", job, "-i", cluster_.inventory(), "--connect-timeout", "10", "--known-hosts",
                   cluster_.Write("keys", keys)});
  };
  const CommandResult known = plan(cluster_.hosts().Text("known_hosts"));
  EXPECT_EQ(known.exit_code, 0) << known.stderr_text;
  EXPECT_THAT(known.stdout_text, ContainsRegex("worker:0 +host-1 +[0-9.]+ +0 +start\n"));
  const CommandResult unknown = plan("");
  EXPECT_EQ(unknown.exit_code, 69) << unknown.stderr_text;
  EXPECT_THAT(unknown.stderr_text, ContainsRegex("host-1 \\(.*\\): its host key is not known"));
}

TEST_F(ClusterGpus, CheckShowsThem) {
  const CommandResult check = Muster({"check", "-i", cluster_.inventory(), "-o", "json"});
  EXPECT_EQ(check.exit_code, 0) << check.stderr_text;
  const Json hosts = Json::parse(check.stdout_text);
  EXPECT_EQ(hosts[0]["gpus"], (Json{"2x NVIDIA Test (79.6 GiB)", "driver 550.54"}));
  EXPECT_EQ(hosts[2]["gpus"], Json::array());
  EXPECT_THAT(check.stderr_text, HasSubstr("host-4: nvidia-smi exits with code 9"));
}

}  // namespace
}  // namespace muster
