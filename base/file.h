// Files: whole reads, atomic writes, descriptors that close themselves. Every error names the path.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace muster {

/// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

/// The whole file. Larger than `max_bytes` is an error that says so.
absl::StatusOr<std::string> ReadFile(const std::filesystem::path& path,
                                     uint64_t max_bytes = uint64_t{1} << 32);

/// The same of a regular file only: a pipe would be waited for, and a device has no end. For data.
absl::StatusOr<std::string> ReadRegularFile(const std::filesystem::path& path,
                                            uint64_t max_bytes = uint64_t{1} << 32);

/// Writes to a temporary name beside `path`, syncs, and renames it into place: a reader sees the old file or
/// the new one. A symbolic link stays: the file that it names is replaced, or made where there is none yet.
/// What exists and is no regular file (a device, a pipe, which waits for its reader), or is mounted there, is
/// opened and written in place, not atomically; a folder is an error.
/// kNo: after a loss of power the file may be empty.
enum class Sync { kYes, kNo };
absl::Status WriteFileAtomically(const std::filesystem::path& path, std::string_view bytes,
                                 mode_t mode = 0644, Sync sync = Sync::kYes);

/// The same, but whatever has this name gives way to the new file, a link or a pipe, too, and is not opened.
/// A folder is an error.
absl::Status ReplaceFile(const std::filesystem::path& path, std::string_view bytes, mode_t mode = 0644,
                         Sync sync = Sync::kYes);

/// Until then the name of a new file may be forgotten when the power goes.
absl::Status SyncFolderOf(const std::filesystem::path& path);

/// All of `bytes` to a blocking descriptor, through EINTR and short writes. Works on sockets and pipes with
/// SIGPIPE ignored.
absl::Status WriteAll(int fd, std::string_view bytes);

/// A relative path of a file that stays below where it starts: at most 4096 bytes, not absolute, not empty,
/// no
/// "." and "..", no NUL. InvalidArgument otherwise.
absl::Status ValidateRelativePath(std::string_view path);

/// mkdir -p, new folders with `mode`.
absl::Status MakeDirectories(const std::filesystem::path& path, mode_t mode = 0755);

/// rename(2), also of a folder that may not be written to.
absl::Status MoveTree(const std::filesystem::path& from, const std::filesystem::path& to);

/// rm -rf; a path that does not exist is fine.
absl::Status RemoveTree(const std::filesystem::path& path);

/// Names in a folder, sorted, without . and ..; NotFound if there is no such folder.
absl::StatusOr<std::vector<std::string>> ListDirectory(const std::filesystem::path& path);

/// A new folder `prefix`XXXXXX under TMPDIR (or /tmp) that is removed with this object.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::string& prefix = "muster-");
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace muster
