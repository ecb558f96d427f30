// How long a byte takes to another host and back, over the data addresses that tasks use: `muster-agent echo`
// on the one, `muster-agent ping` on the other.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace muster {

/// Listens on a literal address, on a free port of those that are leased to tasks, tells it to `listening`,
/// and sends back what the first who connects sends until he hangs up (OK). Cancelled: `stop_fd` became
/// readable first, which is the end of a pipe. InvalidArgument: the address is no literal IP or not of this
/// host. DeadlineExceeded.
absl::Status RunEcho(const std::string& address, const std::function<absl::Status(uint32_t port)>& listening,
                     int stop_fd, TimePoint deadline);

/// The median of `count` round trips of a byte, after some that do not count; seconds. Unavailable, with the
/// address: nobody answers.
absl::StatusOr<double> MeasureRoundTrip(const std::string& address, uint32_t port, int count,
                                        TimePoint deadline);

}  // namespace muster
