// For tests of the agent: a root of its own with the real binary.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/client_testing.h"
#include "agent/names.h"
#include "agent/proc_scan.h"
#include "base/file.h"

namespace muster {

inline std::string Message(const absl::Status& status) { return std::string(status.message()); }

inline std::vector<std::string> Shell(const std::string& script) { return {"sh", "-c", script}; }

// A root whose daemon and tasks are gone when the test is.
class AgentTest : public testing::Test {
 protected:
  AgentTest() : root_(std::filesystem::canonical(folder_.path()) / "root") {}

  void TearDown() override {
    std::set<std::string> jobs;
    const absl::StatusOr<agent::ListTasksResponse> tasks = List();
    ASSERT_TRUE(tasks.ok()) << tasks.status();
    for (const agent::TaskStatus& task : tasks->tasks()) jobs.insert(task.job());
    AgentClient client(root_);
    for (const std::string& job : jobs) {
      const auto stopped = client.Call(StopRequest(job, 1000));
      EXPECT_TRUE(stopped.ok() && stopped->stop_tasks().processes_left() == 0) << stopped.status();
    }
    const pid_t daemon = DaemonPid(root_);
    ASSERT_GT(daemon, 0);
    EXPECT_EQ(client.Close(), 0);
    EXPECT_TRUE(WaitForProcessEnd(daemon).ok()) << "the daemon stays although nothing is left to do";
    EXPECT_EQ(CountTokens(""), 0);
    // Where a sanitizer's report, a failed check or a shim's last words would be.
    EXPECT_EQ(ReadFile(root_ / "daemon.log").value_or("no log"), "");
  }

  absl::StatusOr<agent::ListTasksResponse> List(const std::string& job = "") {
    AgentClient client(root_);
    agent::Request request;
    request.mutable_list_tasks()->set_job(job);
    MUSTER_ASSIGN_OR_RETURN(const agent::Response response, client.Call(request));
    return response.list_tasks();
  }

  int CountTokens(const std::string& job) const {
    return CountByToken([&](std::string_view token) {
             return token.find("/" + RootId(root_) + "/") != std::string_view::npos && token.starts_with(job);
           })
        .value();
  }

  void KillDaemon() {
    const pid_t daemon = DaemonPid(root_);
    ASSERT_GT(daemon, 0);
    ::kill(daemon, SIGKILL);
    ASSERT_TRUE(WaitForProcessEnd(daemon).ok());
  }

  agent::TaskStatus RunToEnd(AgentClient& client, const std::vector<std::string>& argv,
                             const std::string& task = "worker:0") {
    return RunToEnd(client, NewStart(task, argv));
  }
  agent::TaskStatus RunToEnd(AgentClient& client, const agent::Request& start) {
    const auto started = client.Call(start);
    EXPECT_TRUE(started.ok()) << started.status();
    const auto status = client.WaitForEnd("job", start.start_task().task());
    EXPECT_TRUE(status.ok()) << status.status();
    return status.value_or(agent::TaskStatus());
  }

  /// A task that fails, by a daemon that is killed before it has started it again.
  void FailWithoutNextStart(int max_restarts) {
    agent::Request request = StartRequest("job", "worker:0", {"false"});
    request.mutable_start_task()->set_restart(agent::RESTART_POLICY_ON_FAILURE);
    request.mutable_start_task()->set_max_restarts(max_restarts);
    AgentClient client(root_);
    ASSERT_TRUE(client.Call(request).ok());
    const auto failed = client.WaitFor("job", "worker:0", [](const agent::TaskStatus& status) {
      return status.state() == agent::TASK_STATE_RESTARTING;
    });
    ASSERT_TRUE(failed.ok()) << failed.status();
    KillDaemon();
  }

  /// A start that is not a repetition of an earlier one.
  agent::Request NewStart(const std::string& task, const std::vector<std::string>& argv) {
    agent::Request request = StartRequest("job", task, argv);
    request.mutable_start_task()->set_generation(++generation_);
    return request;
  }

  TemporaryDirectory folder_;
  const std::filesystem::path root_;
  uint64_t generation_ = 0;
};

}  // namespace muster
