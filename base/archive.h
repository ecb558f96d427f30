// Bundles: a folder packed into one ustar archive (POSIX.1-1988), so that it has one hash and travels as one
// stream.
//
// The same files give the same bytes: names sorted, owner 0, time 0, mode 0755 or 0644. Only regular files,
// folders and symbolic links that stay inside. `tar tf` reads it.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace muster {

/// Packs all files under `folder` for which `include(relative path)` holds (all, if it is empty).
/// InvalidArgument names a file that cannot travel: longer than 100 bytes relative to `folder`, larger than 8
/// GiB, neither file nor folder nor link.
absl::StatusOr<std::string> PackDirectory(const std::filesystem::path& folder,
                                          const std::function<bool(std::string_view)>& include = {});

/// Unpacks into `folder`, which must exist and be empty. Refuses (DataLoss) bad checksums, truncation,
/// absolute names and "..".
absl::Status UnpackArchive(std::string_view archive, const std::filesystem::path& folder);

}  // namespace muster
