#include "trainer/output_files.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>

namespace muster {
namespace {

absl::Status CheckOutput(const std::string& flag, const std::filesystem::path& file) {
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) {
    return InvalidArgument("%s=%s: this is a folder, a file is expected", flag, file.string());
  }
  // A device or a pipe is written where it is, all else in place of what is there.
  const bool is_in_place =
      std::filesystem::exists(file, ignored) && !std::filesystem::is_regular_file(file, ignored);
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

absl::Status CheckOutputFiles(const FlaggedFiles& outputs, const FlaggedFiles& inputs) {
  const auto place_of = [](const std::string& file) {
    std::error_code error;
    const std::filesystem::path place = std::filesystem::weakly_canonical(file, error);
    return error ? std::filesystem::path(file) : place;
  };
  std::map<std::filesystem::path, std::string> flag_of;
  for (const auto& [flag, file] : inputs) flag_of.emplace(place_of(file), flag);
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

}  // namespace muster
