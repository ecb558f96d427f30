// What a parameter server counts and sees, for whoever watches it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "ps/update_rule.h"

namespace muster {

struct ShardMetrics {
  int shard = 0;
  bool serves = true;                      // false: as a backup
  uint64_t step = 0;                       // of the parameters
  int64_t table_rows = 0;                  // that it holds: they have been updated
  std::vector<PushTally> workers;          // by rank, what this process has decided on; no count goes down
  int64_t held_pushes = 0;                 // beside them; sync, bounded: that wait for those of other workers
  int64_t queued_pushes = 0;               // async: large ones whose senders wait for their turn
  std::optional<Duration> checkpoint_age;  // since the newest one was complete
  // ps:0, sync and bounded: ranks that a step has waited for longer than two seconds, and for how long.
  std::vector<int> awaited;
  Duration waiting{};
};

struct ServerMetrics {
  std::vector<ShardMetrics> shards;
  uint64_t received_bytes = 0;  // of frames of those who have connected to it, and to them
  uint64_t sent_bytes = 0;
};

}  // namespace muster
