// A folder that is removed from under its daemon and its tasks: what runs on is found by its token, and
// nothing of the old daemon has a part in what is started in the new folder.
#include <gtest/gtest.h>

#include <filesystem>

#include "agent/agent_fixture.h"

namespace muster {
namespace {

agent::Request RestartedStart(const std::string& script) {
  agent::Request request = StartRequest("job", "worker:0", Shell(script));
  request.mutable_start_task()->set_restart(agent::RESTART_POLICY_ON_FAILURE);
  request.mutable_start_task()->set_max_restarts(2);
  return request;
}

TEST_F(AgentTest, WhatRanInAFolderThatIsGoneIsStoppedByItsTokenAndNotStartedAgain) {
  AgentClient first(root_);
  ASSERT_TRUE(first.Call(RestartedStart("exec sleep 1000")).ok());
  ASSERT_TRUE(first.Call(StartRequest("job", "worker:1", {"sleep", "1000"})).ok());
  const pid_t daemon = DaemonPid(root_);
  ASSERT_GT(daemon, 0);
  ASSERT_GT(std::filesystem::remove_all(root_), 0u);
  AgentClient later(root_);
  EXPECT_EQ(List("job")->tasks_size(), 0);
  EXPECT_EQ(CountTokens("job/"), 2) << "they run on";
  agent::Request stop = StopRequest("job");
  agent::StopTasksRequest::Target* const target = stop.mutable_stop_tasks()->add_targets();
  target->set_task("worker:0");
  target->set_generation(1);
  const auto stopped = later.Call(stop);
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  EXPECT_EQ(stopped->stop_tasks().processes_left(), 0u);
  EXPECT_EQ(CountTokens("job/"), 1) << "of the other, nobody said anything";
  EXPECT_TRUE(WaitForProcessEnd(daemon).ok()) << "it would start what it knows again";
  EXPECT_EQ(first.WaitForExit().value_or(-1), 69);

  agent::Request again = RestartedStart("exec sleep 1000");
  again.mutable_start_task()->set_generation(2);
  again.mutable_start_task()->set_minimum_incarnation(9);
  again.mutable_start_task()->set_restarts(1);
  const auto started = later.Call(again);
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(started->start_task().status().incarnation(), 9u);
  EXPECT_EQ(started->start_task().status().restarts(), 1u);
  // A late stop hits only what is not known.
  ASSERT_TRUE(later.Call(stop).ok());
  EXPECT_EQ(List("job")->tasks(0).state(), agent::TASK_STATE_RUNNING);
  EXPECT_EQ(List("job")->tasks(0).pid(), started->start_task().status().pid());
  // All of the job: also what no folder knows of.
  ASSERT_TRUE(later.Call(StopRequest("job", 100)).ok());
  EXPECT_EQ(CountTokens("job/"), 0);
}

// It is not where its daemon looks for it any more, which therefore ends as above.
TEST_F(AgentTest, AFolderThatIsMovedAwayIsGone) {
  AgentClient first(root_);
  ASSERT_TRUE(first.Call(RestartedStart("exec sleep 1000")).ok());
  const pid_t daemon = DaemonPid(root_);
  std::filesystem::rename(root_, root_.string() + ".old");
  AgentClient later(root_);
  EXPECT_EQ(List("job")->tasks_size(), 0);
  ASSERT_TRUE(later.Call(StopRequest("job", 100)).ok());
  EXPECT_EQ(CountTokens("job/"), 0);
  EXPECT_TRUE(WaitForProcessEnd(daemon).ok());
}

// Of a log that it has read before, in the folder that is gone.
TEST_F(AgentTest, WhoHasReadMoreThanALogHasGetsWhatTheLatestIncarnationPrinted) {
  AgentClient client(root_);
  EXPECT_EQ(RunToEnd(client, RestartedStart("echo $MUSTER_INCARNATION; [ $MUSTER_INCARNATION = 2 ]")).state(),
            agent::TASK_STATE_SUCCEEDED);
  agent::Request request;
  request.mutable_read_file()->set_job("job");
  request.mutable_read_file()->set_task("worker:0");
  request.mutable_read_file()->set_path("log");
  request.mutable_read_file()->set_offset(5000);
  const auto read = client.Call(request);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->read_file().offset(), 2u);
  EXPECT_EQ(read->read_file().data(), "2\n");
}

TEST_F(AgentTest, RestartsThatATaskHadElsewhereCount) {
  AgentClient client(root_);
  agent::Request start = RestartedStart("exit 3");
  start.mutable_start_task()->set_minimum_incarnation(9);
  start.mutable_start_task()->set_restarts(1);
  const agent::TaskStatus status = RunToEnd(client, start);
  EXPECT_EQ(status.incarnation(), 10u);
  EXPECT_EQ(status.restarts(), 2u);
  EXPECT_EQ(status.reason(), "exited with code 3; its 2 restarts are used up");
}

// A host that went down between the record of a start and its shim.
TEST_F(AgentTest, RestartsThatATaskHadElsewhereCountAlsoIfItWasNotStartedYet) {
  {
    AgentClient client(root_);
    agent::Request start = RestartedStart("exec sleep 1000");
    start.mutable_start_task()->set_minimum_incarnation(9);
    start.mutable_start_task()->set_restarts(1);
    ASSERT_TRUE(client.Call(start).ok());
  }
  const auto pid = static_cast<pid_t>(List("job")->tasks(0).pid());
  const pid_t shim = ReadProcessStat(pid)->parent;
  KillDaemon();
  ::kill(shim, SIGKILL);
  ASSERT_TRUE(WaitForProcessEnd(shim).ok());
  ASSERT_TRUE(std::filesystem::remove(root_ / "jobs/job/worker.0/.muster/9.run"));
  AgentClient client(root_);
  const auto running = client.WaitFor("job", "worker:0", [](const agent::TaskStatus& status) {
    return status.state() == agent::TASK_STATE_RUNNING;
  });
  ASSERT_TRUE(running.ok()) << running.status();
  EXPECT_EQ(running->incarnation(), 9u);
  EXPECT_EQ(running->restarts(), 1u);
}

// Whoever starts a task for the first time cannot know of more restarts than there can have been.
TEST_F(AgentTest, OfTheFirstIncarnationThereAreNoRestarts) {
  AgentClient client(root_);
  agent::Request start = RestartedStart("true");
  start.mutable_start_task()->set_restarts(7);
  EXPECT_EQ(RunToEnd(client, start).restarts(), 0u);
}

}  // namespace
}  // namespace muster
