#include "ps/shard_journal.h"

#include <absl/strings/numbers.h>

#include <algorithm>

#include "base/logging.h"

namespace muster {

ShardJournal::ShardJournal(std::filesystem::path folder, int shard_index, int shard_count)
    : store_(folder),
      folder_(folder / absl::StrFormat("journal-%05d-of-%05d", shard_index, shard_count)),
      shard_index_(shard_index),
      shard_count_(shard_count) {}

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
  RecoveredShard base{.config = segment.config(),
                      .epoch = {segment.epoch(), segment.epoch_step()},
                      .checkpoint = segment.checkpoint()};
  if (segment.checkpoint() > segment.epoch_step()) {
    MUSTER_ASSIGN_OR_RETURN(RestoredShard own, ReadShardFile(store_, segment.checkpoint(), place));
    base.shard.emplace(std::move(own.shard));
    base.rule = std::move(own.rule);
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
  std::optional<RecoveredShard> recovered;
  size_t first = segments.size();
  absl::Status why;
  while (!recovered && first > 0) {
    const journal::SegmentHeader& header = segments[--first].second.header();
    if (!header.has_checkpoint()) continue;
    auto base = ReadBase(header);
    if (base.ok()) {
      recovered = *std::move(base);
      begun_at_[header.checkpoint()] = segments[first].first;
    } else {
      why.Update(base.status());
    }
  }
  if (!recovered)
    return DataLoss("%s: what it begins with cannot be read: %s", folder_.string(), why.message());
  uint64_t records = 0;
  for (size_t i = first; i < segments.size(); ++i) {
    JournalReader& reader = segments[i].second;
    if (i > first && reader.header().records_before() != records) {
      return DataLoss("%s is not whole", PathOf(segments[i - 1].first).string());
    }
    while (true) {
      MUSTER_ASSIGN_OR_RETURN(auto entry, reader.Next());
      if (!entry) break;
      // What is carried over, is in the segments before.
      if (i == first || !entry->record.carried()) recovered->entries.push_back(*std::move(entry));
    }
    records = reader.records();
  }
  records_ = records;
  return recovered;
}

absl::Status ShardJournal::BeginEpoch(const ps::JobConfig& config, const Epoch& epoch) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<uint64_t> before, List());
  if (!before.empty()) number_ = std::max(number_, before.back());
  begun_at_.clear();
  MUSTER_RETURN_IF_ERROR(BeginSegment(config, epoch, epoch.step));
  for (const uint64_t number : before) {
    std::error_code error;
    std::filesystem::remove(PathOf(number), error);
    if (error) return Unavailable("%s: %s", PathOf(number).string(), error.message());
  }
  return absl::OkStatus();
}

absl::Status ShardJournal::BeginSegment(const ps::JobConfig& config, const Epoch& epoch,
                                        std::optional<uint64_t> checkpoint) {
  journal::SegmentHeader header;
  header.set_shard_index(static_cast<uint32_t>(shard_index_));
  header.set_shard_count(static_cast<uint32_t>(shard_count_));
  *header.mutable_config() = config;
  header.set_epoch(epoch.number);
  header.set_epoch_step(epoch.step);
  header.set_records_before(writer_ ? writer_->records() : std::exchange(records_, 0));
  if (checkpoint) header.set_checkpoint(*checkpoint);
  MUSTER_RETURN_IF_ERROR(MakeDirectories(folder_));
  MUSTER_ASSIGN_OR_RETURN(JournalWriter writer, JournalWriter::Create(PathOf(++number_), header));
  writer_.emplace(std::move(writer));
  if (checkpoint) begun_at_[*checkpoint] = number_;
  return absl::OkStatus();
}

absl::Status ShardJournal::Append(const WorkerIdentity& joined) {
  journal::Record record;
  record.mutable_join()->set_rank(static_cast<uint32_t>(joined.rank));
  record.mutable_join()->set_worker_uuid(joined.uuid);
  record.mutable_join()->set_incarnation(joined.incarnation);
  return writer_->Append(record);
}

absl::Status ShardJournal::Append(const WorkerIdentity& worker, const ps::Push& push,
                                  const ShardGradient& gradient, bool carried) {
  journal::Record record;
  record.mutable_push()->set_rank(static_cast<uint32_t>(worker.rank));
  record.mutable_push()->set_worker_uuid(worker.uuid);
  *record.mutable_push()->mutable_push() = push;
  *record.mutable_push()->mutable_push()->mutable_rows() = gradient.rows;
  record.mutable_push()->mutable_push()->clear_next_rows();
  record.set_carried(carried);
  return writer_->Append(record, gradient.values.parts());
}

absl::Status ShardJournal::Append(const StepDecision& decision, bool carried) {
  journal::Record record;
  record.mutable_decision()->set_step(decision.step);
  for (const int rank : decision.ranks) record.mutable_decision()->add_ranks(static_cast<uint32_t>(rank));
  record.set_carried(carried);
  return writer_->Append(record);
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
