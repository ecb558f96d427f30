// What becomes of tasks: how they start, end, start again and are stopped, whoever is killed meanwhile. The
// real binary, real processes, real signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <fstream>

#include "agent/agent_fixture.h"
#include "agent/names.h"
#include "agent/proc_scan.h"
#include "agent/records.h"
#include "base/archive.h"
#include "base/process.h"
#include "base/random.h"
#include "base/sha256.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

TEST_F(AgentTest, ReportsHowTasksEnd) {
  AgentClient client(root_);
  agent::TaskStatus status = RunToEnd(client, {"true"});
  EXPECT_EQ(status.state(), agent::TASK_STATE_SUCCEEDED);
  EXPECT_EQ(status.exit_code(), 0);
  status = RunToEnd(client, Shell("exit 7"));
  EXPECT_EQ(status.state(), agent::TASK_STATE_FAILED);
  EXPECT_EQ(status.exit_code(), 7);
  EXPECT_EQ(status.incarnation(), 2u);
  EXPECT_EQ(status.restarts(), 0u);
  EXPECT_GE(status.ended_micros(), status.started_micros());
  status = RunToEnd(client, Shell("kill -9 $$"));
  EXPECT_EQ(status.exit_code(), 137);
  EXPECT_EQ(status.signal(), 9);
  EXPECT_THAT(status.reason(), HasSubstr("killed by signal 9"));
}

TEST_F(AgentTest, AProgramThatCannotStartIsAnEndWithAReason) {
  AgentClient client(root_);
  agent::TaskStatus status = RunToEnd(client, {"no-such-program-anywhere"});
  EXPECT_EQ(status.exit_code(), 127);
  EXPECT_THAT(status.reason(), HasSubstr("could not start: no-such-program-anywhere: not found in PATH"));
  status = RunToEnd(client, {"/no/such/file"});
  EXPECT_EQ(status.exit_code(), 127);
  EXPECT_THAT(status.reason(), HasSubstr("/no/such/file: No such file or directory"));
  for (const auto& [mode, complaint] :
       {std::pair(0644, "Permission denied"), std::pair(0755, "Exec format error")}) {
    agent::Request request = NewStart("worker:1", {"{task_dir}/program"});
    request.mutable_start_task()->add_files()->set_path("program");
    request.mutable_start_task()->mutable_files(0)->set_content("neither a binary nor a script");
    request.mutable_start_task()->mutable_files(0)->set_mode(mode);
    const auto started = client.Call(request);
    ASSERT_TRUE(started.ok()) << started.status();
    EXPECT_EQ(started->start_task().status().exit_code(), 126);
    EXPECT_THAT(started->start_task().status().reason(), HasSubstr(std::string("program: ") + complaint));
  }
}

TEST_F(AgentTest, ArgumentsAndEnvironmentArriveByteForByte) {
  AgentClient client(root_);
  std::vector<std::string> arguments = {" spaces  ",
                                        "'\"`$(true)\\",
                                        "line\nbreak\n",
                                        "\xc3\xbc\xe2\x82\xac",
                                        "\xff\xfe",
                                        "",
                                        R"({"cluster": {"ps": []}})",
                                        std::string(100000, 'x')};
  agent::Request request =
      StartRequest("job", "worker:0", Shell("cat /proc/$$/cmdline; printf '|'; cat /proc/$$/environ"));
  for (const std::string& argument : arguments) request.mutable_start_task()->add_argv(argument);
  request.mutable_start_task()->add_argv("--dir={task_dir}");
  request.mutable_start_task()->add_environment("ODD=a 'b' \"c\"\n\xff=" + std::string(100000, 'y'));
  request.mutable_start_task()->add_environment("LANG=mine");
  request.mutable_start_task()->add_environment("MUSTER_TOKEN=stolen");
  request.mutable_start_task()->set_generation(17);
  ASSERT_TRUE(client.Call(request).ok());
  const absl::StatusOr<std::string> log = client.Follow("job", "worker:0", 0);
  ASSERT_TRUE(log.ok()) << log.status();

  const std::string task_folder = (root_ / "jobs/job/worker.0").string();
  std::string command_line = std::string("sh\0-c\0", 6) + request.start_task().argv(2) + '\0';
  for (const std::string& argument : arguments) command_line += argument + '\0';
  command_line += "--dir=" + task_folder + '\0' + "|";
  ASSERT_TRUE(log->starts_with(command_line));
  std::vector<std::string> environment;
  for (std::string_view left = std::string_view(*log).substr(command_line.size()); !left.empty();) {
    environment.emplace_back(left.substr(0, left.find('\0')));
    left.remove_prefix(environment.back().size() + 1);
  }
  EXPECT_THAT(environment, Contains(request.start_task().environment(0)));
  for (const std::string& entry :
       {std::string("LANG=mine"), "MUSTER_TOKEN=job/" + RootId(root_) + "/worker:0",
        std::string("MUSTER_JOB=job"), std::string("MUSTER_TASK=worker:0"),
        std::string("MUSTER_INCARNATION=1"), std::string("MUSTER_GENERATION=17"),
        "MUSTER_TASK_DIR=" + task_folder}) {
    EXPECT_EQ(std::count(environment.begin(), environment.end(), entry), 1) << entry;
  }
}

TEST_F(AgentTest, ATaskHasItsOwnSessionAndNoDescriptorsOfOthers) {
  AgentClient client(root_);
  // Without pipes and redirections, for which the shell would have descriptors of its own.
  const agent::TaskStatus status =
      RunToEnd(client, Shell("readlink /proc/$$/fd/0; ls /proc/$$/fd; pwd; cut -d' ' -f1,6 /proc/$$/stat"));
  ASSERT_EQ(status.exit_code(), 0);
  const std::string log = *client.Follow("job", "worker:0", 0);
  const std::string expected = "/dev/null\n0\n1\n2\n" + (root_ / "jobs/job/worker.0").string() + "\n";
  ASSERT_TRUE(log.starts_with(expected)) << log;
  std::istringstream stat(log.substr(expected.size()));
  std::string session, pid;
  stat >> pid >> session;
  EXPECT_EQ(pid, session);
}

TEST_F(AgentTest, LogsAreByteForByteAndGrowOverIncarnations) {
  AgentClient client(root_);
  std::string bytes;
  RandomStream random(1);
  while (bytes.size() < 3'000'000) bytes += static_cast<char>(random.Next());
  agent::Request request = StartRequest("job", "worker:0", Shell("cat data; printf err >&2"));
  agent::FileContent* file = request.mutable_start_task()->add_files();
  file->set_path("data");
  file->set_content(bytes);
  file->set_mode(0600);
  ASSERT_TRUE(client.Call(request).ok());
  EXPECT_TRUE(*client.Follow("job", "worker:0", 0) == bytes + "err");
  request.mutable_start_task()->set_generation(2);
  ASSERT_TRUE(client.Call(request).ok());
  EXPECT_TRUE(*client.Follow("job", "worker:0", bytes.size() + 3) == bytes + "err");
  struct stat info {};
  ASSERT_EQ(::stat((root_ / "jobs/job/worker.0/data").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(AgentTest, OfLongLogsTheNewestIsKept) {
  AgentClient client(root_);
  // 588,895 bytes, twice.
  agent::Request request = StartRequest("job", "worker:0", Shell("seq 100000"));
  request.mutable_start_task()->set_max_log_bytes(200'000);
  request.mutable_start_task()->set_restart(agent::RESTART_POLICY_ALWAYS);
  request.mutable_start_task()->set_max_restarts(1);
  const agent::TaskStatus status = RunToEnd(client, request);
  std::string all;
  for (int i = 1; i <= 100'000; ++i) all += std::to_string(i) + "\n";
  all += all;
  EXPECT_EQ(status.log_bytes(), all.size());
  agent::Request read;
  read.mutable_read_file()->set_job("job");
  read.mutable_read_file()->set_task("worker:0");
  read.mutable_read_file()->set_path("log");
  const auto answer = client.Call(read);
  ASSERT_TRUE(answer.ok()) << answer.status();
  const agent::ReadFileResponse& file = answer->read_file();
  EXPECT_GE(file.data().size(), 100'000u - 65'536);
  EXPECT_LE(file.data().size(), 200'000u);
  EXPECT_TRUE(file.data() == all.substr(file.offset()));
}

TEST_F(AgentTest, WhoFollowsALogMissesNothingOfIt) {
  AgentClient client(root_);
  agent::Request request =
      StartRequest("job", "worker:0", Shell("for i in $(seq 30); do seq 3000; sleep 0.03; done"));
  request.mutable_start_task()->set_max_log_bytes(100'000);
  ASSERT_TRUE(client.Call(request).ok());
  std::string all;
  for (int i = 0; i < 30; ++i) {
    for (int j = 1; j <= 3000; ++j) all += std::to_string(j) + "\n";
  }
  const auto followed = client.Follow("job", "worker:0", 0);
  ASSERT_TRUE(followed.ok()) << followed.status();
  EXPECT_TRUE(*followed == all);
}

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
    agent::Request list;
    list.mutable_list_tasks();
    std::pair<uint32_t, agent::TaskState> last{};
    // The number of requests before the kill only spreads the moments at which it comes.
    for (uint64_t requests = 1 + random.NextBelow(3000); requests > 0; --requests) {
      const auto answer = client.Call(list);
      ASSERT_TRUE(answer.ok()) << answer.status();
      status = answer->list_tasks().tasks(0);
      // By this order watchers tell old reports from new ones.
      const std::pair now(status.incarnation(), status.state());
      EXPECT_GE(now, last) << status.DebugString();
      last = now;
    }
    KillDaemon();
  }
  EXPECT_EQ(status.state(), agent::TASK_STATE_FAILED);
  EXPECT_EQ(status.restarts(), 5u);
  EXPECT_EQ(ReadFile(root_ / "jobs/job/worker.0/runs").value_or(""), "1\n2\n3\n4\n5\n6\n");
}

TEST_F(AgentTest, WhatATaskHasDoneIsKnownToItsNextIncarnationAndToNoOtherStart) {
  AgentClient client(root_);
  agent::Request request = StartRequest(
      "job", "worker:0", Shell("[ -e $MUSTER_DONE_FILE ] && exit 0; touch $MUSTER_DONE_FILE; exit 9"));
  request.mutable_start_task()->set_restart(agent::RESTART_POLICY_ON_FAILURE);
  request.mutable_start_task()->set_max_restarts(1);
  for (const uint64_t generation : {1, 2}) {
    request.mutable_start_task()->set_generation(generation);
    const agent::TaskStatus end = RunToEnd(client, request);
    EXPECT_EQ(end.state(), agent::TASK_STATE_SUCCEEDED);
    EXPECT_EQ(end.restarts(), 1u);
  }
}

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
  std::vector<pid_t> family = ChildrenOf(shim);
  for (size_t i = 0; i < family.size(); ++i) {
    for (const pid_t child : ChildrenOf(family[i])) family.push_back(child);
  }
  ASSERT_GE(family.size(), 5u);
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

TEST_F(AgentTest, ListsTheFilesOfAFolderThatATaskMade) {
  AgentClient client(root_);
  RunToEnd(client, Shell("mkdir -p out/deeper; mkfifo out/pipe; touch out/b out/a 'out/c d' out/deeper/e"));
  const auto list = [&](const std::string& task, const std::string& folder) {
    agent::Request request;
    request.mutable_list_files()->set_job("job");
    request.mutable_list_files()->set_task(task);
    request.mutable_list_files()->set_folder(folder);
    return client.Call(request);
  };
  const auto listed = list("worker:0", "out");
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_THAT(listed->list_files().names(), testing::ElementsAre("a", "b", "c d"));
  EXPECT_EQ(list("worker:0", "nothing").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(list("worker:1", "out").status().code(), absl::StatusCode::kNotFound);
  for (const std::string folder : {"", "..", "out/..", "/tmp"}) {
    EXPECT_EQ(list("worker:0", folder).status().code(), absl::StatusCode::kInvalidArgument) << folder;
  }
  RunToEnd(client, Shell("cd out; seq 10001 | xargs touch"));
  EXPECT_EQ(list("worker:0", "out").status().code(), absl::StatusCode::kResourceExhausted);
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
      EXPECT_EQ(CountByToken([&](std::string_view each) { return each == token; }), 1);
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

TEST_F(AgentTest, RunsAProgramOfTheStore) {
  TemporaryDirectory folder;
  std::filesystem::create_directories(folder.path() / "bin");
  std::ofstream(folder.path() / "bin/hello") << "#!/bin/sh\necho hello \"$1\"\n";
  std::filesystem::permissions(folder.path() / "bin/hello", std::filesystem::perms(0755));
  const std::string archive = *PackDirectory(folder.path());
  const std::string sha256 = Sha256Hex(archive);
  ASSERT_TRUE(MakeDirectories(root_ / "store" / sha256).ok());
  ASSERT_TRUE(UnpackArchive(archive, root_ / "store" / sha256).ok());
  AgentClient client(root_);
  agent::Request store;
  store.mutable_store()->add_sha256(sha256);
  store.mutable_store()->add_sha256(std::string(64, 'f'));
  EXPECT_THAT(client.Call(store)->store().present_sha256(), testing::ElementsAre(sha256));
  agent::Request request = StartRequest("job", "worker:0", {"bin/hello", "{store:" + sha256 + "}"});
  request.mutable_start_task()->set_program_sha256(sha256);
  ASSERT_TRUE(client.Call(request).ok());
  EXPECT_EQ(client.Follow("job", "worker:0", 0).value_or(""),
            "hello " + (root_ / "store" / sha256).string() + "\n");
  request.mutable_start_task()->set_program_sha256(std::string(64, 'f'));
  request.mutable_start_task()->set_generation(2);
  ASSERT_TRUE(client.WaitForEnd("job", "worker:0").ok());
  const auto missing = client.Call(request);
  ASSERT_TRUE(missing.ok()) << missing.status();
  EXPECT_EQ(missing->start_task().status().exit_code(), 127);
}

TEST_F(AgentTest, GarbageIsWhatNoTaskUses) {
  const std::string program(64, 'a'), data(64, 'b'), unused(64, 'c');
  for (const std::string& content : {program, data, unused}) {
    ASSERT_TRUE(MakeDirectories(root_ / "store" / content).ok());
  }
  AgentClient client(root_);
  agent::Request start = StartRequest("job", "worker:0", {"run", "--data={store:" + data + "}"});
  start.mutable_start_task()->set_program_sha256(program);
  ASSERT_TRUE(client.Call(start).ok());
  ASSERT_TRUE(client.WaitForEnd("job", "worker:0").ok());  // there is no such program
  agent::Request collect;
  collect.mutable_collect_garbage()->set_unused_seconds(0);
  const auto removed = client.Call(collect);
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_THAT(removed->collect_garbage().removed_sha256(), testing::ElementsAre(unused));
  agent::Request forget;
  forget.mutable_forget_job()->set_job("job");
  ASSERT_TRUE(client.Call(forget).ok());
  EXPECT_THAT(client.Call(collect)->collect_garbage().removed_sha256(),
              testing::UnorderedElementsAre(program, data));
}
}  // namespace
}  // namespace muster
