// What happens to commands that go through another process's connection, when either process, or the
// connection, does not behave. What they can do is tested with the other transports (transport_test.cc).
#include "launcher/transport/guest_commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <csignal>

#include "base/local_socket.h"
#include "launcher/transport/local_transport.h"
#include "launcher/transport/shared_transport.h"
#include "tests/support/eventually.h"
#include "tests/support/lender.h"

namespace muster {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

TimePoint Soon() { return Now() + seconds(60); }

class GuestCommandsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::signal(SIGPIPE, SIG_IGN);
    lender_ = std::make_unique<Lender>(Home("lent"), socket_);
  }

  // Its commands say in $HOME through which connection they run.
  std::unique_ptr<Transport> Home(const std::string& name) {
    const std::string home = (folder_.path() / name).string();
    std::filesystem::create_directories(home);
    return MakeLocalTransport({.name = "host-1", .home = home});
  }

  std::unique_ptr<Transport> Shared(const std::string& host = "host-1") {
    return MakeSharedTransport({.host = host}, {socket_}, [this] { return Home("own"); });
  }

  std::string HomeOfCommands(Transport& transport) {
    const auto result = RunOnHost(transport, "basename $HOME", "", Soon());
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? result->stdout_text : "";
  }

  std::unique_ptr<CommandChannel> Start(Transport& transport, const std::string& command) {
    auto channel = transport.Start(command, Soon());
    EXPECT_TRUE(channel.ok()) << channel.status();
    return channel.ok() ? *std::move(channel) : nullptr;
  }

  UniqueFd Connect() {
    auto socket = ConnectLocalAt(socket_);
    EXPECT_TRUE(socket.ok()) << socket.status();
    return socket.ok() ? *std::move(socket) : UniqueFd();
  }

  // Of the socket's other end; of kind 0 once it has hung up.
  static shared::Answer NextAnswer(const UniqueFd& socket) {
    pollfd fd{.fd = socket.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&fd, 1, 60'000), 1);
    char room[4096];
    const LocalMessage message = ReceiveLocal(socket, room);
    shared::Answer answer;
    if (message.size > 0) {
      EXPECT_TRUE(answer.ParseFromArray(room, static_cast<int>(message.size)));
    }
    return answer;
  }
  static void Say(const UniqueFd& socket, const shared::Request& request) {
    EXPECT_EQ(SendLocal(socket, request.SerializeAsString()), 0);
  }
  static shared::Request Open(uint32_t version = kSharedConnectionVersion) {
    shared::Request request;
    request.mutable_open()->set_version(version);
    request.mutable_open()->set_host("host-1");
    return request;
  }

  void ExpectCount(int count) {
    EXPECT_TRUE(Eventually([&] { return lender_->count() == count; })) << lender_->count();
  }

  TemporaryDirectory folder_;
  const std::filesystem::path socket_ = folder_.path() / "connections";
  std::unique_ptr<Lender> lender_;
};

TEST_F(GuestCommandsTest, WhatNobodyLendsIsOnesOwn) {
  EXPECT_EQ(HomeOfCommands(*Shared()), "lent\n");
  EXPECT_EQ(HomeOfCommands(*Shared("host-2")), "own\n");
  EXPECT_EQ(ListenedAt({socket_, folder_.path() / "none"}), std::vector{socket_});
  lender_ = nullptr;
  EXPECT_FALSE(std::filesystem::exists(socket_));
  EXPECT_EQ(HomeOfCommands(*Shared()), "own\n");
  const auto nowhere = MakeSharedTransport({.host = "host-1"}, {socket_}, nullptr)->Start("true", Soon());
  EXPECT_TRUE(absl::IsUnavailable(nowhere.status())) << nowhere.status();
}

// Whose path is longer than the address of a socket can be.
TEST_F(GuestCommandsTest, AJobFolderMayBeDeep) {
  const std::filesystem::path deep = folder_.path() / std::string(150, 'd');
  std::filesystem::create_directories(deep);
  const Lender lender(Home("deep"), deep / "connections");
  const auto transport = MakeSharedTransport({.host = "host-1"}, {deep / "connections"}, nullptr);
  EXPECT_EQ(HomeOfCommands(*transport), "deep\n");
}

// sshd has room for ten channels, and the job comes first.
TEST_F(GuestCommandsTest, ThereIsRoomForAFewAtATime) {
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::unique_ptr<CommandChannel>> channels;
  for (int i = 0; i < 4; ++i) {
    transports.push_back(Shared());
    channels.push_back(Start(*transports.back(), "exec cat"));
  }
  EXPECT_EQ(lender_->count(), 4);
  EXPECT_EQ(HomeOfCommands(*Shared()), "own\n");
  // Who hangs up makes room.
  channels.pop_back();
  ExpectCount(3);
  EXPECT_EQ(HomeOfCommands(*Shared()), "lent\n");
  channels.clear();
  ExpectCount(0);
}

TEST_F(GuestCommandsTest, WhoeverLosesTheLenderIsTold) {
  const auto transport = Shared();
  const auto channel = Start(*transport, "echo begun; exec sleep 600");
  char buffer[64];
  ASSERT_EQ(transport->Read(*channel, buffer, Soon()).value_or(0), 6u);
  lender_ = nullptr;
  const auto code = transport->Wait(*channel, Soon());
  EXPECT_TRUE(absl::IsUnavailable(code.status())) << code.status();
  EXPECT_THAT(std::string(code.status().message()), HasSubstr("host-1: the muster whose connection it was"));
}

// What is lost with the connection is said before the process ends.
TEST_F(GuestCommandsTest, WhoeverLosesTheConnectionIsTold) {
  const auto lent = Home("lost");
  std::atomic<int> count = 0;
  GuestCommands guests(*lent, count);
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd mine(ends[0]);
  guests.Add({.socket = UniqueFd(ends[1]), .wanted = Open().open()});
  guests.Pump();
  EXPECT_TRUE(NextAnswer(mine).ready());
  EXPECT_EQ(count, 1);
  guests.End(Unavailable("host-1 has fallen silent"));
  EXPECT_EQ(NextAnswer(mine).end().error(), "host-1 has fallen silent");
  EXPECT_EQ(NextAnswer(mine).kind_case(), shared::Answer::KIND_NOT_SET);
  EXPECT_EQ(count, 0);
  EXPECT_TRUE(guests.empty());
}

TEST_F(GuestCommandsTest, ACommandOutlivesWhatItsConnectionWasMadeFor) {
  const auto transport = Shared();
  const auto channel = Start(*transport, "while read -r line; do echo \"got $line\"; done; exit 7");
  lender_->Leave();
  EXPECT_EQ(HomeOfCommands(*Shared()), "own\n");
  EXPECT_EQ(lender_->count(), 1);
  ASSERT_TRUE(transport->Write(*channel, "still\n", Soon()).ok());
  char buffer[64];
  const auto n = transport->Read(*channel, buffer, Soon());
  EXPECT_EQ(std::string(buffer, n.value_or(0)), "got still\n");
  ASSERT_TRUE(channel->CloseInput().ok());
  EXPECT_EQ(transport->Wait(*channel, Soon()).value_or(-1), 7);
  ExpectCount(0);
}

TEST_F(GuestCommandsTest, WhatIsNoRequestEndsThatConversationOnly) {
  const UniqueFd noise = Connect(), early = Connect(), twice = Connect(), old = Connect(), lines = Connect();
  EXPECT_EQ(SendLocal(noise, std::string("\xff\xff\xff")), 0);
  EXPECT_EQ(NextAnswer(noise).kind_case(), shared::Answer::KIND_NOT_SET);

  shared::Request command;
  command.set_command("exec sleep 600");
  Say(early, command);
  EXPECT_EQ(NextAnswer(early).kind_case(), shared::Answer::KIND_NOT_SET);

  Say(twice, Open());
  EXPECT_TRUE(NextAnswer(twice).ready());
  Say(twice, command);
  EXPECT_TRUE(NextAnswer(twice).started());
  Say(twice, command);
  EXPECT_EQ(NextAnswer(twice).kind_case(), shared::Answer::KIND_NOT_SET);

  Say(old, Open(kSharedConnectionVersion + 1));
  EXPECT_THAT(NextAnswer(old).refused(), HasSubstr("another version"));

  // No shell could be given that (shell_quote.h), and nobody is to be brought down by it.
  const UniqueFd returns = Connect();
  Say(returns, Open());
  EXPECT_TRUE(NextAnswer(returns).ready());
  command.set_command("true\rfalse");
  Say(returns, command);
  EXPECT_THAT(NextAnswer(returns).refused(), HasSubstr("a line break"));
  Say(lines, Open());
  EXPECT_TRUE(NextAnswer(lines).ready());
  command.set_command("true\nfalse");
  Say(lines, command);
  EXPECT_THAT(NextAnswer(lines).refused(), HasSubstr("a line break"));

  EXPECT_EQ(HomeOfCommands(*Shared()), "lent\n");
  ExpectCount(0);
}

}  // namespace
}  // namespace muster
