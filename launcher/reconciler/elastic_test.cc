// Transcripts of tasks that join a cluster in force and leave it.
#include <gtest/gtest.h>

#include "launcher/reconciler/script_testing.h"

namespace muster::reconcile {
namespace {

using std::chrono::seconds;

Desired OfTwo() {
  Desired desired = OnePsOneWorker();
  for (DesiredTask& task : desired.tasks) task.follows_cluster = true;
  desired.elastic = true;
  return desired;
}

// And worker:1 on host c.
Desired OfThree() {
  Desired desired = OfTwo();
  desired.hosts.push_back({"c", "10.0.0.3", {"program"}});
  desired.tasks.push_back(desired.tasks.back());
  desired.tasks.back().id = "worker:1";
  desired.tasks.back().host = "c";
  return desired;
}

// Once worker:1 has its port.
constexpr char kTheThirdJoins[] =
    "persist 2 fixed\n"
    "start a ps:0 2 v1 10.0.0.1:20000 10.0.0.2:20001 10.0.0.3:20002\n"
    "start b worker:0 2 v1 10.0.0.1:20000 10.0.0.2:20001 10.0.0.3:20002\n"
    "start c worker:1 2 v1 10.0.0.1:20000 10.0.0.2:20001 10.0.0.3:20002\n";

// The record of a job that runs.
Record Running(const Desired& desired) {
  Script script(desired);
  script.StartAll();
  if (desired.tasks.size() > 2) {
    script.Connected("c");
    script.Ready("c");
    script.Leased("c", "worker:1", 20002);
  }
  return script.reconciler.record();
}

TaskState StateOf(const Script& script, const TaskId& id) {
  for (const TaskView& task : script.reconciler.GetView().tasks) {
    if (task.task == id) return task.state;
  }
  return TaskState::kPending;
}

// All that ran before is there again.
void Reconnect(Script& script) {
  script.Feed(Tick{});
  script.Connected("a", {Script::Task("ps:0", kRunning)});
  script.Ready("a");
  script.Connected("b", {Script::Task("worker:0", kRunning)});
}

// And one that may have something is.
TEST(ElasticJob, AHostThatNothingWasAskedOfIsNotAskedToStopAnything) {
  for (const bool unreached : {false, true}) {
    Desired desired = OfThree();
    desired.hosts.back().unreached = unreached;
    Script script(desired, Running(OfTwo()));
    const std::string connects = script.Feed(StopRequested{});
    EXPECT_EQ(connects.find("connect c") == std::string::npos, unreached) << connects;
    for (const char* host : {"a", "b"}) {
      script.Connected(host);
      script.Stopped(host, {});
    }
    EXPECT_EQ(script.outcome.has_value(), unreached);
    script.Wait(seconds(60));
    ASSERT_TRUE(script.outcome.has_value());
    EXPECT_EQ(script.outcome->left_behind, unreached ? std::vector<HostId>() : std::vector<HostId>{"c"});
  }
}

TEST(ElasticJob, AWorkerJoinsOnceItsHostIsReadyAndTheOthersGoOn) {
  Script script(OfThree(), Running(OfTwo()));
  Reconnect(script);
  script.Ready("b");
  EXPECT_EQ(script.Connected("c"), "contents c\n");
  EXPECT_EQ(script.Ready("c"), "lease c worker:1\n");
  EXPECT_EQ(script.Leased("c", "worker:1", 20002), kTheThirdJoins);
  EXPECT_EQ(script.reconciler.record().base_generation, 1u);
}

TEST(ElasticJob, AWorkerThatIsWantedLaterJoinsWithoutANewLauncher) {
  Script script(OfTwo());
  script.StartAll();
  EXPECT_EQ(script.Feed(MoreDesired{OfThree()}), "persist 1 fixed\nconnect c\n");
  EXPECT_EQ(script.reconciler.record().strays, std::vector<HostId>{"c"});
  EXPECT_EQ(script.Connected("c"), "contents c\nlease c worker:1\n");
  EXPECT_EQ(script.Ready("c"), "");
  EXPECT_EQ(script.Leased("c", "worker:1", 20002), kTheThirdJoins);
  EXPECT_EQ(script.Feed(MoreDesired{OfThree()}), "") << "it is wanted already";
}

TEST(ElasticJob, WhoIsWantedLaterIsNotWaitedFor) {
  Script script(OfTwo());
  script.StartAll();
  script.Feed(MoreDesired{OfThree()});
  script.Wait(seconds(61));
  EXPECT_EQ(StateOf(script, "worker:1"), TaskState::kLost);
  EXPECT_EQ(StateOf(script, "worker:0"), kRunning);
  EXPECT_FALSE(script.reconciler.GetView().ending);
}

TEST(ElasticJob, AHostThatIsNotReachedCostsTheOthersNothing) {
  Script script(OfThree(), Running(OfTwo()));
  Reconnect(script);
  EXPECT_EQ(script.Ready("b"), "");
  script.Wait(seconds(16));
  EXPECT_EQ(StateOf(script, "worker:1"), TaskState::kLost);
  EXPECT_EQ(StateOf(script, "worker:0"), kRunning);
  EXPECT_FALSE(script.reconciler.GetView().ending);
  EXPECT_EQ(script.Wait(seconds(10)), "connect c\n");
  EXPECT_EQ(script.Connected("c"), "contents c\nlease c worker:1\n");
  EXPECT_EQ(script.Ready("c"), "");
  EXPECT_TRUE(script.Leased("c", "worker:1", 20002).starts_with("persist 2 fixed\n"));
}

TEST(ElasticJob, AHostThatGivesNoPortCostsTheOthersNothingAndIsAskedAgainWhenItComesBack) {
  Script script(OfThree(), Running(OfTwo()));
  Reconnect(script);
  script.Ready("b");
  script.Connected("c");
  script.Ready("c");
  for (int attempt = 0; attempt < 3; ++attempt) {
    script.Refused("c", "lease worker:1", Unavailable("no ports"));
    script.Wait(seconds(5));
  }
  EXPECT_EQ(StateOf(script, "worker:1"), TaskState::kLost);
  EXPECT_FALSE(script.reconciler.GetView().ending);
  EXPECT_EQ(script.Wait(seconds(60)), "");
  script.Lost("c");
  script.Wait(seconds(1));
  EXPECT_EQ(script.Connected("c"), "lease c worker:1\n");
}

TEST(ElasticJob, AWorkerThatLeavesIsStoppedOnceTheClusterIsWithoutIt) {
  Script script(OfTwo(), Running(OfThree()));
  Reconnect(script);
  script.Connected("c", {Script::Task("worker:1", kRunning)});
  EXPECT_EQ(script.Ready("b"),
            "persist 2 fixed\n"
            "start a ps:0 2 v1 10.0.0.1:20000 10.0.0.2:20001\n"
            "start b worker:0 2 v1 10.0.0.1:20000 10.0.0.2:20001\n"
            "stop c worker:1 v1\n");
}

TEST(ElasticJob, WhoComesBackHasHigherIncarnationsThanItCanHaveHadBefore) {
  Record record;
  {
    Script script(OfTwo(), Running(OfThree()));
    Reconnect(script);
    script.Ready("b");  // and c is not there
    record = script.reconciler.record();
    ASSERT_EQ(record.departures.size(), 1u);
    EXPECT_EQ(record.departures[0].task, "worker:1");
  }
  Desired desired = OfThree();
  desired.tasks.back().host = "b";
  Script script(desired, record);
  script.Feed(Tick{});
  script.Connected("a", {Script::Task("ps:0", kRunning, 2)});
  script.Ready("a");
  script.Connected("b", {Script::Task("worker:0", kRunning, 2)});
  EXPECT_EQ(script.Ready("b"), "lease b worker:1\n");
  script.Leased("b", "worker:1", 20003);
  EXPECT_GT(script.minimum_incarnation, 1'000'000u);
}

TEST(ElasticJob, AWorkerThatFailsMayCostTheOthersNothing) {
  Desired desired = OfThree();
  desired.tasks.back().can_fail = true;
  Script script(desired, Running(OfTwo()));
  Reconnect(script);
  script.Ready("b");
  script.Connected("c");
  script.Ready("c");
  script.Leased("c", "worker:1", 20002);
  script.Started("a", Script::Task("ps:0", kRunning, 2));
  script.Started("b", Script::Task("worker:0", kRunning, 2));
  script.Started("c", Script::Task("worker:1", kRunning, 2));
  TaskReport failed = Script::Ended("worker:1", 1);
  failed.generation = 2;
  EXPECT_EQ(script.Report("c", {failed}), "");
  EXPECT_FALSE(script.reconciler.GetView().ending);
  TaskReport done = Script::Ended("worker:0", 0);
  done.generation = 2;
  EXPECT_EQ(script.Report("b", {done}), "persist 2 ending\n");
  EXPECT_EQ(script.reconciler.record().ending->result, Result::kSucceeded);
}

TEST(ElasticJob, OtherJobsStartAllTheirTasksAgain) {
  Desired desired = OfThree();
  desired.elastic = false;
  Script script(desired, Running(OfTwo()));
  EXPECT_TRUE(script.Feed(Tick{}).starts_with("persist 1 open\n"));
}

}  // namespace
}  // namespace muster::reconcile
