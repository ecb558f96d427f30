// RendezvousServer: where all ranks of a job report, beside rank 0. Carries Rendezvous's decisions to them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cluster/rendezvous.h"
#include "collective/peer_listener.h"

namespace muster {

/// How often both sides give a sign of life.
inline constexpr Duration kRendezvousHeartbeat = std::chrono::milliseconds(250);

/// Any thread.
class RendezvousServer {
 public:
  /// The job's ranks now, if there are more or fewer of them than when it was called last, or some elsewhere.
  using Members = std::function<std::optional<std::vector<GroupMember>>()>;

  /// `all`: the job's ranks at first, as rank 0. `listener` lives longer. rank_names and first_number of the
  /// options are made here. Empty `members`: the ranks stay those at first.
  RendezvousServer(GroupIdentity all, RendezvousOptions options, PeerListener& listener,
                   Members members = {});
  /// Where the job has ended or is concluded: waits until all ranks know, but not for long.
  ~RendezvousServer();

  /// All that there is to do is done, in `step` steps.
  void Conclude(uint64_t step);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster
