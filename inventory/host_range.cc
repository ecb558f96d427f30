#include "inventory/host_range.h"

#include <absl/strings/ascii.h>

#include <charconv>
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

// The numbers of "first:last", as they stand in names.
absl::StatusOr<std::vector<std::string>> ExpandRange(std::string_view range) {
  const size_t colon = range.find(':');
  const std::string_view first_digits = range.substr(0, colon);
  const std::string_view last_digits = colon == std::string_view::npos ? "" : range.substr(colon + 1);
  const std::optional<int> first = ParseDigits(first_digits), last = ParseDigits(last_digits);
  if (!first || !last) {
    return InvalidArgument("[%s] is not a range; write [first:last] with whole numbers, as in ps-[01:16]",
                           range);
  }
  if (*first > *last) return InvalidArgument("the range [%s] goes backwards", range);
  const auto has_leading_zero = [](std::string_view digits) { return digits.size() > 1 && digits[0] == '0'; };
  const bool padded = has_leading_zero(first_digits) || has_leading_zero(last_digits);
  if (padded && first_digits.size() != last_digits.size()) {
    return InvalidArgument("the ends of the range [%s] have leading zeros but not the same width", range);
  }
  if (static_cast<size_t>(*last - *first) >= kMaxHosts) {
    return InvalidArgument("the range [%s] has more than %d hosts", range, kMaxHosts);
  }
  const size_t width = padded ? first_digits.size() : 0;
  std::vector<std::string> numbers;
  for (int number = *first; number <= *last; ++number) {
    std::string digits = std::to_string(number);
    if (digits.size() < width) digits.insert(0, width - digits.size(), '0');
    numbers.push_back(std::move(digits));
  }
  return numbers;
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
