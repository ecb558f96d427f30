// What travels to hosts: programs and data, packed into one archive each and named by its hash.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "base/status.h"

namespace muster {

struct Content {
  std::string sha256;
  std::string name;  // for people: "trainer", "data"
  std::shared_ptr<const std::string> bytes;
};

/// By hash.
using Contents = std::map<std::string, Content>;

/// Packs the files under `folder`, in the archive into a folder of that name unless that is empty.
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
