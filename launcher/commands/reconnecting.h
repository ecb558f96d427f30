// Following what a host has, though the connection to it may be lost meanwhile: the network is gone for a
// moment, this machine has slept, the host starts again.
#pragma once

#include <optional>

#include "base/clock.h"
#include "base/status.h"

namespace muster {

/// Of one host. One thread at a time.
class Reconnecting {
 public:
  /// It has answered: that it is not reached from now on may be over soon.
  void Heard();

  /// It is reached, and has not answered yet what it is asked. TriesAgain from now on, too, but not for
  /// longer.
  void Reached() { has_answered_ = true; }

  /// Whether what failed so is to be tried again: it was reached before, the connection to it is lost
  /// (Unavailable, DeadlineExceeded), and not for longer than a minute. Pauses then, and says so on stderr
  /// once a second attempt has failed.
  bool TriesAgain(const absl::Status& failure);

 private:
  bool has_answered_ = false;
  std::optional<TimePoint> give_up_;  // set while it is not reached
  bool is_said_ = false;              // likewise
};

}  // namespace muster
