// What a task tells whoever watches whether it goes on. The metrics themselves:
// tests/trainer_metrics_test.cc.
#include "trainer/metrics_export.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "tests/support/job_processes.h"

namespace muster {
namespace {

TEST(StepWatch, WhoMakesStepsOrWaitsForOthersGoesOn) {
  StepWatch watch;
  WorkerMetrics worker{.local_steps = 0, .is_computing = true};
  EXPECT_TRUE(watch.GoesOn(worker)) << "there was nothing before";
  EXPECT_FALSE(watch.GoesOn(worker));
  worker.local_steps = 1;
  EXPECT_TRUE(watch.GoesOn(worker));
  EXPECT_FALSE(watch.GoesOn(worker));
  worker.is_computing = false;
  EXPECT_TRUE(watch.GoesOn(worker));
  EXPECT_TRUE(watch.GoesOn(worker));
  worker.is_computing = true;
  EXPECT_FALSE(watch.GoesOn(worker)) << "it has made no step while it waited";
}

TEST(MetricsExport, TouchesItsProgressFileAgainAndAgain) {
  const TemporaryDirectory folder;
  const std::string file = folder.path() / "progress";
  const UsageMeter meter{""};
  const auto begun = MetricsExport::Begin({.progress_file = file}, TaskId{Role::kWorker, 0}, meter,
                                          [] { return WorkerMetrics(); });
  ASSERT_TRUE(begun.ok()) << begun.status();
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(Eventually([&] { return std::filesystem::exists(file); }));
    ::unlink(file.c_str());
  }
}

}  // namespace
}  // namespace muster
