#include "launcher/link_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::HasSubstr;

TEST(LinkRateTest, IsReadAsTcReadsIt) {
  const auto bits = [](const char* text) {
    const auto rate = ParseLinkRate(text);
    EXPECT_TRUE(rate.ok()) << rate.status();
    return rate.value_or(LinkRate{-1}).bits_per_second;
  };
  EXPECT_EQ(bits("100mbit"), 100'000'000);
  EXPECT_EQ(bits("1gbit"), 1'000'000'000);
  EXPECT_EQ(bits("2.5Gbit"), 2'500'000'000);
  EXPECT_EQ(bits("640kbit"), 640'000);
  EXPECT_EQ(bits("1000000bit"), 1'000'000);
  EXPECT_EQ(bits("none"), 0);
}

TEST(LinkRateTest, IsWrittenAsItIsRead) {
  for (const char* text : {"100mbit", "2500mbit", "1gbit", "640kbit", "1000001bit", "none"}) {
    const auto rate = ParseLinkRate(text);
    ASSERT_TRUE(rate.ok()) << rate.status();
    EXPECT_EQ(FormatLinkRate(*rate), text);
  }
}

TEST(LinkRateTest, IsRefusedWithWhatToWriteInstead) {
  const auto error = [](const char* text) {
    const auto rate = ParseLinkRate(text);
    EXPECT_TRUE(absl::IsInvalidArgument(rate.status())) << text;
    return std::string(rate.status().message());
  };
  EXPECT_THAT(error(""), HasSubstr("as in 100mbit"));
  EXPECT_THAT(error("fast"), HasSubstr("as in 100mbit"));
  EXPECT_THAT(error("-1mbit"), HasSubstr("as in 100mbit"));
  EXPECT_THAT(error("1.2.3mbit"), HasSubstr("as in 100mbit"));
  EXPECT_THAT(error("nanmbit"), HasSubstr("as in 100mbit"));
  EXPECT_THAT(error("100"), HasSubstr("it has no unit"));
  EXPECT_THAT(error("100mb"), HasSubstr("unknown unit 'mb'"));
  EXPECT_THAT(error("100 mbit"), HasSubstr("unknown unit ' mbit'"));
  EXPECT_THAT(error("100mbps"), HasSubstr("use mbit"));
  EXPECT_THAT(error("0mbit"), HasSubstr("100kbit to 100gbit"));
  EXPECT_THAT(error("101gbit"), HasSubstr("100kbit to 100gbit"));
}

// What the filter does not pass whole it cuts, and what is larger than its queue it drops.
TEST(LinkRateTest, APieceFitsIntoTheBucketAndTheBucketIntoTheQueue) {
  for (const char* text : {"100kbit", "10mbit", "100mbit", "400mbit", "1gbit", "100gbit"}) {
    const Shaping shaping = ShapingFor(*ParseLinkRate(text));
    const int64_t packets = (shaping.super_packet_bytes + 1447) / 1448;
    EXPECT_GE(packets, 2) << text;
    EXPECT_LE(shaping.super_packet_bytes, 65536) << text;
    EXPECT_LE(shaping.super_packet_bytes + packets * 66, shaping.burst_bytes) << text;
    EXPECT_LE(2 * shaping.burst_bytes, shaping.queue_bytes) << text;
  }
}

}  // namespace
}  // namespace muster
