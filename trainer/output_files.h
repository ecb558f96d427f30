// The places of what is written.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace muster {

/// Flags and the files that they name; an empty one is not asked for.
using FlaggedFiles = std::vector<std::pair<std::string, std::string>>;

/// What is written at the end has to have a place before hours of training. InvalidArgument, with the flag: a
/// folder, a file in a folder that cannot be written into, two outputs of one name, an output in a place that
/// is `taken`.
absl::Status CheckOutputFiles(const FlaggedFiles& outputs, const FlaggedFiles& taken = {});

/// Makes the folder if it is not there. InvalidArgument, with the flag: no file can be written into it.
absl::Status CheckOutputFolder(const std::string& flag, const std::string& folder);

}  // namespace muster
