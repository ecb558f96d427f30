// Streams, events, captures and graphs of fake_cuda.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace muster::cuda {

class FakeStream;

/// What an event waits for: a place on a stream. Any thread may call.
class Milestone {
 public:
  void Reach();
  void Wait();
  std::optional<TimePoint> reached();

 private:
  std::mutex mutex_;
  std::condition_variable has_changed_;
  std::optional<TimePoint> reached_;
};

/// A place in a capture: behind the first `count` pieces of work of a lane.
struct CapturedPlace {
  size_t lane = 0;
  size_t count = 0;
};

/// What was captured: a lane for each stream, the first that of the stream it began with. A piece of work
/// waits for those before it on its lane, and for places of other lanes.
class CapturedGraph {
 public:
  /// Whether everything comes before the end of the first lane.
  bool is_joined() const;

  /// Runs each lane on a thread of its own, the first on this one. Returns when all have ended.
  void Run() const;

 private:
  friend class Capture;
  struct Node {
    std::function<void()> work;  // null: waits for `place`
    CapturedPlace place;
  };
  using Lane = std::vector<Node>;
  class UnderWay;

  std::vector<Lane> lanes_;
};

/// The making of a graph. One thread at a time.
class Capture {
 public:
  explicit Capture(FakeStream* origin) { LaneOf(origin); }

  void Add(const FakeStream* stream, std::function<void()> work);
  CapturedPlace PlaceOf(const FakeStream* stream) const;

  /// `stream` goes on behind `place`, and is part of the capture from now on.
  void Wait(FakeStream* stream, CapturedPlace place);

  bool began_with(const FakeStream* stream) const { return streams_.front() == stream; }
  const std::vector<FakeStream*>& streams() const { return streams_; }
  CapturedGraph TakeGraph() { return std::move(graph_); }

 private:
  size_t LaneOf(FakeStream* stream);

  CapturedGraph graph_;
  std::vector<FakeStream*> streams_;  // by lane
  std::unordered_map<const FakeStream*, size_t> lanes_;
};

/// Work in order, on a thread of its own; or into a capture. Its end waits for all of it.
class FakeStream {
 public:
  explicit FakeStream(int device);
  ~FakeStream();

  int device() const { return device_; }
  void Enqueue(std::function<void()> work);
  bool is_idle();

  /// One that is reached when everything is done that has been enqueued so far, captures aside.
  std::shared_ptr<Milestone> Mark();

  /// Of one thread at a time; null: none.
  std::shared_ptr<Capture> capture;

 private:
  struct Item {
    std::function<void()> work;
    bool is_mark;
  };

  void Push(Item item);
  void Run(const std::stop_token& stop);

  const int device_;
  std::mutex mutex_;
  std::condition_variable_any has_work_;
  std::deque<Item> queue_;
  int64_t unfinished_ = 0;  // items, but for marks, whose end is the end of what is before them
  std::jthread thread_;
};

/// Returns when everything is done that has been enqueued so far on streams of this device, but for captures.
void WaitForDevice(int device);

}  // namespace muster::cuda
