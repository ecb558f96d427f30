#include "agent/store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <set>
#include <vector>

#include "agent/garbage.h"
#include "agent/names.h"
#include "base/boot_id.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/sha256.h"

namespace muster {

namespace {

// A file costs a commit of the file system's journal, and all of the file system what others write there.
constexpr size_t kMostSyncedFiles = 256;

// The daemon compares as well, and serves nobody meanwhile.
constexpr int kMostCompared = 4096;

// All that is below, relative to the tree.
absl::StatusOr<std::vector<std::string>> NamesIn(const std::filesystem::path& tree) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto entry = std::filesystem::recursive_directory_iterator(tree, error);
       !error && entry != std::filesystem::recursive_directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().string().substr(tree.string().size() + 1));
  }
  if (error) return Internal("%s: %s", tree.string(), error.message());
  return names;
}

// Files only: whoever removes the store by hand is not to be refused, and what goes is missed. Where the file
// system has no such permissions, it stays as it is.
void MakeReadOnly(const std::filesystem::path& path) {
  using std::filesystem::perms;
  std::error_code error;
  if (std::filesystem::symlink_status(path, error).type() != std::filesystem::file_type::regular) return;
  std::filesystem::permissions(path, perms::owner_write | perms::group_write | perms::others_write,
                               std::filesystem::perm_options::remove, error);
}

absl::Status SyncTree(const std::filesystem::path& tree, const std::vector<std::string>& names) {
  std::vector<std::filesystem::path> paths = {tree};
  const bool are_many = names.size() >= kMostSyncedFiles;
  for (size_t i = 0; i < names.size() && !are_many; ++i) {
    std::error_code error;
    if (!std::filesystem::is_symlink(tree / names[i], error)) paths.push_back(tree / names[i]);
  }
  for (const std::filesystem::path& path : paths) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid() || (are_many ? ::syncfs(fd.get()) : ::fsync(fd.get())) != 0) {
      return ErrnoError(errno, "sync " + path.string());
    }
  }
  return absl::OkStatus();
}

// The list of a content: this, and for each entry what follows, each with a NUL behind it.
constexpr char kListVersion[] = "muster-agent files 1";

// "<what must not change> <name>": of a folder that it is one, for its time changes with what is added.
std::string Describe(const std::filesystem::path& tree, const std::string& name) {
  struct stat info {};
  if (::lstat((tree / name).c_str(), &info) != 0) return "";
  if (S_ISDIR(info.st_mode)) return "folder " + name;
  return absl::StrFormat("%s:%d:%d.%09d %s", S_ISREG(info.st_mode) ? "file" : "other", info.st_size,
                         info.st_mtim.tv_sec, info.st_mtim.tv_nsec, name);
}

// Until `take` returns false. False: there is no list, or none that this version reads.
bool ForEachListed(const std::filesystem::path& content,
                   const std::function<bool(const std::string& entry, const std::string& name)>& take) {
  std::ifstream list(ContentListPath(content));
  std::string entry;
  if (!std::getline(list, entry, '\0') || entry != kListVersion) return false;
  while (std::getline(list, entry, '\0') && take(entry, entry.substr(entry.find(' ') + 1))) {
  }
  return true;
}

bool TakeLock(const UniqueFd& file) { return file.valid() && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0; }

// While it is held nobody sees another's new folder before that is locked too. An invalid one: errno says
// why.
UniqueFd LockScratch(const std::filesystem::path& parent) {
  UniqueFd guard(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (guard.valid() && ::flock(guard.get(), LOCK_EX) != 0) guard.reset();
  return guard;
}

bool IsStaleArchive(const std::string& name, const struct stat& state) {
  constexpr int64_t kKeptSeconds = 24 * 60 * 60;
  return !name.ends_with("." + BootId()) ||
         WallTimeMicros() / 1'000'000 - state.st_mtim.tv_sec >= kKeptSeconds;
}

void RemoveUnlocked(const std::filesystem::path& parent) {
  for (const std::string& name : ListDirectory(parent).value_or(std::vector<std::string>{})) {
    const std::filesystem::path path = parent / name;
    struct stat state {};
    if (::lstat(path.c_str(), &state) != 0) continue;
    if (!S_ISDIR(state.st_mode) && !(S_ISREG(state.st_mode) && IsStaleArchive(name, state))) continue;
    const int mode = S_ISDIR(state.st_mode) ? O_RDONLY | O_DIRECTORY : O_RDWR;
    const UniqueFd lock(::open(path.c_str(), mode | O_NOFOLLOW | O_CLOEXEC));
    if (TakeLock(lock)) (void)RemoveTree(path);
  }
}

bool IsUnchanged(const std::filesystem::path& content) {
  int compared = 0;
  bool is_unchanged = true;
  (void)ForEachListed(content, [&](const std::string& entry, const std::string& name) {
    is_unchanged = Describe(content, name) == entry;
    return is_unchanged && ++compared < kMostCompared;
  });
  return is_unchanged;
}

}  // namespace

std::filesystem::path StoreFolder(const std::filesystem::path& root) { return root / "store"; }

std::filesystem::path ContentListPath(std::filesystem::path content) { return content += ".files"; }

uint64_t ListedBytes(const std::filesystem::path& content) {
  uint64_t bytes = 0;
  (void)ForEachListed(content, [&](const std::string& entry, const std::string&) {
    unsigned long long size = 0;
    if (std::sscanf(entry.c_str(), "file:%llu:", &size) == 1) bytes += size;
    return true;
  });
  return bytes;
}

std::filesystem::path ScratchParent(const std::filesystem::path& root) { return StoreFolder(root) / "tmp"; }

std::filesystem::path KeptArchivePath(const std::filesystem::path& root, const std::string& sha256) {
  return ScratchParent(root) / (sha256 + "." + BootId());
}

void RemoveLeftovers(const std::filesystem::path& root) {
  if (const UniqueFd guard = LockScratch(ScratchParent(root)); guard.valid()) {
    RemoveUnlocked(ScratchParent(root));
  }
}

absl::StatusOr<bool> IsStored(const std::filesystem::path& root, const std::string& sha256) {
  if (!IsSha256(sha256)) {
    return InvalidArgument("--sha256 '%s': give 64 lower-case hexadecimal digits", sha256);
  }
  const std::filesystem::path target = StoreFolder(root) / sha256;
  std::error_code error;
  if (!std::filesystem::is_directory(target, error) || !IsUnchanged(target)) return false;
  MarkUsed(target);
  return true;
}

absl::StatusOr<StoreScratch> StoreScratch::Make(const std::filesystem::path& root) {
  const std::filesystem::path parent = ScratchParent(root);
  MUSTER_RETURN_IF_ERROR(MakeDirectories(parent, 0700));
  const UniqueFd guard = LockScratch(parent);
  if (!guard.valid()) return ErrnoError(errno, parent.string());
  RemoveUnlocked(parent);
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
  MUSTER_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(tree));
  for (const std::string& name : names) MakeReadOnly(tree / name);
  // Once it has its name it counts as complete, also after a power failure.
  MUSTER_RETURN_IF_ERROR(SyncTree(tree, names));
  std::string list = kListVersion + std::string(1, '\0');
  for (const std::string& name : names) list += Describe(tree, name) + '\0';
  MarkUsed(tree);  // it is as old as what came last of it

  // One after the other: content and list belong together.
  const UniqueFd lock(::open(StoreFolder(root).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock.valid() || ::flock(lock.get(), LOCK_EX) != 0) return ErrnoError(errno, target.string());
  MUSTER_ASSIGN_OR_RETURN(const bool is_stored, IsStored(root, sha256));
  if (is_stored) return "present " + sha256;
  // One that was changed stays until now: its tasks may still run.
  const absl::Status moved = MoveTree(target, scratch.path() / "changed");
  if (!moved.ok() && !absl::IsNotFound(moved)) return moved;
  ::unlink(ContentListPath(target).c_str());
  if (::rename(tree.c_str(), target.c_str()) != 0) {
    const int error = errno;
    // Agents of other versions ask for no lock.
    return IsStored(root, sha256).value_or(false) ? absl::StatusOr<std::string>("present " + sha256)
                                                  : ErrnoError(error, target.string());
  }
  // Where there is no room for it, changes go unnoticed.
  (void)WriteFileAtomically(ContentListPath(target), list);
  return "stored " + sha256;
}

absl::Status PackContent(const std::filesystem::path& root, const std::string& sha256,
                         const ArchiveSink& take) {
  const std::filesystem::path content = StoreFolder(root) / sha256;
  std::set<std::string, std::less<>> names;
  const bool is_listed = ForEachListed(content, [&](const std::string&, const std::string& name) {
    names.insert(name);
    return true;
  });
  return PackDirectoryTo(
      take, content, {.include = [&](std::string_view name) { return !is_listed || names.contains(name); }});
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
