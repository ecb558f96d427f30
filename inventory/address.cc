#include "inventory/address.h"

#include <absl/strings/ascii.h>
#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "inventory/yaml_tree.h"

namespace muster {
namespace {

constexpr size_t kMaxNameBytes = 253;  // of a DNS name

std::optional<int> ParseDecimal(std::string_view digits, int minimum, int maximum) {
  int value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value >= minimum && value <= maximum ? std::optional(value) : std::nullopt;
}

bool IsIpv6(const std::string& text) {
  in6_addr address;
  return ::inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

bool IsIpv4(const std::string& text) {
  in_addr address;
  return ::inet_pton(AF_INET, text.c_str(), &address) == 1;
}

// A name that could start with '-' would be read as an option by ssh.
bool IsName(std::string_view text) {
  const auto is_name_byte = [](char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.'; };
  return !text.empty() && text.size() <= kMaxNameBytes && absl::ascii_isalnum(text[0]) &&
         std::all_of(text.begin(), text.end(), is_name_byte);
}

// fe80::1%eth0 is a link-local address on one interface.
bool IsIpv6WithZone(const std::string& text) {
  const size_t percent = text.find('%');
  return IsIpv6(text.substr(0, percent)) &&
         (percent == std::string::npos || IsName(text.substr(percent + 1)));
}

}  // namespace

bool IsIpAddress(const std::string& text) { return IsIpv4(text) || IsIpv6(text); }

bool IsAddressOfOneHost(const std::string& text) {
  if (in_addr ipv4{}; ::inet_pton(AF_INET, text.c_str(), &ipv4) == 1) {
    const uint32_t bits = ntohl(ipv4.s_addr);
    return bits != INADDR_ANY && bits != INADDR_BROADCAST && !IN_MULTICAST(bits);
  }
  in6_addr ipv6{};
  return ::inet_pton(AF_INET6, text.c_str(), &ipv6) == 1 && !IN6_IS_ADDR_UNSPECIFIED(&ipv6) &&
         !IN6_IS_ADDR_MULTICAST(&ipv6);
}

std::string CanonicalAddress(const std::string& text) {
  const size_t percent = std::min(text.find('%'), text.size());
  in6_addr address{};
  char spelled[INET6_ADDRSTRLEN];
  if (::inet_pton(AF_INET6, text.substr(0, percent).c_str(), &address) != 1 ||
      ::inet_ntop(AF_INET6, &address, spelled, sizeof spelled) == nullptr) {
    return absl::AsciiStrToLower(text);
  }
  return spelled + text.substr(percent);
}

absl::StatusOr<Endpoint> ParseEndpoint(const std::string& text) {
  Endpoint endpoint;
  std::string rest = text;
  if (const size_t at = rest.rfind('@'); at != std::string::npos) {
    endpoint.user = rest.substr(0, at);
    rest = rest.substr(at + 1);
    if (endpoint.user.empty()) return InvalidArgument("no user before '@' in %s", Quoted(text));
  }
  std::optional<std::string> port;
  const size_t first_colon = rest.find(':');
  if (rest.starts_with('[')) {
    const size_t close = rest.find(']');
    const std::string after = close == std::string::npos ? "?" : rest.substr(close + 1);
    if (!after.empty() && after[0] != ':') return InvalidArgument("%s is not [address]:port", Quoted(text));
    if (!after.empty()) port = after.substr(1);
    endpoint.address = rest.substr(1, close - 1);
    if (!IsIpv6WithZone(endpoint.address)) {
      return InvalidArgument("%s is not an IPv6 address", Quoted(endpoint.address));
    }
  } else if (first_colon != std::string::npos && first_colon == rest.rfind(':')) {
    endpoint.address = rest.substr(0, first_colon);
    port = rest.substr(first_colon + 1);
  } else {
    endpoint.address = rest;
  }
  if (!IsName(endpoint.address) && !IsIpv6WithZone(endpoint.address)) {
    return InvalidArgument("%s is not a host name or IP address", Quoted(endpoint.address));
  }
  if (port) {
    const std::optional<int> number = ParseDecimal(*port, 1, 65535);
    if (!number) return InvalidArgument("port %s is not a number from 1 to 65535", Quoted(*port));
    endpoint.port = *number;
  }
  return endpoint;
}

absl::StatusOr<AddressBlock> ParseAddressBlock(const std::string& text) {
  constexpr int kMaxHostBits = 16;
  const size_t slash = text.find('/');
  AddressBlock block{.address = text.substr(0, slash)};
  const bool is_ipv4 = IsIpv4(block.address);
  if (!is_ipv4 && !IsIpv6(block.address)) {
    return InvalidArgument("\"%s\" is not an IP address or a block of them like 10.0.0.0/24", text);
  }
  const int address_bits = is_ipv4 ? 32 : 128;
  block.prefix_bits = address_bits;
  if (slash == std::string::npos) return block;
  const std::optional<int> bits = ParseDecimal(text.substr(slash + 1), 0, address_bits);
  if (!bits) return InvalidArgument("\"%s\": the prefix is not a number from 0 to %d", text, address_bits);
  if (*bits < address_bits - kMaxHostBits) {
    return InvalidArgument("\"%s\" has more than 65536 addresses to search; use a prefix of at least /%d",
                           text, address_bits - kMaxHostBits);
  }
  block.prefix_bits = *bits;
  return block;
}

bool Contains(const AddressBlock& outer, const AddressBlock& inner) {
  const int family = IsIpv4(outer.address) ? AF_INET : AF_INET6;
  if (outer.prefix_bits > inner.prefix_bits) return false;
  std::array<unsigned char, 16> a{}, b{};
  if (::inet_pton(family, outer.address.c_str(), a.data()) != 1) return false;
  if (::inet_pton(family, inner.address.c_str(), b.data()) != 1) return false;
  const int bytes = outer.prefix_bits / 8, bits = outer.prefix_bits % 8;
  if (!std::equal(a.begin(), a.begin() + bytes, b.begin())) return false;
  return bits == 0 || (a[bytes] ^ b[bytes]) >> (8 - bits) == 0;
}

int64_t CountOf(const AddressBlock& block) {
  return int64_t{1} << ((IsIpv4(block.address) ? 32 : 128) - block.prefix_bits);
}

std::vector<std::string> AddressesIn(const AddressBlock& block) {
  const bool is_ipv4 = IsIpv4(block.address);
  const int family = is_ipv4 ? AF_INET : AF_INET6;
  const int address_bits = is_ipv4 ? 32 : 128;
  const int host_bits = address_bits - block.prefix_bits;
  std::array<unsigned char, 16> bytes{};
  MUSTER_CHECK(::inet_pton(family, block.address.c_str(), bytes.data()) == 1, block.address);
  // Blocks are small: only the last bytes differ.
  unsigned char* const last = bytes.data() + address_bits / 8;
  const auto low_bits = [&] { return (last[-3] << 16) + (last[-2] << 8) + last[-1]; };
  const int first = low_bits() >> host_bits << host_bits;
  const int count = 1 << host_bits;
  const int edge = is_ipv4 && host_bits >= 2 ? 1 : 0;
  std::vector<std::string> addresses;
  addresses.reserve(count);
  for (int i = first + edge; i < first + count - edge; ++i) {
    for (int byte = 1; byte <= 3; ++byte) last[-byte] = static_cast<unsigned char>(i >> 8 * (byte - 1));
    char text[INET6_ADDRSTRLEN];
    MUSTER_CHECK(::inet_ntop(family, bytes.data(), text, sizeof text) != nullptr);
    addresses.emplace_back(text);
  }
  return addresses;
}

}  // namespace muster
