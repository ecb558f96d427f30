#include "launcher/job_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>
#include <tuple>

namespace muster {
namespace {

using ::testing::HasSubstr;

class JobStoreTest : public testing::Test {
 protected:
  enum class Terminated { kEnds, kLetsGo, kDoesNothing };

  // Another process that drives the job, and has said so.
  pid_t StartDriver(bool in_background, Terminated terminated = Terminated::kEnds) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const UniqueFd read_end(ends[0]);
    UniqueFd write_end(ends[1]);
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      sigset_t termination;
      ::sigemptyset(&termination);
      ::sigaddset(&termination, SIGTERM);
      if (terminated != Terminated::kEnds) ::sigprocmask(SIG_BLOCK, &termination, nullptr);
      auto lock = store_.Lock("j-1");
      if (!lock.ok() || !lock->SetInBackground(in_background).ok()) ::_exit(1);
      (void)!::write(write_end.get(), "x", 1);
      int number;
      if (terminated == Terminated::kLetsGo && ::sigwait(&termination, &number) == 0) {
        lock = absl::CancelledError();
        ::sigprocmask(SIG_UNBLOCK, &termination, nullptr);  // a second one would end it
      }
      while (true) ::pause();
    }
    write_end.reset();
    char byte = 0;
    EXPECT_EQ(::read(read_end.get(), &byte, 1), 1);
    return child;
  }
  // The signal that has ended it.
  static int SignalOf(pid_t child) {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }
  std::filesystem::path LockFile() const { return store_.JobFolder("j-1") / "lock"; }

  const TemporaryDirectory folder_;
  const JobStore store_{folder_.path()};
};

TEST_F(JobStoreTest, WhatTheReconcilerRemembersComesBack) {
  reconcile::Record record{.generation = 7, .base_generation = 3, .fixed = true, .leasing = true};
  record.cluster = std::make_shared<reconcile::Cluster>(
      reconcile::Cluster{{"ps:0", "a", "10.0.0.1", 20000, /*minimum_incarnation=*/3, /*restarts=*/1}});
  record.strays = {"b"};
  record.departures = {{.task = "worker:3", .minimum_incarnation = 1'000'002}};
  record.incarnations = {{.task = "ps:0", .spec_hash = "v1", .number = 4, .restarts = 2, .has_ended = true}};
  record.retries = 2;
  record::JobRecord job;
  job.set_version(kJobRecordVersion);
  job.set_id("j-1");
  *job.mutable_cluster() = ToProto(record);
  ASSERT_TRUE(store_.Save(job).ok());
  const auto loaded = store_.Load("j-1");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const reconcile::Record back = FromProto(loaded->cluster());
  EXPECT_EQ(back.generation, 7u);
  EXPECT_EQ(back.base_generation, 3u);
  EXPECT_TRUE(back.fixed && back.leasing);
  EXPECT_EQ(*back.cluster, *record.cluster);
  EXPECT_EQ(back.strays, record.strays);
  EXPECT_EQ(back.departures, record.departures);
  EXPECT_EQ(back.incarnations, record.incarnations);
  EXPECT_EQ(back.retries, 2);
}

// It may be the one that is meant, and run: no other one of its name takes its place, or begins beside it.
TEST_F(JobStoreTest, ARecordThatCannotBeReadIsNotPassedOver) {
  record::JobRecord record;
  record.set_version(kJobRecordVersion);
  for (const char* id : {"mnist-aaaaaa", "mnist-big-bbbbbb"}) {
    record.set_id(id);
    record.set_name(std::string(id).substr(0, std::string(id).rfind('-')));
    ASSERT_TRUE(store_.Save(record).ok());
  }
  ASSERT_TRUE(MakeDirectories(store_.JobFolder("mnist-cccccc")).ok());
  EXPECT_EQ(store_.Find("mnist")->id(), "mnist-aaaaaa") << "a folder without a record is no job";
  ASSERT_TRUE(WriteFileAtomically(store_.JobFolder("mnist-cccccc") / kRecordFile, "\x0a\xff").ok());
  for (const char* wanted : {"mnist", "mnist-cccccc"}) {
    const auto found = store_.Find(wanted);
    EXPECT_TRUE(absl::IsDataLoss(found.status())) << found.status();
    EXPECT_THAT(std::string(found.status().message()), HasSubstr("mnist-cccccc/record.pb is damaged"));
  }
  EXPECT_EQ(store_.Find("mnist-aaaaaa")->id(), "mnist-aaaaaa");
  EXPECT_EQ(store_.Find("mnist-big")->id(), "mnist-big-bbbbbb");
  EXPECT_TRUE(absl::IsInvalidArgument(store_.Find("nobody").status()));
  ASSERT_TRUE(WriteFileAtomically(folder_.path() / "jobs/notes", "no folder of a job").ok());
  std::vector<absl::Status> problems;
  EXPECT_EQ(store_.List(&problems).size(), 2u);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_THAT(std::string(problems[0].message()), HasSubstr("its folder can be removed"));
  EXPECT_EQ(store_.Find("mnist-big")->id(), "mnist-big-bbbbbb");

  ASSERT_TRUE(RemoveTree(folder_.path() / "jobs").ok());
  ASSERT_TRUE(WriteFileAtomically(folder_.path() / "jobs", "no folder").ok());
  EXPECT_FALSE(absl::IsInvalidArgument(store_.Find("mnist").status()));
  problems.clear();
  EXPECT_TRUE(store_.List(&problems).empty());
  EXPECT_EQ(problems.size(), 1u);
}

// Else a second one would begin beside it.
TEST_F(JobStoreTest, TheJobOfANameIsTheOneThatHasNotEnded) {
  record::JobRecord record;
  record.set_version(kJobRecordVersion);
  record.set_name("mnist");
  for (const auto& [id, created, ended] :
       {std::tuple("mnist-aaaaaa", 9, 10), std::tuple("mnist-bbbbbb", 5, 0),
        std::tuple("mnist-cccccc", 7, 8)}) {
    record.set_id(id);
    record.set_created_micros(created);
    record.set_ended_micros(ended);
    ASSERT_TRUE(store_.Save(record).ok());
  }
  EXPECT_EQ(store_.Find("mnist")->id(), "mnist-bbbbbb");
  record = *store_.Load("mnist-bbbbbb");
  record.set_ended_micros(6);
  ASSERT_TRUE(store_.Save(record).ok());
  EXPECT_EQ(store_.Find("mnist")->id(), "mnist-aaaaaa");
}

TEST_F(JobStoreTest, SaysWhoDrivesAJobAsLongAsSomebodyDoes) {
  EXPECT_FALSE(store_.DriverOf("j-1").has_value());
  {
    const auto lock = store_.Lock("j-1");
    ASSERT_TRUE(lock.ok()) << lock.status();
    EXPECT_EQ(store_.DriverOf("j-1")->pid, ::getpid());
    EXPECT_FALSE(store_.DriverOf("j-1")->in_background);
    ASSERT_TRUE(lock->SetInBackground(true).ok());
    EXPECT_TRUE(store_.DriverOf("j-1")->in_background);
    ASSERT_TRUE(lock->SetInBackground(false).ok());
    EXPECT_FALSE(store_.DriverOf("j-1")->in_background);
  }
  EXPECT_FALSE(store_.DriverOf("j-1").has_value());
}

// A disk that is full then keeps nobody from driving the job.
TEST_F(JobStoreTest, ALockFileKeepsItsRoomOnTheDisk) {
  ASSERT_TRUE(store_.Lock("j-1").ok());
  EXPECT_GT(std::filesystem::file_size(LockFile()), 0u);
  EXPECT_FALSE(store_.DriverOf("j-1").has_value());
}

TEST_F(JobStoreTest, AJobThatAFullDiskKeepsFromBeginningLeavesNoFolder) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, SIG_IGN);
  record::JobRecord record;
  record.set_version(kJobRecordVersion);
  record.set_id("j-1");
  record.set_job_file(std::string(1000, 'x'));
  for (const rlim_t bytes : {0, 100}) {  // too few for the lock, and for the record
    const rlimit small{bytes, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    absl::Status status;
    {
      const auto lock = store_.Lock("j-1");
      EXPECT_EQ(lock.ok(), bytes > 0) << lock.status();
      status = lock.ok() ? store_.Save(record) : lock.status();
    }
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_THAT(std::string(status.message()), HasSubstr(store_.JobFolder("j-1").string() + "/"));
    EXPECT_FALSE(std::filesystem::exists(store_.JobFolder("j-1"))) << status;
  }
  ASSERT_TRUE(store_.Save(record).ok());
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  EXPECT_FALSE(store_.Lock("j-1").ok());
  EXPECT_FALSE(store_.Save(record).ok());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, SIG_DFL);
  EXPECT_TRUE(store_.Load("j-1").ok());
}

TEST_F(JobStoreTest, WhoDrivesItIsSaidWhileHowChanges) {
  const auto lock = store_.Lock("j-1");
  ASSERT_TRUE(lock.ok()) << lock.status();
  std::atomic<bool> has_ended = false;
  std::thread changes([&] {
    for (int i = 0; i < 5000; ++i) EXPECT_TRUE(lock->SetInBackground(i % 2 == 0).ok());
    has_ended = true;
  });
  int unsaid = 0;
  while (!has_ended) unsaid += !store_.DriverOf("j-1").has_value();
  changes.join();
  EXPECT_EQ(unsaid, 0);
}

TEST_F(JobStoreTest, WhoDrivesItInTheForegroundIsNotEnded) {
  const pid_t driver = StartDriver(/*in_background=*/false);
  const auto lock = store_.TakeOver("j-1");
  EXPECT_TRUE(absl::IsFailedPrecondition(lock.status())) << lock.status();
  EXPECT_THAT(std::string(lock.status().message()), HasSubstr("process " + std::to_string(driver)));
  ::kill(driver, SIGKILL);
  EXPECT_EQ(SignalOf(driver), SIGKILL);
}

TEST_F(JobStoreTest, WhoDrivesItInTheBackgroundIs) {
  const pid_t driver = StartDriver(/*in_background=*/true);
  const auto lock = store_.TakeOver("j-1");
  EXPECT_TRUE(lock.ok()) << lock.status();
  EXPECT_EQ(SignalOf(driver), SIGTERM);
  EXPECT_EQ(store_.DriverOf("j-1")->pid, ::getpid());
}

// It has something to do that is not the job's.
TEST_F(JobStoreTest, WhoLetsGoOfItMayLiveOn) {
  const pid_t driver = StartDriver(/*in_background=*/true, Terminated::kLetsGo);
  const auto lock = store_.TakeOver("j-1");
  EXPECT_TRUE(lock.ok()) << lock.status();
  EXPECT_EQ(store_.DriverOf("j-1")->pid, ::getpid());
  EXPECT_EQ(::waitpid(driver, nullptr, WNOHANG), 0);
  ::kill(driver, SIGKILL);
  EXPECT_EQ(SignalOf(driver), SIGKILL);
}

TEST_F(JobStoreTest, WhoDoesNotIsKilled) {
  const pid_t driver = StartDriver(/*in_background=*/true, Terminated::kDoesNothing);
  const auto lock = store_.TakeOver("j-1");
  EXPECT_TRUE(lock.ok()) << lock.status();
  EXPECT_EQ(SignalOf(driver), SIGKILL);
  EXPECT_EQ(store_.DriverOf("j-1")->pid, ::getpid());
}

TEST_F(JobStoreTest, ALockFileThatNamesNoProcessNamesNobody) {
  ASSERT_TRUE(store_.Lock("j-1").ok());
  const std::string self = std::to_string(::getpid());
  for (const std::string& text :
       {std::string(), std::string("x\n"), std::string("-1 7 background\n"), self, self + " 1 background\n",
        std::string(4096, '9'), std::string("1 99999999999999999999999 background\n")}) {
    ASSERT_TRUE(WriteFileAtomically(LockFile(), text).ok());
    EXPECT_FALSE(store_.DriverOf("j-1").has_value()) << text;
  }
}

TEST_F(JobStoreTest, WhoDrivesItIsToldToStopItAndWhoDrivesItNextIsNot) {
  {
    const auto lock = store_.Lock("j-1");
    ASSERT_TRUE(lock.ok());
    EXPECT_FALSE(store_.IsToStop("j-1"));
    ASSERT_TRUE(store_.AskToStop("j-1").ok());
    EXPECT_TRUE(store_.IsToStop("j-1"));
    EXPECT_FALSE(store_.Lock("j-1").ok());
    EXPECT_TRUE(store_.IsToStop("j-1"));
  }
  ASSERT_TRUE(store_.Lock("j-1").ok());
  EXPECT_FALSE(store_.IsToStop("j-1"));
}

}  // namespace
}  // namespace muster
