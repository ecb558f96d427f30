// Files that are mounted in place of others, as containers have them. Needs root.
#include "base/mount_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <thread>

#include "base/file.h"

namespace muster {
namespace {

// Calls it where `what` is mounted at `where`, which nobody else sees. Returns why that cannot be.
std::string WithMounted(const std::filesystem::path& what, const std::filesystem::path& where,
                        const std::function<void()>& call) {
  std::string why_not;
  // The mounts go with the thread.
  std::thread([&] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount(what.c_str(), where.c_str(), nullptr, MS_BIND, nullptr) != 0) {
      why_not = std::strerror(errno);
    } else {
      call();
    }
  }).join();
  return why_not;
}

TEST(MountPoint, AMountedFileIsWrittenWhereItIs) {
  TemporaryDirectory folder;
  const auto file = folder.path() / "in-the-container", outside = folder.path() / "outside";
  const auto link = folder.path() / "link";
  ASSERT_TRUE(WriteFileAtomically(file, "").ok());
  ASSERT_TRUE(WriteFileAtomically(outside, "something longer").ok());
  std::filesystem::create_symlink("in-the-container", link);
  absl::Status written, written_by_link;
  bool is_mounted = false, is_mounted_by_link = false;
  std::string first;
  const std::string why_not = WithMounted(outside, file, [&] {
    is_mounted = IsMountPoint(file);
    is_mounted_by_link = IsMountPoint(link);
    written = WriteFileAtomically(file, "new");
    first = *ReadFile(outside);
    written_by_link = WriteFileAtomically(link, "newest");
  });
  if (!why_not.empty()) GTEST_SKIP() << "cannot mount here: " << why_not;
  if (!is_mounted) GTEST_SKIP() << "this kernel does not tell mounted files from others";
  EXPECT_TRUE(is_mounted_by_link);
  EXPECT_TRUE(written.ok()) << written;
  EXPECT_EQ(first, "new");
  EXPECT_TRUE(written_by_link.ok()) << written_by_link;
  EXPECT_EQ(*ReadFile(outside), "newest");
  EXPECT_EQ(*ReadFile(file), "");
  EXPECT_THAT(*ListDirectory(folder.path()), testing::ElementsAre("in-the-container", "link", "outside"));
}

TEST(MountPoint, AllElseIsNone) {
  TemporaryDirectory folder;
  ASSERT_TRUE(WriteFileAtomically(folder.path() / "file", "").ok());
  EXPECT_FALSE(IsMountPoint(folder.path() / "file"));
  EXPECT_FALSE(IsMountPoint(folder.path() / "not-there"));
  EXPECT_FALSE(IsMountPoint(folder.path()));
}

}  // namespace
}  // namespace muster
