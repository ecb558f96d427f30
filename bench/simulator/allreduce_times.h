// When an allreduce ends on each rank, from when each rank begins it.
//
// Ring. Rank i sends in round t, of 2 (n - 1), what came in round t - 1 from rank i - 1 (collective/
// peer_group.h). A part of M / n bytes goes on as it comes. All links have the same rate, so what comes is
// never slower than what leaves, and a part once begun leaves without a gap. Hence, with
//     own = message + part / B                         from the beginning of a part to that of the next one
//     hop = 2 * message + latency + forwarded / B      from it to the next rank's beginning of the same part
// the beginning of round t on rank i is
//     b(i, t) = max(b(i, t - 1) + own, b(i - 1, t - 1) + hop),   b(i, 0) = when rank i begins.
// A path to (i, 2n - 3) that takes j hops comes from rank i - j and costs j * hop + (2n - 3 - j) * own in
// whichever order. So b(i, 2n - 3) is the maximum over the ranks of their beginning plus a term that is
// linear in the distance round the ring, which takes O(n), not the O(n^2) of the rounds, and is the same
// number. With hop > own the longest path from a rank goes round the ring once more.
//
// When nobody is late, that is 2 (n - 1) own + latency + message if hop <= own: the latency of all rounds but
// the last is hidden behind the parts. It is 2 (n - 1) (part / B + latency) only if nothing goes on before
// all of the part is there (forwarded = part).
//
// What is sent to a rank that is late waits in buffers without bound: a rank's neighbour goes on.
//
// Recursive doubling: log2(n) exchanges of all M bytes, each of which ends, at either rank, when its own
// bytes have left and the other's are there; ranks beyond a power of two hand theirs to another and get the
// sum back.
#pragma once

#include <vector>

#include "bench/simulator/scenario.h"

namespace muster::simulator {

/// `times`: in, when each rank begins; out, when it has the sum and has sent what others need. Does nothing
/// for one rank. O(n).
void RunRing(const Cluster& cluster, double bytes, double forward_bytes, std::vector<double>* times);

/// The same. O(n log n).
void RunDoubling(const Cluster& cluster, double bytes, std::vector<double>* times);

/// The buckets of a gradient, one after the other: the next one begins on a rank when it is ready and the one
/// before is done there. At last the worker's own update. `starts`, `compute_seconds`, result: [workers].
std::vector<double> ReduceBuckets(const Cluster& cluster, const Traffic& traffic,
                                  const std::vector<double>& starts,
                                  const std::vector<double>& compute_seconds);

struct SentBytes {
  double mean = 0;
  double busiest = 0;  // of a rank
};

/// Of one worker for all buckets; as many are received.
SentBytes ReducedTraffic(const Cluster& cluster, const Traffic& traffic);

}  // namespace muster::simulator
