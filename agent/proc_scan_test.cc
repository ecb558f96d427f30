// Processes by their tokens, where one of them hangs and keeps its environment to itself.
#include "agent/proc_scan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
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
  for (int look = 0; look < 2; ++look) {
    EXPECT_THAT(FindTokenHolders(proc.path()),
                UnorderedElementsAre(Holds(101, "one", true),
                                     Holds(102, TaskToken("j", RootId("/r"), "worker:1"), false),
                                     Holds(104, "two", true)));
  }
  EXPECT_THAT(ChildrenOf(::getpid()), ::testing::IsEmpty());
}

}  // namespace
}  // namespace muster
