#include "agent/records.h"

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

}  // namespace

absl::Status WriteRecord(const std::filesystem::path& path, std::string_view kind,
                         const google::protobuf::MessageLite& message) {
  const std::string payload = message.SerializeAsString();
  return WriteFileAtomically(path, Header(kind, payload) + payload, 0600);
}

absl::Status ReadRecord(const std::filesystem::path& path, std::string_view kind,
                        google::protobuf::MessageLite& message) {
  MUSTER_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxRecordBytes));
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
