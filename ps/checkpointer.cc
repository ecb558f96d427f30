#include "ps/checkpointer.h"

#include "base/logging.h"

namespace muster {

absl::StatusOr<std::unique_ptr<Checkpointer>> Checkpointer::Open(CheckpointerOptions options,
                                                                 std::function<void()> on_change) {
  std::unique_ptr<Checkpointer> checkpointer(new Checkpointer(std::move(options), std::move(on_change)));
  MUSTER_RETURN_IF_ERROR(checkpointer->FindAvailable());
  return checkpointer;
}

Checkpointer::Checkpointer(CheckpointerOptions options, std::function<void()> on_change)
    : options_(std::move(options)),
      claim_(options_.folder,
             "owner-of-" + CheckpointStore::ShardFileName(options_.shard_index, options_.shard_count)),
      store_(options_.folder, options_.hook, [this] { return claim_.Check(); }),
      on_change_(std::move(on_change)),
      thread_([this](const std::stop_token& stop) { Run(stop); }) {}

void Checkpointer::Finish() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

absl::Status Checkpointer::FindAvailable() {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<uint64_t> steps, store_.List());
  absl::Status first;
  const std::lock_guard lock(mutex_);
  // All of them, also beyond those that are to be kept: others may not have got to the newest.
  for (const uint64_t step : steps) {
    const auto verified = Verify(step, /*read=*/available_.empty());
    if (verified.ok()) {
      available_[step] = *verified;
      continue;
    }
    spdlog::warn("{}: checkpoint {} is not used: {}", options_.name, step,
                 std::string(verified.status().message()));
    first.Update(verified.status());
  }
  if (steps.empty() || !available_.empty()) return absl::OkStatus();
  return FailedPrecondition(
      "%s can go on from none of the %d checkpoints in %s; to begin anew, remove them or give another folder "
      "(the newest: %s)",
      options_.name, steps.size(), options_.folder.string(), std::string(first.message()));
}

absl::StatusOr<CheckpointId> Checkpointer::Verify(uint64_t step, bool read) const {
  MUSTER_ASSIGN_OR_RETURN(const checkpoint::Manifest manifest, store_.ReadManifest(step));
  const bool same_count = manifest.files_size() == options_.shard_count;
  for (int i = 0; i < manifest.files_size(); ++i) {
    if (same_count && i != options_.shard_index) continue;
    MUSTER_RETURN_IF_ERROR(read ? store_.VerifyShard(manifest, i) : store_.OpenShard(manifest, i).status());
  }
  return CheckpointId{step, DigestOf(manifest)};
}

std::optional<Duration> Checkpointer::age() const {
  const std::set<CheckpointId> ids = available();
  return ids.empty() ? std::nullopt : store_.AgeOf(ids.rbegin()->step);
}

std::set<CheckpointId> Checkpointer::available() const {
  const std::lock_guard lock(mutex_);
  std::set<CheckpointId> ids;
  for (const auto& [step, id] : available_) ids.insert(id);
  return ids;
}

std::map<uint64_t, checkpoint::Manifest::File> Checkpointer::written() const {
  const std::lock_guard lock(mutex_);
  return written_;
}

void Checkpointer::AddWritten(uint64_t step, const checkpoint::Manifest::File& file) {
  const std::lock_guard lock(mutex_);
  if (available_.contains(step)) return;
  (options_.copy ? to_copy_ : written_)[step] = file;
  changed_.notify_all();
}

void Checkpointer::BeginAfter(const Epoch& epoch) {
  GoOn(epoch);
  const uint64_t step = epoch.step;
  const std::lock_guard manifests_lock(manifests_mutex_);
  const std::lock_guard lock(mutex_);
  ++round_;
  waiting_.reset();
  to_commit_.clear();
  to_copy_.clear();
  written_.clear();
  done_with_ = failed_ = settled_ = abandoned_ = 0;
  failure_ = {};
  to_abandon_.reset();
  if (options_.copy && step > 0) to_copy_again_ = step;
  changed_.notify_all();
  available_.erase(available_.upper_bound(step), available_.end());
  const absl::Status status =
      store_.RemoveAfter(step, CheckpointStore::ShardFileName(options_.shard_index, options_.shard_count));
  if (!status.ok()) spdlog::warn("{}: {}", options_.name, std::string(status.message()));
}

absl::StatusOr<RestoredShard> Checkpointer::Read(uint64_t step, const ps::JobConfig& config) {
  const auto read = [&]() -> absl::StatusOr<RestoredShard> {
    MUSTER_ASSIGN_OR_RETURN(const checkpoint::Manifest manifest, store_.ReadManifest(step));
    return ReadShardCheckpoint(store_, manifest, {config, options_.shard_index, options_.shard_count});
  };
  auto restored = read();
  if (absl::IsDataLoss(restored.status()) || absl::IsNotFound(restored.status())) {
    const std::lock_guard lock(mutex_);
    available_.erase(step);
  }
  return restored;
}

void Checkpointer::Write(uint64_t step, const ps::JobConfig& config, const Epoch& epoch,
                         ShardSnapshot snapshot, UpdateRuleState rule) {
  const std::lock_guard lock(mutex_);
  if (waiting_) {
    spdlog::warn("{}: checkpoint {} is left out: the disk is slower than training makes checkpoints",
                 options_.name, waiting_->step);
    failed_ = waiting_->step;
  }
  waiting_ = Snapshot{.step = step,
                      .round = round_,
                      .place = {config, options_.shard_index, options_.shard_count, epoch.number},
                      .shard = std::move(snapshot),
                      .rule = std::move(rule)};
  changed_.notify_all();
}

void Checkpointer::Commit(const checkpoint::Manifest& manifest, uint64_t needed) {
  const std::lock_guard lock(mutex_);
  to_commit_.push_back({manifest, needed});
  changed_.notify_all();
}

void Checkpointer::Abandon(uint64_t step) {
  const std::lock_guard lock(mutex_);
  if (step <= abandoned_) return;
  to_abandon_ = abandoned_ = step;
  changed_.notify_all();
}

void Checkpointer::LookAgain() {
  const std::lock_guard files_lock(manifests_mutex_);
  const std::vector<uint64_t> steps = store_.List().value_or(std::vector<uint64_t>());
  const std::lock_guard lock(mutex_);
  for (const uint64_t step : steps) {
    if (available_.contains(step)) continue;
    if (const auto verified = Verify(step, /*read=*/false); verified.ok()) {
      available_[step] = *verified;
      written_.erase(step);
    }
  }
}

uint64_t Checkpointer::done_with() const {
  const std::lock_guard lock(mutex_);
  return done_with_;
}

uint64_t Checkpointer::failed() const {
  const std::lock_guard lock(mutex_);
  return failed_;
}

uint64_t Checkpointer::settled() const {
  const std::lock_guard lock(mutex_);
  return settled_;
}

absl::Status Checkpointer::CheckAvailable(uint64_t step) const {
  const std::lock_guard lock(mutex_);
  if (!available_.empty() && available_.rbegin()->first >= step) return absl::OkStatus();
  if (failure_.first >= step) return DataLoss("%s", failure_.second);
  return DataLoss("not all parameter servers could write their files, as their logs say");
}

void Checkpointer::Fail(uint64_t step, uint64_t round, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (round == round_) {
    done_with_ = failed_ = settled_ = step;
    failure_ = {step, why};
  }
  spdlog::error("{}: checkpoint {} was not written: {}", options_.name, step, why);
}

void Checkpointer::Run(const std::stop_token& stop) {
  while (true) {
    std::optional<Snapshot> snapshot;
    std::optional<ToCommit> to_commit;
    std::optional<uint64_t> to_abandon, to_copy_again;
    std::map<uint64_t, checkpoint::Manifest::File> to_copy;
    uint64_t round;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, stop, [this] {
        return waiting_ || !to_commit_.empty() || to_abandon_ || !to_copy_.empty() || to_copy_again_;
      });
      if (stop.stop_requested() && to_commit_.empty()) return;
      round = round_;
      if (!to_commit_.empty()) {
        to_commit = std::move(to_commit_.front());
        to_commit_.pop_front();
      } else if (to_abandon_) {
        to_abandon = std::exchange(to_abandon_, std::nullopt);
      } else if (waiting_) {
        snapshot = std::exchange(waiting_, std::nullopt);
      } else {
        to_copy.swap(to_copy_);
        to_copy_again = std::exchange(to_copy_again_, std::nullopt);
      }
    }
    try {
      if (to_commit) CommitNow(*to_commit, round);
      if (to_abandon) AbandonNow(*to_abandon, round);
      if (snapshot) WriteNow(*snapshot, stop);
      if (to_copy_again) CopyAgain(*to_copy_again, stop);
      for (const auto& [step, file] : to_copy) {
        CopyNow(step, file, stop);
        const std::lock_guard lock(mutex_);
        if (round == round_) written_[step] = file;
      }
    } catch (const std::bad_alloc&) {
      if (snapshot) Fail(snapshot->step, snapshot->round, "not enough memory");
      if (!snapshot) spdlog::error("{}: not enough memory for a checkpoint", options_.name);
    }
    snapshot.reset();  // its memory is not needed any more
    on_change_();
  }
}

void Checkpointer::WriteNow(const Snapshot& snapshot, const std::stop_token& stop) {
  const auto file =
      WriteShardCheckpoint(store_, snapshot.step, snapshot.place, snapshot.shard, snapshot.rule);
  if (!file.ok()) return Fail(snapshot.step, snapshot.round, std::string(file.status().message()));
  CopyNow(snapshot.step, *file, stop);
  const std::lock_guard lock(mutex_);
  if (snapshot.round != round_) return;
  written_[snapshot.step] = *file;
  settled_ = snapshot.step;
}

void Checkpointer::CopyNow(uint64_t step, const checkpoint::Manifest::File& file,
                           const std::stop_token& stop) const {
  if (!options_.copy) return;
  const absl::Status status = options_.copy(step, file, stop);
  if (status.ok() || absl::IsCancelled(status)) return;
  spdlog::warn("{}: checkpoint {} has no copy: {}", options_.name, step, std::string(status.message()));
}

// Of a file that this server has, and that another number of servers may have made.
void Checkpointer::CopyAgain(uint64_t step, const std::stop_token& stop) const {
  const auto manifest = store_.ReadManifest(step);
  if (!manifest.ok() || manifest->files_size() != options_.shard_count) return;
  CopyNow(step, manifest->files(options_.shard_index), stop);
}

void Checkpointer::CommitNow(const ToCommit& to_commit, uint64_t round) {
  const checkpoint::Manifest& manifest = to_commit.manifest;
  const std::lock_guard files_lock(manifests_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (round != round_) return;  // training has gone back since
  }
  const absl::Status status = store_.Commit(manifest);
  if (!status.ok()) {
    const std::lock_guard lock(mutex_);
    done_with_ = manifest.step();
    failure_ = {manifest.step(), std::string(status.message())};
    spdlog::warn("{}: checkpoint {}: {}", options_.name, manifest.step(), failure_.second);
    return;
  }
  // Servers that share the folder may remove the same at the same time; what stays is removed next time.
  (void)store_.Prune(options_.keep, to_commit.needed);
  const std::lock_guard lock(mutex_);
  done_with_ = manifest.step();
  available_[manifest.step()] = {manifest.step(), DigestOf(manifest)};
  while (static_cast<int>(available_.size()) > options_.keep &&
         available_.begin()->first < to_commit.needed) {
    available_.erase(available_.begin());
  }
  written_.erase(written_.begin(), written_.upper_bound(manifest.step()));
}

void Checkpointer::AbandonNow(uint64_t step, uint64_t round) {
  std::vector<std::string> files;
  for (const int shard : options_.copies_of) {
    files.push_back(CheckpointStore::ShardFileName(shard, options_.shard_count));
  }
  files.push_back(CheckpointStore::ShardFileName(options_.shard_index, options_.shard_count));
  const std::lock_guard files_lock(manifests_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (round != round_) return;  // training has gone back since
    if (auto after = written_.upper_bound(step); after != written_.begin()) {
      written_.erase(written_.begin(), std::prev(after));
    }
  }
  const absl::Status status = store_.RemoveAbandoned(step, files);
  if (!status.ok()) spdlog::warn("{}: {}", options_.name, std::string(status.message()));
}

}  // namespace muster
