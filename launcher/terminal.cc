#include "launcher/terminal.h"

#include <absl/strings/str_format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "base/stdout.h"

namespace muster {
namespace {

constexpr Duration kDrawInterval = std::chrono::milliseconds(100);
// A task that never ends a line must not be kept in memory without bound.
constexpr size_t kLongestLine = 1 << 20;

}  // namespace

bool IsTerminal(int fd) {
  const char* term = std::getenv("TERM");
  return ::isatty(fd) == 1 && term != nullptr && std::strcmp(term, "dumb") != 0;
}

size_t TerminalWidth(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

LiveBlock::LiveBlock() : enabled_(IsTerminal(STDERR_FILENO)) {}

void LiveBlock::Show(const std::vector<std::string>& lines, bool must) {
  if (!enabled_ || (!must && Now() - last_draw_ < kDrawInterval)) return;
  last_draw_ = Now();
  Clear();
  std::string text;
  // A line that wraps would be two lines to take away.
  for (const std::string& line : lines) text += line.substr(0, TerminalWidth(STDERR_FILENO) - 1) + "\n";
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
  drawn_lines_ = lines.size();
}

void LiveBlock::Clear() {
  if (drawn_lines_ == 0) return;
  // From wherever the cursor is: a Ctrl-C is echoed as "^C".
  std::fprintf(stderr, "\r\033[%zuA\033[J", drawn_lines_);
  std::fflush(stderr);
  drawn_lines_ = 0;
}

LogPrinter::LogPrinter(bool prefix, int fd)
    : fd_(fd), prefix_(prefix), colors_(prefix && IsTerminal(fd) && std::getenv("NO_COLOR") == nullptr) {}

void LogPrinter::Put(std::string_view text) const {
  if (fd_ == STDOUT_FILENO) return PrintToStdout(text);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void LogPrinter::Print(const std::string& task, const std::string& host, const std::string& bytes) {
  if (!prefix_) {
    Put(bytes);
    return;
  }
  std::string& partial = partial_[task];
  partial += bytes;
  size_t begin = 0;
  for (size_t end; (end = partial.find('\n', begin)) != std::string::npos; begin = end + 1) {
    PrintLine(task, host, std::string_view(partial).substr(begin, end - begin));
  }
  partial.erase(0, begin);
  if (partial.size() > kLongestLine) Flush(task, host);
}

void LogPrinter::Flush(const std::string& task, const std::string& host) {
  std::string& partial = partial_[task];
  if (!partial.empty()) PrintLine(task, host, partial);
  partial.clear();
}

void LogPrinter::PrintLine(const std::string& task, const std::string& host, std::string_view line) {
  const std::string label = "[" + task + (host.empty() ? "" : "@") + host + "] ";
  constexpr int kColors[] = {32, 33, 34, 35, 36, 92, 93, 94, 95, 96};
  const size_t color = std::hash<std::string>()(task) % std::size(kColors);
  std::string text = colors_ ? "\033[" + std::to_string(kColors[color]) + "m" + label + "\033[0m" : label;
  text += line;
  text += '\n';
  Put(text);
}

std::string MissedLogText(const std::string& task, uint64_t bytes) {
  return absl::StrFormat(
      "%s: %d bytes of what it printed are missing here: its host keeps only the newest (`max_log_bytes:`)",
      task, bytes);
}

std::string SkippedLogText(const std::string& task, uint64_t bytes) {
  return absl::StrFormat(
      "%s: %d bytes of what it printed are left out here, which is not read as fast: `muster logs` shows all",
      task, bytes);
}

}  // namespace muster
