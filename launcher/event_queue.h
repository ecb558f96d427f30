// EventQueue: events from any threads to one that waits for them.
#pragma once

#include <poll.h>

#include <deque>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "base/wake.h"

namespace muster {

template <typename Event>
class EventQueue {
 public:
  /// Any thread.
  void Push(Event event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    wake_.Set();
  }

  /// All there are; waits for the first until the deadline or until `other_fd` (-1: none) is readable.
  std::deque<Event> Wait(int other_fd, TimePoint deadline) {
    pollfd fds[] = {{.fd = wake_.fd(), .events = POLLIN, .revents = 0},
                    {.fd = other_fd, .events = POLLIN, .revents = 0}};
    ::poll(fds, 2, MillisecondsUntil(deadline));
    wake_.Clear();
    const std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  Wake wake_;
  std::mutex mutex_;
  std::deque<Event> events_;
};

}  // namespace muster
