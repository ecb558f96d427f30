// muster from inventory to result, on hosts behind real sshds.
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/job_processes.h"
#include "tests/support/muster_cluster.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

constexpr char kJob[] = R"(
name: mnist
model: mnist_softmax
update: {mode: sync}
replicas:
  ps: {count: 2}
  worker: {count: 3, restart: on_failure, max_restarts: 2}
train: {steps: 300, batch_size: 100, optimizer: sgd, learning_rate: 0.5}
)";

TEST(Cluster, OneCommandTrainsAndASecondOneUploadsNothing) {
  MusterCluster cluster(4);
  const std::string job = cluster.Write("job.yaml", kJob);
  const CommandResult first = cluster.Muster({"run", job, "-i", cluster.inventory()});
  ASSERT_EQ(first.exit_code, 0) << first.stderr_text;
  EXPECT_THAT(first.stdout_text, HasSubstr("\nMNIST accuracy: 0.9"));
  EXPECT_THAT(first.stdout_text, HasSubstr("[worker:0@host-3] step 300: loss"));
  EXPECT_THAT(first.stderr_text, HasSubstr("uploading trainer"));

  const CommandResult second = cluster.Muster({"run", job, "-i", cluster.inventory(), "-q", "-o", "json"});
  ASSERT_EQ(second.exit_code, 0) << second.stderr_text;
  EXPECT_THAT(second.stderr_text, HasSubstr("uploaded 0 B"));
  const auto result = nlohmann::json::parse(second.stdout_text);
  EXPECT_EQ(result["steps"], 300);
  EXPECT_EQ(result["platform"], "ssh");
  EXPECT_EQ(result["pushes"]["applied"], 900);

  const CommandResult list = cluster.Muster({"list", "-o", "json"});
  EXPECT_EQ(nlohmann::json::parse(list.stdout_text).size(), 2u);
  for (const std::string file : {"result.json", "metrics.jsonl", "model.safetensors", "events"}) {
    const std::string id = nlohmann::json::parse(list.stdout_text)[0]["job"];
    EXPECT_TRUE(std::filesystem::exists(cluster.home() / "jobs" / id / file)) << file;
  }
}

// host-2 through host-1, host-3 through both; each of them has a task.
TEST(Cluster, HostsAreReachedThroughJumpHosts) {
  MusterCluster cluster(3);
  const std::string inventory =
      cluster.Write("inventory.yaml", absl::StrReplaceAll(cluster.hosts().Text("inventory.yaml"),
                                                          {{"defaults: {", "defaults: {jump: host-1, "},
                                                           {"host-3: {", "host-3: {jump: host-2, "}}));
  const CommandResult exec = cluster.Muster({"exec", "-i", inventory, "--", "echo", "here"});
  ASSERT_EQ(exec.exit_code, 0) << exec.stderr_text;
  const auto logins = [&](const std::string& host) {
    const std::vector<std::string> parts =
        absl::StrSplit(cluster.hosts().Text(host + "/sshd.log"), "Accepted publickey");
    return parts.size() - 1;
  };
  EXPECT_EQ(logins("host-1"), 2u);  // one for itself, one for all behind
  EXPECT_EQ(logins("host-2"), 2u);
  EXPECT_EQ(logins("host-3"), 1u);
  const CommandResult run = cluster.Muster({"run", cluster.Write("job.yaml", kJob), "-i", inventory});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  EXPECT_THAT(run.stdout_text, HasSubstr("\nMNIST accuracy: 0.9"));
  for (const std::string host : {"host-1", "host-2", "host-3"}) {
    EXPECT_THAT(run.stdout_text, HasSubstr("@" + host + "]"));
  }
}

// There is no ssh-agent that would have it.
TEST(Cluster, AJobWhoseKeyWasNamedFromAnotherFolderIsInReach) {
  MusterCluster cluster(2);
  const std::string key = cluster.hosts().folder() + "/id_ed25519";
  cluster.Write("inventory.yaml", absl::StrReplaceAll(cluster.hosts().Text("inventory.yaml"),
                                                      {{"\"" + key + "\"", "keys/train"},
                                                       {"host-2: {", "host-2: {jump: host-1, "}}));
  ASSERT_TRUE(MakeDirectories(cluster.Path("keys")).ok());
  std::filesystem::rename(key, cluster.Path("keys/train"));
  cluster.Write("job.yaml", "name: away\nprogram: [sleep, \"600\"]\nreplicas: {worker: {count: 2}}\n");
  const CommandResult run = cluster.Shell("cd " + cluster.Path("") + " && muster run -d job.yaml");
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  const CommandResult show = cluster.Shell("cd / && muster show away");
  EXPECT_EQ(show.exit_code, 0) << show.stderr_text;
  const CommandResult stop = cluster.Shell("cd / && muster stop away");
  EXPECT_EQ(stop.exit_code, 0) << stop.stderr_text;
}

TEST(Cluster, TheInventoryFlagGoesBeforeTheVariable) {
  MusterCluster cluster(1);
  const std::string variable = "MUSTER_INVENTORY=" + cluster.inventory();
  EXPECT_THAT(cluster.Shell("export " + variable + "; muster check").stdout_text, HasSubstr("host-1"));
  const std::string local = cluster.Write("local.yaml", "hosts:\n  here: {local: true}\n");
  const std::string job =
      cluster.Write("job.yaml", "name: flag\nprogram: [\"true\"]\nreplicas: {worker: {count: 1}}\n");
  for (const std::string& command : {std::string("check"), "plan " + job, "run " + job}) {
    const CommandResult result = cluster.Shell("export " + variable + "; muster " + command + " -i " + local);
    EXPECT_EQ(result.exit_code, 0) << result.stderr_text;
    EXPECT_THAT(result.stdout_text + result.stderr_text, HasSubstr("here")) << command;
    EXPECT_THAT(result.stdout_text + result.stderr_text, testing::Not(HasSubstr("host-1"))) << command;
  }
}

TEST(Cluster, WhenItsHostsAreGoneSoIsAllThatRanOnThem) {
  std::string folder;
  {
    MusterCluster cluster(2);
    folder = cluster.hosts().folder();
    ASSERT_EQ(cluster.Muster({"check", "-i", cluster.inventory()}).exit_code, 0);
    ASSERT_FALSE(AgentProcesses(folder, "daemon").empty());
  }
  EXPECT_THAT(AgentProcesses(folder, "daemon"), testing::IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(folder));
}

}  // namespace
}  // namespace muster
