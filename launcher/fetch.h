// A data set from its mirrors into a folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "launcher/data_sets.h"
#include "launcher/download.h"

namespace muster {

struct FetchOptions {
  std::vector<std::string> mirrors;  // in place of the set's own; empty: those
  DownloadOptions download;          // without `progress`
  /// What happened, a line at a time: a file was there, or came, and which mirrors had failed before.
  std::function<void(const std::string& line)> say;
  std::function<void(const std::string& file, uint64_t bytes, uint64_t total)> progress;
};

/// Makes `folder`/NAME hold every file of the set with the right SHA-256, as the mirror has it (packed or
/// not); a file that is there, packed or not, is kept. Mirrors are tried in turn, each going on where the one
/// before was cut off, up to three times as long as bytes come; one that could not be reached is not tried
/// for the next file. On its way a file is called .part, also for the next call to go on with, and locked
/// against another one; with a wrong hash it is removed.
///
/// InvalidArgument: a mirror that is no URL of http or https; nothing was contacted. FailedPrecondition: a
/// file is there and is something else, or another process fetches it. Unavailable: no mirror gives a file.
/// DataLoss: one gave something else. The last two name every mirror and its failure.
absl::Status FetchDataSet(const DataSet& set, const std::filesystem::path& folder,
                          const FetchOptions& options);

}  // namespace muster
