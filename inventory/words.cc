#include "inventory/words.h"

#include <absl/strings/ascii.h>

#include <utility>

namespace muster {

absl::StatusOr<std::vector<LineWord>> SplitWords(std::string_view line) {
  std::vector<LineWord> words;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote == 0 && absl::ascii_isspace(c)) {
      in_word = false;
      continue;
    }
    if (!in_word && c == '#') break;
    if (!std::exchange(in_word, true)) words.push_back({.offset = i});
    if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    } else if (c == quote) {
      quote = 0;
    } else {
      words.back().text += c;
    }
  }
  if (quote != 0) return InvalidArgument("a quote (%c) is not closed", quote);
  return words;
}

}  // namespace muster
