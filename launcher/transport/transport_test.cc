// What every transport must do, run against a real sshd, through a connection to one that is lent, and
// against this machine without SSH, in its own network namespace and in another one.
#include "launcher/transport/transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "base/random.h"
#include "base/sha256.h"
#include "base/wake.h"
#include "launcher/network_namespaces.h"
#include "launcher/transport/local_transport.h"
#include "launcher/transport/shared_transport.h"
#include "launcher/transport/ssh_transport.h"
#include "tests/support/eventually.h"
#include "tests/support/lender.h"
#include "tests/support/loopback_cluster.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

TimePoint Soon() { return Now() + seconds(60); }

std::string RandomBytes(size_t size) {
  std::string bytes(size, '\0');
  RandomStream random(1);
  for (size_t i = 0; i + 8 <= size; i += 8) {
    const uint64_t word = random.Next();
    bytes.replace(i, 8, reinterpret_cast<const char*>(&word), 8);
  }
  return bytes;
}

class TransportTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::signal(SIGPIPE, SIG_IGN);
    if (GetParam() == "Local") {
      home_ = folder_.path().string();
      transport_ = MakeLocalTransport({.name = "here", .home = home_});
      return;
    }
    if (GetParam() == "Namespace") return StartInANamespace();
    cluster_ = std::make_unique<LoopbackCluster>(1);
    ASSERT_EQ(cluster_->targets().size(), 1u);
    home_ = cluster_->HomeOf("host-1");
    auto connected = SshTransport::Connect(cluster_->targets()[0], cluster_->options(), Soon());
    ASSERT_TRUE(connected.ok()) << connected.status();
    transport_ = *std::move(connected);
    if (GetParam() != "Shared") return;
    const std::filesystem::path socket = folder_.path() / "connections";
    lender_ = std::make_unique<Lender>(std::move(transport_), socket);
    transport_ = MakeSharedTransport({.host = "host-1"}, {socket}, nullptr);
  }

  void StartInANamespace() {
    if (const absl::Status may = CheckMayMakeNamespaces(); !may.ok()) GTEST_SKIP() << may.message();
    const auto owner = Owner::ThisProcess();
    ASSERT_TRUE(owner.ok()) << owner.status();
    auto made = NetworkNamespace::Create(NamePrefix(*owner) + "transport");
    ASSERT_TRUE(made.ok()) << made.status();
    network_.emplace(*std::move(made));
    home_ = folder_.path().string();
    transport_ =
        MakeLocalTransport({.name = "there", .home = home_, .command_prefix = network_->command_prefix()});
  }

  HostCommandResult Run(const std::string& command, std::string_view input = "") {
    auto result = RunOnHost(*transport_, command, input, Soon());
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(HostCommandResult{.exit_code = -1});
  }

  std::unique_ptr<CommandChannel> Start(const std::string& command) {
    auto channel = transport_->Start(command, Soon());
    EXPECT_TRUE(channel.ok()) << channel.status();
    return channel.ok() ? *std::move(channel) : nullptr;
  }

  std::string ReadText(CommandChannel& channel, size_t size) {
    std::string text;
    while (text.size() < size) {
      char buffer[4096];
      const auto n = transport_->Read(channel, {buffer, std::min(sizeof buffer, size - text.size())}, Soon());
      EXPECT_TRUE(n.ok()) << n.status();
      if (!n.ok() || *n == 0) break;
      text.append(buffer, *n);
    }
    return text;
  }

  TemporaryDirectory folder_;
  std::unique_ptr<LoopbackCluster> cluster_;
  std::optional<NetworkNamespace> network_;
  std::string home_;
  std::unique_ptr<Lender> lender_;
  std::unique_ptr<Transport> transport_;
};

TEST_P(TransportTest, ReportsOutputErrorsAndExitCode) {
  const HostCommandResult result = Run("echo out; echo err >&2; exit 7");
  EXPECT_EQ(result.stdout_text, "out\n");
  EXPECT_EQ(result.stderr_tail, "err\n");
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(Run("exit 0").exit_code, 0);
  EXPECT_EQ(Run("exit 255").exit_code, 255);
  EXPECT_EQ(Run("/no/such/program").exit_code, 127);
}

TEST_P(TransportTest, ReportsTheSignalThatEndedTheCommand) {
  EXPECT_EQ(Run("kill -KILL $$").exit_code, 128 + SIGKILL);
  EXPECT_EQ(Run("kill -TERM $$").exit_code, 128 + SIGTERM);
}

TEST_P(TransportTest, RunsInTheHomeItWasGiven) { EXPECT_EQ(Run("echo \"$HOME\"").stdout_text, home_ + "\n"); }

TEST_P(TransportTest, PassesShellSyntaxThrough) {
  EXPECT_EQ(Run("x='a \"b\" \\ !c'; for i in 1 2; do printf '%s|' \"$x$i\"; done").stdout_text,
            "a \"b\" \\ !c1|a \"b\" \\ !c2|");
}

TEST_P(TransportTest, SendsAndReceivesAtTheSameTime) {
  const std::string bytes = RandomBytes(8 << 20);
  const HostCommandResult result = Run("cat", bytes);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(Sha256Hex(result.stdout_text), Sha256Hex(bytes));
}

TEST_P(TransportTest, UploadsArriveWhole) {
  const std::string bytes = RandomBytes(64 << 20);
  EXPECT_THAT(Run("sha256sum", bytes).stdout_text, HasSubstr(Sha256Hex(bytes)));
}

TEST_P(TransportTest, InputThatTheCommandDoesNotWantIsNoError) {
  const std::string bytes = RandomBytes(8 << 20);
  EXPECT_EQ(Run("exit 3", bytes).exit_code, 3);
  const HostCommandResult result = Run("exec <&-; echo done", bytes);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.stdout_text, "done\n");
}

TEST_P(TransportTest, MuchOnStderrNeitherStallsNorGrows) {
  const HostCommandResult result = Run("yes error | head -n 700000 >&2; echo last >&2; echo done");
  EXPECT_EQ(result.stdout_text, "done\n");
  EXPECT_TRUE(result.stderr_tail.ends_with("error\nlast\n"));
  EXPECT_LE(result.stderr_tail.size(), 8192u);
}

TEST_P(TransportTest, AllOfStderrCanBeHadAsItComes) {
  const auto take = [](std::string_view) { return absl::OkStatus(); };
  std::string errors;
  auto result = RunOnHost(*transport_, "head -c 3000000 /dev/zero | tr '\\0' x >&2; printf y >&2; exit 3", "",
                          Soon(), take, [&](std::string_view bytes) {
                            errors += bytes;
                            return absl::OkStatus();
                          });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->exit_code, 3);
  EXPECT_TRUE(errors == std::string(3000000, 'x') + "y") << errors.size();
  // While the command prints nothing else.
  result = RunOnHost(*transport_, "echo now >&2; until [ -e ~/seen ]; do sleep 0.02; done", "", Soon(), take,
                     [&](std::string_view) {
                       std::ofstream(home_ + "/seen").flush();
                       return absl::OkStatus();
                     });
  EXPECT_TRUE(result.ok()) << result.status();
  result = RunOnHost(*transport_, "yes >&2", "", Soon(), take,
                     [](std::string_view) { return absl::CancelledError("enough"); });
  EXPECT_TRUE(absl::IsCancelled(result.status())) << result.status();
}

TEST_P(TransportTest, WhatNeverStopsTalkingEndsByItsDeadline) {
  for (const char* command : {"yes", "yes >&2", "yes >&2 & exec yes"}) {
    const auto result = RunOnHost(*transport_, command, "", Now() + seconds(1),
                                  [](std::string_view) { return absl::OkStatus(); });
    EXPECT_TRUE(absl::IsDeadlineExceeded(result.status())) << command << ": " << result.status();
  }
  for (const char* command : {"yes", "yes >&2"}) {
    auto channel = Start(command);
    EXPECT_TRUE(absl::IsDeadlineExceeded(transport_->Wait(*channel, Now() + milliseconds(500)).status()));
  }
  auto channel = Start("yes >&2");
  char buffer[16];
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(transport_->Read(*channel, buffer, Now() + milliseconds(500)).status()));
}

TEST_P(TransportTest, ACommandIsGivenUpWhoseResultNobodyWants) {
  Wake cancel;
  const std::jthread later([&] {
    EXPECT_TRUE(Eventually([&] { return std::filesystem::exists(home_ + "/begun"); }));
    cancel.Set();
  });
  for (const char* command : {"touch ~/begun; until [ -e ~/end ]; do sleep 0.02; done", "yes"}) {
    const auto result = RunOnHost(*transport_, command, "", Soon(), size_t{1} << 40, cancel.fd());
    EXPECT_TRUE(absl::IsCancelled(result.status())) << result.status();
  }
  std::ofstream(home_ + "/end").flush();
}

TEST_P(TransportTest, OutputIsBounded) {
  const auto result = RunOnHost(*transport_, "yes", "", Soon(), 1 << 20);
  EXPECT_TRUE(absl::IsUnavailable(result.status())) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr(transport_->host()));
}

TEST_P(TransportTest, WaitThrowsOutputAwayAndIsBounded) {
  auto channel = Start("head -c 4000000 /dev/zero; cat; exit 5");
  EXPECT_TRUE(absl::IsDeadlineExceeded(transport_->Wait(*channel, Now() + milliseconds(300)).status()));
  ASSERT_TRUE(channel->CloseInput().ok());
  const auto code = transport_->Wait(*channel, Soon());
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 5);
}

// sshd tells the exit code as soon as it knows it, before what it has yet to read from the command's pipes.
TEST_P(TransportTest, WaitTakesInWhatComesAfterTheExitCode) {
  auto channel =
      Start("for i in $(seq 600); do [ -e ~/go ] && break; sleep 0.1; done && echo why >&2 & exit 5");
  if (GetParam() != "Shared") {  // which tells it last
    const PollItem item{.channel = channel.get(), .exit = true};
    ASSERT_TRUE(transport_->Poll({&item, 1}, -1, Soon()).ok());
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(transport_->Wait(*channel, Now() + milliseconds(200)).status()));
  std::ofstream(home_ + "/go").flush();
  EXPECT_EQ(transport_->Wait(*channel, Soon()).value_or(-1), 5);
  EXPECT_EQ(channel->StderrTail(), "why\n");
}

TEST_P(TransportTest, ReadAndWriteEndByTheirDeadline) {
  auto channel = Start("while [ ! -e go ]; do sleep 0.05; done");
  char buffer[16];
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(transport_->Read(*channel, buffer, Now() + milliseconds(200)).status()));
  // More than any window or pipe takes for a command that does not read.
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      transport_->Write(*channel, RandomBytes(16 << 20), Now() + milliseconds(500))));
}

TEST_P(TransportTest, AConversationGoesBothWays) {
  auto channel = Start("while read -r line; do echo \"got $line\"; done; echo bye");
  for (const char* word : {"one", "two", "three"}) {
    ASSERT_TRUE(transport_->Write(*channel, std::string(word) + "\n", Soon()).ok());
    const std::string expected = std::string("got ") + word + "\n";
    EXPECT_EQ(ReadText(*channel, expected.size()), expected);
  }
  ASSERT_TRUE(channel->CloseInput().ok());
  EXPECT_EQ(ReadText(*channel, 100), "bye\n");
  EXPECT_TRUE(channel->end_of_output());
  EXPECT_EQ(transport_->Wait(*channel, Soon()).value_or(-1), 0);
}

TEST_P(TransportTest, AnotherThreadWakesAPoll) {
  auto channel = Start("cat");
  const UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const PollItem item{.channel = channel.get(), .read = true, .exit = true};
  EXPECT_TRUE(absl::IsDeadlineExceeded(transport_->Poll({&item, 1}, wake.get(), Now() + milliseconds(50))));
  std::jthread other([&] {
    const uint64_t one = 1;
    ASSERT_EQ(::write(wake.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  });
  EXPECT_TRUE(transport_->Poll({&item, 1}, wake.get(), Soon()).ok());
  EXPECT_TRUE(transport_->Poll({}, wake.get(), Soon()).ok());
}

// The launcher's whole use of a connection: a bridge that stays answerable while a second channel uploads.
TEST_P(TransportTest, AnUploadLeavesRoomForAConversation) {
  const std::string bytes = RandomBytes(32 << 20);
  auto bridge = Start("while read -r line; do echo \"got $line\"; done");
  auto upload = Start("sha256sum");
  // Both run.
  ASSERT_TRUE(transport_->Write(*bridge, "x\n", Soon()).ok());
  ASSERT_EQ(ReadText(*bridge, 6), "got x\n");
  std::string_view remaining = bytes;
  std::string answers;
  int asked = 0, answered = 0;
  ASSERT_TRUE(transport_->Write(*bridge, "x\n", Soon()).ok());
  ++asked;
  while (!remaining.empty()) {
    const PollItem items[] = {{.channel = bridge.get(), .read = true},
                              {.channel = upload.get(), .write = true}};
    const absl::Status polled = transport_->Poll(items, -1, Soon());
    ASSERT_TRUE(polled.ok()) << polled;
    const auto taken = upload->TryWrite(remaining);
    ASSERT_TRUE(taken.ok()) << taken.status();
    remaining.remove_prefix(*taken);
    char buffer[256];
    const auto n = bridge->TryRead(buffer);
    ASSERT_TRUE(n.ok()) << n.status();
    answers.append(buffer, *n);
    if (answers == "got x\n") {
      answers.clear();
      ++answered;
      ASSERT_TRUE(transport_->Write(*bridge, "x\n", Soon()).ok());
      ++asked;
    }
  }
  EXPECT_GT(answered, 0);
  EXPECT_LE(asked - answered, 1);
  ASSERT_TRUE(upload->CloseInput().ok());
  EXPECT_EQ(ReadText(*upload, 64), Sha256Hex(bytes));
}

INSTANTIATE_TEST_SUITE_P(All, TransportTest, testing::Values("Local", "Namespace", "Ssh", "Shared"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace muster
