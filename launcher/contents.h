// What travels to hosts: programs and data, packed into one archive each and named by its hash.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace muster {

struct Content {
  std::string sha256;
  std::string name;  // for people: "trainer", "data"
  std::shared_ptr<const std::string_view> bytes;
};

/// By hash.
using Contents = std::map<std::string, Content>;

/// An archive of which no more than this is held in memory. Of a larger one all is in a file without a name
/// in TMPDIR, or in /var/tmp, where it stays as it was packed, for hosts that need it later.
inline constexpr size_t kMostPackedInMemory = 64 << 20;

/// Packs the files under `folder`, in the archive into the folder `into`, unless that is empty. Fails as
/// PackDirectoryTo does; other errors are of the place for large ones, and name it.
absl::StatusOr<Content> PackContent(const std::string& name, const std::filesystem::path& folder,
                                    const std::string& into = "");

/// muster's own programs, found beside the running one: bin/muster-agent, lib/muster/trainer/ and
/// lib/muster/launcher/.
struct Installation {
  std::filesystem::path agent;
  std::filesystem::path trainer;   // the bundle's folder; not there where muster only drives jobs of others
  std::filesystem::path launcher;  // likewise, with this muster itself
};
/// FailedPrecondition: there is no agent.
absl::StatusOr<Installation> FindInstallation();

/// Packs one of the bundles. FailedPrecondition: it is not there.
absl::StatusOr<Content> PackBundle(const std::string& name, const std::filesystem::path& folder);

}  // namespace muster
