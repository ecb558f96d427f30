#include "agent/task_log.h"

#include <absl/strings/numbers.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "agent/records.h"

namespace muster {
namespace {

constexpr std::string_view kRotatedPrefix = "log.";
constexpr int kTries = 100;
constexpr size_t kPieceBytes = 65536;

size_t BytesIn(int pipe) {
  int bytes = 0;
  return ::ioctl(pipe, FIONREAD, &bytes) == 0 ? static_cast<size_t>(bytes) : 0;
}

std::filesystem::path RotatedPath(const std::filesystem::path& task_folder, uint64_t begin) {
  return AgentFolder(task_folder) / absl::StrFormat("%s%d", kRotatedPrefix, begin);
}

struct Rotated {
  uint64_t begin = 0;
  std::filesystem::path path;
};

// The oldest first. What has no number is not ours.
std::vector<Rotated> ListRotated(const std::filesystem::path& task_folder) {
  std::vector<Rotated> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(AgentFolder(task_folder), error)) {
    const std::string name = entry.path().filename();
    uint64_t begin = 0;
    if (name.starts_with(kRotatedPrefix) && absl::SimpleAtoi(name.substr(kRotatedPrefix.size()), &begin)) {
      files.push_back({begin, entry.path()});
    }
  }
  std::sort(files.begin(), files.end(), [](const Rotated& a, const Rotated& b) { return a.begin < b.begin; });
  return files;
}

struct LogFile {
  UniqueFd fd;
  uint64_t begin = 0, size = 0;
  uint64_t end() const { return begin + size; }
};

// Nothing: it is not there.
absl::StatusOr<std::optional<LogFile>> OpenLogFile(const std::filesystem::path& path, uint64_t begin) {
  // O_NONBLOCK: a pipe that a task made would keep the daemon waiting for its writer.
  LogFile file{.fd = UniqueFd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)), .begin = begin};
  if (!file.fd.valid() && errno == ENOENT) return std::nullopt;
  struct stat info {};
  if (!file.fd.valid() || ::fstat(file.fd.get(), &info) != 0) return ErrnoError(errno, path.string());
  if (!S_ISREG(info.st_mode)) return InvalidArgument("%s: is no regular file", path.string());
  file.size = static_cast<uint64_t>(info.st_size);
  return file;
}

// Whether `log` is this file, or, for -1, is not there.
bool IsLog(int fd, const std::filesystem::path& task_folder) {
  struct stat named {
  }, open{};
  if (::stat(LogPath(task_folder).c_str(), &named) != 0) return fd < 0;
  return fd >= 0 && ::fstat(fd, &open) == 0 && named.st_dev == open.st_dev && named.st_ino == open.st_ino;
}

// All files of the stream as they were at one moment, the oldest first, of which only the last still grows.
absl::StatusOr<std::vector<LogFile>> OpenLogFiles(const std::filesystem::path& task_folder) {
  for (int i = 0; i < kTries; ++i) {
    MUSTER_ASSIGN_OR_RETURN(std::optional<LogFile> log, OpenLogFile(LogPath(task_folder), 0));
    std::vector<LogFile> files;
    bool all = true;
    for (const Rotated& rotated : ListRotated(task_folder)) {
      MUSTER_ASSIGN_OR_RETURN(std::optional<LogFile> file, OpenLogFile(rotated.path, rotated.begin));
      all = all && file;
      if (file) files.push_back(*std::move(file));
    }
    // Rotated meanwhile: another look.
    if (!all || !IsLog(log ? log->fd.get() : -1, task_folder)) continue;
    if (log) {
      log->begin = files.empty() ? 0 : files.back().end();
      files.push_back(*std::move(log));
    }
    if (files.empty()) return NotFound("%s: is not there", LogPath(task_folder).string());
    return files;
  }
  return Unavailable("%s: it changes all the time", LogPath(task_folder).string());
}

}  // namespace

absl::StatusOr<TaskLogWriter> TaskLogWriter::Open(const std::filesystem::path& task_folder,
                                                  uint64_t max_bytes) {
  TaskLogWriter writer(task_folder, max_bytes);
  const std::vector<Rotated> rotated = ListRotated(task_folder);
  if (!rotated.empty()) {
    std::error_code error;
    const uint64_t size = std::filesystem::file_size(rotated.back().path, error);
    if (error) return ErrnoError(error.value(), rotated.back().path.string());
    writer.begin_ = rotated.back().begin + size;
  }
  if (const int error = writer.OpenLog(); error != 0) return ErrnoError(error, LogPath(task_folder).string());
  return writer;
}

// An errno.
int TaskLogWriter::OpenLog() {
  file_ = UniqueFd(::open(LogPath(task_folder_).c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  struct stat info {};
  if (!file_.valid() || ::fstat(file_.get(), &info) != 0) return errno;
  size_ = static_cast<uint64_t>(info.st_size);
  return 0;
}

// The new one's name is there before the old one's is not, so that a killed shim leaves the place of `log`.
// What does not work now is tried again with the next bytes.
void TaskLogWriter::Rotate() {
  const std::vector<Rotated> old = ListRotated(task_folder_);
  if (::rename(LogPath(task_folder_).c_str(), RotatedPath(task_folder_, begin_).c_str()) == 0) {
    begin_ += size_;
    for (const Rotated& file : old) ::unlink(file.path.c_str());
  } else if (errno !=
             ENOENT) {  // then somebody has removed it, and it begins anew at the place where it began
    return;
  }
  size_ = 0;
  file_.reset();
}

void TaskLogWriter::Write(std::string_view bytes) {
  if (size_ > 0 && size_ + bytes.size() > max_bytes_ / 2) Rotate();
  int error = file_.valid() ? 0 : OpenLog();
  while (!bytes.empty() && error == 0) {
    const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written < 0) {
      error = errno == EINTR ? 0 : errno;
    } else {
      size_ += written;
      bytes.remove_prefix(written);
    }
  }
  bytes_lost_ += bytes.size();
  if (error != 0) error_ = error;
}

uint64_t WriteRest(int pipe, TaskLogWriter& log, Duration for_strangers) {
  char piece[kPieceBytes];
  size_t due = BytesIn(pipe);
  for (TimePoint until = Now() + for_strangers; due > 0 || Now() < until;) {
    const bool is_due = due > 0;
    const ssize_t n = ::read(pipe, piece, is_due ? std::min(due, sizeof piece) : sizeof piece);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return 0;
    log.Write(std::string_view(piece, n));
    if (!is_due) continue;
    due -= n;
    until = Now() + for_strangers;
  }
  return BytesIn(pipe);
}

absl::StatusOr<LogExtent> FindLogExtent(const std::filesystem::path& task_folder) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<LogFile> files, OpenLogFiles(task_folder));
  return LogExtent{.begin = files.front().begin, .end = files.back().end()};
}

// The file with the next byte, or the last one. False: it goes on elsewhere, and what was read so far must
// not.
absl::StatusOr<bool> TaskLogReader::OpenNext(bool may_skip) {
  absl::StatusOr<std::vector<LogFile>> files = OpenLogFiles(task_folder_);
  // Whoever asked for it knows another one.
  if (absl::IsNotFound(files.status()) && !file_.valid()) offset_ = 0;
  MUSTER_RETURN_IF_ERROR(files.status());
  auto file = std::find_if(files->begin(), files->end(),
                           [this](const LogFile& file) { return file.end() > offset_; });
  if (file == files->end()) --file;
  const uint64_t next = std::clamp(offset_, file->begin, file->end());
  if (next != offset_ && !may_skip) return false;
  offset_ = next;
  file_ = std::move(file->fd);
  begin_ = file->begin;
  return true;
}

// Of a file that was cut.
void TaskLogReader::GoBackToEnd() {
  struct stat info {};
  if (::fstat(file_.get(), &info) != 0) return;
  offset_ = std::min(offset_, begin_ + static_cast<uint64_t>(info.st_size));
}

absl::StatusOr<LogPiece> TaskLogReader::Read(size_t max_bytes) {
  LogPiece piece;
  bool is_new = false;      // just opened, as it was when it was the next or the last
  bool is_rotated = false;  // nobody writes to it any more
  while (piece.bytes.size() < max_bytes) {
    if (file_.valid()) {
      const size_t had = piece.bytes.size();
      piece.bytes.resize(max_bytes);
      const ssize_t n = ::pread(file_.get(), piece.bytes.data() + had, max_bytes - had,
                                static_cast<off_t>(offset_ - begin_));
      piece.bytes.resize(had + std::max<ssize_t>(n, 0));
      if (n < 0) return ErrnoError(errno, LogPath(task_folder_).string());
      if (had == 0 && n == 0) GoBackToEnd();
      if (had == 0) piece.offset = offset_;
      offset_ += n;
      if (n > 0) {
        is_new = false;
        continue;
      }
      if (is_new || (!is_rotated && IsLog(file_.get(), task_folder_))) {
        piece.at_end = true;
        break;
      }
      // What was written before that.
      if (!std::exchange(is_rotated, true)) continue;
    }
    const absl::StatusOr<bool> opened = OpenNext(/*may_skip=*/piece.bytes.empty());
    if (!opened.ok() && piece.bytes.empty()) return opened.status();
    if (!opened.ok() || !*opened) break;
    is_new = true;
    is_rotated = false;
  }
  return piece;
}

}  // namespace muster
