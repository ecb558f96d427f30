#include "base/framing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Hello, IsFoundBehindNoiseInPiecesOfAnySize) {
  const std::string stream =
      "Welcome!\nmuster-agent-protocol x\nno newline at the end" + HelloLine(42) + "frames\n";
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    HelloScanner scanner;
    size_t fed = 0;
    bool found = false;
    while (!found && fed < stream.size()) {
      const std::string part = stream.substr(fed, piece);
      fed += part.size();
      found = *scanner.Feed(part);
    }
    ASSERT_TRUE(found) << piece;
    EXPECT_EQ(scanner.version(), 42);
    EXPECT_EQ(scanner.noise(), "Welcome!\nmuster-agent-protocol x\nno newline at the end");
    EXPECT_EQ(scanner.TakeRest() + stream.substr(fed), "frames\n");
  }
}

TEST(Hello, EndlessNoiseIsAnErrorThatQuotesItsEnd) {
  HelloScanner scanner(1000);
  const auto found = scanner.Feed(std::string(2000, 'x') + "bash: muster-agent: command not found\n");
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("bash: muster-agent: command not found"));
}

TEST(Hello, AnotherVersionIsRefusedWithBothNumbers) {
  EXPECT_TRUE(CheckProtocolVersion(kAgentProtocolVersion, "the agent", "this muster").ok());
  const absl::Status status = CheckProtocolVersion(977, "the agent", "this muster");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("977"), HasSubstr(absl::StrFormat("version %d:", kAgentProtocolVersion))));
}

TEST(FrameDecoder, GivesBackTheFramesInPiecesOfAnySize) {
  const std::vector<std::string> payloads = {"", "a", std::string("\0\n\xff", 3), std::string(70000, 'z')};
  std::string stream;
  for (int round = 0; round < 3; ++round) {
    for (const std::string& payload : payloads) AppendFrame(stream, payload);
  }
  for (uint64_t seed = 0; seed < 20; ++seed) {
    RandomStream random(seed);
    FrameDecoder decoder;
    std::vector<std::string> received;
    for (size_t fed = 0; fed < stream.size();) {
      const std::string part = stream.substr(fed, 1 + random.NextBelow(seed % 2 == 0 ? 9 : 90000));
      fed += part.size();
      decoder.Feed(part);
      while (true) {
        const auto frame = decoder.Next();
        ASSERT_TRUE(frame.ok());
        if (!frame->has_value()) break;
        received.push_back(**frame);
      }
    }
    ASSERT_EQ(received.size(), 3 * payloads.size()) << "seed " << seed;
    for (size_t i = 0; i < received.size(); ++i) EXPECT_EQ(received[i], payloads[i % payloads.size()]);
  }
}

TEST(FrameDecoder, RefusesALengthBeyondTheBound) {
  FrameDecoder decoder;
  decoder.Feed("GET / HTTP/1.1");
  const auto frame = decoder.Next();
  EXPECT_EQ(frame.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(frame.status().message()), HasSubstr("542393671"));
}

TEST(FrameDecoder, TakesTheLargestFrameAllowed) {
  std::string stream;
  AppendFrame(stream, std::string(kMaxFrameBytes, 'm'));
  FrameDecoder decoder;
  decoder.Feed(stream);
  const auto frame = decoder.Next();
  ASSERT_TRUE(frame.ok() && frame->has_value());
  EXPECT_EQ((*frame)->size(), kMaxFrameBytes);
}

}  // namespace
}  // namespace muster
