// Uploads, received by the real binary.
#include "agent/receive.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "agent/agent_client.h"
#include "base/archive.h"
#include "base/random.h"
#include "base/sha256.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ReceiveTest : public testing::Test {
 protected:
  ReceiveTest() {
    std::filesystem::create_directories(folder_.path() / "in/bin");
    std::ofstream(folder_.path() / "in/bin/hello") << "#!/bin/sh\necho hello $1\n";
    std::filesystem::permissions(folder_.path() / "in/bin/hello", std::filesystem::perms(0755));
    archive_ = *PackDirectory(folder_.path() / "in");
    sha256_ = Sha256Hex(archive_);
    std::ofstream(folder_.path() / "archive") << archive_;
  }

  Process Start(const std::string& sha256, uint64_t size, int output) {
    UniqueFd input(::open((folder_.path() / "archive").c_str(), O_RDONLY | O_CLOEXEC));
    return *Process::Spawn({.argv = {MUSTER_AGENT_PATH, "receive", "--root", root_.string(), "--sha256",
                                     sha256, "--size", std::to_string(size)},
                            .stdin_fd = input.get(),
                            .stdout_fd = output,
                            .stderr_fd = output});
  }

  // Exit code, and what it printed.
  std::pair<int, std::string> Run(const std::string& sha256, uint64_t size) {
    const std::filesystem::path path = folder_.path() / ("out" + RandomName(8));
    UniqueFd output(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    Process process = Start(sha256, size, output.get());
    const int code = process.Wait(TestDeadline()).value_or(-1);
    return {code, *ReadFile(path)};
  }

  std::vector<std::string> StoreNames() {
    return ListDirectory(root_ / "store").value_or(std::vector<std::string>{});
  }

  TemporaryDirectory folder_;
  const std::filesystem::path root_ = folder_.path() / "root";
  std::string archive_, sha256_;
};

TEST_F(ReceiveTest, StoresWhatHasTheRightHashAndNothingElse) {
  const std::string wrong(64, '0');
  auto [code, text] = Run(wrong, archive_.size());
  EXPECT_EQ(code, 1);
  EXPECT_THAT(text, AllOf(HasSubstr(sha256_), HasSubstr(wrong)));
  std::tie(code, text) = Run(sha256_, archive_.size() + 1);
  EXPECT_EQ(code, 1);
  EXPECT_THAT(text,
              HasSubstr(absl::StrFormat("ended after %d of %d bytes", archive_.size(), archive_.size() + 1)));
  std::tie(code, text) = Run("../x", 1);
  EXPECT_EQ(code, 2);
  EXPECT_THAT(StoreNames(), testing::ElementsAre("tmp"));
  EXPECT_TRUE(std::filesystem::is_empty(root_ / "store/tmp"));
  EXPECT_EQ(Run(sha256_, uint64_t{1} << 40).first, 1) << "more than the disk holds";

  EXPECT_EQ(Run(sha256_, archive_.size()), std::make_pair(0, "stored " + sha256_ + "\n"));
  EXPECT_EQ(Run(sha256_, archive_.size()), std::make_pair(0, "present " + sha256_ + "\n"));
  EXPECT_EQ(*ReadFile(root_ / "store" / sha256_ / "bin/hello"), *ReadFile(folder_.path() / "in/bin/hello"));
  EXPECT_TRUE(std::filesystem::is_empty(root_ / "store/tmp"));
}

TEST_F(ReceiveTest, SeveralAtOnceAllSucceed) {
  UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  std::vector<Process> processes;
  for (int i = 0; i < 6; ++i) processes.push_back(Start(sha256_, archive_.size(), null.get()));
  for (Process& process : processes) EXPECT_EQ(process.Wait(TestDeadline()).value_or(-1), 0);
  EXPECT_THAT(StoreNames(), testing::UnorderedElementsAre("tmp", sha256_));
}

}  // namespace
}  // namespace muster
