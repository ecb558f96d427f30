// Hosts that get another address while a job runs on them: the cluster follows, and no bit of the result
// changes.
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>

#include <fstream>
#include <functional>

#include "proto/job_record.pb.h"
#include "tests/support/checkout.h"
#include "tests/support/lifecycle_fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 1500;

class ClusterMoves : public LifecycleTest {
 protected:
  using LifecycleTest::LifecycleTest;

  /// ps:0 on host-1, worker:0, which is chief, on host-2, worker:1 on host-3.
  std::string TrainingJob(const std::string& name,
                          const std::string& rest = "checkpoint: {every_steps: 50}\n", int steps = kSteps) {
    return cluster_.Write(
        name + ".yaml",
        "name: " + name +
            "\nmodel: mnist_mlp\nupdate: {mode: sync}\n"
            "replicas: {ps: {count: 1}, worker: {count: 2, restart: on_failure, max_restarts: 2}}\n"
            "train: {steps: " +
            std::to_string(steps) + ", batch_size: 20, seed: 3, threads: 1}\n" + rest);
  }

  using Mover = std::function<void(int host)>;

  /// Without checkpoints: whoever started again would have lost what was trained.
  void ExpectThatAnAsynchronousJobFollows(const Mover& move) {
    // Enough steps for both moves: what runs goes on meanwhile.
#ifdef __SANITIZE_ADDRESS__
    constexpr int kEnough = 4000;
#else
    constexpr int kEnough = 16000;
#endif
    const std::string job = cluster_.Write(
        "async.yaml", absl::StrFormat("name: async\nmodel: mnist_mlp\nupdate: {mode: async}\n"
                                      "replicas: {ps: {count: 1}, worker: {count: 2}}\n"
                                      "train: {steps: %d, batch_size: 20, seed: 3, threads: 1}\n",
                                      kEnough));
    Process run = StartJob(job, "run");
    ASSERT_TRUE(cluster_.WaitForText("run", "@host-2] step "));
    move(1);
    ASSERT_TRUE(cluster_.WaitForText("run", ", ps:0 rejoined after ")) << cluster_.Text("run");
    move(3);
    ASSERT_TRUE(cluster_.WaitForText("run", ", worker:1 rejoined after ")) << cluster_.Text("run");
    EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
    ExpectNoRestarts("async");
    EXPECT_GE(Result()["steps"], kEnough);
    EXPECT_GT(Result()["test_accuracy"], 0.9);
  }

  void ExpectThatAnAllReduceFollows(const Mover& move) {
    // Enough steps for both moves: what runs goes on meanwhile.
#ifdef __SANITIZE_ADDRESS__
    constexpr int kEnough = 2000;
#else
    constexpr int kEnough = 6000;
#endif
    const auto job = [&](const std::string& name) {
      return cluster_.Write(name + ".yaml", "name: " + name +
                                                "\nmodel: mnist_mlp\nhidden: [50]\nstrategy: allreduce\n"
                                                "replicas: {worker: {count: 3}}\n"
                                                "train: {steps: " +
                                                std::to_string(kEnough) +
                                                ", global_batch_size: 300, seed: 3, threads: 1}\n");
    };
    ASSERT_EQ(RunJob(job("undisturbed"), {"-q"}).exit_code, 0);
    const Json expected = Result()["parameters_crc32c"];
    Process run = StartJob(job("sums"), "run");
    ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
    move(1);  // the chief's
    ASSERT_TRUE(cluster_.WaitForText("run", ", worker:0 rejoined after ")) << cluster_.Text("run");
    move(3);
    ASSERT_TRUE(cluster_.WaitForText("run", ", worker:2 rejoined after ")) << cluster_.Text("run");
    EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
    ExpectNoRestarts("sums");
    EXPECT_EQ(Result()["parameters_crc32c"], expected) << cluster_.Text("run");
    EXPECT_EQ(Result()["steps"], kEnough);
  }

  /// The result record of the newest job.
  Json Result() {
    const Json jobs = Json::parse(Muster({"list", "-o", "json"}).stdout_text);
    const std::filesystem::path folder = cluster_.home() / "jobs" / std::string(jobs[0]["job"]);
    return Json::parse(ReadFile(folder / "result.json").value_or("{}"));
  }

  Json UndisturbedChecksum(int steps = kSteps) {
    const CommandResult run =
        RunJob(TrainingJob("undisturbed", "checkpoint: {every_steps: 50}\n", steps), {"-q"});
    EXPECT_EQ(run.exit_code, 0) << run.stderr_text;
    return Result()["parameters_crc32c"];
  }

  /// Replaces a text in the inventory.
  void EditInventory(const std::string& from, const std::string& to) {
    std::string text = *ReadFile(cluster_.inventory());
    size_t count = 0;
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size(), ++count) {
      text.replace(at, from.size(), to);
    }
    ASSERT_GT(count, 0u) << from << " in " << text;
    ASSERT_TRUE(WriteFileAtomically(cluster_.inventory(), text).ok());
  }
  /// To an address that nobody had, which the inventory says a moment later. The host goes there with all
  /// that runs on it.
  std::string MoveAndEdit(int host) {
    const std::string address = cluster_.hosts().FreeAddress(host);
    cluster_.hosts().Move("host-" + std::to_string(host), address);
    EditInventory(AddressOf(host) + ":", address + ":");
    EditInventory("data: " + AddressOf(host) + ",", "data: " + address + ",");
    return address;
  }
  void ExpectNoRestarts(const std::string& job) {
    const Json shown = Show(job);
    for (const Json& task : shown["tasks"]) EXPECT_EQ(task["restarts"], 0) << task;
    EXPECT_THAT(cluster_.Text("run"), testing::Not(HasSubstr(" started again")));
  }

  /// With a range to look for hosts in.
  void AddSearch() {
    const std::string& first = cluster_.hosts().targets()[0].address;
    const std::string text = *ReadFile(cluster_.inventory());
    ASSERT_TRUE(WriteFileAtomically(cluster_.inventory(),
                                    text + "search: [" + first.substr(0, first.rfind('.')) + ".0/24]\n")
                    .ok());
  }

  std::string AddressOf(int host) { return cluster_.hosts().targets()[host - 1].address; }
};

// Where whoever is connected to a host that moves hears nothing of it.
class ClusterMovesOnANetwork : public ClusterMoves {
 protected:
  ClusterMovesOnANetwork() : ClusterMoves(LoopbackCluster::Network::kNamespaces) {}

  /// From now on the inventory has names for these hosts, which muster resolves by a file of its own.
  void NameHosts(const std::vector<int>& hosts) {
    for (const int host : hosts) {
      names_[host] = AddressOf(host);
      EditInventory("{ssh: \"" + AddressOf(host) + ":", "{ssh: \"" + NameOf(host) + ":");
      EditInventory("data: " + AddressOf(host) + ", ", "");
    }
    WriteNames();
    const std::string wrapper = cluster_.Write(
        "muster", "#!/bin/sh\nexec unshare --mount sh -c 'mount --bind " + Path("hosts") +
                      " /etc/hosts && exec \"$0\" \"$@\"' " + BuildPath("bin/muster") + " \"$@\"\n");
    std::filesystem::permissions(wrapper, std::filesystem::perms::owner_all);
    cluster_.set_binary(wrapper);
  }
  void MoveSilently(int host) {
    cluster_.hosts().Move("host-" + std::to_string(host), cluster_.hosts().FreeAddress(host));
  }
  /// To an address that nobody had, which is then what its name means.
  std::string MoveNamed(int host) {
    const std::string address = cluster_.hosts().FreeAddress(host);
    cluster_.hosts().Move("host-" + std::to_string(host), address);
    names_[host] = address;
    WriteNames();
    return address;
  }

 private:
  static std::string NameOf(int host) { return "moving-" + std::to_string(host) + ".example.org"; }
  void WriteNames() {
    std::string text;
    for (const auto& [host, address] : names_) text += address + " " + NameOf(host) + "\n";
    std::ofstream(Path("hosts")) << text;  // in place: it is mounted
  }

  std::map<int, std::string> names_;
};

// The server's, the chief's, or that of another worker.
class ClusterMovesOfOne : public ClusterMoves, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Hosts, ClusterMovesOfOne, testing::Values(1, 2, 3));
class ClusterMovesOfOneOnANetwork : public ClusterMovesOnANetwork, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Hosts, ClusterMovesOfOneOnANetwork, testing::Values(1, 3));

TEST_P(ClusterMovesOfOne, AnAddressThatIsEditedIsFollowed) {
  const Json expected = UndisturbedChecksum();
  const int host = GetParam();
  const std::string name = "host-" + std::to_string(host);
  Process run = StartJob(TrainingJob("moved"), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  const std::string address = MoveAndEdit(host);
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_THAT(cluster_.Text("run"), HasSubstr(name + " moved " + AddressOf(host) + " -> " + address));
  EXPECT_THAT(cluster_.Text("run"), HasSubstr(", 0 steps lost\n"));
  ExpectNoRestarts("moved");
  EXPECT_EQ(Result()["parameters_crc32c"], expected) << cluster_.Text("run");
  EXPECT_EQ(Result()["steps"], kSteps);
}

TEST_F(ClusterMoves, AnAsynchronousJobGoesOn) {
  ExpectThatAnAsynchronousJobFollows([this](int host) { MoveAndEdit(host); });
}

TEST_F(ClusterMoves, AndOneThatGoesByAllReduce) {
  ExpectThatAnAllReduceFollows([this](int host) { MoveAndEdit(host); });
}

TEST_P(ClusterMovesOfOne, AHostThatComesBackElsewhereIsFoundByItsKey) {
  const Json expected = UndisturbedChecksum();
  AddSearch();
  const int host = GetParam();
  const std::string name = "host-" + std::to_string(host);
  Process run = StartJob(TrainingJob("found"), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  cluster_.hosts().Kill(name);
  ASSERT_TRUE(cluster_.WaitForText("run", "\nlost: " + name));
  const std::string address = cluster_.hosts().FreeAddress(host);
  cluster_.hosts().Move(name, address);
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_THAT(cluster_.Text("run"),
              HasSubstr(name + " may be at " + address + ", as a search for its key says\n"));
  EXPECT_THAT(cluster_.Text("run"), HasSubstr(name + " moved " + AddressOf(host) + " -> " + address));
  EXPECT_THAT(cluster_.Text("run"), HasSubstr(" rejoined after "));
  EXPECT_EQ(Result()["parameters_crc32c"], expected) << cluster_.Text("run");
  EXPECT_EQ(Result()["steps"], kSteps);
}

TEST_F(ClusterMoves, TheHostThatDrivesAJobIsWhereTheInventorySays) {
  const CommandResult run = RunJob(ScriptJob("driven", kWaitForGo, "count: 2"), {"-d", "--on", "host-3"});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  WaitForTasks("driven", 2);
  MoveAndEdit(3);
  Touch("go");
  const CommandResult wait = Muster({"wait", "driven"});
  EXPECT_EQ(wait.exit_code, 0) << wait.stderr_text;
}

TEST_F(ClusterMoves, HostsThatSwapTheirAddressesAreBothFound) {
  const Json expected = UndisturbedChecksum();
  AddSearch();
  Process run = StartJob(TrainingJob("swapped"), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  cluster_.hosts().Kill("host-2");
  cluster_.hosts().Kill("host-3");
  cluster_.hosts().Move("host-2", AddressOf(3));
  cluster_.hosts().Move("host-3", AddressOf(2));
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_EQ(Result()["parameters_crc32c"], expected) << cluster_.Text("run");
  const Json shown = Show("swapped");
  EXPECT_THAT(std::string(shown["tasks"][1]["address"]), HasSubstr(AddressOf(3)));
  EXPECT_THAT(std::string(shown["tasks"][2]["address"]), HasSubstr(AddressOf(2)));
}

TEST_F(ClusterMoves, AnotherProgramIsStartedAgainWithItsNewClusterUnlessItHasSucceeded) {
  const std::string job = ScriptJob("script",
                                    "echo $MUSTER_GENERATION $TF_CONFIG >> $DIR/$MUSTER_TASK.starts\n"
                                    "[ $MUSTER_TASK = worker:0 ] && exit 0\n"
                                    "until [ -e $DIR/go ]; do sleep 0.1; done");
  Process run = StartJob(job, "run");
  ASSERT_TRUE(WaitForFile("worker:2.starts"));
  ASSERT_TRUE(cluster_.WaitForText("run", "\nworker:0 on host-1: Succeeded"));
  const auto before = WaitForTasks("script", 2);
  const std::string address = cluster_.hosts().FreeAddress(3);
  cluster_.hosts().Move("host-3", address);
  EditInventory(AddressOf(3), address);
  ASSERT_TRUE(cluster_.WaitForText("run", " rejoined after "));
  ASSERT_TRUE(Eventually([&] {
    const auto now = FirstProcesses("script");
    return now.size() == 2 && now.at("worker:1").pid != before.at("worker:1").pid &&
           now.at("worker:2").pid != before.at("worker:2").pid;
  }));
  EXPECT_THAT(cluster_.Text("run"), HasSubstr(", 2 of 2 tasks started again\n"));
  Touch("go");
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  const auto lines = [&](const std::string& task) {
    std::vector<std::string> starts;
    std::istringstream text(cluster_.Text(task + ".starts"));
    for (std::string line; std::getline(text, line);) starts.push_back(line);
    return starts;
  };
  EXPECT_EQ(lines("worker:0").size(), 1u);
  for (const std::string task : {"worker:1", "worker:2"}) {
    const std::vector<std::string> starts = lines(task);
    ASSERT_EQ(starts.size(), 2u) << task;
    EXPECT_THAT(starts[0], HasSubstr(AddressOf(3) + ":"));
    EXPECT_THAT(starts[1], HasSubstr(address + ":"));
    EXPECT_THAT(starts[1], testing::StartsWith("1 ")) << "it is the same cluster, elsewhere";
  }
}

// Which it does because it was told to.
TEST_F(ClusterMoves, AProgramThatEndsWellWhenItIsStoppedIsStartedAgainToo) {
  Process run = StartJob(ScriptJob("tidy",
                                   "trap 'exit 0' TERM\n"
                                   "echo begun >> $DIR/$MUSTER_TASK.starts\n"
                                   "until [ -e $DIR/go ]; do sleep 0.1; done"),
                         "run");
  const auto begins = [&](const std::string& task) {
    const std::string starts = ReadFile(Path(task + ".starts")).value_or("");
    return std::ranges::count(starts, '\n');
  };
  const std::vector<std::string> tasks = {"worker:0", "worker:1", "worker:2"};
  for (const std::string& task : tasks) ASSERT_TRUE(WaitForFile(task + ".starts"));
  const std::string address = cluster_.hosts().FreeAddress(3);
  cluster_.hosts().Move("host-3", address);
  EditInventory(AddressOf(3), address);
  for (const std::string& task : tasks) {
    EXPECT_TRUE(Eventually([&] { return begins(task) == 2; })) << task << "\n" << cluster_.Text("run");
  }
  Touch("go");
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  for (const std::string& task : tasks) EXPECT_EQ(begins(task), 2) << task;
}

TEST_F(ClusterMoves, APlanSaysWhatAMoveChangesAndTheNextRunDoesIt) {
  const std::string job = TrainingJob("planned", "", /*steps=*/10'000'000);
  const std::string script = ScriptJob("script", "exec sleep 600");
  for (const std::string& file : {job, script}) ASSERT_EQ(RunJob(file, {"-d"}).exit_code, 0);
  for (const std::string name : {"planned", "script"}) {
    ASSERT_EQ(::kill(Show(name)["driver"]["pid"], SIGKILL), 0);
  }
  const auto before = WaitForTasks("planned", 3);
  const auto plan = [&](const std::string& file) {
    return Muster({"plan", file, "-i", cluster_.inventory()}).stderr_text;
  };
  EXPECT_THAT(plan(job), testing::StartsWith("3 unchanged\n"));
  MoveAndEdit(3);
  EXPECT_THAT(plan(job), testing::StartsWith("1 move, 2 unchanged\n"));
  EXPECT_THAT(plan(script), testing::StartsWith("1 move, 2 restart\n"));
  const CommandResult run = RunJob(job, {"-d"});
  EXPECT_EQ(run.exit_code, 0) << run.stderr_text;
  EXPECT_EQ(FirstProcesses("planned"), before);
  EXPECT_THAT(plan(job), testing::StartsWith("3 unchanged\n"));
  // What whoever drives the job has followed already is no news.
  const std::string address = MoveAndEdit(2);
  EXPECT_TRUE(Eventually([&] {
    return Muster({"events", "planned"}).stdout_text.find(" -> " + address + "\n") != std::string::npos;
  }));
  EXPECT_THAT(plan(job), testing::StartsWith("3 unchanged\n"));
  // One more server is another cluster, of which all have to be told.
  std::string larger = cluster_.Text(std::filesystem::path(job).filename());
  ASSERT_EQ(absl::StrReplaceAll({{"ps: {count: 1", "ps: {count: 2"}}, &larger), 1) << larger;
  EXPECT_THAT(plan(cluster_.Write("larger.yaml", larger)), testing::StartsWith("1 start, 3 restart\n"));
  for (const std::string name : {"planned", "script"}) EXPECT_EQ(Muster({"stop", name}).exit_code, 0);
}

TEST_F(ClusterMoves, ALauncherThatIsKilledDuringAMoveIsNotMissed) {
  const Json expected = UndisturbedChecksum();
  AddSearch();
  Process first = StartJob(TrainingJob("killed"), "first");
  ASSERT_TRUE(cluster_.WaitForText("first", "step 100: "));
  const std::string address = cluster_.hosts().FreeAddress(3);
  cluster_.hosts().Kill("host-3");
  cluster_.hosts().Move("host-3", address);
  ASSERT_TRUE(cluster_.WaitForText("first", "host-3 moved "));
  first.Signal(SIGKILL);
  EXPECT_EQ(ExitCodeOf(first), 128 + SIGKILL);
  const CommandResult wait = cluster_.Muster({"wait", "killed"}, std::chrono::seconds(120));
  EXPECT_EQ(wait.exit_code, 0) << wait.stderr_text << cluster_.Text("first");
  EXPECT_EQ(Result()["parameters_crc32c"], expected) << wait.stderr_text;
}

// How far a move has come when the launcher is killed.
struct Progress {
  const char* name;
  std::function<bool(const std::string& output, const record::JobRecord& record, int told)> is_reached;
};
void PrintTo(const Progress& progress, std::ostream* out) { *out << progress.name; }

class ClusterMovesUnderWay : public ClusterMovesOnANetwork, public testing::WithParamInterface<Progress> {
 protected:
  /// How many tasks have a cluster file that says the address.
  int CountTold(const std::string& address) {
    int count = 0;
    std::error_code error;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(cluster_.hosts().folder(), error)) {
      if (entry.path().filename() != "cluster.json") continue;
      count += ReadFile(entry.path()).value_or("").find(address + ":") != std::string::npos;
    }
    return count;
  }
};

INSTANTIATE_TEST_SUITE_P(
    To, ClusterMovesUnderWay,
    testing::Values(Progress{"Sighted", [](const auto& output, const auto&,
                                           int) { return output.find(" may be at ") != std::string::npos; }},
                    Progress{"Recorded", [](const auto&, const auto& record,
                                            int) { return record.cluster().generation() == 2; }},
                    Progress{"OneTold", [](const auto&, const auto&, int told) { return told >= 1; }},
                    Progress{"TwoTold", [](const auto&, const auto&, int told) { return told >= 2; }},
                    Progress{"AllTold", [](const auto&, const auto&, int told) { return told >= 3; }},
                    Progress{"Rejoined",
                             [](const auto& output, const auto&, int) {
                               return output.find(" rejoined after ") != std::string::npos;
                             }}),
    [](const auto& info) { return info.param.name; });

// Of the server's host: all others have to find it again.
TEST_P(ClusterMovesUnderWay, IsBroughtToItsEndByWhoeverGoesOn) {
  constexpr int kFewSteps = 600;
  const Json expected = UndisturbedChecksum(kFewSteps);
  Process first = StartJob(TrainingJob("killed", "checkpoint: {every_steps: 50}\n", kFewSteps), "first");
  ASSERT_TRUE(cluster_.WaitForText("first", "step 100: "));
  const std::filesystem::path record_file = JobFolder() / "record.pb";
  const std::string address = MoveAndEdit(1);
  const TimePoint deadline = Now() + std::chrono::seconds(60);
  record::JobRecord record;
  do {
    ASSERT_LT(Now(), deadline) << cluster_.Text("first");
    ASSERT_TRUE(record.ParseFromString(ReadFile(record_file).value_or("")));
  } while (!GetParam().is_reached(cluster_.Text("first"), record, CountTold(address)));
  first.Signal(SIGKILL);
  EXPECT_EQ(ExitCodeOf(first), 128 + SIGKILL);
  ASSERT_EQ(RunJob(Path("killed.yaml"), {"-d"}).exit_code, 0);
  const CommandResult wait = cluster_.Muster({"wait", "killed"}, std::chrono::seconds(120));
  EXPECT_EQ(wait.exit_code, 0) << wait.stderr_text << cluster_.Text("first");
  EXPECT_EQ(CountTold(address), 3);
  // Each task once, whoever drove it.
  const std::string events = Muster({"events", "killed"}).stdout_text;
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(events, " started")).size() - 1, 3u) << events;
  EXPECT_EQ(Result()["parameters_crc32c"], expected) << wait.stderr_text;
}

// Hosts of which the second has been copied from the first, with its key.
class ClusterClones : public ClusterMoves {
 protected:
  ClusterClones() {
    const std::string folder = cluster_.hosts().folder();
    cluster_.hosts().Kill("host-2");
    for (const std::string file : {"/host_key", "/host_key.pub"}) {
      std::filesystem::copy_file(folder + "/host-1" + file, folder + "/host-2" + file,
                                 std::filesystem::copy_options::overwrite_existing);
    }
    cluster_.hosts().Start("host-2");
    std::string known = cluster_.hosts().Text("known_hosts");
    const size_t second = known.find("host-2 ");
    const std::string key = known.substr(7, known.find('\n') - 7);
    known.replace(second, known.find('\n', second) - second, "host-2 " + key);
    EXPECT_TRUE(WriteFileAtomically(folder + "/known_hosts", known).ok());
  }

  /// Else all have that of this machine.
  void GiveMachineId(const std::string& host, const std::string& id) {
    const std::string folder = cluster_.hosts().folder() + "/" + host;
    ASSERT_TRUE(WriteFileAtomically(folder + "/machine-id", id + "\n").ok());
    const std::string enter = "#!/bin/sh\nexec unshare --mount sh -c 'mount --bind " + folder +
                              "/machine-id /etc/machine-id && exec \"$@\"' enter \"$@\"\n";
    ASSERT_TRUE(WriteFileAtomically(folder + "/enter", enter, 0755).ok());
    cluster_.hosts().Kill(host);
    cluster_.hosts().Start(host);
  }
};

TEST_F(ClusterClones, OfOtherMachinesAreToldApartWhereverTheyGo) {
  if (!LoopbackCluster::CanMakeNamespaces()) GTEST_SKIP() << "no namespaces can be made here";
  GiveMachineId("host-1", "11111111111111111111111111111111");
  GiveMachineId("host-2", "22222222222222222222222222222222");
  const Json expected = UndisturbedChecksum();
  AddSearch();
  Process run = StartJob(TrainingJob("clones"), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  // The key of host-2 is found where host-1 is, too.
  const std::string address = cluster_.hosts().FreeAddress(2);
  cluster_.hosts().Kill("host-2");
  cluster_.hosts().Move("host-2", address);
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_THAT(cluster_.Text("run"), HasSubstr("host-2 moved " + AddressOf(2) + " -> " + address));
  EXPECT_THAT(cluster_.Text("run"), testing::Not(HasSubstr("host-1 moved ")));
  EXPECT_EQ(Result()["parameters_crc32c"], expected) << cluster_.Text("run");
}

TEST_F(ClusterClones, OneMachineUnderTwoNamesIsRefused) {
  const CommandResult run = RunJob(ScriptJob("twins", "true"));
  EXPECT_EQ(run.exit_code, 69) << run.stderr_text;
  EXPECT_THAT(run.stderr_text, HasSubstr("are one machine: both have the host key SHA256:"));
  EXPECT_THAT(run.stderr_text, HasSubstr("nothing was started"));
}

TEST_P(ClusterMovesOfOneOnANetwork, AHostThatFallsSilentIsFoundByItsKey) {
  const Json expected = UndisturbedChecksum();
  AddSearch();
  const int host = GetParam();
  const std::string name = "host-" + std::to_string(host);
  Process run = StartJob(TrainingJob("silent"), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  const std::string address = cluster_.hosts().FreeAddress(host);
  cluster_.hosts().Move(name, address);
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_THAT(cluster_.Text("run"), HasSubstr(name + " moved " + AddressOf(host) + " -> " + address));
  EXPECT_THAT(cluster_.Text("run"), HasSubstr(", 0 steps lost\n"));
  // Where it was is not tried again.
  const std::string text = cluster_.Text("run");
  EXPECT_THAT(text.substr(text.find(" may be at ")),
              testing::Not(HasSubstr(" no answer before the deadline")));
  ExpectNoRestarts("silent");
  EXPECT_EQ(Result()["parameters_crc32c"], expected) << cluster_.Text("run");
  EXPECT_EQ(Result()["steps"], kSteps);
}

TEST_F(ClusterMovesOnANetwork, ANameThatResolvesToAnotherAddressIsFollowed) {
  NameHosts({3});
  const Json expected = UndisturbedChecksum();
  Process run = StartJob(TrainingJob("named"), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  const std::string address = MoveNamed(3);
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_THAT(cluster_.Text("run"), HasSubstr("host-3 moved " + AddressOf(3) + " -> " + address));
  EXPECT_EQ(Result()["parameters_crc32c"], expected) << cluster_.Text("run");
}

// By names or by keys: nobody edits anything.
TEST_F(ClusterMovesOnANetwork, AnAsynchronousJobFollowsNames) {
  NameHosts({1, 3});
  ExpectThatAnAsynchronousJobFollows([this](int host) { MoveNamed(host); });
}

TEST_F(ClusterMovesOnANetwork, AnAllReduceFollowsNames) {
  NameHosts({1, 3});
  ExpectThatAnAllReduceFollows([this](int host) { MoveNamed(host); });
}

TEST_F(ClusterMovesOnANetwork, AnAsynchronousJobFindsKeys) {
  AddSearch();
  ExpectThatAnAsynchronousJobFollows([this](int host) { MoveSilently(host); });
}

TEST_F(ClusterMovesOnANetwork, AnAllReduceFindsKeys) {
  AddSearch();
  ExpectThatAnAllReduceFollows([this](int host) { MoveSilently(host); });
}

TEST_F(ClusterMovesOnANetwork, AnAddressThatADiscoveryCommandSaysIsFollowed) {
  const std::string found = cluster_.hosts().folder() + "/found";
  const auto say = [&](const std::string& address) {
    const std::string port = std::to_string(cluster_.hosts().targets()[0].port);
    ASSERT_TRUE(WriteFileAtomically(found, "host-1 " + address + ":" + port + "\n").ok());
  };
  say(AddressOf(1));
  const std::string text = *ReadFile(cluster_.inventory());
  ASSERT_TRUE(
      WriteFileAtomically(cluster_.inventory(), text + "discover: {command: cat found, every: 1s}\n").ok());
  const Json expected = UndisturbedChecksum();
  Process run = StartJob(TrainingJob("discovered"), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  const std::string address = cluster_.hosts().FreeAddress(1);
  cluster_.hosts().Move("host-1", address);
  say(address);
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_THAT(cluster_.Text("run"), HasSubstr("host-1 may be at " + address + ", as the discovery command"));
  EXPECT_THAT(cluster_.Text("run"), HasSubstr("host-1 moved " + AddressOf(1) + " -> " + address));
  EXPECT_THAT(cluster_.Text("run"), HasSubstr(", 0 steps lost\n"));
  ExpectNoRestarts("discovered");
  EXPECT_EQ(Result()["parameters_crc32c"], expected) << cluster_.Text("run");
}

// Of a link in both directions, or in one.
class ClusterCuts : public ClusterMovesOnANetwork, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Directions, ClusterCuts, testing::Values("cut", "mute", "deafen"),
                         [](const auto& info) { return info.param; });

TEST_P(ClusterCuts, ALinkThatIsCutForTenSecondsMovesNothing) {
  const Json expected = UndisturbedChecksum();
  Process run = StartJob(TrainingJob("cut"), "run");
  ASSERT_TRUE(cluster_.WaitForText("run", "step 100: "));
  const auto before = WaitForTasks("cut", 3);
  cluster_.hosts().Disturb("host-3", GetParam());
  ASSERT_TRUE(cluster_.WaitForText("run", "\nlost: host-3"));
  ::sleep(10);
  cluster_.hosts().Join("host-3");
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
  EXPECT_THAT(cluster_.Text("run"), testing::Not(HasSubstr(" moved ")));
  EXPECT_EQ(Result()["parameters_crc32c"], expected) << cluster_.Text("run");
  for (const auto& [task, process] : before) EXPECT_EQ(ShowTask("cut", task)["restarts"], 0) << task;
}

}  // namespace
}  // namespace muster
