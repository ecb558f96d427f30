// FrameQueue: what has come over one connection or several, for one thread that waits for any of them.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>

#include "base/clock.h"

namespace muster {

/// Any thread.
class FrameQueue {
 public:
  struct Event {
    uint64_t connection = 0;
    std::optional<grpc::ByteBuffer> frame;  // none: the connection broke, the last of its events
  };

  void Push(Event event);

  /// The oldest event, of `connection` alone if one is given; none at the deadline.
  std::optional<Event> Pop(TimePoint deadline, std::optional<uint64_t> connection = std::nullopt);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Event> events_;
};

}  // namespace muster
