#include "launcher/run_display.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

// What the summary of a failed `run -q` says when worker:0 is the cause and `report` all that its host told.
std::string SummaryOfFailure(const std::optional<reconcile::TaskReport>& report) {
  record::JobRecord record;
  record.set_id("j-1");
  record.add_tasks()->set_id("worker:0");
  record.mutable_tasks(0)->set_host("a");
  RunDisplay display({.logs = false, .start = Now()}, record);
  display.OnView(
      {.phase = reconcile::Phase::kFinished, .tasks = {{.task = "worker:0", .host = "a", .report = report}}});
  testing::internal::CaptureStderr();
  display.Summarize({.outcome = {.result = reconcile::Result::kFailed,
                                 .exit_code = 69,
                                 .message = "worker:0 on a failed: because",
                                 .first_cause = reconcile::Casualty{"worker:0", "a", "because"}}});
  return testing::internal::GetCapturedStderr();
}

TEST(RunDisplay, PointsToTheLogOfACauseThatHasRun) {
  EXPECT_EQ(SummaryOfFailure(reconcile::TaskReport{.task = "worker:0", .incarnation = 1}),
            "\nworker:0 on a failed: because\nmuster logs j-1 worker:0   shows what it printed\n");
  EXPECT_EQ(SummaryOfFailure(std::nullopt), "\nworker:0 on a failed: because\n");
  EXPECT_EQ(SummaryOfFailure(reconcile::TaskReport{.task = "worker:0"}), "\nworker:0 on a failed: because\n");
}

}  // namespace
}  // namespace muster
