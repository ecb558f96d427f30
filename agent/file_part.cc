#include "agent/file_part.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>

namespace muster {
namespace {

size_t BytesOfWholeLines(std::string_view bytes) { return bytes.rfind('\n') + 1; }  // npos + 1: none

}  // namespace

absl::StatusOr<LogPiece> ReadFilePart(const std::filesystem::path& path, uint64_t offset, size_t max_bytes,
                                      bool more_may_come) {
  // O_NONBLOCK: a pipe that a task made would keep the daemon waiting for its writer.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError(errno, path.string());
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoError(errno, path.string());
  if (!S_ISREG(info.st_mode)) return InvalidArgument("%s: is no regular file", path.string());
  const auto size = static_cast<uint64_t>(info.st_size);
  const auto read_at = [&](uint64_t begin) -> absl::StatusOr<std::string> {
    std::string bytes(std::min<uint64_t>(max_bytes, size - begin), '\0');
    const ssize_t n = ::pread(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(begin));
    if (n < 0) return ErrnoError(errno, path.string());
    bytes.resize(n);
    return bytes;
  };
  LogPiece piece{.offset = offset};
  if (offset > size) {
    piece.offset = size - std::min<uint64_t>(size, max_bytes);
    MUSTER_ASSIGN_OR_RETURN(const std::string end, read_at(piece.offset));
    piece.offset += BytesOfWholeLines(end);
  }
  MUSTER_ASSIGN_OR_RETURN(piece.bytes, read_at(piece.offset));
  // One opening reads a file that others replace as it was at one time, if it is no larger than this.
  piece.at_end = piece.bytes.size() < max_bytes;
  const size_t whole = BytesOfWholeLines(piece.bytes);
  if (more_may_come && (whole > 0 || piece.at_end)) piece.bytes.resize(whole);
  return piece;
}

}  // namespace muster
