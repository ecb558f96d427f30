// What muster asks whoever sits at its terminal: passphrases and passwords, through the real command.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "tests/support/checkout.h"
#include "tests/support/eventually.h"
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
    cluster_.set_binary(wrapper);
    typing_.reset(::open(cluster_.Path("keys").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(typing_.valid());
  }
  void Type(const std::string& text) {
    ASSERT_EQ(::write(typing_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  static int ExitCodeOf(Process& process) {
    return process.Wait(Now() + std::chrono::seconds(90)).value_or(-1);
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

TEST_F(AtATerminal, WithoutOneNoPasswordIsWaitedFor) {
  cluster_.set_binary(BuildPath("bin/muster"));
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
  cluster_.set_binary(BuildPath("bin/muster"));
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
