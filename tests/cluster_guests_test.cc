// Commands that go through the connections of a job in the background: with real sshds, which say of each
// command by which connection it came.
#include "tests/support/lifecycle_fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

class ClusterGuests : public LifecycleTest {
 protected:
  using LifecycleTest::LifecycleTest;

  CommandResult Exec(const std::string& command, const std::vector<std::string>& more = {}) {
    return Muster(ExecArguments(command, more));
  }
  /// Which connection commands come by, on each host.
  std::string Connections() {
    const CommandResult result = Exec("echo $SSH_CONNECTION", {"--parallel", "1"});
    EXPECT_EQ(result.exit_code, 0) << result.stderr_text;
    return result.stdout_text;
  }

  void ExpectConnectionsAreLent() {
    const std::string lent = Connections();
    EXPECT_THAT(lent, testing::AllOf(HasSubstr("[host-1] "), HasSubstr("[host-2] "), HasSubstr("[host-3] ")));
    EXPECT_EQ(Connections(), lent);
  }

  static bool HasEnded(pid_t pid) {
    const auto stat = ReadProcessStat(pid);
    return !stat.ok() || stat->state == 'Z';
  }

  /// In the background, on each host until the test creates `go2`; returns once it runs everywhere.
  Process StartLongExec() {
    const std::string command =
        "echo begun; while [ ! -e " + Path("go2") + " ]; do sleep 0.02; done; echo ended; exit 5";
    Process exec = cluster_.Start(ExecArguments(command, {}), "exec");
    for (const char* line : {"[host-1] begun\n", "[host-2] begun\n", "[host-3] begun\n"}) {
      EXPECT_TRUE(cluster_.WaitForText("exec", line)) << cluster_.Text("exec");
    }
    return exec;
  }
  void ExpectWholeExec(Process& exec) {
    EXPECT_EQ(ExitCodeOf(exec), 5) << cluster_.Text("exec");
    for (const char* line : {"[host-1] ended\n", "[host-2] ended\n", "[host-3] ended\n"}) {
      EXPECT_THAT(cluster_.Text("exec"), HasSubstr(line));
    }
  }

  pid_t DriverOf(const std::string& job) { return Show(job)["driver"]["pid"]; }

 private:
  std::vector<std::string> ExecArguments(const std::string& command, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"exec", "-i", cluster_.inventory()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.insert(arguments.end(), {"--", command});
    return arguments;
  }
};

TEST_F(ClusterGuests, GoThroughTheConnectionsOfAJobInTheBackground) {
  EXPECT_NE(Connections(), Connections()) << "each command has its own";
  ASSERT_EQ(RunJob(ScriptJob("lends", kWaitForGo, "count: 2"), {"-d"}).exit_code, 0);
  const std::vector<std::string> two_hosts = {"--hosts", "host-1,host-2", "--parallel", "1"};
  const std::string lent = Exec("echo $SSH_CONNECTION", two_hosts).stdout_text;
  EXPECT_THAT(lent, testing::AllOf(HasSubstr("[host-1] "), HasSubstr("[host-2] ")));
  EXPECT_EQ(Exec("echo $SSH_CONNECTION", two_hosts).stdout_text, lent);
  // What an exec promises holds as ever, and host-3 has no task of the job.
  const CommandResult all = Exec("echo $HOME | grep -o 'host-[0-9]'; echo oops >&2; exit 3");
  EXPECT_EQ(all.exit_code, 3);
  for (const std::string host : {"host-1", "host-2", "host-3"}) {
    EXPECT_THAT(all.stdout_text, HasSubstr("[" + host + "] " + host + "\n"));
    EXPECT_THAT(all.stderr_text, testing::AllOf(HasSubstr("[" + host + "] oops\n"),
                                                HasSubstr(host + ": exited with code 3\n")));
  }
  EXPECT_EQ(Exec("sleep 600", {"--timeout", "0.5"}).exit_code, 124);
  const CommandResult much = Exec("seq 300000", {"-o", "json", "--hosts", "host-2"});
  EXPECT_EQ(std::string(Json::parse(much.stdout_text)[0]["stdout"]).size(), 1988895u);
  // The job has not noticed.
  EXPECT_EQ(Show("lends")["state"], "Running");
  Touch("go");
  EXPECT_EQ(Muster({"wait", "lends"}).exit_code, 0);
  EXPECT_NE(Connections(), Connections());
}

// Whose key this user does not know under that name, whatever the job has been told.
TEST_F(ClusterGuests, AreOnlyLedToHostsThatTheyKnow) {
  ASSERT_EQ(RunJob(ScriptJob("lends", kWaitForGo), {"-d"}).exit_code, 0);
  ExpectConnectionsAreLent();
  std::string keys = cluster_.hosts().Text("known_hosts");
  keys.replace(keys.find("host-1"), 6, "host-9");
  keys.replace(keys.find("host-2"), 6, "host-1");
  const CommandResult other = Exec("true", {"--known-hosts", cluster_.Write("others", keys)});
  EXPECT_EQ(other.exit_code, 69);
  EXPECT_THAT(other.stderr_text, HasSubstr("host-1 ("));
  EXPECT_THAT(other.stderr_text, HasSubstr("host-2 ("));
  EXPECT_THAT(other.stderr_text, testing::Not(HasSubstr("host-3")));
  Touch("go");
  EXPECT_EQ(Muster({"wait", "lends"}).exit_code, 0);
}

// As a login would: to where the inventory says, though the job's host has that name, and its key is known.
TEST_F(ClusterGuests, AreOnlyLedToWhereTheyWouldGo) {
  ASSERT_EQ(RunJob(ScriptJob("lends", kWaitForGo), {"-d"}).exit_code, 0);
  ExpectConnectionsAreLent();
  const std::string two = cluster_.hosts().targets()[1].address;
  std::string keys = cluster_.hosts().Text("known_hosts"), more = keys;
  more.replace(more.find("host-2"), 6, "host-1");
  const std::string clones = cluster_.Write("clones", keys + more.substr(more.rfind("host-1")));
  const std::string inventory = cluster_.Write(
      "clones.yaml", "hosts: {host-1: {ssh: \"" + two + ":" +
                         std::to_string(cluster_.hosts().targets()[1].port) + "\"}}\n" +
                         "defaults: {identity: " + cluster_.hosts().folder() + "/id_ed25519}\n");
  const CommandResult result =
      Muster({"exec", "-i", inventory, "--known-hosts", clones, "--", "echo $HOME | grep -o 'host-[0-9]'"});
  EXPECT_EQ(result.stdout_text, "[host-1] host-2\n") << result.stderr_text;
  Touch("go");
  EXPECT_EQ(Muster({"wait", "lends"}).exit_code, 0);
}

TEST_F(ClusterGuests, OutliveTheJob) {
  ASSERT_EQ(RunJob(ScriptJob("lends", kWaitForGo), {"-d"}).exit_code, 0);
  const pid_t driver = DriverOf("lends");
  Process exec = StartLongExec();
  Touch("go");
  EXPECT_EQ(Muster({"wait", "lends"}).exit_code, 0);
  EXPECT_EQ(Show("lends")["state"], "Succeeded");
  EXPECT_TRUE(Show("lends")["driver"].is_null());
  EXPECT_FALSE(HasEnded(driver)) << "it lives on for the commands";
  Touch("go2");
  ExpectWholeExec(exec);
  EXPECT_TRUE(Eventually([&] { return HasEnded(driver); }));
}

TEST_F(ClusterGuests, OutliveWhoeverDroveTheJob) {
  const std::string job = ScriptJob("lends", kWaitForGo);
  ASSERT_EQ(RunJob(job, {"-d"}).exit_code, 0);
  const pid_t first = DriverOf("lends");
  Process exec = StartLongExec();
  const auto tasks = WaitForTasks("lends", 3);
  const CommandResult again = RunJob(job, {"-d"});
  ASSERT_EQ(again.exit_code, 0) << again.stderr_text;
  EXPECT_NE(DriverOf("lends"), first);
  EXPECT_EQ(FirstProcesses("lends"), tasks);
  EXPECT_FALSE(HasEnded(first));
  // The new one lends its own, and is ended in its turn.
  ExpectConnectionsAreLent();
  const CommandResult stop = Muster({"stop", "lends"});
  EXPECT_EQ(stop.exit_code, 0) << stop.stderr_text;
  EXPECT_THAT(stop.stderr_text, HasSubstr("0 processes, 0 ports on 3 hosts"));
  Touch("go2");
  ExpectWholeExec(exec);
  EXPECT_TRUE(Eventually([&] { return HasEnded(first); }));
}

TEST_F(ClusterGuests, ADriverThatIsKilledIsSaidToHaveEnded) {
  ASSERT_EQ(RunJob(ScriptJob("lends", kWaitForGo), {"-d"}).exit_code, 0);
  Process exec = StartLongExec();
  ASSERT_EQ(::kill(DriverOf("lends"), SIGKILL), 0);
  EXPECT_EQ(ExitCodeOf(exec), 69);
  EXPECT_THAT(cluster_.Text("exec"), HasSubstr("host-2: the muster whose connection it was has ended"));
  // The socket of the dead is in nobody's way.
  EXPECT_EQ(Exec("true").exit_code, 0);
  Touch("go2");
  Touch("go");
  EXPECT_EQ(Muster({"wait", "lends"}).exit_code, 0);
}

class ClusterGuestsOnANetwork : public ClusterGuests {
 protected:
  ClusterGuestsOnANetwork() : ClusterGuests(LoopbackCluster::Network::kNamespaces) {}
};

// After three seconds it connects again, since it loses nothing by that. A command would.
TEST_F(ClusterGuestsOnANetwork, OutliveASilenceThatTheJobTakesForALoss) {
  ASSERT_EQ(RunJob(ScriptJob("lends", kWaitForGo), {"-d"}).exit_code, 0);
  ExpectConnectionsAreLent();
  Process exec = StartLongExec();
  const std::filesystem::path log = JobFolder() / "controller.log";
  const auto says = [&](const std::string& text) {
    return Eventually([&] { return ReadFile(log).value_or("").find(text) != std::string::npos; });
  };
  cluster_.hosts().Cut("host-3");
  ASSERT_TRUE(says("lost: host-3")) << ReadFile(log).value_or("");
  cluster_.hosts().Join("host-3");
  ASSERT_TRUE(says("host-3: connected")) << ReadFile(log).value_or("");
  Touch("go2");
  ExpectWholeExec(exec);
  Touch("go");
  EXPECT_EQ(Muster({"wait", "lends"}).exit_code, 0);
}

// A host that falls silent takes nothing down but what runs there.
TEST_F(ClusterGuests, LoseTheirHostAlone) {
  ASSERT_EQ(RunJob(ScriptJob("lends", kWaitForGo), {"-d"}).exit_code, 0);
  ExpectConnectionsAreLent();
  Process exec = StartLongExec();
  cluster_.hosts().Kill("host-2");
  Touch("go2");
  EXPECT_EQ(ExitCodeOf(exec), 69) << cluster_.Text("exec");
  EXPECT_THAT(cluster_.Text("exec"), HasSubstr("[host-1] ended\n"));
  EXPECT_THAT(cluster_.Text("exec"), HasSubstr("[host-3] ended\n"));
  cluster_.hosts().Start("host-2");
  EXPECT_EQ(Muster({"stop", "lends"}).exit_code, 0);
}

}  // namespace
}  // namespace muster
