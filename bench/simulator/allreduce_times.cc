#include "bench/simulator/allreduce_times.h"

#include <algorithm>
#include <bit>

namespace muster::simulator {
namespace {

// result[i] = the maximum over d = 0 .. n - 1 of begins[(i - d) mod n] - d * decay, for decay >= 0: that of
// the place before, less decay, or begins[i]. Twice round, as the first
// time the maximum of the last place is not known yet.
std::vector<double> DecayingMaximum(const std::vector<double>& begins, double decay) {
  std::vector<double> result = begins;
  double before = begins.back();
  for (int round = 0; round < 2; ++round) {
    for (double& value : result) before = value = std::max(value, before - decay);
  }
  return result;
}

// b(i, rounds - 1) of all ranks, for rounds = 2n - 2.
std::vector<double> LastRoundBegins(const std::vector<double>& begins, double own, double hop) {
  const size_t count = begins.size();
  const double last_round = 2.0 * static_cast<double>(count) - 3;
  std::vector<double> result(count);
  if (hop <= own) {
    // Fewest hops are best: d of them from the rank d places before.
    result = DecayingMaximum(begins, own - hop);
    for (double& value : result) value += last_round * own;
    return result;
  }
  // Most hops are best: 2n - 3 - d of them, for d = 0 .. n - 1, from the rank 2n - 3 - d places before, which
  // is d places behind rank i + 3. The same maximum, with the ring turned round.
  const std::vector<double> turned(begins.rbegin(), begins.rend());
  const std::vector<double> maxima = DecayingMaximum(turned, hop - own);
  for (size_t rank = 0; rank < count; ++rank) {
    result[rank] = maxima[count - 1 - (rank + 3) % count] + last_round * hop;
  }
  return result;
}

// Ranks of recursive doubling are those below this; rank r behind it is the follower of rank r - this.
size_t DoublingRanks(size_t count) { return std::bit_floor(count); }

bool IsDoubled(const Cluster& cluster, const Traffic& traffic, const Bucket& bucket) {
  return cluster.workers > 1 && bucket.share * traffic.dense_bytes <= traffic.doubling_bytes;
}

}  // namespace

void RunRing(const Cluster& cluster, double bytes, double forward_bytes, std::vector<double>* times) {
  const size_t count = times->size();
  if (count == 1) return;
  const double message = cluster.message_seconds;
  const double part_bytes = bytes / static_cast<double>(count);
  const double own = message + part_bytes / cluster.link_bytes_per_second;
  const double hop = 2 * message + cluster.latency_seconds +
                     std::min(forward_bytes, part_bytes) / cluster.link_bytes_per_second;
  const std::vector<double> begins = LastRoundBegins(*times, own, hop);
  for (size_t rank = 0; rank < count; ++rank) {
    const double received = begins[(rank + count - 1) % count] + own + cluster.latency_seconds + message;
    (*times)[rank] = std::max(begins[rank] + own, received);
  }
}

void RunDoubling(const Cluster& cluster, double bytes, std::vector<double>* times) {
  std::vector<double>& done = *times;
  const double send = cluster.message_seconds + bytes / cluster.link_bytes_per_second;
  const double arrive = send + cluster.latency_seconds + cluster.message_seconds;
  const size_t doubled = DoublingRanks(done.size());
  for (size_t rank = doubled; rank < done.size(); ++rank) {
    done[rank - doubled] = std::max(done[rank - doubled], done[rank] + arrive);
  }
  for (size_t distance = 1; distance < doubled; distance *= 2) {
    for (size_t rank = 0; rank < doubled; ++rank) {
      const size_t other = rank ^ distance;
      if (other < rank) continue;
      const double mine = done[rank];
      done[rank] = std::max(mine + send, done[other] + arrive);
      done[other] = std::max(done[other] + send, mine + arrive);
    }
  }
  for (size_t rank = doubled; rank < done.size(); ++rank) {
    done[rank] = done[rank - doubled] + arrive;
    done[rank - doubled] += send;
  }
}

std::vector<double> ReduceBuckets(const Cluster& cluster, const Traffic& traffic,
                                  const std::vector<double>& starts,
                                  const std::vector<double>& compute_seconds) {
  std::vector<double> times = starts;
  for (const Bucket& bucket : traffic.buckets) {
    for (size_t rank = 0; rank < times.size(); ++rank) {
      times[rank] = std::max(times[rank], starts[rank] + bucket.ready_fraction * compute_seconds[rank]);
    }
    const double bytes = bucket.share * traffic.dense_bytes;
    if (IsDoubled(cluster, traffic, bucket)) {
      RunDoubling(cluster, bytes, &times);
    } else {
      RunRing(cluster, bytes, traffic.ring_forward_bytes, &times);
    }
  }
  for (double& time : times) time += traffic.dense_bytes * cluster.worker_update_seconds_per_byte;
  return times;
}

SentBytes ReducedTraffic(const Cluster& cluster, const Traffic& traffic) {
  const auto count = static_cast<size_t>(cluster.workers);
  const size_t doubled = DoublingRanks(count);
  const auto exchanges = static_cast<double>(std::bit_width(doubled) - 1);
  const auto followers = static_cast<double>(count - doubled);
  const auto ranks = static_cast<double>(count);
  SentBytes sent;
  for (const Bucket& bucket : traffic.buckets) {
    const double bytes = bucket.share * traffic.dense_bytes;
    if (IsDoubled(cluster, traffic, bucket)) {
      sent.mean += bytes * (static_cast<double>(doubled) * exchanges + 2 * followers) / ranks;
      sent.busiest += bytes * (exchanges + (followers > 0 ? 1 : 0));
    } else {
      sent.mean += bytes * 2 * (ranks - 1) / ranks;
      sent.busiest += bytes * 2 * (ranks - 1) / ranks;
    }
  }
  return sent;
}

}  // namespace muster::simulator
