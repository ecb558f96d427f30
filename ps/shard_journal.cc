#include "ps/shard_journal.h"

#include <absl/strings/numbers.h>

#include <algorithm>

#include "base/boot_id.h"

namespace muster {

ShardJournal::ShardJournal(std::filesystem::path folder, int shard_index, int shard_count,
                           uint64_t generation)
    : store_(folder),
      folder_(folder / absl::StrFormat("journal-%05d-of-%05d", shard_index, shard_count)),
      shard_index_(shard_index),
      shard_count_(shard_count),
      generation_(generation),
      boot_id_(BootId()) {}

std::filesystem::path ShardJournal::PathOf(uint64_t number) const {
  return folder_ / absl::StrFormat("%012d", number);
}

absl::StatusOr<std::vector<uint64_t>> ShardJournal::List() const {
  const auto names = ListDirectory(folder_);
  if (absl::IsNotFound(names.status())) return std::vector<uint64_t>();
  MUSTER_RETURN_IF_ERROR(names.status());
  std::vector<uint64_t> numbers;
  for (const std::string& name : *names) {
    uint64_t number = 0;
    if (name.size() == 12 && absl::SimpleAtoi(name, &number)) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// What the first records of a segment come after.
absl::StatusOr<RecoveredShard> ShardJournal::ReadBase(const journal::SegmentHeader& segment) const {
  const ShardPlace place{
      .config = segment.config(), .index = shard_index_, .count = shard_count_, .epoch = segment.epoch()};
  RecoveredShard base;
  base.config = segment.config();
  base.epoch = {segment.epoch(), segment.epoch_step()};
  base.checkpoint = segment.checkpoint();
  if (segment.checkpoint() > segment.epoch_step()) {
    MUSTER_ASSIGN_OR_RETURN(RestoredShard own, ReadShardFile(store_, segment.checkpoint(), place));
    if (own.rule.step != segment.updates()) return FailedPrecondition("the file is of another segment");
    base.shard.emplace(std::move(own.shard));
    base.rule = std::move(own.rule);
    base.file = std::move(own.own_file);
  } else if (segment.checkpoint() > 0) {
    MUSTER_ASSIGN_OR_RETURN(const checkpoint::Manifest manifest, store_.ReadManifest(segment.checkpoint()));
    MUSTER_ASSIGN_OR_RETURN(RestoredShard common, ReadShardCheckpoint(store_, manifest, place));
    base.shard.emplace(std::move(common.shard));
    base.rule = WithoutProcesses(std::move(common.rule));
  } else {
    MUSTER_ASSIGN_OR_RETURN(Shard shard, Shard::Create(place.config, shard_index_, shard_count_));
    base.shard.emplace(std::move(shard));
  }
  return base;
}

absl::StatusOr<std::optional<RecoveredShard>> ShardJournal::Recover() {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, List());
  if (numbers.empty()) return std::nullopt;
  number_ = numbers.back();  // whatever comes of it, the next one is another
  // Those of the newest epoch. One whose beginning is torn has nothing, and is the last of its process.
  std::vector<std::pair<uint64_t, JournalReader>> segments;
  for (const uint64_t number : numbers) {
    MUSTER_ASSIGN_OR_RETURN(JournalReader reader, JournalReader::Open(PathOf(number)));
    if (reader.header().version() == 0) continue;
    if (!segments.empty() && segments.back().second.header().epoch() != reader.header().epoch())
      segments.clear();
    segments.emplace_back(number, std::move(reader));
  }
  if (segments.empty()) return std::nullopt;
  const journal::SegmentHeader& newest = segments.back().second.header();
  if (newest.generation() != generation_) {
    return FailedPrecondition("it is of generation %d of the cluster, which is now %d", newest.generation(),
                              generation_);
  }
  if (newest.boot_id() != boot_id_) {
    return FailedPrecondition("the host has been restarted since, and may have lost the end of it");
  }
  // One that training went on without, for a while.
  MUSTER_ASSIGN_OR_RETURN(const std::vector<uint64_t> checkpoints, store_.List());
  for (const uint64_t step : checkpoints) {
    if (step <= newest.epoch_step()) break;
    const auto own = ShardFileReader::Open(
        store_.PathOf(step, CheckpointStore::ShardFileName(shard_index_, shard_count_)));
    if (!own.ok() || own->header().epoch() != newest.epoch()) {
      return FailedPrecondition("checkpoint %d was made without it", step);
    }
  }
  absl::Status why;
  for (size_t first = segments.size(); first-- > 0;) {
    const journal::SegmentHeader& header = segments[first].second.header();
    if (!header.has_checkpoint()) continue;
    auto base = ReadBase(header);
    if (!base.ok()) {
      why.Update(base.status());
      continue;
    }
    begun_at_[header.checkpoint()] = segments[first].first;
    for (size_t i = first; i < segments.size(); ++i) {
      base->segments_.emplace_back(PathOf(segments[i].first), std::move(segments[i].second));
    }
    return std::optional<RecoveredShard>(*std::move(base));
  }
  return DataLoss("%s: what it begins with cannot be read: %s", folder_.string(), why.message());
}

absl::StatusOr<std::optional<JournalReader::Entry>> RecoveredShard::Next() {
  while (next_ < segments_.size()) {
    JournalReader& reader = segments_[next_].second;
    MUSTER_ASSIGN_OR_RETURN(auto entry, reader.Next());
    // What is carried over, is in the segments before.
    if (entry && next_ > 0 && entry->record.carried()) continue;
    if (entry) return entry;
    if (++next_ < segments_.size() && segments_[next_].second.header().records_before() != reader.records()) {
      return DataLoss("%s is not whole", segments_[next_ - 1].first.string());
    }
  }
  return std::nullopt;
}

absl::Status ShardJournal::BeginEpoch(const ps::JobConfig& config, const Epoch& epoch) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<uint64_t> before, List());
  if (!before.empty()) number_ = std::max(number_, before.back());
  begun_at_.clear();
  MUSTER_RETURN_IF_ERROR(BeginSegment(config, epoch, epoch.step, /*updates=*/0));
  for (const uint64_t number : before) {
    std::error_code error;
    std::filesystem::remove(PathOf(number), error);
    if (error) return Unavailable("%s: %s", PathOf(number).string(), error.message());
  }
  return absl::OkStatus();
}

absl::Status ShardJournal::BeginSegment(const ps::JobConfig& config, const Epoch& epoch, uint64_t checkpoint,
                                        uint64_t updates) {
  journal::SegmentHeader header;
  header.set_updates(updates);
  header.set_checkpoint(checkpoint);
  if (writer_) header.set_records_before(writer_->records());
  MUSTER_RETURN_IF_ERROR(Begin(std::move(header), config, epoch));
  begun_at_[checkpoint] = number_;
  return absl::OkStatus();
}

absl::Status ShardJournal::Continue(const RecoveredShard& recovered) {
  journal::SegmentHeader header;
  header.set_records_before(recovered.last_records());
  return Begin(std::move(header), recovered.config, recovered.epoch);
}

absl::Status ShardJournal::Begin(journal::SegmentHeader header, const ps::JobConfig& config,
                                 const Epoch& epoch) {
  header.set_shard_index(static_cast<uint32_t>(shard_index_));
  header.set_shard_count(static_cast<uint32_t>(shard_count_));
  *header.mutable_config() = config;
  header.set_epoch(epoch.number);
  header.set_epoch_step(epoch.step);
  header.set_generation(generation_);
  header.set_boot_id(boot_id_);
  MUSTER_RETURN_IF_ERROR(MakeDirectories(folder_));
  MUSTER_ASSIGN_OR_RETURN(JournalWriter writer, JournalWriter::Create(PathOf(++number_), header));
  writer_.emplace(std::move(writer));
  return absl::OkStatus();
}

absl::Status ShardJournal::Release(uint64_t checkpoint) {
  const auto begun = begun_at_.find(checkpoint);
  if (begun == begun_at_.end()) return absl::OkStatus();
  MUSTER_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, List());
  for (const uint64_t number : numbers) {
    if (number >= begun->second) break;
    std::error_code error;
    std::filesystem::remove(PathOf(number), error);
    if (error) return Unavailable("%s: %s", PathOf(number).string(), error.message());
  }
  begun_at_.erase(begun_at_.begin(), begun);
  return absl::OkStatus();
}

}  // namespace muster
