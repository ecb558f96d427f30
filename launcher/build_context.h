// A folder from which `docker build` makes the image that the manifests of a job want: what `muster run`
// would send to hosts, and a Dockerfile.
#pragma once

#include <filesystem>
#include <string>

#include "base/status.h"
#include "inventory/job.h"
#include "launcher/job_contents.h"

namespace muster {

/// The text of the Dockerfile beside the contents, which are named after themselves: trainer.tar, data.tar;
/// program files are in job/.
std::string DockerfileOf(const Job& job, const JobContents& contents);

/// InvalidArgument: `folder` is there and holds something else than an earlier build context of muster's.
absl::Status CheckBuildContextFolder(const std::filesystem::path& folder);

/// Writes it all, in place of what an earlier call has written.
absl::Status WriteBuildContext(const std::filesystem::path& folder, const Job& job,
                               const JobContents& contents);

}  // namespace muster
