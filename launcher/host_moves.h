// Hosts that have got another address, from when that is known until their tasks train again. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "launcher/reconciler/messages.h"

namespace muster {

struct HostMove {
  std::string host;
  // "moved 10.0.0.21 -> 10.0.0.37" as soon as it is seen, and once it is over "moved 10.0.0.21 -> 10.0.0.37,
  // worker:3 rejoined after 1.8 s, 0 steps lost", or how many tasks were started again; nothing of that where
  // it is not known what ran before.
  std::string what;
};

class HostMoves {
 public:
  /// Those that this view shows first, and those that are over with it: all tasks of the job run in its
  /// newest cluster. The time is from when the host could not be reached where it was, as far as anybody
  /// noticed.
  std::vector<HostMove> OnView(const reconcile::View& view, TimePoint now);

  /// How many states of all tasks this holds: what it costs, in memory and in time for each view.
  size_t kept_states() const;

 private:
  using Incarnations = std::map<std::string, uint32_t>;  // by task
  struct Move {
    TimePoint since;
    std::shared_ptr<const Incarnations>
        incarnations;  // of the job's tasks, then; many hosts may have the same
    std::string from;
  };

  static Incarnations IncarnationsOf(const reconcile::View& view);

  // Of the view before.
  uint64_t generation_ = 0;
  std::shared_ptr<const Incarnations> incarnations_ =
      std::make_shared<Incarnations>();           // as long as it stays
  std::map<std::string, std::string> addresses_;  // by host; a spare one that is used now has none

  std::map<std::string, Move> lost_;   // hosts that may have moved
  std::map<std::string, Move> moves_;  // of hosts whose tasks do not all run again
};

}  // namespace muster
