#include "agent/receive.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "agent/store.h"
#include "base/archive.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/sha256.h"

namespace muster {
namespace {

constexpr Duration kInputTimeout = std::chrono::seconds(60);
constexpr size_t kPieceBytes = size_t{1} << 20;

bool LockFile(const UniqueFd& file) { return file.valid() && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0; }

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

}  // namespace

absl::StatusOr<std::string> Receive(const ReceiveOptions& options) {
  MUSTER_ASSIGN_OR_RETURN(const bool is_stored, IsStored(options.root, options.sha256));
  if (is_stored) return "present " + options.sha256;

  MUSTER_ASSIGN_OR_RETURN(const StoreScratch scratch, StoreScratch::Make(options.root));
  const std::filesystem::path store = StoreFolder(options.root);
  const std::filesystem::path kept = KeptArchivePath(options.root, options.sha256);
  bool is_kept = false;
  MUSTER_ASSIGN_OR_RETURN(const UniqueFd archive, OpenArchive(kept, scratch.path(), &is_kept));
  struct stat state {};
  if (::fstat(archive.get(), &state) != 0) return ErrnoError(errno, kept.string());
  const auto there = static_cast<uint64_t>(state.st_size);
  // The archive and what is unpacked from it lie there together for a moment.
  const absl::Status room = CheckSpace(scratch.path(), 2 * options.size - std::min(there, options.size));
  if (!room.ok() && is_kept && there == 0) ::unlink(kept.c_str());
  MUSTER_RETURN_IF_ERROR(room);
  const absl::StatusOr<std::string> hash = CopyInput(options, archive.get());
  const bool may_go_on = absl::IsDataLoss(hash.status()) || absl::IsDeadlineExceeded(hash.status());
  if (is_kept && !may_go_on) ::unlink(kept.c_str());
  if (!hash.ok()) return Annotate(hash.status(), "receive into " + store.string());
  if (*hash != options.sha256) {
    return DataLoss("what was received has SHA-256 %s, not %s: upload it again", *hash, options.sha256);
  }
  MUSTER_RETURN_IF_ERROR(MakeDirectories(scratch.tree()));
  MUSTER_RETURN_IF_ERROR(Unpack(archive.get(), options.size, scratch.tree()));
  // What is needed no more need not be written to the disk.
  (void)!::ftruncate(archive.get(), 0);
  return PlaceTree(options.root, scratch, options.sha256);
}

}  // namespace muster
