#include "trainer/training_usage.h"

#include <gtest/gtest.h>

#include <atomic>

namespace muster {
namespace {

constexpr char kNetDev[] =
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls "
    "carrier compressed\n"
    "    lo:     100       2    0    0    0     0          0         0      100       2    0    0    0     0 "
    " "
    "     0          0\n"
    "  eth0: 5000000000    7    0    0    0     0          0         0     4321       9    0    0    0     0 "
    " "
    "     0          0\n"
    " short: 1 2 3\n";

TEST(ParseNetworkBytes, FindsTheInterface) {
  const auto bytes = ParseNetworkBytes(kNetDev, "eth0");
  ASSERT_TRUE(bytes.has_value());
  EXPECT_EQ(bytes->received, 5'000'000'000u);
  EXPECT_EQ(bytes->sent, 4321u);
  EXPECT_FALSE(ParseNetworkBytes(kNetDev, "eth").has_value());
  EXPECT_FALSE(ParseNetworkBytes(kNetDev, "short").has_value());
  EXPECT_FALSE(ParseNetworkBytes("", "eth0").has_value());
}

TEST(InterfaceOfAddress, IsNeitherTheLoopbackNorAnother) {
  EXPECT_EQ(InterfaceOfAddress("127.0.0.1:2222"), "");
  EXPECT_EQ(InterfaceOfAddress("[::1]:2222"), "");
  EXPECT_EQ(InterfaceOfAddress("192.0.2.1:2222"), "");  // for documentation: nobody's
  EXPECT_EQ(InterfaceOfAddress("host"), "");
}

TEST(UsageMeter, MeasuresFromTheFirstMarkToTheLast) {
  UsageMeter meter("");
  EXPECT_FALSE(meter.usage().has_value());
  meter.Mark();
  EXPECT_FALSE(meter.usage().has_value());
  const double before = ProcessCpuSeconds();
  while (ProcessCpuSeconds() < before + 0.02) {
  }
  meter.Mark();
  const auto usage = meter.usage();
  ASSERT_TRUE(usage.has_value());
  EXPECT_GE(usage->cpu_seconds, 0.02);
  EXPECT_GT(usage->seconds, 0);
  EXPECT_FALSE(usage->network.has_value());
  meter.Mark();
  EXPECT_GE(meter.usage()->seconds, usage->seconds);
}

TEST(UsageWatch, MarksOnlyWhatGrows) {
  UsageMeter meter("");
  std::atomic<uint64_t> progress = 0, calls = 0;
  const UsageWatch watch(&meter, [&] {
    ++calls;
    return progress.load();
  });
  const auto await_calls = [&](uint64_t more) {
    for (const uint64_t until = calls + more; calls < until;) std::this_thread::yield();
  };
  await_calls(2);
  progress = 1;
  await_calls(2);
  EXPECT_FALSE(meter.usage().has_value()) << "one mark is no stretch of time";
  progress = 2;
  await_calls(2);
  const auto usage = meter.usage();
  ASSERT_TRUE(usage.has_value());
  await_calls(2);
  EXPECT_EQ(meter.usage()->seconds, usage->seconds);
}

}  // namespace
}  // namespace muster
