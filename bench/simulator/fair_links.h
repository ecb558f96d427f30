// FairLinks: pushes and pulls of many workers at once, over links that they share.
//
// A push goes from one worker to all servers at the same time, in equal parts; a pull comes back from all of
// them. The flows of a link share it fairly, as TCP's do, and are a fluid: that is what makes all answers of
// a synchronous step end together, however many there are. (First come, first served would answer one worker
// after the other, and let the first of them compute and push while the last one waits.)
//
// All parts are of one size, so on servers' hosts of their own all shards see the same, and fair shares (max-
// min) of the n * k flows are one number for all of them: the k flows of a worker are one transfer, at
//     min(B, k B / transfers under way).
// Pulls may have unequal shares: those of kLarge have so many times the share of the others, weighted
// max-min. Then all of kLarge have one rate, and all others. Where servers share the workers' hosts, pushes
// and pulls meet on the links; there all pushes have one rate and all pulls one, max-min of the two, so that
// a worker whose own links are less loaded than others' gets no more than they do, and a transfer is as slow
// as its slowest part. That is exact while all do the same; jobs whose workers are in different phases come
// out up to a sixth slower than flow by flow, seldom faster (server_simulation_test.cc).
//
// Transfers of one kind and share have one size and one rate: they end in the order in which they began. So
// each event costs O(1), where the flows by themselves would cost n * k.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <vector>

namespace muster::simulator {

enum class Direction { kPush, kPull };
enum class Share { kEven, kLarge };

struct FairLinksOptions {
  int workers = 1;
  int servers = 1;
  bool servers_on_workers = false;  // server j on the host of worker j mod workers
  double worker_link_bytes_per_second = 0;
  double server_link_bytes_per_second = 0;  // of a server on a host of its own
  double push_bytes = 0;                    // of one worker, to all servers together
  double pull_bytes = 0;
  double large_share = 1;  // of a link, for a pull of Share::kLarge, where one of kEven has 1
};

/// Of all servers, on the host of this worker: 0 where servers have hosts of their own.
double OwnShare(const FairLinksOptions& options, int worker);

/// `now` never decreases, and is at most NextEnd(). A worker has one transfer of a kind at a time, and none
/// where all servers are on its host.
class FairLinks {
 public:
  explicit FairLinks(const FairLinksOptions& options);

  /// Pushes have even shares.
  void Begin(Direction direction, int worker, double now, Share share = Share::kEven);

  /// When the next transfer ends, if none begins before that; infinity if none is under way.
  double NextEnd() const {
    return std::min({kinds_[kPush].next_end, kinds_[kPull].next_end, kinds_[kLargePull].next_end});
  }

  struct Ended {
    Direction direction;
    int worker;
  };
  /// Goes on to NextEnd(), which is not infinite, and returns what ends there.
  std::vector<Ended> TakeEnded();

 private:
  struct Transfer {
    int worker;
    double end_bytes;  // ends when so many have passed for each transfer of its kind
  };
  enum KindIndex { kPush, kPull, kLargePull, kKinds };
  struct Kind {
    Direction direction = Direction::kPush;
    double bytes = 0;  // of a transfer
    double share = 1;
    double passed = 0;  // for each that has been under way all the time
    double rate = 0;    // bytes per second for each
    double next_end = std::numeric_limits<double>::infinity();
    std::deque<Transfer> transfers;
  };

  // Hosts of workers differ in how many servers they have: least, or one more.
  struct HostClass {
    double share = 0;  // of all servers, on each host
    int hosts = 0;
    std::array<int, kKinds> busy{};  // with a transfer of that kind
  };

  // What one byte per second of each transfer of a kind puts on a link, one that some host has.
  using Parts = std::array<double, kKinds>;
  struct Load {
    Parts parts{};
    double capacity = 0;
  };

  double CountOf(KindIndex kind) const { return static_cast<double>(kinds_[kind].transfers.size()); }
  void Count(int kind, int worker, int change);
  void PassUntil(double now);
  void UpdateRates();
  void ShareLinks();
  // Into loads_, which keeps its memory from one event to the next.
  void ListSeparateLoads();
  void ListSharedLoads();

  const FairLinksOptions options_;
  double now_ = 0;
  std::array<Kind, kKinds> kinds_;
  HostClass classes_[2];  // [1]: one server more
  std::vector<Load> loads_;
};

}  // namespace muster::simulator
