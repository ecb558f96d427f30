// What hosts can do wrong before a job starts, through the real command against real sshds: it is named, the
// gang is not started, and the other hosts stay as they were.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/checkout.h"
#include "tests/support/fault_hosts.h"
#include "tests/support/job_processes.h"
#include "tests/support/muster_cluster.h"

namespace muster {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kUnreachable = 69;

// A job whose tasks leave a file behind, so that one which was started cannot be missed.
class Probe {
 public:
  Probe(MusterCluster& cluster, int workers, const std::string& more = "")
      : cluster_(cluster), trace_(cluster.Path("a-task-ran")) {
    job_ = cluster.Write("probe.yaml", absl::StrFormat("name: probe\nprogram: [touch, \"%s\"]\n"
                                                       "replicas: {worker: {count: %d}}\n%s",
                                                       trace_, workers, more));
  }

  CommandResult Run(const std::string& inventory) { return cluster_.Muster({"run", job_, "-i", inventory}); }

  bool ran() const { return std::filesystem::exists(trace_); }

  /// No task ran, and soon nothing of muster is left that could start one, on any host of the cluster.
  void ExpectNothingStarted() {
    EXPECT_FALSE(ran());
    for (const SshTarget& target : cluster_.hosts().targets()) {
      EXPECT_THAT(TaskFoldersIn(cluster_.hosts().HomeOf(target.name)), IsEmpty()) << target.name;
      EXPECT_THAT(ProcessesLeftIn(cluster_.hosts().HomeOf(target.name)), IsEmpty()) << target.name;
    }
  }

 private:
  MusterCluster& cluster_;
  const std::string trace_;
  std::string job_;
};

// "SHA256:...", as ssh-keygen sees it.
std::string Fingerprint(const std::string& public_key) {
  const auto result =
      RunCommand({.argv = {"ssh-keygen", "-lf", public_key}}, Now() + std::chrono::seconds(10));
  EXPECT_TRUE(result.ok()) << result.status();
  std::istringstream words(result.ok() ? result->stdout_text : "");
  std::string bits, fingerprint;
  words >> bits >> fingerprint;
  EXPECT_TRUE(fingerprint.starts_with("SHA256:")) << fingerprint;
  return fingerprint;
}

std::string HostFile(MusterCluster& cluster, const std::string& host, const std::string& name) {
  return cluster.hosts().folder() + "/" + host + "/" + name;
}

// Changes a line of a host's sshd_config, for which it is down a moment.
void Reconfigure(MusterCluster& cluster, const std::string& host, const std::string& from,
                 const std::string& to) {
  cluster.hosts().Kill(host);
  std::string config = cluster.hosts().Text(host + "/sshd_config");
  const size_t at = config.find(from);
  ASSERT_NE(at, std::string::npos) << config;
  config.replace(at, from.size(), to);
  ASSERT_TRUE(WriteFileAtomically(HostFile(cluster, host, "sshd_config"), config).ok());
  cluster.hosts().Start(host);
}

std::string HostLine(const std::string& name, const std::string& address, int port) {
  return absl::StrFormat("  %s: {ssh: \"%s:%d\", data: %s, labels: [cpu]}\n", name, address, port, address);
}

// What the tests below look for when they expect nothing is seen where it is.
TEST(ClusterFaults, TasksOnAHostAreSeen) {
  MusterCluster cluster(1);
  const std::string home = cluster.hosts().HomeOf("host-1");
  const std::string job = cluster.Write(
      "job.yaml", "name: sleeper\nprogram: [sleep, \"1000\"]\nreplicas: {worker: {count: 1}}\n");
  ASSERT_EQ(cluster.Muster({"run", "-d", job, "-i", cluster.inventory()}).exit_code, 0);
  EXPECT_THAT(ProcessesIn(home), Not(IsEmpty()));
  EXPECT_THAT(TaskFoldersIn(home), ::testing::ElementsAre(HasSubstr("sleeper-")));
  EXPECT_EQ(cluster.Muster({"stop", "sleeper"}).exit_code, 0);
  EXPECT_THAT(ProcessesLeftIn(home), IsEmpty());
}

TEST(ClusterFaults, HostsThatDoNotAnswerAreAllNamedAndNothingStarts) {
  MusterCluster cluster(3);
  const SilentHost silent;
  const BlackHole swallowing;
  cluster.hosts().Kill("host-3");
  const std::string inventory = cluster.Write(
      "five.yaml", cluster.hosts().Text("inventory.yaml") + HostLine("silent", "127.0.0.1", silent.port()) +
                       HostLine("swallowing", "127.0.0.1", swallowing.port()));
  Probe probe(cluster, 5);
  // Each has 15 s; the rest is for a slow machine.
  const CommandResult run =
      cluster.Muster({"run", cluster.Path("probe.yaml"), "-i", inventory}, std::chrono::seconds(45));
  EXPECT_EQ(run.exit_code, kUnreachable) << run.stderr_text;
  const std::string verdict = run.stderr_text.substr(run.stderr_text.rfind("\nnothing was started") + 1);
  EXPECT_THAT(verdict, HasSubstr("because a host was not reached"));
  EXPECT_THAT(verdict, ContainsRegex("host-3 \\(127[0-9.]*:[0-9]+\\): connect: refused"));
  EXPECT_THAT(verdict, ContainsRegex("silent \\(127.0.0.1:[0-9]+\\): waiting for the SSH greeting"));
  EXPECT_THAT(verdict, ContainsRegex("swallowing \\(127.0.0.1:[0-9]+\\): connect: no answer"));
  EXPECT_THAT(verdict, Not(HasSubstr("host-1")));
  EXPECT_THAT(verdict, Not(HasSubstr("host-3: host-3"))) << "a host named twice";
  probe.ExpectNothingStarted();

  const CommandResult show = cluster.Muster({"show", "probe", "-o", "json", "--connect-timeout", "2"});
  EXPECT_EQ(show.exit_code, kUnreachable);
  const auto state = nlohmann::json::parse(show.stdout_text);
  EXPECT_EQ(state["state"], "Failed");
  for (const auto& task : state["tasks"]) {
    const bool up = task["host"] == "host-1" || task["host"] == "host-2";
    EXPECT_EQ(task["state"], up ? "Pending" : "Lost") << task;
  }

  // The same job on the hosts that are there.
  cluster.hosts().Start("host-3");
  const CommandResult again = probe.Run(cluster.inventory());
  EXPECT_EQ(again.exit_code, 0) << again.stderr_text;
  EXPECT_TRUE(probe.ran());
}

TEST(ClusterFaults, CheckPrintsWhatItKnowsAndNamesTheHostThatIsDown) {
  MusterCluster cluster(3);
  const CommandResult all = cluster.Muster({"check", "-i", cluster.inventory(), "-o", "json"});
  EXPECT_EQ(all.exit_code, 0) << all.stderr_text;
  const auto table = nlohmann::json::parse(all.stdout_text);
  ASSERT_EQ(table.size(), 3u);
  for (const auto& row : table) {
    EXPECT_EQ(row["state"], "ok");
    for (const char* column : {"arch", "libc"}) EXPECT_NE(row.at(column), "") << column;
    for (const char* column : {"cpus", "memory", "disk_free"}) EXPECT_GT(row.at(column), 0) << column;
    EXPECT_THAT(row.at("addresses"), testing::Not(testing::IsEmpty()));
  }

  cluster.hosts().Kill("host-2");
  const CommandResult check = cluster.Muster({"check", "-i", cluster.inventory()});
  EXPECT_EQ(check.exit_code, kUnreachable);
  EXPECT_THAT(check.stdout_text, ContainsRegex("host-1 +ok +[a-z0-9_]+ +g?[a-z]+ [0-9]"));
  EXPECT_THAT(check.stdout_text, ContainsRegex("host-2 +unreachable"));
  EXPECT_THAT(check.stdout_text, ContainsRegex("host-3 +ok"));
  EXPECT_THAT(check.stderr_text, ContainsRegex("host-2 \\(.*\\): connect: refused"));
}

TEST(ClusterFaults, UnknownHostKeyIsAcceptedByTheCommandInTheMessage) {
  MusterCluster cluster(2);
  const std::string known_hosts = cluster.hosts().Text("known_hosts");
  cluster.Write("known_hosts", known_hosts.substr(0, known_hosts.find('\n') + 1));  // host-1's
  const std::string copy = cluster.Write("my hosts.yaml", cluster.hosts().Text("inventory.yaml"));
  Probe probe(cluster, 2);
  const CommandResult refused = cluster.Muster(
      {"run", cluster.Path("probe.yaml"), "-i", copy, "--known-hosts", cluster.Path("known_hosts")});
  EXPECT_EQ(refused.exit_code, kUnreachable);
  EXPECT_THAT(refused.stderr_text, HasSubstr("its host key is not known"));
  EXPECT_THAT(refused.stderr_text, HasSubstr(Fingerprint(HostFile(cluster, "host-2", "host_key.pub"))));
  EXPECT_THAT(refused.stderr_text, Not(HasSubstr(Fingerprint(HostFile(cluster, "host-1", "host_key.pub")))));
  probe.ExpectNothingStarted();
  EXPECT_THAT(cluster.hosts().Text("host-2/sshd.log"), Not(HasSubstr("Accepted publickey")));

  // As a person would: copied from the message into a shell.
  const size_t at = refused.stderr_text.rfind("muster check --accept-new");
  ASSERT_NE(at, std::string::npos) << refused.stderr_text;
  const std::string command = refused.stderr_text.substr(at, refused.stderr_text.find('\n', at) - at);
  const CommandResult accepted = cluster.Shell(command);
  EXPECT_EQ(accepted.exit_code, 0) << command << "\n" << accepted.stderr_text;
  EXPECT_THAT(accepted.stderr_text, HasSubstr("host-2: accepted its key SHA256:"));

  const CommandResult run = cluster.Muster(
      {"run", cluster.Path("probe.yaml"), "-i", copy, "--known-hosts", cluster.Path("known_hosts")});
  EXPECT_EQ(run.exit_code, 0) << run.stderr_text;
  EXPECT_TRUE(probe.ran());
}

TEST(ClusterFaults, ChangedHostKeyIsRefusedWithBothFingerprints) {
  MusterCluster cluster(2);
  const std::string other = cluster.Path("other_key");
  ASSERT_TRUE(RunCommand({.argv = {"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other}},
                         Now() + std::chrono::seconds(10))
                  .ok());
  // What muster knows of host-2 is the key of another machine.
  std::string known_hosts = cluster.hosts().Text("known_hosts");
  known_hosts.resize(known_hosts.find('\n') + 1);
  known_hosts += "host-2 " + cluster.Text("other_key.pub");
  const std::string file = cluster.hosts().folder() + "/known_hosts";
  ASSERT_TRUE(WriteFileAtomically(file, known_hosts).ok());

  Probe probe(cluster, 2);
  const auto expect_refusal = [&](const CommandResult& result) {
    EXPECT_EQ(result.exit_code, kUnreachable);
    EXPECT_THAT(result.stderr_text, HasSubstr("its host key has CHANGED"));
    EXPECT_THAT(result.stderr_text, HasSubstr("expected: ssh-ed25519 " + Fingerprint(other + ".pub")));
    EXPECT_THAT(result.stderr_text, HasSubstr("offered: ssh-ed25519 " +
                                              Fingerprint(HostFile(cluster, "host-2", "host_key.pub"))));
    EXPECT_EQ(cluster.hosts().Text("known_hosts"), known_hosts);
    EXPECT_THAT(cluster.hosts().Text("host-2/sshd.log"), Not(HasSubstr("Accepted publickey")));
    EXPECT_THAT(ListDirectory(cluster.hosts().HomeOf("host-2")).value(), IsEmpty());
  };
  const CommandResult run = probe.Run(cluster.inventory());
  expect_refusal(run);
  probe.ExpectNothingStarted();
  expect_refusal(cluster.Muster({"check", "--accept-new", "-i", cluster.inventory()}));

  // A machine that was set up again: the way out that the message names.
  const size_t at = run.stderr_text.rfind("ssh-keygen -R");
  ASSERT_NE(at, std::string::npos) << run.stderr_text;
  const std::string command = run.stderr_text.substr(at, run.stderr_text.find('\n', at) - at);
  const CommandResult replaced = cluster.Shell(command);
  EXPECT_EQ(replaced.exit_code, 0) << command << "\n" << replaced.stderr_text;
  EXPECT_EQ(probe.Run(cluster.inventory()).exit_code, 0);
  EXPECT_TRUE(probe.ran());
}

TEST(ClusterFaults, LoginShellsThatPrintAndBannersDoNoHarm) {
  const TemporaryDirectory folder;
  const std::string banner = folder.path() / "banner";
  ASSERT_TRUE(WriteFileAtomically(banner, "Authorised use only.\nmuster-agent-protocol 1\n").ok());
  MusterCluster cluster(2, {"Banner " + banner});
  const std::string home = cluster.hosts().HomeOf("host-2");
  // Once before the agent is there and once when it is: with parts of what muster waits for in both cases.
  std::ofstream(home + "/.bashrc") << R"(
touch ~/bashrc-ran
echo "Welcome to host-2"
echo "Last login: yesterday" >&2
printf '\000\377\376\033[2J\r\n'
printf '\nmuster-agent-protocol '
printf '\nmuster-agent-protocol 12345678901234567890\n'
printf 'muster-agent-missing sparc64\n'
seq 3000
printf '\nmuster-agent-protocol'
)";
  std::filesystem::create_directory(folder.path() / "data");
  ASSERT_TRUE(WriteFileAtomically(folder.path() / "data/greeting", "the data arrived\n").ok());
  const std::string job = cluster.Write(
      "job.yaml",
      absl::StrFormat("name: noisy\nprogram: [sh, -c, 'cat \"$MUSTER_DATA/greeting\"']\ndata: %s\n"
                      "replicas: {worker: {count: 2}}\n",
                      (folder.path() / "data").string()));
  const CommandResult run = cluster.Muster({"run", job, "-i", cluster.inventory()});
  EXPECT_EQ(run.exit_code, 0) << run.stderr_text;
  EXPECT_THAT(run.stdout_text, HasSubstr("[worker:0@host-1] the data arrived\n"));
  EXPECT_THAT(run.stdout_text, HasSubstr("[worker:1@host-2] the data arrived\n"));
  EXPECT_THAT(run.stdout_text, Not(HasSubstr("Welcome")));
  // A second one finds agent and data there.
  EXPECT_EQ(cluster.Muster({"run", job, "-i", cluster.inventory()}).exit_code, 0);
  if (!std::filesystem::exists(home + "/bashrc-ran")) {
    GTEST_SKIP() << "the login shell of this account does not read ~/.bashrc: only the banner was tested";
  }
}

TEST(ClusterFaults, AnotherArchitectureIsNamedBeforeAnythingStarts) {
  MusterCluster cluster(3);
  const std::string home = cluster.hosts().HomeOf("host-2");
  std::filesystem::create_directory(home + "/bin");
  ASSERT_TRUE(WriteFileAtomically(home + "/bin/uname", "#!/bin/sh\necho sparc64\n", 0755).ok());
  Reconfigure(cluster, "host-2", "SetEnv HOME=" + home,
              absl::StrFormat("SetEnv HOME=%s PATH=%s/bin:/usr/local/bin:/usr/bin:/bin", home, home));
  Probe probe(cluster, 3);
  const CommandResult run = probe.Run(cluster.inventory());
  EXPECT_EQ(run.exit_code, kUnreachable);
  EXPECT_THAT(run.stderr_text,
              ContainsRegex("host-2: its architecture is sparc64, and this muster is built for [a-z0-9_]+"));
  EXPECT_THAT(run.stderr_text, HasSubstr("nothing was started"));
  EXPECT_FALSE(std::filesystem::exists(home + "/.muster")) << "something was sent to it";
  probe.ExpectNothingStarted();
}

TEST(ClusterFaults, OldLibraryIsNamedBeforeTheTrainerIsSent) {
  MusterCluster cluster(2);
  // An installation whose trainer asks for more than any host has. It is never sent, so it need not be one.
  const std::filesystem::path prefix = cluster.Path("installation");
  std::filesystem::create_directories(prefix / "bin");
  std::filesystem::create_directories(prefix / "lib/muster/trainer/bin");
  const std::filesystem::path binary = BuildPath("bin/muster");
  std::filesystem::copy_file(binary, prefix / "bin/muster");
  std::filesystem::create_symlink(binary.parent_path() / "muster-agent", prefix / "bin/muster-agent");
  std::ofstream(prefix / "lib/muster/trainer/bin/muster-trainer") << "not sent";
  std::ofstream(prefix / "lib/muster/trainer/required_glibc") << "99.0\n";
  cluster.set_binary(prefix / "bin/muster");
  const std::string job = cluster.Write(
      "job.yaml", "name: old\nmodel: mnist_softmax\nreplicas: {ps: {count: 1}, worker: {count: 1}}\n");
  const CommandResult run = cluster.Muster({"run", job, "-i", cluster.inventory()});
  EXPECT_EQ(run.exit_code, kUnreachable);
  EXPECT_THAT(run.stderr_text,
              ContainsRegex("host-1: it has glibc 2[.0-9]+, and the trainer needs glibc 99.0"));
  EXPECT_THAT(run.stderr_text, HasSubstr("nothing was started"));
  for (const char* host : {"host-1", "host-2"}) {
    EXPECT_THAT(TaskFoldersIn(cluster.hosts().HomeOf(host)), IsEmpty());
    EXPECT_THAT(run.stderr_text, Not(ContainsRegex("uploading [^\n]*trainer")));
  }
}

TEST(ClusterFaults, AHostWithoutGzipGetsTheAgentAsItIs) {
  MusterCluster cluster(1);
  const std::string bin = cluster.Path("bin");
  std::filesystem::create_directory(bin);
  for (const std::filesystem::path folder : {"/usr/bin", "/bin"}) {
    for (const auto& program : std::filesystem::directory_iterator(folder)) {
      const std::filesystem::path link = bin / program.path().filename();
      std::error_code is_there;
      if (link.filename() != "gzip") std::filesystem::create_symlink(program.path(), link, is_there);
    }
  }
  cluster.hosts().SetPath("host-1", bin);
  const CommandResult exec =
      cluster.Muster({"exec", "-i", cluster.inventory(), "--", "command -v gzip || echo none"});
  EXPECT_THAT(exec.stdout_text, HasSubstr("none"));
  const CommandResult check = cluster.Muster({"check", "-i", cluster.inventory()});
  EXPECT_EQ(check.exit_code, 0) << check.stderr_text;
}

class BadDisk : public ::testing::Test {
 protected:
  // Runs on two hosts, of which host-2 has the disk that the test has put there.
  void ExpectRefusal(const std::string& message) {
    const CommandResult run = probe_.Run(cluster_.inventory());
    EXPECT_EQ(run.exit_code, kUnreachable);
    EXPECT_THAT(run.stderr_text, ContainsRegex("host-2" + message));
    EXPECT_THAT(run.stderr_text, HasSubstr("nothing was started"));
    probe_.ExpectNothingStarted();
  }

  std::string home() { return cluster_.hosts().HomeOf("host-2"); }
  static uint64_t AgentBytes() { return std::filesystem::file_size(BuildPath("bin/muster-agent")); }
  std::string DataFolder() {
    const std::string folder = cluster_.Path("data");
    std::filesystem::create_directory(folder);
    std::ofstream(folder + "/large") << std::string(4 << 20, 'x');
    return folder;
  }

  MusterCluster cluster_{2};
  Probe probe_{cluster_, 2, "data: " + DataFolder() + "\n"};
};

#define SKIP_UNLESS(disk) \
  if (!(disk).mounted())  \
  GTEST_SKIP() << "cannot mount a tmpfs here (" << std::strerror(errno) << "): needs root"

TEST_F(BadDisk, TooFullForTheAgent) {
  const SmallDisk disk(home(), AgentBytes() / 2);
  SKIP_UNLESS(disk);
  ExpectRefusal(
      ": the agent could not be written to ~/.muster: [^\n]*No space left on device \\(make room there");
}

TEST_F(BadDisk, TooFullForTheData) {
  const SmallDisk disk(home(), AgentBytes() + (4 << 20));
  SKIP_UNLESS(disk);
  ExpectRefusal(".*data.*the disk is too full for this upload: it needs [0-9]+ bytes and [0-9]+ are free");
}

TEST_F(BadDisk, ReadOnly) {
  SmallDisk disk(home(), 1 << 20);
  SKIP_UNLESS(disk);
  ASSERT_TRUE(disk.MakeReadOnly());
  ExpectRefusal(": the agent could not be written to ~/.muster: .*Read-only file system");
}

TEST_F(BadDisk, ThatFillsUpKeepsNobodyFromStoppingTheJob) {
  const SmallDisk disk(home(), AgentBytes() + (8 << 20));
  SKIP_UNLESS(disk);
  const std::string job = cluster_.Write("fill.yaml",
                                         "name: fill\nprogram: [sh, -c, '[ $RANK = 0 ] || cat /dev/zero "
                                         "> full; sleep 600']\n"
                                         "replicas: {worker: {count: 2}}\n");
  Process run = cluster_.Start({"run", job, "-i", cluster_.inventory()}, "output");
  ASSERT_TRUE(Eventually([&] {
    const auto space = std::filesystem::space(home());
    return space.available == 0;
  }));
  run.Signal(SIGINT);
  EXPECT_EQ(run.Wait(Now() + std::chrono::seconds(30)).value_or(-1), 130) << cluster_.Text("output");
  EXPECT_THAT(JobProcesses(cluster_.hosts().folder()), ::testing::IsEmpty());
}

TEST_F(BadDisk, WithoutTheRightToRunPrograms) {
  const SmallDisk disk(home(), 2 * AgentBytes() + (16 << 20), MS_NOEXEC);
  SKIP_UNLESS(disk);
  ExpectRefusal(": the agent .* cannot be run.*noexec.*`dir:`");
}

TEST(ClusterFaults, AHostThatHasNoRoomForASecondChannelIsNamed) {
  MusterCluster cluster(2);
  Reconfigure(cluster, "host-2", "StrictModes no\n", "StrictModes no\nMaxSessions 1\n");
  const std::string data = cluster.Path("data");
  std::filesystem::create_directory(data);
  ASSERT_TRUE(WriteFileAtomically(data + "/words", "some\n").ok());
  Probe probe(cluster, 2, "data: " + data + "\n");
  const CommandResult run = probe.Run(cluster.inventory());
  EXPECT_EQ(run.exit_code, kUnreachable) << run.stderr_text;
  EXPECT_THAT(run.stderr_text, ContainsRegex("nothing was started: host-2 could not take the program and its "
                                             "data: host-2 .*: open a channel \\(sshd's MaxSessions"));
  probe.ExpectNothingStarted();
}

TEST(ClusterFaults, HostsThatDropNewConnectionsAreTriedAgain) {
  // One that has not logged in is all that each host allows; what comes beside it is dropped.
  MusterCluster cluster(2, {"MaxStartups 1:100:2"});
  std::vector<UniqueFd> occupied;
  for (const SshTarget& target : cluster.hosts().targets()) {
    occupied.push_back(BeginConnect(target.address, target.port));
    char greeting[4];
    pollfd event{.fd = occupied.back().get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&event, 1, 10'000), 1);
    ASSERT_EQ(::read(occupied.back().get(), greeting, 4), 4);  // sshd counts it from here on
    ASSERT_EQ(std::memcmp(greeting, "SSH-", 4), 0);
  }
  Probe probe(cluster, 2);
  Process run = cluster.Start({"run", cluster.Path("probe.yaml"), "-i", cluster.inventory()}, "output");
  Process check = cluster.Start({"check", "-i", cluster.inventory()}, "checked");
  const TimePoint deadline = Now() + std::chrono::seconds(30);
  for (const SshTarget& target : cluster.hosts().targets()) {
    while (cluster.hosts().Text(target.name + "/sshd.log").find("MaxStartups") == std::string::npos) {
      ASSERT_LT(Now(), deadline) << target.name << " dropped no connection\n" << cluster.Text("output");
      ::usleep(10'000);
    }
  }
  EXPECT_FALSE(probe.ran());
  occupied.clear();
  EXPECT_EQ(run.Wait(Now() + std::chrono::seconds(60)).value_or(-1), 0) << cluster.Text("output");
  EXPECT_TRUE(probe.ran());
  EXPECT_EQ(check.Wait(Now() + std::chrono::seconds(60)).value_or(-1), 0) << cluster.Text("checked");
}

}  // namespace
}  // namespace muster
