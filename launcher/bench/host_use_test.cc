#include "launcher/bench/host_use.h"

#include <gtest/gtest.h>

namespace muster::bench {
namespace {

TEST(HostUses, AddUpTheTasksOfAHostAndItsNetworkOnce) {
  const std::vector<HostUse> hosts = HostUses({
      {.task = "worker:0",
       .host = "a",
       .seconds = 10,
       .cpu_seconds = 4,
       .sent_bytes = 100,
       .received_bytes = 200},
      {.task = "worker:1", .host = "b", .seconds = 10, .cpu_seconds = 5},
      {.task = "worker:2", .host = "c", .seconds = 0, .cpu_seconds = 5},
      {.task = "ps:0", .host = "a", .seconds = 5, .cpu_seconds = 3, .sent_bytes = 45, .received_bytes = 90},
  });
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_EQ(hosts[0].host, "a");
  EXPECT_EQ(hosts[0].tasks, "worker:0, ps:0");
  EXPECT_DOUBLE_EQ(hosts[0].busy_processors, 0.4 + 0.6);
  EXPECT_EQ(hosts[0].sent_bytes_per_second, 10);
  EXPECT_EQ(hosts[0].received_bytes_per_second, 20);
  EXPECT_EQ(hosts[1].host, "b");
  EXPECT_FALSE(hosts[1].sent_bytes_per_second.has_value());
}

TEST(ReceivedBytesPerStep, LeavesOutWhatComesBeforeTheFirst) {
  // Four steps: 100 bytes before the first one, and after each.
  EXPECT_DOUBLE_EQ(ReceivedBytesPerStep(Strategy::kAsyncServers, 500, 4, 0), 100);
  EXPECT_DOUBLE_EQ(ReceivedBytesPerStep(Strategy::kSyncServers, 500, 4, 0), 100);
  EXPECT_DOUBLE_EQ(ReceivedBytesPerStep(Strategy::kAllReduce, 400, 4, 0), 100);
  // 30 of them rows, the others of an allreduce, which has nothing to send before.
  EXPECT_DOUBLE_EQ(ReceivedBytesPerStep(Strategy::kHybrid, 4 * 70 + 5 * 30, 4, 70), 100);
}

TEST(AddRepetition, GivesTheMeanOfAll) {
  std::vector<HostUse> mean;
  for (size_t count = 0; count < 3; ++count) {
    AddRepetition(
        {{.host = "a", .busy_processors = 1.0 + static_cast<double>(count), .sent_bytes_per_second = 6},
         {.host = "b", .busy_processors = 1}},
        count, &mean);
  }
  ASSERT_EQ(mean.size(), 2u);
  EXPECT_DOUBLE_EQ(mean[0].busy_processors, 2);
  EXPECT_EQ(mean[0].sent_bytes_per_second, 6);
  EXPECT_FALSE(mean[1].sent_bytes_per_second.has_value());
}

}  // namespace
}  // namespace muster::bench
