#include "trainer/output_files.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/file.h"
#include "base/mount_point.h"
#include "base/random.h"

namespace muster {
namespace {

absl::Status CheckOutput(const std::string& flag, const std::filesystem::path& file) {
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) {
    return InvalidArgument("%s=%s: this is a folder, a file is expected", flag, file.string());
  }
  // A device, a pipe or a mounted file is written where it is, all else in place of what is there.
  const bool is_in_place = std::filesystem::exists(file, ignored) &&
                           (!std::filesystem::is_regular_file(file, ignored) || IsMountPoint(file));
  if (is_in_place) {
    if (::access(file.c_str(), W_OK) == 0) return absl::OkStatus();
    return InvalidArgument("%s=%s: cannot write there: %s", flag, file.string(), std::strerror(errno));
  }
  // What a link names is written, not the link.
  const std::filesystem::path target =
      std::filesystem::exists(file, ignored) ? std::filesystem::canonical(file, ignored) : file;
  const std::filesystem::path folder = target.has_parent_path() ? target.parent_path() : ".";
  if (::access(folder.c_str(), W_OK) == 0) return absl::OkStatus();
  return InvalidArgument("%s=%s: cannot write into %s: %s", flag, file.string(), folder.string(),
                         std::strerror(errno));
}

}  // namespace

absl::Status CheckOutputFiles(const FlaggedFiles& outputs, const FlaggedFiles& taken) {
  const auto place_of = [](const std::string& file) {
    std::error_code error;
    // One that is not there yet stays relative otherwise, and is none of those that are named from the root.
    const std::filesystem::path place =
        std::filesystem::weakly_canonical(std::filesystem::absolute(file, error), error);
    return error ? std::filesystem::path(file) : place;
  };
  std::map<std::filesystem::path, std::string> flag_of;
  for (const auto& [flag, file] : taken) flag_of.emplace(place_of(file), flag);
  for (const auto& [flag, file] : outputs) {
    if (file.empty()) continue;
    MUSTER_RETURN_IF_ERROR(CheckOutput(flag, file));
    const auto [other, is_new] = flag_of.emplace(place_of(file), flag);
    std::error_code ignored;
    if (is_new || std::filesystem::is_character_file(other->first, ignored)) continue;
    return InvalidArgument("%s and %s name the same file, %s", other->second, flag, file);
  }
  return absl::OkStatus();
}

absl::Status CheckOutputFolder(const std::string& flag, const std::string& folder) {
  std::error_code error;
  if (std::filesystem::exists(folder, error) && !std::filesystem::is_directory(folder, error)) {
    return InvalidArgument("%s: %s is no folder", flag, folder);
  }
  absl::Status status = MakeDirectories(folder);
  if (status.ok()) {
    // A full disk makes files, and has no room in them.
    const std::filesystem::path probe = std::filesystem::path(folder) / (".probe-" + RandomName(8));
    status = ReplaceFile(probe, std::string(4096, '\0'), 0600, Sync::kNo);
    std::filesystem::remove(probe, error);
  }
  return status.ok() ? status : InvalidArgument("%s: %s: %s", flag, folder, std::string(status.message()));
}

}  // namespace muster
