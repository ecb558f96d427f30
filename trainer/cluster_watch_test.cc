#include "trainer/cluster_watch.h"

#include <gtest/gtest.h>

#include "base/file.h"

namespace muster {
namespace {

ClusterSpec At(const std::string& ps) { return {.ps = {ps}, .workers = {"a:1"}}; }

class ClusterWatchTest : public testing::Test {
 protected:
  void Replace(const std::string& text) { ASSERT_TRUE(WriteFileAtomically(path_, text).ok()); }
  void Replace(uint64_t generation, const ClusterSpec& cluster) {
    Replace(FormatClusterFile({.generation = generation, .cluster = cluster}));
  }
  void Await(const std::string& address) {
    const TimePoint deadline = Now() + std::chrono::seconds(30);
    while (view_.Address(kPs) != address && Now() < deadline) std::this_thread::yield();
    EXPECT_EQ(view_.Address(kPs), address);
  }

  static constexpr TaskId kPs{Role::kPs, 0};
  TemporaryDirectory folder_;
  const std::string path_ = (folder_.path() / "cluster").string();
  ClusterView view_{At("x:1"), {Role::kWorker, 0}};
};

TEST_F(ClusterWatchTest, AFileThatIsThereHoldsAtOnce) {
  Replace(1, At("y:1"));
  const ClusterWatch watch(path_, &view_);
  EXPECT_EQ(view_.Address(kPs), "y:1");
}

TEST_F(ClusterWatchTest, AFileMayComeAndBeReplaced) {
  const ClusterWatch watch(path_, &view_);
  EXPECT_EQ(view_.Address(kPs), "x:1");
  Replace(3, At("y:1"));
  Await("y:1");
  Replace(4, At("z:1"));
  Await("z:1");
}

TEST_F(ClusterWatchTest, WhatIsNoClusterFileOfThisJobIsIgnored) {
  const ClusterWatch watch(path_, &view_);
  Replace(3, At("y:1"));
  Await("y:1");
  Replace("{\"version\": 9}");
  Replace(2, At("old:1"));
  Replace(9, {.ps = {"x:1", "y:1"}, .workers = {"a:1"}});
  Replace(4, At("z:1"));
  Await("z:1");
}

}  // namespace
}  // namespace muster
