#include "cluster/cluster_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TaskInCluster Resolve(const ClusterFlags& flags) {
  auto result = ResolveTask(flags);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *result : TaskInCluster{};
}

std::string Error(const ClusterFlags& flags) {
  const auto result = ResolveTask(flags);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(result.status().message());
}

TEST(ResolveTask, TheFourFlagsOfTensorFlow) {
  const auto [task, cluster] = Resolve({.job_name = "worker",
                                        .task_index = 1,
                                        .ps_hosts = "ps0.example.com:2222,ps1.example.com:2222",
                                        .worker_hosts = "worker0.example.com:2222,worker1.example.com:2222"});
  EXPECT_EQ(task, (TaskId{Role::kWorker, 1}));
  EXPECT_THAT(cluster.ps, ElementsAre("ps0.example.com:2222", "ps1.example.com:2222"));
  EXPECT_THAT(cluster.workers, ElementsAre("worker0.example.com:2222", "worker1.example.com:2222"));
  EXPECT_FALSE(IsChief(cluster, task));
  EXPECT_TRUE(IsChief(cluster, {Role::kWorker, 0}));
}

TEST(ResolveTask, ClusterSpecOfDistTest) {
  const auto [task, cluster] =
      Resolve({.job_name = "ps", .task_index = 0, .cluster_spec = "worker|a:1;b:2,ps|c:3,master|d:4"});
  EXPECT_EQ(task, (TaskId{Role::kPs, 0}));
  EXPECT_EQ(cluster, (ClusterSpec{.ps = {"c:3"}, .workers = {"a:1", "b:2"}, .chief = {"d:4"}}));
}

TEST(ResolveTask, TfConfigWithMasterOrChief) {
  for (const std::string name : {"master", "chief"}) {
    const auto [task, cluster] = Resolve({.tf_config = R"({"cluster": {")" + name +
                                                       R"(": ["m:1"], "worker": ["w:1"], "ps": ["p:1"]},
                          "task": {"type": ")" + name + R"(", "index": 0}, "environment": "cloud"})"});
    EXPECT_EQ(task, (TaskId{Role::kChief, 0}));
    EXPECT_EQ(RankOf(cluster, task), 0);
    EXPECT_EQ(RankOf(cluster, {Role::kWorker, 0}), 1);
    EXPECT_EQ(TaskOfRank(cluster, 1), (TaskId{Role::kWorker, 0}));
    EXPECT_FALSE(IsChief(cluster, {Role::kWorker, 0}));
  }
}

TEST(ResolveTask, FlagsWinOverTfConfig) {
  const std::string tf_config = R"({"cluster": {"worker": ["w:1", "w:2"], "ps": ["p:1"]},
                                    "task": {"type": "worker", "index": "1"}})";
  EXPECT_EQ(Resolve({.tf_config = tf_config}).task, (TaskId{Role::kWorker, 1}));
  EXPECT_EQ(Resolve({.task_index = 0, .tf_config = tf_config}).task, (TaskId{Role::kWorker, 0}));
  EXPECT_EQ(Resolve({.job_name = "ps", .task_index = 0, .tf_config = tf_config}).task,
            (TaskId{Role::kPs, 0}));
  EXPECT_THAT(Resolve({.worker_hosts = "x:1,x:2", .tf_config = tf_config}).cluster.workers,
              ElementsAre("x:1", "x:2"));
}

TEST(ResolveTask, EverySpellingComesBackThroughItsOwnOutput) {
  const ClusterSpec with_chief{.ps = {"p:1"}, .workers = {"w:1", "[::1]:7"}, .chief = {"c:1"}};
  const ClusterSpec without{.ps = {"p:1", "p:2"}, .workers = {"w:1"}};
  for (const ClusterSpec& cluster : {with_chief, without}) {
    const TaskId task{Role::kPs, 0};
    EXPECT_EQ(Resolve({.tf_config = ToTfConfig(cluster, task)}).cluster, cluster);
    ClusterFlags flags;
    for (const std::string& flag : ToFlags(cluster, task)) {
      const std::string name = flag.substr(2, flag.find('=') - 2), value = flag.substr(flag.find('=') + 1);
      if (name == "job_name") flags.job_name = value;
      if (name == "task_index") flags.task_index = std::stoi(value);
      if (name == "ps_hosts") flags.ps_hosts = value;
      if (name == "worker_hosts") flags.worker_hosts = value;
      if (name == "cluster_spec") flags.cluster_spec = value;
    }
    EXPECT_EQ(Resolve(flags).cluster, cluster);
    EXPECT_EQ(Resolve(flags).task, task);
  }
}

TEST(ResolveTask, BadInputNamesItsPlace) {
  EXPECT_THAT(Error({}), HasSubstr("no workers"));
  EXPECT_THAT(Error({.worker_hosts = "a:1"}), HasSubstr("--job_name"));
  EXPECT_THAT(Error({.job_name = "wroker", .worker_hosts = "a:1"}), HasSubstr("--job_name: 'wroker'"));
  EXPECT_THAT(Error({.job_name = "worker", .task_index = 1, .worker_hosts = "a:1"}),
              HasSubstr("worker:1 is not in its cluster, which has 1 worker tasks"));
  EXPECT_THAT(Error({.job_name = "worker", .task_index = -1, .worker_hosts = "a:1"}), HasSubstr("worker:-1"));
  EXPECT_THAT(Error({.job_name = "ps", .ps_hosts = "a", .worker_hosts = "b:1"}),
              HasSubstr("--ps_hosts: 'a'"));
  EXPECT_THAT(Error({.job_name = "ps", .ps_hosts = "a:70000", .worker_hosts = "b:1"}), HasSubstr("1-65535"));
  // 2^32 + 80 would be port 80 if it wrapped.
  for (const std::string port : {"4294967376", "-1", "0", "+80", " 80", "80 ", "", "8x"}) {
    EXPECT_THAT(Error({.job_name = "ps", .ps_hosts = "a:" + port, .worker_hosts = "b:1"}),
                HasSubstr("'a:" + port + "' has no port of 1-65535"));
  }
  EXPECT_THAT(Error({.job_name = "ps", .ps_hosts = "::1:80", .worker_hosts = "b:1"}), HasSubstr("brackets"));
  EXPECT_THAT(Error({.job_name = "ps", .ps_hosts = "a:1", .worker_hosts = "a:1"}),
              HasSubstr("ps:0 and worker:0 have the same address a:1"));
  EXPECT_THAT(Error({.job_name = "ps", .worker_hosts = "a:1", .cluster_spec = "worker|a:1"}),
              HasSubstr("one of them"));
  EXPECT_THAT(Error({.job_name = "ps", .cluster_spec = "worker:a:1"}), HasSubstr("--cluster_spec"));
  EXPECT_THAT(Error({.tf_config = "{"}), HasSubstr("TF_CONFIG is not a JSON object"));
  EXPECT_THAT(Error({.tf_config = R"({"cluster": {"worker": "a:1"}})"}),
              HasSubstr("cluster.worker is not a list"));
  EXPECT_THAT(Error({.tf_config = R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator"}})"}),
              HasSubstr("task.type: 'evaluator'"));
}

TEST(ResolveTask, StandingServersHaveNoWorkers) {
  const TaskInCluster server =
      Resolve({.job_name = "ps", .task_index = 1, .ps_hosts = "a:1,b:1", .is_standing = true});
  EXPECT_EQ(server.task, (TaskId{Role::kPs, 1}));
  EXPECT_THAT(server.cluster.ps, ElementsAre("a:1", "b:1"));
  EXPECT_EQ(server.cluster.rank_count(), 0);
  EXPECT_THAT(Error({.job_name = "ps", .ps_hosts = "a:1", .worker_hosts = "b:1", .is_standing = true}),
              HasSubstr("leave --worker_hosts out"));
  EXPECT_THAT(Error({.job_name = "ps", .is_standing = true}), HasSubstr("Give --ps_hosts"));
  EXPECT_THAT(Error({.job_name = "worker", .ps_hosts = "a:1", .is_standing = true}),
              HasSubstr("--standing is for parameter servers, this is a worker"));
}

TEST(ResolveTask, AnIndexThatIsNoneIsRefusedWithTheNumber) {
  // 2^32 would be worker:0 and 2^64 + 1 worker:1 if they wrapped.
  for (const std::string index : {"4294967296", "\"4294967296\"", "18446744073709551615", "-4294967296", "-1",
                                  "\"-1\"", "1.0", "\"\"", "\"x\"", "null", "true", "[0]"}) {
    EXPECT_THAT(Error({.tf_config = R"({"cluster": {"worker": ["w:1", "w:2"], "ps": ["p:1"]},
                                        "task": {"type": "worker", "index": )" +
                                    index + "}}"}),
                HasSubstr("TF_CONFIG: task.index is " + index + ", not a whole number from 0"));
  }
  EXPECT_THAT(Error({.tf_config = R"({"cluster": {"worker": ["w:1"]},
                                      "task": {"type": "worker", "index": 18446744073709551617}})"}),
              HasSubstr("TF_CONFIG: task.index is 1.8446744073709552e+19, not a whole number"));
}

}  // namespace
}  // namespace muster
