// Which starts count and which come too late, and what a stop ends: a task's whole tree, and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "agent/agent_fixture.h"
#include "base/process.h"

namespace muster {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST_F(AgentTest, StopEndsTheWholeTreeAndNothingElse) {
  AgentClient client(root_);
  ASSERT_TRUE(client.Call(StartRequest("job2", "worker:0", {"sleep", "1000"})).ok());
  ASSERT_TRUE(client.Call(StartRequest("job", "worker:1", {"sleep", "1000"})).ok());
  // Ignores TERM itself, has a grandchild that does, and one that has left session and parents and forgotten
  // its token.
  ASSERT_TRUE(client
                  .Call(StartRequest("job", "worker:0",
                                     Shell("trap '' TERM; (sleep 1000 & sleep 1000) & "
                                           "setsid sh -c 'env -i setsid sleep 1001 & setsid sleep 1002 &'; "
                                           "echo ready; while :; do sleep 1000; done")))
                  .ok());
  ASSERT_TRUE(
      client.Follow("job", "worker:0", 0, [](const std::string& log) { return log == "ready\n"; }).ok());
  const agent::TaskStatus before = List("job")->tasks(0);
  const pid_t shim = ReadProcessStat(static_cast<pid_t>(before.pid()))->parent;
  std::vector<pid_t> family = {shim};
  for (size_t i = 0; i < family.size(); ++i) {
    const auto children = ChildrenOf(family[i]);
    ASSERT_TRUE(children.ok()) << children.status();
    family.insert(family.end(), children->begin(), children->end());
  }
  ASSERT_GE(family.size(), 6u);
  const agent::TaskStatus other = List("job2")->tasks(0);

  const auto stopped = client.Call(StopRequest("job", 100));
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  EXPECT_EQ(stopped->stop_tasks().processes_left(), 0u);
  EXPECT_EQ(stopped->stop_tasks().tasks(0).exit_code(), 137);
  EXPECT_TRUE(stopped->stop_tasks().tasks(0).stopped());
  EXPECT_EQ(stopped->stop_tasks().tasks(1).exit_code(), 143);
  EXPECT_EQ(CountTokens("job/"), 0);
  for (const pid_t pid : family) EXPECT_FALSE(ReadProcessStat(pid).ok()) << pid;
  EXPECT_EQ(List("job2")->tasks(0).pid(), other.pid());
  EXPECT_EQ(List("job2")->tasks(0).state(), agent::TASK_STATE_RUNNING);
}

TEST_F(AgentTest, WhatATaskLeavesBehindEndsWithIt) {
  AgentClient client(root_);
  const agent::TaskStatus status =
      RunToEnd(client, Shell("setsid sh -c 'trap \"\" TERM; sleep 1000 & sleep 1000' & sleep 1000 & exit 3"));
  EXPECT_EQ(status.exit_code(), 3);
  EXPECT_EQ(CountTokens("job"), 0);
}

// A host that shuts down sends it to all processes, and when it is back the task goes on.
TEST_F(AgentTest, ATermOfSomebodyElseIsNoStop) {
  for (const std::string code : {"0", "7"}) {
    const std::string name = "worker:" + code;
    AgentClient client(root_);
    agent::Request request = StartRequest("job", name,
                                          Shell("[ $MUSTER_INCARNATION = 1 ] || exit 0; trap 'exit " + code +
                                                "' TERM; echo ready; while :; do sleep 0.01; done"));
    request.mutable_start_task()->set_restart(agent::RESTART_POLICY_ON_FAILURE);
    request.mutable_start_task()->set_max_restarts(1);
    ASSERT_TRUE(client.Call(request).ok());
    const auto is_ready = [](const std::string& log) { return log == "ready\n"; };
    ASSERT_TRUE(client.Follow("job", name, 0, is_ready).ok());
    const auto running =
        client.WaitFor("job", name, [](const agent::TaskStatus& status) { return status.pid() > 0; });
    ASSERT_TRUE(running.ok()) << running.status();
    const auto task = ReadProcessStat(static_cast<pid_t>(running->pid()));
    ASSERT_TRUE(task.ok()) << task.status();
    ::kill(task->parent, SIGTERM);
    const auto again = client.WaitFor("job", name, [](const agent::TaskStatus& status) {
      return status.state() == agent::TASK_STATE_RESTARTING || status.restarts() > 0;
    });
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->exit_code(), code == "0" ? 143 : 7);
    const auto status = client.WaitForEnd("job", name);
    ASSERT_TRUE(status.ok()) << status.status();
    EXPECT_EQ(status->state(), agent::TASK_STATE_SUCCEEDED);
    EXPECT_FALSE(status->stopped());
    EXPECT_EQ(status->restarts(), 1u);
  }
}

// Many programs end with 0 at a TERM: it is not for that that their work is done.
TEST_F(AgentTest, WhatEndsWellBecauseItIsStoppedHasNotSucceeded) {
  for (const bool is_done : {false, true}) {
    SCOPED_TRACE(is_done);
    const std::string name = is_done ? "worker:1" : "worker:0";
    AgentClient client(root_);
    const std::string end = is_done ? "touch $MUSTER_DONE_FILE; exit 0" : "exit 0";
    ASSERT_TRUE(
        client
            .Call(StartRequest("job", name,
                               Shell("trap '" + end + "' TERM; echo ready; while :; do sleep 0.01; done")))
            .ok());
    const auto is_ready = [](const std::string& log) { return log == "ready\n"; };
    ASSERT_TRUE(client.Follow("job", name, 0, is_ready).ok());
    agent::Request stop = StopRequest("job");
    auto* target = stop.mutable_stop_tasks()->add_targets();
    target->set_task(name);
    target->set_generation(1);
    target->set_spec_hash("spec");
    ASSERT_TRUE(client.Call(stop).ok());
    const auto status = client.WaitForEnd("job", name);
    ASSERT_TRUE(status.ok()) << status.status();
    EXPECT_TRUE(status->stopped());
    EXPECT_EQ(status->state(), is_done ? agent::TASK_STATE_SUCCEEDED : agent::TASK_STATE_FAILED);
    EXPECT_EQ(status->exit_code(), is_done ? 0 : 143) << status->reason();
  }
}

// It has ended already, which its shim has not seen yet.
TEST_F(AgentTest, WhatHasEndedWellBeforeItsStopHasSucceeded) {
  AgentClient client(root_);
  ASSERT_TRUE(
      client.Call(StartRequest("job", "worker:0", Shell("until [ -e go ]; do sleep 0.01; done"))).ok());
  const auto running =
      client.WaitFor("job", "worker:0", [](const agent::TaskStatus& status) { return status.pid() > 0; });
  ASSERT_TRUE(running.ok()) << running.status();
  const auto task = static_cast<pid_t>(running->pid());
  const auto stat = ReadProcessStat(task);
  ASSERT_TRUE(stat.ok()) << stat.status();
  ::kill(stat->parent, SIGSTOP);
  EXPECT_TRUE(WriteFileAtomically(root_ / "jobs/job/worker.0/go", "").ok());
  EXPECT_TRUE(WaitForProcessEnd(task).ok());
  EXPECT_EQ(::sigqueue(stat->parent, SIGTERM, {.sival_int = 1000}), 0);  // as the daemon does
  ::kill(stat->parent, SIGCONT);
  const auto status = client.WaitForEnd("job", "worker:0");
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->state(), agent::TASK_STATE_SUCCEEDED) << status->reason();
  EXPECT_FALSE(status->stopped());
}

// When a host shuts down, or an account logs out, a HUP follows the TERM at once.
TEST_F(AgentTest, SignalsThatMeanNothingToShimAndDaemonEndNobody) {
  AgentClient client(root_);
  ASSERT_TRUE(client
                  .Call(StartRequest("job", "worker:0",
                                     Shell("trap 'echo saving; echo saved; exit 7' TERM; echo ready; "
                                           "while :; do sleep 0.01; done")))
                  .ok());
  const auto is_ready = [](const std::string& log) { return log == "ready\n"; };
  ASSERT_TRUE(client.Follow("job", "worker:0", 0, is_ready).ok());
  const auto running =
      client.WaitFor("job", "worker:0", [](const agent::TaskStatus& status) { return status.pid() > 0; });
  ASSERT_TRUE(running.ok()) << running.status();
  const auto task = static_cast<pid_t>(running->pid());
  const auto stat = ReadProcessStat(task);
  ASSERT_TRUE(stat.ok()) << stat.status();
  const pid_t shim = stat->parent, daemon = DaemonPid(root_);
  ASSERT_GT(daemon, 0);
  for (const pid_t pid : {shim, daemon}) {
    for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGXFSZ}) ::kill(pid, number);
  }
  ::kill(task, SIGHUP);
  ::kill(shim, SIGTERM);
  ::kill(shim, SIGHUP);
  const auto end = client.WaitForEnd("job", "worker:0");
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->exit_code(), 7) << end->reason();
  EXPECT_THAT(client.Follow("job", "worker:0", 0).value_or(""), EndsWith("saving\nsaved\n"));
  EXPECT_EQ(DaemonPid(root_), daemon);
}

TEST_F(AgentTest, StopEndsABackOffAndForgetsPorts) {
  AgentClient client(root_);
  agent::Request request = StartRequest("job", "worker:0", {"false"});
  request.mutable_start_task()->set_restart(agent::RESTART_POLICY_ALWAYS);
  request.mutable_start_task()->set_max_restarts(-1);
  ASSERT_TRUE(client.Call(request).ok());
  ASSERT_TRUE(
      client.WaitFor("job", "worker:0", [](const auto& status) { return status.restarts() >= 3; }).ok());
  const auto stopped = client.Call(StopRequest("job"));
  ASSERT_TRUE(stopped.ok());
  const agent::TaskStatus& status = stopped->stop_tasks().tasks(0);
  EXPECT_EQ(status.state(), agent::TASK_STATE_FAILED);
  EXPECT_TRUE(status.stopped());
  KillDaemon();
  EXPECT_EQ(List("job")->tasks(0).incarnation(), status.incarnation()) << "a stopped task was started again";
}

TEST_F(AgentTest, ARepeatedOrLateStartNeverRunsATaskTwice) {
  AgentClient client(root_);
  agent::Request request = StartRequest("job", "worker:0", {"true"});
  request.mutable_start_task()->set_generation(3);
  ASSERT_TRUE(client.Call(request).ok());
  ASSERT_TRUE(client.Follow("job", "worker:0", 0).ok());  // until it has ended
  const auto again = client.Call(request);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->start_task().already_running());
  EXPECT_EQ(again->start_task().status().incarnation(), 1u);

  // A stop below generation 5 refuses what is older from now on, and leaves what is newer alone, a new daemon
  // included.
  agent::Request fence;
  fence.mutable_stop_tasks()->set_job("job");
  fence.mutable_stop_tasks()->set_minimum_generation(5);
  ASSERT_TRUE(client.Call(fence).ok());
  request.mutable_start_task()->set_generation(4);
  EXPECT_THAT(Message(client.Call(request).status()), HasSubstr("older than 5"));
  agent::Request newer = StartRequest("job", "worker:0", {"sleep", "1000"});
  newer.mutable_start_task()->set_generation(5);
  ASSERT_TRUE(client.Call(newer).ok());
  const auto late = client.Call(fence);
  ASSERT_TRUE(late.ok());
  agent::Request list;
  list.mutable_list_tasks()->set_job("job");
  EXPECT_EQ(client.Call(list)->list_tasks().tasks(0).state(), agent::TASK_STATE_RUNNING);
}

TEST_F(AgentTest, IncarnationsCountFromWhatOthersHaveSeen) {
  AgentClient client(root_);
  agent::Request request = NewStart("worker:0", {"true"});
  request.mutable_start_task()->set_minimum_incarnation(7);
  EXPECT_EQ(RunToEnd(client, request).incarnation(), 7u);
  KillDaemon();
  AgentClient later(root_);
  agent::Request again = NewStart("worker:0", Shell("[ $MUSTER_INCARNATION = 9 ]"));
  again.mutable_start_task()->set_minimum_incarnation(3);
  again.mutable_start_task()->set_restart(agent::RESTART_POLICY_ON_FAILURE);
  again.mutable_start_task()->set_max_restarts(1);
  const agent::TaskStatus status = RunToEnd(later, again);
  EXPECT_EQ(status.incarnation(), 9u);
  EXPECT_EQ(status.restarts(), 1u);
}

TEST_F(AgentTest, StartsAreFencedByGenerationAndSpec) {
  AgentClient client(root_);
  agent::Request request = StartRequest("job", "worker:0", {"sleep", "1000"});
  request.mutable_start_task()->set_generation(5);
  const auto first = client.Call(request);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_FALSE(first->start_task().already_running());
  const auto again = client.Call(request);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->start_task().already_running());
  EXPECT_EQ(again->start_task().status().pid(), first->start_task().status().pid());

  agent::Request newer = request;
  newer.mutable_start_task()->set_generation(6);
  newer.mutable_start_task()->set_base_generation(5);
  EXPECT_THAT(Message(client.Call(newer).status()), HasSubstr("runs with another spec or generation"))
      << "it would not know of it";
  newer.mutable_start_task()->set_follows_cluster(true);
  newer.mutable_start_task()->add_files()->set_path("tls/cluster.json");
  newer.mutable_start_task()->mutable_files(0)->set_content("{}");
  const auto moved = client.Call(newer);
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_TRUE(moved->start_task().already_running());
  EXPECT_EQ(moved->start_task().status().pid(), first->start_task().status().pid());
  EXPECT_EQ(moved->start_task().status().generation(), 6u);
  EXPECT_EQ(ReadFile(root_ / "jobs/job/worker.0/tls/cluster.json").value_or(""), "{}");

  const auto older = client.Call(request);
  EXPECT_THAT(Message(older.status()), HasSubstr("generation 5 of job job is older than 6"));
  agent::Request other_task = StartRequest("job", "worker:1", {"true"});
  EXPECT_EQ(client.Call(other_task).status().code(), absl::StatusCode::kFailedPrecondition);
  newer.mutable_start_task()->set_spec_hash("other");
  EXPECT_THAT(Message(client.Call(newer).status()), HasSubstr("runs with another spec"));
  newer = request;
  newer.mutable_start_task()->set_generation(7);
  newer.mutable_start_task()->set_base_generation(7);
  newer.mutable_start_task()->set_follows_cluster(true);
  EXPECT_THAT(Message(client.Call(newer).status()), HasSubstr("stop it first")) << "it is of another cluster";

  // A stop names what it is about: one that comes late leaves alone what has been started since.
  agent::Request stop;
  stop.mutable_stop_tasks()->set_job("job");
  auto* target = stop.mutable_stop_tasks()->add_targets();
  target->set_task("worker:0");
  target->set_spec_hash(request.start_task().spec_hash());
  for (const uint64_t generation : {5, 6}) {
    target->set_generation(generation);
    ASSERT_TRUE(client.Call(stop).ok());
    EXPECT_EQ(List("job")->tasks(0).state(),
              generation == 5 ? agent::TASK_STATE_RUNNING : agent::TASK_STATE_FAILED);
  }
}

// What a task has put in the place of a file is replaced, and not waited for, nor written to.
TEST_F(AgentTest, WhateverATaskMadeOfAFileItIsReplaced) {
  AgentClient client(root_);
  const std::filesystem::path other = folder_.path() / "other";
  ASSERT_TRUE(WriteFileAtomically(other, "of others").ok());
  for (const std::string& make :
       {std::string("mkfifo cluster.json"), "ln -s " + other.string() + " cluster.json",
        std::string("ln -s cluster.json cluster.json"), std::string("ln -s /dev/null cluster.json")}) {
    agent::Request start = NewStart(
        "worker:0", Shell("rm cluster.json; " + make + "; echo made $MUSTER_INCARNATION; sleep 1000"));
    start.mutable_start_task()->add_files()->set_path("cluster.json");
    const auto started = client.Call(start);
    ASSERT_TRUE(started.ok()) << started.status();
    const std::string made = absl::StrFormat("made %d\n", started->start_task().status().incarnation());
    const auto is_made = [&](const std::string& log) { return log.ends_with(made); };
    ASSERT_TRUE(client.Follow("job", "worker:0", 0, is_made).ok());
    agent::Request follow = start;
    follow.mutable_start_task()->set_base_generation(start.start_task().generation());
    follow.mutable_start_task()->set_generation(++generation_);
    follow.mutable_start_task()->set_follows_cluster(true);
    follow.mutable_start_task()->mutable_files(0)->set_content("new");
    const auto moved = client.Call(follow);
    ASSERT_TRUE(moved.ok()) << make << ": " << moved.status();
    const std::filesystem::path file = root_ / "jobs/job/worker.0/cluster.json";
    EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(file))) << make;
    EXPECT_EQ(ReadFile(file).value_or(""), "new") << make;
    ASSERT_TRUE(client.Call(StopRequest("job", 1000)).ok());
  }
  EXPECT_EQ(*ReadFile(other), "of others");
}

TEST_F(AgentTest, WhatHasSucceededIsNotStartedAgainBecauseOfAnAddress) {
  AgentClient client(root_);
  for (const bool succeeds : {true, false}) {
    const std::string job = succeeds ? "succeeds" : "fails";
    agent::Request request =
        StartRequest(job, "worker:0",
                     Shell(absl::StrFormat("echo $MUSTER_GENERATION >> runs; exit %d", succeeds ? 0 : 3)));
    for (const uint64_t generation : {4, 5, 6, 7}) {
      request.mutable_start_task()->set_generation(generation);
      request.mutable_start_task()->set_base_generation(generation == 7 ? 7 : 4);
      const auto started = client.Call(request);
      ASSERT_TRUE(started.ok()) << started.status();
      EXPECT_EQ(started->start_task().status().generation(), generation);
      const auto end = client.WaitForEnd(job, "worker:0");
      ASSERT_TRUE(end.ok()) << end.status();
      EXPECT_EQ(end->generation(), generation);
    }
    EXPECT_EQ(ReadFile(root_ / "jobs" / job / "worker.0/runs").value_or(""),
              succeeds ? "4\n7\n" : "4\n4\n4\n7\n");
  }
}

TEST_F(AgentTest, ForgetsOnlyWhatHasEnded) {
  AgentClient client(root_);
  ASSERT_TRUE(client.Call(StartRequest("job", "worker:0", {"sleep", "1000"})).ok());
  agent::Request forget;
  forget.mutable_forget_job()->set_job("job");
  EXPECT_EQ(client.Call(forget).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(client.Call(StopRequest("job")).ok());
  ASSERT_TRUE(client.Call(forget).ok());
  EXPECT_FALSE(std::filesystem::exists(root_ / "jobs/job"));
  EXPECT_EQ(List()->tasks_size(), 0);
  EXPECT_TRUE(client.Call(forget).ok());
}

TEST_F(AgentTest, AStopWaitsForAPortThatAProcessWithoutTokenHolds) {
  AgentClient client(root_);
  agent::Request lease;
  lease.mutable_lease_ports()->set_job("job");
  lease.mutable_lease_ports()->set_task("worker:0");
  lease.mutable_lease_ports()->set_address("127.0.0.1");
  lease.mutable_lease_ports()->set_count(1);
  const auto leased = client.Call(lease);
  ASSERT_TRUE(leased.ok()) << leased.status();
  const std::string port = std::to_string(leased->lease_ports().ports(0));
  // Its parent ends first, the shim after it: nothing but the port tells whose it is.
  constexpr char kListen[] =
      "import socket, sys, os, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); "
      "print('listens', os.getpid(), flush=True); time.sleep(1000)";
  ASSERT_TRUE(client
                  .Call(StartRequest("job", "worker:0",
                                     Shell("env -i /usr/bin/python3 -c \"" + std::string(kListen) + "\" " +
                                           port + " & sleep 1000")))
                  .ok());
  const auto log = client.Follow(
      "job", "worker:0", 0, [](const std::string& text) { return text.find('\n') != std::string::npos; });
  ASSERT_TRUE(log.ok()) << log.status();
  int hidden = 0;
  ASSERT_EQ(std::sscanf(log->c_str(), "listens %d", &hidden), 1) << *log;
  const pid_t shim = ReadProcessStat(List("job")->tasks(0).pid())->parent;
  KillDaemon();
  ::kill(shim, SIGKILL);
  ASSERT_TRUE(WaitForProcessEnd(shim).ok());

  AgentClient later(root_);
  agent::Request list;
  list.mutable_list_tasks()->set_job("job");
  ASSERT_TRUE(later.Call(list).ok());
  const std::filesystem::path lease_file = root_ / "ports" / port;
  EXPECT_TRUE(std::filesystem::exists(lease_file));
  const uint64_t stop = later.Send(StopRequest("job", 100));
  // What the first of these may come too early for, the daemon has done before it answers the second.
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(later.Call(list).ok());
  EXPECT_TRUE(std::filesystem::exists(lease_file));
  ::kill(hidden, SIGKILL);
  const auto stopped = later.Receive(stop);
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  EXPECT_EQ(stopped->stop_tasks().processes_left(), 0u);
  EXPECT_EQ(stopped->stop_tasks().ports_left(), 0u);
  EXPECT_FALSE(std::filesystem::exists(lease_file));
}

}  // namespace
}  // namespace muster
