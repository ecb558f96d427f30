// What the discovery command of an inventory says: where hosts are, and which there are beside those of the
// file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "inventory/address.h"
#include "inventory/inventory.h"

namespace muster {

/// What it prints: `NAME ADDRESS` or `NAME ADDRESS:PORT` a line; blank lines and comments are skipped.
/// A byte order mark too. InvalidArgument: a line that is neither, or two that have a host at different
/// places.
absl::StatusOr<std::map<std::string, Endpoint>> ParseDiscovered(const std::string& text);

/// Runs it in the folder of the inventory, for `timeout` at most. FailedPrecondition with a sentence that
/// names the command and where it stands.
absl::StatusOr<std::map<std::string, Endpoint>> Discover(const Discovery& discovery,
                                                         const std::string& inventory_path,
                                                         Duration timeout = std::chrono::seconds(5));

/// The regular files beside or below the inventory that the command's words name, as `./hosts.sh` does: their
/// paths from there. Words also end at quotes, `=` and what stands between commands.
std::vector<std::string> FilesOf(const Discovery& discovery, const std::string& inventory_path);

/// As ReadInventory, with the hosts that its discovery command finds now. Also fails as Discover does:
/// without them tasks that run there would seem to have to be elsewhere. InvalidArgument also if there are no
/// hosts.
absl::StatusOr<Inventory> ReadInventoryAndDiscover(const std::string& path, const std::string& home);

}  // namespace muster
