#include "ps/frame_queue.h"

#include <algorithm>
#include <iterator>

namespace muster {

void FrameQueue::Push(Event event) {
  if (take_ && take_(event)) return;
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  changed_.notify_all();
}

std::optional<FrameQueue::Event> FrameQueue::Pop(TimePoint deadline, std::optional<uint64_t> connection) {
  std::unique_lock lock(mutex_);
  auto found = events_.end();
  const auto is_there = [&] {
    found = std::find_if(events_.begin(), events_.end(),
                         [&](const Event& event) { return !connection || event.connection == *connection; });
    return found != events_.end();
  };
  if (!changed_.wait_until(lock, deadline, is_there)) return std::nullopt;
  Event event = std::move(*found);
  events_.erase(found);
  return event;
}

void FrameQueue::PutBack(std::vector<Event> events) {
  const std::lock_guard lock(mutex_);
  events_.insert(events_.begin(), std::make_move_iterator(events.begin()),
                 std::make_move_iterator(events.end()));
  changed_.notify_all();
}

}  // namespace muster
