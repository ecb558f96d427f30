#include "agent/store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <vector>

#include "agent/garbage.h"
#include "agent/names.h"
#include "base/random.h"
#include "base/sha256.h"

namespace muster {

namespace {

// A file costs a commit of the file system's journal, and all of the file system what others write there.
constexpr int kMostSyncedFiles = 256;

absl::Status SyncTree(const std::filesystem::path& tree) {
  std::vector<std::filesystem::path> paths = {tree};
  std::error_code error;
  for (auto entry = std::filesystem::recursive_directory_iterator(tree, error);
       !error && entry != std::filesystem::recursive_directory_iterator() && paths.size() <= kMostSyncedFiles;
       entry.increment(error)) {
    if (!entry->is_symlink(error)) paths.push_back(entry->path());
  }
  if (error) return Internal("sync %s: %s", tree.string(), error.message());
  const bool are_many = paths.size() > kMostSyncedFiles;
  if (are_many) paths.resize(1);
  for (const std::filesystem::path& path : paths) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid() || (are_many ? ::syncfs(fd.get()) : ::fsync(fd.get())) != 0) {
      return ErrnoError(errno, "sync " + path.string());
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::filesystem::path StoreFolder(const std::filesystem::path& root) { return root / "store"; }

absl::StatusOr<bool> IsStored(const std::filesystem::path& root, const std::string& sha256) {
  if (!IsSha256(sha256)) {
    return InvalidArgument("--sha256 '%s': give 64 lower-case hexadecimal digits", sha256);
  }
  const std::filesystem::path target = StoreFolder(root) / sha256;
  std::error_code error;
  if (!std::filesystem::is_directory(target, error)) return false;
  MarkUsed(target);
  return true;
}

absl::StatusOr<StoreScratch> StoreScratch::Make(const std::filesystem::path& root) {
  const std::filesystem::path parent = StoreFolder(root) / "tmp";
  MUSTER_RETURN_IF_ERROR(MakeDirectories(parent, 0700));
  // Under this lock nobody sees another's new folder before that is locked too.
  UniqueFd guard(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!guard.valid() || ::flock(guard.get(), LOCK_EX) != 0) return ErrnoError(errno, parent.string());
  for (const std::string& name : ListDirectory(parent).value_or(std::vector<std::string>{})) {
    UniqueFd other(::open((parent / name).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (other.valid() && ::flock(other.get(), LOCK_EX | LOCK_NB) == 0) (void)RemoveTree(parent / name);
  }
  StoreScratch scratch;
  scratch.path_ = parent / RandomName(12);
  MUSTER_RETURN_IF_ERROR(MakeDirectories(scratch.path_, 0700));
  scratch.lock_ = UniqueFd(::open(scratch.path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!scratch.lock_.valid() || ::flock(scratch.lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return ErrnoError(errno, scratch.path_.string());
  }
  return scratch;
}

StoreScratch::StoreScratch(StoreScratch&& other) noexcept
    : path_(std::move(other.path_)), lock_(std::move(other.lock_)) {
  other.path_.clear();
}

StoreScratch::~StoreScratch() {
  if (!path_.empty()) (void)RemoveTree(path_);
}

absl::Status CheckSpace(const std::filesystem::path& folder, uint64_t bytes) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return ErrnoError(errno, folder.string());
  const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
  if (free >= bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("%s: the disk is too full for this upload: it needs %d bytes and %d are free",
                      folder.string(), bytes, free));
}

absl::StatusOr<std::string> PlaceTree(const std::filesystem::path& root, const StoreScratch& scratch,
                                      const std::string& sha256) {
  const std::filesystem::path tree = scratch.tree(), target = StoreFolder(root) / sha256;
  // Once it has its name it counts as complete, also after a power failure.
  MUSTER_RETURN_IF_ERROR(SyncTree(tree));
  if (::rename(tree.c_str(), target.c_str()) == 0) return "stored " + sha256;
  if (errno == ENOTEMPTY || errno == EEXIST) return "present " + sha256;
  return ErrnoError(errno, target.string());
}

absl::StatusOr<std::string> Store(const std::filesystem::path& root, const std::string& sha256, uint64_t size,
                                  const ArchiveProducer& produce) {
  MUSTER_ASSIGN_OR_RETURN(const bool is_stored, IsStored(root, sha256));
  if (is_stored) return "present " + sha256;
  MUSTER_ASSIGN_OR_RETURN(const StoreScratch scratch, StoreScratch::Make(root));
  MUSTER_RETURN_IF_ERROR(CheckSpace(scratch.path(), size));
  MUSTER_RETURN_IF_ERROR(MakeDirectories(scratch.tree()));
  Unpacker unpacker(scratch.tree());
  Sha256 hash;
  uint64_t received = 0;
  MUSTER_RETURN_IF_ERROR(produce([&](std::string_view bytes) -> absl::Status {
    received += bytes.size();
    if (received > size) return DataLoss("the archive has more than %d bytes", size);
    hash.Update(bytes.data(), bytes.size());
    return unpacker.Take(bytes);
  }));
  const std::string digest = hash.HexDigest();
  if (digest != sha256) {
    return DataLoss("what was received, %d bytes, has SHA-256 %s, not %s", received, digest, sha256);
  }
  MUSTER_RETURN_IF_ERROR(unpacker.Finish());
  return PlaceTree(root, scratch, sha256);
}

}  // namespace muster
