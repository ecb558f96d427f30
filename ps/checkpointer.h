// Checkpointer: writes a shard's checkpoints on a thread of its own, and knows from which ones the shard
// could go on.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "base/status.h"
#include "cluster/coordinator.h"
#include "ps/folder_claim.h"
#include "ps/shard_checkpoint.h"

namespace muster {

struct CheckpointerOptions {
  std::filesystem::path folder;
  int shard_index = 0;
  int shard_count = 1;
  int keep = 3;                // checkpoints
  std::string name;            // for its log: "ps:1"
  std::vector<int> copies_of;  // shards whose files other servers send into the folder
  /// Makes a copy elsewhere of a file that has been written, before it counts as written; null: there are
  /// none.
  std::function<absl::Status(uint64_t step, const checkpoint::Manifest::File&, const std::stop_token&)> copy;
  FileOperationHook hook;  // for tests
};

/// Any thread. What fails in the background is logged and is no checkpoint; training goes on.
class Checkpointer {
 public:
  /// Looks at what is in the folder: reads the newest checkpoint from end to end as far as this shard needs
  /// it, and if that is damaged the one before it, and so on; of the rest it looks whether the files are
  /// there, since Read will see what they hold. FailedPrecondition: there are some, but this shard can use
  /// none. `on_change`: called by a thread of its own when written() or available() have changed, and by
  /// nobody else.
  static absl::StatusOr<std::unique_ptr<Checkpointer>> Open(CheckpointerOptions options,
                                                            std::function<void()> on_change);

  ~Checkpointer() { Finish(); }

  /// What has been begun is finished, but for copies, and what is to be committed is; a snapshot that waits
  /// is dropped. Nothing is begun any more. One thread at a time.
  void Finish();

  /// Checkpoints that this shard could go on from.
  std::set<CheckpointId> available() const;

  /// Of the newest one that is available.
  std::optional<Duration> age() const;

  /// This shard's files since the last BeginAfter, by step, that are not committed.
  std::map<uint64_t, checkpoint::Manifest::File> written() const;

  /// An earlier process of this shard has written this file in the current epoch. Counts as written once it
  /// has its copy.
  void AddWritten(uint64_t step, const checkpoint::Manifest::File& file);

  /// In this epoch, which an earlier process of this shard has begun, this one goes on. No other one makes or
  /// removes checkpoints in the folder any more.
  void GoOn(const Epoch& epoch) { claim_.Take(epoch.number); }

  /// As GoOn; and this epoch begins: checkpoints after its step are what will be done again, and are removed.
  /// The one of this step is copied again: who had the copy may be the one that was lost.
  void BeginAfter(const Epoch& epoch);

  /// Fails as ReadShardCheckpoint does; if the files are at fault the step is not available any more.
  absl::StatusOr<RestoredShard> Read(uint64_t step, const ps::JobConfig& config);

  /// In the background. If a snapshot still waits to be written, it gives way to this one.
  void Write(uint64_t step, const ps::JobConfig& config, const Epoch& epoch, ShardSnapshot snapshot,
             UpdateRuleState rule);

  /// In the background: from now on the checkpoint is there; older ones are removed, but none from step
  /// `needed` on.
  void Commit(const checkpoint::Manifest& manifest, uint64_t needed);

  /// In the background: of what is written up to this step and not committed, and never will be, only the
  /// newest is kept, which a journal may go on from.
  void Abandon(uint64_t step);

  /// Others may have put checkpoints into the folder that this shard's files are there for: those are
  /// available, too.
  void LookAgain();

  /// The step of the newest checkpoint that is committed, or for all that this shard knows cannot be; 0: none
  /// since the last BeginAfter.
  uint64_t done_with() const;
  /// That of the newest of which this shard could not write its file; 0: likewise.
  uint64_t failed() const;
  /// Up to this step no file will be written any more that is not; 0: likewise.
  uint64_t settled() const;

  /// OK: one of this step, or of a later one, is available. DataLoss: why not, as far as this server knows.
  absl::Status CheckAvailable(uint64_t step) const;

 private:
  Checkpointer(CheckpointerOptions options, std::function<void()> on_change);

  struct Snapshot {
    uint64_t step = 0;
    uint64_t round = 0;
    ShardPlace place;
    ShardSnapshot shard;
    UpdateRuleState rule;
  };
  struct ToCommit {
    checkpoint::Manifest manifest;
    uint64_t needed = 0;
  };

  void Run(const std::stop_token& stop);
  void Fail(uint64_t step, uint64_t round, const std::string& why);
  void WriteNow(const Snapshot& snapshot, const std::stop_token& stop);
  void CopyNow(uint64_t step, const checkpoint::Manifest::File& file, const std::stop_token& stop) const;
  void CopyAgain(uint64_t step, const std::stop_token& stop) const;
  void CommitNow(const ToCommit& to_commit, uint64_t round);
  void AbandonNow(uint64_t step, uint64_t round);
  absl::StatusOr<CheckpointId> Verify(uint64_t step, bool read) const;
  absl::Status FindAvailable();

  const CheckpointerOptions options_;
  FolderClaim claim_;
  const CheckpointStore store_;
  const std::function<void()> on_change_;

  std::mutex manifests_mutex_;  // held while manifests come and go; taken before the other
  mutable std::mutex mutex_;    // guards the following
  std::condition_variable_any changed_;
  std::optional<Snapshot> waiting_;
  std::deque<ToCommit> to_commit_;
  std::map<uint64_t, checkpoint::Manifest::File> to_copy_;  // by step: that count as written then
  std::optional<uint64_t> to_copy_again_;                   // step
  std::map<uint64_t, CheckpointId> available_;              // by step
  std::map<uint64_t, checkpoint::Manifest::File> written_;
  uint64_t done_with_ = 0;                    // step
  uint64_t failed_ = 0;                       // step
  uint64_t settled_ = 0;                      // step
  std::pair<uint64_t, std::string> failure_;  // step, and why; the newest since the last BeginAfter
  uint64_t abandoned_ = 0;                    // step
  std::optional<uint64_t> to_abandon_;        // step
  uint64_t round_ = 0;   // of BeginAfter: what was begun in an earlier one does not count
  std::jthread thread_;  // the last member: it uses the others
};

}  // namespace muster
