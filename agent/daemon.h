// `muster-agent daemon`: one per root, serving any number of bridges and supervising the root's tasks, in one
// thread and one poll loop.
#pragma once

#include <filesystem>

#include "base/status.h"

namespace muster {

/// The daemon's socket and lock, relative to the root: both sides change into the root first, because the
/// path of a unix socket is limited to 107 bytes.
inline constexpr char kDaemonSocket[] = "daemon.sock";
inline constexpr char kDaemonLock[] = "daemon.lock";

/// What the daemon writes to its stdout once it can be connected to. Anything else is the reason why it
/// cannot; nothing at all means that another daemon holds the lock.
inline constexpr char kDaemonReady[] = "ready";

/// Serves until nobody is connected and no task is active for a second, or until its folder is gone: then
/// tasks run on, and whoever serves the folder that comes in its place can find them by their tokens only.
/// Returns at once where another daemon serves this root; an error where it cannot know what tasks there are.
/// The process becomes the daemon for good: working directory, descriptors and signal handling are changed.
absl::Status RunDaemon(const std::filesystem::path& root);

}  // namespace muster
