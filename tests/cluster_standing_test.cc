// Servers that stand (`muster up`), and jobs that are trained on them (`muster run --cluster`).
#include <absl/strings/str_join.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/lifecycle_fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ClusterStanding : public LifecycleTest {
 protected:
  ClusterStanding() : LifecycleTest(LoopbackCluster::Network::kLoopback, 4) {}

  void SetUp() override {
    const std::string file = cluster_.Write(
        "pool.yaml", "name: pool\nreplicas: {ps: {count: 2}}\ncheckpoint: {every_steps: 50}\n");
    const CommandResult up = Muster({"up", file, "-i", cluster_.inventory()});
    ASSERT_EQ(up.exit_code, 0) << up.stderr_text;
    EXPECT_THAT(up.stderr_text, HasSubstr("4 of 4 hosts are set up\n"));
    EXPECT_THAT(up.stderr_text, HasSubstr("stand; `muster run --cluster pool-"));
  }
  void TearDown() override {
    const CommandResult stop = Muster({"stop", "pool"});
    EXPECT_EQ(stop.exit_code, 0) << stop.stderr_text;
    LifecycleTest::TearDown();
  }

  std::string Training(const std::string& name, const std::string& replicas, int steps,
                       const std::string& more = "") {
    return cluster_.Write(
        name + ".yaml", absl::StrFormat("name: %s\nmodel: mnist_mlp\nupdate: {mode: sync}\nreplicas: {%s}\n%s"
                                        "train: {steps: %d, batch_size: 20, seed: 3, threads: 1}\n",
                                        name, replicas, more, steps));
  }
  CommandResult RunOnPool(const std::string& job) { return RunJob(job, {"--cluster", "pool"}); }
  Json Result() { return Json::parse(*ReadFile(JobFolder() / "result.json")); }
};

TEST_F(ClusterStanding, TheyTrainOneJobAfterTheOther) {
  const std::string own = Training("own", "ps: {count: 2}, worker: {count: 2}", 150);
  ASSERT_EQ(RunJob(own).exit_code, 0);
  const Json expected = Result()["parameters_crc32c"];
  const auto servers = FirstProcesses("pool");
  ASSERT_EQ(servers.size(), 2u);

  const CommandResult first = RunOnPool(Training("first", "worker: {count: 2}", 150));
  EXPECT_EQ(first.exit_code, 0) << first.stderr_text;
  EXPECT_EQ(Result()["parameters_crc32c"], expected);
  // What a job file says of its own servers does not matter here.
  const CommandResult second = RunOnPool(Training("second", "ps: {count: 1}, worker: {count: 3}", 60));
  EXPECT_EQ(second.exit_code, 0) << second.stderr_text;
  EXPECT_EQ(Result()["workers"], 3);
  const CommandResult again = RunOnPool(Training("first", "worker: {count: 2}", 150));
  EXPECT_EQ(again.exit_code, 0) << again.stderr_text;
  EXPECT_EQ(Result()["parameters_crc32c"], expected);
  EXPECT_EQ(FirstProcesses("pool"), servers);
}

// Also those without a server, for the jobs that come.
TEST_F(ClusterStanding, AllHostsAreSetUp) {
  const auto servers = FirstProcesses("pool");
  std::set<std::string> stores;
  for (const char* host : {"host-1", "host-4"}) {
    const std::filesystem::path hosts = cluster_.hosts().HomeOf(host) + "/.muster/hosts";
    for (const auto& entry : std::filesystem::directory_iterator(hosts)) {
      const auto contents = ListDirectory(entry.path() / "store");
      ASSERT_TRUE(contents.ok()) << contents.status();
      stores.insert(absl::StrJoin(*contents, " "));
    }
  }
  EXPECT_EQ(stores.size(), 1u) << "both have the trainer, and nothing else";
  EXPECT_FALSE(stores.begin()->empty());
  // One that is away keeps nobody from training on the others, but it is said.
  cluster_.hosts().Kill("host-4");
  const CommandResult up = Muster({"up", Path("pool.yaml"), "-i", cluster_.inventory()});
  EXPECT_EQ(up.exit_code, 69) << up.stderr_text;
  EXPECT_THAT(up.stderr_text, HasSubstr("host-4 is not set up: host-4 ("));
  EXPECT_THAT(up.stderr_text, HasSubstr("3 of 4 hosts are set up\n"));
  EXPECT_THAT(up.stderr_text, HasSubstr("stand; `muster run --cluster pool-"));
  EXPECT_EQ(FirstProcesses("pool"), servers);
  const CommandResult run = RunOnPool(Training("job", "worker: {count: 1}", 60));
  EXPECT_EQ(run.exit_code, 0) << run.stderr_text;
  cluster_.hosts().Start("host-4");
}

TEST_F(ClusterStanding, OneAtATimeAndWhatHasBeenStoppedIsInNobodysWay) {
  const std::string longer = Training("longer", "worker: {count: 2}", 1'000'000);
  ASSERT_EQ(RunJob(longer, {"--cluster", "pool", "-d"}).exit_code, 0);
  ASSERT_TRUE(Eventually([&] {
    return Muster({"logs", "pool"}).stdout_text.find("worker:1 has joined") != std::string::npos;
  }));
  const std::string other = Training("other", "worker: {count: 2}", 60);
  const CommandResult refused = RunOnPool(other);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.stderr_text, HasSubstr("train job longer-"));
  const CommandResult stop = Muster({"stop", "pool"});
  EXPECT_EQ(stop.exit_code, 1);
  EXPECT_THAT(stop.stderr_text, HasSubstr("trains job longer-"));
  const std::string more = cluster_.Write("more.yaml", "name: pool\nreplicas: {ps: {count: 3}}\n");
  const CommandResult up = Muster({"up", more, "-i", cluster_.inventory()});
  EXPECT_EQ(up.exit_code, 1);
  EXPECT_THAT(up.stderr_text, HasSubstr("trains job longer-"));
  EXPECT_EQ(ProcessCount("longer"), 2u);
  // Its servers have heard of no end.
  EXPECT_EQ(Muster({"stop", "longer"}).exit_code, 0);
  const CommandResult run = RunOnPool(other);
  EXPECT_EQ(run.exit_code, 0) << run.stderr_text;
  EXPECT_EQ(Result()["steps"], 60);
  EXPECT_THAT(Muster({"logs", "pool"}).stdout_text, HasSubstr("which ends job "));
}

TEST_F(ClusterStanding, TheyAndWhoTrainsOnThemAreStartedAgain) {
  const auto servers = FirstProcesses("pool");
  const std::string longer = Training("longer", "worker: {count: 2}", 1'000'000);
  ASSERT_EQ(RunJob(longer, {"--cluster", "pool", "-d"}).exit_code, 0);
  const auto workers = WaitForTasks("longer", 2);
  const CommandResult refused = Muster({"restart", "pool"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.stderr_text, HasSubstr("trains job longer-"));
  const CommandResult one = Muster({"restart", "longer", "worker:1"});
  EXPECT_EQ(one.exit_code, 0) << one.stderr_text;
  const auto after = WaitForTasks("longer", 2);
  EXPECT_EQ(after.at("worker:0"), workers.at("worker:0"));
  EXPECT_NE(after.at("worker:1"), workers.at("worker:1"));
  // They begin anew for it.
  const CommandResult all = Muster({"restart", "longer"});
  EXPECT_EQ(all.exit_code, 0) << all.stderr_text;
  EXPECT_TRUE(Eventually([&] {
    const std::string log = Muster({"logs", "longer", "worker:0"}).stdout_text;
    return log.find("step 100: ") != log.rfind("step 100: ");
  }));
  EXPECT_EQ(FirstProcesses("pool"), servers);
  EXPECT_EQ(Muster({"stop", "longer"}).exit_code, 0);

  const CommandResult server = Muster({"restart", "pool", "ps:1"});
  EXPECT_EQ(server.exit_code, 0) << server.stderr_text;
  EXPECT_EQ(FirstProcesses("pool").at("ps:0"), servers.at("ps:0"));
  EXPECT_NE(WaitForTasks("pool", 2).at("ps:1"), servers.at("ps:1"));
  const CommandResult run = RunOnPool(Training("other", "worker: {count: 2}", 60));
  EXPECT_EQ(run.exit_code, 0) << run.stderr_text;
}

TEST_F(ClusterStanding, AServerThatMovesIsFollowedAndOneThatDiesGoesBackToItsCheckpoint) {
  const std::string file = Training("job", "worker: {count: 2}", 3000);
  ASSERT_EQ(RunOnPool(file).exit_code, 0);
  const Json expected = Result()["parameters_crc32c"];
  Process run = StartJob(file, "run", {"--cluster", "pool"});
  ASSERT_TRUE(cluster_.WaitForText("run", "step 200: "));
  KillTask("pool", "ps:0", 1);
  ASSERT_TRUE(cluster_.WaitForText("run", "step 1000: "));
  const std::string before = cluster_.hosts().targets()[1].address;
  const std::string address = cluster_.hosts().FreeAddress(2);
  cluster_.hosts().Move("host-2", address);
  std::string inventory = *ReadFile(cluster_.inventory());
  for (size_t at = 0; (at = inventory.find(before, at)) != std::string::npos; at += address.size()) {
    inventory.replace(at, before.size(), address);
  }
  ASSERT_TRUE(WriteFileAtomically(cluster_.inventory(), inventory).ok());
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_THAT(cluster_.Text("run"), HasSubstr(address + ":"));
  EXPECT_EQ(Result()["parameters_crc32c"], expected) << cluster_.Text("run");
  EXPECT_EQ(Result()["steps"], 3000);
}

// Also after a server has come back, which has only the workers to ask.
TEST_F(ClusterStanding, WorkersJoinAJobOfTheirsAndLeaveIt) {
  const std::string job =
      cluster_.Write("job.yaml",
                     "name: job\nmodel: mnist_mlp\nreplicas: {worker: {count: 1, max: 2}}\n"
                     "train: {steps: 1000000, batch_size: 20, seed: 3, threads: 1, device: \"wait:5\"}\n");
  ASSERT_EQ(RunJob(job, {"--cluster", "pool", "-d"}).exit_code, 0);
  const auto has_joined = [&](const std::string& worker, const std::string& server, int times) {
    return Eventually([&] {
      const std::string log = Muster({"logs", "pool", server}).stdout_text;
      int found = 0;
      for (size_t at = 0; (at = log.find(worker + " has joined", at)) != std::string::npos; ++at) ++found;
      return found >= times;
    });
  };
  // There is room for it, so it comes by itself.
  ASSERT_TRUE(has_joined("worker:1", "ps:1", 1));
  const CommandResult more = Muster({"scale", "job", "worker=3"});
  EXPECT_EQ(more.exit_code, 0) << more.stderr_text;
  EXPECT_THAT(more.stderr_text, HasSubstr("worker:2 on "));
  for (const char* server : {"ps:0", "ps:1"}) EXPECT_TRUE(has_joined("worker:2", server, 1)) << server;
  KillTask("pool", "ps:0", 1);
  for (const char* worker : {"worker:0", "worker:1", "worker:2"}) {
    EXPECT_TRUE(has_joined(worker, "ps:0", 2)) << worker;
    EXPECT_EQ(ShowTask("job", worker)["restarts"], 0) << worker;
  }
  EXPECT_EQ(Muster({"scale", "job", "worker=1"}).exit_code, 0);
  EXPECT_TRUE(Eventually([&] { return ProcessCount("job") == 1u; }));
  EXPECT_EQ(ShowTask("job", "worker:0")["restarts"], 0);
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

// And the jobs that they train, too: who drives those has to see where the servers are.
TEST_F(ClusterStanding, AHostDrivesThem) {
  const auto servers = FirstProcesses("pool");
  const auto up = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"up", Path("pool.yaml"), "-i", cluster_.inventory()};
    words.insert(words.end(), more.begin(), more.end());
    return Muster(words);
  };
  const CommandResult away = up({"--on", "host-4"});
  ASSERT_EQ(away.exit_code, 0) << away.stderr_text;
  EXPECT_THAT(away.stderr_text,
              HasSubstr("stand, and host-4 drives them; `muster run -d --on host-4 --cluster pool-"));
  EXPECT_EQ(Show("pool")["driver"], Json({{"host", "host-4"}}));
  EXPECT_EQ(FirstProcesses("pool"), servers);

  const CommandResult here = RunOnPool(Training("here", "worker: {count: 2}", 60));
  EXPECT_EQ(here.exit_code, 2);
  EXPECT_THAT(here.stderr_text,
              HasSubstr("are driven by host-4, and so are the jobs that they train: `muster run -d --on "
                        "host-4 --cluster pool-"));
  const std::vector<std::string> there = {"--cluster", "pool", "-d", "--on", "host-4"};
  const CommandResult longer = RunJob(Training("longer", "worker: {count: 2}", 1'000'000), there);
  ASSERT_EQ(longer.exit_code, 0) << longer.stderr_text;
  // It goes on while nobody may take its servers away, not even for a moment.
  const CommandResult again = up({"--on", "host-4"});
  EXPECT_EQ(again.exit_code, 0) << again.stderr_text;
  EXPECT_THAT(again.stderr_text, HasSubstr("stand, and train job longer-"));
  EXPECT_THAT(Muster({"events", "longer"}).stdout_text, Not(HasSubstr("do not stand any more")));
  const CommandResult back = up({});
  EXPECT_EQ(back.exit_code, 1);
  EXPECT_THAT(back.stderr_text, HasSubstr("would be driven from elsewhere: first `muster wait longer-"));
  const CommandResult stop = Muster({"stop", "pool"});
  EXPECT_EQ(stop.exit_code, 1);
  EXPECT_THAT(stop.stderr_text, HasSubstr("trains job longer-"));
  EXPECT_EQ(Show("pool")["driver"], Json({{"host", "host-4"}}));
  EXPECT_EQ(Muster({"stop", "longer"}).exit_code, 0);

  // It ends there while nobody asks, and the next one finds the servers free.
  ASSERT_EQ(RunJob(Training("first", "worker: {count: 2}", 60), there).exit_code, 0);
  EXPECT_TRUE(Eventually([&] { return ProcessCount("first") == 0; }));
  const CommandResult second = RunJob(Training("second", "worker: {count: 1}", 60), there);
  EXPECT_EQ(second.exit_code, 0) << second.stderr_text;
  for (const char* job : {"first", "second"}) {
    const CommandResult wait = Muster({"wait", job});
    EXPECT_EQ(wait.exit_code, 0) << wait.stderr_text;
  }
  EXPECT_EQ(FirstProcesses("pool"), servers);
  EXPECT_EQ(up({}).exit_code, 0);
  EXPECT_EQ(Show("pool")["driver"]["background"], true);
  EXPECT_EQ(FirstProcesses("pool"), servers);
}

TEST_F(ClusterStanding, WhatCannotBeIsRefusedWithItsCause) {
  const std::string job = Training("job", "worker: {count: 2}", 60);
  const auto error_of = [&](const std::vector<std::string>& arguments, int exit_code) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"-i", cluster_.inventory()});
    const CommandResult result = Muster(all);
    EXPECT_EQ(result.exit_code, exit_code) << result.stderr_text;
    return result.stderr_text;
  };
  EXPECT_THAT(error_of({"run", job}, 2), HasSubstr("needs at least one ps"));
  EXPECT_THAT(error_of({"run", job, "--cluster", "pond"}, 2), HasSubstr("pond"));
  EXPECT_THAT(error_of({"up", job}, 2), HasSubstr("\"model\" is of a job"));
  EXPECT_THAT(error_of({"run", cluster_.Path("pool.yaml")}, 2), HasSubstr("`muster up` starts"));
  const std::string kept = Training("kept", "worker: {count: 2}", 60, "durability: journal\n");
  EXPECT_THAT(error_of({"run", kept, "--cluster", "pool"}, 2),
              HasSubstr("kept.yaml:5:1: \"durability\" of standing servers"));
  const std::string script = ScriptJob("script", "true");
  EXPECT_THAT(error_of({"run", script, "--cluster", "pool"}, 2), HasSubstr("of the built-in trainer"));
  ASSERT_EQ(RunJob(script).exit_code, 0);
  EXPECT_THAT(error_of({"run", job, "--cluster", "script"}, 2), HasSubstr("not servers that stand"));
  EXPECT_THAT(Muster({"scale", "pool", "worker=3"}).stderr_text, HasSubstr("their jobs have workers"));
  EXPECT_THAT(Muster({"scale", "pool", "ps=3"}).stderr_text,
              testing::ContainsRegex("change `count` in (.*pool.yaml), and `muster up .*pool.yaml`"));
  const std::string namesake = Training("pool", "ps: {count: 1}, worker: {count: 1}", 60);
  EXPECT_THAT(error_of({"run", namesake}, 1), HasSubstr("are servers that stand, and this is a job"));
  EXPECT_EQ(ProcessCount("pool"), 2u);
  const std::string buddy =
      cluster_.Write("buddy.yaml", "name: buddy\nreplicas: {ps: {count: 2}}\ncheckpoint: {buddy: true}\n");
  EXPECT_THAT(error_of({"up", buddy}, 2), HasSubstr("buddy.yaml:3:14: standing servers have no copies"));
  const std::string workers =
      cluster_.Write("workers.yaml", "name: w\nreplicas: {ps: {count: 2}, worker: {count: 1}}\n");
  EXPECT_THAT(error_of({"up", workers}, 2), HasSubstr("worker"));
}

}  // namespace
}  // namespace muster
