// Uploads, received by the real binary.
#include "agent/receive.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "agent/client_testing.h"
#include "base/archive.h"
#include "base/boot_id.h"
#include "base/random.h"
#include "base/sha256.h"
#include "tests/support/checkout.h"
#include "tests/support/fault_hosts.h"

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

  Process Start(const std::string& sha256, uint64_t size, int output, uint64_t offset = 0) {
    UniqueFd input(::open((folder_.path() / "archive").c_str(), O_RDONLY | O_CLOEXEC));
    ::lseek(input.get(), static_cast<off_t>(offset), SEEK_SET);
    return *Process::Spawn({.argv = {BuildPath("bin/muster-agent"), "receive", "--root", root_.string(),
                                     "--sha256", sha256, "--size", std::to_string(size)},
                            .stdin_fd = input.get(),
                            .stdout_fd = output,
                            .stderr_fd = output});
  }

  // Exit code, and what it printed.
  std::pair<int, std::string> Run(const std::string& sha256, uint64_t size, uint64_t offset = 0) {
    const std::filesystem::path path = folder_.path() / ("out" + RandomName(8));
    UniqueFd output(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    Process process = Start(sha256, size, output.get(), offset);
    const int code = process.Wait(TestDeadline()).value_or(-1);
    return {code, *ReadFile(path)};
  }

  // Of the contents, and what else lies beside them.
  std::vector<std::string> StoreNames() {
    std::vector<std::string> names = ListDirectory(root_ / "store").value_or(std::vector<std::string>{});
    std::erase(names, sha256_ + ".files");
    return names;
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
  std::tie(code, text) = Run("../x", 1);
  EXPECT_EQ(code, 2);
  EXPECT_THAT(StoreNames(), testing::ElementsAre("tmp"));
  EXPECT_TRUE(std::filesystem::is_empty(root_ / "store/tmp"));
  EXPECT_EQ(Run(sha256_, uint64_t{1} << 40).first, 1) << "more than the disk holds";

  EXPECT_EQ(Run(sha256_, archive_.size()), std::make_pair(0, "\nfrom 0\nstored " + sha256_ + "\n"));
  EXPECT_EQ(Run(sha256_, archive_.size()), std::make_pair(0, "present " + sha256_ + "\n"));
  EXPECT_EQ(*ReadFile(root_ / "store" / sha256_ / "bin/hello"), *ReadFile(folder_.path() / "in/bin/hello"));
  EXPECT_TRUE(std::filesystem::is_empty(root_ / "store/tmp"));
}

TEST_F(ReceiveTest, GoesOnWhereAnEarlierOneWasCutOff) {
  const uint64_t size = archive_.size(), half = size / 2;
  std::filesystem::resize_file(folder_.path() / "archive", half);
  auto [code, text] = Run(sha256_, size);
  EXPECT_EQ(code, 1);
  EXPECT_THAT(text, HasSubstr(absl::StrFormat("ended after %d of %d bytes", half, size)));
  std::ofstream(folder_.path() / "archive") << archive_;
  // While another one has it, from the beginning.
  const std::filesystem::path kept = root_ / "store/tmp" / (sha256_ + "." + BootId());
  ASSERT_EQ(std::filesystem::file_size(kept), half);
  {
    const UniqueFd other(::open(kept.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
    EXPECT_THAT(Run(sha256_, size, 1).second, testing::StartsWith("\nfrom 0\n"));
  }
  EXPECT_EQ(Run(sha256_, size, half),
            std::make_pair(0, absl::StrFormat("\nfrom %d\nstored %s\n", half, sha256_)));
  EXPECT_EQ(*ReadFile(root_ / "store" / sha256_ / "bin/hello"), *ReadFile(folder_.path() / "in/bin/hello"));
  EXPECT_TRUE(std::filesystem::is_empty(root_ / "store/tmp"));
}

TEST_F(ReceiveTest, GoesOnWithTheRoomThatIsMissing) {
  std::ofstream(folder_.path() / "in/large") << std::string(2 << 20, 'x');
  archive_ = *PackDirectory(folder_.path() / "in");
  sha256_ = Sha256Hex(archive_);
  const uint64_t size = archive_.size(), cut = size / 10 * 9;
  std::filesystem::create_directories(root_);
  const SmallDisk disk(root_, size * 5 / 2);
  if (!disk.mounted()) GTEST_SKIP() << "cannot mount a tmpfs here: needs root";
  std::ofstream(folder_.path() / "archive") << archive_.substr(0, cut);
  EXPECT_EQ(Run(sha256_, size).first, 1);
  std::ofstream(folder_.path() / "archive") << archive_;
  // For as long as somebody else needs the rest of the disk, too.
  const std::filesystem::path other = root_ / "other";
  std::ofstream(other) << std::string(size * 3 / 4, 'x');
  EXPECT_THAT(Run(sha256_, size, cut).second, HasSubstr("the disk is too full"));
  std::filesystem::remove(other);
  EXPECT_EQ(Run(sha256_, size, cut),
            std::make_pair(0, absl::StrFormat("\nfrom %d\nstored %s\n", cut, sha256_)));
  EXPECT_TRUE(std::filesystem::is_empty(root_ / "store/tmp"));
}

TEST_F(ReceiveTest, WhatWasKeptIsLeftAloneWhenItIsNoGood) {
  std::filesystem::create_directories(root_ / "store/tmp");
  const std::filesystem::path tmp = root_ / "store/tmp", kept = tmp / (sha256_ + "." + BootId());
  // Other bytes: refused once, and gone.
  std::ofstream(kept) << std::string(archive_.size() / 2, 'x');
  EXPECT_THAT(Run(sha256_, archive_.size(), archive_.size() / 2).second, HasSubstr("upload it again"));
  EXPECT_FALSE(std::filesystem::exists(kept));
  // Of another boot, or of yesterday.
  std::ofstream(tmp / (sha256_ + ".another-boot")) << "x";
  std::ofstream(tmp / (std::string(64, 'a') + "." + BootId())) << "x";
  std::filesystem::last_write_time(tmp / (std::string(64, 'a') + "." + BootId()),
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(25));
  EXPECT_EQ(Run(sha256_, archive_.size()).second, "\nfrom 0\nstored " + sha256_ + "\n");
  EXPECT_TRUE(std::filesystem::is_empty(tmp));
}

// Root may write all the same, and whoever has it made writable.
TEST_F(ReceiveTest, WhatATaskHasChangedIsSentAgain) {
  std::filesystem::create_symlink("bin", folder_.path() / "in/link");
  std::filesystem::create_directory(folder_.path() / "in/none");
  archive_ = *PackDirectory(folder_.path() / "in");
  sha256_ = Sha256Hex(archive_);
  std::ofstream(folder_.path() / "archive") << archive_;
  const std::filesystem::path content = root_ / "store" / sha256_;
  const auto present = std::make_pair(0, "present " + sha256_ + "\n");
  const auto stored = std::make_pair(0, "\nfrom 0\nstored " + sha256_ + "\n");
  ASSERT_EQ(Run(sha256_, archive_.size()), stored);
  using std::filesystem::perms;
  constexpr perms kWrite = perms::owner_write | perms::group_write | perms::others_write;
  const auto written_by = [&](const char* name) {
    return std::filesystem::status(content / name).permissions() & kWrite;
  };
  EXPECT_EQ(written_by("bin/hello"), perms::none);
  // `rm -rf` is not refused.
  for (const char* folder : {"", "bin", "none"}) EXPECT_EQ(written_by(folder), perms::owner_write) << folder;
  const auto allow = [&](const char* name) {
    std::filesystem::permissions(content / name, perms::owner_write, std::filesystem::perm_options::add);
  };
  const std::vector<std::function<void()>> changes = {
      [&] { std::ofstream(content / "bin/hello", std::ios::app) << "echo more"; },
      [&] { std::filesystem::last_write_time(content / "bin/hello", {}); },
      [&] { std::filesystem::remove(content / "bin/hello"); },
      [&] { std::filesystem::remove(content / "none"); },
      [&] {
        std::filesystem::remove(content / "link");
        std::filesystem::create_symlink("none", content / "link");
      }};
  for (const auto& change : changes) {
    allow("bin/hello");
    // As Python's caches are.
    std::filesystem::create_directories(content / "bin/__pycache__");
    std::ofstream(content / "bin/__pycache__/added") << "x";
    EXPECT_EQ(Run(sha256_, archive_.size()), present) << "what is added harms nobody";
    change();
    EXPECT_EQ(Run(sha256_, archive_.size()), stored);
    EXPECT_EQ(*PackDirectory(content), archive_);
    EXPECT_EQ(Run(sha256_, archive_.size()), present);
  }
  EXPECT_THAT(StoreNames(), testing::ElementsAre(sha256_, "tmp"));
  // As agents placed it that kept no such list.
  allow("bin/hello");
  changes[0]();
  ASSERT_TRUE(std::filesystem::remove(root_ / "store" / (sha256_ + ".files")));
  EXPECT_EQ(Run(sha256_, archive_.size()), present);
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
