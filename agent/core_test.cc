// The agent's pure parts: restart policy and names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/names.h"
#include "agent/restart_policy.h"
#include "base/file.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

agent::TaskState FinalState(agent::RestartPolicy policy, const TaskEnd& end) {
  const RestartDecision decision = RestartTracker(policy, -1).OnEnd(end, 0);
  return decision.restart ? agent::TASK_STATE_RESTARTING : decision.state;
}

TEST(RestartTracker, DecidesByPolicyAndHowTheTaskEnded) {
  const TaskEnd success{}, permanent{.exit_code = 127}, retryable{.exit_code = 128}, killed{.exit_code = 137},
      lost{.exit_code = 137, .lost = true};
  const auto again = agent::TASK_STATE_RESTARTING, succeeded = agent::TASK_STATE_SUCCEEDED,
             failed = agent::TASK_STATE_FAILED, gone = agent::TASK_STATE_LOST;
  struct Row {
    agent::RestartPolicy policy;
    agent::TaskState on_success, on_permanent, on_retryable, on_killed, on_lost;
  };
  const Row rows[] = {{agent::RESTART_POLICY_NEVER, succeeded, failed, failed, failed, gone},
                      {agent::RESTART_POLICY_ON_FAILURE, succeeded, again, again, again, again},
                      {agent::RESTART_POLICY_ALWAYS, again, again, again, again, again},
                      {agent::RESTART_POLICY_EXIT_CODE, succeeded, failed, again, again, again},
                      {static_cast<agent::RestartPolicy>(77), succeeded, failed, failed, failed, gone}};
  for (const Row& row : rows) {
    EXPECT_EQ(FinalState(row.policy, success), row.on_success) << row.policy;
    EXPECT_EQ(FinalState(row.policy, permanent), row.on_permanent) << row.policy;
    EXPECT_EQ(FinalState(row.policy, retryable), row.on_retryable) << row.policy;
    EXPECT_EQ(FinalState(row.policy, killed), row.on_killed) << row.policy;
    EXPECT_EQ(FinalState(row.policy, lost), row.on_lost) << row.policy;
  }
}

TEST(RestartTracker, CountsExactly) {
  RestartTracker tracker(agent::RESTART_POLICY_ON_FAILURE, 2);
  EXPECT_TRUE(tracker.OnEnd({.exit_code = 1}, 0).restart);
  EXPECT_TRUE(tracker.OnEnd({.exit_code = 1}, 1).restart);
  const RestartDecision last = tracker.OnEnd({.exit_code = 1}, 2);
  EXPECT_FALSE(last.restart);
  EXPECT_TRUE(last.used_up);
  EXPECT_EQ(last.state, agent::TASK_STATE_FAILED);
  EXPECT_FALSE(RestartTracker(agent::RESTART_POLICY_ON_FAILURE, 0).OnEnd({.exit_code = 1}, 0).restart);
}

TEST(RestartTracker, BacksOffToTenSecondsAndStartsOverAfterALongRun) {
  RestartTracker tracker(agent::RESTART_POLICY_ALWAYS, -1);
  for (const int expected : {100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000}) {
    EXPECT_EQ(tracker.OnEnd({.exit_code = 1, .ran_for = seconds(59)}, 5).delay, milliseconds(expected));
  }
  EXPECT_EQ(tracker.OnEnd({.exit_code = 1, .ran_for = seconds(60)}, 5).delay, milliseconds(100));
  EXPECT_EQ(tracker.OnEnd({.exit_code = 1}, 5).delay, milliseconds(200));
}

TEST(Names, OnlyThoseThatAreSafeAsFolders) {
  for (const char* job : {"mnist", "mnist-2026.01.31_x", "7"}) EXPECT_TRUE(ValidateJobName(job).ok()) << job;
  for (const std::string job : {"", ".", "..", "../x", "a/b", "-rf", ".hidden", "a b", "ü", "a\nb"}) {
    EXPECT_FALSE(ValidateJobName(job).ok()) << job;
  }
  EXPECT_FALSE(ValidateJobName(std::string("a\0b", 3)).ok());
  EXPECT_FALSE(ValidateJobName(std::string(101, 'a')).ok());
  for (const char* task : {"worker:0", "ps:12", "chief", "my-role_2:3"})
    EXPECT_TRUE(ValidateTaskName(task).ok()) << task;
  for (const char* task :
       {"", ":0", "worker:", "worker:x", "worker:-1", "worker.0", "..", "a/b:0", "a:0:1", "a:0/.."}) {
    EXPECT_FALSE(ValidateTaskName(task).ok()) << task;
  }
}

TEST(Names, TaskAndFolderAreOneToOne) {
  EXPECT_EQ(TaskFolder("worker:0"), "worker.0");
  for (const std::string task : {"worker:0", "chief", "a-b_c:17"})
    EXPECT_EQ(TaskOfFolder(TaskFolder(task)), task);
  for (const char* folder : {"worker:0", ".muster", "a.b", "..", "a.0.tmp"}) {
    EXPECT_EQ(TaskOfFolder(folder), std::nullopt) << folder;
  }
}

TEST(Names, RelativePathsStayInside) {
  for (const char* path : {"cluster.json", "tls/key.pem", "..a"})
    EXPECT_TRUE(ValidateRelativePath(path).ok()) << path;
  for (const char* path : {"", "/etc/passwd", "..", "a/../../b", "a/..", "./log", "dir/"}) {
    EXPECT_FALSE(ValidateRelativePath(path).ok()) << path;
  }
}

TEST(Expand, ReplacesOnlyWhatItKnows) {
  const std::string sha(64, 'a');
  EXPECT_EQ(Expand("--dir={task_dir}/x:{store:" + sha + "}/bin", "/t", "/s"),
            "--dir=/t/x:/s/" + sha + "/bin");
  for (const std::string text :
       {R"({"cluster": {"ps": []}, "task": {"index": 0}})", "{store:abc}", "{task_dir", "{{", "{"}) {
    EXPECT_EQ(Expand(text, "/t", "/s"), text);
  }
  EXPECT_EQ(Expand("{store:" + sha, "/t", "/s"), "{store:" + sha);
}

}  // namespace
}  // namespace muster
