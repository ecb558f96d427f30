// What a task prints, on its host's disk: one stream of bytes over all its incarnations, of which the newest
// are kept.
//
// They go to `log` in the task's folder. When that holds half of what is kept, it becomes log.BEGIN in the
// agent's folder, after the place of its first byte in the stream, the one that was there is removed, and
// `log` begins anew. So a place in the stream stays the same whatever has been removed before it, and needs
// no record: `log` begins where the newest other file ends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"

namespace muster {

/// Where a start request says nothing.
inline constexpr uint64_t kDefaultMaxLogBytes = uint64_t{1} << 30;

/// Of the shim: while one is open there is no other. Not thread-safe.
class TaskLogWriter {
 public:
  /// Goes on after what is there. `max_bytes`: what is kept, beyond which a write may go by its own size.
  static absl::StatusOr<TaskLogWriter> Open(const std::filesystem::path& task_folder, uint64_t max_bytes);

  /// What cannot be written, because the disk is full, say, is left out and counted: a task must not hang for
  /// its log.
  void Write(std::string_view bytes);

  uint64_t bytes_lost() const { return bytes_lost_; }
  /// The errno of the last loss.
  int error() const { return error_; }

 private:
  TaskLogWriter(const std::filesystem::path& task_folder, uint64_t max_bytes)
      : task_folder_(task_folder), max_bytes_(max_bytes) {}
  int OpenLog();
  void Rotate();

  std::filesystem::path task_folder_;
  uint64_t max_bytes_;
  UniqueFd file_;
  uint64_t begin_ = 0, size_ = 0;  // of `log`
  uint64_t bytes_lost_ = 0;
  int error_ = 0;
};

/// All that `pipe`, which does not block, holds of an output whose writers have ended, however long the disk
/// takes for it; after that, as long as more comes, what others who hold the pipe write within
/// `for_strangers`. Returns how many bytes of theirs are left in it.
uint64_t WriteRest(int pipe, TaskLogWriter& log, Duration for_strangers);

/// What is there of the stream.
struct LogExtent {
  uint64_t begin = 0, end = 0;
};

/// NotFound: the task has printed nothing and has never been started.
absl::StatusOr<LogExtent> FindLogExtent(const std::filesystem::path& task_folder);

struct LogPiece {
  uint64_t offset = 0;  // of the first byte
  std::string bytes;
  bool at_end = false;  // there is no more now
};

/// Reads while the shim writes. Not thread-safe.
class TaskLogReader {
 public:
  TaskLogReader(const std::filesystem::path& task_folder, uint64_t offset)
      : task_folder_(task_folder), offset_(offset) {}

  /// The next bytes, at most so many; from the first that is still there if the next one is not, and from the
  /// end on if the log has become shorter than the reader's place. What a reader has begun to read it can
  /// read to its end. NotFound: as FindLogExtent, and what comes later is read from its beginning;
  /// InvalidArgument: the task has put something else than a file where its log was.
  absl::StatusOr<LogPiece> Read(size_t max_bytes);

 private:
  absl::StatusOr<bool> OpenNext(bool may_skip);
  void GoBackToEnd();

  std::filesystem::path task_folder_;
  uint64_t offset_;
  UniqueFd file_;
  uint64_t begin_ = 0;  // of the file
};

}  // namespace muster
