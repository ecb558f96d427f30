// The program's own output, which the reader may stop taking and a full disk may refuse.
#pragma once

#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace muster {

/// Writes to stdout, at once; printf must not be used beside it. What cannot be written is lost, and
/// StdoutStatus() says so: the work goes on whatever becomes of its output. Waits as long as the reader lets
/// it, like any write to a pipe. SIGPIPE must be ignored. Any thread.
void PrintToStdout(std::string_view text);

/// Whether nobody reads `fd`, stdout or stderr, any more, for which it waits so long.
bool ReaderIsGone(int fd, Duration wait = Duration::zero());

/// The first failure of PrintToStdout in this process, as "stdout: No space left on device". A reader that
/// has gone away (EPIPE) has seen what it wanted, and is none. For the end of main.
absl::Status StdoutStatus();

}  // namespace muster
