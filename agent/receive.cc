#include "agent/receive.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>

#include "agent/garbage.h"
#include "agent/names.h"
#include "base/archive.h"
#include "base/boot_id.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/random.h"
#include "base/sha256.h"

namespace muster {
namespace {

constexpr Duration kInputTimeout = std::chrono::seconds(60);
constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr int64_t kKeptSeconds = 24 * 60 * 60;

// A folder under store/tmp, removed with this object. Locked while it is in use, so that whoever finds one
// unlocked knows that its owner was killed.
class Scratch {
 public:
  static absl::StatusOr<Scratch> Make(const std::filesystem::path& parent) {
    MUSTER_RETURN_IF_ERROR(MakeDirectories(parent, 0700));
    // Under this lock nobody sees another's new folder before that is locked too.
    UniqueFd guard(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!guard.valid() || ::flock(guard.get(), LOCK_EX) != 0) return ErrnoError(errno, parent.string());
    for (const std::string& name : ListDirectory(parent).value_or(std::vector<std::string>{})) {
      UniqueFd other(::open((parent / name).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      if (other.valid() && ::flock(other.get(), LOCK_EX | LOCK_NB) == 0) (void)RemoveTree(parent / name);
    }
    Scratch scratch;
    scratch.path_ = parent / RandomName(12);
    MUSTER_RETURN_IF_ERROR(MakeDirectories(scratch.path_, 0700));
    scratch.lock_ = UniqueFd(::open(scratch.path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!scratch.lock_.valid() || ::flock(scratch.lock_.get(), LOCK_EX | LOCK_NB) != 0) {
      return ErrnoError(errno, scratch.path_.string());
    }
    return scratch;
  }
  Scratch(Scratch&& other) noexcept : path_(std::move(other.path_)), lock_(std::move(other.lock_)) {
    other.path_.clear();
  }
  ~Scratch() {
    if (!path_.empty()) (void)RemoveTree(path_);
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  Scratch() = default;
  std::filesystem::path path_;
  UniqueFd lock_;
};

// Kept archives are files in store/tmp. A power failure could make one other than it was written, so one of
// another boot is not used.
std::filesystem::path KeptPath(const std::filesystem::path& folder, const std::string& sha256) {
  return folder / (sha256 + "." + BootId());
}

bool LockFile(const UniqueFd& file) { return file.valid() && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0; }

void RemoveStaleArchives(const std::filesystem::path& folder) {
  for (const std::string& name : ListDirectory(folder).value_or(std::vector<std::string>{})) {
    const std::filesystem::path path = folder / name;
    struct stat state {};
    if (::lstat(path.c_str(), &state) != 0 || !S_ISREG(state.st_mode)) continue;
    const bool is_recent = WallTimeMicros() / 1'000'000 - state.st_mtim.tv_sec < kKeptSeconds;
    if (is_recent && name.ends_with("." + BootId())) continue;
    const UniqueFd archive(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (LockFile(archive)) ::unlink(path.c_str());
  }
}

// The archive as far as an earlier receive got, locked; a new one in `scratch` if another receive has that.
absl::StatusOr<UniqueFd> OpenArchive(const std::filesystem::path& kept, const std::filesystem::path& scratch,
                                     bool* is_kept) {
  UniqueFd archive(::open(kept.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  // One that its owner has removed meanwhile has no name any more.
  struct stat state {};
  *is_kept = LockFile(archive) && ::fstat(archive.get(), &state) == 0 && state.st_nlink == 1;
  if (!*is_kept) {
    archive = UniqueFd(::open((scratch / "archive").c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  }
  if (!archive.valid()) return ErrnoError(errno, scratch.string());
  return archive;
}

// Hashes what is in `archive`, copies the input behind it and returns the hash of all.
absl::StatusOr<std::string> CopyInput(const ReceiveOptions& options, int archive) {
  Sha256 hash;
  std::string piece(kPieceBytes, '\0');
  uint64_t received = 0;
  for (ssize_t n; (n = ::read(archive, piece.data(), piece.size())) != 0; received += n) {
    if (n < 0) return ErrnoError(errno, "read what was kept");
    hash.Update(piece.data(), n);
  }
  if (options.begin) MUSTER_RETURN_IF_ERROR(options.begin(received));
  while (received < options.size) {
    pollfd input{.fd = options.input_fd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&input, 1, MillisecondsUntil(Now() + kInputTimeout));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return ErrnoError(errno, "poll");
    if (ready == 0) {
      return DeadlineExceeded("no byte came for %d s, after %d of %d",
                              std::chrono::duration_cast<std::chrono::seconds>(kInputTimeout).count(),
                              received, options.size);
    }
    const ssize_t n =
        ::read(options.input_fd, piece.data(), std::min<uint64_t>(piece.size(), options.size - received));
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0) return ErrnoError(errno, "read the upload");
    if (n == 0) return DataLoss("the upload ended after %d of %d bytes", received, options.size);
    hash.Update(piece.data(), n);
    MUSTER_RETURN_IF_ERROR(WriteAll(archive, std::string_view(piece).substr(0, n)));
    received += n;
  }
  return hash.HexDigest();
}

absl::Status Unpack(int archive, uint64_t size, const std::filesystem::path& folder) {
  if (size == 0) return DataLoss("an archive of 0 bytes");
  void* bytes = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, archive, 0);
  if (bytes == MAP_FAILED) return ErrnoError(errno, "mmap the archive");
  const absl::Status status = UnpackArchive({static_cast<const char*>(bytes), size}, folder);
  ::munmap(bytes, size);
  return status;
}

absl::Status CheckSpace(const std::filesystem::path& folder, uint64_t size) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return ErrnoError(errno, folder.string());
  const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
  // The archive and what is unpacked from it lie there together for a moment.
  if (free / 2 >= size) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("%s: the disk is too full for this upload: it needs %d bytes and %d are free",
                      folder.string(), 2 * size, free));
}

}  // namespace

absl::StatusOr<std::string> Receive(const ReceiveOptions& options) {
  if (!IsSha256(options.sha256)) {
    return InvalidArgument("--sha256 '%s': give 64 lower-case hexadecimal digits", options.sha256);
  }
  const std::filesystem::path store = options.root / "store", target = store / options.sha256;
  std::error_code error;
  if (std::filesystem::is_directory(target, error)) {
    MarkUsed(target);
    return "present " + options.sha256;
  }

  MUSTER_ASSIGN_OR_RETURN(const Scratch scratch, Scratch::Make(store / "tmp"));
  RemoveStaleArchives(store / "tmp");
  MUSTER_RETURN_IF_ERROR(CheckSpace(scratch.path(), options.size));
  const std::filesystem::path tree = scratch.path() / "tree", kept = KeptPath(store / "tmp", options.sha256);
  bool is_kept = false;
  MUSTER_ASSIGN_OR_RETURN(const UniqueFd archive, OpenArchive(kept, scratch.path(), &is_kept));
  const absl::StatusOr<std::string> hash = CopyInput(options, archive.get());
  const bool may_go_on = absl::IsDataLoss(hash.status()) || absl::IsDeadlineExceeded(hash.status());
  if (is_kept && !may_go_on) ::unlink(kept.c_str());
  if (!hash.ok()) return Annotate(hash.status(), "receive into " + store.string());
  if (*hash != options.sha256) {
    return DataLoss("what was received has SHA-256 %s, not %s: upload it again", *hash, options.sha256);
  }
  MUSTER_RETURN_IF_ERROR(MakeDirectories(tree));
  MUSTER_RETURN_IF_ERROR(Unpack(archive.get(), options.size, tree));
  // Once it has its name it counts as complete, also after a power failure.
  if (::syncfs(archive.get()) != 0) return ErrnoError(errno, "sync " + tree.string());
  if (::rename(tree.c_str(), target.c_str()) == 0) return "stored " + options.sha256;
  // Another receive of the same content was faster.
  if (errno == ENOTEMPTY || errno == EEXIST) return "present " + options.sha256;
  return ErrnoError(errno, target.string());
}

}  // namespace muster
