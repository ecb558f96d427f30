// Jobs that a host of the cluster drives in place of the machine that they were run from.
#include <fcntl.h>
#include <sys/file.h>

#include "tests/support/fault_hosts.h"
#include "tests/support/lifecycle_fixture.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

class ClusterController : public LifecycleTest {
 protected:
  ClusterController() : LifecycleTest(LoopbackCluster::Network::kLoopback, /*hosts=*/4) {}

  CommandResult RunOn(const std::string& host, const std::string& job) {
    return RunJob(job, {"-d", "--on", host});
  }
  void ExpectDrivenBy(const std::string& host, const std::string& job) {
    EXPECT_EQ(Show(job)["driver"], Json({{"host", host}}));
  }
  // Where the controller of a host keeps what it has; empty: it has none.
  std::filesystem::path ControllerFolder(const std::string& host) {
    std::error_code error;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(cluster_.hosts().HomeOf(host), error)) {
      if (entry.path().filename() == "controller" && entry.is_directory()) return entry.path();
    }
    return {};
  }
  static std::vector<std::string> NamesIn(const std::filesystem::path& folder) {
    std::vector<std::string> names;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }
  // The process on a host that a `wait` asks about the job of this name; 0: there is none.
  static pid_t WhoAwaits(const std::string& job) {
    const std::string words = std::string("controller\0await\0", 17) + job + "-";
    for (const pid_t pid : AllPids()) {
      const std::string line = ReadFile("/proc/" + std::to_string(pid) + "/cmdline").value_or("");
      if (line.find(words) != std::string::npos) return pid;
    }
    return 0;
  }
  std::vector<std::string> JobsOf(const std::string& host) {
    return NamesIn(ControllerFolder(host) / "jobs");
  }
};

TEST_F(ClusterController, DrivesTheJobToItsEnd) {
  const CommandResult run =
      RunOn("host-3", ScriptJob("away", std::string(kWaitForGo) + "exit $((RANK * 7))", "count: 2"));
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  EXPECT_THAT(run.stderr_text, HasSubstr(" runs, and host-3 drives it; "));
  ExpectDrivenBy("host-3", "away");
  EXPECT_EQ(JobsOf("host-3").size(), 1u);
  Process wait = cluster_.Start({"wait", "away"}, "wait");
  ASSERT_TRUE(cluster_.WaitForText("wait", " is driven by host-3\n"));
  Process events = cluster_.Start({"events", "-f", "away"}, "events");
  ASSERT_TRUE(cluster_.WaitForText("events", "  worker:1@host-2       started\n"));
  Touch("go");
  EXPECT_EQ(ExitCodeOf(wait), 7) << cluster_.Text("wait");
  EXPECT_THAT(cluster_.Text("wait"), HasSubstr("worker:1 on host-2 failed: exited with code 7"));
  EXPECT_EQ(ExitCodeOf(events), 0);
  EXPECT_THAT(cluster_.Text("events"),
              AllOf(HasSubstr("  job                   host-3 drives it from now on\n"),
                    HasSubstr("  worker:1@host-2       Failed: exited with code 7\n")));
  // All of it is here by now.
  EXPECT_THAT(JobsOf("host-3"), IsEmpty());
  EXPECT_EQ(Show("away")["state"], "Failed");
  EXPECT_TRUE(Show("away")["driver"].is_null());
  EXPECT_THAT(Muster({"events", "away"}).stdout_text, HasSubstr("exited with code 7\n"));
  EXPECT_EQ(Muster({"wait", "away"}).exit_code, 7);
}

// Here it is only the host that does not answer in time.
TEST_F(ClusterController, IsWaitedForNoLongerThanAsked) {
  ASSERT_EQ(RunOn("host-3", ScriptJob("away", kWaitForGo, "count: 2")).exit_code, 0);
  Process wait = cluster_.Start({"wait", "--timeout", "5", "away"}, "wait");
  pid_t asked = 0;
  std::optional<int> exit_code;
  EXPECT_TRUE(Eventually([&] {
    asked = WhoAwaits("away");
    if (asked != 0) return ::kill(asked, SIGSTOP) == 0;
    if (const auto ended = wait.Wait(Now()); ended.ok()) exit_code = *ended;
    return exit_code.has_value();  // so quickly that nobody has seen it ask
  }));
  if (!exit_code) exit_code = ExitCodeOf(wait);
  EXPECT_EQ(exit_code, 124) << cluster_.Text("wait");
  EXPECT_THAT(cluster_.Text("wait"), testing::ContainsRegex("muster: job away-.* has not ended\n"));
  if (asked != 0) ::kill(asked, SIGCONT);
  EXPECT_EQ(Muster({"stop", "away"}).exit_code, 0);
}

TEST_F(ClusterController, IsFollowedOverOneConnectionUntilThatIsLost) {
  const auto logins = [&] {
    const std::string log = cluster_.hosts().Text("host-3/sshd.log");
    int count = 0;
    for (size_t at = 0; (at = log.find("Accepted publickey", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  ASSERT_EQ(RunOn("host-3", ScriptJob("away", kWaitForGo, "count: 2")).exit_code, 0);
  const int before = logins();
  Process events = cluster_.Start({"events", "-f", "away"}, "events");
  ASSERT_TRUE(cluster_.WaitForText("events", "  worker:1@host-2       started\n"));
  Touch("go");
  EXPECT_EQ(ExitCodeOf(events), 0) << cluster_.Text("events");
  EXPECT_THAT(cluster_.Text("events"), HasSubstr("the job has ended"));
  EXPECT_EQ(logins(), before + 1);

  std::filesystem::remove(cluster_.Path("go"));
  ASSERT_EQ(RunOn("host-3", ScriptJob("again", kWaitForGo, "count: 2")).exit_code, 0);
  Process anew = cluster_.Start({"events", "-f", "again"}, "anew");
  ASSERT_TRUE(cluster_.WaitForText("anew", "  worker:1@host-2       started\n"));
  // Its sshd and all connections go, and come back.
  cluster_.hosts().Move("host-3", cluster_.hosts().targets()[2].address);
  Touch("go");
  EXPECT_EQ(ExitCodeOf(anew), 0) << cluster_.Text("anew");
  EXPECT_THAT(cluster_.Text("anew"), HasSubstr("the job has ended"));
}

TEST_F(ClusterController, FailuresHaveTheirConsequencesThoughNobodyWaits) {
  ASSERT_EQ(
      RunOn("host-1", ScriptJob("away", std::string(kWaitForGo) + "[ $RANK = 2 ] || exec sleep 600\nexit 5"))
          .exit_code,
      0);
  WaitForTasks("away", 3);
  Touch("go");
  EXPECT_TRUE(Eventually([&] { return FirstProcesses("away").empty(); }));
  EXPECT_TRUE(Eventually([&] { return Show("away")["state"] == "Failed"; }));
  EXPECT_EQ(Muster({"wait", "away"}).exit_code, 5);
}

TEST_F(ClusterController, ThatAJobHasEndedThereIsKnownWhereAllJobsAreLookedAt) {
  const std::string job = ScriptJob("away", kWaitForGo), other = ScriptJob("other", kWaitForGo);
  ASSERT_EQ(RunOn("host-1", job).exit_code, 0);
  ASSERT_EQ(RunOn("host-2", other).exit_code, 0);
  const auto states = [&] {
    std::map<std::string, std::string> states;
    const Json jobs = Json::parse(Muster({"list", "-o", "json"}).stdout_text);
    for (const Json& row : jobs) states[std::string(row["job"]).substr(0, 4)] = row["state"];
    return states;
  };
  const auto folders = [&](const std::string& host) {
    size_t count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(cluster_.hosts().HomeOf(host))) {
      count += entry.path().parent_path().filename() == "jobs" &&
               entry.path().filename().string().starts_with("away-");
    }
    return count;
  };
  EXPECT_THAT(states(), testing::UnorderedElementsAre(Pair("away", "Running"), Pair("othe", "Running")));
  EXPECT_GT(folders("host-3"), 0u);
  Touch("go");
  EXPECT_TRUE(Eventually([&] { return Muster({"gc"}).exit_code == 0 && folders("host-3") == 0; }));
  EXPECT_THAT(states(), testing::UnorderedElementsAre(Pair("away", "Succeeded"), Pair("othe", "Succeeded")));
}

TEST_F(ClusterController, WhatWasTrainedComesBack) {
  const std::string job = cluster_.Write(
      "job.yaml",
      "name: job\nmodel: mnist_mlp\nhidden: [20]\nreplicas: {ps: {count: 1}, worker: {count: 2}}\n"
      "train: {steps: 300, batch_size: 20, threads: 1}\n");
  const CommandResult run = RunOn("host-2", job);
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  const CommandResult waited = Muster({"wait", "job", "-o", "json"});
  EXPECT_EQ(waited.exit_code, 0) << waited.stderr_text;
  EXPECT_TRUE(Json::parse(waited.stdout_text, nullptr, false).contains("test_accuracy"))
      << waited.stdout_text;
  for (const char* file : {"result.json", "metrics.jsonl", "model.safetensors"}) {
    EXPECT_GT(std::filesystem::file_size(JobFolder() / file), 0u) << file;
  }
}

// Nobody has seen the end, and the chief's host is away when somebody looks: the servers know that all is
// done, so that it is neither done again nor given up.
TEST_F(ClusterController, WhatWasTrainedIsWaitedForWhereItIs) {
  const std::string with_spare = cluster_.inventory(), without = InventoryWithHead();
  for (const std::string& inventory : {with_spare, without}) {
    const bool has_spare = inventory == with_spare;
    SCOPED_TRACE(has_spare ? "a spare host" : "no spare host");
    const std::string name = has_spare ? "spare" : "none";
    const std::string job = cluster_.Write(
        name + ".yaml", "name: " + name +
                            "\nmodel: mnist_mlp\nhidden: [20]\nupdate: {mode: sync}\n"
                            "replicas: {ps: {count: 1, on: cpu}, worker: {count: 2, on: cpu}}\n"
                            "train: {steps: 400, batch_size: 20, threads: 1, device: \"wait:20\"}\n");
    Process run = cluster_.Start({"run", job, "-i", inventory}, name);
    WaitForTasks(name, 3);
    run.Signal(SIGKILL);
    EXPECT_EQ(ExitCodeOf(run), 128 + SIGKILL) << cluster_.Text(name);
    ASSERT_TRUE(Eventually([&] { return FirstProcesses(name).empty(); }));
    cluster_.hosts().Kill("host-2");
    const CommandResult away = Muster({"wait", name, "--lost-timeout", "4"});
    EXPECT_EQ(away.exit_code, 69) << away.stderr_text;
    EXPECT_THAT(away.stderr_text,
                AllOf(HasSubstr("of worker:0 could not be fetched from host-2: "), HasSubstr("tries again")));
    EXPECT_THAT(Muster({"list"}).stdout_text, HasSubstr("Fetching"));
    cluster_.hosts().Start("host-2");
    const CommandResult back = Muster({"wait", name});
    EXPECT_EQ(back.exit_code, 0) << back.stderr_text;
    EXPECT_EQ(ShowTask(name, "worker:0")["host"], "host-2");
    EXPECT_GT(std::filesystem::file_size(JobFolder() / "model.safetensors"), 0u);
  }
}

TEST_F(ClusterController, TheJobGoesFromOneToAnotherAndBack) {
  const std::string job = ScriptJob("passed", kWaitForGo);
  ASSERT_EQ(RunOn("host-1", job).exit_code, 0);
  const auto tasks = WaitForTasks("passed", 3);
  const CommandResult to_another = RunOn("host-2", job);
  ASSERT_EQ(to_another.exit_code, 0) << to_another.stderr_text;
  ExpectDrivenBy("host-2", "passed");
  EXPECT_THAT(JobsOf("host-1"), IsEmpty());
  EXPECT_EQ(FirstProcesses("passed"), tasks);
  const CommandResult back = RunJob(job, {"-d"});
  ASSERT_EQ(back.exit_code, 0) << back.stderr_text;
  EXPECT_EQ(Show("passed")["driver"]["background"], true);
  EXPECT_THAT(JobsOf("host-2"), IsEmpty());
  EXPECT_EQ(FirstProcesses("passed"), tasks);
  Touch("go");
  EXPECT_EQ(Muster({"wait", "passed"}).exit_code, 0);
}

TEST_F(ClusterController, IsStoppedFromHere) {
  ASSERT_EQ(RunOn("host-2", ScriptJob("away", "exec sleep 600")).exit_code, 0);
  const CommandResult stopped = Muster({"stop", "away"});
  EXPECT_EQ(stopped.exit_code, 0) << stopped.stderr_text;
  EXPECT_THAT(stopped.stderr_text, HasSubstr("0 processes, 0 ports on 3 hosts\n"));
  EXPECT_THAT(JobsOf("host-2"), IsEmpty());
}

TEST_F(ClusterController, GoesOnWithOtherWorkers) {
  const std::string job = cluster_.Write(
      "job.yaml",
      "name: job\nmodel: mnist_mlp\nhidden: [50]\nstrategy: allreduce\nreplicas: {worker: {count: 2}}\n"
      "train: {steps: 10000000, batch_size: 500, threads: 1}\n");
  ASSERT_EQ(RunOn("host-3", job).exit_code, 0);
  const auto first = WaitForTasks("job", 2);
  const CommandResult scaled = Muster({"scale", "job", "worker=3"});
  EXPECT_EQ(scaled.exit_code, 0) << scaled.stderr_text;
  const auto grown = WaitForTasks("job", 3);
  for (const auto& [task, process] : first) EXPECT_EQ(grown.at(task), process) << task;
  ExpectDrivenBy("host-3", "job");
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
}

// What it needs is not on the spare host, and comes from the one that drives the job.
TEST_F(ClusterController, BringsWhatASpareHostNeeds) {
  const std::string job = cluster_.Write(
      "job.yaml",
      "name: job\nmodel: mnist_mlp\nhidden: [50]\nstrategy: allreduce\n"
      "replicas: {worker: {count: 2, on: cpu}}\ntrain: {steps: 10000000, batch_size: 500, threads: 1}\n");
  const CommandResult run =
      Muster({"run", job, "-i", InventoryWithHead(), "-d", "--on", "host-3", "--lost-timeout", "2"});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  const auto tasks = WaitForTasks("job", 2);

  // No task there needs it: yet it outlives what removes that, and the one that drives the job.
  ASSERT_EQ(RunJob(ScriptJob("other", "true", "count: 4")).exit_code, 0);
  const CommandResult collected = Muster({"gc", "--unused", "0"});
  ASSERT_EQ(collected.exit_code, 0) << collected.stderr_text;
  cluster_.hosts().Kill("host-3");
  cluster_.hosts().Start("host-3");
  Process wait = cluster_.Start({"wait", "job"}, "wait");
  ASSERT_TRUE(cluster_.WaitForText("wait", " is driven by host-3\n")) << cluster_.Text("wait");
  EXPECT_EQ(FirstProcesses("job"), tasks);

  cluster_.hosts().Kill("host-2");
  EXPECT_TRUE(Eventually([&] { return ShowTask("job", "worker:1")["host"] == "host-4"; }));
  WaitForTasks("job", 2);
  cluster_.hosts().Start("host-2");
  EXPECT_EQ(Muster({"stop", "job"}).exit_code, 0);
  const std::filesystem::path store = ControllerFolder("host-3").parent_path() / "store";
  EXPECT_THAT(NamesIn(store), Not(ElementsAre("tmp")));
  const CommandResult rest = Muster({"gc", "--unused", "0"});
  EXPECT_EQ(rest.exit_code, 0) << rest.stderr_text;
  EXPECT_THAT(NamesIn(store), ElementsAre("tmp"));
}

// A host has another address, which the inventory's discovery command tells where the job is driven: it goes
// along, and what there was of it here may go.
TEST_F(ClusterController, FindsHostsByTheDiscoveryCommand) {
  const auto say = [&](const std::string& address) {
    const std::string port = std::to_string(cluster_.hosts().targets()[0].port);
    cluster_.Write("found", "host-1 " + address + ":" + port + "\n");
  };
  say(cluster_.hosts().targets()[0].address);
  const std::string script = cluster_.Write("hosts.sh", "#!/bin/sh\ncat \"" + Path("found") + "\"\n");
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  const std::string inventory =
      cluster_.Write("discovered.yaml", InventoryText() + "discover: {command: ./hosts.sh, every: 300ms}\n");
  const CommandResult run =
      Muster({"run", ScriptJob("away", kWaitForGo, "count: 2"), "-i", inventory, "-d", "--on", "host-3"});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  WaitForTasks("away", 2);
  std::filesystem::remove(script);
  const std::string address = cluster_.hosts().FreeAddress(1);
  cluster_.hosts().Move("host-1", address);
  say(address);
  EXPECT_TRUE(Eventually([&] {
    return Muster({"events", "away"}).stdout_text.find(" -> " + address) != std::string::npos;
  })) << Muster({"events", "away"}).stdout_text;
  Touch("go");
  const CommandResult wait = Muster({"wait", "away"});
  EXPECT_EQ(wait.exit_code, 0) << wait.stderr_text;
}

// It and its controller are gone: the job goes on, and a `wait` has it driven again.
TEST_F(ClusterController, MayBeLostAndComeBack) {
  const std::string job = ScriptJob("away", kWaitForGo, "count: 2");
  ASSERT_EQ(RunOn("host-3", job).exit_code, 0);
  const auto tasks = WaitForTasks("away", 2);
  cluster_.hosts().Kill("host-3");
  const CommandResult wait = Muster({"wait", "away"});
  EXPECT_EQ(wait.exit_code, 69) << wait.stderr_text;
  EXPECT_THAT(wait.stderr_text, HasSubstr("host-3 drives job "));
  EXPECT_EQ(FirstProcesses("away"), tasks);
  cluster_.hosts().Start("host-3");
  Touch("go");
  const CommandResult again = Muster({"wait", "away"});
  EXPECT_EQ(again.exit_code, 0) << again.stderr_text;
}

// Whoever follows the job has reached it before, and does so again.
TEST_F(ClusterController, IsFollowedOverItsStart) {
  ASSERT_EQ(RunOn("host-3", ScriptJob("away", kWaitForGo, "count: 2")).exit_code, 0);
  Process wait = cluster_.Start({"wait", "away"}, "wait");
  Process events = cluster_.Start({"events", "-f", "away"}, "events");
  ASSERT_TRUE(cluster_.WaitForText("events", "  worker:1@host-2       started\n"));
  pid_t first = 0;
  ASSERT_TRUE(Eventually([&] { return (first = WhoAwaits("away")) != 0; })) << cluster_.Text("wait");
  ASSERT_TRUE(Eventually([&] {  // it asks again when it has been answered
    const pid_t now = WhoAwaits("away");
    return now != 0 && now != first;
  })) << cluster_.Text("wait");
  cluster_.hosts().Kill("host-3");
  EXPECT_TRUE(cluster_.WaitForText("wait", ": trying again for 1m00s\n")) << cluster_.Text("wait");
  EXPECT_TRUE(cluster_.WaitForText("events", ": trying again for 1m00s\n")) << cluster_.Text("events");
  cluster_.hosts().Start("host-3");
  Touch("go");
  EXPECT_EQ(ExitCodeOf(wait), 0) << cluster_.Text("wait");
  EXPECT_EQ(ExitCodeOf(events), 0) << cluster_.Text("events");
  EXPECT_THAT(cluster_.Text("events"), HasSubstr("the job has ended"));
}

// Or the job has never come to it: who was to give it to the host has died before.
TEST_F(ClusterController, MayHaveLostTheJob) {
  ASSERT_EQ(RunOn("host-3", ScriptJob("away", kWaitForGo, "count: 2")).exit_code, 0);
  const auto tasks = WaitForTasks("away", 2);
  cluster_.hosts().Kill("host-3");
  std::filesystem::remove_all(cluster_.hosts().HomeOf("host-3"));
  std::filesystem::create_directory(cluster_.hosts().HomeOf("host-3"));
  cluster_.hosts().Start("host-3");
  EXPECT_TRUE(Show("away")["driver"].is_null());
  EXPECT_EQ(FirstProcesses("away"), tasks);
  Touch("go");
  EXPECT_EQ(Muster({"wait", "away"}).exit_code, 0);
}

// It has one of an earlier time, as it comes back with after it was left, or restored from a copy.
TEST_F(ClusterController, AnOldRecordOfTheJobThereCountsForNothing) {
  const auto job = [&](int exit_code) {
    return ScriptJob("away", kWaitForGo + ("exit " + std::to_string(exit_code)), "count: 2");
  };
  ASSERT_EQ(RunOn("host-3", job(3)).exit_code, 0);
  WaitForTasks("away", 2);
  const std::vector<std::string> jobs = JobsOf("host-3");
  ASSERT_EQ(jobs.size(), 1u);
  const std::filesystem::path there = ControllerFolder("host-3") / "jobs" / jobs[0], copy = Path("copy");
  const auto copy_to = [&](const std::filesystem::path& from, const std::filesystem::path& to) {
    EXPECT_EQ(cluster_.Shell("cp -a '" + from.string() + "' '" + to.string() + "'").exit_code, 0);
  };
  copy_to(there, copy);
  const CommandResult back = RunJob(job(0), {"-d"});
  ASSERT_EQ(back.exit_code, 0) << back.stderr_text;
  const auto tasks = WaitForTasks("away", 2);
  const auto put_back = [&] {
    ASSERT_EQ(RunOn("host-3", job(0)).exit_code, 0);
    cluster_.hosts().Kill("host-3");
    std::filesystem::remove_all(there);
    copy_to(copy, there);
    cluster_.hosts().Start("host-3");
  };

  put_back();
  const CommandResult taken = RunJob(job(0), {"-d"});
  EXPECT_EQ(taken.exit_code, 0) << taken.stderr_text;
  EXPECT_EQ(FirstProcesses("away"), tasks);
  EXPECT_THAT(JobsOf("host-3"), IsEmpty());

  put_back();
  Process wait = cluster_.Start({"wait", "away"}, "wait");
  EXPECT_TRUE(Eventually([&] { return JobsOf("host-3").empty(); }));
  EXPECT_EQ(FirstProcesses("away"), tasks);
  Touch("go");
  EXPECT_EQ(ExitCodeOf(wait), 0) << cluster_.Text("wait");
}

// Nor does the host go on with it.
TEST_F(ClusterController, AnOldRecordOfTheJobIsNotDriven) {
  ASSERT_EQ(RunJob(ScriptJob("old", "true", "count: 1")).exit_code, 0);
  // As printf is given it: the job of the first hand-over.
  const std::string asked = "printf '\\n\\005\\010\\001\\370\\001\\001' | muster controller resume ";
  const CommandResult result = cluster_.Shell(asked + JobFolder().filename().string());
  EXPECT_EQ(result.exit_code, 66) << result.stderr_text;
  EXPECT_THAT(result.stderr_text, HasSubstr("has only an old record"));
}

// To remove what it has may take long, if it is busy.
TEST_F(ClusterController, NobodyWaitsForWhatAHostRemoves) {
  const std::string job = ScriptJob("away", kWaitForGo, "count: 2");
  ASSERT_EQ(RunOn("host-3", job).exit_code, 0);
  std::filesystem::path program;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(ControllerFolder("host-3").parent_path() / "store")) {
    if (entry.path().filename() == "muster" && entry.is_regular_file()) program = entry.path();
  }
  ASSERT_FALSE(program.empty());
  std::filesystem::permissions(program.parent_path(), std::filesystem::perms::owner_all);
  std::filesystem::rename(program, program.string() + "-itself");
  // Without this list it would be found changed, and sent again.
  ASSERT_TRUE(std::filesystem::remove(program.parent_path().parent_path().string() + ".files"));
  ASSERT_TRUE(WriteFileAtomically(program,
                                  "#!/bin/sh\n[ \"$2\" != forget ] || {\n  : >'" + Path("removes") +
                                      "'\n  while [ ! -e '" + Path("goes on") +
                                      "' ]; do sleep 0.02; done\n}\nexec \"$0-itself\" \"$@\"\n",
                                  0700)
                  .ok());
  Process back = StartJob(job, "back", {"-d"});
  ASSERT_TRUE(WaitForFile("removes")) << cluster_.Text("back");
  const UniqueFd lock(::open((cluster_.home() / "lock").c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(Eventually([&] { return ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0; }));
  ::flock(lock.get(), LOCK_UN);
  Touch("goes on");
  EXPECT_EQ(ExitCodeOf(back), 0) << cluster_.Text("back");
  EXPECT_THAT(JobsOf("host-3"), IsEmpty());
  Touch("go");
  EXPECT_EQ(Muster({"wait", "away"}).exit_code, 0);
}

// Of what became of the job there nobody here has heard.
TEST_F(ClusterController, WhatItHasDoneBeforeItLostTheJobIsStopped) {
  const CommandResult run = Muster({"run", ScriptJob("away", kWaitForGo, "count: 2, on: cpu"), "-i",
                                    InventoryWithHead(), "-d", "--on", "host-3", "--lost-timeout", "2"});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  WaitForTasks("away", 2);
  cluster_.hosts().Kill("host-2");
  EXPECT_TRUE(Eventually([&] {
    const auto first = FirstProcesses("away");
    return first.contains("worker:1") && first.at("worker:1").incarnation > 1'000'000;
  }));
  cluster_.hosts().Kill("host-3");
  std::filesystem::remove_all(cluster_.hosts().HomeOf("host-3"));
  std::filesystem::create_directory(cluster_.hosts().HomeOf("host-3"));
  for (const char* host : {"host-2", "host-3"}) cluster_.hosts().Start(host);
  const CommandResult stop = Muster({"stop", "away"});
  EXPECT_EQ(stop.exit_code, 0) << stop.stderr_text;
  EXPECT_THAT(JobProcesses(cluster_.hosts().folder()), IsEmpty());
}

TEST_F(ClusterController, MayBeGoneForGood) {
  const std::string job = ScriptJob("away", kWaitForGo, "count: 2");
  ASSERT_EQ(RunOn("host-3", job).exit_code, 0);
  WaitForTasks("away", 2);
  cluster_.hosts().Kill("host-3");
  const CommandResult run = RunJob(job, {"-d"});
  EXPECT_EQ(run.exit_code, 69);
  EXPECT_THAT(run.stderr_text, HasSubstr("` ends it without"));
  const CommandResult stop = Muster({"stop", "away"});
  EXPECT_EQ(stop.exit_code, 69);
  EXPECT_THAT(stop.stderr_text,
              AllOf(HasSubstr("host-3, which drove it, was not reached"), Not(HasSubstr("goes on with it"))));
  EXPECT_THAT(JobProcesses(cluster_.hosts().folder()), IsEmpty());
  EXPECT_EQ(Json::parse(Muster({"list", "-o", "json"}).stdout_text)[0]["state"], "Stopped");
  EXPECT_THAT(Muster({"events", "away"}).stdout_text,
              HasSubstr("the job has ended: stopped on request, without host-3"));
  // Its name is free.
  Touch("go");
  EXPECT_EQ(RunJob(job).exit_code, 0);
  cluster_.hosts().Start("host-3");
}

TEST_F(ClusterController, WhatIsNoJobIsRefused) {
  // As printf is given it, and why not: a record of version 9, an inventory called "../x".
  const std::pair<std::string, std::string> inputs[] = {
      {"nonsense", "this is no job"},
      {"\\n\\002\\010\\011", "the job has version 9, this muster knows version 1"},
      {"\\n\\002\\010\\001\\042\\004../x", "'../x' is no name of a file"}};
  for (const char* command : {"check", "drive"}) {
    for (const auto& [input, why] : inputs) {
      const CommandResult result = cluster_.Shell("printf '" + input + "' | muster controller " + command);
      EXPECT_NE(result.exit_code, 0) << command << " " << input;
      EXPECT_THAT(result.stderr_text, HasSubstr(why)) << command;
    }
  }
  EXPECT_EQ(Muster({"list", "-o", "json"}).stdout_text, "[]\n");
}

TEST_F(ClusterController, WhatCannotBeIsRefusedAndNothingIsStarted) {
  const std::string job = ScriptJob("refused", "exec sleep 600");
  const auto expect = [&](const CommandResult& result, int exit_code, const std::string& why) {
    EXPECT_EQ(result.exit_code, exit_code) << result.stderr_text;
    EXPECT_THAT(result.stderr_text, HasSubstr(why));
  };
  expect(RunJob(job, {"--on", "host-1"}), 2, "`run -d --on host-1`");
  expect(RunOn("host-9", job), 2, "the inventory has no host 'host-9'");
  // A key that this account's ssh-agent has, and that nobody has there.
  std::string inventory = InventoryText();
  const std::string key = cluster_.hosts().folder() + "/id_ed25519", identity = ", identity: \"" + key + "\"";
  inventory.erase(inventory.find(identity), identity.size());
  const CommandResult refused = cluster_.Shell(
      "eval \"$(ssh-agent -s)\" >/dev/null; trap 'ssh-agent -k >/dev/null' EXIT; ssh-add -q " + key +
      "; muster run " + job + " -d --on host-1 -i " + cluster_.Write("agent.yaml", inventory));
  expect(refused, 1, "it cannot log in to 2 of 3 hosts with the keys of its account");
  EXPECT_THAT(refused.stderr_text, AllOf(HasSubstr("host-2"), HasSubstr("host-3")));
  // What a check has left that was killed goes with the next one, but none that may be under way.
  const std::filesystem::path controller = ControllerFolder("host-1");
  for (const char* name : {"check-killed", "check-running"}) {
    ASSERT_TRUE(MakeDirectories(controller / name).ok());
  }
  std::filesystem::last_write_time(controller / "check-killed",
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));
  // A discovery command that fails there.
  const std::string discovered =
      cluster_.Write("discovered.yaml",
                     InventoryText() + "discover: {command: 'case $PWD in */inventory) exit 3;; esac'}\n");
  expect(Muster({"run", job, "-i", discovered, "-d", "--on", "host-1"}), 1,
         "esac` failed: it ended with exit code 3");
  EXPECT_THAT(NamesIn(controller), Contains("check-running"));
  EXPECT_THAT(NamesIn(controller), Not(Contains("check-killed")));
  EXPECT_EQ(Muster({"list", "-o", "json"}).stdout_text, "[]\n");
}

// It is lost before it has said anything but that it is there.
TEST_F(ClusterController, IsWaitedForThoughItIsLostAtOnce) {
  ASSERT_EQ(RunOn("host-3", ScriptJob("away", kWaitForGo, "count: 2")).exit_code, 0);
  Process wait = cluster_.Start({"wait", "away"}, "wait");
  pid_t asked = 0;
  ASSERT_TRUE(Eventually([&] { return (asked = WhoAwaits("away")) != 0; })) << cluster_.Text("wait");
  ASSERT_EQ(::kill(asked, SIGSTOP), 0);
  cluster_.hosts().Kill("host-3");
  EXPECT_TRUE(cluster_.WaitForText("wait", ": trying again for 1m00s\n")) << cluster_.Text("wait");
  cluster_.hosts().Start("host-3");
  Touch("go");
  EXPECT_EQ(ExitCodeOf(wait), 0) << cluster_.Text("wait");
}

// A task that has succeeded there needs it no more.
TEST_F(ClusterController, GetsAJobOfWhichAHostIsDown) {
  const std::string job =
      ScriptJob("partly", "[ $RANK = 1 ] && exit 0\n" + std::string(kWaitForGo), "count: 2");
  ASSERT_EQ(RunJob(job, {"-d"}).exit_code, 0);
  ASSERT_TRUE(Eventually([&] { return ShowTask("partly", "worker:1")["state"] == "Succeeded"; }));
  const auto tasks = WaitForTasks("partly", 1);
  cluster_.hosts().Kill("host-2");
  const CommandResult run = RunOn("host-3", job);
  EXPECT_EQ(run.exit_code, 0) << run.stderr_text;
  EXPECT_THAT(run.stderr_text, HasSubstr("--on host-3: host-2"));
  ExpectDrivenBy("host-3", "partly");
  EXPECT_EQ(FirstProcesses("partly"), tasks);
  cluster_.hosts().Start("host-2");
  Touch("go");
  EXPECT_EQ(Muster({"wait", "partly"}).exit_code, 0);
}

}  // namespace
}  // namespace muster
