#include "ps/push_turns.h"

#include <algorithm>

namespace muster {
namespace {

auto IsOf(uint64_t stream) {
  return [stream](const PushTurns::Ask& ask) { return ask.stream == stream; };
}

auto Is(uint64_t stream, uint64_t request) {
  return [=](const PushTurns::Ask& ask) { return ask.stream == stream && ask.request == request; };
}

}  // namespace

void PushTurns::Add(const Ask& ask) {
  Remove(ask.stream);
  waiting_.push_back(ask);
}

void PushTurns::Remove(uint64_t stream) {
  if (!waiting_.empty() && waiting_.front().stream == stream) stuck_since_.reset();
  std::erase_if(waiting_, IsOf(stream));
  std::erase_if(sending_, IsOf(stream));
}

std::vector<PushTurns::Ask> PushTurns::Give(int64_t held, TimePoint now) {
  for (const Ask& ask : sending_) held += ask.bytes;
  std::vector<Ask> given;
  while (!waiting_.empty()) {
    const Ask& next = waiting_.front();
    const bool fits = held == 0 || next.bytes <= budget_ - held;
    if (!fits) {
      if (!stuck_since_) stuck_since_ = now;
      if (now - *stuck_since_ < patience_) break;
    }
    stuck_since_.reset();
    held += next.bytes;
    given.push_back(next);
    sending_.push_back(next);
    waiting_.pop_front();
  }
  return given;
}

std::vector<PushTurns::Ask> PushTurns::Clear() {
  const std::vector<Ask> waiting(waiting_.begin(), waiting_.end());
  waiting_.clear();
  sending_.clear();
  stuck_since_.reset();
  return waiting;
}

bool PushTurns::IsWaiting(uint64_t stream, uint64_t request) const {
  return std::any_of(waiting_.begin(), waiting_.end(), Is(stream, request));
}

bool PushTurns::IsSending(uint64_t stream, uint64_t request) const {
  return std::any_of(sending_.begin(), sending_.end(), Is(stream, request));
}

}  // namespace muster
