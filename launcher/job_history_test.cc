#include "launcher/job_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/job_reporter.h"
#include "launcher/run_display.h"

namespace muster {
namespace {

using reconcile::HostState;
using reconcile::Phase;
using reconcile::TaskReport;
using reconcile::TaskState;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// "12 worker:0@a started", in seconds.
std::vector<std::string> Lines(const std::vector<JobEvent>& events) {
  std::vector<std::string> lines;
  for (const JobEvent& event : events) {
    const std::string subject = event.host.empty()   ? "job"
                                : event.task.empty() ? event.host
                                                     : event.task + "@" + event.host;
    lines.push_back(absl::StrFormat("%d %s %s", event.time_micros / 1'000'000, subject, event.what));
  }
  return lines;
}

constexpr int64_t kSecond = 1'000'000;

reconcile::View ViewOf(Phase phase, HostState host, std::optional<TaskReport> task) {
  reconcile::View view{.phase = phase, .generation = 3};
  view.hosts.push_back({.host = "a", .state = host, .data_address = "10.0.0.1"});
  view.tasks.push_back({.task = "worker:0", .host = "a", .report = std::move(task)});
  return view;
}

TaskReport Report(TaskState state, uint32_t incarnation, int64_t started, int64_t ended = 0,
                  const std::string& reason = "") {
  return {.task = "worker:0",
          .state = state,
          .generation = 3,
          .incarnation = incarnation,
          .restarts = incarnation - 1,
          .started_micros = started * kSecond,
          .ended_micros = ended * kSecond,
          .reason = reason};
}

TEST(JobHistory, SaysEachChangeOnceAndTheTasksWithTheirTimes) {
  JobHistory history({});
  EXPECT_THAT(history.OnView(ViewOf(Phase::kGathering, HostState::kConnecting, {}), 1 * kSecond), IsEmpty());
  EXPECT_THAT(Lines(history.OnView(ViewOf(Phase::kRunning, HostState::kReady, {}), 2 * kSecond)),
              ElementsAre("2 a ready", "2 job all hosts are ready: tasks start, generation 3"));
  const auto running = ViewOf(Phase::kRunning, HostState::kReady, Report(TaskState::kRunning, 1, 3));
  EXPECT_THAT(Lines(history.OnView(running, 4 * kSecond)), ElementsAre("3 worker:0@a started"));
  EXPECT_THAT(history.OnView(running, 5 * kSecond), IsEmpty());
  const auto restarting = ViewOf(Phase::kRunning, HostState::kReady,
                                 Report(TaskState::kRestarting, 1, 3, 6, "killed by signal 9"));
  EXPECT_THAT(Lines(history.OnView(restarting, 7 * kSecond)),
              ElementsAre("6 worker:0@a Restarting: killed by signal 9"));
  EXPECT_THAT(
      Lines(history.OnView(ViewOf(Phase::kRunning, HostState::kReady, Report(TaskState::kRunning, 2, 8)),
                           9 * kSecond)),
      ElementsAre("8 worker:0@a started again, restart 1"));
}

TEST(JobHistory, WhatAHostNoLongerKnowsOfEndsWhenThatIsFound) {
  JobHistory history({});
  (void)history.OnView(ViewOf(Phase::kRunning, HostState::kReady, Report(TaskState::kRunning, 1, 3)), 4);
  const auto lost =
      ViewOf(Phase::kRunning, HostState::kReady, Report(TaskState::kLost, 1, 3, 0, "its folder is gone"));
  EXPECT_THAT(Lines(history.OnView(lost, 5 * kSecond)), ElementsAre("5 worker:0@a Lost: its folder is gone"));
  EXPECT_THAT(history.OnView(lost, 6 * kSecond), IsEmpty());
}

TEST(JobHistory, SaysWhereHostsAre) {
  JobHistory history({});
  (void)history.OnView(ViewOf(Phase::kRunning, HostState::kReady, {}), 1);
  auto lost = ViewOf(Phase::kRunning, HostState::kLost, {});
  lost.hosts[0].last_error = absl::UnavailableError("a: silence");
  EXPECT_THAT(Lines(history.OnView(lost, 2 * kSecond)), ElementsAre("2 a lost: a: silence"));
  EXPECT_THAT(Lines(history.OnView(ViewOf(Phase::kRunning, HostState::kReady, {}), 3 * kSecond)),
              ElementsAre("3 a ready"));
}

TEST(JobHistory, ATaskThatFollowsItsClusterIsNotStartedByAMove) {
  JobHistory history({});
  auto report = Report(TaskState::kRunning, 1, 3);
  (void)history.OnView(ViewOf(Phase::kRunning, HostState::kReady, report), 4);
  report.generation = 4;
  auto view = ViewOf(Phase::kRunning, HostState::kReady, report);
  view.generation = 4;
  EXPECT_THAT(history.OnView(view, 5), IsEmpty());
}

TEST(JobHistory, SaysWhyTheJobEnds) {
  JobHistory history({});
  auto view =
      ViewOf(Phase::kEnding, HostState::kReady, Report(TaskState::kFailed, 1, 3, 4, "exited with code 3"));
  view.ending = reconcile::Outcome{.result = reconcile::Result::kFailed, .message = "worker:0 on a failed"};
  (void)history.OnView(ViewOf(Phase::kRunning, HostState::kReady, Report(TaskState::kRunning, 1, 3)), 3);
  EXPECT_THAT(
      Lines(history.OnView(view, 5 * kSecond)),
      ElementsAre("5 job stopping the job: worker:0 on a failed", "4 worker:0@a Failed: exited with code 3"));
  view.phase = Phase::kFinished;
  EXPECT_THAT(Lines(history.OnView(view, 6 * kSecond)),
              ElementsAre("6 job the job has ended: worker:0 on a failed"));
}

TEST(JobHistory, WhatAnotherHasWrittenIsKnown) {
  JobHistory first({});
  const auto running = ViewOf(Phase::kRunning, HostState::kReady, Report(TaskState::kRunning, 1, 3));
  const std::vector<JobEvent> written = first.OnView(running, 4);
  JobHistory second(written);
  // How far the host's clock is off is measured anew, and a bit differently.
  const auto anew = ViewOf(Phase::kRunning, HostState::kReady, Report(TaskState::kRunning, 1, 4));
  EXPECT_THAT(Lines(second.OnView(anew, 5 * kSecond)), ElementsAre("5 a ready"));
}

TEST(JobHistory, WhoTakesAJobOverSaysThatItsTasksStartOnlyIfTheyDo) {
  auto anew = ViewOf(Phase::kRunning, HostState::kReady, Report(TaskState::kRunning, 1, 3));
  // What runs stays, also under a newer generation that no start has come of: of a host that has moved, say.
  JobHistory stays({});
  (void)stays.OnView(ViewOf(Phase::kGathering, HostState::kConnecting, {}), 1);
  EXPECT_THAT(Lines(stays.OnView(anew, 5 * kSecond)), ElementsAre("5 a ready", "3 worker:0@a started"));
  anew.generation = 4;
  JobHistory starts({});
  EXPECT_THAT(Lines(starts.OnView(anew, 5 * kSecond)),
              ElementsAre("5 a ready", "5 job all hosts are ready: tasks start, generation 4",
                          "3 worker:0@a started"));
  // Or has not heard of them yet.
  JobHistory knows({{.time_micros = 1, .what = "all hosts are ready: tasks start, generation 4"}});
  EXPECT_THAT(Lines(knows.OnView(anew, 5 * kSecond)), ElementsAre("5 a ready", "3 worker:0@a started"));
}

TEST(JobHistory, StepsThatWereLostAreSaidOnceByAllWhoReadOfThem) {
  constexpr StepsLost kLost{.reached = 63, .went_on_from = 20};
  JobHistory first({});
  const auto once = first.OnStepsLost(kLost, 4 * kSecond), twice = first.OnStepsLost(kLost, 5 * kSecond);
  ASSERT_TRUE(once && twice);
  EXPECT_THAT(Lines({*once, *twice}), ElementsAre("4 job training went back from step 63 to step 20",
                                                  "5 job training went back from step 63 to step 20"));
  JobHistory second({*once, *twice});
  EXPECT_FALSE(second.OnStepsLost(kLost, 6 * kSecond));
  EXPECT_FALSE(second.OnStepsLost(kLost, 6 * kSecond));
  EXPECT_TRUE(second.OnStepsLost({.reached = 64, .went_on_from = 20}, 7 * kSecond));
  EXPECT_TRUE(second.OnStepsLost(kLost, 8 * kSecond));
}

TEST(ShiftHistory, KeepsAllButTheTime) {
  const JobEvent event{
      .time_micros = 5, .host = "a", .task = "worker:0", .what = "x", .incarnation = 2, .is_end = true};
  JobEvent later = event;
  later.time_micros = 12;
  EXPECT_EQ(ShiftHistory(FormatJobEvent(event) + "\nhalf", 7), FormatJobEvent(later) + "\n");
}

TEST(ParseHistory, LeavesOutAndCountsWhatIsNoEvent) {
  int damaged = 0;
  const auto events = ParseHistory(
      "[]\n{}\n\n{\"time_micros\":\"1\",\"what\":\"x\"}\n{\"time_micros\":1,\"what\":2}\n"
      "{\"time_micros\":1,\"what\":\"x\",\"task\":7}\n\xff\n{\"time_micros\":1,\"what\":\"x\"}\n",
      &damaged);
  EXPECT_EQ(events.size(), 1u);
  EXPECT_EQ(damaged, 6);
}

TEST(JobReporter, TellsWhatFailedTooFromWhatFollowed) {
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder.path() / "history.jsonl";
  RunDisplay display({}, record::JobRecord());
  JobReporter(path, display)
      .NoteFailure({.result = reconcile::Result::kFailed,
                    .first_cause = reconcile::Casualty{"worker:0", "a", "not found"},
                    .consequences = {{"ps:0", "a", "stopped"}, {"worker:1", "b", "not found"}}},
                   {});
  int damaged = 0;
  std::vector<std::string> what;
  for (const JobEvent& event : ParseHistory(*ReadFile(path), &damaged)) what.push_back(event.what);
  EXPECT_THAT(what, ElementsAre(::testing::StartsWith("driven by process"), "first cause: not found",
                                "as a consequence: stopped", "failed too: not found"));
}

TEST(HistoryFile, HalfALineIsLeftOutAndNothingIsWrittenBehindIt) {
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder.path() / "history.jsonl";
  const JobEvent event{.time_micros = 12,
                       .host = "a",
                       .task = "ps:0",
                       .what = "\"quoted\"\n\xff",
                       .incarnation = 2,
                       .is_end = true};
  ASSERT_TRUE(HistoryFile::Open(path)->Append({event, event}).ok());
  const std::string whole = *ReadFile(path);
  ASSERT_TRUE(WriteFileAtomically(path, whole.substr(0, whole.size() - 5)).ok());
  ASSERT_TRUE(HistoryFile::Open(path)->Append({event}).ok());
  int damaged = 0;
  const std::vector<JobEvent> events = ParseHistory(*ReadFile(path), &damaged);
  EXPECT_EQ(damaged, 1);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(FormatJobEvent(events[1]), FormatJobEvent(events[0]));
  EXPECT_EQ(events[1].what, "\"quoted\"\n\xEF\xBF\xBD") << "no byte that is not UTF-8";
  EXPECT_EQ(events[1].incarnation, 2u);
  EXPECT_TRUE(events[1].is_end);
}

}  // namespace
}  // namespace muster
