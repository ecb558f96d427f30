// Bad input, ports that others hold, and damaged data, through the real command.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/fault_hosts.h"
#include "tests/support/job_processes.h"
#include "tests/support/muster_cluster.h"

namespace muster {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kBadInput = 2;
constexpr char kTraining[] =
    "name: mnist\n"
    "model: mnist_softmax\n"
    "replicas:\n"
    "  ps: {count: 1, on: cpu}\n"
    "  worker: {count: 1}\n"
    "train: {steps: 20, batch_size: 100, optimizer: sgd, learning_rate: 0.5}\n";

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// ---- Bad input
// ------------------------------------------------------------------------------------------------------

class BadInput : public ::testing::Test {
 protected:
  CommandResult Muster(const std::vector<std::string>& arguments) { return cluster_.Muster(arguments); }

  // Writes both files, runs the job, and expects that nobody was contacted about it.
  void ExpectRefused(const std::string& job, const std::string& inventory, const std::string& message) {
    const std::string job_file = cluster_.Write("job.yaml", job);
    const std::string inventory_file = cluster_.Write("hosts.yaml", inventory);
    std::vector<std::vector<std::string>> commands = {{"run", job_file}, {"plan", job_file}};
    if (inventory != good_inventory_) commands.push_back({"check"});
    for (std::vector<std::string>& command : commands) {
      command.insert(command.end(), {"-i", inventory_file});
      const CommandResult result = Muster(command);
      EXPECT_EQ(result.exit_code, kBadInput) << command[0] << ": " << result.stderr_text;
      EXPECT_THAT(result.stderr_text, ContainsRegex(message)) << command[0];
      EXPECT_EQ(result.stdout_text, "") << command[0];
    }
    EXPECT_EQ(host_.TakeConnections(), 0);
  }
  void ExpectBadJob(const std::string& job, const std::string& message) {
    ExpectRefused(job, good_inventory_, message);
  }
  void ExpectBadInventory(const std::string& inventory, const std::string& message) {
    ExpectRefused(kTraining, inventory, message);
  }

  SilentHost host_;
  const std::string host_line_ =
      absl::StrFormat("{ssh: \"127.0.0.1:%d\", data: 127.0.0.1, labels: [cpu]}", host_.port());
  const std::string good_inventory_ = "hosts:\n  gpu-01: " + host_line_ + "\n";
  MusterCluster cluster_{1};  // for its keys and its home; the host of the inventory is host_
};

TEST_F(BadInput, IsCountedAsAConnectionWhereThereIsOne) {
  const std::string inventory = cluster_.Write("hosts.yaml", good_inventory_);
  EXPECT_EQ(Muster({"check", "-i", inventory, "--connect-timeout", "0.5"}).exit_code, 69);
  EXPECT_EQ(host_.TakeConnections(), 1);
}

TEST_F(BadInput, InTheJobFileNamesItsPlaceAndContactsNobody) {
  ExpectBadJob(Replaced(kTraining, "steps:", "step:"),
               "job.yaml:6:9: unknown key \"step\".*did you mean \"steps\"");
  ExpectBadJob(Replaced(kTraining, "train:", "model: mnist_mlp\ntrain:"), "job.yaml:6:1: .*\"model\".*2:1");
  ExpectBadJob(Replaced(kTraining, "  worker", "\tworker"), "job.yaml:5:1: .*tab");
  ExpectBadJob(Replaced(kTraining, "worker: {count: 1", "worker: {count: -3"),
               "job.yaml:5:19: expected a whole number from [01] to [0-9]+, found \"?-3");
  ExpectBadJob(Replaced(kTraining, "on: cpu", "on: cpus"),
               "job.yaml:4:22: no host in .*hosts.yaml has the label \"cpus\"; did you mean \"cpu\"");
  ExpectBadJob(Replaced(kTraining, "mnist_softmax", "mnist_softmix"),
               "job.yaml:2:8: .*did you mean \"mnist_softmax\"");
  ExpectBadJob(Replaced(kTraining, "train:", "data: /nonexist\ntrain:"),
               "job.yaml:6:7: /nonexist is no folder of this machine");
  const std::string program = "name: j\nprogram: [x]\nreplicas: {worker: {count: 1}}\n";
  ExpectBadJob(program + "files: [nope.py]\n", "job.yaml:4:9: .*nope.py: No such file");
  ExpectBadJob(program + "files: [log]\n", "job.yaml:4:9: \"log\" is where the task's folder");
  ExpectBadJob("", "job.yaml:1:1: .*empty");
  ExpectBadJob("# nothing but a comment\n", "job.yaml:1:1: .*empty");
  ExpectBadJob(std::string("name: mnist\nmodel: \xff\xfe\n"), "job.yaml:2:8: .*UTF-8");
  ExpectBadJob(std::string(10'000'000, '#'), "job.yaml:.*1048576 bytes");
  ExpectBadJob(std::string(900'000, '['), "job.yaml:1:[0-9]+: ");
}

TEST_F(BadInput, InTheInventoryNamesItsPlaceAndContactsNobody) {
  ExpectBadInventory(Replaced(good_inventory_, "labels", "label"),
                     "hosts.yaml:2:[0-9]+: unknown key \"label\"");
  ExpectBadInventory(good_inventory_ + "  gpu-01: {ssh: 127.0.0.2}\n", "hosts.yaml:3:3: .*gpu-01.*2:3");
  ExpectBadInventory(good_inventory_ + "  gpu-[01:04]: {ssh: 127.0.0.2}\n", "hosts.yaml:3:3: .*gpu-01");
  ExpectBadInventory(good_inventory_ + "  twin: " + host_line_ + "\n", "hosts.yaml:3:[0-9]+: .*gpu-01");
  ExpectBadInventory(good_inventory_ + "  b: {ssh: \"127.0.0.2:70000\"}\n",
                     "hosts.yaml:3:12: .*70000.*65535");
  ExpectBadInventory(good_inventory_ + "  b: {ssh: 127.0.0.2, dir: \"/a\\nb\"}\n",
                     "hosts.yaml:3:28: .*control character");
  ExpectBadInventory("defaults: {dir: \"~/a\\rb\"}\n" + good_inventory_,
                     "hosts.yaml:1:17: .*control character");
  ExpectBadInventory(good_inventory_ + "hosts: {}\n", "hosts.yaml:3:1: .*\"hosts\".*1:1");
  ExpectBadInventory("hosts:\n\tgpu-01: {}\n", "hosts.yaml:2:1: .*tab");
  ExpectBadInventory("", "hosts.yaml:1:1: .*empty");
  ExpectBadInventory(std::string(10'000'000, 'a'), "hosts.yaml:.*1048576 bytes");
  ExpectBadInventory("hosts: {}\n", "hosts.yaml:1:8: ");
}

TEST_F(BadInput, AnAddressThatIsNoneIsNamedWithItsHost) {
  const std::string job = cluster_.Write("job.yaml", kTraining);
  const std::string inventory =
      cluster_.Write("hosts.yaml", good_inventory_ + "  typo: {ssh: no-such-host.invalid, labels: [cpu]}\n");
  for (const char* command : {"run", "plan"}) {
    const CommandResult result = Muster({command, job, "-i", inventory});
    EXPECT_EQ(result.exit_code, kBadInput) << result.stderr_text;
    EXPECT_THAT(result.stderr_text,
                ContainsRegex("hosts.yaml:3:3: host typo: look up no-such-host.invalid: .*`data: ADDRESS`"));
  }
  EXPECT_EQ(host_.TakeConnections(), 0);
}

// What NCCL sends has no encryption, whatever else of the job has.
TEST_F(BadInput, GpusOnSeveralHostsNeedATrustedNetwork) {
  const std::string job = cluster_.Write(
      "job.yaml",
      "name: j\nmodel: mnist_mlp\nstrategy: allreduce\ncollective: nccl\nreplicas: {worker: {count: 2}}\n");
  const std::string inventory = cluster_.Write("hosts.yaml", good_inventory_ + "  b: {ssh: 127.0.0.2}\n");
  for (const char* command : {"run", "plan"}) {
    const CommandResult result = Muster({command, job, "-i", inventory});
    EXPECT_EQ(result.exit_code, kBadInput) << result.stderr_text;
    EXPECT_THAT(result.stderr_text, ContainsRegex("job.yaml:4:13: the GPUs of 2 hosts .*no encryption.*"
                                                  "`trusted_network: true`.*`collective: native`"));
  }
  EXPECT_EQ(host_.TakeConnections(), 0);
}

TEST_F(BadInput, OfTheCommandLineContactsNobody) {
  const std::string job = cluster_.Write("job.yaml", kTraining);
  const std::string inventory = cluster_.Write("hosts.yaml", good_inventory_);
  const std::string garbage = cluster_.Write("garbage", "# keys\nx y z\n");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"run", cluster_.Path("no.yaml"), "-i", inventory}, "no.yaml: No such file"},
      {{"run", job, "-i", cluster_.Path("none.yaml")}, "none.yaml: No such file"},
      {{"run", cluster_.Path(""), "-i", inventory}, "irectory"},
      {{"run", job, "-i", inventory, "--frobnicate"}, "--frobnicate"},
      {{"run", "-i", inventory}, "JOB"},
      {{"run", job, "-i", inventory, "--timeout", "-1"},
       "--timeout: expected seconds, a number above 0 and at most 1000000000, found '-1' ("},
      {{"run", job, "-i", inventory, "--timeout", "0"}, "--timeout: expected seconds"},
      {{"run", job, "-i", inventory, "--lost-timeout", "inf"}, "--lost-timeout: expected seconds"},
      {{"wait", "mnist", "--timeout", "1e300"}, "--timeout: expected seconds"},
      {{"wait", "mnist", "--timeout", "nan"}, "--timeout: expected seconds"},
      {{"wait", "mnist", "--timeout", "5s"}, "--timeout: expected seconds"},
      {{"check", "-i", inventory, "--connect-timeout", "nan"}, "--connect-timeout: expected seconds"},
      {{"launch", job}, "unknown command 'launch'"},
      {{"stopp", "mnist"}, "did you mean 'stop'?"},
      {{"stopp", "--help"}, "unknown command 'stopp'; did you mean 'stop'?"},
      {{"data", "frobnicate", "--help"}, "unknown command 'frobnicate'"},
      {{"show", "no-such-job"}, "no-such-job"},
      {{"check", "-i", inventory, "-o", "xml"}, "xml"},
      {{"check", "-i", cluster_.Write("a\nb.yaml", good_inventory_)},
       "a\\nb.yaml\": the path holds a control"},
      {{"check", "-i", inventory, "--known-hosts", "a\rb"}, "\"a\\rb\": the path holds a control"},
      {{"check", "-i", inventory, "--hosts", "gpu-1"},
       "--hosts: \"gpu-1\" is neither a host nor a label in " + inventory + "; did you mean \"gpu-01\"?"},
      {{"exec", "-i", inventory, "--hosts", "gpu-[01:02]", "--", "true"}, "--hosts: \"gpu-02\" is neither"},
      {{"exec", "-i", inventory, "--hosts", "", "--", "true"}, "--hosts: \"\" is neither"},
      {{"check", "-i", ""}, "--inventory: expected a file, found ''"},
      {{"check", "-i", inventory, "--known-hosts", ""}, "--known-hosts: expected a file, found ''"},
      {{"exec", "-i", inventory, "--known-hosts", cluster_.Path(""), "--", "true"}, ": Is a directory"},
      {{"show", "job", "--known-hosts", garbage}, garbage + ":2: not a host key"},
      {{"check", "-i", inventory, "--known-hosts", garbage}, garbage + ":2: not a host key"},
      {{"plan", job, "-i", inventory, "--known-hosts", garbage}, garbage + ":2: not a host key"},
      {{"check", "-i", inventory, "--accept-new", "--known-hosts", "/proc/new"}, "/proc/new"},
      {{}, "subcommand"},
  };
  for (const auto& [arguments, message] : cases) {
    const CommandResult result = Muster(arguments);
    EXPECT_EQ(result.exit_code, kBadInput) << message << ": " << result.stderr_text;
    EXPECT_THAT(result.stderr_text, HasSubstr(message));
    EXPECT_THAT(result.stderr_text, ::testing::StartsWith("muster: "));
  }
  EXPECT_EQ(host_.TakeConnections(), 0);
}

// ---- Ports
// ----------------------------------------------------------------------------------------------------------

constexpr uint32_t kFirstLeasedPort = 20000, kLastLeasedPort = 32767;  // DESIGN.md, "Ports"
constexpr uint32_t kFreeEvery = 400;

uint32_t PortOf(const std::string& address) { return std::stoul(address.substr(address.rfind(':') + 1)); }

// The addresses of a job's tasks, in the order of `show`.
std::vector<std::string> TaskAddresses(MusterCluster& cluster, const std::string& job) {
  const auto state = nlohmann::json::parse(cluster.Muster({"show", job, "-o", "json"}).stdout_text);
  std::vector<std::string> addresses;
  for (const auto& task : state["tasks"]) addresses.push_back(task["address"]);
  return addresses;
}

TEST(Ports, ThatOthersHoldAreNotLeased) {
  constexpr rlim_t kNeeded = kLastLeasedPort - kFirstLeasedPort + 500;
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < kNeeded) GTEST_SKIP() << "needs " << kNeeded << " descriptors, has " << limit.rlim_max;
  const rlimit raised{.rlim_cur = std::max(limit.rlim_cur, kNeeded), .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &raised), 0);

  MusterCluster cluster(2);
  const std::string address = cluster.hosts().targets()[0].address;
  std::vector<UniqueFd> held;
  for (uint32_t port = kFirstLeasedPort; port <= kLastLeasedPort; ++port) {
    if (port % kFreeEvery == 0) continue;
    held.push_back(BindTcp(address, static_cast<uint16_t>(port)));
    ASSERT_TRUE(held.back().valid()) << port;
  }
  const std::string job = cluster.Write("job.yaml", Replaced(kTraining, "ps: {count: 1", "ps: {count: 3"));
  const CommandResult run = cluster.Muster({"run", job, "-i", cluster.inventory()});
  EXPECT_EQ(run.exit_code, 0) << run.stderr_text << run.stdout_text;
  int on_held_address = 0;
  for (const std::string& task : TaskAddresses(cluster, "mnist")) {
    if (!task.starts_with(address + ":")) continue;
    ++on_held_address;
    EXPECT_EQ(PortOf(task) % kFreeEvery, 0u) << task;
  }
  EXPECT_EQ(on_held_address, 2);
}

// The port that a host's agent has leased to ps:0 of the job `name`, once it has.
uint32_t LeasedPort(const std::string& home, const std::string& name, TimePoint deadline) {
  const std::filesystem::path hosts = std::filesystem::path(home) / ".muster/hosts";
  while (Now() < deadline) {
    for (const std::string& host : ListDirectory(hosts).value_or(std::vector<std::string>{})) {
      const std::filesystem::path leases = hosts / host / "ports";
      for (const std::string& port : ListDirectory(leases).value_or(std::vector<std::string>{})) {
        const std::string lease = ReadFile(leases / port).value_or("");
        if (lease.find("\n" + name + "-") != std::string::npos && lease.find("\nps:0\n") != std::string::npos)
          return std::stoul(port);
      }
    }
    ::usleep(5'000);
  }
  return 0;
}

TEST(Ports, OneThatIsTakenAfterItsLeaseMeansANewGeneration) {
  MusterCluster cluster(2);
  // So that the job itself has nothing to upload, and comes to its leases at once.
  const std::string first = cluster.Write("first.yaml", Replaced(kTraining, "name: mnist", "name: first"));
  ASSERT_EQ(cluster.Muster({"run", first, "-i", cluster.inventory()}).exit_code, 0);
  // Without host-2 nothing starts, so there is time between the lease of ps:0 on host-1 and its start.
  const pid_t sshd = std::stoi(cluster.hosts().Text("host-2/sshd.pid"));
  ASSERT_EQ(::kill(sshd, SIGSTOP), 0);
  const std::string job = cluster.Write("job.yaml", kTraining);
  Process run = cluster.Start({"run", job, "-i", cluster.inventory()}, "output");
  const uint32_t lost =
      LeasedPort(cluster.hosts().HomeOf("host-1"), "mnist", Now() + std::chrono::seconds(9));
  const UniqueFd taken = BindTcp(cluster.hosts().targets()[0].address, static_cast<uint16_t>(lost));
  ASSERT_EQ(::kill(sshd, SIGCONT), 0);
  ASSERT_NE(lost, 0u) << cluster.Text("output");
  ASSERT_TRUE(taken.valid()) << lost;
  EXPECT_EQ(run.Wait(Now() + std::chrono::seconds(60)).value_or(-1), 0) << cluster.Text("output");
  EXPECT_THAT(cluster.Text("output"), HasSubstr("MNIST accuracy: "));

  const CommandResult show = cluster.Muster({"show", "mnist"});
  EXPECT_THAT(show.stdout_text, HasSubstr("Succeeded, generation 2")) << show.stdout_text;
  const std::vector<std::string> addresses = TaskAddresses(cluster, "mnist");
  ASSERT_EQ(addresses.size(), 2u);
  EXPECT_NE(PortOf(addresses[0]), lost);
}

TEST(Ports, AfterALostPortAllTasksStartAgainAndAgree) {
  MusterCluster cluster(3);
  // In generation 1 ps:0 says that its port was taken, and the workers would run for ever.
  const std::string job = cluster.Write("job.yaml", R"(
name: agree
program:
- sh
- -c
- |
  task=$1; shift 2
  echo "$MUSTER_GENERATION: $*"
  [ "$MUSTER_GENERATION" != 1 ] && exit 0
  [ "$task" = --job_name=ps ] && exit 98
  exec sleep 1000
- sh
flags: tensorflow
replicas: {ps: {count: 1}, worker: {count: 2}}
)");
  const CommandResult run = cluster.Muster({"run", job, "-i", cluster.inventory()});
  EXPECT_EQ(run.exit_code, 0) << run.stderr_text;
  std::set<std::string> clusters;
  std::istringstream lines(run.stdout_text);
  int tasks = 0;
  for (std::string line; std::getline(lines, line);) {
    if (const size_t at = line.find("] 2: "); at != std::string::npos) {
      clusters.insert(line.substr(at + 5));
      ++tasks;
    }
  }
  EXPECT_EQ(tasks, 3) << run.stdout_text;
  EXPECT_EQ(clusters.size(), 1u) << run.stdout_text;
  const std::string first = run.stdout_text.substr(run.stdout_text.find("] 1: ") + 5);
  EXPECT_THAT(clusters, Not(::testing::Contains(first.substr(0, first.find('\n')))));
  EXPECT_THAT(run.stderr_text,
              ContainsRegex("generation 1 is given up .*port was taken.*all tasks start again"));
}

// ---- Output
// ---------------------------------------------------------------------------------------------------------

TEST(Output, ThatIsLostIsAnErrorUnlessItsReaderHasGone) {
  MusterCluster cluster(1);
  cluster.Write("job.yaml", kTraining);
  const std::string run = "muster run -q -o json " + cluster.Path("job.yaml") + " -i " + cluster.inventory();
  const std::string commands[] = {run,
                                  "muster list",
                                  "muster show mnist",
                                  "muster show mnist -o json",
                                  "muster logs mnist",
                                  "muster logs mnist worker:0",
                                  "muster check -i " + cluster.inventory(),
                                  "muster --help",
                                  "muster --version"};
  for (const std::string& command : commands) {
    const CommandResult full = cluster.Shell(command + " >/dev/full");
    EXPECT_EQ(full.exit_code, 1) << command << ": " << full.stderr_text;
    EXPECT_THAT(full.stderr_text, ::testing::EndsWith("muster: stdout: No space left on device\n"))
        << command;

    // `true` reads nothing; the loop ends when it is gone.
    const CommandResult closed = cluster.Shell("{ trap '' PIPE; while echo 2>/dev/null; do :; done; " +
                                               command + "; echo \"code $?\" >&2; } | true");
    EXPECT_THAT(closed.stderr_text, ::testing::EndsWith("code 0\n")) << command;
    EXPECT_THAT(closed.stderr_text, Not(HasSubstr("stdout"))) << command;
  }
}

TEST(Output, AsJsonIsTheResultWheneverThereIsOne) {
  MusterCluster cluster(1);
  const auto arguments = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> all = {"run", cluster.Write("job.yaml", kTraining), "-i", cluster.inventory()};
    all.insert(all.end(), more);
    return all;
  };
  const CommandResult run = cluster.Muster(arguments({"-o", "json"}));
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  EXPECT_THAT(run.stderr_text, HasSubstr("[worker:0@host-1] ")) << "not among the JSON";
  EXPECT_EQ(nlohmann::json::parse(run.stdout_text)["steps"], 20);
  // Of a job that has ended.
  const CommandResult again = cluster.Muster({"wait", "mnist", "-o", "json"});
  EXPECT_EQ(again.exit_code, 0) << again.stderr_text;
  EXPECT_EQ(again.stdout_text, run.stdout_text);
  EXPECT_THAT(cluster.Muster({"wait", "mnist"}).stdout_text, HasSubstr("MNIST accuracy: 0."));

  ASSERT_EQ(cluster.Muster(arguments({"-d"})).exit_code, 0);
  const CommandResult wait = cluster.Muster({"wait", "mnist", "-o", "json"});
  EXPECT_EQ(wait.exit_code, 0) << wait.stderr_text;
  EXPECT_EQ(nlohmann::json::parse(wait.stdout_text)["steps"], 20);

  // One without a result has none, and its own exit code.
  const std::string other = "name: other\nprogram: [sh, -c, exit 3]\nreplicas: {worker: {count: 1}}\n";
  const CommandResult failed =
      cluster.Muster({"run", cluster.Write("other.yaml", other), "-i", cluster.inventory(), "-o", "json"});
  EXPECT_EQ(failed.exit_code, 3) << failed.stderr_text;
  const auto outcome = nlohmann::json::parse(failed.stdout_text);
  EXPECT_THAT(std::string(outcome["job"]), ::testing::StartsWith("other-"));
  EXPECT_EQ(outcome["state"], "Failed");
  EXPECT_EQ(outcome["exit_code"], 3);
  EXPECT_THAT(std::string(outcome["cause"]), HasSubstr("worker:0 on host-1 failed: exited with code 3"));
  const CommandResult none = cluster.Muster({"wait", "other", "-o", "json"});
  EXPECT_EQ(none.exit_code, 3) << none.stderr_text;
  EXPECT_EQ(none.stdout_text, failed.stdout_text);
}

// ---- Data
// -----------------------------------------------------------------------------------------------------------

class DamagedData : public ::testing::Test {
 protected:
  DamagedData() {
    std::filesystem::create_directories(folder());
    WriteIdx("train", 200);
    WriteIdx("t10k", 50);
  }

  std::string folder() { return cluster_.Path("data/mnist"); }
  std::string File(const std::string& name) { return folder() + "/" + name; }

  void WriteIdx(const std::string& part, uint8_t count) {
    using namespace std::string_literals;
    const std::string number = "\0\0\0"s + static_cast<char>(count);
    std::string images = "\0\0\x08\x03"s + number + "\0\0\0\x1c\0\0\0\x1c"s;
    for (int i = 0; i < count * 28 * 28; ++i) images += static_cast<char>(i % 251 * (i % 13));
    std::string labels = "\0\0\x08\x01"s + number;
    for (int i = 0; i < count; ++i) labels += static_cast<char>(i % 10);
    std::ofstream(File(part + "-images-idx3-ubyte")) << images;
    std::ofstream(File(part + "-labels-idx1-ubyte")) << labels;
    for (const char* kind : {"-images-idx3-ubyte", "-labels-idx1-ubyte"}) {
      const auto zipped =
          RunCommand({.argv = {"gzip", "-n", File(part + kind)}}, Now() + std::chrono::seconds(10));
      ASSERT_TRUE(zipped.ok() && zipped->exit_code == 0);
    }
  }

  CommandResult Run(const std::vector<std::string>& flags = {}) {
    const std::string job = cluster_.Write("job.yaml", Replaced(kTraining, "train:", "data: data\ntrain:"));
    std::vector<std::string> command = {"run", job, "-i", cluster_.inventory()};
    command.insert(command.end(), flags.begin(), flags.end());
    return cluster_.Muster(command);
  }

  void ExpectFailure(const std::string& message) {
    const CommandResult run = Run();
    EXPECT_EQ(run.exit_code, kBadInput) << run.stderr_text;
    EXPECT_THAT(run.stdout_text, ContainsRegex("\\[worker:0@host-1\\].*mnist/" + message));
    EXPECT_THAT(run.stderr_text, HasSubstr("\nworker:0 on host-1 failed: "));
  }

  MusterCluster cluster_{1};
};

TEST_F(DamagedData, IsNamedWithItsOffset) {
  ASSERT_EQ(Run().exit_code, 0);  // undamaged

  const std::string images = File("train-images-idx3-ubyte.gz"), labels = File("t10k-labels-idx1-ubyte.gz");
  const std::string good = ReadFile(images).value();
  ASSERT_TRUE(WriteFileAtomically(images, good.substr(0, good.size() / 2)).ok());
  ExpectFailure(
      absl::StrFormat("train-images-idx3-ubyte.gz: byte %d: the gzip data is truncated", good.size() / 2));

  std::string flipped = good;
  flipped[good.size() - 6] ^= 0x10;  // in the checksum, so that only the end tells
  ASSERT_TRUE(WriteFileAtomically(images, flipped).ok());
  ExpectFailure("train-images-idx3-ubyte.gz: byte [0-9]+: damaged gzip data .incorrect data check");

  ASSERT_TRUE(WriteFileAtomically(images, good).ok());
  std::filesystem::remove(labels);
  ASSERT_TRUE(
      WriteFileAtomically(File("t10k-labels-idx1-ubyte"), std::string("\0\0\x0d\x01\0\0\0\x32", 8)).ok());
  ExpectFailure("t10k-labels-idx1-ubyte: byte 2: elements of type 0x0d");

  // Without the tasks' output, the message says where it is.
  const CommandResult quiet = Run({"-q"});
  const size_t at = quiet.stderr_text.find("muster logs mnist-");
  ASSERT_NE(at, std::string::npos) << quiet.stderr_text;
  const std::string command = quiet.stderr_text.substr(at, quiet.stderr_text.find("  ", at) - at);
  EXPECT_THAT(cluster_.Shell(command).stdout_text, HasSubstr("elements of type 0x0d")) << command;
}

}  // namespace
}  // namespace muster
