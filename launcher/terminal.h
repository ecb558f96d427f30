// What reaches the user's terminal: task output with its prefix on stdout, and a block of live lines on
// stderr that is redrawn.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace muster {

/// True if the descriptor is a terminal and escape sequences may be sent to it (NO_COLOR concerns colours
/// only).
bool IsTerminal(int fd);

/// In characters; 80 where it is not known.
size_t TerminalWidth(int fd);

/// Lines at the bottom of stderr that are replaced in place. Does nothing unless stderr is a terminal. One
/// thread at a time.
class LiveBlock {
 public:
  LiveBlock();
  bool enabled() const { return enabled_; }
  /// Draws the lines in place of the last ones, at most ten times a second unless it `must` be.
  void Show(const std::vector<std::string>& lines, bool must = false);
  /// Takes the lines away, before something else is printed.
  void Clear();
  /// For good.
  void Disable() {
    Clear();
    enabled_ = false;
  }

 private:
  bool enabled_;
  size_t drawn_lines_ = 0;
  TimePoint last_draw_{};
};

/// Cuts what tasks print into lines with the prefix "[worker:1@host-2] ", each written to stdout, or stderr,
/// in one piece, with a line's end where there was none. Without the prefix, byte for byte. Where there is no
/// host, the prefix is "[worker:1] ". One thread at a time.
class LogPrinter {
 public:
  /// `prefix`: print one. Colours by task when that is a terminal and NO_COLOR is not set.
  explicit LogPrinter(bool prefix, int fd = STDOUT_FILENO);
  void Print(const std::string& task, const std::string& host, const std::string& bytes);
  /// Prints what is left of a task without a line's end.
  void Flush(const std::string& task, const std::string& host);

 private:
  void PrintLine(const std::string& task, const std::string& host, std::string_view line);
  void Put(std::string_view text) const;

  const int fd_;
  const bool prefix_;
  const bool colors_;
  std::map<std::string, std::string> partial_;  // by task
};

/// That of a log so many bytes are gone which its reader has not seen.
std::string MissedLogText(const std::string& task, uint64_t bytes);
/// That so many were not shown, since whoever reads what is shown has not kept up.
std::string SkippedLogText(const std::string& task, uint64_t bytes);

}  // namespace muster
