#include "launcher/transport/turns.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "launcher/transport/ssh_socket.h"

namespace muster {

Turns::Turns(int at_a_time, std::string what, Duration longest)
    : free_(::eventfd(at_a_time, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)),
      what_(std::move(what)),
      longest_(longest) {
  MUSTER_CHECK(free_.valid());
}

Turns::Turn::~Turn() {
  const uint64_t one = 1;
  if (turns_ != nullptr) (void)!::write(turns_->free_.get(), &one, sizeof one);
}

absl::StatusOr<Turns::Turn> Turns::Take(int cancel_fd, const std::function<void()>& waiting) const {
  constexpr Duration kSayEvery = std::chrono::seconds(1);
  const TimePoint deadline = Now() + longest_;
  TimePoint say_at = Now() + kSayEvery;
  uint64_t one;
  while (::read(free_.get(), &one, sizeof one) < 0) {
    if (errno != EAGAIN && errno != EINTR) return ErrnoError(errno, "eventfd");
    const absl::Status may_come =
        WaitForFd(free_.get(), POLLIN, {.deadline = std::min(say_at, deadline), .cancel_fd = cancel_fd});
    if (absl::IsCancelled(may_come) || (absl::IsDeadlineExceeded(may_come) && Now() >= deadline))
      return Annotate(may_come, "waiting for " + what_);
    if (Now() < say_at) continue;
    if (waiting) waiting();
    say_at = Now() + kSayEvery;
  }
  return Turn(this);
}

}  // namespace muster
