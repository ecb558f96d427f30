// With shell scripts in place of the agent's program.
#include "launcher/content_transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "base/file.h"
#include "launcher/transport/local_transport.h"
#include "launcher/transport/shell_quote.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Until its input ends.
constexpr char kSaysNothing[] = "while read line; do :; done";

const ContentSource kServer{.address = "10.0.0.7", .secret = "mine", .ticket = "ours"};

TimePoint TestDeadline() { return Now() + std::chrono::seconds(60); }

class ContentTransferTest : public testing::Test {
 protected:
  ContentTransferTest() { ::signal(SIGPIPE, SIG_IGN); }

  AgentPlace Agent(const std::string& script) const {
    const std::string path = Path("agent");
    EXPECT_TRUE(WriteFileAtomically(path, "#!/bin/sh\n" + script + "\n", 0755).ok());
    return {.dir = "~", .root = "root", .program = QuoteWord(path)};
  }
  std::string Path(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string Text(const std::string& name) const { return ReadFile(Path(name)).value_or("no " + name); }

  TransferProgress Progress() {
    return [this](uint64_t bytes, uint64_t total) { progress_.emplace_back(bytes, total); };
  }
  absl::StatusOr<std::unique_ptr<ContentTransfer>> Upload(const std::string& script, const std::string& bytes,
                                                          Duration timeout = std::chrono::minutes(1)) {
    return ContentTransfer::Upload(*transport_, Agent(script), ContentOf(bytes), Progress(), timeout);
  }
  absl::StatusOr<std::unique_ptr<ContentTransfer>> Fetch(const std::string& script, const std::string& bytes,
                                                         Duration timeout = std::chrono::minutes(1)) {
    return ContentTransfer::Fetch(
        *transport_, Agent(script), ContentOf(bytes),
        {.host = "other", .address = "10.0.0.7", .port = 4711, .secret = "the secret"}, Progress(),
        Now() + timeout);
  }
  static Content ContentOf(const std::string& bytes) {
    const auto held = std::make_shared<std::pair<std::string, std::string_view>>(bytes, "");
    held->second = held->first;
    return {.sha256 = "abc", .name = "data", .bytes = {held, &held->second}};
  }

  // As a connection drives it.
  absl::Status ResultOf(const absl::StatusOr<std::unique_ptr<ContentTransfer>>& begun) {
    if (!begun.ok()) return begun.status();
    ContentTransfer& transfer = **begun;
    for (const TimePoint deadline = TestDeadline(); Now() < deadline; ++looks_) {
      transfer.Pump();
      if (transfer.result()) return *transfer.result();
      const PollItem item = transfer.poll_item();
      const absl::Status polled =
          transport_->Poll({&item, 1}, -1, std::min<TimePoint>(deadline, transfer.deadline()));
      EXPECT_TRUE(polled.ok() || absl::IsDeadlineExceeded(polled)) << polled;
    }
    return Internal("it does not end");
  }

  absl::StatusOr<uint32_t> PortOf(ContentServer& server) {
    for (const TimePoint deadline = TestDeadline(); Now() < deadline;) {
      server.Pump();
      if (const auto news = server.TakeNews()) return *news;
      const PollItem item = server.poll_item();
      (void)transport_->Poll({&item, 1}, -1, std::min<TimePoint>(deadline, server.deadline()));
    }
    return Internal("it says nothing");
  }

  TemporaryDirectory folder_;
  std::unique_ptr<Transport> transport_ =
      MakeLocalTransport({.name = "host-1", .home = folder_.path().string()});
  std::vector<std::pair<uint64_t, uint64_t>> progress_;
  int looks_ = 0;
};

TEST_F(ContentTransferTest, AnUploadBeginsWhereTheHostSaysAmongWhatALoginShellPrints) {
  const std::string script =
      "printf 'welcome\\nfrom here\\nyou have mail'; printf '\\nfrom 4\\n'; echo \"$@\" > " +
      Path("arguments") + "; cat > " + Path("came");
  EXPECT_TRUE(ResultOf(Upload(script, "0123456789")).ok());
  EXPECT_EQ(Text("came"), "456789");
  EXPECT_EQ(Text("arguments"), "receive --root root --sha256 abc --size 10\n");
  ASSERT_FALSE(progress_.empty());
  EXPECT_EQ(progress_.back(), std::pair(uint64_t{6}, uint64_t{6}));
}

TEST_F(ContentTransferTest, AHostThatHasItIsSentNothing) {
  EXPECT_TRUE(ResultOf(Upload("echo present abc", std::string(1 << 20, 'x'))).ok());
  EXPECT_TRUE(progress_.empty());
}

TEST_F(ContentTransferTest, WhyAnUploadFailsIsSaidThoughItReadsNoMore) {
  const absl::Status result =
      ResultOf(Upload("echo; echo from 0; head -c 10 > /dev/null; echo 'the disk is full' >&2; exit 1",
                      std::string(4 << 20, 'x')));
  EXPECT_TRUE(absl::IsFailedPrecondition(result)) << result;
  EXPECT_THAT(result.message(), HasSubstr("host-1: the upload of data failed: the disk is full"));
}

TEST_F(ContentTransferTest, AFetchSaysHowFarItHasCome) {
  const std::string script = "read secret; echo \"$secret, $*\" > " + Path("arguments") +
                             "; printf 'motd'; printf '\\nat 5\\n'; printf '\\nat 11\\n'; echo stored";
  EXPECT_TRUE(ResultOf(Fetch(script, "0123456789")).ok());
  EXPECT_EQ(Text("arguments"),
            "the secret, fetch --root root --sha256 abc --size 10 --address 10.0.0.7 --port 4711\n");
  EXPECT_THAT(progress_, ElementsAre(std::pair(5, 10), std::pair(10, 10)));
}

TEST_F(ContentTransferTest, WhoIsToBlameForAFetch) {
  const absl::Status source = ResultOf(Fetch("echo 'nobody listens' >&2; exit 69", "0123456789"));
  EXPECT_TRUE(absl::IsAborted(source)) << source;
  EXPECT_THAT(source.message(), HasSubstr("host-1 could not get data from other: nobody listens"));
  const absl::Status host = ResultOf(Fetch("echo 'the disk is full' >&2; exit 1", "0123456789"));
  EXPECT_TRUE(absl::IsFailedPrecondition(host)) << host;
}

TEST_F(ContentTransferTest, WhatTakesTooLongIsGivenUp) {
  const std::string script = kSaysNothing;
  const absl::Status upload = ResultOf(Upload(script, "0123456789", std::chrono::milliseconds(200)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(upload)) << upload;
  const absl::Status fetch = ResultOf(Fetch(script, "0123456789", std::chrono::milliseconds(200)));
  EXPECT_TRUE(absl::IsAborted(fetch)) << fetch;
}

TEST_F(ContentTransferTest, WhatComesSlowlyIsWaitedFor) {
  const std::string script =
      "echo; echo from 0; for i in $(seq 16); do sleep 0.25; head -c 131072 > /dev/null; done";
  EXPECT_TRUE(ResultOf(Upload(script, std::string(2 << 20, 'x'), std::chrono::seconds(3))).ok());
}

// As a login shell may leave one.
TEST_F(ContentTransferTest, AProcessThatKeepsTheOutputOpenIsWaitedForAsleep) {
  EXPECT_TRUE(ResultOf(Upload("sleep 0.5 & echo; echo from 0; cat > /dev/null", "0123456789")).ok());
  EXPECT_LT(looks_, 50);
}

TEST_F(ContentTransferTest, AServerSaysItsPortAndThenThatItHasEnded) {
  auto server =
      ContentServer::Start(*transport_,
                           Agent("read secret; read ticket; printf 'motd\\nserving soon'; printf '\\nserving "
                                 "4711\\n'; test \"$secret $ticket\" = 'mine ours' && "
                                 "read more; echo 'it ends' >&2; exit 1"),
                           kServer, TestDeadline());
  ASSERT_TRUE(server.ok()) << server.status();
  const auto port = PortOf(**server);
  ASSERT_TRUE(port.ok()) << port.status();
  EXPECT_EQ(*port, 4711u);
  *server = nullptr;  // the end of its input

  server =
      ContentServer::Start(*transport_, Agent("exec 0<&-; touch gone; echo 'no such address' >&2; exit 2"),
                           kServer, TestDeadline());
  ASSERT_TRUE(server.ok()) << server.status();
  for (const TimePoint deadline = TestDeadline();
       !std::filesystem::exists(Path("gone")) && Now() < deadline;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const auto ended = PortOf(**server);  // which finds that its input is closed
  EXPECT_TRUE(absl::IsAborted(ended.status())) << ended.status();
  EXPECT_THAT(ended.status().message(), HasSubstr("host-1 passes nothing on: no such address"));
}

TEST_F(ContentTransferTest, AServerThatSaysNothingIsGivenUp) {
  auto server =
      ContentServer::Start(*transport_, Agent(kSaysNothing), kServer, Now() + std::chrono::milliseconds(200));
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(PortOf(**server).status()));
}

TEST(FindBareHost, SaysWhatIsThereAndNothingElse) {
  const auto bare = FindBareHost("motd\nmuster-agent-missing x86_64 gzip bash timeout gnu-head\nmore\n");
  ASSERT_TRUE(bare.has_value());
  EXPECT_EQ(bare->architecture, "x86_64");
  EXPECT_TRUE(bare->has_gzip && bare->can_fetch);
  for (const char* tools : {"", " bash", " gzip timeout gnu-head", " bash timeout", " bashgzip"}) {
    const auto other = FindBareHost(std::string("muster-agent-missing aarch64") + tools);
    ASSERT_TRUE(other.has_value()) << tools;
    EXPECT_EQ(other->architecture, "aarch64");
    EXPECT_FALSE(other->can_fetch) << tools;
  }
  EXPECT_EQ(FindBareHost("muster-agent-missing ").value().architecture, "");
  EXPECT_FALSE(FindBareHost("sh: not found\n").has_value());
}

TEST(LineBuffer, KeepsTheBeginningOfWhatHasNotEndedAndOfWhatIsLong) {
  LineBuffer lines;
  EXPECT_THAT(lines.Append("one\ntw"), ElementsAre("one"));
  EXPECT_THAT(lines.Append("o\n\n"), ElementsAre("two", ""));
  EXPECT_THAT(lines.Append(std::string(300, 'x')), ElementsAre());
  EXPECT_THAT(lines.Append("y\nz\n"), ElementsAre(std::string(200, 'x'), "z"));
}

}  // namespace
}  // namespace muster
