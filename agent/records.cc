#include "agent/records.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include "base/crc32c.h"
#include "base/file.h"

namespace muster {
namespace {

constexpr std::string_view kMagic = "muster-agent record ";
constexpr uint64_t kMaxRecordBytes = uint64_t{32} << 20;

std::string Header(std::string_view kind, const std::string& payload) {
  return absl::StrFormat("%s%d %s %08x %d\n", kMagic, kRecordVersion, kind,
                         Crc32c(payload.data(), payload.size()), payload.size());
}

constexpr size_t kHeaderBytes = 64;  // and more than it ever has

std::filesystem::path ReservePath(std::filesystem::path path) { return path += ".reserve"; }

// Over the blocks that are kept for it, which then go by the record's name.
absl::Status WriteReserved(const std::filesystem::path& path, std::string_view bytes) {
  const std::filesystem::path reserve = ReservePath(path);
  const UniqueFd file(::open(reserve.c_str(), O_WRONLY | O_CLOEXEC));
  struct stat info {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0) return ErrnoError(errno, reserve.string());
  if (static_cast<size_t>(info.st_size) < bytes.size()) {
    return absl::ResourceExhaustedError(reserve.string() + " is too small");
  }
  MUSTER_RETURN_IF_ERROR(WriteAll(file.get(), bytes));
  if (::ftruncate(file.get(), static_cast<off_t>(bytes.size())) != 0 || ::fsync(file.get()) != 0 ||
      ::rename(reserve.c_str(), path.c_str()) != 0) {
    return ErrnoError(errno, reserve.string());
  }
  return SyncFolderOf(path);
}

}  // namespace

absl::Status WriteRecord(const std::filesystem::path& path, std::string_view kind,
                         const google::protobuf::MessageLite& message, Room room) {
  const std::string payload = message.SerializeAsString();
  const std::string bytes = Header(kind, payload) + payload;
  const absl::Status written = ReplaceFile(path, bytes, 0600);
  if (written.ok() || room == Room::kFree) return written;
  return WriteReserved(path, bytes).ok() ? absl::OkStatus() : written;
}

absl::Status ReserveRecord(const std::filesystem::path& path, size_t bytes) {
  const std::filesystem::path reserve = ReservePath(path);
  // To be read, too, by the C library where the file system cannot do it.
  const UniqueFd file(::open(reserve.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  struct stat before {};
  if (!file.valid() || ::fstat(file.get(), &before) != 0) return ErrnoError(errno, reserve.string());
  const int error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(kHeaderBytes + bytes));
  if (error == 0) return absl::OkStatus();
  if (before.st_size == 0) {
    ::unlink(reserve.c_str());
  } else {
    (void)!::ftruncate(file.get(), before.st_size);
  }
  // Where nothing can be kept, nothing is.
  return error == EOPNOTSUPP || error == EINVAL ? absl::OkStatus() : ErrnoError(error, reserve.string());
}

void ReleaseRecord(const std::filesystem::path& path) { ::unlink(ReservePath(path).c_str()); }

absl::Status ReadRecord(const std::filesystem::path& path, std::string_view kind,
                        google::protobuf::MessageLite& message) {
  MUSTER_ASSIGN_OR_RETURN(const std::string bytes, ReadRegularFile(path, kMaxRecordBytes));
  int version = 0;
  if (!bytes.starts_with(kMagic) || std::sscanf(bytes.c_str() + kMagic.size(), "%d ", &version) != 1) {
    return DataLoss("%s: damaged: it is no record", path.string());
  }
  if (version != kRecordVersion) {
    return FailedPrecondition("%s: has record version %d, this agent reads version %d", path.string(),
                              version, kRecordVersion);
  }
  // What the header must be follows from the payload, so there is nothing to parse.
  const size_t header_end = bytes.find('\n') + 1;
  const std::string payload = bytes.substr(header_end);
  if (header_end == 0 || bytes.substr(0, header_end) != Header(kind, payload)) {
    return DataLoss("%s: damaged: kind, checksum or length do not fit", path.string());
  }
  if (!message.ParseFromString(payload)) return DataLoss("%s: damaged: it cannot be parsed", path.string());
  return absl::OkStatus();
}

bool MayPass(const absl::Status& read) {
  return !read.ok() && !absl::IsNotFound(read) && !absl::IsDataLoss(read) &&
         !absl::IsFailedPrecondition(read);
}

std::filesystem::path AgentFolder(const std::filesystem::path& task_folder) {
  return task_folder / ".muster";
}

std::filesystem::path TaskRecordPath(const std::filesystem::path& task_folder) {
  return AgentFolder(task_folder) / "task";
}

std::filesystem::path RunRecordPath(const std::filesystem::path& task_folder, uint32_t incarnation) {
  return AgentFolder(task_folder) / absl::StrFormat("%d.run", incarnation);
}

std::filesystem::path ExitRecordPath(const std::filesystem::path& task_folder, uint32_t incarnation) {
  return AgentFolder(task_folder) / absl::StrFormat("%d.exit", incarnation);
}

std::filesystem::path ShimLockPath(const std::filesystem::path& task_folder) {
  return AgentFolder(task_folder) / "shim.lock";
}

std::filesystem::path DoneFilePath(const std::filesystem::path& task_folder) {
  return AgentFolder(task_folder) / "done";
}

std::filesystem::path ProgressPath(const std::filesystem::path& task_folder) {
  return AgentFolder(task_folder) / "progress";
}

std::filesystem::path LogPath(const std::filesystem::path& task_folder) { return task_folder / "log"; }

}  // namespace muster
