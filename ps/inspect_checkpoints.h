// What is in a folder of checkpoints, for people.
#pragma once

#include <filesystem>
#include <string>

#include "base/status.h"

namespace muster {

/// Reads every checkpoint in the folder from end to end and describes it in `text`, the newest first, a line
/// for each file. NotFound: the folder has none. DataLoss: the newest one that is damaged. A file that is not
/// there is no damage, since each host may have its own server's only.
absl::Status InspectCheckpoints(const std::filesystem::path& folder, std::string* text);

}  // namespace muster
