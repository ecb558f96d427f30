// Words on a line of a file that is not YAML.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace muster {

struct LineWord {
  std::string text;   // without quotes
  size_t offset = 0;  // of its first byte, or quote, in the line
};

/// What a backslash takes its meaning from. To ssh's files: quotes, a backslash and, outside quotes, a blank.
/// To a shell: outside quotes anything, between double ones those and a backslash. Before others it is one.
enum class Escapes : uint8_t { kOfShell, kOfSshConfig };

/// The words as a shell splits them: quotes of both kinds, which may stand in a word, are taken off, and a
/// '#' that begins a word ends the line. InvalidArgument, without a position: a quote that is not closed.
absl::StatusOr<std::vector<LineWord>> SplitWords(std::string_view line, Escapes escapes = Escapes::kOfShell);

}  // namespace muster
