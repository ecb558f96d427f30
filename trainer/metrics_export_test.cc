// What a task tells whoever watches whether it goes on. The metrics themselves:
// tests/trainer_metrics_test.cc.
#include "trainer/metrics_export.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "base/file.h"

namespace muster {
namespace {

class Progress : public testing::Test {
 protected:
  // Another file each time, so that no clock has to have gone on.
  bool IsSaidWithin(Duration time) {
    ::unlink(file_.c_str());
    const TimePoint deadline = Now() + time;
    while (Now() < deadline) {
      if (std::filesystem::exists(file_)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }
  // It is said once a second.
  bool IsSaid() { return IsSaidWithin(std::chrono::seconds(30)); }
  bool IsNotSaid() { return !IsSaidWithin(std::chrono::milliseconds(2500)); }

  void Begin() {
    auto begun = MetricsExport::Begin({.progress_file = file_}, {Role::kWorker, 0}, meter_,
                                      [this] { return record_.metrics(); });
    ASSERT_TRUE(begun.ok()) << begun.status();
    export_ = *std::move(begun);
  }

  const TemporaryDirectory folder_;
  const std::string file_ = folder_.path() / "progress";
  UsageMeter meter_{""};
  WorkerRecord record_;
  std::unique_ptr<MetricsExport> export_;
};

TEST_F(Progress, IsSaidWhileOthersAreWaitedFor) {
  Begin();
  EXPECT_TRUE(IsSaid());
  EXPECT_TRUE(IsSaid());
}

TEST_F(Progress, IsNotSaidWhileOneStepIsComputed) {
  record_.SetComputing(true);
  Begin();
  EXPECT_TRUE(IsSaid()) << "the first look has none before it";
  EXPECT_TRUE(IsNotSaid());
  record_.Add({.step = 1, .samples = 1});
  EXPECT_TRUE(IsSaid()) << "the next step";
  EXPECT_TRUE(IsNotSaid());
  record_.SetComputing(false);
  EXPECT_TRUE(IsSaid());
}

}  // namespace
}  // namespace muster
