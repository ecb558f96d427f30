// What is known of tasks on a disk that is full: how they ended, and that they were stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "agent/agent_fixture.h"
#include "agent/records.h"
#include "tests/support/fault_hosts.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

class FullDisk : public AgentTest {
 protected:
  FullDisk() { std::filesystem::create_directories(root_); }
  void SetUp() override {
    disk_.emplace(root_.string(), 2 << 20);
    if (!disk_->mounted()) GTEST_SKIP() << "cannot mount a tmpfs here: needs root";
  }
  void TearDown() override {
    if (disk_->mounted()) AgentTest::TearDown();
  }

  void Fill() {
    std::ofstream full(root_ / "full");
    while (full.write("x", 1).flush()) {
    }
    EXPECT_EQ(std::filesystem::space(root_).available, 0u);
  }
  void Free() { std::filesystem::remove(root_ / "full"); }

  // Ends with 0 when its file is gone.
  agent::Request StartWaiting() {
    agent::Request request = StartRequest("job", "worker:0", Shell("while [ -e wait ]; do sleep 0.01; done"));
    agent::FileContent* file = request.mutable_start_task()->add_files();
    file->set_path("wait");
    request.mutable_start_task()->set_restart(agent::RESTART_POLICY_ON_FAILURE);
    request.mutable_start_task()->set_max_restarts(-1);
    return request;
  }

  std::optional<SmallDisk> disk_;
};

TEST_F(FullDisk, ASuccessIsASuccess) {
  AgentClient client(root_);
  ASSERT_TRUE(client.Call(StartWaiting()).ok());
  Fill();
  std::filesystem::remove(root_ / "jobs/job/worker.0/wait");
  const auto end = client.WaitForEnd("job", "worker:0");
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->state(), agent::TASK_STATE_SUCCEEDED) << end->reason();
  EXPECT_EQ(end->incarnation(), 1u);
  KillDaemon();
  Free();
  const auto known = List();
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(known->tasks(0).state(), agent::TASK_STATE_SUCCEEDED) << known->tasks(0).reason();
}

TEST_F(FullDisk, WhatWasStoppedStaysSo) {
  {
    AgentClient client(root_);
    ASSERT_TRUE(client.Call(StartWaiting()).ok());
    Fill();
    agent::Request stop = StopRequest("job", 1000);
    stop.mutable_stop_tasks()->set_minimum_generation(2);
    const auto stopped = client.Call(stop);
    ASSERT_TRUE(stopped.ok()) << stopped.status();
    EXPECT_EQ(stopped->stop_tasks().processes_left(), 0);
  }
  KillDaemon();
  Free();
  const auto known = List();
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(known->tasks(0).state(), agent::TASK_STATE_FAILED) << known->tasks(0).reason();
  EXPECT_TRUE(known->tasks(0).stopped());
  EXPECT_EQ(CountTokens("job"), 0);
  // Nor does a start that comes late bring it back.
  AgentClient client(root_);
  EXPECT_THAT(Message(client.Call(StartWaiting()).status()), HasSubstr("is older than 2"));
}

TEST_F(FullDisk, NothingIsStartedOfWhichNothingCouldBeRemembered) {
  AgentClient client(root_);
  Fill();
  EXPECT_THAT(Message(client.Call(StartWaiting()).status()), HasSubstr("No space left on device"));
  Free();
  EXPECT_TRUE(client.Call(StartWaiting()).ok());
}

// Whatever there is room for: its record, some of its files.
TEST_F(FullDisk, WhatWasRefusedIsNotRunLater) {
  AgentClient client(root_);
  RunToEnd(client, {"true"});
  const std::filesystem::path folder = root_ / "jobs/job/worker.0";
  std::filesystem::create_directory(folder / "taken");
  Fill();
  uint64_t size = std::filesystem::file_size(root_ / "full");
  for (int pages = 0; pages < 20; ++pages, size -= 4096) {
    std::filesystem::resize_file(root_ / "full", size);
    agent::Request request = NewStart("worker:0", {"true"});
    for (const char* path : {"a", "b", "c", "d", "e", "f", "taken"}) {
      agent::FileContent* file = request.mutable_start_task()->add_files();
      file->set_path(path);
      file->set_content("x");
    }
    EXPECT_FALSE(client.Call(request).ok());
    agent::TaskRecord record;
    const absl::Status read = ReadRecord(TaskRecordPath(folder), "task", record);
    EXPECT_TRUE(read.ok()) << read;
    EXPECT_EQ(record.spec().generation(), 1u) << pages << " pages were free";
  }
  Free();
}

// Of which only that could not be written down.
TEST_F(AgentTest, WhatWasStoppedByItsGenerationIsNotStartedAgain) {
  FailWithoutNextStart(/*max_restarts=*/2);
  agent::FenceRecord fence;
  fence.set_minimum_generation(2);
  ASSERT_TRUE(WriteRecord(root_ / "jobs/job/.fence", "fence", fence).ok());
  AgentClient client(root_);
  const auto end = client.WaitForEnd("job", "worker:0");
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->state(), agent::TASK_STATE_FAILED);
  EXPECT_TRUE(end->stopped());
  EXPECT_THAT(end->reason(), HasSubstr("stopped before its next start"));
}

// By a daemon that was killed before it had done so.
TEST_F(AgentTest, WhatWasToBeStartedSaysWhyItIsNot) {
  const std::filesystem::path folder = root_ / "jobs/job/worker.0";
  agent::TaskRecord record;
  *record.mutable_spec() = StartRequest("job", "worker:0", {"true"}).start_task();
  record.set_incarnation(1);
  record.set_first_incarnation(1);
  agent::FenceRecord fence;
  fence.set_minimum_generation(2);
  ASSERT_TRUE(MakeDirectories(AgentFolder(folder), 0700).ok());
  ASSERT_TRUE(WriteRecord(TaskRecordPath(folder), "task", record).ok());
  ASSERT_TRUE(WriteRecord(root_ / "jobs/job/.fence", "fence", fence).ok());
  const auto known = List("job");
  ASSERT_TRUE(known.ok()) << known.status();
  ASSERT_EQ(known->tasks_size(), 1);
  EXPECT_EQ(known->tasks(0).reason(), "it waits for whoever drives the job");
  AgentClient client(root_);
  const auto end = client.WaitForEnd("job", "worker:0");
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->reason(), "stopped before its next start");
}

// It takes a minute until a daemon gives one up; the next one does not begin anew.
TEST_F(AgentTest, WhatCouldNotBeStartedAgainIsNotTriedByTheNextDaemon) {
  FailWithoutNextStart(/*max_restarts=*/-1);
  const std::filesystem::path folder = root_ / "jobs/job/worker.0";
  agent::TaskRecord record;
  ASSERT_TRUE(ReadRecord(TaskRecordPath(folder), "task", record).ok());
  record.set_given_up("could not be started again: it was enough");
  ASSERT_TRUE(WriteRecord(TaskRecordPath(folder), "task", record).ok());
  AgentClient client(root_);
  const auto known = client.WaitForEnd("job", "worker:0");
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(known->state(), agent::TASK_STATE_FAILED);
  EXPECT_FALSE(known->stopped());
  EXPECT_EQ(known->reason(), "could not be started again: it was enough");
  EXPECT_EQ(known->incarnation(), record.incarnation());
  // Another start is another matter.
  agent::Request request = StartRequest("job", "worker:0", {"true"});
  request.mutable_start_task()->set_generation(2);
  EXPECT_EQ(RunToEnd(client, request).state(), agent::TASK_STATE_SUCCEEDED);
}

}  // namespace
}  // namespace muster
