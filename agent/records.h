// Records on disk: one protobuf message a file, behind a line of text that names format version, kind,
// checksum and length.
//
//   muster-agent record 1 task 8a9136aa 213\n<213 bytes>
//
// Written atomically: a reader sees the old record or the new one. A torn, damaged or newer one is told apart
// and reported.
#pragma once

#include <google/protobuf/message_lite.h>

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/status.h"

namespace muster {

inline constexpr int kRecordVersion = 1;

/// Of the reasons that records give, so that what is reserved for them is enough.
inline constexpr size_t kMostReasonBytes = 2048;

/// What a record may take on a full disk: nothing, or what ReserveRecord has kept for it.
enum class Room { kFree, kReserved };

/// Mode 0600: a task's record holds its keys. `kind` keeps a record of one kind from being read as another.
absl::Status WriteRecord(const std::filesystem::path& path, std::string_view kind,
                         const google::protobuf::MessageLite& message, Room room = Room::kFree);

/// Keeps room on the disk for a record of up to `bytes` at `path`, which one WriteRecord may take, where the
/// file system overwrites in place. If there is no more room, what was kept before stays.
absl::Status ReserveRecord(const std::filesystem::path& path, size_t bytes);
void ReleaseRecord(const std::filesystem::path& path);

/// NotFound: no file. DataLoss: damaged. FailedPrecondition: another version, with both numbers. Each names
/// the path.
absl::Status ReadRecord(const std::filesystem::path& path, std::string_view kind,
                        google::protobuf::MessageLite& message);

/// Whether what could not be read, a record or a folder, is there and may be readable later: one that is
/// damaged, or of another version, stays so.
bool MayPass(const absl::Status& read);

/// Where the agent keeps what about a task: `task_folder` is DIR/jobs/<job>/<TaskFolder(task)>.
std::filesystem::path AgentFolder(const std::filesystem::path& task_folder);
std::filesystem::path TaskRecordPath(const std::filesystem::path& task_folder);
std::filesystem::path RunRecordPath(const std::filesystem::path& task_folder, uint32_t incarnation);
std::filesystem::path ExitRecordPath(const std::filesystem::path& task_folder, uint32_t incarnation);
/// Locked (flock) by a shim from before it exists to its end: held means that one lives, whatever became of
/// the daemon.
std::filesystem::path ShimLockPath(const std::filesystem::path& task_folder);
/// Made by a task that has done its work and has only to end well, under the path in MUSTER_DONE_FILE, for
/// its next incarnation, should there be one. Removed before another start.
std::filesystem::path DoneFilePath(const std::filesystem::path& task_folder);
/// agent/task_log.h.
std::filesystem::path LogPath(const std::filesystem::path& task_folder);
std::filesystem::path ProgressPath(const std::filesystem::path& task_folder);

}  // namespace muster
