// PeerGroup: collective operations over connections between its ranks.
//
// Small ranges go by recursive doubling: log2(n) exchanges of all of it, with ranks ever further away. Large
// ones go round a ring, each rank adding its part: 2 (n - 1) / n of the range leave and reach each rank,
// which is the least there is (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009). The ring has no steps that all wait for: what has arrived and been added goes on at
// once.
#pragma once

#include <set>
#include <span>
#include <vector>

#include "collective/peer_links.h"

namespace muster {

/// One thread at a time. Fails as PeerLinks::Drive does.
class PeerGroup {
 public:
  /// `ranks`, ascending, of the identity's, and its own among them. `links` lives longer.
  PeerGroup(PeerLinks& links, std::vector<int> ranks);

  /// Whom this rank exchanges anything with in a ring, and in all operations.
  std::set<int> RingPartners() const;
  std::set<int> Partners() const;

  absl::Status AllReduce(std::span<const float> input, std::span<float> output);
  /// `root`: a place in `ranks`. Round the ring.
  absl::Status Broadcast(std::span<std::byte> data, int root);
  /// By place in `ranks`, round the ring.
  absl::Status AllGather(std::span<const std::byte> input, std::span<std::byte> output);

  int size() const { return static_cast<int>(ranks_.size()); }

 private:
  absl::Status Double(std::span<float> values);
  int64_t MostAhead() const;
  absl::Status Swap(int with, std::span<const std::byte> send, std::span<std::byte> receive);

  PeerLinks& links_;
  const std::vector<int> ranks_;
  int index_ = 0;  // of this rank among them
  std::vector<float> scratch_;
};

}  // namespace muster
