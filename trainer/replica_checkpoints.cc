#include "trainer/replica_checkpoints.h"

#include <utility>

#include "base/logging.h"

namespace muster {

ReplicaCheckpoints::ReplicaCheckpoints(ReplicaCheckpointsOptions options) : options_(std::move(options)) {
  auto opened = Checkpointer::Open({.folder = options_.folder,
                                    .shard_index = 0,
                                    .shard_count = 1,
                                    .keep = options_.keep,
                                    .name = options_.name,
                                    .hook = options_.hook},
                                   [this] { CommitWritten(); });
  opened_ = opened.status();
  if (opened.ok()) checkpointer_ = *std::move(opened);
}

// What is still written is committed, for which its thread asks this object.
ReplicaCheckpoints::~ReplicaCheckpoints() {
  if (checkpointer_ != nullptr) checkpointer_->Finish();
}

absl::StatusOr<std::optional<ReplicaCheckpoints::Restored>> ReplicaCheckpoints::ReadNewest() {
  MUSTER_RETURN_IF_ERROR(opened_);
  absl::Status first;
  for (auto ids = checkpointer_->available(); !ids.empty(); ids = checkpointer_->available()) {
    const CheckpointId newest = *ids.rbegin();
    auto read = checkpointer_->Read(newest.step, options_.config);
    if (read.ok()) {
      ShardSnapshot snapshot = read->shard.Snapshot();
      return Restored{.state = {.step = read->rule.step,
                                .parameters = *snapshot.parameters,
                                .slots = std::move(snapshot.slots)},
                      .digest = newest.digest};
    }
    const bool is_one_less = checkpointer_->available().size() < ids.size();
    if (!is_one_less) {
      opened_ = read.status();
      checkpointer_ = nullptr;
      return opened_;
    }
    spdlog::warn("{}: {}", options_.name, std::string(read.status().message()));
    first.Update(read.status());
  }
  if (!first.ok()) return first;
  return std::nullopt;
}

void ReplicaCheckpoints::BeginGroup(uint64_t number, uint64_t step) {
  if (checkpointer_ == nullptr) {
    spdlog::warn("{} writes no checkpoints: {}", options_.name, std::string(opened_.message()));
    return;
  }
  group_ = number;
  checkpointer_->BeginAfter({.number = number, .step = step});
}

void ReplicaCheckpoints::Write(ReplicaState state) {
  const auto samples = state.step * static_cast<uint64_t>(options_.config.global_batch_size());
  checkpointer_->Write(state.step, options_.config, {.number = group_},
                       {.parameters = std::make_shared<const std::vector<float>>(std::move(state.parameters)),
                        .slots = std::move(state.slots),
                        .tables = {}},
                       {.step = state.step, .samples = samples});
}

// By the checkpointer's thread. There are no other shards to wait for. One that could not be committed is not
// tried again.
void ReplicaCheckpoints::CommitWritten() {
  for (const auto& [step, file] : checkpointer_->written()) {
    if (step <= checkpointer_->done_with()) continue;
    checkpoint::Manifest manifest;
    manifest.set_step(step);
    *manifest.add_files() = file;
    checkpointer_->Commit(manifest, /*needed=*/step);
  }
}

}  // namespace muster
