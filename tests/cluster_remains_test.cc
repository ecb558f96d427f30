// What jobs that have ended leave on their hosts, and who asks which hosts for it: stop, gc and show.
#include <absl/strings/str_replace.h>

#include "tests/support/fault_hosts.h"
#include "tests/support/lifecycle_fixture.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class ClusterRemains : public LifecycleTest {
 protected:
  // On two hosts, with a data set.
  std::string JobWithData() {
    EXPECT_TRUE(MakeDirectories(Path("data")).ok());
    cluster_.Write("data/numbers", "1 2 3\n");
    const std::string job = ScriptJob("fed", "test -f \"$MUSTER_DATA/numbers\"", "count: 2");
    cluster_.Write("fed.yaml", cluster_.Text("fed.yaml") + "data: data\n");
    return job;
  }
  // With host-2 where nobody is.
  std::string WrongInventory(const std::string& more_defaults = "") {
    return cluster_.Write(
        "wrong.yaml",
        absl::StrReplaceAll(
            cluster_.hosts().Text("inventory.yaml"),
            {{".2:", ".77:"}, {".2,", ".77,"}, {"defaults: {", "defaults: {" + more_defaults}}));
  }
  void InterruptAtOnce(const std::string& job, const std::string& inventory) {
    Process run = cluster_.Start({"run", job, "-i", inventory}, "interrupted");
    ASSERT_TRUE(cluster_.WaitForText("interrupted", "tasks on 2 hosts")) << cluster_.Text("interrupted");
    run.Signal(SIGINT);
    EXPECT_EQ(ExitCodeOf(run), 130) << cluster_.Text("interrupted");
  }
  int JobFoldersOn(const std::string& host) {
    int count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(cluster_.hosts().HomeOf(host))) {
      count += entry.path().parent_path().filename() == "jobs";
    }
    return count;
  }
};

TEST_F(ClusterRemains, StopOfAJobThatHasEndedAsksOnlyTheHostsThatHadIt) {
  ASSERT_EQ(RunJob(ScriptJob("ended", "exit 0", "count: 2")).exit_code, 0);
  cluster_.hosts().Kill("host-3");  // a spare one
  const CommandResult stop = Muster({"stop", "ended"});
  EXPECT_EQ(stop.exit_code, 0) << stop.stderr_text;
  EXPECT_THAT(stop.stderr_text, HasSubstr(": 0 processes, 0 ports on 2 hosts\n"));

  cluster_.hosts().Kill("host-2");
  const CommandResult half = Muster({"stop", "ended"});
  EXPECT_EQ(half.exit_code, 69);
  EXPECT_THAT(half.stderr_text, AllOf(HasSubstr("host-2 ("), Not(HasSubstr("host-3")),
                                      ContainsRegex("\nmuster: .*`muster stop ended-[a-z0-9]+` again")));
  EXPECT_EQ(half.stderr_text.find("host-2"), half.stderr_text.rfind("host-2")) << half.stderr_text;
  for (const char* host : {"host-2", "host-3"}) cluster_.hosts().Start(host);
}

// Who drives it in the foreground sees its tasks stopped, and ends.
TEST_F(ClusterRemains, StopOfAJobInTheForegroundAsksOnlyTheHostsThatHaveIt) {
  Process run = StartJob(ScriptJob("driven", kWaitForGo, "count: 2"), "driven");
  WaitForTasks("driven", 2);
  cluster_.hosts().Kill("host-3");  // a spare one
  const CommandResult stop = Muster({"stop", "driven"});
  EXPECT_EQ(stop.exit_code, 0) << stop.stderr_text;
  EXPECT_THAT(stop.stderr_text,
              AllOf(HasSubstr(": 0 processes, 0 ports on 2 hosts\n"), Not(HasSubstr("host-3"))));
  EXPECT_EQ(ExitCodeOf(run), 130) << cluster_.Text("driven");
  cluster_.hosts().Start("host-3");
}

TEST_F(ClusterRemains, GcRemovesWhatEndedJobsLeftAndNothingElse) {
  const auto folders = [&](const std::string& name) {
    int count = 0;
    for (const char* host : {"host-1", "host-2", "host-3"}) {
      for (const auto& entry :
           std::filesystem::directory_iterator(cluster_.hosts().HomeOf(host) + "/.muster/hosts")) {
        std::error_code error;
        EXPECT_TRUE(std::filesystem::is_empty(entry.path() / "trash", error) || error);
      }
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(cluster_.hosts().folder())) {
      count += entry.path().parent_path().filename() == "jobs" &&
               entry.path().filename().string().starts_with(name + "-");
    }
    return count;
  };
  Process other = StartJob(ScriptJob("other", kWaitForGo, "count: 2"), "other");
  const auto other_tasks = WaitForTasks("other", 2);
  for (const char* name : {"first", "second"}) ASSERT_EQ(RunJob(ScriptJob(name, "echo done")).exit_code, 0);
  EXPECT_EQ(folders("first"), 3);

  const CommandResult running = Muster({"gc", "other"});
  EXPECT_EQ(running.exit_code, 2);
  EXPECT_THAT(running.stderr_text, AllOf(HasSubstr("has not ended"), HasSubstr("muster stop other-")));

  const CommandResult one = Muster({"gc", "first"});
  EXPECT_EQ(one.exit_code, 0) << one.stderr_text;
  EXPECT_THAT(one.stderr_text, HasSubstr("0 folders on 3 hosts are left; removed the folders of 1 job"));
  EXPECT_EQ(folders("first"), 0);
  EXPECT_EQ(folders("second"), 3);
  const CommandResult logs = Muster({"logs", "first"});
  EXPECT_EQ(logs.exit_code, 2);
  EXPECT_THAT(logs.stderr_text, HasSubstr("`muster gc`"));

  cluster_.hosts().Kill("host-3");
  const CommandResult some = Muster({"gc", "--connect-timeout", "2"});
  EXPECT_EQ(some.exit_code, 69);
  EXPECT_THAT(
      some.stderr_text,
      AllOf(HasSubstr("host-3 ("), HasSubstr("1 folder on 3 hosts is left; removed the folders of 0 jobs")));
  EXPECT_EQ(folders("second"), 1);
  cluster_.hosts().Start("host-3");
  const CommandResult rest = Muster({"gc"});
  EXPECT_EQ(rest.exit_code, 0) << rest.stderr_text;
  EXPECT_EQ(folders("second"), 0);
  EXPECT_THAT(Muster({"gc"}).stderr_text, HasSubstr("0 folders on 0 hosts are left"));

  EXPECT_EQ(folders("other"), 2);
  EXPECT_EQ(FirstProcesses("other"), other_tasks);
  Touch("go");
  EXPECT_EQ(ExitCodeOf(other), 0);
}

// Programs and data that were used a moment ago stay, and are not forgotten, wherever they are.
TEST_F(ClusterRemains, WhatGcHasLeftALaterOneRemoves) {
  const auto contents = [&](const std::string& host) {
    int count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(cluster_.hosts().HomeOf(host))) {
      count += entry.path().parent_path().filename() == "store" &&
               entry.path().filename().string().size() == 64;  // a SHA-256
    }
    return count;
  };
  const std::string nothing_left = "0 folders on 0 hosts are left; removed the folders of 0 jobs\n";
  const std::string job = JobWithData();
  const CommandResult run = RunJob(job);
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  for (int i = 0; i < 2; ++i) {
    const CommandResult gc = Muster({"gc"});
    EXPECT_EQ(gc.exit_code, 0) << gc.stderr_text;
    EXPECT_THAT(
        gc.stderr_text,
        AllOf(HasSubstr("0 folders on 2 hosts are left"), HasSubstr("2 programs and data sets, "),
              HasSubstr(" were used in the last 1h00m and stay (--unused 0 removes what no job needs)\n")));
  }
  EXPECT_EQ(contents("host-1"), 1);
  EXPECT_EQ(contents("host-2"), 1);

  cluster_.hosts().Kill("host-2");
  const CommandResult half = Muster({"gc", "--unused", "0", "--connect-timeout", "2"});
  EXPECT_EQ(half.exit_code, 69);
  EXPECT_EQ(contents("host-1"), 0);
  cluster_.hosts().Start("host-2");
  const CommandResult rest = Muster({"gc", "--unused", "0"});
  EXPECT_EQ(rest.exit_code, 0) << rest.stderr_text;
  EXPECT_THAT(
      rest.stderr_text,
      HasSubstr("0 folders on 1 host are left; removed the folders of 0 jobs and 1 program or data set, "));
  EXPECT_EQ(contents("host-2"), 0);
  EXPECT_EQ(Muster({"gc", "--unused", "0"}).stderr_text, nothing_left);
}

// Which may just be beginning, and have heard from a host that it has what the job needs.
TEST_F(ClusterRemains, WhatAJobMayWantIsNotTakenFromItsHosts) {
  const std::string job = JobWithData();
  ASSERT_EQ(RunJob(job).exit_code, 0);
  Process other = StartJob(ScriptJob("other", kWaitForGo, "count: 1"), "other");
  WaitForTasks("other", 1);  // on host-1
  const CommandResult beside = Muster({"gc", "--unused", "0"});
  EXPECT_EQ(beside.exit_code, 0) << beside.stderr_text;
  EXPECT_THAT(beside.stderr_text,
              AllOf(HasSubstr("removed the folders of 1 job and 1 program or data set, "),
                    HasSubstr("; 1 program or data set, "), HasSubstr(", stay where a job has not ended\n")));
  Touch("go");
  EXPECT_EQ(ExitCodeOf(other), 0);
  EXPECT_THAT(Muster({"gc", "--unused", "0"}).stderr_text, HasSubstr(" and 1 program or data set, "));
}

TEST_F(ClusterRemains, AHostThatNeverComesBackIsAskedNoMore) {
  const std::string job = JobWithData();
  ASSERT_EQ(RunJob(job).exit_code, 0);
  cluster_.hosts().Kill("host-2");
  const CommandResult lost = Muster({"gc", "--unused", "0", "--connect-timeout", "2"});
  EXPECT_EQ(lost.exit_code, 69);
  EXPECT_THAT(lost.stderr_text, HasSubstr("`--gone HOST`"));
  const CommandResult other = Muster({"gc", "--gone", "host-3"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.stderr_text, HasSubstr("--gone host-3: no job that has ended has left anything"));

  const CommandResult gone = Muster({"gc", "--gone", "host-2"});
  EXPECT_EQ(gone.exit_code, 0) << gone.stderr_text;
  EXPECT_THAT(gone.stderr_text, HasSubstr("removed the folders of 1 job\n"));
  const CommandResult rest = Muster({"gc"});
  EXPECT_EQ(rest.exit_code, 0) << rest.stderr_text;
  EXPECT_EQ(rest.stderr_text, "0 folders on 0 hosts are left; removed the folders of 0 jobs\n");
}

// With which runs of the job never began.
TEST_F(ClusterRemains, AWrongAddressHidesNothingOfOtherRuns) {
  const std::string job = JobWithData();
  ASSERT_EQ(RunJob(job).exit_code, 0);
  const std::string wrong = WrongInventory();
  const CommandResult failed = Muster({"run", job, "-i", wrong});
  EXPECT_EQ(failed.exit_code, 69);
  EXPECT_THAT(failed.stderr_text, HasSubstr("nothing was started"));
  const CommandResult stop = Muster({"stop", "fed"});
  EXPECT_EQ(stop.exit_code, 0) << stop.stderr_text;
  InterruptAtOnce(job, wrong);

  const CommandResult gc = Muster({"gc"});
  EXPECT_EQ(gc.exit_code, 0) << gc.stderr_text;
  EXPECT_THAT(gc.stderr_text, HasSubstr("0 folders on 2 hosts are left; removed the folders of 3 jobs"));
  EXPECT_EQ(JobFoldersOn("host-2"), 0);
}

TEST_F(ClusterRemains, OfTheHomesOfAHostOnlyThoseAreGoneThatAreNotReached) {
  const std::string job = JobWithData();
  ASSERT_EQ(RunJob(job).exit_code, 0);
  InterruptAtOnce(job, WrongInventory("dir: " + Path("elsewhere") + ", "));
  EXPECT_EQ(JobFoldersOn("host-2"), 1);
  const CommandResult gone = Muster({"gc", "--gone", "host-2"});
  EXPECT_EQ(gone.exit_code, 0) << gone.stderr_text;
  EXPECT_EQ(JobFoldersOn("host-2"), 0);
  const CommandResult rest = Muster({"gc"});
  EXPECT_EQ(rest.exit_code, 0) << rest.stderr_text;
}

TEST_F(ClusterRemains, AfterGcTasksAreShownAsTheRecordHasThem) {
  ASSERT_EQ(RunJob(ScriptJob("fine", "exit 0", "count: 2")).exit_code, 0);
  ASSERT_EQ(RunJob(ScriptJob("fails", "[ $RANK != 1 ] || exit 3\nexec sleep 600", "count: 2")).exit_code, 3);
  const Json before = ShowTask("fine", "worker:1");
  ASSERT_EQ(Muster({"gc"}).exit_code, 0);
  const Json after = ShowTask("fine", "worker:1");
  for (const char* column : {"state", "restarts", "reason"})
    EXPECT_EQ(after[column], before[column]) << column;
  EXPECT_EQ(after["state"], "Succeeded");
  EXPECT_EQ(ShowTask("fails", "worker:1")["state"], "Removed");
}

TEST_F(ClusterRemains, OfAJobThatNeverStartedNothingIsSoughtOnHostsThatWereNotReached) {
  std::string keys = cluster_.hosts().Text("known_hosts");
  keys.erase(keys.find("host-3 "));
  const CommandResult run =
      RunJob(ScriptJob("never", "exit 0"), {"--known-hosts", cluster_.Write("keys", keys)});
  ASSERT_EQ(run.exit_code, 69) << run.stderr_text;
  ASSERT_THAT(run.stderr_text, HasSubstr("nothing was started"));
  EXPECT_EQ(Muster({"stop", "never"}).exit_code, 0);
  // The others may have got its program.
  const CommandResult gc = Muster({"gc"});
  EXPECT_EQ(gc.exit_code, 0) << gc.stderr_text;
  EXPECT_THAT(gc.stderr_text, HasSubstr("0 folders on 2 hosts are left"));
}

TEST_F(ClusterRemains, GcReachesHostsAsTheirJobDid) {
  ASSERT_EQ(RunJob(ScriptJob("fine", "exit 0", "count: 1")).exit_code, 0);
  const CommandResult gc = Muster({"gc", "--known-hosts", cluster_.Write("nobody", "")});
  EXPECT_EQ(gc.exit_code, 69);
  EXPECT_THAT(gc.stderr_text, HasSubstr("muster check --accept-new -i " + cluster_.inventory() + " "));
}

TEST_F(ClusterRemains, AHostOfAWrongInventoryIsForgottenWhenNothingWasStarted) {
  const SilentHost silent;
  const std::string wrong = cluster_.Write(
      "wrong.yaml",
      absl::StrFormat("hosts: {typo: {ssh: \"127.0.0.1:%d\", data: 127.0.0.1}}\n", silent.port()));
  const std::string job = ScriptJob("corrected", "exit 0");
  Process first = cluster_.Start({"run", job, "-i", wrong}, "first");
  ASSERT_TRUE(cluster_.WaitForText("first", "tasks on 1 hosts"));
  first.Signal(SIGKILL);
  EXPECT_EQ(ExitCodeOf(first), 128 + SIGKILL);

  const CommandResult second = RunJob(job);
  EXPECT_EQ(second.exit_code, 0) << second.stderr_text;
  EXPECT_EQ(Json::parse(Muster({"list", "-o", "json"}).stdout_text).size(), 1u);
  EXPECT_EQ(Muster({"show", "corrected"}).exit_code, 0);
  const CommandResult stop = Muster({"stop", "corrected"});
  EXPECT_EQ(stop.exit_code, 0) << stop.stderr_text;
  EXPECT_THAT(stop.stderr_text, HasSubstr(": 0 processes, 0 ports on 3 hosts\n"));
}

}  // namespace
}  // namespace muster
