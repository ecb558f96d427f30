// A job whose record cannot be written any more.
#include "tests/support/fault_hosts.h"
#include "tests/support/lifecycle_fixture.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ClusterRecord : public LifecycleTest {
 protected:
  // Which nobody drives.
  void Orphan(const std::string& job) {
    Process run = StartJob(ScriptJob(job, "exec sleep 600", "count: 2"), "run");
    WaitForTasks(job, 2);
    run.Signal(SIGKILL);
    EXPECT_EQ(ExitCodeOf(run), 128 + SIGKILL);
  }
  void ExpectStoppedAndNotWrittenDown(const std::string& job, const std::string& why) {
    const CommandResult stop = Muster({"stop", job});
    EXPECT_EQ(stop.exit_code, 1);
    EXPECT_THAT(stop.stderr_text, AllOf(HasSubstr(": 0 processes, 0 ports on "),
                                        HasSubstr(" ended is not written down"), HasSubstr(why)));
    EXPECT_THAT(JobProcesses(cluster_.hosts().folder()), IsEmpty());
  }
};

TEST_F(ClusterRecord, ThatCannotBeWrittenCostsTheTasksThatRunNothing) {
  const std::string job = ScriptJob(
      "unwritten", "[ $RANK = 0 ] && { while [ ! -e \"$DIR/first\" ]; do sleep 0.02; done; exit 0; }\n" +
                       std::string(kWaitForGo));
  Process run = StartJob(job, "run");
  ASSERT_EQ(WaitForTasks("unwritten", 3).size(), 3u);
  const std::filesystem::path record = JobFolder() / "record.pb";
  // Which no file can replace.
  const std::filesystem::path aside = Path("record.pb");
  std::filesystem::rename(record, aside);
  std::filesystem::create_directories(record / "full");
  Touch("first");
  EXPECT_TRUE(cluster_.WaitForText("run", "the job record cannot be written, which is tried again: "));
  EXPECT_EQ(FirstProcesses("unwritten").size(), 2u);
  std::filesystem::remove_all(record);
  std::filesystem::rename(aside, record);
  Touch("go");
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_THAT(Muster({"list"}).stdout_text, HasSubstr("Succeeded"));
}

TEST_F(ClusterRecord, OnADiskThatIsReadOnlyKeepsNobodyFromStoppingTheJob) {
  std::filesystem::create_directories(cluster_.home());
  SmallDisk disk(cluster_.home(), 8 << 20);
  if (!disk.mounted()) GTEST_SKIP() << "cannot mount a tmpfs here: needs root";
  Orphan("job");
  ASSERT_TRUE(disk.MakeReadOnly());
  ExpectStoppedAndNotWrittenDown("job", "Read-only file system");
}

TEST_F(ClusterRecord, WhoseLockCannotBeTakenKeepsNobodyFromStoppingTheJob) {
  Orphan("job");
  const std::filesystem::path lock = JobFolder() / "lock";
  std::filesystem::remove(lock);
  std::filesystem::create_symlink(Path("none/lock"), lock);
  ExpectStoppedAndNotWrittenDown("job", "No such file or directory");
  std::filesystem::remove(lock);
  const CommandResult again = Muster({"stop", "job"});
  EXPECT_EQ(again.exit_code, 0) << again.stderr_text;
  EXPECT_EQ(Show("job")["state"], "Stopped");
}

}  // namespace
}  // namespace muster
