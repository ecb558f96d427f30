#include "agent/echo.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "base/file.h"

namespace muster {
namespace {

TimePoint Soon() { return Now() + std::chrono::seconds(20); }

TEST(Echo, SendsBytesBackUntilTheOtherHangsUp) {
  for (const std::string address : {"127.0.0.1", "127.5.6.7"}) {
    std::promise<uint32_t> port;
    absl::Status echoed;
    std::jthread echo([&] {
      const auto tell = [&](uint32_t number) {
        port.set_value(number);
        return absl::OkStatus();
      };
      echoed = RunEcho(address, tell, -1, Soon());
    });
    const auto seconds = MeasureRoundTrip(address, port.get_future().get(), 10, Soon());
    echo.join();
    ASSERT_TRUE(seconds.ok()) << seconds.status();
    EXPECT_GT(*seconds, 0);
    EXPECT_TRUE(echoed.ok()) << echoed;
  }
}

TEST(Echo, EndsWithItsPipe) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd read_end(ends[0]);
  ::close(ends[1]);
  const auto ignore = [](uint32_t) { return absl::OkStatus(); };
  EXPECT_TRUE(absl::IsCancelled(RunEcho("127.0.0.1", ignore, read_end.get(), Soon())));
}

TEST(Echo, SaysWhatDoesNotWork) {
  const auto ignore = [](uint32_t) { return absl::OkStatus(); };
  EXPECT_TRUE(absl::IsInvalidArgument(RunEcho("host", ignore, -1, Soon())));
  EXPECT_TRUE(absl::IsInvalidArgument(RunEcho("192.0.2.1", ignore, -1, Soon())));
  EXPECT_TRUE(absl::IsDeadlineExceeded(RunEcho("127.0.0.1", ignore, -1, Now())));
  EXPECT_TRUE(absl::IsUnavailable(MeasureRoundTrip("127.0.0.1", 1, 10, Soon()).status()));
}

}  // namespace
}  // namespace muster
