#include "launcher/fleet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/support/without_threads.h"

namespace muster {
namespace {

TEST(OnEachHost, AsksEachOnceAndKeepsTheirOrder) {
  const std::vector<absl::Status> statuses =
      OnEachHost(3, 2, [](size_t i) { return i == 1 ? Unavailable("host %d", i) : absl::OkStatus(); });
  EXPECT_THAT(statuses, testing::ElementsAre(absl::OkStatus(), Unavailable("host 1"), absl::OkStatus()));
  EXPECT_TRUE(OnEachHost(0, 2, [](size_t) { return Unavailable("nobody"); }).empty());
}

TEST(OnEachHost, AsksAllWhereTheAccountMayHaveNoMoreThreads) {
  const int code = ExitCodeWithoutThreads([] {
    std::set<size_t> asked;
    const auto statuses = OnEachHost(100, 100, [&](size_t i) {
      asked.insert(i);
      return absl::OkStatus();
    });
    return asked.size() == 100 && FirstFailure(statuses).ok();
  });
  if (code == kMayStartThreads) GTEST_SKIP() << "no limit of processes holds here";
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace muster
