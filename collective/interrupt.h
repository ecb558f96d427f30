// Interrupt: something that ends waits, whatever they wait in.
#pragma once

#include <sys/eventfd.h>

#include <atomic>

#include "base/file.h"

namespace muster {

/// Once it is set it stays set. Any thread.
class Interrupt {
 public:
  Interrupt() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { MUSTER_CHECK(event_.valid()); }
  void Set() {
    is_set_ = true;
    (void)::eventfd_write(event_.get(), 1);
  }
  bool is_set() const { return is_set_.load(std::memory_order_relaxed); }
  /// Readable from then on, for poll(2).
  int fd() const { return event_.get(); }

 private:
  const UniqueFd event_;
  std::atomic<bool> is_set_ = false;
};

}  // namespace muster
