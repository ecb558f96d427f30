// Hosts whose clocks are minutes off: jobs run there as anywhere, and what happened is told in the order in
// which it did.
#include <filesystem>

#include "tests/support/checkout.h"
#include "tests/support/lifecycle_fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

// The agents of host-2 and host-3 have clocks that are five minutes behind and ahead.
class ClusterClocks : public LifecycleTest {
 protected:
  ClusterClocks() {
    cluster_.set_binary(Install());
    SetClock("host-2", "-300");
    SetClock("host-3", "300");
  }

  // An installation with the agent whose clock can be off.
  std::string Install() {
    const std::filesystem::path from = BuildPath(), to = Path("installed");
    std::filesystem::create_directories(to / "bin");
    std::filesystem::copy_file(BuildPath("bin/muster"), to / "bin/muster");
    std::filesystem::copy_file(BuildPath("tests/muster-agent-with-a-clock"), to / "bin/muster-agent");
    std::filesystem::create_directory_symlink(from / "lib", to / "lib");
    return to / "bin/muster";
  }
  void SetClock(const std::string& host, const std::string& seconds) {
    ASSERT_TRUE(WriteFileAtomically(cluster_.hosts().HomeOf(host) + "/clock", seconds).ok());
  }

  std::vector<Json> EventsOf(const std::string& job) {
    std::istringstream lines(Muster({"events", job, "-o", "json"}).stdout_text);
    std::vector<Json> events;
    for (std::string line; std::getline(lines, line);) events.push_back(Json::parse(line));
    return events;
  }
};

TEST_F(ClusterClocks, AJobTrainsAndItsTasksTimesAreInThisMachines) {
  const Json hosts = Json::parse(Muster({"check", "-i", cluster_.inventory(), "-o", "json"}).stdout_text);
  ASSERT_EQ(hosts.size(), 3u) << hosts;
  for (const auto& [i, seconds] : std::map<int, double>{{0, 0}, {1, -300}, {2, 300}})
    EXPECT_NEAR(hosts[i]["clock_offset"], seconds, 5) << hosts[i];

  const std::string job =
      cluster_.Write("job.yaml",
                     "name: train\nmodel: mnist_mlp\nupdate: {mode: sync}\ncheckpoint: {every_steps: 50}\n"
                     "replicas: {ps: {count: 1}, worker: {count: 2, restart: on_failure, max_restarts: 2}}\n"
                     "train: {steps: 200, batch_size: 20, threads: 1}\n");
  const int64_t begin = WallTimeMicros();
  const CommandResult run = RunJob(job, {"--timeout", "100"});
  EXPECT_EQ(run.exit_code, 0) << run.stderr_text;
  const int64_t end = WallTimeMicros();
  int starts = 0;
  for (const Json& event : EventsOf("train")) {
    starts += event["what"] == "started";
    // As far as a measurement beside other work may be wrong.
    EXPECT_GE(event["time_micros"], begin - 60'000'000) << event;
    EXPECT_LE(event["time_micros"], end + 60'000'000) << event;
  }
  EXPECT_EQ(starts, 3);
}

// Of two that failed while nobody drove the job.
TEST_F(ClusterClocks, TheFirstCauseIsTheOneThatWasFirst) {
  const std::string job = ScriptJob("failing",
                                    "case $MUSTER_TASK in\n"
                                    "worker:2) file=go code=3;;\n"
                                    "worker:1) file=later code=4;;\n"
                                    "*) exec sleep 600;;\n"
                                    "esac\n"
                                    "while [ ! -e $DIR/$file ]; do sleep 0.02; done\n"
                                    "exit $code\n");
  ASSERT_EQ(RunJob(job, {"-d"}).exit_code, 0);
  ASSERT_EQ(::kill(Show("failing")["driver"]["pid"], SIGKILL), 0);
  const auto has_failed = [&](const std::string& task) {
    return Eventually([&] { return ShowTask("failing", task)["state"] == "Failed"; });
  };
  Touch("go");
  ASSERT_TRUE(has_failed("worker:2"));
  const Json running = ShowTask("failing", "worker:1");
  EXPECT_LT(running["age"], 290) << "by its host's clock it began 300 s ago: " << running;
  ::sleep(2);  // so that they are further apart than a measurement beside other work is wrong
  Touch("later");
  ASSERT_TRUE(has_failed("worker:1"));
  const CommandResult wait = Muster({"wait", "failing"});
  EXPECT_EQ(wait.exit_code, 3) << wait.stderr_text;
  EXPECT_THAT(wait.stderr_text, HasSubstr("worker:2 on host-3 failed: exited with code 3"));
}

}  // namespace
}  // namespace muster
