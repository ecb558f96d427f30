// What a daemon finds after one that was killed: tasks that still run, ended meanwhile, or are to be started
// again. Whoever is killed, and whenever, restarts are counted exactly and nothing is left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>

#include "agent/agent_fixture.h"
#include "agent/proc_scan.h"
#include "agent/records.h"
#include "agent/restart_policy.h"
#include "base/process.h"
#include "base/random.h"
#include "tests/support/eventually.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(AgentTest, TasksOutliveAKilledDaemonAndTheLogHasNoGap) {
  AgentClient first(root_);
  ASSERT_TRUE(first
                  .Call(StartRequest("job", "worker:0",
                                     Shell("i=0; while :; do echo $i; i=$((i+1)); sleep 0.01; done")))
                  .ok());
  const absl::StatusOr<std::string> before =
      first.Follow("job", "worker:0", 0, [](const std::string& text) { return text.size() > 50; });
  ASSERT_TRUE(before.ok()) << before.status();
  const agent::TaskStatus running = List("job")->tasks(0);
  EXPECT_EQ(running.state(), agent::TASK_STATE_RUNNING);
  KillDaemon();
  EXPECT_EQ(first.WaitForExit().value_or(-1), 69);
  EXPECT_THAT(first.stderr_text(), HasSubstr("the daemon under " + root_.string() + " ended the connection"));

  AgentClient second(root_);
  const absl::StatusOr<std::string> after = second.Follow(
      "job", "worker:0", before->size(), [](const std::string& text) { return text.size() > 50; });
  ASSERT_TRUE(after.ok()) << after.status();
  std::istringstream numbers(*before + *after);
  std::string all = numbers.str();
  all.resize(all.rfind('\n') + 1);
  std::string expected;
  for (int i = 0; expected.size() < all.size(); ++i) expected += std::to_string(i) + "\n";
  EXPECT_EQ(all, expected);
  const agent::TaskStatus adopted = List("job")->tasks(0);
  EXPECT_EQ(adopted.state(), agent::TASK_STATE_RUNNING);
  EXPECT_EQ(adopted.pid(), running.pid());
  EXPECT_EQ(adopted.incarnation(), 1u);

  const auto stopped = second.Call(StopRequest("job"));
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  EXPECT_EQ(stopped->stop_tasks().processes_left(), 0u);
  EXPECT_EQ(stopped->stop_tasks().tasks(0).exit_code(), 143);
  EXPECT_TRUE(stopped->stop_tasks().tasks(0).stopped());
}

TEST_F(AgentTest, AnEndThatNoDaemonSawIsFoundLater) {
  auto first = std::make_unique<AgentClient>(root_);
  agent::Request request;
  agent::LeasePortsRequest* lease = request.mutable_lease_ports();
  lease->set_job("job");
  lease->set_task("worker:0");
  lease->set_address("127.0.0.1");
  lease->set_count(2);
  ASSERT_TRUE(first->Call(request).ok());
  EXPECT_FALSE(std::filesystem::is_empty(root_ / "ports"));
  ASSERT_TRUE(
      first->Call(StartRequest("job", "worker:0", Shell("while [ ! -e go ]; do sleep 0.01; done; exit 5")))
          .ok());
  const agent::TaskStatus running = List("job")->tasks(0);
  KillDaemon();
  const pid_t shim = ReadProcessStat(static_cast<pid_t>(running.pid()))->parent;
  std::ofstream(root_ / "jobs/job/worker.0/go").flush();
  ASSERT_TRUE(WaitForProcessEnd(shim).ok());
  const agent::TaskStatus ended = List("job")->tasks(0);
  EXPECT_EQ(ended.state(), agent::TASK_STATE_FAILED);
  EXPECT_EQ(ended.exit_code(), 5);
  EXPECT_TRUE(std::filesystem::is_empty(root_ / "ports")) << "they are free, as after any end";
}

// The task, a child of its session, and one that has left it.
constexpr char kTree[] = "sleep 1000 & setsid sh -c 'trap \"\" TERM; sleep 1000 & sleep 1000' & wait";

TEST_F(AgentTest, AKilledShimTakesItsTaskAlongAndCountsAsAFailure) {
  AgentClient client(root_);
  agent::Request request = StartRequest("job", "worker:0", Shell(kTree));
  request.mutable_start_task()->set_restart(agent::RESTART_POLICY_ON_FAILURE);
  request.mutable_start_task()->set_max_restarts(1);
  ASSERT_TRUE(client.Call(request).ok());
  for (uint32_t restarts = 0; restarts < 2; ++restarts) {
    const auto running = client.WaitFor("job", "worker:0", [&](const agent::TaskStatus& status) {
      return status.state() == agent::TASK_STATE_RUNNING && status.pid() > 0 && status.restarts() == restarts;
    });
    ASSERT_TRUE(running.ok()) << running.status();
    const auto main_pid = static_cast<pid_t>(running->pid());
    ::kill(ReadProcessStat(main_pid)->parent, SIGKILL);
    EXPECT_TRUE(WaitForProcessEnd(main_pid).ok());
  }
  const auto end = client.WaitForEnd("job", "worker:0");
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->state(), agent::TASK_STATE_LOST);
  EXPECT_EQ(end->exit_code(), 137);
  EXPECT_EQ(end->restarts(), 1u);
  EXPECT_THAT(end->reason(), HasSubstr("its shim was killed"));
  EXPECT_EQ(CountTokens("job"), 0);
}

TEST_F(AgentTest, ShimAndDaemonBothKilledLeaveNothingAfterTheNextContact) {
  AgentClient first(root_);
  ASSERT_TRUE(first.Call(StartRequest("job", "worker:0", Shell(kTree))).ok());
  const agent::TaskStatus running = List("job")->tasks(0);
  const pid_t shim = ReadProcessStat(static_cast<pid_t>(running.pid()))->parent;
  KillDaemon();
  ::kill(shim, SIGKILL);
  ASSERT_TRUE(WaitForProcessEnd(shim).ok());
  AgentClient second(root_);
  const auto end = second.WaitForEnd("job", "worker:0");
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->state(), agent::TASK_STATE_LOST);
  EXPECT_EQ(CountTokens("job"), 0);
}

// What has changed its account is told nothing by the kernel when the shim is killed.
class AnotherAccount : public AgentTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root starts processes of other accounts";
  }
  void TearDown() override {
    if (stray_ > 0) ::kill(stray_, SIGKILL);
    if (::geteuid() == 0) AgentTest::TearDown();
  }

  // Its first incarnation becomes another account's and is not told to end; the next one ends with 0 if the
  // first has ended.
  void StartAndKillShim(AgentClient& client, const std::function<void()>& before_kill) {
    agent::Request request =
        StartRequest("job", "worker:0",
                     Shell("if [ $MUSTER_INCARNATION = 1 ]; then echo $$ > first; exec setpriv --reuid=65534 "
                           "--clear-groups sh -c 'echo ready; exec sleep 1000'; fi; "
                           "read -r first < first; ! kill -0 $first"));
    request.mutable_start_task()->set_restart(agent::RESTART_POLICY_ON_FAILURE);
    request.mutable_start_task()->set_max_restarts(1);
    ASSERT_TRUE(client.Call(request).ok());
    const auto is_ready = [](const std::string& log) { return log == "ready\n"; };
    ASSERT_TRUE(client.Follow("job", "worker:0", 0, is_ready).ok());
    stray_ = static_cast<pid_t>(List("job")->tasks(0).pid());
    ASSERT_GT(stray_, 0);
    const auto stat = ReadProcessStat(stray_);
    ASSERT_TRUE(stat.ok()) << stat.status();
    before_kill();
    ::kill(stat->parent, SIGKILL);
    ASSERT_TRUE(WaitForProcessEnd(stat->parent).ok());
  }

  bool StrayRuns() const {
    const auto stat = ReadProcessStat(stray_);
    return stat.ok() && stat->state != 'Z';
  }

  pid_t stray_ = -1;
};

TEST_F(AnotherAccount, AProcessOfItEndsBeforeTheNextIncarnationBegins) {
  AgentClient client(root_);
  StartAndKillShim(client, [] {});
  const auto end = client.WaitForEnd("job", "worker:0");
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->state(), agent::TASK_STATE_SUCCEEDED) << "the first incarnation ran beside the second";
  EXPECT_EQ(end->incarnation(), 2u);
  EXPECT_FALSE(StrayRuns());
}

TEST_F(AnotherAccount, AProcessOfItIsFoundByTokenOnceShimAndDaemonAreGone) {
  {
    AgentClient client(root_);
    StartAndKillShim(client, [&] { KillDaemon(); });
  }
  AgentClient later(root_);
  const auto stopped = later.Call(StopRequest("job", 100));
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  EXPECT_EQ(stopped->stop_tasks().processes_left(), 0u);
  EXPECT_FALSE(StrayRuns());
}

// As on a host that went down: whoever only asks may do so long after the job has ended.
TEST_F(AgentTest, WhatHasEndedMeanwhileIsStartedAgainForADriverOnly) {
  for (const bool is_driven : {true, false}) {
    {
      AgentClient client(root_);
      agent::Request request = NewStart("worker:0", {"sleep", "1000"});
      request.mutable_start_task()->set_restart(agent::RESTART_POLICY_ON_FAILURE);
      request.mutable_start_task()->set_max_restarts(5);
      ASSERT_TRUE(client.Call(request).ok());
      const auto running = client.WaitFor("job", "worker:0", [&](const agent::TaskStatus& status) {
        return status.state() == agent::TASK_STATE_RUNNING && status.pid() > 0;
      });
      ASSERT_TRUE(running.ok()) << running.status();
      const pid_t shim = ReadProcessStat(static_cast<pid_t>(running->pid()))->parent;
      KillDaemon();
      ::kill(shim, SIGKILL);
      ASSERT_TRUE(WaitForProcessEnd(shim).ok());
    }
    AgentClient second(root_);
    agent::TaskStatus status;
    const auto has_been_swept = [&] {
      status = List("job")->tasks(0);
      return status.state() == agent::TASK_STATE_RESTARTING;
    };
    EXPECT_TRUE(Eventually(has_been_swept)) << status.DebugString();
    // It would have been started again long ago.
    ::usleep(10 * static_cast<useconds_t>(kFirstRestartDelay / std::chrono::microseconds(1)));
    EXPECT_TRUE(has_been_swept()) << status.DebugString();
    EXPECT_THAT(status.reason(), HasSubstr("waits for whoever drives the job"));
    EXPECT_EQ(CountTokens("job"), 0);
    if (is_driven) {
      const auto again = second.WaitFor("job", "worker:0", [](const agent::TaskStatus& each) {
        return each.state() == agent::TASK_STATE_RUNNING && each.restarts() == 1;
      });
      EXPECT_TRUE(again.ok()) << again.status();
      ASSERT_TRUE(second.Call(StopRequest("job", 1000)).ok());
    } else {
      agent::Request forget;
      forget.mutable_forget_job()->set_job("job");
      EXPECT_TRUE(second.Call(forget).ok());
      EXPECT_EQ(List("job")->tasks_size(), 0);
    }
  }
}

TEST_F(AgentTest, RestartsAreCountedExactly) {
  std::optional<AgentClient> client(std::in_place, root_);
  agent::Request request = StartRequest("job", "worker:0", {"sleep", "1000"});
  request.mutable_start_task()->set_restart(agent::RESTART_POLICY_ON_FAILURE);
  request.mutable_start_task()->set_max_restarts(2);
  ASSERT_TRUE(client->Call(request).ok());
  for (uint32_t restarts = 0; restarts < 3; ++restarts) {
    const auto running = client->WaitFor("job", "worker:0", [&](const agent::TaskStatus& status) {
      return status.state() == agent::TASK_STATE_RUNNING && status.pid() > 0 && status.restarts() == restarts;
    });
    ASSERT_TRUE(running.ok()) << running.status();
    EXPECT_EQ(running->exit_code(), restarts == 0 ? -1 : 137);
    // A new daemon has to count on from where the killed one stopped.
    if (restarts == 1) KillDaemon();
    ::kill(static_cast<pid_t>(running->pid()), SIGKILL);
    if (restarts == 1) client.emplace(root_);
  }
  const auto end = client->WaitForEnd("job", "worker:0");
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->state(), agent::TASK_STATE_FAILED);
  EXPECT_EQ(end->exit_code(), 137);
  EXPECT_EQ(end->signal(), 9);
  EXPECT_EQ(end->restarts(), 2u);
  EXPECT_EQ(end->incarnation(), 3u);
  EXPECT_THAT(end->reason(), HasSubstr("its 2 restarts are used up"));
}

TEST_F(AgentTest, RestartsAreCountedExactlyWhateverTheMomentTheDaemonIsKilled) {
  {
    AgentClient client(root_);
    agent::Request request =
        StartRequest("job", "worker:0", Shell("echo $MUSTER_INCARNATION >> runs; exit 1"));
    request.mutable_start_task()->set_restart(agent::RESTART_POLICY_ON_FAILURE);
    request.mutable_start_task()->set_max_restarts(5);
    ASSERT_TRUE(client.Call(request).ok());
  }
  agent::TaskStatus status;
  const TimePoint deadline = TestDeadline();
  for (RandomStream random(RandomSeed()); status.state() != agent::TASK_STATE_FAILED && Now() < deadline;) {
    AgentClient client(root_);
    agent::Request drive;
    drive.mutable_watch()->set_job("job");
    (void)client.Send(drive);
    agent::Request list;
    list.mutable_list_tasks();
    ASSERT_TRUE(client.Call(list).ok());  // the daemon is there, and has begun to drive the job
    // It takes half a second to start what the last one has not.
    const TimePoint kill_at = Now() + std::chrono::microseconds(random.NextBelow(1'500'000));
    std::pair<uint32_t, agent::TaskState> last{};
    do {
      const auto answer = client.Call(list);
      ASSERT_TRUE(answer.ok()) << answer.status();
      status = answer->list_tasks().tasks(0);
      // By this order watchers tell old reports from new ones.
      const std::pair now(status.incarnation(), status.state());
      EXPECT_GE(now, last) << status.DebugString();
      last = now;
    } while (Now() < kill_at);
    KillDaemon();
  }
  EXPECT_EQ(status.state(), agent::TASK_STATE_FAILED);
  EXPECT_EQ(status.restarts(), 5u);
  EXPECT_EQ(ReadFile(root_ / "jobs/job/worker.0/runs").value_or(""), "1\n2\n3\n4\n5\n6\n");
}

// As after a shim that could not end all of them: what it says of that decides whether the host is searched.
TEST_F(AgentTest, WhatAShimHasLeftIsLookedForByTheNextDaemon) {
  AgentClient client(root_);
  EXPECT_EQ(RunToEnd(client, {"sh", "-c", "echo $MUSTER_TOKEN"}).exit_code(), 0);
  std::string token = *ReadFile(root_ / "jobs/job/worker.0/log");
  ASSERT_TRUE(token.ends_with('\n'));
  token.pop_back();
  const std::filesystem::path path = root_ / "jobs/job/worker.0/.muster/1.exit";
  for (const bool left_nothing : {true, false}) {
    KillDaemon();
    agent::ExitRecord exit;
    ASSERT_TRUE(ReadRecord(path, "exit", exit).ok());
    EXPECT_TRUE(exit.left_nothing());
    exit.set_left_nothing(left_nothing);
    ASSERT_TRUE(WriteRecord(path, "exit", exit).ok());
    auto leftover = Process::Spawn(
        {.argv = {"sleep", "600"}, .environment = {{"MUSTER_TOKEN=" + token, "PATH=/usr/bin:/bin"}}});
    ASSERT_TRUE(leftover.ok()) << leftover.status();
    AgentClient next(root_);
    const auto ended = next.WaitFor("job", "worker:0", [](const agent::TaskStatus& status) {
      return status.state() == agent::TASK_STATE_SUCCEEDED;
    });
    EXPECT_TRUE(ended.ok()) << ended.status();
    if (left_nothing) {
      EXPECT_EQ(CountByToken([&](std::string_view each) { return each == token; }).value(), 1);
      leftover->Signal(SIGKILL);
    }
    EXPECT_EQ(leftover->Wait(TestDeadline()).value_or(-1), 128 + SIGKILL);
  }
}

TEST_F(AgentTest, ADamagedRecordIsReportedAndTheTaskCanBeStartedAnew) {
  auto client = std::make_unique<AgentClient>(root_);
  RunToEnd(*client, {"true"});
  RunToEnd(*client, {"true"});
  KillDaemon();
  const std::filesystem::path path = root_ / "jobs/job/worker.0/.muster/task";
  const std::string record = *ReadFile(path);
  for (const std::string& damaged :
       {record.substr(0, record.size() / 2), record.substr(0, record.size() - 1) + "~", std::string()}) {
    ASSERT_TRUE(WriteFileAtomically(path, damaged).ok());
    const agent::TaskStatus status = List("job")->tasks(0);
    EXPECT_EQ(status.state(), agent::TASK_STATE_LOST);
    EXPECT_THAT(status.reason(), AllOf(HasSubstr(path.string()), HasSubstr("damaged")));
    KillDaemon();
  }
  ASSERT_TRUE(WriteFileAtomically(path, record).ok());
  const std::filesystem::path exit_path = root_ / "jobs/job/worker.0/.muster/2.exit";
  const std::string exit_record = *ReadFile(exit_path);
  ASSERT_TRUE(WriteFileAtomically(exit_path, exit_record.substr(1)).ok());
  const agent::TaskStatus unknown = List("job")->tasks(0);
  EXPECT_EQ(unknown.state(), agent::TASK_STATE_LOST);
  EXPECT_THAT(unknown.reason(), AllOf(HasSubstr(exit_path.string()), HasSubstr("damaged")));
  KillDaemon();
  std::string newer = record;
  newer[newer.find('1')] = '7';
  ASSERT_TRUE(WriteFileAtomically(path, newer).ok());
  EXPECT_THAT(List("job")->tasks(0).reason(), HasSubstr("has record version 7, this agent reads version 1"));
  client = std::make_unique<AgentClient>(root_);
  const agent::TaskStatus status = RunToEnd(*client, {"true"});
  EXPECT_EQ(status.state(), agent::TASK_STATE_SUCCEEDED);
  EXPECT_EQ(status.incarnation(), 3u);
}

}  // namespace
}  // namespace muster
