// Transcripts of what is waited for, for how long, and how often.
#include <gtest/gtest.h>

#include "launcher/reconciler/script_testing.h"
#include "launcher/reconciler/task_life.h"

namespace muster::reconcile {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

// Its report comes too late, and well with the next connection.
void ReportLate(Script& script, const HostId& host, const TaskReport& report) {
  script.Lost(host);
  EXPECT_EQ(script.Wait(seconds(1)), "connect " + host + "\n");
  EXPECT_EQ(script.ConnectedAt(host, ""), "");
  EXPECT_EQ(script.Wait(seconds(11)), "connect " + host + "\n");
  script.Connected(host, {report});
}

TEST(Patience, AHostThatHasAnsweredMeanwhileIsNotBrokenHoweverOftenItWasSilent) {
  Script script(OnePsOneWorker());
  script.StartAll();
  for (int week = 0; week < 5; ++week) {
    script.Wait(hours(24 * 7));
    ReportLate(script, "b", Script::Task("worker:0", kRunning));
    ASSERT_FALSE(script.reconciler.GetView().ending) << script.reconciler.GetView().ending->message;
  }
}

TEST(Patience, AStartWhoseAnswerWasLostIsNoSilenceOnceItIsReported) {
  Desired desired = OnePsOneWorker();
  for (DesiredTask& task : desired.tasks) task.follows_cluster = true;
  Script script(desired);
  script.StartAll();
  for (uint64_t generation = 2; generation < 7; ++generation) {
    script.Wait(hours(24 * 7));
    script.Feed(ServersMoved{});
    script.Started("b", Script::Task("worker:0", kRunning, generation));
    EXPECT_EQ(script.Wait(seconds(11)), "connect a\n");
    EXPECT_EQ(script.Connected("a", {Script::Task("ps:0", kRunning, generation)}), "");
    ASSERT_FALSE(script.reconciler.GetView().ending) << script.reconciler.GetView().ending->message;
  }
}

// Of its time the driver was busy for most.
TEST(Patience, AHostThatIsConnectedInTimeMayReportALittleLater) {
  Script script(OnePsOneWorker(), {}, {.lost_deadline = seconds(15)});
  script.StartAll();
  script.Lost("b");
  script.Pass(seconds(11));
  EXPECT_EQ(script.Wait(seconds(0)), "connect b\n");
  script.Pass(seconds(1));
  EXPECT_EQ(script.ConnectedAt("b", ""), "");
  EXPECT_EQ(script.Wait(seconds(4)), "") << "a connected host is not lost before its answer is due";
  EXPECT_EQ(script.Report("b", {Script::Task("worker:0", kRunning)}), "");
  EXPECT_FALSE(script.reconciler.GetView().ending);

  // If it breaks off without an answer, it is as lost as before.
  script.Lost("b");
  EXPECT_EQ(script.Wait(seconds(12)), "connect b\n");
  EXPECT_EQ(script.ConnectedAt("b", ""), "");
  EXPECT_EQ(script.Wait(seconds(4)), "");
  EXPECT_EQ(script.Lost("b"), "persist 1 ending\nstop a all below 2\n");
}

// Its home is not mounted yet, say, and with it the keys that it accepts.
TEST(Patience, ARefusalByAHostThatWasThereMayPass) {
  Script script(OnePsOneWorker());
  script.StartAll();
  const absl::Status refusal = PermissionDenied("b: no key is accepted");
  EXPECT_EQ(script.Lost("b", refusal), "");
  for (int attempt = 0; attempt < 5; ++attempt) {
    EXPECT_EQ(script.Wait(seconds(10)), "connect b\n");
    EXPECT_EQ(script.Lost("b", refusal), "");
  }
  script.Wait(seconds(9));
  EXPECT_EQ(script.Connected("b", {Script::Task("worker:0", kRunning)}), "");
  ASSERT_FALSE(script.reconciler.GetView().ending);

  // It is waited for as long as for any other that is lost.
  script.Lost("b", refusal);
  for (int second = 0; second < 60 && !script.reconciler.GetView().ending; ++second) {
    if (script.Wait(seconds(1)) == "connect b\n") script.Lost("b", refusal);
  }
  ASSERT_TRUE(script.reconciler.GetView().ending);
  EXPECT_EQ(script.reconciler.GetView().ending->message, "host lost: b: no key is accepted");
}

// Whoever goes on with the job has not seen it, but knows that it was.
TEST(Patience, ARefusalByAHostOfAJobThatIsTakenOverMayPassToo) {
  Script before(OnePsOneWorker());
  before.StartAll();
  Script script(OnePsOneWorker(), before.reconciler.record());
  script.Feed(Tick{});
  EXPECT_EQ(script.Lost("b", PermissionDenied("b: no key is accepted")), "");
  EXPECT_EQ(script.Wait(seconds(10)), "connect b\n");
  script.Connected("b", {Script::Task("worker:0", kRunning)});
  EXPECT_FALSE(script.reconciler.GetView().ending);

  // To run it again begins with hosts of which nothing is known.
  script.Feed(StopRequested{});
  script.Wait(seconds(20));
  ASSERT_TRUE(script.outcome);
  Script again(OnePsOneWorker(), NextRun(script.reconciler.record()));
  again.Feed(Tick{});
  again.Lost("a", PermissionDenied("a: no key is accepted"));
  again.Lost("b", PermissionDenied("b: no key is accepted"));
  EXPECT_TRUE(again.reconciler.GetView().ending);
}

// To a script whose host a has all that it needs.
void Gather(Script& script) {
  script.Feed(Tick{});
  script.Connected("a");
  script.Ready("a");
  script.Leased("a", "ps:0", 20000);
}

// Small packets get through to it, and large ones do not.
TEST(Patience, AHostThatIsLostAgainWithEachUploadIsNotWaitedForForEver) {
  Script script(OnePsOneWorker());
  Gather(script);
  int uploads = 0;
  for (int second = 0; second < 120 && !script.reconciler.GetView().ending; ++second) {
    if (second == 0 || script.Wait(seconds(1)) == "connect b\n") {
      EXPECT_EQ(script.Connected("b"), "contents b\nlease b worker:0\n");
      ++uploads;
      script.Pass(seconds(3));
      script.Lost("b");
    }
  }
  ASSERT_TRUE(script.reconciler.GetView().ending) << uploads << " uploads";
  EXPECT_EQ(script.reconciler.GetView().ending->message,
            "nothing was started, because a host was not reached: b: connection reset");
  EXPECT_GT(uploads, 3);
}

TEST(Patience, AHostThatIsLostOnceInAWhileIsNotLostForAllOfThatTime) {
  Script script(OnePsOneWorker());
  Gather(script);
  script.Connected("b");
  script.Leased("b", "worker:0", 20001);
  for (int time = 0; time < 50; ++time) {
    script.Wait(minutes(10));
    EXPECT_EQ(script.ContentsCome("b"), "");
    script.Lost("b");
    ASSERT_EQ(script.Wait(seconds(2)), "connect b\n");
    script.Wait(seconds(5));
    ASSERT_EQ(script.Connected("b"), "contents b\n");
  }
}

TEST(Patience, ContentsThatComeSlowlyAreWaitedFor) {
  Script script(OnePsOneWorker());
  Gather(script);
  EXPECT_EQ(script.Connected("b"), "contents b\nlease b worker:0\n");
  script.Leased("b", "worker:0", 20001);
  for (int minute = 0; minute < 5 * 60; minute += 10) {
    ASSERT_EQ(script.Wait(minutes(10)), "") << minute;
    EXPECT_EQ(script.ContentsCome("b"), "");
  }
  EXPECT_EQ(script.Ready("b"),
            "persist 1 fixed\nstart a ps:0 1 v1 10.0.0.1:20000 10.0.0.2:20001\n"
            "start b worker:0 1 v1 10.0.0.1:20000 10.0.0.2:20001\n");

  // Three times without a sign of them are too much, but not after one.
  Script silent(OnePsOneWorker());
  Gather(silent);
  silent.Connected("b");
  silent.Leased("b", "worker:0", 20001);
  for (int silence = 1; silence <= 5; ++silence) {
    ASSERT_FALSE(silent.reconciler.GetView().ending);
    if (silence == 3) silent.ContentsCome("b");
    silent.Wait(minutes(30));
    silent.Connected("b");
  }
  ASSERT_TRUE(silent.reconciler.GetView().ending);
}

// It reports with each connection, and that is all.
TEST(Patience, AHostThatNeverAnswersAStartIsBroken) {
  Script script(OnePsOneWorker());
  script.GatherAll();
  script.Started("a", Script::Task("ps:0", kRunning));
  script.Wait(seconds(1));
  for (int silence = 1; silence < 3; ++silence) {
    EXPECT_EQ(script.Wait(seconds(10)), "connect b\n");
    EXPECT_EQ(script.Connected("b"), "start b worker:0 1 v1 10.0.0.1:20000 10.0.0.2:20001\n");
  }
  script.Wait(seconds(10));
  ASSERT_TRUE(script.reconciler.GetView().ending);
  EXPECT_EQ(script.reconciler.GetView().ending->message, "host lost: b: 3 requests in a row got no answer");
}

// It greets, and lets nobody in. Others that do so, too, take all the turns.
TEST(Patience, AnEndDoesNotWaitForeverForAHostThatWaitsForItsTurnAgainAndAgain) {
  for (const bool is_lost_before : {true, false}) {
    Script script(OnePsOneWorker());
    script.StartAll();
    if (is_lost_before) script.Lost("b");
    script.Feed(StopRequested{});
    if (!is_lost_before) script.Lost("b");
    script.Stopped("a", {});
    for (int second = 0; second < 120 && !script.outcome; ++second) {
      script.Wait(seconds(1));
      if (second % 8 < 4) script.Coming("b");  // then it has its turn, and as long as an attempt may take
    }
    ASSERT_TRUE(script.outcome);
    EXPECT_EQ(script.outcome->left_behind, std::vector<HostId>{"b"});
  }
}

Desired ThreeThatFollow() {
  Desired desired = OnePsOneWorker();
  desired.hosts.push_back({"c", "10.0.0.3", {}});
  desired.tasks.push_back({"worker:1", "c", "v1", true, false});
  for (DesiredTask& task : desired.tasks) task.follows_cluster = true;
  return desired;
}

// But for the answer of c to its start.
void StartThree(Script& script) {
  script.Feed(Tick{});
  for (const HostId host : {"a", "b", "c"}) {
    script.Connected(host);
    script.Ready(host);
  }
  uint32_t port = 20000;
  for (const auto& [host, task] : {std::pair("a", "ps:0"), {"b", "worker:0"}, {"c", "worker:1"}})
    script.Leased(host, task, port++);
  script.Started("a", Script::Task("ps:0", kRunning));
  script.Started("b", Script::Task("worker:0", kRunning));
}

TEST(Patience, HostsThatMoveTogetherMakeOneGeneration) {
  Script script(ThreeThatFollow());
  StartThree(script);
  for (const HostId host : {"a", "b", "c"}) script.Lost(host);
  script.Wait(seconds(1));
  EXPECT_EQ(script.ConnectedAt("a", "10.0.1.1"), "");
  EXPECT_EQ(script.Wait(milliseconds(50)), "");
  EXPECT_EQ(script.ConnectedAt("b", "10.0.1.2"), "");
  EXPECT_EQ(script.Wait(milliseconds(40)), "");
  EXPECT_EQ(script.ConnectedAt("c", "10.0.1.3"), "persist 2 fixed\n") << "nobody else is on the way";
  EXPECT_EQ(script.Report("a", {Script::Task("ps:0", kRunning)}),
            "start a ps:0 2 v1 10.0.1.1:20000 10.0.1.2:20001 10.0.1.3:20002\n");
}

TEST(Patience, AHostThatHasMovedWaitsForOthersOnTheirWayAMomentOnly) {
  Script script(ThreeThatFollow());
  StartThree(script);
  for (const HostId host : {"a", "b", "c"}) script.Lost(host);
  script.Wait(seconds(1));
  EXPECT_EQ(script.ConnectedAt("b", "10.0.1.2"), "");
  EXPECT_EQ(script.Connected("c"), "") << "with the addresses of before it would have to be started twice";
  EXPECT_EQ(script.Wait(milliseconds(100)),
            "persist 2 fixed\nstart c worker:1 2 v1 10.0.0.1:20000 10.0.1.2:20001 10.0.0.3:20002\n");
}

// As for a driver that was busy, with starts perhaps, while the answers came in.
TEST(Patience, WhatHasComeIsHeardBeforeDeadlinesAreJudged) {
  Desired desired = OnePsOneWorker();
  for (DesiredTask& task : desired.tasks) task.follows_cluster = true;
  Script script(desired);
  script.StartAll();
  script.Feed(ServersMoved{});
  script.Pass(seconds(11));
  EXPECT_EQ(script.Started("a", Script::Task("ps:0", kRunning, 2)), "");
  EXPECT_EQ(script.Started("b", Script::Task("worker:0", kRunning, 2)), "");
  EXPECT_EQ(script.Wait(seconds(0)), "");

  script.Feed(ServersMoved{});
  script.Pass(seconds(11));
  EXPECT_EQ(script.Started("a", Script::Task("ps:0", kRunning, 3)), "");
  EXPECT_EQ(script.Wait(seconds(0)), "connect b\n");

  // Nor are hosts left behind that have stopped everything in time.
  script.Connected("b", {Script::Task("worker:0", kRunning, 3)});
  script.Feed(StopRequested{});
  script.Pass(seconds(11));
  script.Stopped("a", {});
  script.Stopped("b", {});
  ASSERT_TRUE(script.outcome);
  EXPECT_TRUE(script.outcome->left_behind.empty());
}

// Under `generation`, and what comes of it.
std::string LosePort(Script& script, uint64_t generation) {
  TaskReport lost = Script::Task("ps:0", TaskState::kFailed, generation);
  lost.exit_code = kPortLostExitCode;
  lost.incarnation = static_cast<uint32_t>(generation);
  script.Report("a", {lost});
  script.Stopped("a", {});
  script.Stopped("b", {});
  script.Leased("a", "ps:0", 20000 + static_cast<uint32_t>(generation));
  const std::string started = script.Leased("b", "worker:0", 21000);
  for (const HostId host : {"a", "b"}) {
    TaskReport again = Script::Task(host == "a" ? "ps:0" : "worker:0", kRunning, generation + 1);
    again.incarnation = static_cast<uint32_t>(generation) + 1;
    script.Started(host, again);
  }
  return started;
}

TEST(Patience, PortsLostOnceInAWhileDoNotAddUp) {
  Script script(OnePsOneWorker());
  script.StartAll();
  for (uint64_t generation = 1; generation < 8; ++generation) {
    script.Wait(hours(24 * 30));
    EXPECT_NE(LosePort(script, generation), "");
    ASSERT_FALSE(script.reconciler.GetView().ending) << script.reconciler.GetView().ending->message;
    EXPECT_EQ(script.reconciler.record().lost_ports.size(), 1u) << "those of long ago may be free again";
  }
  // One after the other they do.
  uint64_t generation = 8;
  for (int retry = 0; retry < 2; ++retry) {
    script.Wait(minutes(1));
    LosePort(script, generation++);
    ASSERT_FALSE(script.reconciler.GetView().ending);
  }
  LosePort(script, generation);
  ASSERT_TRUE(script.reconciler.GetView().ending);
  EXPECT_EQ(script.reconciler.GetView().ending->exit_code, kPortLostExitCode);
}

}  // namespace
}  // namespace muster::reconcile
