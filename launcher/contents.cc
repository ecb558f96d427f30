#include "launcher/contents.h"

#include "base/archive.h"
#include "base/sha256.h"

namespace muster {
namespace {

absl::Status CheckInstalled(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) return absl::OkStatus();
  return FailedPrecondition("%s is missing: the installation of muster is incomplete", path.string());
}

}  // namespace

absl::StatusOr<Content> PackContent(const std::string& name, const std::filesystem::path& folder,
                                    const std::string& into) {
  MUSTER_ASSIGN_OR_RETURN(std::string bytes, PackDirectory(folder, {.into = into}));
  auto shared = std::make_shared<const std::string>(std::move(bytes));
  return Content{.sha256 = Sha256Hex(*shared), .name = name, .bytes = std::move(shared)};
}

absl::StatusOr<Installation> FindInstallation() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return ErrnoError(error.value(), "/proc/self/exe");
  const std::filesystem::path bundles = self.parent_path().parent_path() / "lib/muster";
  Installation installation{.agent = self.parent_path() / "muster-agent",
                            .trainer = bundles / "trainer",
                            .launcher = bundles / "launcher"};
  MUSTER_RETURN_IF_ERROR(CheckInstalled(installation.agent));
  return installation;
}

absl::StatusOr<Content> PackBundle(const std::string& name, const std::filesystem::path& folder) {
  MUSTER_RETURN_IF_ERROR(CheckInstalled(folder / "required_glibc"));
  return PackContent(name, folder);
}

}  // namespace muster
