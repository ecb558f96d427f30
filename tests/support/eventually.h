// For tests: waits for what happens sooner or later.
#pragma once

#include <unistd.h>

#include <functional>

#include "base/clock.h"

namespace muster {

/// Polls until it holds; false at the deadline, which no test reaches unless it fails.
inline bool Eventually(const std::function<bool()>& holds, Duration timeout = std::chrono::seconds(60)) {
  const TimePoint deadline = Now() + timeout;
  while (!holds()) {
    if (Now() > deadline) return false;
    ::usleep(5'000);
  }
  return true;
}

}  // namespace muster
