#include "launcher/bench/results_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "launcher/bench/results_testing.h"

namespace muster::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ResultsFolder, IsMadeWhereFilesCanBe) {
  const TemporaryDirectory folder;
  for (int time = 0; time < 2; ++time) {
    EXPECT_TRUE(MakeResultsFolder(folder.path() / "new/bench").ok());
    EXPECT_THAT(*ListDirectory(folder.path() / "new/bench"), IsEmpty());
  }
  EXPECT_FALSE(MakeResultsFolder("/proc").ok()) << "it is there, and nobody can make a file in it";
}

TEST(ResultsFolder, KeepsWhatIsThereUnderANameThatNothingHas) {
  const TemporaryDirectory folder;
  const auto path = [&](const char* name) { return folder.path() / name; };
  const auto text = [&](const char* name) { return ReadFile(path(name)).value_or("nothing"); };
  EXPECT_THAT(*KeepEarlierResults(folder.path()), IsEmpty());
  ASSERT_TRUE(WriteResults(folder.path(), FullResults()).ok());
  const std::string page = text("report.html");
  EXPECT_EQ(text("results.json"), ToJson(FullResults()));
  EXPECT_THAT(*KeepEarlierResults(folder.path()), ElementsAre(path("results-1.json"), path("report-1.html")));
  EXPECT_EQ(text("report.html"), "nothing");
  ASSERT_TRUE(WriteResults(folder.path(), {}).ok());
  EXPECT_THAT(*KeepEarlierResults(folder.path()), ElementsAre(path("results-2.json"), path("report-2.html")));
  EXPECT_EQ(text("report-1.html"), page);
  EXPECT_EQ(text("results-2.json"), ToJson({}));
}

}  // namespace
}  // namespace muster::bench
