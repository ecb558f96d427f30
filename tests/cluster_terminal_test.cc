// What muster asks whoever sits at its terminal: passphrases and passwords, through the real command.
#include <absl/strings/str_join.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <map>

#include "tests/support/checkout.h"
#include "tests/support/eventually.h"
#include "tests/support/job_processes.h"
#include "tests/support/muster_cluster.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// muster at a terminal, where a test types. The inventory's key has a passphrase.
class AtATerminal : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string key = cluster_.hosts().folder() + "/id_ed25519";
    const CommandResult locked = cluster_.Shell("ssh-keygen -q -p -P '' -N 'open sesame' -f " + key +
                                                " && mkfifo " + cluster_.Path("keys"));
    ASSERT_EQ(locked.exit_code, 0) << locked.stderr_text;
    const std::string wrapper =
        cluster_.Write("muster", "#!/bin/sh\nexec script -qefc \"" + BuildPath("bin/muster") +
                                     " $*\" /dev/null <" + cluster_.Path("keys") + "\n");
    std::filesystem::permissions(wrapper, std::filesystem::perms::owner_all);
    UseTerminal(true);
    typing_.reset(::open(cluster_.Path("keys").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(typing_.valid());
  }
  void UseTerminal(bool use) { cluster_.set_binary(use ? cluster_.Path("muster") : BuildPath("bin/muster")); }
  void Type(const std::string& text) {
    ASSERT_EQ(::write(typing_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  static int ExitCodeOf(Process& process) {
    return process.Wait(Now() + std::chrono::seconds(90)).value_or(-1);
  }

  // Two tasks that run until there is a file "go", and whoever drives them in the background.
  pid_t RunInBackground() {
    const std::string job =
        cluster_.Write("job.yaml", "name: job\nprogram: [sh, -c, 'until [ -e " + cluster_.Path("go") +
                                       " ]; do sleep 0.1; done']\nreplicas: {worker: {count: 2}}\n");
    Process run =
        cluster_.Start({"run", "-d", job, "-i", cluster_.inventory(), "--lost-timeout", "2"}, "run");
    EXPECT_TRUE(cluster_.WaitForText("run", "Passphrase of ")) << cluster_.Text("run");
    Type("open sesame\n");
    EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("run");
    return Driver();
  }
  // 0: nobody.
  pid_t Driver() const {
    const auto jobs = ListDirectory(cluster_.home() / "jobs");
    return jobs.ok()
               ? std::atoi(ReadFile(cluster_.home() / "jobs" / jobs->at(0) / "lock").value_or("").c_str())
               : 0;
  }
  // By task: where it runs, and as what.
  std::map<std::string, std::pair<std::string, pid_t>> Tasks() {
    std::map<std::string, std::pair<std::string, pid_t>> tasks;
    for (const JobProcess& process : JobProcesses(cluster_.hosts().folder())) {
      const std::string host =
          std::filesystem::path(EnvironmentOf(process.pid)["HOME"]).parent_path().filename().string();
      tasks.emplace(process.task, std::pair(host, process.pid));
    }
    return tasks;
  }

  MusterCluster cluster_{3};
  UniqueFd typing_;
};

TEST_F(AtATerminal, APassphraseIsAskedForOnceAndNotShown) {
  Process check = cluster_.Start({"check", "-i", cluster_.inventory()}, "screen");
  ASSERT_TRUE(cluster_.WaitForText("screen", "Passphrase of ")) << cluster_.Text("screen");
  Type("sesame\n");
  ASSERT_TRUE(cluster_.WaitForText("screen", "That does not open it. Passphrase of "))
      << cluster_.Text("screen");
  Type("open sesamee\x7f\n");
  EXPECT_EQ(ExitCodeOf(check), 0) << cluster_.Text("screen");
  const std::string screen = cluster_.Text("screen");
  EXPECT_THAT(screen, Not(HasSubstr("sesame")));
  EXPECT_THAT(screen.substr(screen.rfind("Passphrase of ")), HasSubstr("host-3"));
}

TEST_F(AtATerminal, APasswordIsAskedForOnceForAllHosts) {
  if (!LoopbackCluster::CanMakeNamespaces())
    GTEST_SKIP() << "a host cannot have users of its own here: needs root";
  cluster_.hosts().TakePassword("host-1", LoopbackCluster::Asks::kPassword);
  cluster_.hosts().TakePassword("host-2", LoopbackCluster::Asks::kPrompts);
  cluster_.hosts().TakePassword("host-3", LoopbackCluster::Asks::kPassword);
  std::filesystem::remove(cluster_.hosts().folder() + "/id_ed25519");
  Process check = cluster_.Start({"check", "-k", "-i", cluster_.inventory()}, "screen");
  ASSERT_TRUE(cluster_.WaitForText("screen", "Password of the accounts on hosts and jump hosts: "))
      << cluster_.Text("screen");
  Type(std::string(LoopbackCluster::kPassword) + "\n");
  EXPECT_EQ(ExitCodeOf(check), 0) << cluster_.Text("screen");
  const std::string screen = cluster_.Text("screen");
  EXPECT_THAT(screen, Not(HasSubstr(LoopbackCluster::kPassword)));
  EXPECT_THAT(screen.substr(screen.rfind("Password of ")), HasSubstr("host-3"));
}

TEST_F(AtATerminal, WhoInterruptsTheQuestionInterruptsMuster) {
  Process check = cluster_.Start({"check", "-i", cluster_.inventory()}, "screen");
  ASSERT_TRUE(cluster_.WaitForText("screen", "Passphrase of ")) << cluster_.Text("screen");
  Type("\x03");
  EXPECT_EQ(ExitCodeOf(check), 130) << cluster_.Text("screen");
}

TEST_F(AtATerminal, WhoEndsMusterDuringAQuestionGetsHisTerminalBack) {
  const std::string muster = BuildPath("bin/muster");
  cluster_.Write("muster", "#!/bin/sh\nexec script -qefc \"sh -c '" + muster + " $*; stty -a'\" /dev/null <" +
                               cluster_.Path("keys") + "\n");
  std::filesystem::permissions(cluster_.Path("muster"), std::filesystem::perms::owner_all);
  for (const int signal : {SIGTERM, SIGHUP}) {
    const std::string screen = "screen-" + std::to_string(signal);
    Process check = cluster_.Start({"check", "-i", cluster_.inventory()}, screen);
    ASSERT_TRUE(cluster_.WaitForText(screen, "Passphrase of ")) << cluster_.Text(screen);
    for (const pid_t pid : AllProcesses()) {
      const std::string line = ReadFile("/proc/" + std::to_string(pid) + "/cmdline").value_or("");
      if (line.starts_with(muster + '\0') && line.find(cluster_.inventory()) != std::string::npos) {
        ::kill(pid, signal);
      }
    }
    EXPECT_TRUE(cluster_.WaitForText(screen, "icanon")) << cluster_.Text(screen);
    (void)ExitCodeOf(check);
    EXPECT_THAT(cluster_.Text(screen), AllOf(ContainsRegex("[^-]icanon"), ContainsRegex("[^-]echo ")));
  }
}

// Also where a process in the background asks, which takes interrupts from its parent only.
TEST_F(AtATerminal, WhoInterruptsTheQuestionOfARunStartsNoJob) {
  const std::string job =
      cluster_.Write("job.yaml", "name: job\nprogram: [sleep, 600]\nreplicas: {worker: {count: 3}}\n");
  Process run = cluster_.Start({"run", "-d", job, "-i", cluster_.inventory()}, "screen");
  ASSERT_TRUE(cluster_.WaitForText("screen", "Passphrase of ")) << cluster_.Text("screen");
  Type("\x03");
  EXPECT_EQ(ExitCodeOf(run), 130) << cluster_.Text("screen");
  EXPECT_THAT(cluster_.Text("screen"), Not(HasSubstr("muster logs -f")));
}

// In the background nobody can be asked.
TEST_F(AtATerminal, WhoGoesOnWithAJobAsksBeforeItsDriverIsSentAway) {
  const pid_t driver = RunInBackground();
  const auto tasks = Tasks();
  ASSERT_EQ(tasks.size(), 2u);
  const std::vector<std::vector<std::string>> commands = {
      {"restart", "job", "worker:1"},
      {"restart", "job"},
      {"run", "-d", cluster_.Path("job.yaml"), "-i", cluster_.inventory()},
      {"run", cluster_.Path("job.yaml"), "-i", cluster_.inventory()},
      {"stop", "job"}};
  for (const std::vector<std::string>& command : commands) {
    const std::string screen = absl::StrJoin(command, "-", [](std::string* out, const std::string& word) {
      out->append(std::filesystem::path(word).filename());
    });
    Process muster = cluster_.Start(command, screen);
    ASSERT_TRUE(cluster_.WaitForText(screen, "Passphrase of ")) << cluster_.Text(screen);
    Type("\x03");
    EXPECT_EQ(ExitCodeOf(muster), 130) << cluster_.Text(screen);
    EXPECT_EQ(Driver(), driver) << cluster_.Text(screen);
  }
  UseTerminal(false);
  for (const std::string command : {"restart job worker:1", "run -d job.yaml -i $INVENTORY"}) {
    const CommandResult refused =
        cluster_.Shell("cd '" + cluster_.Path("") + "'; INVENTORY='" + cluster_.inventory() +
                       "'; setsid -w \"$MUSTER\" " + command + " </dev/null");
    EXPECT_EQ(refused.exit_code, 69) << refused.stderr_text;
    EXPECT_THAT(refused.stderr_text, ContainsRegex("job job-.* goes on as it is: host-1 \\("));
    EXPECT_EQ(Driver(), driver) << refused.stderr_text;
  }
  EXPECT_EQ(Tasks(), tasks);
  UseTerminal(true);
  Process restart = cluster_.Start({"restart", "job", "worker:1"}, "restart");
  ASSERT_TRUE(cluster_.WaitForText("restart", "Passphrase of ")) << cluster_.Text("restart");
  Type("open sesame\n");
  EXPECT_EQ(ExitCodeOf(restart), 0) << cluster_.Text("restart");
  EXPECT_NE(Driver(), driver);
  EXPECT_EQ(Tasks().at("worker:0"), tasks.at("worker:0"));
  EXPECT_NE(Tasks().at("worker:1"), tasks.at("worker:1"));
  cluster_.Write("go", "");
  UseTerminal(false);
  EXPECT_EQ(cluster_.Muster({"wait", "job"}).exit_code, 0);
}

TEST_F(AtATerminal, WhoHoldsItKeepsNobodyFromDrivingTheJob) {
  const pid_t driver = RunInBackground();
  ASSERT_EQ(::kill(driver, SIGKILL), 0);
  Process wait = cluster_.Start({"wait", "job", "--lost-timeout", "2"}, "wait");
  ASSERT_TRUE(cluster_.WaitForText("wait", "Passphrase of ")) << cluster_.Text("wait");
  Type("open sesame\n");
  ASSERT_TRUE(cluster_.WaitForText("wait", "Running")) << cluster_.Text("wait");
  Type("\x13");  // Ctrl-S
  cluster_.hosts().Kill("host-2");
  EXPECT_TRUE(Eventually([&] { return Tasks()["worker:1"].first == "host-3"; })) << cluster_.Text("wait");
  Type("\x11");  // Ctrl-Q
  cluster_.Write("go", "");
  EXPECT_EQ(ExitCodeOf(wait), 0) << cluster_.Text("wait");
}

TEST_F(AtATerminal, WithoutOneNoPasswordIsWaitedFor) {
  UseTerminal(false);
  const CommandResult check =
      cluster_.Shell("setsid -w \"$MUSTER\" check -k -i " + cluster_.inventory() + " </dev/null");
  EXPECT_EQ(check.exit_code, 2);
  EXPECT_THAT(check.stderr_text, HasSubstr("--ask-password: no answer"));
}

// It logs in again without a question when it drives the job.
TEST_F(AtATerminal, AJobInTheBackgroundKeepsWhatItWasTold) {
  const std::string job =
      cluster_.Write("job.yaml", "name: job\nprogram: [sh, -c, 'until [ -e " + cluster_.Path("go") +
                                     " ]; do sleep 0.1; done']\nreplicas: {worker: {count: 3}}\n");
  Process run = cluster_.Start({"run", "-d", job, "-i", cluster_.inventory()}, "screen");
  ASSERT_TRUE(cluster_.WaitForText("screen", "Passphrase of ")) << cluster_.Text("screen");
  Type("open sesame\n");
  EXPECT_EQ(ExitCodeOf(run), 0) << cluster_.Text("screen");
  // Its sshd and all connections go, and come back.
  cluster_.hosts().Move("host-2", cluster_.hosts().targets()[1].address);
  UseTerminal(false);
  const auto has_lost = [&] {
    return cluster_.Muster({"events", "job"}).stdout_text.find("lost") != std::string::npos;
  };
  ASSERT_TRUE(Eventually(has_lost));
  cluster_.Write("go", "");
  const CommandResult wait = cluster_.Muster({"wait", "job"});
  EXPECT_EQ(wait.exit_code, 0) << wait.stderr_text;
}

}  // namespace
}  // namespace muster
