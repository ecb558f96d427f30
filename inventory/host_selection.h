// Some of the hosts of an inventory, as the words of a command line name them.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "inventory/inventory.h"

namespace muster {

/// Leaves those hosts that a word names, once each and in the order of the inventory: by its name, by a range
/// as the inventory has them ("gpu-[01:04]", of which all have to be there), or by one of its labels.
/// InvalidArgument: a word that names none.
absl::Status SelectHosts(const std::vector<std::string>& words, Inventory* inventory);

}  // namespace muster
