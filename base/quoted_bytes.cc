#include "base/quoted_bytes.h"

#include <absl/strings/escaping.h>

namespace muster {

std::string QuotedBytes(std::string_view text) {
  constexpr size_t kLongest = 40;
  const std::string escaped = absl::CEscape(std::string(text.substr(0, kLongest)));
  return "\"" + escaped + (text.size() > kLongest ? "...\"" : "\"");
}

}  // namespace muster
