// The folder of a benchmark: results.json and report.html.
#pragma once

#include <filesystem>
#include <vector>

#include "base/status.h"
#include "launcher/bench/results.h"

namespace muster::bench {

/// Makes it if it is not there. Fails also if no file can be made in it.
absl::Status MakeResultsFolder(const std::filesystem::path& folder);

/// Over those that are there.
absl::Status WriteResults(const std::filesystem::path& folder, const Results& results);

/// Both, if there are any, get names that nothing has yet: results-1.json and report-1.html. Returns those.
absl::StatusOr<std::vector<std::filesystem::path>> KeepEarlierResults(const std::filesystem::path& folder);

}  // namespace muster::bench
