// RendezvousServer: where all ranks of a job report, beside rank 0. Carries Rendezvous's decisions to them.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cluster/rendezvous.h"
#include "collective/peer_listener.h"

namespace muster {

/// How often both sides give a sign of life.
inline constexpr Duration kRendezvousHeartbeat = std::chrono::milliseconds(250);

/// Any thread.
class RendezvousServer {
 public:
  /// `all`: the job's ranks at first, as rank 0. `listener` lives longer. rank_names and first_number of the
  /// options are made here. `members`: the job's ranks now, which may be more or fewer; empty: those at
  /// first.
  RendezvousServer(GroupIdentity all, RendezvousOptions options, PeerListener& listener,
                   std::function<std::vector<GroupMember>()> members = {});
  /// Where the job has ended or is concluded: waits until all ranks know, but not for long.
  ~RendezvousServer();

  /// All that there is to do is done, in `step` steps.
  void Conclude(uint64_t step);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster
