// What this process does for so many hosts at a time, and no more: done for more at once it would only be
// slower for each of them, until some miss their deadlines.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"

namespace muster {

/// Any thread.
class Turns {
 public:
  /// Given back when destroyed.
  class Turn {
   public:
    Turn(Turn&& other) noexcept : turns_(std::exchange(other.turns_, nullptr)) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn();

   private:
    friend class Turns;
    explicit Turn(const Turns* turns) : turns_(turns) {}
    const Turns* turns_;
  };

  /// `what` the turns are for: "the logins to other hosts". `longest`: that anybody waits; the others have
  /// deadlines of their own, so it is a long time.
  Turns(int at_a_time, std::string what, Duration longest);

  /// Outlives what it returns. Calls `waiting`, if it is set, once a second. DeadlineExceeded; Cancelled:
  /// `cancel_fd` (-1: none) became readable.
  absl::StatusOr<Turn> Take(int cancel_fd, const std::function<void()>& waiting) const;

 private:
  const UniqueFd free_;  // a semaphore that can be waited for together with an interrupt
  const std::string what_;
  const Duration longest_;
};

}  // namespace muster
