// The rate of a virtual host's link, and what it takes to hold traffic to it. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace muster {

/// Of a link, in each direction.
struct LinkRate {
  int64_t bits_per_second = 0;  // 0: as fast as the machine

  bool is_limited() const { return bits_per_second > 0; }
  bool operator==(const LinkRate&) const = default;
};

/// As tc takes it, in any case: "100mbit", "2.5gbit", "640kbit", "1000000bit"; or "none". From 100 kbit to
/// 100 gbit. InvalidArgument otherwise, "bps" included, which is bytes per second to tc and bits to most.
absl::StatusOr<LinkRate> ParseLinkRate(std::string_view text);

/// What ParseLinkRate reads as this rate, in the largest unit that makes a whole number of it.
std::string FormatLinkRate(LinkRate rate);

/// How a token bucket filter (tc-tbf(8)) and the sender behind it are set for a rate. TCP in such a link gets
/// 95.6 % of it, 1448 of the 1514 bytes of a packet.
struct Shaping {
  /// The bucket, a millisecond of the rate: what a link that was idle lets through at once. A smaller one
  /// loses tokens while the filter's timer waits for a processor, a larger one hides the rate from messages
  /// that fit into it.
  int64_t burst_bytes = 0;
  /// What waits for the bucket before packets are dropped: 10 ms of the rate, and no less than small switches
  /// have for a port.
  int64_t queue_bytes = 0;
  /// The most that TCP hands over at once (GSO). The filter passes what fits into its bucket in one piece and
  /// cuts the rest into packets, at 1 gbit a processor's whole work. So not more than fits, with the headers
  /// of each packet in it, which count.
  int64_t super_packet_bytes = 0;
};

/// `rate` is limited.
Shaping ShapingFor(LinkRate rate);

}  // namespace muster
