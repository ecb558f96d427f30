// Ranks that are threads of one process, for simulations and tests of what is built on a Collective.
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "collective/collective.h"

namespace muster {

/// One for each rank, for a thread each. Sums are in order of rank. When one is aborted or gone, operations
/// of the others that wait for it fail at once; `timeout`: else as every group's do.
std::vector<std::unique_ptr<Collective>> MakeInProcess(int size, Duration timeout = std::chrono::minutes(1));

}  // namespace muster
