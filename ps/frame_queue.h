// FrameQueue: what has come over one connection or several, for one thread that waits for any of them.
//
// That thread reads from the network itself while it waits, since to wake it up can take as long as the
// message was on its way. While nobody waits, a thread of the queue reads: then a broken connection is
// noticed and what cannot wait is taken care of, however long the others compute.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "ps/completion.h"

namespace muster {

/// Any thread.
class FrameQueue {
 public:
  struct Event {
    uint64_t connection = 0;
    std::optional<grpc::ByteBuffer> frame;  // none: the connection broke, the last of its events
  };

  /// `take`: called with each event as it comes, by any thread; true: it is not for the queue.
  explicit FrameQueue(std::function<bool(const Event&)> take = nullptr);
  /// Nothing is under way on completions() any more.
  ~FrameQueue();

  void Push(Event event);

  bool empty() const {
    const std::lock_guard lock(mutex_);
    return events_.empty();
  }

  /// The oldest event, of `connection` alone if one is given; none at the deadline.
  std::optional<Event> Pop(TimePoint deadline, std::optional<uint64_t> connection = std::nullopt);

  /// Events that were popped, in their order: they are the oldest again.
  void PutBack(std::vector<Event> events);

  /// For streams whose frames come here: operations with a Completion as their tag. Completions run one at a
  /// time, and hold no lock of the queue.
  grpc::CompletionQueue* completions() { return &completions_; }

  /// That many more streams are waited for on completions(): else whoever waits leaves the network alone.
  void AddAwaited(int streams);

  /// Waits for what a Completion, or whoever calls Wake after it, does. False: not until the deadline.
  bool Await(TimePoint deadline, const std::function<bool()>& is_there);
  void Wake();

  /// Waits until none of a stream's operations is under way and no Completion runs. Not from a Completion.
  void Drain(const std::atomic<int>& under_way);

 private:
  bool AwaitLocked(std::unique_lock<std::mutex>& lock, TimePoint deadline,
                   const std::function<bool()>& is_there);
  void Poll(std::unique_lock<std::mutex>& lock, TimePoint deadline);
  void Notify();
  void Interrupt();
  bool keeper_polls() const { return is_polling_ && poller_ == keeper_.get_id(); }
  void Keep(const std::stop_token& stop);

  const std::function<bool(const Event&)> take_;
  grpc::CompletionQueue completions_;
  grpc::Alarm alarm_;
  Completion on_alarm_;
  mutable std::mutex mutex_;  // guards the following
  std::condition_variable changed_;
  std::condition_variable_any keeper_wakes_;
  std::list<Event> events_;
  int awaited_ = 0;              // streams
  int waiting_ = 0;              // threads
  int draining_ = 0;             // of them; only these poll, if there are any
  bool is_polling_ = false;      // somebody, from completions_
  std::thread::id poller_;       // who
  bool is_interrupted_ = false;  // by the alarm
  TimePoint last_polled_;
  std::jthread keeper_;  // the last member: it uses the others
};

}  // namespace muster
