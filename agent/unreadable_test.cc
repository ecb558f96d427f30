// What the agent cannot read for a moment is there all the same.
#include <absl/cleanup/cleanup.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "agent/agent_fixture.h"
#include "agent/records.h"
#include "tests/support/eventually.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

// A link to itself stands for a disk that cannot be read for a moment: permissions would not keep root out.
class UnreadableRecord : public AgentTest {
 protected:
  // Ends with 0 when `go` is there, and writes down that it ran.
  agent::Request StartWaiting(const std::string& task) {
    agent::Request request =
        NewStart(task, Shell("echo $MUSTER_INCARNATION >> runs; while [ ! -e go ]; do sleep 0.01; done"));
    request.mutable_start_task()->set_restart(agent::RESTART_POLICY_ON_FAILURE);
    request.mutable_start_task()->set_max_restarts(3);
    return request;
  }
  std::filesystem::path FolderOf(const std::string& task) const {
    return root_ / "jobs/job" / TaskFolder(task);
  }
  void Hide(const std::filesystem::path& path) {
    std::filesystem::rename(path, path.string() + ".hidden");
    std::filesystem::create_symlink(path.filename(), path);
  }
  void Show(const std::filesystem::path& path) {
    std::filesystem::remove(path);
    std::filesystem::rename(path.string() + ".hidden", path);
  }
  // After it no daemon is there, and the shim has ended.
  void EndUnseen(const agent::TaskStatus& running) {
    const pid_t shim = ReadProcessStat(static_cast<pid_t>(running.pid()))->parent;
    KillDaemon();
    std::ofstream(FolderOf(running.task()) / "go").flush();
    ASSERT_TRUE(WaitForProcessEnd(shim).ok());
  }
  std::string Runs(const std::string& task) const { return ReadFile(FolderOf(task) / "runs").value_or(""); }
};

TEST_F(UnreadableRecord, IsReadAgain) {
  agent::Request start = StartWaiting("worker:0");
  {
    AgentClient client(root_);
    ASSERT_TRUE(client.Call(start).ok());
  }
  const agent::TaskStatus running = List("job")->tasks(0);
  EndUnseen(running);
  const std::filesystem::path exit_path = ExitRecordPath(FolderOf("worker:0"), 1);
  const std::filesystem::path task_path = TaskRecordPath(FolderOf("worker:0"));
  const std::string record = *ReadFile(exit_path);
  Hide(exit_path);
  {
    AgentClient client(root_);
    const auto known = List("job");
    ASSERT_TRUE(known.ok()) << known.status();
    EXPECT_EQ(known->tasks(0).state(), agent::TASK_STATE_RUNNING) << known->tasks(0).reason();
    Show(exit_path);
    const auto end = client.WaitForEnd("job", "worker:0");
    ASSERT_TRUE(end.ok()) << end.status();
    EXPECT_EQ(end->state(), agent::TASK_STATE_SUCCEEDED) << end->reason();
  }
  EXPECT_EQ(Runs("worker:0"), "1\n");
  EXPECT_EQ(*ReadFile(exit_path), record);

  // Of one whose own record cannot be read nothing is said, nor is it started.
  KillDaemon();
  Hide(task_path);
  AgentClient client(root_);
  EXPECT_EQ(List("job")->tasks_size(), 0);
  agent::Request watch;
  watch.mutable_watch()->set_job("job");
  const uint64_t watching = client.Send(watch);
  const absl::Status refused = client.Call(start).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(Message(refused), HasSubstr(task_path.string()));
  Show(task_path);
  const auto first = client.Receive(watching);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->watch().tasks_size(), 1) << "who is told of none takes it for lost";
  const auto end = client.WaitForEnd("job", "worker:0");
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->state(), agent::TASK_STATE_SUCCEEDED) << end->reason();
  EXPECT_TRUE(client.Call(start)->start_task().already_running());
  EXPECT_EQ(Runs("worker:0"), "1\n");
}

TEST_F(UnreadableRecord, ForGoodMakesItsTaskLostAndIsLeftAlone) {
  {
    AgentClient client(root_);
    for (const char* task : {"worker:0", "worker:1"}) {
      ASSERT_TRUE(client.Call(StartWaiting(task)).ok());
    }
  }
  const auto running = List("job");
  ASSERT_TRUE(running.ok()) << running.status();
  EndUnseen(running->tasks(0));
  const std::filesystem::path exit_path = ExitRecordPath(FolderOf("worker:0"), 1);
  const std::filesystem::path task_path = TaskRecordPath(FolderOf("worker:1"));
  for (const auto& path : {exit_path, task_path}) Hide(path);
  std::optional<AgentClient> client(std::in_place, root_);
  for (const auto& [task, path] : {std::pair("worker:0", exit_path), std::pair("worker:1", task_path)}) {
    const auto end = client->WaitForEnd("job", task);
    ASSERT_TRUE(end.ok()) << end.status();
    EXPECT_EQ(end->state(), agent::TASK_STATE_LOST);
    EXPECT_THAT(end->reason(), HasSubstr(path.string()));
    EXPECT_TRUE(std::filesystem::is_symlink(path));
  }
  KillDaemon();
  for (const auto& path : {exit_path, task_path}) Show(path);
  client.emplace(root_);
  const auto known = List("job");
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(known->tasks(0).state(), agent::TASK_STATE_SUCCEEDED) << known->tasks(0).reason();
  EXPECT_EQ(known->tasks(1).state(), agent::TASK_STATE_RUNNING) << known->tasks(1).reason();
  EXPECT_EQ(known->tasks(1).pid(), running->tasks(1).pid());
  for (const char* task : {"worker:0", "worker:1"}) EXPECT_EQ(Runs(task), "1\n");
}

// A daemon that took them for empty would have its launcher end what runs.
TEST_F(UnreadableRecord, FoldersAndFencesKeepTheDaemonFromBeginning) {
  {
    AgentClient client(root_);
    ASSERT_TRUE(client.Call(StartWaiting("worker:0")).ok());
    agent::Request stop = StopRequest("job");
    stop.mutable_stop_tasks()->set_minimum_generation(1);  // nothing is as old
    ASSERT_TRUE(client.Call(stop).ok());
  }
  const agent::TaskStatus running = List("job")->tasks(0);
  for (const std::filesystem::path path : {"jobs", "jobs/job", "jobs/job/.fence"}) {
    KillDaemon();
    Hide(root_ / path);
    AgentClient refused(root_);
    EXPECT_EQ(refused.WaitForExit().value_or(-1), 69) << path;
    EXPECT_THAT(refused.stderr_text(), HasSubstr("what runs here is not known: " + (root_ / path).string()));
    Show(root_ / path);
    const auto known = List("job");
    ASSERT_TRUE(known.ok()) << known.status();
    ASSERT_EQ(known->tasks_size(), 1);
    EXPECT_EQ(known->tasks(0).pid(), running.pid());
  }
  EXPECT_EQ(Runs("worker:0"), "1\n");
  std::filesystem::resize_file(root_ / "daemon.log", 0);  // it has said so there, too
}

// How many of a process's descriptors are something that begins like this.
int CountDescriptors(pid_t pid, const std::string& kind) {
  int count = 0;
  const std::filesystem::path folder = "/proc/" + std::to_string(pid) + "/fd";
  for (const std::string& name : ListDirectory(folder).value_or(std::vector<std::string>{})) {
    std::error_code error;
    count += std::filesystem::read_symlink(folder / name, error).string().starts_with(kind);
  }
  return count;
}

rlim_t FirstFreeDescriptor(pid_t pid) {
  rlim_t first = 0;
  while (std::filesystem::exists(absl::StrFormat("/proc/%d/fdinfo/%d", pid, first))) ++first;
  return first;
}

// The daemon has no descriptor left when it is told that the program runs. Its log is a pipe, for which the
// shim waits until then.
TEST_F(UnreadableRecord, OfARunIsReadAgain) {
  std::filesystem::create_directories(FolderOf("worker:0"));
  const std::filesystem::path log_path = FolderOf("worker:0") / "log";
  ASSERT_EQ(::mkfifo(log_path.c_str(), 0600), 0);
  AgentClient client(root_);
  ASSERT_TRUE(client
                  .Call([] {
                    agent::Request list;
                    list.mutable_list_tasks();
                    return list;
                  }())
                  .ok());
  const pid_t daemon = DaemonPid(root_);
  const int pipes = CountDescriptors(daemon, "pipe:");
  client.Send(StartWaiting("worker:0"));
  ASSERT_TRUE(Eventually([&] {
    return CountDescriptors(daemon, "socket:") == 2 && CountDescriptors(daemon, "anon_inode:[pidfd]") == 1 &&
           CountDescriptors(daemon, "pipe:") == pipes + 1;
  }));
  rlimit limit{};
  ASSERT_EQ(::prlimit(daemon, RLIMIT_NOFILE, nullptr, &limit), 0);
  const rlimit none_left{.rlim_cur = FirstFreeDescriptor(daemon), .rlim_max = limit.rlim_max};
  ASSERT_EQ(::prlimit(daemon, RLIMIT_NOFILE, &none_left, nullptr), 0);
  const UniqueFd log(::open(log_path.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(Eventually([&] { return CountDescriptors(daemon, "pipe:") == pipes; }));
  ASSERT_EQ(::prlimit(daemon, RLIMIT_NOFILE, &limit, nullptr), 0);
  const auto running = client.WaitFor("job", "worker:0", [](const agent::TaskStatus& status) {
    return status.state() == agent::TASK_STATE_RUNNING && status.pid() > 0;
  });
  EXPECT_TRUE(running.ok()) << running.status();
}

}  // namespace
}  // namespace muster
