// FrameQueue: what has come over one connection or several, for one thread that waits for any of them.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.h"

namespace muster {

/// Any thread.
class FrameQueue {
 public:
  struct Event {
    uint64_t connection = 0;
    std::optional<grpc::ByteBuffer> frame;  // none: the connection broke, the last of its events
  };

  /// `take`: called with each event as it comes, by any thread; true: it is not for the queue.
  explicit FrameQueue(std::function<bool(const Event&)> take = nullptr) : take_(std::move(take)) {}

  void Push(Event event);

  bool empty() const {
    const std::lock_guard lock(mutex_);
    return events_.empty();
  }

  /// The oldest event, of `connection` alone if one is given; none at the deadline.
  std::optional<Event> Pop(TimePoint deadline, std::optional<uint64_t> connection = std::nullopt);

  /// Events that were popped, in their order: they are the oldest again.
  void PutBack(std::vector<Event> events);

 private:
  const std::function<bool(const Event&)> take_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Event> events_;
};

}  // namespace muster
