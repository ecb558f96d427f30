#include "agent/task_inputs.h"

#include <sys/stat.h>

#include <cerrno>

#include "agent/garbage.h"
#include "agent/names.h"
#include "agent/store.h"
#include "base/file.h"

namespace muster {

std::set<std::string> ContentsOf(const agent::StartTaskRequest& spec) {
  std::set<std::string> contents;
  if (!spec.program_sha256().empty()) contents.insert(spec.program_sha256());
  for (const auto& texts : {spec.argv(), spec.environment()}) {
    for (const std::string& text : texts) {
      for (std::string& key : StoreKeys(text)) contents.insert(std::move(key));
    }
  }
  return contents;
}

// They were there when its launcher asked, but it may have waited for others since, and somebody has
// collected garbage.
absl::Status CheckContents(const std::filesystem::path& root, const agent::StartTaskRequest& spec) {
  for (const std::string& sha256 : ContentsOf(spec)) {
    const std::filesystem::path content = StoreFolder(root) / sha256;
    std::error_code error;
    if (!std::filesystem::is_directory(content, error)) {
      return NotFound("%s: what it needs is not there any more (%s): run the job again", spec.task(),
                      content.string());
    }
    MarkUsed(content);
  }
  return absl::OkStatus();
}

absl::Status WriteFiles(const std::filesystem::path& task_folder, const agent::StartTaskRequest& spec) {
  for (const agent::FileContent& file : spec.files()) {
    const std::filesystem::path path = task_folder / file.path();
    MUSTER_RETURN_IF_ERROR(MakeDirectories(path.parent_path(), 0700));
    const mode_t mode = file.mode() != 0 ? file.mode() & 0777 : 0644;
    // Not what the task may have put there: a pipe would be waited for.
    MUSTER_RETURN_IF_ERROR(ReplaceFile(path, file.content(), mode));
    // The mode that was asked for, whatever the umask.
    if (::chmod(path.c_str(), mode) != 0) return ErrnoError(errno, path.string());
  }
  return absl::OkStatus();
}

}  // namespace muster
