#include "cluster/cluster_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::HasSubstr;

constexpr TaskId kPs{Role::kPs, 0}, kWorker{Role::kWorker, 1};

ClusterSpec At(const std::string& ps) { return {.ps = {ps}, .workers = {"a:1", "b:1"}}; }

TEST(ClusterView, HoldsWhatTheNewestGenerationSays) {
  ClusterView view(At("x:1"), kWorker);
  EXPECT_EQ(view.Address(kPs), "x:1");
  EXPECT_TRUE(*view.Update({.generation = 3, .cluster = At("y:1")}));
  EXPECT_EQ(view.Address(kPs), "y:1");
  EXPECT_EQ(view.version(), 1);
  for (const uint64_t old : {2, 3}) EXPECT_FALSE(*view.Update({.generation = old, .cluster = At("z:1")}));
  EXPECT_EQ(view.Address(kPs), "y:1");
  EXPECT_TRUE(*view.Update({.generation = 4, .cluster = At("z:1")}));
  EXPECT_EQ(view.cluster(), At("z:1"));
  EXPECT_EQ(view.version(), 2);
}

TEST(ClusterView, TakesAnyGenerationAtFirst) {
  ClusterView view(At("x:1"), kWorker);
  EXPECT_TRUE(*view.Update({.generation = 0, .cluster = At("y:1")}));
}

TEST(ClusterView, AGenerationWithTheSameAddressesChangesNothing) {
  ClusterView view(At("x:1"), kWorker);
  EXPECT_FALSE(*view.Update({.generation = 3, .cluster = At("x:1")}));
  EXPECT_EQ(view.version(), 0);
  EXPECT_FALSE(*view.Update({.generation = 3, .cluster = At("y:1")}));
}

TEST(ClusterView, RefusesAnotherNumberOfTasks) {
  ClusterView view(At("x:1"), kWorker);
  for (const ClusterSpec& other :
       {ClusterSpec{.ps = {"x:1"}, .workers = {"a:1"}}, ClusterSpec{.workers = {"a:1", "b:1"}},
        ClusterSpec{.ps = {"x:1"}, .workers = {"a:1", "b:1"}, .chief = {"c:1"}}}) {
    const auto updated = view.Update({.generation = 9, .cluster = other});
    ASSERT_FALSE(updated.ok());
    EXPECT_THAT(std::string(updated.status().message()), HasSubstr("tasks, this job"));
  }
  EXPECT_EQ(view.cluster(), At("x:1"));
  EXPECT_TRUE(*view.Update({.generation = 8, .cluster = At("y:1")}));  // what was refused has no generation
}

TEST(ClusterView, WorkersMayComeAndGo) {
  ClusterView view(At("x:1"), kWorker, ClusterView::Workers::kMayComeAndGo);
  const TaskId third{Role::kWorker, 2};
  EXPECT_EQ(view.Address(third), "");
  EXPECT_TRUE(*view.Update({.generation = 1, .cluster = {.ps = {"x:1"}, .workers = {"a:1", "b:1", "c:1"}}}));
  EXPECT_EQ(view.Address(third), "c:1");
  EXPECT_EQ(view.version(), 1);
  const Whereabouts before(view, third);
  EXPECT_TRUE(*view.Update({.generation = 2, .cluster = {.ps = {"x:1"}, .workers = {"a:1"}}}));
  EXPECT_EQ(view.Address(third), "");
  EXPECT_EQ(view.Address(view.own()), "");
  EXPECT_TRUE(before.HaveChanged(view));
  EXPECT_FALSE(view.Update({.generation = 3, .cluster = {.workers = {"a:1"}}}).ok());
}

TEST(ClusterView, CallsThoseWhoWatchAfterEachChange) {
  ClusterView view(At("x:1"), kWorker);
  std::string seen;
  {
    const ClusterView::Watch watch = view.OnChange([&] { seen += view.Address(kPs) + " "; });
    EXPECT_TRUE(*view.Update({.generation = 1, .cluster = At("y:1")}));
    EXPECT_FALSE(*view.Update({.generation = 2, .cluster = At("y:1")}));
    EXPECT_TRUE(*view.Update({.generation = 3, .cluster = At("z:1")}));
  }
  EXPECT_TRUE(*view.Update({.generation = 4, .cluster = At("x:1")}));
  EXPECT_EQ(seen, "y:1 z:1 ");
}

TEST(Whereabouts, ChangeWithEitherEndAndNobodyElse) {
  ClusterView view(At("x:1"), kWorker);
  const Whereabouts before(view, kPs);
  EXPECT_EQ(before.address(), "x:1");
  EXPECT_FALSE(before.HaveChanged(view));
  ASSERT_TRUE(*view.Update({.generation = 1, .cluster = {.ps = {"x:1"}, .workers = {"other:1", "b:1"}}}));
  EXPECT_FALSE(before.HaveChanged(view));
  ASSERT_TRUE(*view.Update({.generation = 2, .cluster = {.ps = {"x:1"}, .workers = {"a:1", "moved:1"}}}));
  EXPECT_TRUE(before.HaveChanged(view));
  const Whereabouts after(view, kPs);
  ASSERT_TRUE(*view.Update({.generation = 3, .cluster = {.ps = {"y:1"}, .workers = {"a:1", "moved:1"}}}));
  EXPECT_TRUE(after.HaveChanged(view));
}

}  // namespace
}  // namespace muster
