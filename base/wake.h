// Wake: ends the wait of a thread in poll(2), as often as needed.
#pragma once

#include <sys/eventfd.h>

#include "base/file.h"
#include "base/status.h"

namespace muster {

/// Set from any thread.
class Wake {
 public:
  Wake() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { MUSTER_CHECK(event_.valid()); }
  void Set() { (void)::eventfd_write(event_.get(), 1); }
  /// By who waits, before it looks at what there is to do.
  void Clear() {
    eventfd_t ignored;
    (void)::eventfd_read(event_.get(), &ignored);
  }
  /// Readable since the first Set after the last Clear.
  int fd() const { return event_.get(); }

 private:
  const UniqueFd event_;
};

}  // namespace muster
