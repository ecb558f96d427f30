#include "ps/frame_queue.h"

#include <algorithm>
#include <iterator>

#include "base/status.h"

namespace muster {
namespace {

// Nobody has read for so long: the queue's own thread does. Who then comes to wait takes over from it.
constexpr Duration kIdle = std::chrono::milliseconds(10);
constexpr Duration kLook = std::chrono::hours(1);

std::chrono::system_clock::time_point OnWallClock(TimePoint time) {
  return std::chrono::time_point_cast<std::chrono::system_clock::duration>(std::chrono::system_clock::now() +
                                                                           (time - Now()));
}

}  // namespace

FrameQueue::FrameQueue(std::function<bool(const Event&)> take)
    : take_(std::move(take)),
      on_alarm_([this](bool) {
        const std::lock_guard lock(mutex_);
        is_interrupted_ = false;
      }),
      keeper_([this](const std::stop_token& stop) { Keep(stop); }) {}

FrameQueue::~FrameQueue() {
  keeper_.request_stop();
  {
    const std::lock_guard lock(mutex_);
    Interrupt();
  }
  keeper_ = {};
  completions_.Shutdown();
  void* tag;
  bool ok;
  while (completions_.Next(&tag, &ok)) Completion::Run(tag, ok);
}

void FrameQueue::Push(Event event) {
  if (take_ && take_(event)) return;
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  Notify();
}

void FrameQueue::Wake() {
  const std::lock_guard lock(mutex_);
  Notify();
}

// Whoever waits looks again. The keeper waits for nothing.
void FrameQueue::Notify() {
  changed_.notify_all();
  if (!keeper_polls()) Interrupt();
}

// Whoever polls stops to.
void FrameQueue::Interrupt() {
  if (!is_polling_ || poller_ == std::this_thread::get_id() || is_interrupted_) return;
  is_interrupted_ = true;
  alarm_.Set(&completions_, gpr_inf_past(GPR_CLOCK_MONOTONIC), on_alarm_.tag());
}

std::optional<FrameQueue::Event> FrameQueue::Pop(TimePoint deadline, std::optional<uint64_t> connection) {
  std::unique_lock lock(mutex_);
  auto found = events_.end();
  const auto is_there = [&] {
    found = std::find_if(events_.begin(), events_.end(),
                         [&](const Event& event) { return !connection || event.connection == *connection; });
    return found != events_.end();
  };
  if (!AwaitLocked(lock, deadline, is_there)) return std::nullopt;
  Event event = std::move(*found);
  events_.erase(found);
  return event;
}

void FrameQueue::PutBack(std::vector<Event> events) {
  const std::lock_guard lock(mutex_);
  events_.insert(events_.begin(), std::make_move_iterator(events.begin()),
                 std::make_move_iterator(events.end()));
  Notify();
}

void FrameQueue::AddAwaited(int streams) {
  const std::lock_guard lock(mutex_);
  awaited_ += streams;
  Notify();
}

bool FrameQueue::Await(TimePoint deadline, const std::function<bool()>& is_there) {
  std::unique_lock lock(mutex_);
  return AwaitLocked(lock, deadline, is_there);
}

bool FrameQueue::AwaitLocked(std::unique_lock<std::mutex>& lock, TimePoint deadline,
                             const std::function<bool()>& is_there) {
  bool found = is_there();
  ++waiting_;
  for (; !found && Now() < deadline; found = is_there()) {
    if (keeper_polls() && awaited_ > 0) Interrupt();
    if (is_polling_ || awaited_ == 0 || draining_ > 0) {
      changed_.wait_until(lock, deadline);
    } else {
      Poll(lock, deadline);
    }
  }
  // Another one may have to poll from now on.
  if (--waiting_ > 0) changed_.notify_all();
  return found;
}

void FrameQueue::Drain(const std::atomic<int>& under_way) {
  std::unique_lock lock(mutex_);
  MUSTER_CHECK(!is_polling_ || poller_ != std::this_thread::get_id());
  ++draining_;
  while (is_polling_ || under_way > 0) {
    if (is_polling_) {
      Interrupt();
      changed_.wait(lock);
    } else {
      Poll(lock, TimePoint::max());
    }
  }
  --draining_;
  changed_.notify_all();
}

// Runs one Completion at most. The lock is not held meanwhile.
void FrameQueue::Poll(std::unique_lock<std::mutex>& lock, TimePoint deadline) {
  is_polling_ = true;
  poller_ = std::this_thread::get_id();
  lock.unlock();
  void* tag;
  bool ok;
  if (completions_.AsyncNext(&tag, &ok, OnWallClock(std::min(deadline, Now() + kLook))) ==
      grpc::CompletionQueue::GOT_EVENT) {
    Completion::Run(tag, ok);
  }
  lock.lock();
  is_polling_ = false;
  last_polled_ = Now();
  if (draining_ > 0) changed_.notify_all();
}

void FrameQueue::Keep(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    const bool is_left_to_others = is_polling_ || draining_ > 0 || (waiting_ > 0 && awaited_ > 0);
    if (is_left_to_others || Now() < last_polled_ + kIdle) {
      keeper_wakes_.wait_for(lock, stop, kIdle, [] { return false; });
      continue;
    }
    do {
      Poll(lock, TimePoint::max());
    } while (!stop.stop_requested() && draining_ == 0 && (waiting_ == 0 || awaited_ == 0));
    changed_.notify_all();
  }
}

}  // namespace muster
