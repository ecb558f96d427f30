// What is mounted at a path, which no rename can take the place of: a file that was put into a container, as
// Kubernetes' /dev/termination-log or `docker run -v FILE:FILE`.
#pragma once

#include <filesystem>

namespace muster {

/// Whether a file or folder is mounted at `path` itself; links are followed. False also where there is
/// nothing, and before Linux 5.8, which does not tell.
bool IsMountPoint(const std::filesystem::path& path);

}  // namespace muster
