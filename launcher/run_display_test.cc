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

// Two that could not start are each what it is: neither has ended the other.
TEST(RunDisplay, WhatFailedByItselfIsNoConsequence) {
  RunDisplay display({.logs = false, .start = Now()}, record::JobRecord());
  testing::internal::CaptureStderr();
  display.Summarize({.outcome = {.result = reconcile::Result::kFailed,
                                 .exit_code = 127,
                                 .message = "worker:0 on a failed: not found",
                                 .first_cause = reconcile::Casualty{"worker:0", "a", "not found"},
                                 .consequences = {{"ps:0", "a", "stopped"},
                                                  {"ps:1", "b", "could not be stopped"},
                                                  {"worker:1", "b", "not found"},
                                                  {"worker:2", "c", "lost with its host"}}}});
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "\nworker:0 on a failed: not found\n"
            "failed too:\n  worker:1 on b: not found\n"
            "as a consequence:\n  ps:0 on a: stopped\n  ps:1 on b: could not be stopped\n"
            "  worker:2 on c: lost with its host\n");
}

// Before the first start there is time to wait for a host, in which nothing else would be said.
TEST(RunDisplay, SaysOnceWhyAHostIsNotThereYet) {
  RunDisplay display({.start = Now()}, record::JobRecord());
  reconcile::View view{.hosts = {{.host = "a"}}};
  testing::internal::CaptureStderr();
  display.OnView(view);
  view.hosts[0].attempts = 1;
  view.hosts[0].last_error = absl::UnavailableError("a (10.0.0.1:22): connect: Connection refused");
  display.OnView(view);
  view.hosts[0].attempts = 2;
  view.hosts[0].last_error = absl::UnavailableError("a (10.0.0.1:22): connect: No route to host");
  display.OnView(view);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "a (10.0.0.1:22): connect: Connection refused; it is tried for 15 s in all\n");
}

// What the summary of a job that has succeeded says first.
std::string TimeOfSuccess(const record::JobRecord& record) {
  RunDisplay display({.start = Now()}, record);
  testing::internal::CaptureStderr();
  display.Summarize({.outcome = {.result = reconcile::Result::kSucceeded}});
  return testing::internal::GetCapturedStderr();
}

TEST(RunDisplay, CountsTheTimeOfTheJobAndNotOfTheCommandThatWaitedForIt) {
  constexpr int64_t kSecond = 1'000'000;
  record::JobRecord record;
  record.set_created_micros(WallTimeMicros() - 1'000'000 * kSecond);
  EXPECT_TRUE(TimeOfSuccess(record).starts_with("\nsucceeded after 100")) << TimeOfSuccess(record);
  record.set_ended_micros(record.created_micros() + 90 * kSecond);
  EXPECT_EQ(TimeOfSuccess(record), "\nsucceeded after 90.0 s\n");
}

}  // namespace
}  // namespace muster
