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
// Where servers share the workers' hosts, pushes and pulls meet on the links; there all pushes have one rate
// and all pulls one, max-min of the two, so that a worker whose own links are less loaded than others' gets
// no more than they do, and a transfer is as slow as its slowest part. That is exact while all do the same;
// jobs whose workers are in different phases come out up to a tenth slower than flow by flow, seldom faster
// (server_simulation_test.cc).
//
// Transfers of one kind have one size and one rate: they end in the order in which they began. So each event
// costs O(1), where the flows by themselves would cost n * k.
#pragma once

#include <algorithm>
#include <deque>
#include <limits>
#include <vector>

namespace muster::simulator {

enum class Direction { kPush, kPull };

struct FairLinksOptions {
  int workers = 1;
  int servers = 1;
  bool servers_on_workers = false;  // server j on the host of worker j mod workers
  double worker_link_bytes_per_second = 0;
  double server_link_bytes_per_second = 0;  // of a server on a host of its own
  double push_bytes = 0;                    // of one worker, to all servers together
  double pull_bytes = 0;
};

/// Of all servers, on the host of this worker: 0 where servers have hosts of their own.
double OwnShare(const FairLinksOptions& options, int worker);

/// `now` never decreases, and is at most NextEnd(). A worker has one transfer of a kind at a time, and none
/// where all servers are on its host.
class FairLinks {
 public:
  explicit FairLinks(const FairLinksOptions& options);

  void Begin(Direction direction, int worker, double now);

  /// When the next transfer ends, if none begins before that; infinity if none is under way.
  double NextEnd() const { return std::min(push_.next_end, pull_.next_end); }

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
  struct Kind {
    double bytes = 0;   // of a transfer
    double passed = 0;  // for each that has been under way all the time
    double rate = 0;    // bytes per second for each
    double next_end = std::numeric_limits<double>::infinity();
    std::deque<Transfer> transfers;
  };

  // Hosts of workers differ in how many servers they have: least, or one more.
  struct HostClass {
    double share = 0;  // of all servers, on each host
    int hosts = 0;
    int pushing = 0;
    int pulling = 0;
  };

  // What one byte per second of each push and of each pull puts on a link, one that some host has.
  struct Load {
    double push = 0;
    double pull = 0;
    double capacity = 0;
  };

  Kind& KindOf(Direction direction) { return direction == Direction::kPush ? push_ : pull_; }
  void Count(Direction direction, int worker, int change);
  void PassUntil(double now);
  void UpdateRates();
  // Into loads_, which keeps its memory from one event to the next.
  void ListSeparateLoads();
  void ListSharedLoads();

  const FairLinksOptions options_;
  double now_ = 0;
  Kind push_;
  Kind pull_;
  HostClass classes_[2];  // [1]: one server more
  std::vector<Load> loads_;
};

}  // namespace muster::simulator
