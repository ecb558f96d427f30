// Where the time of an exchange with parameter servers went.
#pragma once

#include "base/clock.h"

namespace muster {

/// As it was with the shard whose answer came last: docs/ARCHITECTURE.md.
struct ExchangeTimes {
  Duration push{};  // to encode the gradient and to hand it over
  Duration wait{};  // what remains
  Duration pull{};  // on the way, before and after the server had it, and to decode
};

}  // namespace muster
