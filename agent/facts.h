// What this machine is.
#pragma once

#include <filesystem>

#include "proto/agent.pb.h"

namespace muster {

/// Never fails: what cannot be found out is left empty or 0. Takes milliseconds (up to 2 s on a musl host,
/// whose loader is run once).
agent::FactsResponse CollectFacts(const std::filesystem::path& root);

}  // namespace muster
