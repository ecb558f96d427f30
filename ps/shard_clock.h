// Which step a worker contributes to next, from what its shards have told it. Sync and bounded modes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace muster {

struct ShardClock {
  uint64_t version = 0;    // step of the parameters received last
  uint64_t next_step = 0;  // the first that the shard has no part of this rank for, at least `version`
};

/// No step that a shard has left behind, and else the first that some shard lacks a part of.
inline uint64_t NextStep(std::span<const ShardClock> clocks) {
  uint64_t newest = 0, next = UINT64_MAX;
  for (const ShardClock& clock : clocks) {
    newest = std::max(newest, clock.version);
    next = std::min(next, clock.next_step);
  }
  return std::max(newest, next);
}

/// Parameters too old to contribute to `step`: at least those of step - staleness have to be pulled first.
inline bool IsTooOldFor(uint64_t step, const ShardClock& clock, uint64_t staleness) {
  return clock.version + staleness < step;
}

}  // namespace muster
