#include "launcher/bench/markup.h"

#include <algorithm>
#include <cstdint>

namespace muster::bench {
namespace {

// The bytes of the character of XML that `text`, not empty, starts with; 0: there is none.
size_t CharacterLength(std::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) return first >= 0x20 || first == '\t' || first == '\n' || first == '\r' ? 1 : 0;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  uint32_t character = first & (0x7f >> length);
  for (size_t i = 1; i < length; ++i) {
    const auto next = static_cast<uint8_t>(text[i]);
    if ((next & 0xc0) != 0x80) return 0;
    character = character << 6 | (next & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};  // by length: a longer spelling is refused
  const bool is_surrogate = character >= 0xd800 && character < 0xe000;
  const bool is_character = character >= kLeast[length] && character <= 0x10ffff && !is_surrogate &&
                            character != 0xfffe && character != 0xffff;
  return is_character ? length : 0;
}

}  // namespace

std::string Escape(std::string_view text) {
  std::string escaped;
  while (!text.empty()) {
    const size_t length = CharacterLength(text);
    switch (length == 0 ? '\0' : text[0]) {
      case '\0':
        escaped += "\xef\xbf\xbd";
        break;
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return escaped;
}

}  // namespace muster::bench
