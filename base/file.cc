#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/mount_point.h"
#include "base/random.h"

namespace muster {
namespace {

// The name that `path` stands for once symbolic links are followed, whether or not there is a file of that
// name. Links among the folders on the way are the kernel's matter.
absl::StatusOr<std::filesystem::path> FollowLinks(std::filesystem::path path) {
  constexpr int kMaxLinks = 40;  // as in the kernel
  for (int links = 0; links < kMaxLinks; ++links) {
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0 || !S_ISLNK(info.st_mode)) return path;
    std::error_code error;
    const std::filesystem::path target = std::filesystem::read_symlink(path, error);
    if (error) return ErrnoError(error.value(), path.string());
    path = path.parent_path() / target;  // an absolute target takes the place of the whole
  }
  return ErrnoError(ELOOP, path.string());
}

// For what a rename would take from the system, devices and pipes, or is not allowed to: mounted files.
absl::Status WriteInPlace(const std::filesystem::path& path, std::string_view bytes) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOCTTY));
  if (!fd.valid()) return ErrnoError(errno, path.string());
  absl::Status status = WriteAll(fd.get(), bytes);
  // EINVAL: nothing that could be synced.
  if (status.ok() && ::fsync(fd.get()) != 0 && errno != EINVAL) status = ErrnoError(errno, "fsync");
  return Annotate(status, path.string());
}

absl::StatusOr<std::string> ReadAll(const UniqueFd& fd, const std::filesystem::path& path,
                                    uint64_t max_bytes) {
  std::string bytes;
  struct stat info {};
  if (::fstat(fd.get(), &info) == 0 && info.st_size > 0) {
    // Files in /proc report a size of 0 and are read by growing.
    bytes.reserve(std::min<uint64_t>(info.st_size, max_bytes) + 1);
  }
  while (true) {
    const size_t old_size = bytes.size();
    const size_t room = std::max<size_t>(bytes.capacity() - old_size, 65536);
    bytes.resize(old_size + room);
    const ssize_t n = ::read(fd.get(), bytes.data() + old_size, room);
    if (n < 0 && errno != EINTR) return ErrnoError(errno, path.string());
    bytes.resize(old_size + std::max<ssize_t>(n, 0));
    if (n == 0) return bytes;
    if (bytes.size() > max_bytes) {
      return InvalidArgument("%s: larger than the %d bytes allowed", path.string(), max_bytes);
    }
  }
}

}  // namespace

void UniqueFd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

absl::StatusOr<std::string> ReadFile(const std::filesystem::path& path, uint64_t max_bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError(errno, path.string());
  return ReadAll(fd, path, max_bytes);
}

absl::StatusOr<std::string> ReadRegularFile(const std::filesystem::path& path, uint64_t max_bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) return ErrnoError(errno, path.string());
  if (S_ISDIR(info.st_mode)) return ErrnoError(EISDIR, path.string());
  if (!S_ISREG(info.st_mode)) return InvalidArgument("%s: no file, but a pipe or a device", path.string());
  return ReadAll(fd, path, max_bytes);
}

absl::Status WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoError(errno, "write");
    }
    bytes.remove_prefix(n);
  }
  return absl::OkStatus();
}

absl::Status ReplaceFile(const std::filesystem::path& path, std::string_view bytes, mode_t mode, Sync sync) {
  const std::filesystem::path temporary = path.string() + ".tmp" + RandomName(8);
  UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!fd.valid()) return ErrnoError(errno, temporary.string());
  absl::Status status = WriteAll(fd.get(), bytes);
  if (status.ok() && sync == Sync::kYes && ::fsync(fd.get()) != 0) status = ErrnoError(errno, "fsync");
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) status = ErrnoError(errno, "rename");
  if (!status.ok()) ::unlink(temporary.c_str());
  if (status.ok() && sync == Sync::kYes) return SyncFolderOf(path);
  return Annotate(status, path.string());
}

absl::Status SyncFolderOf(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.valid() && ::fsync(fd.get()) == 0) return absl::OkStatus();
  return ErrnoError(errno, path.string() + ": fsync of its folder");
}

absl::Status WriteFileAtomically(const std::filesystem::path& path, std::string_view bytes, mode_t mode,
                                 Sync sync) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && (!S_ISREG(info.st_mode) || IsMountPoint(path))) {
    return WriteInPlace(path, bytes);
  }
  MUSTER_ASSIGN_OR_RETURN(const std::filesystem::path target, FollowLinks(path));
  return ReplaceFile(target, bytes, mode, sync);
}

absl::Status ValidateRelativePath(std::string_view path) {
  const bool bad =
      path.empty() || path.size() > 4096 || path.find('\0') != std::string_view::npos || path[0] == '/';
  if (!bad) {
    const std::filesystem::path parts(path);
    if (std::none_of(parts.begin(), parts.end(),
                     [](const auto& part) { return part == ".." || part == "."; }) &&
        parts.has_filename()) {
      return absl::OkStatus();
    }
  }
  return InvalidArgument("path '%s': give one relative to its folder, without '.' and '..'", path);
}

absl::Status MakeDirectories(const std::filesystem::path& path, mode_t mode) {
  if (path.has_parent_path() && path.parent_path() != path &&
      ::access(path.parent_path().c_str(), F_OK) != 0) {
    MUSTER_RETURN_IF_ERROR(MakeDirectories(path.parent_path(), mode));
  }
  if (::mkdir(path.c_str(), mode) == 0) return absl::OkStatus();
  std::error_code ignored;
  if (const int error = errno; error != EEXIST || !std::filesystem::is_directory(path, ignored)) {
    return ErrnoError(error, path.string());
  }
  return absl::OkStatus();
}

namespace {

// So that what is in them can be removed: a program may have made its own folders read-only.
void MakeFoldersWritable(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(std::filesystem::symlink_status(path, error))) return;
  std::filesystem::permissions(path, std::filesystem::perms::owner_all, std::filesystem::perm_options::add,
                               error);
  for (const std::string& name : ListDirectory(path).value_or(std::vector<std::string>{})) {
    MakeFoldersWritable(path / name);
  }
}

}  // namespace

absl::Status MoveTree(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  const int refused = errno;
  std::error_code error;
  if (refused == EACCES) {
    // It has an entry for the folder above it, which changes.
    std::filesystem::permissions(from, std::filesystem::perms::owner_write,
                                 std::filesystem::perm_options::add, error);
    if (!error && ::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  }
  return ErrnoError(refused, from.string());
}

absl::Status RemoveTree(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error == std::errc::permission_denied) {
    MakeFoldersWritable(path);
    error.clear();
    std::filesystem::remove_all(path, error);
  }
  // Somebody else removes it, too, and has got further: each time by something.
  constexpr int kMostTimes = 1000;
  for (int i = 0; i < kMostTimes && error == std::errc::no_such_file_or_directory; ++i) {
    error.clear();
    std::filesystem::remove_all(path, error);
  }
  if (error) return ErrnoError(error.value(), path.string());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ListDirectory(const std::filesystem::path& path) {
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) return ErrnoError(errno, path.string());
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* const entry = ::readdir(directory);
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  const int error = errno;
  ::closedir(directory);
  if (error != 0) return ErrnoError(error, path.string());
  std::sort(names.begin(), names.end());
  return names;
}

TemporaryDirectory::TemporaryDirectory(const std::string& prefix) {
  const char* parent = std::getenv("TMPDIR");
  std::string name = std::string(parent != nullptr ? parent : "/tmp") + "/" + prefix + "XXXXXX";
  MUSTER_CHECK(::mkdtemp(name.data()) != nullptr, name);
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() { (void)RemoveTree(path_); }

}  // namespace muster
