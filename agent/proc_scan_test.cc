// Processes by their tokens, where one of them hangs and keeps its environment to itself.
#include "agent/proc_scan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/names.h"
#include "base/file.h"

namespace muster {
namespace {

using ::testing::Field;
using ::testing::UnorderedElementsAre;

auto Holds(pid_t pid, const std::string& token, bool is_certain) {
  return ::testing::AllOf(Field(&TokenHolder::pid, pid), Field(&TokenHolder::token, token),
                          Field(&TokenHolder::is_certain, is_certain));
}

// A pipe that nobody writes to is read for ever.
TEST(ProcScan, WhoHangsHoldsNobodyUpAndIsKnownByItsFolder) {
  const TemporaryDirectory proc;
  const auto add = [&](int pid) {
    const std::filesystem::path folder = proc.path() / std::to_string(pid);
    EXPECT_TRUE(MakeDirectories(folder).ok());
    return folder;
  };
  const std::string environment = std::string("A=b") + '\0' + "MUSTER_TOKEN=one" + '\0';
  ASSERT_TRUE(WriteFileAtomically(add(101) / "environ", environment).ok());
  ASSERT_EQ(::mkfifo((add(102) / "environ").c_str(), 0600), 0);
  ASSERT_EQ(::symlink("/r/jobs/j/worker.1/inner", (proc.path() / "102/cwd").c_str()), 0);
  ASSERT_EQ(::mkfifo((add(103) / "environ").c_str(), 0600), 0);
  ASSERT_EQ(::symlink("/home/somebody", (proc.path() / "103/cwd").c_str()), 0);
  ASSERT_TRUE(WriteFileAtomically(add(104) / "environ", "MUSTER_TOKEN=two").ok());
  ASSERT_TRUE(WriteFileAtomically(add(105) / "environ", "HOME=/").ok());
  // Nor does it say anything if it is no file of text at all.
  ASSERT_TRUE(MakeDirectories(add(106) / "environ").ok());
  ASSERT_EQ(::symlink("/r/jobs/j/worker.2", (proc.path() / "106/cwd").c_str()), 0);
  for (int look = 0; look < 2; ++look) {
    const auto holders = FindTokenHolders(proc.path());
    ASSERT_TRUE(holders.ok()) << holders.status();
    EXPECT_THAT(*holders, UnorderedElementsAre(Holds(101, "one", true),
                                               Holds(102, TaskToken("j", RootId("/r"), "worker:1"), false),
                                               Holds(104, "two", true),
                                               Holds(106, TaskToken("j", RootId("/r"), "worker:2"), false)));
  }
  const auto children = ChildrenOf(::getpid());
  ASSERT_TRUE(children.ok()) << children.status();
  EXPECT_THAT(*children, ::testing::IsEmpty());
}

// Root's tasks may change their account.
TEST(ProcScan, RootLooksAtProcessesOfAllAccounts) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may read the environments of other accounts";
  const TemporaryDirectory proc;
  ASSERT_TRUE(MakeDirectories(proc.path() / "101").ok());
  ASSERT_TRUE(WriteFileAtomically(proc.path() / "101/environ", "MUSTER_TOKEN=one").ok());
  ASSERT_EQ(::chown((proc.path() / "101").c_str(), 65534, 65534), 0);
  const auto holders = FindTokenHolders(proc.path());
  ASSERT_TRUE(holders.ok()) << holders.status();
  EXPECT_THAT(*holders, UnorderedElementsAre(Holds(101, "one", true)));
}

TEST(ProcScan, WhoCannotLookHasNotFoundNothing) {
  EXPECT_FALSE(FindTokenHolders("/no/such/folder").ok());
  const auto matches_none = [](std::string_view) { return false; };
  EXPECT_EQ(CountByToken(matches_none).value(), 0);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status children = ChildrenOf(::getpid()).status(), holders = FindTokenHolders().status();
  const absl::Status counted = CountByToken(matches_none).status(),
                     killed = KillByToken(matches_none).status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(children.ok());
  EXPECT_FALSE(holders.ok());
  EXPECT_FALSE(counted.ok());
  EXPECT_FALSE(killed.ok());
}

}  // namespace
}  // namespace muster
