#include "inventory/host_range.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

#include "inventory/yaml_tree.h"

namespace muster {
namespace {

constexpr size_t kMaxNameBytes = 253;  // of a DNS name
constexpr size_t kMaxDigits = 9;

std::optional<int> ParseDigits(std::string_view digits) {
  if (digits.empty() || digits.size() > kMaxDigits) return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits[0] == '-' || error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

absl::Status CheckCount(std::string_view range, int first, int last, int step) {
  if (first > last) return InvalidArgument("the range [%s] goes backwards", range);
  if (static_cast<size_t>((last - first) / step) >= kMaxHosts) {
    return InvalidArgument("the range [%s] has more than %d hosts", range, kMaxHosts);
  }
  return absl::OkStatus();
}

bool AreLetters(std::string_view a, std::string_view b) {
  const auto both = [&](const auto& is) { return is(a[0]) && is(b[0]); };
  return a.size() == 1 && b.size() == 1 && (both(absl::ascii_islower) || both(absl::ascii_isupper));
}

// The numbers or letters of "first:last" or "first:last:step", as they stand in names.
absl::StatusOr<std::vector<std::string>> ExpandRange(std::string_view range) {
  const size_t colon = std::min(range.find(':'), range.size());
  const std::string_view from = range.substr(0, colon);
  std::string_view to = range.substr(std::min(colon + 1, range.size()));
  std::optional<int> step = 1;
  if (const size_t second = to.find(':'); second != std::string_view::npos) {
    step = ParseDigits(to.substr(second + 1));
    to = to.substr(0, second);
  }
  std::vector<std::string> names;
  if (step.value_or(0) > 0 && AreLetters(from, to)) {
    MUSTER_RETURN_IF_ERROR(CheckCount(range, from[0], to[0], *step));
    for (int letter = from[0]; letter <= to[0]; letter += *step)
      names.emplace_back(1, static_cast<char>(letter));
    return names;
  }
  const std::optional<int> first = ParseDigits(from), last = ParseDigits(to);
  if (!first || !last || step.value_or(0) < 1) {
    return InvalidArgument("[%s] is not a range; write [first:last] with whole numbers, as in ps-[01:16]",
                           range);
  }
  MUSTER_RETURN_IF_ERROR(CheckCount(range, *first, *last, *step));
  const auto has_leading_zero = [](std::string_view digits) { return digits.size() > 1 && digits[0] == '0'; };
  const bool padded = has_leading_zero(from) || has_leading_zero(to);
  if (padded && from.size() != to.size()) {
    return InvalidArgument("the ends of the range [%s] have leading zeros but not the same width", range);
  }
  const size_t width = padded ? from.size() : 0;
  for (int64_t number = *first; number <= *last; number += *step) {
    std::string digits = std::to_string(number);
    if (digits.size() < width) digits.insert(0, width - digits.size(), '0');
    names.push_back(std::move(digits));
  }
  return names;
}

absl::Status CheckName(const std::string& name) {
  bool valid = !name.empty() && name.size() <= kMaxNameBytes && absl::ascii_isalnum(name[0]);
  for (const char c : name) valid = valid && (absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.');
  if (valid) return absl::OkStatus();
  return InvalidArgument(
      "%s is not a host name: letters, digits, '-', '_' and '.', the first a letter or digit, at most %d "
      "bytes; "
      "another address goes into `ssh`",
      Quoted(name), kMaxNameBytes);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandHostNames(const std::string& pattern) {
  std::vector<std::string> names = {""};
  std::string_view rest = pattern;
  while (!rest.empty()) {
    const size_t open = rest.find('[');
    const std::string_view literal = rest.substr(0, open);
    if (literal.find(']') != std::string_view::npos)
      return InvalidArgument("']' without '[' in %s", Quoted(pattern));
    for (std::string& name : names) name += literal;
    if (open == std::string_view::npos) break;
    const size_t close = rest.find(']', open);
    if (close == std::string_view::npos) return InvalidArgument("'[' without ']' in %s", Quoted(pattern));
    MUSTER_ASSIGN_OR_RETURN(const std::vector<std::string> numbers,
                            ExpandRange(rest.substr(open + 1, close - open - 1)));
    if (names.size() * numbers.size() > kMaxHosts) {
      return InvalidArgument("%s stands for more than %d hosts", Quoted(pattern), kMaxHosts);
    }
    std::vector<std::string> longer;
    longer.reserve(names.size() * numbers.size());
    for (const std::string& name : names) {
      for (const std::string& number : numbers) longer.push_back(name + number);
    }
    names = std::move(longer);
    rest.remove_prefix(close + 1);
  }
  for (const std::string& name : names) MUSTER_RETURN_IF_ERROR(CheckName(name));
  return names;
}

}  // namespace muster
