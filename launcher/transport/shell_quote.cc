#include "launcher/transport/shell_quote.h"

#include "base/status.h"

namespace muster {

std::string QuoteWord(std::string_view word) {
  std::string quoted;
  bool in_quotes = false;
  for (const char c : word) {
    MUSTER_CHECK(c != '\0' && c != '\n' && c != '\r', "a line break or NUL in a shell word");
    // Inside single quotes fish takes \ and csh takes ! for special. Outside, behind a backslash, all shells
    // agree on them.
    const bool outside = c == '\'' || c == '\\' || c == '!';
    if (in_quotes == outside) {
      quoted += '\'';
      in_quotes = !in_quotes;
    }
    if (outside) quoted += '\\';
    quoted += c;
  }
  if (in_quotes || quoted.empty()) quoted += quoted.empty() ? "''" : "'";
  return quoted;
}

std::string ForAnyLoginShell(std::string_view command) { return "exec sh -c " + QuoteWord(command); }

}  // namespace muster
