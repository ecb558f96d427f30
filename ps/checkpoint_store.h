// CheckpointStore: the checkpoints in a folder, each a folder of its own with one file for each shard and a
// manifest, which is written last. All shards may share the folder, or each has its own with its own files
// and a copy of the manifest.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "proto/checkpoint.pb.h"
#include "ps/checkpoint_file.h"

namespace muster {

/// Two checkpoints with the same step and digest have the same files.
uint32_t DigestOf(const checkpoint::Manifest& manifest);

/// Stateless but for the path; several processes may use one folder.
class CheckpointStore {
 public:
  /// `may_change`: asked before anything is put into its place or removed, which fails as it does; null: it
  /// may.
  explicit CheckpointStore(std::filesystem::path folder, FileOperationHook hook = nullptr,
                           std::function<absl::Status()> may_change = nullptr)
      : folder_(std::move(folder)), hook_(std::move(hook)), may_change_(std::move(may_change)) {}

  const std::filesystem::path& folder() const { return folder_; }

  /// Where the file of a shard is, and its name there.
  std::filesystem::path PathOf(uint64_t step, const std::string& name) const;
  static std::string ShardFileName(int shard_index, int shard_count);

  /// Writes a shard's file; makes the folders that it needs. If there is a checkpoint of this step, it is
  /// none any more.
  absl::StatusOr<checkpoint::Manifest::File> WriteShard(uint64_t step, const checkpoint::ShardHeader& header,
                                                        std::span<const CheckpointSection> sections) const;

  /// Up to `max_bytes` of a shard's file from `offset` on; empty at its end.
  absl::StatusOr<std::string> ReadPiece(uint64_t step, const std::string& name, uint64_t offset,
                                        size_t max_bytes) const;

  /// The file is here: as far as its header and size tell, or, having read it, for certain.
  bool HasShard(uint64_t step, const checkpoint::Manifest::File& file, bool read) const;

  /// From now on the checkpoint is there. All its files that are to be in this folder have been written.
  absl::Status Commit(const checkpoint::Manifest& manifest) const;

  /// This file is here for a step after all that have a manifest: whoever was to commit it may have ended too
  /// early.
  absl::StatusOr<bool> HasUncommitted(const std::string& file) const;

  /// Steps with a manifest, the newest first.
  absl::StatusOr<std::vector<uint64_t>> List() const;

  /// Since it was committed, by the clock of files; nullopt: there is none.
  std::optional<Duration> AgeOf(uint64_t step) const;

  /// DataLoss: damaged. NotFound: there is none.
  absl::StatusOr<checkpoint::Manifest> ReadManifest(uint64_t step) const;

  /// Opens the file of shard `index`, and checks that it is the one that the manifest means as far as its
  /// size tells. Its digest is to be compared once it has been read (CheckDigest).
  absl::StatusOr<ShardFileReader> OpenShard(const checkpoint::Manifest& manifest, int index) const;

  /// After the last section. DataLoss: whole, but not the file that the manifest means.
  absl::Status CheckDigest(const checkpoint::Manifest& manifest, int index, ShardFileReader& reader) const;

  /// Reads a shard's file from end to end.
  absl::Status VerifyShard(const checkpoint::Manifest& manifest, int index) const;

  /// Removes all but the newest `keep` checkpoints and those from step `needed` on, and what was left of
  /// attempts older than those.
  absl::Status Prune(int keep, uint64_t needed) const;

  /// Of the steps up to this one that have no manifest these files are removed, but of each the newest, and
  /// the folders that are empty.
  absl::Status RemoveAbandoned(uint64_t step, const std::vector<std::string>& files) const;

  /// From now on there is no checkpoint after `step`. Of their files only the shard's own, of this name, is
  /// removed, finished or not: another one may be making its own again already.
  absl::Status RemoveAfter(uint64_t step, const std::string& file) const;

 private:
  absl::Status MayChange() const { return may_change_ ? may_change_() : absl::OkStatus(); }
  // Removes the manifest, if there is one.
  absl::Status Revoke(uint64_t step) const;

  const std::filesystem::path folder_;
  const FileOperationHook hook_;
  const std::function<absl::Status()> may_change_;
};

/// A shard's file that comes from elsewhere in pieces: under a temporary name until all of it is there. One
/// thread at a time.
class ShardFileCopy {
 public:
  /// Makes the folders that it needs.
  static absl::StatusOr<ShardFileCopy> Begin(const CheckpointStore& store, uint64_t step,
                                             const checkpoint::Manifest::File& file);

  const checkpoint::Manifest::File& file() const { return file_; }
  uint64_t received() const { return received_; }
  bool is_complete() const { return received_ == file_.bytes(); }

  /// The next bytes. InvalidArgument: more than the file has.
  absl::Status Append(std::string_view bytes);

  /// With all of it: syncs it and renames it into place. DataLoss: it is not the file that it was said to be.
  absl::Status Finish();

 private:
  // Removes what was not finished.
  struct Unfinished {
    std::filesystem::path path;
    bool finished = false;
    ~Unfinished();
  };

  std::filesystem::path path_;
  checkpoint::Manifest::File file_;
  uint64_t received_ = 0, synced_ = 0;
  UniqueFd fd_;
  std::unique_ptr<Unfinished> temporary_;
};

}  // namespace muster
