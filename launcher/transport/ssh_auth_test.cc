// Logging in: with the keys of files, of ssh-agent, and with a password, at real sshds.
#include "launcher/transport/ssh_auth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "launcher/transport/agent_keys.h"
#include "launcher/transport/login_secrets.h"
#include "tests/support/loopback_cluster.h"
#include "tests/support/ssh_connecting.h"

namespace muster {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// In an ssh-agent's place.
UniqueFd ListenAsAgent(const std::string& socket) {
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::strncpy(address.sun_path, socket.c_str(), sizeof address.sun_path - 1);
  EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(listener.get(), 8), 0);
  return listener;
}

class SshAuthTest : public testing::Test {
 protected:
  void SetUp() override { std::signal(SIGPIPE, SIG_IGN); }

  // A new private key in a file of this name, with its public one beside it.
  std::string MakeKey(const std::string& name, const std::string& passphrase,
                      const std::string& type = "ed25519") {
    const std::string file = (folder_.path() / name).string();
    const auto made =
        RunCommand({.argv = {"ssh-keygen", "-q", "-t", type, "-N", passphrase, "-f", file}}, Soon());
    EXPECT_TRUE(made.ok() && made->exit_code == 0) << made->stderr_text;
    return file;
  }

  TemporaryDirectory folder_;
};

TEST_F(SshAuthTest, ARefusedLoginSaysWhatWasTried) {
  LoopbackCluster cluster(1);
  const std::string stranger = MakeKey("stranger", ""), locked = MakeKey("locked", "secret");
  SshTarget target = cluster.targets()[0];
  target.identities = {stranger, locked, "~/missing"};
  SshOptions options = cluster.options();
  options.home = folder_.path().string();
  const absl::Status status = ConnectStatus(target, options);
  EXPECT_EQ(ExitCodeFor(status), 69);
  EXPECT_TRUE(NeedsUser(status));
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr("host-1"), HasSubstr(stranger + ": not accepted"),
                    HasSubstr("ssh-add " + locked), HasSubstr(options.home + "/missing: No such file"),
                    HasSubstr("ssh-agent: none"), HasSubstr("ssh-copy-id")));
}

// Another key on the host would not help.
TEST_F(SshAuthTest, WhereNoKeyCouldBeOfferedTheKeyIsWhatIsWrong) {
  LoopbackCluster cluster(1);
  const std::string half = MakeKey("key", "") + ".pub";
  SshOptions options = cluster.options();
  options.home = folder_.path().string();
  SshTarget target = cluster.targets()[0];
  target.identities = {half, "/nosuch"};
  const absl::Status status = ConnectStatus(target, options);
  EXPECT_TRUE(NeedsUser(status));
  EXPECT_THAT(Message(status),
              AllOf(HasSubstr(half + ": this is the public half: name the file without .pub"),
                    HasSubstr("/nosuch: No such file"), HasSubstr("No key could be offered"),
                    Not(HasSubstr("ssh-copy-id"))));
}

// OpenSSL would ask by itself, at the terminal or, where there is none, on stderr.
TEST_F(SshAuthTest, ALockedKeyInPemFormatAsksNobody) {
  LoopbackCluster cluster(1);
  const std::string file = (folder_.path() / "pem").string();
  const auto made = RunCommand(
      {.argv = {"ssh-keygen", "-q", "-t", "rsa", "-m", "PEM", "-N", "secret", "-f", file}}, Soon());
  ASSERT_TRUE(made.ok() && made->exit_code == 0);
  SshTarget target = cluster.targets()[0];
  target.identities = {file};
  testing::internal::CaptureStderr();
  const absl::Status status = ConnectStatus(target, cluster.options());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_THAT(Message(status), HasSubstr("ssh-add " + file));
}

// Of the kinds that ssh-keygen makes.
TEST_F(SshAuthTest, AKeyWithAPassphraseLogsInOnceItIsUnlocked) {
  LoopbackCluster cluster(1);
  for (const std::string type : {"ed25519", "ecdsa", "rsa"}) {
    const std::string file = MakeKey(type, "open sesame", type);
    std::ofstream(cluster.folder() + "/authorized_keys", std::ios::app) << *ReadFile(file + ".pub");
    std::vector<std::string> answers = {"sesame", "open sesame"}, questions;
    const auto keys = std::make_shared<LoginSecrets>([&](const std::string& question) {
      questions.push_back(question);
      return answers.size() < questions.size() ? std::nullopt : std::optional(answers[questions.size() - 1]);
    });
    SshTarget target = cluster.targets()[0];
    target.identities = {file};
    SshOptions options = cluster.options();
    options.secrets = keys;
    EXPECT_TRUE(NeedsUser(ConnectStatus(target, options))) << type;
    for (int i = 0; i < 2; ++i) keys->Unlock(file, "");
    EXPECT_EQ(questions.size(), 2u);
    EXPECT_EQ(questions[0], "Passphrase of " + file + ": ");
    EXPECT_THAT(questions[1], HasSubstr("does not open it"));
    const absl::Status status = ConnectStatus(target, options);
    EXPECT_TRUE(status.ok()) << type << ": " << status;
  }
}

TEST_F(SshAuthTest, NobodyIsAskedForNothingOrForever) {
  LoopbackCluster cluster(1);
  int questions = 0;
  LoginSecrets keys([&](const std::string&) {
    ++questions;
    return std::optional<std::string>("wrong");
  });
  const std::string locked = MakeKey("locked", "secret");
  ASSERT_TRUE(WriteFileAtomically(folder_.path() / "nonsense", "no key\n").ok());
  for (const std::string& path : {cluster.targets()[0].identities[0], (folder_.path() / "nonsense").string(),
                                  (folder_.path() / "missing").string()}) {
    keys.Unlock(path, "");
    EXPECT_EQ(questions, 0) << path;
    EXPECT_EQ(keys.Find(path), nullptr) << path;
  }
  keys.Unlock(locked, "/no/such/agent");
  EXPECT_EQ(questions, 3);
  EXPECT_EQ(keys.Find(locked), nullptr);
}

class SshPasswordTest : public SshAuthTest, public testing::WithParamInterface<LoopbackCluster::Asks> {
 protected:
  void SetUp() override {
    SshAuthTest::SetUp();
    if (!LoopbackCluster::CanMakeNamespaces())
      GTEST_SKIP() << "a host cannot have users of its own here: needs root";
    cluster_.emplace(2);
    cluster_->TakePassword("host-1", GetParam());
  }

  // Without a key.
  SshTarget Host1() const {
    SshTarget target = cluster_->targets()[0];
    target.identities.clear();
    return target;
  }
  absl::Status LogIn(const std::optional<std::string>& password) { return LogIn(Host1(), password); }
  absl::Status LogIn(const SshTarget& target, const std::optional<std::string>& password) {
    SshOptions options = cluster_->options();
    options.home = folder_.path().string();
    options.secrets = std::make_shared<LoginSecrets>(
        [](const std::string&) -> std::optional<std::string> { return std::nullopt; }, password);
    return ConnectStatus(target, options);
  }

  std::optional<LoopbackCluster> cluster_;
};

TEST_P(SshPasswordTest, LogsInWhereNoKeyDoes) {
  const absl::Status status = LogIn(LoopbackCluster::kPassword);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_P(SshPasswordTest, AWrongOneIsRefusedAndNotTold) {
  const absl::Status status = LogIn("open barley");
  EXPECT_EQ(ExitCodeFor(status), 69);
  EXPECT_TRUE(NeedsUser(status));
  EXPECT_THAT(Message(status), AllOf(HasSubstr("\n  the password: not accepted by the host"),
                                     Not(HasSubstr("barley")), Not(HasSubstr("--ask-password"))));
}

TEST_P(SshPasswordTest, WhoHasNoneIsToldThatTheHostTakesOne) {
  const absl::Status status = LogIn(std::nullopt);
  EXPECT_TRUE(NeedsUser(status));
  EXPECT_THAT(Message(status), HasSubstr("(or give its password: --ask-password)"));
}

// host-2 takes a key.
TEST_P(SshPasswordTest, SoDoesAJumpHost) {
  SshTarget behind = cluster_->targets()[1];
  behind.jumps = {Host1()};
  const absl::Status status = LogIn(behind, LoopbackCluster::kPassword);
  EXPECT_TRUE(status.ok()) << status;
  const absl::Status refused = LogIn(behind, "open barley");
  EXPECT_TRUE(NeedsUser(refused));
  EXPECT_THAT(Message(refused), AllOf(HasSubstr("host-1"), HasSubstr("\n  the password: not accepted")));
  EXPECT_THAT(Message(LogIn(behind, std::nullopt)), HasSubstr("(or give its password: --ask-password)"));
}

INSTANTIATE_TEST_SUITE_P(Asked, SshPasswordTest,
                         testing::Values(LoopbackCluster::Asks::kPassword, LoopbackCluster::Asks::kPrompts),
                         [](const auto& info) {
                           return info.param == LoopbackCluster::Asks::kPassword ? "ForIt" : "ByPam";
                         });

TEST_F(SshAuthTest, DefaultIdentitiesAreTriedLastOrNotAtAll) {
  LoopbackCluster cluster(1);
  SshTarget target = cluster.targets()[0];
  const std::string identity = target.identities[0];
  target.identities.clear();
  SshOptions options = cluster.options();
  options.home = folder_.path().string();
  EXPECT_TRUE(NeedsUser(ConnectStatus(target, options)));
  std::filesystem::create_directory(folder_.path() / ".ssh");
  ASSERT_TRUE(WriteFileAtomically(folder_.path() / ".ssh/id_ed25519", *ReadFile(identity), 0600).ok());
  const absl::Status status = ConnectStatus(target, options);
  EXPECT_TRUE(status.ok()) << status;
  target.identities = {"none"};
  EXPECT_TRUE(NeedsUser(ConnectStatus(target, options)));
}

class SshAgentTest : public SshAuthTest {
 protected:
  SshAgentTest() {
    const UniqueFd silence(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    auto agent = Process::Spawn({.argv = {"ssh-agent", "-D", "-a", socket_}, .stdout_fd = silence.get()});
    EXPECT_TRUE(agent.ok()) << agent.status();
    if (agent.ok()) agent_.emplace(*std::move(agent));
  }

  void Add(const std::string& file) {
    // ssh-add fails until the agent listens.
    const TimePoint deadline = Soon();
    int exit_code = -1;
    while (exit_code != 0 && Now() < deadline) {
      const auto added = RunCommand(
          {.argv = {"ssh-add", "-q", file}, .environment = {{"SSH_AUTH_SOCK=" + socket_, "PATH=/usr/bin"}}},
          deadline);
      ASSERT_TRUE(added.ok()) << added.status();
      exit_code = added->exit_code;
    }
    ASSERT_EQ(exit_code, 0);
  }
  static void Lock(const std::string& file) {
    const auto locked =
        RunCommand({.argv = {"ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", file}}, Soon());
    ASSERT_TRUE(locked.ok() && locked->exit_code == 0);
  }

  const std::string socket_ = (folder_.path() / "agent").string();
  std::optional<Process> agent_;
};

// After six an sshd hangs up, as it is installed.
TEST_F(SshAgentTest, TheKeyThatIsNamedIsTheFirstThatItIsAskedFor) {
  LoopbackCluster cluster(1);
  SshTarget target = cluster.targets()[0];
  for (int i = 0; i < 8; ++i) Add(MakeKey("other-" + std::to_string(i), ""));
  Add(target.identities[0]);
  Lock(target.identities[0]);
  SshOptions options = cluster.options();
  options.home = folder_.path().string();
  options.agent_socket = socket_;
  const std::string key = target.identities[0];
  for (const std::string& name : {key, key + ".pub"}) {
    target.identities = {name};
    const absl::Status status = ConnectStatus(target, options);
    EXPECT_TRUE(status.ok()) << name << ": " << status;
  }
  const auto count = [] {
    return ListDirectory("/proc/self/fd").value_or(std::vector<std::string>()).size();
  };
  const size_t before = count();
  EXPECT_TRUE(ConnectStatus(target, options).ok());
  target.identities.clear();
  EXPECT_THAT(Message(ConnectStatus(target, options)), HasSubstr("Too many authentication failures"));
  EXPECT_EQ(count(), before);
}

TEST_F(SshAgentTest, ItsKeysWork) {
  LoopbackCluster cluster(1);
  SshTarget target = cluster.targets()[0];
  Add(target.identities[0]);
  Lock(target.identities[0]);  // nobody has to know its passphrase then
  LoginSecrets keys([](const std::string& question) -> std::optional<std::string> {
    ADD_FAILURE() << question;
    return std::nullopt;
  });
  keys.Unlock(target.identities[0], socket_);
  target.identities.clear();
  SshOptions options = cluster.options();
  options.home = folder_.path().string();
  options.agent_socket = socket_;
  const absl::Status status = ConnectStatus(target, options);
  EXPECT_TRUE(status.ok()) << status;
}

// Keys that are cut off, fewer than it says, another answer, a message of no length, and one of too many
// bytes.
TEST_F(SshAuthTest, WhatAnAgentSaysThatIsNoListOfKeysDoesNoHarm) {
  LoopbackCluster cluster(1);
  const std::string socket = (folder_.path() / "agent").string();
  const UniqueFd listener = ListenAsAgent(socket);
  SshTarget target = cluster.targets()[0];
  const std::string blob = PublicBlobOf(target.identities[0]);
  ASSERT_NE(blob, "");
  target.identities = {target.identities[0] + ".pub"};
  SshOptions options = cluster.options();
  options.home = folder_.path().string();
  options.agent_socket = socket;
  for (const std::string& answer :
       {std::string("\0\0\0\x09\x0c\0\0\0\x01\0\0\xff\xff", 13),
        std::string("\0\0\0\x05\x0c\xff\xff\xff\xff", 9), std::string("\0\0\0\x01\x05", 5),
        std::string("\0\0\0\0", 4), std::string("\xff\xff\xff\xff", 4)}) {
    std::jthread agent([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        pollfd comes{.fd = listener.get(), .events = POLLIN, .revents = 0};
        if (::poll(&comes, 1, 20) <= 0) continue;
        const UniqueFd asked(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        char question[5];
        if (::recv(asked.get(), question, sizeof question, MSG_WAITALL) > 0)
          (void)WriteAll(asked.get(), answer);
      }
    });
    EXPECT_FALSE(AgentHas(socket, blob));
    EXPECT_TRUE(NeedsUser(ConnectStatus(target, options)));
  }
}

TEST_F(SshAuthTest, AnAgentThatDoesNotAnswerEndsByTheDeadline) {
  LoopbackCluster cluster(1);
  const std::string socket = (folder_.path() / "agent").string();
  const UniqueFd listener = ListenAsAgent(socket);
  SshTarget target = cluster.targets()[0];
  target.identities.clear();
  SshOptions options = cluster.options();
  options.agent_socket = socket;
  const absl::Status status = ConnectStatus(target, options, Now() + seconds(2));
  EXPECT_EQ(ExitCodeFor(status), 69);
  EXPECT_THAT(Message(status), HasSubstr("ssh-agent: no answer"));
}

}  // namespace
}  // namespace muster
