// One shard's file of a checkpoint: a header and sections of raw numbers in blocks, each block with its
// checksum. The format is described in docs/checkpoint-format.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "proto/checkpoint.pb.h"

namespace muster {

inline constexpr uint32_t kCheckpointVersion = 1;

/// What goes into a section: `section` without its size, and the bytes.
struct CheckpointSection {
  checkpoint::Section section;
  std::span<const char> bytes;
};

/// By which a manifest knows a file.
struct ShardFileSummary {
  uint64_t bytes = 0;
  uint32_t digest = 0;  // CRC-32C of the file's checksums, in their order
  friend bool operator==(const ShardFileSummary&, const ShardFileSummary&) = default;
};

/// Called before each operation on the file system, with its name; for tests.
using FileOperationHook = std::function<void(const char* operation)>;

/// What the name of a shard's file goes on with until all of it is there.
inline constexpr char kUnfinishedShardFile[] = ".writing-";

/// Writes the file under a temporary name, syncs it and renames it into place; the header's sections are
/// filled in. Files are never changed afterwards. On failure nothing is left. `may_change`: asked before the
/// renaming, which fails as it does.
absl::StatusOr<ShardFileSummary> WriteShardFile(const std::filesystem::path& path,
                                                checkpoint::ShardHeader header,
                                                std::span<const CheckpointSection> sections,
                                                const FileOperationHook& hook = nullptr,
                                                const std::function<absl::Status()>& may_change = nullptr);

/// Reads a file's sections in their order. Whatever is not as it was written is DataLoss with the path. One
/// thread at a time.
class ShardFileReader {
 public:
  /// NotFound if there is no such file; FailedPrecondition if it has another version.
  static absl::StatusOr<ShardFileReader> Open(const std::filesystem::path& path);

  const checkpoint::ShardHeader& header() const { return header_; }

  /// The next section; `bytes` is as large as the header says. What was read is right once this has returned
  /// OK.
  absl::Status Read(std::span<char> bytes);

  /// The same, without keeping it.
  absl::Status Skip();

  /// After the last section. DataLoss: more follows.
  absl::StatusOr<ShardFileSummary> Finish();

 private:
  absl::Status ReadExactly(std::span<char> bytes);
  absl::Status ReadBlock(std::span<char> block);
  absl::Status Damaged(const char* what) const;

  std::filesystem::path path_;
  std::unique_ptr<UniqueFd> fd_;
  checkpoint::ShardHeader header_;
  int next_section_ = 0;
  ShardFileSummary summary_;
};

/// The bytes of numbers.
template <typename T>
std::span<const char> BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
template <typename T>
std::span<char> MutableBytesOf(std::vector<T>& values) {
  return {reinterpret_cast<char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace muster
