// `muster bench` through the real command: on virtual hosts, and on this machine as an inventory's host.
#include <absl/strings/str_split.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/file.h"
#include "base/process.h"
#include "launcher/network_namespaces.h"
#include "tests/support/checkout.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

class BenchCommandTest : public ::testing::Test {
 protected:
  BenchCommandTest() { EXPECT_TRUE(MakeDirectories(Path("home")).ok()); }

  std::vector<std::string> Environment() const {
    std::vector<std::string> environment = {"HOME=" + Path("home")};
    for (const char* name : {"PATH", "TMPDIR", "ASAN_OPTIONS", "UBSAN_OPTIONS"}) {
      if (const char* value = std::getenv(name)) environment.push_back(std::string(name) + "=" + value);
    }
    return environment;
  }
  std::vector<std::string> CommandLine(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {BuildPath("bin/muster"), "bench", "--folder", Path("bench")});
    return arguments;
  }
  CommandResult Bench(std::vector<std::string> arguments) const {
    const auto result = RunCommand({.argv = CommandLine(std::move(arguments)), .environment = Environment()},
                                   Now() + std::chrono::minutes(4));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(CommandResult{.exit_code = -1});
  }
  std::string Path(const std::string& name) const { return (folder_.path() / name).string(); }
  Json Results() const { return Json::parse(ReadFile(Path("bench/results.json")).value_or("{}")); }

  // Once it has said `text`, and until it has ended; it says where what was measured is.
  void InterruptAt(const std::string& text, std::vector<std::string> arguments) const {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd read_end(ends[0]);
    UniqueFd write_end(ends[1]);
    auto bench = Process::Spawn({.argv = CommandLine(std::move(arguments)),
                                 .environment = Environment(),
                                 .stderr_fd = write_end.get()});
    ASSERT_TRUE(bench.ok()) << bench.status();
    write_end.reset();
    std::string said;
    char piece[4096];
    bool is_signalled = false;
    for (;;) {
      pollfd ready = {.fd = read_end.get(), .events = POLLIN};
      ASSERT_EQ(::poll(&ready, 1, /*milliseconds*/ 240'000), 1) << said;
      const ssize_t count = ::read(read_end.get(), piece, sizeof piece);
      if (count <= 0) break;
      said.append(piece, static_cast<size_t>(count));
      if (is_signalled || said.find(text) == std::string::npos) continue;
      bench->Signal(SIGINT);
      is_signalled = true;
    }
    EXPECT_EQ(bench->Wait(Now() + std::chrono::minutes(1)).value_or(-1), 130) << said;
    EXPECT_THAT(said, HasSubstr("interrupted; what was measured is in " + Path("bench/results.json")));
  }

  // Of processes that have `owner` as theirs.
  static int NamespacesOf(pid_t owner) {
    const auto list = RunCommand({.argv = {"ip", "netns", "list"}}, Now() + std::chrono::seconds(20));
    int count = 0;
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(list->stdout_text, '\n'))) {
      const auto of = OwnerOfName(line.substr(0, line.find(' ')));
      count += of && of->pid == owner;
    }
    return count;
  }

  TemporaryDirectory folder_;
};

TEST_F(BenchCommandTest, StrategiesRunSideBySideOnVirtualHosts) {
  if (const absl::Status may = CheckMayMakeNamespaces(); !may.ok()) GTEST_SKIP() << may.message();
  const CommandResult run =
      Bench({"--virtual", "3", "--link", "1gbit", "--device", "wait:2", "--models", "mnist_mlp", "--workers",
             "1,2,3", "--strategies", "ps_sync,allreduce", "--steps", "20", "--repeat", "2"});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  EXPECT_THAT(run.stdout_text,
              AllOf(HasSubstr("ps_sync"), HasSubstr("allreduce"), HasSubstr("over 1 Gbit/s"),
                    HasSubstr("Measured: 20 steps of each worker, of 100 samples; muster ")));
  const Json results = Results();
  EXPECT_EQ(results["is_complete"], true);
  EXPECT_EQ(results["compute_seconds_per_step"], 0.002);
  ASSERT_EQ(results["links"].size(), 1u);
  EXPECT_EQ(results["links"][0]["bytes_per_second"], 125e6);
  EXPECT_GT(results["links"][0]["latency_seconds"], 0);
  ASSERT_EQ(results["measurements"].size(), 6u);
  for (const Json& measurement : results["measurements"]) {
    SCOPED_TRACE(measurement.dump());
    const Json& cell = measurement["cell"];
    const int workers = cell["workers"];
    EXPECT_EQ(measurement["error"], "");
    ASSERT_EQ(measurement["step_seconds"].size(), 2u);
    for (const double seconds : measurement["step_seconds"]) EXPECT_GT(seconds, 0.002);
    EXPECT_GT(measurement["samples_per_second"], 0);
    EXPECT_GT(measurement["scaling_efficiency"], 0);
    EXPECT_EQ(measurement["predicted_step_seconds"].is_null(),
              cell["strategy"] == "allreduce" && workers == 1)
        << "that would be told the wait that it was told";
    // Servers that are alone on theirs may be too short at it to be seen.
    EXPECT_GE(measurement["hosts"].size(), workers);
    EXPECT_THAT(measurement["hosts"][0]["tasks"].get<std::string>(), HasSubstr("worker:0"));
    EXPECT_GT(measurement["hosts"][0]["busy_processors"], 0);
    EXPECT_GT(measurement["cpu_seconds_per_step"], 0);
    if (workers > 1) {
      EXPECT_GT(measurement["hosts"][0]["sent_bytes_per_second"], 0);
      EXPECT_GT(measurement["hosts"][0]["received_bytes_per_second"], 0);
      EXPECT_GT(measurement["communication_seconds"], 0);
      EXPECT_GT(measurement["algorithm_bytes_per_second"], 0);
      EXPECT_GT(measurement["bus_bytes_per_second"], 0);
    }
    // 79,510 parameters: with a server they go there and come back, of two ranks each sends all of them.
    if (cell["strategy"] == "ps_sync") {
      EXPECT_EQ(cell["servers"], 1);
      EXPECT_EQ(cell["servers_on_workers"], workers == 3) << "three hosts, so one worker is beside it";
      EXPECT_NEAR(measurement["sent_bytes_per_step"], 79'510 * 4, 2000);
      // Without what comes before the first of the twenty.
      EXPECT_NEAR(measurement["received_bytes_per_step"], 79'510 * 4, 2000);
    } else {
      EXPECT_NEAR(measurement["sent_bytes_per_step"], 2.0 * (workers - 1) / workers * 79'510 * 4, 2000);
    }
    // Of the link's bytes per second those are less that headers take.
    const double least = measurement["bound_step_seconds"];
    const double bytes = measurement["sent_bytes_per_step"];
    const double times = cell["strategy"] == "allreduce" ? 1 : workers - int(workers == 3);
    EXPECT_NEAR(least, times * bytes / (125e6 * 1448 / 1514), 0.05 * least);
  }
  EXPECT_THAT(*ReadFile(Path("bench/report.html")), AllOf(HasSubstr("<svg"), HasSubstr("ps_sync")));
}

TEST_F(BenchCommandTest, RunsOnAnInventoryAndSaysWhenATargetWasReached) {
  ASSERT_TRUE(WriteFileAtomically(Path("my inventory.yaml"), "hosts: {here: {local: true}}\n").ok());
  const CommandResult run = Bench({"-i", Path("my inventory.yaml"), "--workers", "1", "--strategies",
                                   "ps_async,allreduce", "--models", "mnist_softmax", "--steps", "100",
                                   "--repeat", "1", "--target", "0.5", "-o", "json"});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  EXPECT_EQ(Json::parse(run.stdout_text), Results());
  const Json results = Results();
  EXPECT_THAT(
      results["command"].get<std::string>(),
      HasSubstr("-i '" + Path("my inventory.yaml") + "' --workers 1 --strategies ps_async,allreduce"));
  EXPECT_EQ(results["steps"], 100);
  EXPECT_NE(results["version"], "");
  for (const Json& measurement : results["measurements"]) {
    EXPECT_EQ(measurement["batch_size"], 100);
    EXPECT_GT(measurement["test_accuracy"], 0.5);
    EXPECT_GT(measurement["seconds_to_target"], 0);
    EXPECT_EQ(measurement["bound_step_seconds"], 0) << "links of unknown rate";
  }
}

TEST_F(BenchCommandTest, AJobThatFailsIsNotedAndTheOthersAreRun) {
  ASSERT_TRUE(WriteFileAtomically(Path("inventory.yaml"), "hosts: {here: {local: true}}\n").ok());
  // Without a GPU a worker says so, and ends.
  const CommandResult run =
      Bench({"-i", Path("inventory.yaml"), "--workers", "1", "--strategies", "allreduce", "--models",
             "mnist_softmax", "--steps", "10", "--repeat", "1", "--target", "0.5", "--device", "cuda:999"});
  EXPECT_EQ(run.exit_code, 1);
  const Json measurement = Results()["measurements"][0];
  // Which device, or which driver, is not there.
  EXPECT_THAT(measurement["error"].get<std::string>(),
              AllOf(HasSubstr("worker:0"), ContainsRegex("; it said last: .*(NVIDIA|CUDA|cuda|GPU)"),
                    HasSubstr(" (muster logs bench-"), EndsWith(" worker:0)")));
  EXPECT_EQ(measurement["failures"], 2);
  EXPECT_THAT(measurement["target_error"].get<std::string>(), HasSubstr("worker:0"));
  EXPECT_THAT(run.stderr_text, HasSubstr("worker:0"));
}

// A rate that is given twice is one; all workers begin together, also those that need not wait for others.
TEST_F(BenchCommandTest, StepsAreCountedFromWhenAllWorkersAreThere) {
  if (const absl::Status may = CheckMayMakeNamespaces(); !may.ok()) GTEST_SKIP() << may.message();
  const CommandResult run =
      Bench({"--virtual", "4", "--link", "1gbit,1000mbit", "--device", "wait:10", "--models", "mnist_softmax",
             "--workers", "3", "--strategies", "ps_backup,ps_async", "--steps", "400", "--repeat", "1"});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  const Json results = Results();
  EXPECT_EQ(results["links"].size(), 1u);
  ASSERT_EQ(results["measurements"].size(), 2u);
  for (const Json& measurement : results["measurements"]) {
    SCOPED_TRACE(measurement.dump());
    ASSERT_EQ(measurement["step_seconds"].size(), 1u);
    // Each gradient takes 10 ms, of three workers at a time.
    EXPECT_GE(measurement["step_seconds"][0], 0.01 / 3);
    // 7850 parameters.
    EXPECT_NEAR(measurement["sent_bytes_per_step"], 7850 * 4, 2000);
  }
}

TEST_F(BenchCommandTest, AnInterruptLeavesNothing) {
  if (const absl::Status may = CheckMayMakeNamespaces(); !may.ok()) GTEST_SKIP() << may.message();
  auto bench = Process::Spawn({.argv = CommandLine({"--virtual", "2", "--device", "wait:1", "--strategies",
                                                    "allreduce", "--workers", "2", "--steps", "1000000"}),
                               .environment = Environment()});
  ASSERT_TRUE(bench.ok()) << bench.status();
  const pid_t pid = bench->pid();
  const TimePoint deadline = Now() + std::chrono::minutes(1);
  while (NamespacesOf(pid) < 3 && Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(NamespacesOf(pid), 3);
  bench->Signal(SIGINT);
  EXPECT_EQ(bench->Wait(Now() + std::chrono::minutes(1)).value_or(-1), 130);
  EXPECT_EQ(NamespacesOf(pid), 0);
}

// Curves up to 10,000 workers take seconds, and the signal comes when they have begun.
TEST_F(BenchCommandTest, AnInterruptWhileItPredictsKeepsWhatWasMeasured) {
  if (const absl::Status may = CheckMayMakeNamespaces(); !may.ok()) GTEST_SKIP() << may.message();
  // Strategies whose steps are all made by the chief, too: else it may come too late for any.
  InterruptAt("predicting", {"--virtual", "3", "--link", "1gbit", "--device", "wait:1", "--workers", "1,2",
                             "--strategies", "allreduce,ps_sync", "--steps", "5", "--repeat", "1"});
  const Json results = Results();
  for (const Json& measurement : results["measurements"]) {
    EXPECT_EQ(measurement["step_seconds"].size(), 1u);
    if (measurement["cell"]["workers"] == 1) continue;
    EXPECT_GT(measurement["bound_step_seconds"], 0);
    EXPECT_FALSE(measurement["predicted_step_seconds"].is_null());
  }
  EXPECT_TRUE(results["curves"].empty());
  EXPECT_EQ(results["unfinished"], "interrupted");
}

TEST_F(BenchCommandTest, AnInterruptWhileItMeasuresSaysWhereTheRestIs) {
  ASSERT_TRUE(WriteFileAtomically(Path("inventory.yaml"), "hosts: {here: {local: true}}\n").ok());
  InterruptAt("1 worker, links as they are: ",
              {"-i", Path("inventory.yaml"), "--models", "mnist_softmax", "--workers", "1", "--strategies",
               "allreduce", "--steps", "5", "--repeat", "1000"});
  EXPECT_GE(Results()["measurements"][0]["step_seconds"].size(), 1u);
  EXPECT_EQ(Results()["is_complete"], false);
  EXPECT_THAT(*ReadFile(Path("bench/report.html")), HasSubstr("did not come to its end (interrupted)"));
}

// What was timed is there already, also of the first cell, and nobody has missed what nobody was tried for.
TEST_F(BenchCommandTest, AnInterruptOnTheWayToTheTargetDoesNotCallItMissed) {
  ASSERT_TRUE(WriteFileAtomically(Path("inventory.yaml"), "hosts: {here: {local: true}}\n").ok());
  InterruptAt("1 worker, links as they are: ",
              {"-i", Path("inventory.yaml"), "--models", "mnist_softmax", "--workers", "1", "--strategies",
               "allreduce", "--steps", "10000", "--repeat", "2", "--target", "0.999"});
  const Json measurement = Results()["measurements"][0];
  EXPECT_EQ(measurement["error"], "");
  EXPECT_EQ(measurement["step_seconds"].size(), 1u);
  EXPECT_EQ(measurement["target_error"], "not run");
  EXPECT_THAT(*ReadFile(Path("bench/report.html")),
              HasSubstr("With 1 worker it is not known who reaches a test accuracy of 0.999."));
}

// As where the kernel cannot shape to such a rate.
TEST_F(BenchCommandTest, OfALinkThatCannotBeMadeTheCellsSaySoAndTheOthersAreRun) {
  if (const absl::Status may = CheckMayMakeNamespaces(); !may.ok()) GTEST_SKIP() << may.message();
  ASSERT_TRUE(MakeDirectories(Path("tools")).ok());
  ASSERT_TRUE(WriteFileAtomically(Path("tools/tc"),
                                  "#!/bin/sh\ncase \"$*\" in *\" rate 2000000000bit \"*) echo no such "
                                  "rate >&2; exit 1 ;; esac\nPATH=${PATH#*:}\nexec tc \"$@\"\n",
                                  0755)
                  .ok());
  std::vector<std::string> environment = Environment();
  for (std::string& variable : environment) {
    if (variable.starts_with("PATH=")) variable.insert(5, Path("tools") + ":");
  }
  const auto run =
      RunCommand({.argv = CommandLine({"--virtual", "1", "--link", "2gbit,1gbit", "--device", "wait:1",
                                       "--models", "mnist_softmax", "--workers", "1", "--strategies",
                                       "allreduce", "--steps", "5", "--repeat", "1"}),
                  .environment = environment},
                 Now() + std::chrono::minutes(2));
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->exit_code, 1) << run->stderr_text;
  const Json measurements = Results()["measurements"];
  ASSERT_EQ(measurements.size(), 2u);
  EXPECT_THAT(measurements[0]["error"].get<std::string>(), HasSubstr("no such rate"));
  EXPECT_EQ(measurements[1]["error"], "");
  EXPECT_EQ(Results()["is_complete"], true) << "all was tried";
}

TEST_F(BenchCommandTest, AnEarlierPageIsKept) {
  ASSERT_TRUE(WriteFileAtomically(Path("inventory.yaml"), "hosts: {here: {local: true}}\n").ok());
  ASSERT_TRUE(MakeDirectories(Path("bench")).ok());
  ASSERT_TRUE(WriteFileAtomically(Path("bench/report.html"), "of yesterday").ok());
  const CommandResult run = Bench({"-i", Path("inventory.yaml"), "--models", "mnist_softmax", "--workers",
                                   "1", "--strategies", "allreduce", "--steps", "5", "--repeat", "1"});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  EXPECT_EQ(*ReadFile(Path("bench/report-1.html")), "of yesterday");
  EXPECT_THAT(run.stderr_text, HasSubstr("now under this name: " + Path("bench/report-1.html")));
  EXPECT_EQ(Results()["is_complete"], true);
}

// Before jobs of the first model are run, on virtual hosts and on others.
TEST_F(BenchCommandTest, DataThatASecondModelLacksAreFoundFirst) {
  ASSERT_TRUE(WriteFileAtomically(Path("inventory.yaml"), "hosts: {here: {local: true}}\n").ok());
  ASSERT_TRUE(MakeDirectories(Path("data/mnist")).ok());
  for (const char* name : {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
                           "t10k-labels-idx1-ubyte"}) {
    ASSERT_TRUE(WriteFileAtomically(Path(std::string("data/mnist/") + name), "").ok());
  }
  std::vector<std::string> environment = Environment();
  environment.push_back("MUSTER_DATA=" + Path("data"));
  for (const std::vector<std::string>& hosts :
       {std::vector<std::string>{"--virtual", "2"}, {"-i", Path("inventory.yaml")}}) {
    std::vector<std::string> arguments = hosts;
    arguments.insert(arguments.end(),
                     {"--models", "mnist_softmax,wide_deep", "--workers", "1", "--strategies", "ps_sync"});
    const auto run = RunCommand({.argv = CommandLine(arguments), .environment = environment},
                                Now() + std::chrono::minutes(2));
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->exit_code, 2) << run->stderr_text;
    EXPECT_THAT(run->stderr_text, HasSubstr("does not hold census/"));
    EXPECT_FALSE(std::filesystem::exists(Path("bench")));
  }
}

// The first job would be lost.
TEST_F(BenchCommandTest, AFolderThatCannotBeWrittenIsSaidBeforeAnyJob) {
  ASSERT_TRUE(WriteFileAtomically(Path("inventory.yaml"), "hosts: {here: {local: true}}\n").ok());
  std::vector<std::string> command = CommandLine(
      {"-i", Path("inventory.yaml"), "--models", "mnist_softmax", "--workers", "1", "--steps", "5"});
  std::ranges::replace(command, Path("bench"), "/proc");
  const auto run =
      RunCommand({.argv = command, .environment = Environment()}, Now() + std::chrono::minutes(2));
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->exit_code, 2);
  EXPECT_THAT(run->stderr_text, AllOf(HasSubstr("--folder /proc: "), Not(HasSubstr(" jobs, "))));
}

TEST_F(BenchCommandTest, WithoutPrivilegesVirtualHostsAreRefusedBeforeTheFolderIsMade) {
  std::vector<std::string> command = CommandLine({"--virtual", "2"});
  command.insert(command.begin(), {"setpriv", "--bounding-set=-all", "--inh-caps=-all"});
  // Who is not root has none already.
  if (::geteuid() != 0) command.erase(command.begin(), command.begin() + 3);
  const auto run =
      RunCommand({.argv = command, .environment = Environment()}, Now() + std::chrono::minutes(1));
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->exit_code, 2) << run->stderr_text;
  EXPECT_THAT(run->stderr_text, AllOf(HasSubstr("--virtual 2: "), HasSubstr("need root")));
  EXPECT_FALSE(std::filesystem::exists(Path("bench")));
}

TEST_F(BenchCommandTest, AJobThatIsTooLateNamesItsTimeout) {
  ASSERT_TRUE(WriteFileAtomically(Path("inventory.yaml"), "hosts: {here: {local: true}}\n").ok());
  const CommandResult run =
      Bench({"-i", Path("inventory.yaml"), "--models", "mnist_softmax", "--workers", "1", "--strategies",
             "allreduce", "--steps", "5", "--repeat", "1", "--job-timeout", "0.001"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.stderr_text, AllOf(HasSubstr("1 job, once each, on"), HasSubstr(" (--job-timeout 0.001)")));
}

TEST_F(BenchCommandTest, BadInputIsExitStatusTwo) {
  ASSERT_TRUE(WriteFileAtomically(Path("nowhere.yaml"), "hosts: {a.invalid: }\n").ok());
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--virtual", "2", "--workers", "3"}, "3 workers need as many hosts, and there are 2"},
      {{"--virtual", "2", "--strategies", "ps_snyc"}, "ps_snyc"},
      {{"--virtual", "2", "--strategies", "hybrid"}, "strategy hybrid fits no model"},
      {{"--virtual", "2", "--models", "mnist_mpl"},
       "--models mnist_mpl: unknown model \"mnist_mpl\"; did you mean \"mnist_mlp\"?"},
      {{"--virtual", "2", "--link", "fast"}, "fast"},
      {{"--virtual", "0"}, "--virtual"},
      {{"--link", "1gbit"}, "--link gives virtual hosts a rate"},
      {{"--virtual", "2", "-i", Path("nowhere.yaml")}, "--inventory excludes --virtual"},
      {{"--virtual", "2", "--device", "wait:5", "--target", "0.9"},
       "with --device wait:5 nothing is learned"},
      {{"--virtual", "2", "--device", "gpu"}, "--device gpu: expected auto, cpu"},
      {{"--virtual", "2", "--repeat", "0"}, "--repeat"},
      {{"--virtual", "2", "--target", "0"}, "--target: expected an accuracy, a number above 0 and at most 1"},
      {{"--virtual", "2", "--target", "nan"}, "--target: expected an accuracy"},
      {{"--virtual", "2", "--target", "1.1"}, "--target: expected an accuracy"},
      {{"-i", Path("none.yaml")}, "none.yaml"},
      {{"-i", Path("nowhere.yaml"), "--workers", "1"}, "look up a.invalid"},
  };
  for (const auto& [arguments, error] : cases) {
    const CommandResult result = Bench(arguments);
    EXPECT_EQ(result.exit_code, 2) << error;
    EXPECT_THAT(result.stderr_text, HasSubstr(error));
    EXPECT_FALSE(std::filesystem::exists(Path("bench"))) << error;
  }
}

}  // namespace
}  // namespace muster
