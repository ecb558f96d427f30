#include "bench/simulator/bounds.h"

#include <algorithm>

namespace muster::simulator {
namespace {

// Of all shards, on the hosts of workers with the fewest and with the most of them.
struct HostShares {
  double least;
  double most;
};

HostShares SharesOf(const ServerTraffic& traffic) {
  const int least = traffic.servers / traffic.workers;
  const int most = least + (traffic.servers % traffic.workers > 0 ? 1 : 0);
  return {static_cast<double>(least) / traffic.servers, static_cast<double>(most) / traffic.servers};
}

// A host receives the others' pushes to its shards, and the answers to its worker from all other shards, or
// sends what is the same the other way round.
double BusiestSharedHostBytes(const ServerTraffic& traffic) {
  const auto host_bytes = [&](double share) {
    const double to_servers = share * (traffic.workers - 1);
    const double to_worker = 1 - share;
    return std::max(traffic.push_bytes * to_servers + traffic.pull_bytes * to_worker,
                    traffic.pull_bytes * to_servers + traffic.push_bytes * to_worker);
  };
  const HostShares shares = SharesOf(traffic);
  return std::max(host_bytes(shares.least), host_bytes(shares.most));
}

// What the busiest link carries when every worker sends `bytes` to the servers, or is sent as much.
double BusiestLinkBytes(const ServerTraffic& traffic, double bytes) {
  const int contributors = traffic.contributors.value_or(traffic.workers);
  if (!traffic.servers_on_workers) {
    return std::max(bytes, bytes * contributors / traffic.servers);
  }
  // What the host with the most receives of the others. No worker sends more: that goes to those others'
  // hosts. Who does not contribute sends nothing to its own host: best one with the fewest.
  const HostShares shares = SharesOf(traffic);
  const double most = bytes * shares.most * (contributors - 1);
  return contributors < traffic.workers ? std::max(most, bytes * shares.least * contributors) : most;
}

}  // namespace

double RingBoundSeconds(int workers, double bytes, double link_bytes_per_second) {
  return 2.0 * (workers - 1) / workers * bytes / link_bytes_per_second;
}

double PushBoundSeconds(const ServerTraffic& traffic) {
  return BusiestLinkBytes(traffic, traffic.push_bytes) / traffic.link_bytes_per_second;
}

double PullBoundSeconds(const ServerTraffic& traffic) {
  return BusiestLinkBytes(traffic, traffic.pull_bytes) / traffic.link_bytes_per_second;
}

double SyncServersBoundSeconds(const ServerTraffic& traffic) {
  return PushBoundSeconds(traffic) + PullBoundSeconds(traffic);
}

double EarlyServersBoundSeconds(const ServerTraffic& traffic) {
  if (!traffic.servers_on_workers) return std::max(PushBoundSeconds(traffic), PullBoundSeconds(traffic));
  return BusiestSharedHostBytes(traffic) / traffic.link_bytes_per_second;
}

double AsyncServersBoundSeconds(const ServerTraffic& traffic) {
  const double exchange_bytes = traffic.push_bytes + traffic.pull_bytes;  // which a worker does not overlap
  if (!traffic.servers_on_workers) {
    return std::max({PushBoundSeconds(traffic), PullBoundSeconds(traffic),
                     exchange_bytes / traffic.link_bytes_per_second});
  }
  return std::max(BusiestSharedHostBytes(traffic), exchange_bytes * (1 - SharesOf(traffic).least)) /
         traffic.link_bytes_per_second;
}

}  // namespace muster::simulator
