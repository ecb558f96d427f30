// `muster data` through the real command. How fetching goes on, falls over and checks is fetch_test's matter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "base/process.h"
#include "tests/support/checkout.h"
#include "tests/support/free_port.h"
#include "tests/support/mirror.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class DataCommand : public ::testing::Test {
 protected:
  CommandResult Data(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {BuildPath("bin/muster"), "data"});
    std::vector<std::string> environment = {"HOME=" + Path("home"), "MUSTER_CACHE=" + Path("cache")};
    for (const char* name : {"PATH", "TMPDIR", "ASAN_OPTIONS", "UBSAN_OPTIONS"}) {
      if (const char* value = std::getenv(name)) environment.push_back(std::string(name) + "=" + value);
    }
    const auto result =
        RunCommand({.argv = arguments, .environment = environment}, Now() + std::chrono::seconds(60));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(CommandResult{.exit_code = -1});
  }
  std::string Path(const std::string& name) const { return (folder_.path() / name).string(); }
  std::vector<std::string> Names(const std::string& folder) const {
    return ListDirectory(Path(folder)).value_or(std::vector<std::string>());
  }
  TemporaryDirectory folder_;
};

TEST_F(DataCommand, MakeRunsTheTrainerOfTheInstallation) {
  const CommandResult made = Data({"make", "census", Path("d")});
  EXPECT_EQ(made.exit_code, 0) << made.stderr_text;
  EXPECT_EQ(made.stdout_text, Path("d/census/adult.data") + "\n" + Path("d/census/adult.test") + "\n");
  EXPECT_THAT(Names("d/census"), ElementsAre("adult.data", "adult.test"));
  EXPECT_EQ(Data({"make", "mnist", Path("d")}).exit_code, 0);
  EXPECT_THAT(Names("d/mnist"), SizeIs(4));
  EXPECT_EQ(Data({"make", "census", Path("d")}).exit_code, 0) << "made already";

  ASSERT_TRUE(WriteFileAtomically(Path("d/census/adult.test"), "mine").ok());
  const CommandResult refused = Data({"make", "census", Path("d")});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.stderr_text, AllOf(::testing::StartsWith("muster: " + Path("d/census/adult.test")),
                                         HasSubstr("is something else")));
}

TEST_F(DataCommand, BadUsageIsExitStatusTwo) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "subcommand"},
      {{"fech", "mnist"}, "unknown command 'fech'; did you mean 'fetch'?"},
      {{"fetch"}, "SET is required"},
      {{"fetch", "cifar"}, "cifar not in"},
      {{"fetch", "mnist", ""}, "DIR \"\" is no folder"},
      {{"fetch", "mnist", "--mirror", "/folder"}, "--mirror /folder: expected a URL"},
      {{"make", "mnist"}, "DIR is required"},
      {{"make", "cifar", Path("d")}, "cifar not in"},
  };
  for (const auto& [arguments, message] : cases) {
    const CommandResult result = Data(arguments);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_THAT(result.stderr_text, AllOf(::testing::StartsWith("muster: "), HasSubstr(message)));
    EXPECT_EQ(result.stdout_text, "");
  }
}

TEST_F(DataCommand, FetchWithoutANetworkIsExitStatus69) {
  const std::string one = "http://" + FreeAddress(), other = "http://" + FreeAddress();
  const CommandResult result = Data({"fetch", "--mirror", one, "--mirror", other, "census"});
  EXPECT_EQ(result.exit_code, 69);
  EXPECT_THAT(result.stderr_text,
              AllOf(HasSubstr(one + "/adult.data: "), HasSubstr(other + "/adult.data: ")));
  EXPECT_EQ(result.stdout_text, "");
}

TEST_F(DataCommand, FetchTakesNoOtherSet) {
  ASSERT_EQ(Data({"make", "census", Path("d")}).exit_code, 0);
  Mirror mirror(Path("d/census"));
  const CommandResult result = Data({"fetch", "census", "--mirror", mirror.url() + "ok"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.stderr_text, AllOf(HasSubstr("ok/adult.data: its SHA-256 is "), HasSubstr("; removed")));
  EXPECT_THAT(Names("cache/data/census"), ElementsAre());
}

TEST_F(DataCommand, FetchesTheRealSets) {
  const char* const folder = std::getenv("MUSTER_DATA");
  if (folder == nullptr) GTEST_SKIP() << "MUSTER_DATA does not name a folder with the real data sets";
  for (const std::string set : {"mnist", "census"}) {
    Mirror mirror(std::string(folder) + "/" + set);
    const std::vector<std::string> fetch = {
        "fetch", set, "--mirror", mirror.url() + "missing", "--mirror", mirror.url() + "ok"};
    const CommandResult fetched = Data(fetch);
    ASSERT_EQ(fetched.exit_code, 0) << fetched.stderr_text;
    EXPECT_EQ(fetched.stdout_text, Path("cache/data") + "\n");
    EXPECT_THAT(Names("cache/data/" + set), SizeIs(set == "mnist" ? 4 : 2));
    mirror.TakeRequests();
    const CommandResult again = Data(fetch);
    EXPECT_EQ(again.exit_code, 0) << again.stderr_text;
    EXPECT_EQ(again.stdout_text, Path("cache/data") + "\n");
    EXPECT_THAT(again.stderr_text, HasSubstr(": already there\n"));
    EXPECT_THAT(mirror.TakeRequests(), SizeIs(0));
  }
}

}  // namespace
}  // namespace muster
