// What no task needs any more: programs and data in the store, and agents.
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "base/clock.h"
#include "proto/agent.pb.h"

namespace muster {

/// Its age begins again.
void MarkUsed(const std::filesystem::path& path);

/// Removes what is under `root`/store and `root`/agents and was not used for `unused`, but neither what is
/// `needed` (SHA-256 of contents), nor the agent that this process is, nor the one used last. Blocks while
/// files are removed. What cannot be removed stays, and is not in the response.
agent::CollectGarbageResponse CollectGarbage(const std::filesystem::path& root,
                                             const std::set<std::string>& needed, Duration unused);

}  // namespace muster
