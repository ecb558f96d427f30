// A job whose record cannot be written any more.
#include "tests/support/lifecycle_fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

class ClusterRecord : public LifecycleTest {};

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

}  // namespace
}  // namespace muster
