// Outbox: what leaves a replicated server, once its backup has all that it follows from.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

namespace muster {

/// One thread at a time.
class Outbox {
 public:
  /// What is sent from here on follows from one more event; returns its number, from 1.
  uint64_t AddEvent() { return ++events_; }
  uint64_t events() const { return events_; }

  /// The backup has the events up to this number, or none is needed.
  void Release(uint64_t through) {
    safe_ = std::max(safe_, through);
    while (!waiting_.empty() && waiting_.front().first <= safe_) {
      const auto send = std::move(waiting_.front().second);
      waiting_.pop_front();
      send();
    }
  }

  /// Calls it at once or in a Release, in the order of the calls.
  void Send(std::function<void()> send) {
    if (events_ <= safe_) return send();
    waiting_.emplace_back(events_, std::move(send));
  }

  /// As Send, for what somebody waits for who brings nothing more until then: while paused it stays here.
  void Answer(std::function<void()> send) {
    if (is_paused_) return paused_.push_back(std::move(send));
    Send(std::move(send));
  }
  bool is_paused() const { return is_paused_; }
  void Pause() { is_paused_ = true; }
  void Resume() {
    is_paused_ = false;
    for (auto& send : std::exchange(paused_, {})) Send(std::move(send));
  }

  /// From here on nothing waits any more: what it followed from cannot be undone.
  void Open() { Release(UINT64_MAX); }

  /// What waits is not sent.
  void Clear() {
    is_paused_ = false;
    paused_.clear();
    waiting_.clear();
    safe_ = std::max(safe_, events_);
  }

  bool empty() const { return waiting_.empty() && paused_.empty(); }

 private:
  uint64_t events_ = 0;
  uint64_t safe_ = 0;
  std::deque<std::pair<uint64_t, std::function<void()>>> waiting_;  // number of the last event before
  bool is_paused_ = false;
  std::deque<std::function<void()>> paused_;  // in the order of the calls
};

}  // namespace muster
