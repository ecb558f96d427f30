// How tasks run: what they are given, what becomes of what they print, how they end. The real binary, real
// processes, real signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <fstream>

#include "agent/agent_fixture.h"
#include "agent/names.h"
#include "base/archive.h"
#include "base/random.h"
#include "base/sha256.h"

namespace muster {
namespace {

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

// The daemon may have many; a program has as many as who started the agent.
TEST_F(AgentTest, TheDaemonsDescriptorLimitIsItsOwn) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = 200, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  AgentClient client(root_);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  const agent::TaskStatus status = RunToEnd(
      client,
      Shell("ulimit -Sn; read -r _ _ _ daemon _ </proc/$PPID/stat; grep 'open files' /proc/$daemon/limits"));
  ASSERT_EQ(status.exit_code(), 0);
  std::istringstream log(*client.Follow("job", "worker:0", 0));
  std::string text;
  rlim_t own = 0, of_daemon = 0;
  log >> own >> text >> text >> text >> of_daemon;  // "Max open files 65536"
  EXPECT_EQ(own, 200u);
  EXPECT_EQ(of_daemon, std::min<rlim_t>(before.rlim_max, 65536));
}

// As under nohup: a task has no terminal that could hang up. The numbers are bits, the first signal's is 1.
TEST_F(AgentTest, OfSignalsATaskIgnoresNoneButTheHangUp) {
  AgentClient client(root_);
  ASSERT_EQ(RunToEnd(client, {"grep", "-E", "SigBlk|SigIgn", "/proc/self/status"}).exit_code(), 0);
  EXPECT_EQ(client.Follow("job", "worker:0", 0).value_or(""),
            "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000001\n");
}

TEST_F(AgentTest, ALimitOfFileSizesCutsTheLogOffAndNotTheTask) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 1 << 20, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  AgentClient client(root_);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  const agent::TaskStatus status =
      RunToEnd(client, Shell("head -c 2000000 /dev/zero; exec head -c 2000000 /dev/zero > big"));
  EXPECT_EQ(status.signal(), SIGXFSZ) << "what it means to a task is the task's own matter";
  EXPECT_THAT(status.reason(), HasSubstr(absl::StrFormat("; %d bytes of its log were lost: File too large",
                                                         2000000 - (1 << 20))));
  EXPECT_EQ(std::filesystem::file_size(root_ / "jobs/job/worker.0/log"), 1u << 20);
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

// So long as what it has not read yet is less than half of what is kept.
TEST_F(AgentTest, WhoFollowsALogMissesNothingOfIt) {
  AgentClient client(root_);
  agent::Request request =
      StartRequest("job", "worker:0",
                   Shell("for i in $(seq 30); do until [ -e go$i ]; do sleep 0.01; done; seq 3000; done"));
  request.mutable_start_task()->set_max_log_bytes(100'000);
  ASSERT_TRUE(client.Call(request).ok());
  std::string piece, all;
  for (int i = 1; i <= 3000; ++i) piece += std::to_string(i) + "\n";
  for (int i = 0; i < 30; ++i) all += piece;
  // The task may be two pieces ahead of what has come, 28 KB.
  const auto go_on = [&](const std::string& come) {
    const size_t pieces = come.size() / piece.size();
    for (size_t i = 1; i <= pieces + 2; ++i) {
      std::ofstream(root_ / "jobs/job/worker.0" / ("go" + std::to_string(i)));
    }
    return false;
  };
  go_on("");
  const auto followed = client.Follow("job", "worker:0", 0, go_on);
  ASSERT_TRUE(followed.ok()) << followed.status();
  EXPECT_TRUE(*followed == all);
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
  const absl::Status missing = client.Call(request).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(missing), testing::AllOf(HasSubstr("worker:0"), HasSubstr(std::string(64, 'f')),
                                               HasSubstr("run the job again")));
  // What runs or has ended needs none.
  request.mutable_start_task()->set_program_sha256(sha256);
  request.mutable_start_task()->set_generation(1);
  ASSERT_TRUE(RemoveTree(root_ / "store" / sha256).ok());
  const auto again = client.Call(request);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->start_task().already_running());
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

// Who was told that they are there may come to start its tasks behind somebody who collects.
TEST_F(AgentTest, NothingIsStartedWithoutItsContents) {
  const std::string data(64, 'a');
  ASSERT_TRUE(MakeDirectories(root_ / "store" / data).ok());
  AgentClient client(root_);
  agent::Request store, collect;
  store.mutable_store()->add_sha256(data);
  EXPECT_EQ(client.Call(store)->store().present_sha256_size(), 1);
  collect.mutable_collect_garbage()->set_unused_seconds(0);
  EXPECT_EQ(client.Call(collect)->collect_garbage().removed_sha256_size(), 1);
  agent::Request start = NewStart("worker:0", {"true"});
  start.mutable_start_task()->add_environment("MUSTER_DATA={store:" + data + "}");
  EXPECT_THAT(Message(client.Call(start).status()), HasSubstr(data));
  EXPECT_EQ(List()->tasks_size(), 0);
  // Once they are there again; they count as used then.
  ASSERT_TRUE(MakeDirectories(root_ / "store" / data).ok());
  std::filesystem::last_write_time(root_ / "store" / data, {});
  EXPECT_EQ(RunToEnd(client, start).state(), agent::TASK_STATE_SUCCEEDED);
  agent::Request forget;
  forget.mutable_forget_job()->set_job("job");
  ASSERT_TRUE(client.Call(forget).ok());
  collect.mutable_collect_garbage()->set_unused_seconds(3600);
  EXPECT_EQ(client.Call(collect)->collect_garbage().removed_sha256_size(), 0);
}

}  // namespace
}  // namespace muster
