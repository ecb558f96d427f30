// Addresses as people write them: "gpu-01", "10.0.0.21:22", "[fe80::1]:2222", "train@bastion.example.org",
// "10.0.0.0/24".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace muster {

inline constexpr int kDefaultSshPort = 22;

struct Endpoint {
  std::string user;     // empty: not given
  std::string address;  // a name or an IP address, without brackets
  int port = 0;         // 0: not given
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

/// IP addresses that share their first `prefix_bits`; at most 65536 of them.
struct AddressBlock {
  std::string address;
  int prefix_bits = 0;
  friend bool operator==(const AddressBlock&, const AddressBlock&) = default;
};

/// A literal IPv4 or IPv6 address, without brackets or zone.
bool IsIpAddress(const std::string& text);

/// Whether packets can be sent there for one machine: it is neither "any" nor multicast nor broadcast.
bool IsAddressOfOneHost(const std::string& text);

/// The same for all spellings of an address: IPv6 as inet_ntop has it, names in lower case.
std::string CanonicalAddress(const std::string& text);

/// `[user@]address[:port]`. IPv6 with a port stands in brackets. Errors have no position.
absl::StatusOr<Endpoint> ParseEndpoint(const std::string& text);

/// `address/bits`, or one address. Errors have no position.
absl::StatusOr<AddressBlock> ParseAddressBlock(const std::string& text);

/// Whether all of `inner` is in `outer`. If not, and not the other way round, they have nothing in common.
bool Contains(const AddressBlock& outer, const AddressBlock& inner);

/// How many there are in a block.
int64_t CountOf(const AddressBlock& block);

/// All addresses of a block, as literals, but for those of an IPv4 network itself and for broadcast.
std::vector<std::string> AddressesIn(const AddressBlock& block);

}  // namespace muster
