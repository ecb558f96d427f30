// ShardJournal: the journal of one shard, from the checkpoint of its own that it can be replayed on.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "cluster/coordinator.h"
#include "ps/journal.h"
#include "ps/shard_checkpoint.h"
#include "ps/shard_epoch.h"

namespace muster {

/// What a process had that has ended: a shard as its checkpoint has it, and what came after that.
class RecoveredShard {
 public:
  ps::JobConfig config;
  Epoch epoch;
  uint64_t checkpoint = 0;                         // step
  std::optional<checkpoint::Manifest::File> file;  // of that checkpoint, if it was made in this epoch
  std::optional<Shard> shard;                      // always there
  UpdateRuleState rule;

  /// In the order in which it came; nullopt: that was all. DataLoss: the journal is not whole.
  absl::StatusOr<std::optional<JournalReader::Entry>> Next();

  /// Of the last segment, as far as they were read.
  uint64_t last_records() const { return segments_.empty() ? 0 : segments_.back().second.records(); }

 private:
  friend class ShardJournal;
  std::vector<std::pair<std::filesystem::path, JournalReader>> segments_;
  size_t next_ = 0;  // segment
};

/// One thread at a time. Whatever fails to be appended has to end the server: it would be acknowledged and
/// could be lost.
class ShardJournal {
 public:
  /// `folder`: that of the checkpoints. Nothing is opened. `generation`: of the cluster; a journal of another
  /// one is of no use.
  ShardJournal(std::filesystem::path folder, int shard_index, int shard_count, uint64_t generation);

  /// There may be something to recover.
  bool exists() const { return !List().value_or(std::vector<uint64_t>()).empty(); }

  /// nullopt: there is nothing to recover. Any error: there was, but it cannot be read; the journal is then
  /// of no use, and BeginEpoch removes it.
  absl::StatusOr<std::optional<RecoveredShard>> Recover();

  /// The first segment of an epoch, after its checkpoint or the initial values. Those before are removed.
  absl::Status BeginEpoch(const ps::JobConfig& config, const Epoch& epoch);

  /// Another segment of the same epoch, after the shard's own file of a checkpoint, which will have `updates`
  /// and may be written once this has returned.
  absl::Status BeginSegment(const ps::JobConfig& config, const Epoch& epoch, uint64_t checkpoint,
                            uint64_t updates);

  /// Another one, where what was recovered ends.
  absl::Status Continue(const RecoveredShard& recovered);

  /// One of ps/shard_replay.h.
  absl::Status Append(const journal::Record& record, std::span<const std::span<const char>> payload = {}) {
    return writer_->Append(record, payload);
  }

  /// The shard's own file of this checkpoint is there: what came before is not needed any more.
  absl::Status Release(uint64_t checkpoint);

 private:
  absl::Status Begin(journal::SegmentHeader header, const ps::JobConfig& config, const Epoch& epoch);
  std::filesystem::path PathOf(uint64_t number) const;
  absl::StatusOr<std::vector<uint64_t>> List() const;  // numbers, ascending
  absl::StatusOr<RecoveredShard> ReadBase(const journal::SegmentHeader& segment) const;

  const CheckpointStore store_;
  const std::filesystem::path folder_;
  const int shard_index_;
  const int shard_count_;
  const uint64_t generation_;
  const std::string boot_id_;
  std::optional<JournalWriter> writer_;
  uint64_t number_ = 0;                    // of the newest segment
  std::map<uint64_t, uint64_t> begun_at_;  // checkpoint: number of the segment that begins with it
};

}  // namespace muster
