#include "base/clock.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <ctime>

namespace muster {

int MillisecondsUntil(TimePoint deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000'000));
}

int64_t WallTimeMicros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string FormatWallTime(int64_t wall_time_micros) {
  const std::time_t seconds = wall_time_micros / 1'000'000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

std::string FormatAge(Duration age) {
  const int64_t milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(age).count();
  if (milliseconds < 1000) return absl::StrFormat("%dms", std::max<int64_t>(milliseconds, 0));
  const int64_t seconds = milliseconds / 1000;
  if (seconds < 60) return absl::StrFormat("%ds", seconds);
  if (seconds < 3600) return absl::StrFormat("%dm%02ds", seconds / 60, seconds % 60);
  if (seconds < 86400) return absl::StrFormat("%dh%02dm", seconds / 3600, seconds / 60 % 60);
  return absl::StrFormat("%dd%02dh", seconds / 86400, seconds / 3600 % 24);
}

}  // namespace muster
