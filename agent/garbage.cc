#include "agent/garbage.h"

#include <absl/strings/str_split.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <system_error>
#include <vector>

#include "agent/names.h"
#include "agent/records.h"
#include "agent/store.h"
#include "base/file.h"
#include "base/random.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

// The time of a file's last use, or of a folder's, in microseconds of the wall clock; it is gone: now.
int64_t UsedMicros(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return WallTimeMicros();
  return int64_t{info.st_mtim.tv_sec} * 1'000'000 + info.st_mtim.tv_nsec / 1000;
}

// What jobs need that are driven from here, for hosts that they may yet come to.
absl::StatusOr<std::set<std::string>> NeededByDrivers(const fs::path& root) {
  const fs::path jobs = root / "controller/jobs";
  std::set<std::string> needed;
  const auto names = ListDirectory(jobs);
  if (MayPass(names.status())) return names.status();
  for (const std::string& job : names.value_or(std::vector<std::string>{})) {
    const auto text = ReadFile(jobs / job / "needed");
    if (MayPass(text.status())) return text.status();
    needed.merge(std::set<std::string>(absl::StrSplit(text.value_or(""), '\n')));
  }
  return needed;
}

}  // namespace

void MarkUsed(const fs::path& path) {
  (void)::utimensat(AT_FDCWD, path.c_str(), nullptr,
                    0);  // on a read-only file system nothing is removed either
}

absl::Status MoveToTrash(const fs::path& root, const fs::path& path) {
  MUSTER_RETURN_IF_ERROR(MakeDirectories(root / "trash", 0700));
  return MoveTree(path, root / "trash" / RandomName(12));
}

absl::Status EmptyTrash(const fs::path& root) {
  absl::Status first;
  for (const std::string& name : ListDirectory(root / "trash").value_or(std::vector<std::string>{})) {
    first.Update(RemoveTree(root / "trash" / name));  // one that stays keeps no other
  }
  RemoveLeftovers(root);
  return first;
}

absl::StatusOr<agent::CollectGarbageResponse> CollectGarbage(const fs::path& root,
                                                             std::set<std::string> needed, Duration unused) {
  const int64_t used_before =
      WallTimeMicros() - std::chrono::duration_cast<std::chrono::microseconds>(unused).count();
  MUSTER_ASSIGN_OR_RETURN(std::set<std::string> of_drivers, NeededByDrivers(root));
  needed.merge(of_drivers);
  agent::CollectGarbageResponse response;
  const auto removed = [&](const std::string& sha256, uint64_t bytes) {
    response.add_removed_sha256(sha256);
    response.set_removed_bytes(response.removed_bytes() + bytes);
  };

  const fs::path store = root / "store";
  for (const std::string& name : ListDirectory(store).value_or(std::vector<std::string>{})) {
    if (!IsSha256(name) || needed.contains(name) || UsedMicros(store / name) > used_before) continue;
    const uint64_t bytes = ListedBytes(store / name);
    if (!MoveToTrash(root, store / name).ok()) continue;
    removed(name, bytes);
    ::unlink(ContentListPath(store / name).c_str());
  }

  // Of contents that somebody who was killed, or knows no lists, has removed.
  for (const std::string& name : ListDirectory(store).value_or(std::vector<std::string>{})) {
    std::error_code error;
    const std::string content = name.substr(0, name.find('.'));
    if (content != name && IsSha256(content) && !fs::exists(store / content, error)) {
      ::unlink((store / name).c_str());
    }
  }

  const fs::path agents = root / "agents";
  const std::vector<std::string> names = ListDirectory(agents).value_or(std::vector<std::string>{});
  std::error_code error;
  std::set<std::string> kept = {fs::read_symlink("/proc/self/exe", error).filename().string()};
  std::string latest;
  for (const std::string& name : names) {
    if (latest.empty() || UsedMicros(agents / name) > UsedMicros(agents / latest)) latest = name;
  }
  kept.insert(latest);
  for (const std::string& name : names) {
    if (kept.contains(name) || UsedMicros(agents / name) > used_before) continue;
    const uint64_t bytes = fs::file_size(agents / name, error);
    if (MoveToTrash(root, agents / name).ok()) removed(name, error ? 0 : bytes);
  }
  return response;
}

}  // namespace muster
