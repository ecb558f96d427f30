#include "launcher/link_rate.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace muster {
namespace {

struct Unit {
  std::string_view name;
  int64_t bits_per_second;
};
// The largest first.
constexpr std::array<Unit, 4> kUnits = {
    {{"gbit", 1'000'000'000}, {"mbit", 1'000'000}, {"kbit", 1'000}, {"bit", 1}}};

constexpr int64_t kLeastRate = 100'000;
constexpr int64_t kGreatestRate = 100'000'000'000;

constexpr int64_t kPacketBytes = 1514;  // an MTU of 1500 and the Ethernet header
constexpr int64_t kLeastBurstBytes = 3 * kPacketBytes;
constexpr int64_t kLeastQueueBytes = 256 << 10;
constexpr int64_t kMostSuperPacketBytes = 65536;  // the kernel's own limit

absl::StatusOr<int64_t> BitsPerUnit(std::string_view unit, std::string_view text) {
  for (const Unit& known : kUnits) {
    if (unit == known.name) return known.bits_per_second;
  }
  if (unit.ends_with("bps")) {
    return InvalidArgument("link rate '%s': %s is bytes per second to tc and bits to others; use %sbit", text,
                           unit, unit.substr(0, unit.size() - 3));
  }
  return InvalidArgument("link rate '%s': %s; use bit, kbit, mbit or gbit, as in 100mbit, or none", text,
                         unit.empty() ? "it has no unit" : absl::StrFormat("unknown unit '%s'", unit));
}

}  // namespace

absl::StatusOr<LinkRate> ParseLinkRate(std::string_view text) {
  const std::string lower = absl::AsciiStrToLower(absl::string_view(text.data(), text.size()));
  if (lower == "none") return LinkRate{};
  const size_t digits = std::min(lower.find_first_not_of("0123456789."), lower.size());
  double number = 0;
  if (!absl::SimpleAtod(lower.substr(0, digits), &number)) {
    return InvalidArgument("link rate '%s': expected a number and a unit, as in 100mbit, or none", text);
  }
  MUSTER_ASSIGN_OR_RETURN(const int64_t unit, BitsPerUnit(std::string_view(lower).substr(digits), text));
  const double rate = number * static_cast<double>(unit);
  if (rate < kLeastRate || rate > kGreatestRate) {
    return InvalidArgument("link rate '%s': expected %s to %s, or none", text, FormatLinkRate({kLeastRate}),
                           FormatLinkRate({kGreatestRate}));
  }
  return LinkRate{.bits_per_second = std::llround(rate)};
}

std::string FormatLinkRate(LinkRate rate) {
  if (!rate.is_limited()) return "none";
  const Unit& unit = *std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& candidate) {
    return rate.bits_per_second % candidate.bits_per_second == 0;
  });
  return absl::StrFormat("%d%s", rate.bits_per_second / unit.bits_per_second, unit.name);
}

Shaping ShapingFor(LinkRate rate) {
  MUSTER_CHECK(rate.is_limited());
  const int64_t bytes_per_second = rate.bits_per_second / 8;
  Shaping shaping;
  shaping.burst_bytes = std::max(kLeastBurstBytes, bytes_per_second / 1000);
  shaping.queue_bytes = std::max(kLeastQueueBytes, bytes_per_second / 100);
  // Headers are a twentieth of what is sent; an eighth is left for them.
  shaping.super_packet_bytes = std::min(kMostSuperPacketBytes, shaping.burst_bytes / 8 * 7);
  return shaping;
}

}  // namespace muster
