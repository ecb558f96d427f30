#include "inventory/words.h"

#include <absl/strings/ascii.h>

#include <utility>

namespace muster {
namespace {

bool IsEscaped(char c, char quote, Escapes escapes) {
  if (escapes == Escapes::kOfSshConfig) {
    return c == '"' || c == '\'' || c == '\\' || (quote == 0 && c == ' ');
  }
  return quote == 0 || (quote == '"' && (c == '"' || c == '\\'));
}

}  // namespace

absl::StatusOr<std::vector<LineWord>> SplitWords(std::string_view line, Escapes escapes) {
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
    if (c == '\\' && i + 1 < line.size() && IsEscaped(line[i + 1], quote, escapes)) {
      words.back().text += line[++i];
    } else if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    } else if (quote != 0 && c == quote) {
      quote = 0;
    } else {
      words.back().text += c;
    }
  }
  if (quote != 0) return InvalidArgument("a quote (%c) is not closed", quote);
  return words;
}

}  // namespace muster
