// `muster-agent bridge`: what SSH runs. Joins its stdin and stdout to the daemon of a root, which it starts
// if there is none.
#pragma once

#include <filesystem>

#include "base/status.h"

namespace muster {

/// Writes the hello line to stdout at once, so that the other side knows that there is an agent before
/// anything can go wrong, then relays. OK when stdin ends. Unavailable: the daemon ended, or could not be
/// started, or has not begun within 10 s, which it may yet do. FailedPrecondition: the daemon that runs
/// speaks another version. Changes the working directory and makes stdin and stdout non-blocking.
absl::Status RunBridge(const std::filesystem::path& root);

}  // namespace muster
