// Time. Durations and deadlines are std::chrono on the monotonic clock; wall time is only for people to read.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace muster {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

inline TimePoint Now() { return std::chrono::steady_clock::now(); }

inline double ToSeconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

/// Milliseconds from now until `deadline`, at least 0, for poll(2) and its kin; rounded up so that a wait
/// never ends early.
int MillisecondsUntil(TimePoint deadline);

/// Microseconds since the Unix epoch.
int64_t WallTimeMicros();

/// "2026-01-31T12:00:00Z" of a wall time in microseconds.
std::string FormatWallTime(int64_t wall_time_micros);

/// "850ms", "12s", "3m20s", "2h05m", "4d03h": the two largest units, for tables.
std::string FormatAge(Duration age);

}  // namespace muster
