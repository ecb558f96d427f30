// PushTurns: which workers may send their gradients now. What a server is sent it has to hold, and a message
// cannot be stopped once it is under way: where all at once would be too much, workers ask first, and are
// told to go ahead a few at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/clock.h"

namespace muster {

/// One thread at a time.
class PushTurns {
 public:
  struct Ask {
    uint64_t stream = 0;
    uint64_t request = 0;
    int rank = 0;
    int64_t bytes = 0;
  };

  /// When nobody's turn has come for `patience`, because somebody sends or receives slowly, the next one goes
  /// ahead, whatever that takes.
  PushTurns(int64_t budget, Duration patience) : budget_(budget), patience_(patience) {}

  /// At the end of the queue; what this stream asked for, or was told to send, before is forgotten.
  void Add(const Ask& ask);

  /// The stream has sent what it was told to, or is gone.
  void Remove(uint64_t stream);

  /// Whose turn it is now, in the order in which they asked: as many as fit into the budget beside what is
  /// being sent and `held` bytes. Where nothing is, the first one in any case.
  std::vector<Ask> Give(int64_t held, TimePoint now);

  /// Forgets all. Returns those that wait.
  std::vector<Ask> Clear();

  bool IsWaiting(uint64_t stream, uint64_t request) const;
  bool IsSending(uint64_t stream, uint64_t request) const;
  bool anyone_waits() const { return !waiting_.empty(); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  const std::vector<Ask>& sending() const { return sending_; }

 private:
  int64_t budget_;
  Duration patience_;
  std::optional<TimePoint> stuck_since_;  // the first that waits does not fit
  std::deque<Ask> waiting_;
  std::vector<Ask> sending_;
};

}  // namespace muster
