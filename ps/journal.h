// Journal: an append-only log of what has changed a shard. What has been appended survives the process: after
// a kill -9 the shard is what it was before, down to the last push that was acknowledged. (A power failure
// may take what the kernel had not written yet.)
//
// A journal is a sequence of segments, files that are begun at each start of the process and after each
// checkpoint. Only the end of one may be torn, where a process died as it wrote; anything else that is not as
// it was written is DataLoss.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "base/file.h"
#include "base/status.h"
#include "proto/journal.pb.h"

namespace muster {

/// One thread at a time.
class JournalWriter {
 public:
  /// Begins a segment. AlreadyExists: there is such a file.
  static absl::StatusOr<JournalWriter> Create(const std::filesystem::path& path,
                                              const journal::SegmentHeader& header);

  /// Once it has returned OK, a kill -9 does not lose it. `payload`: parts that follow one another, which are
  /// not copied. After an error there is no other success.
  absl::Status Append(const journal::Record& record, std::span<const std::span<const char>> payload = {});

  uint64_t records() const { return records_; }
  uint64_t bytes() const { return bytes_; }

 private:
  JournalWriter(std::filesystem::path path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  absl::Status AppendFrame(const google::protobuf::MessageLite& message,
                           std::span<const std::span<const char>> payload);

  std::filesystem::path path_;
  UniqueFd fd_;
  uint64_t records_ = 0;
  uint64_t bytes_ = 0;    // of the file
  absl::Status failure_;  // the first
};

/// One thread at a time.
class JournalReader {
 public:
  struct Entry {
    journal::Record record;
    std::string payload;
  };

  /// NotFound: there is no such file. FailedPrecondition: another version. DataLoss: damaged. A segment that
  /// was torn before it had a header has one without a version.
  static absl::StatusOr<JournalReader> Open(const std::filesystem::path& path);

  const journal::SegmentHeader& header() const { return header_; }

  /// nullopt: that was all. DataLoss: damaged.
  absl::StatusOr<std::optional<Entry>> Next();

  /// Records read, and whether the file ends within another one, which nobody was told of.
  uint64_t records() const { return records_; }
  bool is_torn() const { return is_torn_; }

 private:
  JournalReader(std::filesystem::path path, UniqueFd fd, uint64_t size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}

  // A message, parsed into `message`, and its payload; nullopt at the end.
  absl::StatusOr<std::optional<std::string>> NextFrame(google::protobuf::MessageLite* message);
  absl::Status Read(std::span<char> bytes);
  absl::Status Damaged(const char* what) const;

  std::filesystem::path path_;
  UniqueFd fd_;
  uint64_t size_ = 0;  // of the file
  uint64_t offset_ = 0;
  journal::SegmentHeader header_;
  uint64_t records_ = 0;
  bool is_torn_ = false;
};

}  // namespace muster
