#include "ps/coordinator_host.h"

#include <algorithm>

#include "cluster/replica_view.h"
#include "ps/job_config.h"

namespace muster {
namespace {

absl::Status Superseded(int shard) {
  return FailedPrecondition("ps:%d: a newer process of this task has joined; this one has to end", shard);
}

}  // namespace

void CoordinatorHost::Begin(const CoordinatorOptions& options) {
  coordinator_.emplace(options, Now());
  for (const auto& [shard, join] : std::map(joins_)) Join(std::nullopt, join);
}

absl::Status CoordinatorHost::CheckJoin(StreamId stream, const ps::ShardJoin& join) const {
  const int shard = static_cast<int>(join.shard_index());
  if (shard < 1 || shard >= options_.shard_count ||
      static_cast<int>(join.shard_count()) != options_.shard_count) {
    return FailedPrecondition("ps:%d of %d has joined a cluster of %d: compare --ps_hosts", shard,
                              join.shard_count(), options_.shard_count);
  }
  if (join.generation() != options_.generation) {
    return FailedPrecondition("ps:0 belongs to generation %d of the cluster, ps:%d to generation %d",
                              options_.generation, shard, join.generation());
  }
  if (join.keeps_checkpoints() != options_.keeps_checkpoints) {
    return FailedPrecondition("ps:0 and ps:%d: only one of them has --checkpoint_dir", shard);
  }
  if (options_.uses_tls) {
    absl::Status is_it = frames_->CheckPeer(stream, {Role::kPs, shard});
    if (!is_it.ok() && options_.replicated &&
        frames_->CheckPeer(stream, {Role::kPs, FirstBackupOf(shard, options_.shard_count)}).ok()) {
      is_it = absl::OkStatus();
    }
    MUSTER_RETURN_IF_ERROR(is_it);
  }
  const auto known = joins_.find(shard);
  if (options_.replicated) {
    // An older one steps down when it hears of the other (ps/replication.h).
    const bool is_behind = known != joins_.end() && join.view() < known->second.view();
    return is_behind ? Unavailable("another server speaks for shard %d", shard) : absl::OkStatus();
  }
  const bool is_older = known != joins_.end() && join.incarnation() < known->second.incarnation();
  return is_older || superseded_.contains(stream) ? Superseded(shard) : absl::OkStatus();
}

bool CoordinatorHost::Join(std::optional<StreamId> stream, const ps::ShardJoin& join) {
  const int shard = static_cast<int>(join.shard_index());
  ps::ShardJoin& known = joins_[shard];
  const bool is_other_process = known.server_uuid() != join.server_uuid();
  known = join;
  if (coordinator_) {
    std::set<CheckpointId> checkpoints;
    for (const ps::ShardJoin::Checkpoint& checkpoint : join.checkpoints()) {
      checkpoints.insert({checkpoint.step(), checkpoint.digest()});
    }
    coordinator_->ShardJoin(shard, join.server_uuid(), join.epoch(), checkpoints, Now(),
                            join.newest_common());
  }
  if (!stream || streams_.contains(*stream)) return is_other_process;
  std::erase_if(streams_, [&](const auto& entry) {
    if (entry.second != shard) return false;
    if (is_other_process) {
      superseded_.insert(entry.first);
      requests_->SendError(
          entry.first, 0,
          options_.replicated ? Unavailable("another server speaks for shard %d", shard) : Superseded(shard));
    }
    return true;
  });
  streams_[*stream] = shard;
  told_version_ = 0;
  return is_other_process;
}

absl::Status CoordinatorHost::Report(StreamId stream, const ps::ShardReport& report) {
  const auto shard = streams_.find(stream);
  if (shard == streams_.end() || !coordinator_) return absl::OkStatus();  // it will be said again
  ShardReport read{.epoch = report.epoch(), .step = report.step()};
  for (const ps::ShardReport::Part& part : report.held()) {
    if (part.rank() >= kMostWorkers) {
      return InvalidArgument("ps:%d holds a part of rank %d", shard->second, part.rank());
    }
    read.held.push_back({part.step(), static_cast<int>(part.rank())});
  }
  coordinator_->Report(shard->second, read, Now());
  if (report.epoch() != coordinator_->epoch().number) return absl::OkStatus();
  std::map<uint64_t, checkpoint::Manifest::File> files;
  for (const ps::ShardReport::File& file : report.files()) {
    if (!files[file.checkpoint()].ParseFromString(file.file())) {
      return InvalidArgument("ps:%d reports a file that cannot be read", shard->second);
    }
  }
  AddFiles(shard->second, files);
  NoteFailed(report.failed_checkpoint());
  NoteSettled(shard->second, report.settled_checkpoint());
  return absl::OkStatus();
}

void CoordinatorHost::AddFiles(int shard, const std::map<uint64_t, checkpoint::Manifest::File>& files) {
  for (const auto& [step, file] : files) {
    if (step <= std::max(complete_.step(), abandoned_)) continue;
    files_[step][shard] = file;
    if (static_cast<int>(files_[step].size()) < options_.shard_count) continue;
    complete_.Clear();
    complete_.set_step(step);
    for (const auto& [index, part] : files_[step]) *complete_.add_files() = part;
    complete_is_new_ = true;
    told_version_ = 0;
  }
  // Older ones nobody will finish.
  files_.erase(files_.begin(), files_.upper_bound(complete_.step()));
}

void CoordinatorHost::NoteSettled(int shard, uint64_t step) {
  settled_[shard] = std::max(settled_[shard], step);
  if (static_cast<int>(settled_.size()) < options_.shard_count) return;
  const auto by_step = [](const auto& a, const auto& b) { return a.second < b.second; };
  const uint64_t by_all = std::ranges::min_element(settled_, by_step)->second;
  if (by_all <= abandoned_) return;
  abandoned_ = by_all;
  files_.erase(files_.begin(), files_.upper_bound(by_all));
  told_version_ = 0;
}

std::optional<checkpoint::Manifest> CoordinatorHost::TakeComplete() {
  if (!std::exchange(complete_is_new_, false)) return std::nullopt;
  return complete_;
}

void CoordinatorHost::OnEpochBegun() {
  files_.clear();
  complete_.Clear();
  complete_is_new_ = false;
  settled_.clear();
  failed_ = abandoned_ = 0;
  told_version_ = 0;
}

void CoordinatorHost::OnClosed(StreamId stream) {
  streams_.erase(stream);
  superseded_.erase(stream);
}

void CoordinatorHost::Tell(ps::Coordination word, bool always, uint64_t end) {
  const uint64_t version = coordinator_ ? coordinator_->version() : 1;
  if (!always && version == told_version_) return;
  told_version_ = version;
  word.set_committed(complete_.SerializeAsString());
  word.set_abandoned_checkpoint(abandoned_);
  word.set_needed(coordinator_ ? static_cast<uint32_t>(coordinator_->needed()) : 1);
  if (coordinator_) {
    const std::vector<int>& participants = coordinator_->participants();
    word.mutable_participants()->Add(participants.begin(), participants.end());
    for (const auto& [step, ranks] : coordinator_->decisions()) {
      if (step >= end) break;
      ps::Coordination::Decision* decision = word.add_decisions();
      decision->set_step(step);
      decision->mutable_ranks()->Add(ranks.begin(), ranks.end());
    }
  }
  ps::ServerHeader header;
  *header.mutable_coordination() = std::move(word);
  for (const auto& [stream, shard] : streams_) requests_->Send(stream, header);
}

std::string CoordinatorHost::DescribeWait() const {
  std::string text = coordinator_->DescribeWait(Now());
  for (int shard = 1; shard < options_.shard_count; ++shard) {
    const auto is_it = [&](const auto& stream) { return stream.second == shard; };
    if (std::none_of(streams_.begin(), streams_.end(), is_it)) {
      text += absl::StrFormat("; ps:%d has no connection to ps:0", shard);
    }
  }
  return text;
}

}  // namespace muster
