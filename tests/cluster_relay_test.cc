// Contents that hosts pass on to each other, on hosts of tests/cluster/loopback with networks of their own.
#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <future>
#include <regex>
#include <vector>

#include "base/gzip.h"
#include "base/random.h"
#include "tests/support/checkout.h"
#include "tests/support/muster_cluster.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Not;

class ClusterRelay : public testing::Test {
 protected:
  void SetUp() override {
    if (!LoopbackCluster::CanMakeNamespaces()) GTEST_SKIP() << "needs network namespaces";
    std::filesystem::create_directory(cluster_.Path("data"));
    std::string bytes(kDataBytes, '\0');
    RandomStream random(RandomSeed());
    for (char& c : bytes) c = static_cast<char>(random.Next());
    std::ofstream(cluster_.Path("data/bytes")) << bytes;
  }

  // Ended, or soon: each of them ends with its launcher.
  void TearDown() override {
    const TimePoint deadline = Now() + std::chrono::seconds(30);
    while (CountRelays() > 0 && Now() < deadline) ::usleep(10'000);
    EXPECT_EQ(CountRelays(), 0);
  }

  int CountRelays() { return static_cast<int>(Agents("serve").size() + Agents("fetch").size()); }

  // Of this cluster, with that command.
  std::vector<pid_t> Agents(const std::string& command) {
    const std::string word = '\0' + command + '\0';
    std::vector<pid_t> pids;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string line = ReadFile(entry.path() / "cmdline").value_or("");
      if (line.find(word) == std::string::npos || line.find(cluster_.hosts().folder()) == std::string::npos) {
        continue;
      }
      pids.push_back(std::stoi(entry.path().filename()));
    }
    return pids;
  }

  // Each worker says what it has got.
  CommandResult Run(int workers) {
    const std::string job = cluster_.Write(
        "job.yaml", absl::StrFormat("name: job\nprogram: [sh, -c, 'wc -c < $MUSTER_DATA/bytes']\ndata: %s\n"
                                    "replicas: {worker: {count: %d}}\n",
                                    cluster_.Path("data"), workers));
    CommandResult result = cluster_.Muster({"run", job, "-i", cluster_.inventory()});
    size_t said = 0;
    for (size_t at = 0; (at = result.stdout_text.find(std::to_string(kDataBytes), at)) != std::string::npos;
         ++at) {
      ++said;
    }
    EXPECT_EQ(said, static_cast<size_t>(workers)) << result.stdout_text;
    return result;
  }

  CommandResult RunNothing() {
    const std::string job = cluster_.Write(
        "nothing.yaml", "name: nothing\nprogram: [\"true\"]\nreplicas: {worker: {count: 6}}\n");
    return cluster_.Muster({"run", job, "-i", cluster_.inventory()});
  }

  // Hosts behind links of that rate, whose servers stop when it is time.
  CommandResult WithServersStopped(uint64_t bits_per_second, const std::function<CommandResult()>& command,
                                   const std::function<bool()>& is_time) {
    for (const std::string host : {"host-3", "host-4", "host-5", "host-6"}) {
      cluster_.hosts().Slow(host, bits_per_second);
    }
    std::future<CommandResult> run = std::async(std::launch::async, command);
    std::vector<pid_t> stopped;
    while (stopped.empty() && run.wait_for(std::chrono::milliseconds(5)) == std::future_status::timeout) {
      if (is_time()) stopped = Agents("serve");
      for (const pid_t pid : stopped) ::kill(pid, SIGSTOP);
    }
    CommandResult result = run.get();
    for (const pid_t pid : stopped) ::kill(pid, SIGCONT);
    EXPECT_FALSE(stopped.empty());
    return result;
  }

  // From now on no host reaches another one.
  void Part() {
    for (const SshTarget& host : cluster_.hosts().targets()) {
      const std::string network = cluster_.hosts().Text(host.name + "/namespace");
      for (const SshTarget& other : cluster_.hosts().targets()) {
        if (other.name == host.name) continue;
        const auto result = RunCommand({.argv = {"ip", "-n", network.substr(0, network.find('\n')), "route",
                                                 "add", "prohibit", other.address + "/32"}},
                                       Now() + std::chrono::seconds(10));
        ASSERT_TRUE(result.ok() && result->exit_code == 0) << result->stderr_text;
      }
    }
  }

  static constexpr size_t kDataBytes = 12'000'007;
  MusterCluster cluster_{6, {}, LoopbackCluster::Network::kNamespaces};
};

// Who says to have sent or got something, of all hosts.
int CountLines(const std::string& text, const std::string& pattern) {
  int count = 0;
  for (const auto line : absl::StrSplit(text, '\n')) {
    count += std::regex_match(std::string(line), std::regex(pattern));
  }
  return count;
}

TEST_F(ClusterRelay, TheFirstHostsPassItOn) {
  const CommandResult result = Run(6);
  EXPECT_EQ(result.exit_code, 0) << result.stderr_text;
  // Two, and one more for each ten seconds that a machine under load may need; the agent likewise.
  for (const std::string content : {"the agent", "data"}) {
    const int uploads = CountLines(result.stderr_text, "host-.: uploading " + content + ", .*");
    EXPECT_THAT(uploads, AllOf(Ge(2), Le(3))) << content << "\n" << result.stderr_text;
    EXPECT_EQ(CountLines(result.stderr_text, "host-.: fetching " + content + ", .* from host-."), 6 - uploads)
        << result.stderr_text;
  }
  EXPECT_THAT(result.stderr_text, ContainsRegex("uploaded [0-9]+ MB; hosts got [0-9]+ MB from each other"));
}

// One attempt to connect has ten seconds, and the first start fifteen; the agent comes before.
TEST_F(ClusterRelay, AnAgentMayComeSlowly) {
  constexpr uint64_t kSeconds = 20;
  const auto agent = ReadFile(BuildPath("bin/muster-agent"));
  ASSERT_TRUE(agent.ok()) << agent.status();
  cluster_.hosts().Slow("host-1", Gzip(*agent).size() * 8 / kSeconds);
  const std::string job =
      cluster_.Write("slow.yaml", "name: slow\nprogram: [\"true\"]\nreplicas: {worker: {count: 1}}\n");
  const CommandResult result = cluster_.Muster({"run", job, "-i", cluster_.inventory()});
  EXPECT_EQ(result.exit_code, 0) << result.stderr_text;
  cluster_.hosts().Join("host-1");
}

TEST_F(ClusterRelay, AHostThatComesLaterGetsItFromOneThatHasIt) {
  EXPECT_EQ(Run(3).exit_code, 0);
  const CommandResult result = Run(4);
  EXPECT_EQ(result.exit_code, 0) << result.stderr_text;
  // Unless it asks before the others have said that they have it.
  EXPECT_THAT(result.stderr_text,
              ContainsRegex("host-4: (fetching data, 12 MB, from host-[1-3]|uploading data, 12 MB)"));
  EXPECT_THAT(result.stderr_text, Not(ContainsRegex("host-[123]: (fetching|uploading) data")));
}

TEST_F(ClusterRelay, OneThatPassesNothingOnAnyMoreIsGivenUp) {
  ASSERT_EQ(RunNothing().exit_code, 0);  // all have the agent
  // So that it is found in the middle of it, or at its beginning.
  const CommandResult result = WithServersStopped(
      50'000'000, [this] { return Run(6); }, [this] { return !Agents("fetch").empty(); });
  EXPECT_EQ(result.exit_code, 0) << result.stderr_text;
  EXPECT_THAT(result.stderr_text,
              ContainsRegex("could not get data from host-[1-6].*(no byte has moved|took too long)"));
}

TEST_F(ClusterRelay, OneThatPassesTheAgentOnNoMoreIsGivenUp) {
  const CommandResult result = WithServersStopped(
      20'000'000, [this] { return RunNothing(); }, [] { return true; });
  EXPECT_EQ(result.exit_code, 0) << result.stderr_text;
}

TEST_F(ClusterRelay, WhereHostsDoNotReachEachOtherTheLauncherSendsToAll) {
  Part();
  const CommandResult result = Run(6);
  EXPECT_EQ(result.exit_code, 0) << result.stderr_text;
  EXPECT_THAT(result.stderr_text, HasSubstr("could not get the agent from host-"));
  for (const std::string content : {"the agent", "data"}) {
    EXPECT_EQ(CountLines(result.stderr_text, "host-.: uploading " + content + ", .*"), 6)
        << result.stderr_text;
  }
  EXPECT_THAT(result.stderr_text, Not(HasSubstr("from each other")));
}

}  // namespace
}  // namespace muster
