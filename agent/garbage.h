// What no task needs any more: programs and data in the store, and agents.
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "proto/agent.pb.h"

namespace muster {

/// Its age begins again.
void MarkUsed(const std::filesystem::path& path);

/// Moves it where EmptyTrash removes it: at once, however large it is. NotFound: it is not there.
absl::Status MoveToTrash(const std::filesystem::path& root, const std::filesystem::path& path);

/// Removes what was moved there, and what is left of uploads (RemoveLeftovers), which may take long: not for
/// the daemon's loop. The folder itself stays: others move to it.
absl::Status EmptyTrash(const std::filesystem::path& root);

/// Moves to the trash what is under `root`/store and `root`/agents and was not used for `unused`, but neither
/// what is `needed` (SHA-256 of contents), nor what a driver of a job there has written down that it needs
/// (`root`/controller/jobs/<job>/needed, a SHA-256 a line), nor the agent that this process is, nor the one
/// used last. What cannot be moved stays, and is not in the response. Its bytes are those of ListedBytes.
/// An error, and nothing is moved: it is not known now what drivers need.
absl::StatusOr<agent::CollectGarbageResponse> CollectGarbage(const std::filesystem::path& root,
                                                             std::set<std::string> needed, Duration unused);

}  // namespace muster
