// The least time that a step's bytes take on the links: what the simulator comes to where latency, compute
// times and processors cost nothing, and what a report prints beside a measurement.
//
// What is counted. M bytes of gradient, as many of parameters unless they are given apart; n workers on n
// hosts; a link of B bytes per second in each direction for each host, and a switch that never blocks. A
// bound is the time that the busiest link needs in its busier direction. Servers are k shards of equal size,
// and each worker exchanges with all of them at once, as in Li et al., "Scaling distributed machine learning
// with the parameter server" (OSDI 2014).
//
// A synchronous step with servers that answer whole pushes has two phases that do not overlap: nobody is
// answered before the last gradient is there, and where links are shared fairly all answers end together, so
// that no worker pushes while another one still pulls. Its bound is that of the push plus that of the pull.
// (Servers that answered one worker after the other could do with less; TCP does not make them.) Servers that
// answer the first parts of a gradient while the last still come use both directions at once: their bound is
// that of the busier one. Where they share the workers' hosts each direction carries both, and nothing is
// gained.
//
// Asynchronous workers need not be in the same phase. A host of a server then receives from some while it
// sends to others: the bound of n updates, one of each worker, is that of the busier direction alone, or what
// one worker's push and pull take. It is reached by many workers and by those that are alone on their links;
// a few come to it only if their phases happen to fit. Where servers share the workers' hosts, each direction
// carries both pushes and pulls, so that nothing is gained; as a worker that pushes does not receive
// meanwhile, links stay half empty that are full in a synchronous step.
#pragma once

#include <optional>

namespace muster::simulator {

/// 2 (n - 1) / n * M / B: what leaves each rank of a ring, the least of any allreduce (Patarasuk and Yuan,
/// "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
double RingBoundSeconds(int workers, double bytes, double link_bytes_per_second);

struct ServerTraffic {
  int workers = 1;
  std::optional<int> contributors;  // of them, so many make a step; unset: all
  int servers = 1;
  bool servers_on_workers = false;  // server j on the host of worker j mod n; else each on a host of its own
  double push_bytes = 0;            // of one worker, to all servers together
  double pull_bytes = 0;
  double link_bytes_per_second = 0;
};

/// One push of every worker, or one pull. On hosts of their own max(M, n M / k) / B; on the workers', where a
/// worker's own shards cost nothing, (n - 1) / n * M / B for k = n, and more where k is no multiple of n.
double PushBoundSeconds(const ServerTraffic& traffic);
double PullBoundSeconds(const ServerTraffic& traffic);

/// Push, then pull: for k = n on the workers' hosts 2 (n - 1) / n * M / B, as a ring.
double SyncServersBoundSeconds(const ServerTraffic& traffic);

/// Push and pull at once: on hosts of their own max(M, n M / k) / B, if both are of M bytes.
double EarlyServersBoundSeconds(const ServerTraffic& traffic);

/// One update of each worker, in any order.
double AsyncServersBoundSeconds(const ServerTraffic& traffic);

}  // namespace muster::simulator
