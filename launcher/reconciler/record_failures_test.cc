// Transcripts of records that cannot be written.
#include <gtest/gtest.h>

#include "launcher/reconciler/script_testing.h"

namespace muster::reconcile {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const absl::Status kDiskFull = absl::ResourceExhaustedError("the disk is full");

TEST(RecordFailures, ASuccessIsWrittenOnceItCanBeAndTheOthersRunOn) {
  Desired desired = OnePsOneWorker();
  desired.tasks[0].ends_with_others = false;
  Script script(desired);
  script.StartAll();
  script.record_error = kDiskFull;
  EXPECT_EQ(script.Report("b", {Script::Ended("worker:0", 0)}), "");
  EXPECT_EQ(script.Wait(seconds(1)), "no record\n");
  for (int minute = 0; minute < 60; ++minute) EXPECT_EQ(script.Wait(seconds(60)), "no record\n");
  EXPECT_EQ(script.reconciler.GetView().phase, Phase::kRunning);
  // Nothing waits for it.
  EXPECT_EQ(script.Lost("a"), "no record\n");
  EXPECT_EQ(script.Wait(seconds(1)), "connect a\n");
  EXPECT_EQ(script.Connected("a", {Script::Task("ps:0", kRunning)}), "");
  script.record_error = absl::OkStatus();
  EXPECT_EQ(script.Wait(seconds(60)), "persist 1 fixed\n");
  EXPECT_EQ(script.Wait(seconds(60)), "");
  EXPECT_EQ(script.reconciler.record().successes.size(), 1u);
}

TEST(RecordFailures, WhatASpareHostIsAskedForWaitsForTheRecord) {
  Desired desired = OnePsOneWorker();
  desired.hosts.push_back({"c", "10.0.0.3", {"program"}});
  desired.tasks[1].spares = {"c"};
  for (DesiredTask& task : desired.tasks) task.follows_cluster = true;
  Script script(desired);
  script.StartAll();
  script.Lost("b");
  script.record_error = kDiskFull;
  EXPECT_EQ(script.Wait(seconds(61)), "no record\nconnect c\n");
  EXPECT_EQ(script.Connected("c"), "") << "nobody could find again what it gets";
  EXPECT_EQ(script.Wait(seconds(5)), "no record\n");
  script.record_error = absl::OkStatus();
  EXPECT_EQ(script.Wait(seconds(4)), "persist 1 fixed\ncontents c\nlease c worker:0\n");
  script.Ready("c");
  script.record_error = kDiskFull;
  EXPECT_EQ(script.Leased("c", "worker:0", 20002), "no record\n");
  script.record_error = absl::OkStatus();
  EXPECT_EQ(script.Wait(milliseconds(400)),
            "persist 2 fixed\n"
            "start a ps:0 2 v1 10.0.0.1:20000 10.0.0.3:20002\n"
            "start c worker:0 2 v1 10.0.0.1:20000 10.0.0.3:20002\n");
}

TEST(RecordFailures, TheFirstStartWaitsForTheRecord) {
  Script script(OnePsOneWorker());
  script.Feed(Tick{});
  script.record_error = kDiskFull;
  EXPECT_EQ(script.Connected("a"), "contents a\nno record\n");
  EXPECT_EQ(script.Connected("b"), "");
  script.record_error = absl::OkStatus();
  EXPECT_EQ(script.Wait(milliseconds(400)), "persist 0 open\nlease a ps:0\ncontents b\nlease b worker:0\n");
  for (const HostId host : {"a", "b"}) script.Ready(host);
  script.Leased("a", "ps:0", 20000);
  script.record_error = kDiskFull;
  EXPECT_EQ(script.Leased("b", "worker:0", 20001), "no record\n");
  EXPECT_EQ(script.Wait(milliseconds(400)), "no record\n");
  script.record_error = absl::OkStatus();
  EXPECT_EQ(script.Wait(seconds(1)),
            "persist 1 fixed\n"
            "start a ps:0 1 v1 10.0.0.1:20000 10.0.0.2:20001\n"
            "start b worker:0 1 v1 10.0.0.1:20000 10.0.0.2:20001\n");
}

TEST(RecordFailures, TheJobEndsIfWhatIsToBeStartedWaitsForTooLong) {
  Script script(OnePsOneWorker());
  script.StartAll();
  script.record_error = kDiskFull;
  EXPECT_EQ(script.Report("a", {Script::Ended("ps:0", kPortLostExitCode)}), "no record\n")
      << "another launcher would not know why they are stopped";
  std::string lines;
  for (int i = 0; i < 100 && lines.find("stop") == std::string::npos; ++i) lines = script.Wait(seconds(1));
  EXPECT_EQ(lines, "no record\nno record\nstop a all below 2\nstop b all below 2\n");
  EXPECT_EQ(script.reconciler.record().ending->message, "the job record cannot be written: the disk is full");
  EXPECT_EQ(script.reconciler.record().retries, 1) << "other lost ports have another cause";
  // How it ends is written down as soon as it can be.
  script.record_error = absl::OkStatus();
  EXPECT_EQ(script.Wait(seconds(2)), "persist 1 ending\n");
}

TEST(RecordFailures, AnEndWithoutItsRecordStopsWhatRuns) {
  Script script(OnePsOneWorker());
  script.StartAll();
  script.record_error = kDiskFull;
  EXPECT_EQ(script.Feed(StopRequested{}), "no record\nstop a all below 2\nstop b all below 2\n");
  script.Stopped("a", {});
  EXPECT_EQ(script.Stopped("b", {}), "no record\nfinish 130: stopped on request\n");
}

// The answer to the third attempt.
std::string RefuseThrice(Script& script, const HostId& host, const std::string& what) {
  const absl::Status over = FailedPrecondition("generation 1 is over");
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_EQ(script.Refused(host, what, over), "");
    script.Wait(seconds(2));
  }
  return script.Refused(host, what, over);
}

// Whoever was stopped so, and killed before the end was written, has fenced off the generation for the next.
TEST(RecordFailures, WhatAHostHasSeenAndNoRecordSaysCostsAGenerationNotTheJob) {
  Script script(OnePsOneWorker());
  script.GatherAll();
  EXPECT_EQ(RefuseThrice(script, "a", "start ps:0"),
            "persist 1 open\nstop a all below 2\nstop b all below 2\n");
  script.Stopped("a", {});
  EXPECT_EQ(script.Stopped("b", {}), "lease b worker:0\n");
  script.Leased("b", "worker:0", 20001);
  EXPECT_EQ(script.Wait(seconds(2)), "lease a ps:0\n");
  EXPECT_EQ(script.Leased("a", "ps:0", 20000),
            "persist 2 fixed\n"
            "start a ps:0 2 v1 10.0.0.1:20000 10.0.0.2:20001\n"
            "start b worker:0 2 v1 10.0.0.1:20000 10.0.0.2:20001\n");
}

// Another generation would need hosts that are given up.
TEST(RecordFailures, AHostThatCanBeDoneWithoutCostsNoGeneration) {
  Desired desired = OnePsOneWorker();
  desired.tasks[0].ends_with_others = false;
  desired.tasks[1].can_be_missing = true;
  desired.max_missing = 1;
  Script script(desired);
  script.GatherAll();
  EXPECT_EQ(RefuseThrice(script, "b", "start worker:0"), "");
  EXPECT_EQ(script.reconciler.GetView().hosts[1].state, HostState::kGivenUp);
}

}  // namespace
}  // namespace muster::reconcile
