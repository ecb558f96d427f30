// Spin: a short wait for what is usually there in microseconds.
#pragma once

#include <thread>

#include "base/clock.h"

namespace muster {

/// To be woken up takes 25 us and more, most of a small exchange between ranks. So a waiter looks for a while
/// before it sleeps, unless its last wait was long, and gives way to whoever wants the processor between two
/// looks. One thread at a time.
class Spin {
 public:
  /// Whether `ready` came true in that time; if not, the caller sleeps, and says so with Slept.
  template <typename Ready>
  bool Await(Ready&& ready) {
    if (ready()) return true;
    if (!waits_are_short_) return false;
    const TimePoint start = Now();
    for (TimePoint now = start; now < start + kYielding; now = Now()) {
      now < start + kBusy ? Pause() : std::this_thread::yield();
      if (ready()) return true;
    }
    return false;
  }

  void Slept(Duration duration) { waits_are_short_ = duration < kShort; }

 private:
  static void Pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  static constexpr Duration kBusy = std::chrono::microseconds(2);
  static constexpr Duration kYielding = std::chrono::microseconds(100);
  static constexpr Duration kShort = std::chrono::microseconds(500);

  bool waits_are_short_ = true;
};

}  // namespace muster
