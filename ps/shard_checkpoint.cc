#include "ps/shard_checkpoint.h"

#include <algorithm>

#include "ps/job_config.h"

namespace muster {
namespace {

using checkpoint::Section;

Section SectionOf(Section::Kind kind, int table = 0, int slot = 0) {
  Section section;
  section.set_kind(kind);
  section.set_table(static_cast<uint32_t>(table));
  section.set_slot(static_cast<uint32_t>(slot));
  return section;
}

checkpoint::Window ToProto(const SlidingWindow& window) {
  checkpoint::Window out;
  out.set_end(window.end());
  out.set_bits(window.bits());
  return out;
}

void SetRule(const UpdateRuleState& rule, checkpoint::ShardHeader* header) {
  header->set_step(rule.step);
  header->set_samples(rule.samples);
  for (const UpdateRuleState::Worker& worker : rule.workers) {
    checkpoint::Worker* out = header->add_workers();
    if (worker.process) {
      out->set_uuid(worker.process->uuid);
      out->set_incarnation(worker.process->incarnation);
      out->set_has_predecessor(worker.has_predecessor);
    }
    out->set_pushes(worker.pushes);
    *out->mutable_sequences() = ToProto(worker.sequences);
    *out->mutable_steps() = ToProto(worker.steps);
  }
  header->mutable_pushes()->set_received(rule.counts.received);
  header->mutable_pushes()->set_applied(rule.counts.applied);
  header->mutable_pushes()->set_stale(rule.counts.stale);
  header->mutable_pushes()->set_duplicate(rule.counts.duplicate);
  header->mutable_pushes()->set_rejected(rule.counts.rejected);
}

// Of a file that does not say it.
uint64_t LikelySamples(const checkpoint::ShardHeader& header) {
  const ps::JobConfig& config = header.config();
  const uint64_t contributions = config.mode() == ps::ASYNC ? 1 : config.aggregate();
  return header.step() * static_cast<uint64_t>(config.global_batch_size()) * contributions /
         std::max(1u, config.worker_count());
}

UpdateRuleState RuleOf(const checkpoint::ShardHeader& header) {
  UpdateRuleState rule{.step = header.step(),
                       .counts = {.received = header.pushes().received(),
                                  .applied = header.pushes().applied(),
                                  .stale = header.pushes().stale(),
                                  .duplicate = header.pushes().duplicate(),
                                  .rejected = header.pushes().rejected()},
                       .samples = header.has_samples() ? header.samples() : LikelySamples(header)};
  for (int rank = 0; rank < header.workers_size(); ++rank) {
    const checkpoint::Worker& worker = header.workers(rank);
    UpdateRuleState::Worker& out = rule.workers.emplace_back();
    if (!worker.uuid().empty()) out.process = {rank, worker.uuid(), worker.incarnation()};
    out.has_predecessor = worker.has_predecessor();
    out.pushes = worker.pushes();
    out.sequences = {worker.sequences().end(), worker.sequences().bits()};
    out.steps = {worker.steps().end(), worker.steps().bits()};
  }
  return rule;
}

// FTRL's state is a sum over steps of one rate. To all others a rate is one step's matter.
void ClearRate(ps::Optimizer* optimizer) {
  if (optimizer->kind() == static_cast<uint32_t>(OptimizerKind::kFtrl)) return;
  optimizer->clear_learning_rate();
  optimizer->clear_schedule();
}

// What the numbers of a checkpoint depend on; who computes gradients, how many of them make a step, and how
// far a step goes may change.
ps::JobConfig WithoutSteps(ps::JobConfig config) {
  config.clear_mode();
  config.clear_worker_count();
  config.clear_aggregate();
  config.clear_staleness();
  config.clear_max_staleness();
  config.clear_scale_rate();
  config.clear_wire_type();
  config.clear_top_k();
  config.clear_evict_rows_every();
  config.clear_evict_rows_after();
  config.clear_global_batch_size();
  config.clear_augment_shift();
  config.clear_training_set_crc32c();
  for (ps::Optimizer& optimizer : *config.mutable_optimizers()) ClearRate(&optimizer);
  return config;
}

// FailedPrecondition: the job is another one than that of the checkpoint.
absl::Status CheckGoesOn(const ps::JobConfig& before, const ps::JobConfig& config) {
  if (before.model() != config.model()) {
    return FailedPrecondition(
        "this is a checkpoint of %s, and the job trains %s: give another --checkpoint_dir", before.model(),
        config.model());
  }
  const std::string differences = DifferencesOf(WithoutSteps(before), WithoutSteps(config));
  if (differences.empty()) return absl::OkStatus();
  return FailedPrecondition(
      "the job differs from the one whose checkpoint this is (%s): give it the same flags, or another "
      "--checkpoint_dir",
      differences);
}

// The pieces of a shard as they come out of one file after another.
class Assembly {
 public:
  // `updates`: that it will have made.
  Assembly(Shard shard, uint64_t updates)
      : shard_(std::move(shard)),
        updates_(updates),
        parameters_(shard_.range().size()),
        slots_(shard_.slot_count(), std::vector<float>(shard_.range().size())) {}

  // `from`: the range of the flat buffer that the file's shard owned.
  absl::Status Add(const checkpoint::ShardHeader& header, const ReadSection& read, LayoutRange from,
                   const std::string& path) {
    TableRows rows;
    size_t dense_sections = 0;  // of the parameters and their slots
    int64_t complete_tables = 0;
    for (const Section& section : header.sections()) {
      const auto floats = [&](std::vector<float>& values) {
        values.resize(section.bytes() / sizeof(float));
        return read(MutableBytesOf(values));
      };
      const auto damaged = [&] { return DataLoss("%s: a section that its header cannot have", path); };
      if (section.bytes() % sizeof(float) != 0) return damaged();
      const bool is_row = section.kind() != Section::PARAMETERS && section.kind() != Section::SLOT;
      if (is_row && section.table() >= shard_.tables().table_count()) return damaged();
      switch (section.kind()) {
        case Section::PARAMETERS:
        case Section::SLOT: {
          std::vector<float> values;
          const bool is_slot = section.kind() == Section::SLOT;
          if (static_cast<int64_t>(section.bytes() / sizeof(float)) != from.size() ||
              (is_slot && section.slot() >= slots_.size())) {
            return damaged();
          }
          ++dense_sections;
          MUSTER_RETURN_IF_ERROR(floats(values));
          Place(values, from, is_slot ? slots_[section.slot()] : parameters_);
          break;
        }
        case Section::ROW_IDS:
          rows = {};
          rows.ids.resize(section.bytes() / sizeof(int64_t));
          if (section.bytes() % sizeof(int64_t) != 0) return damaged();
          MUSTER_RETURN_IF_ERROR(read(MutableBytesOf(rows.ids)));
          break;
        case Section::ROW_UPDATES:
          rows.last_updates.resize(section.bytes() / sizeof(uint64_t));
          if (section.bytes() % sizeof(uint64_t) != 0) return damaged();
          MUSTER_RETURN_IF_ERROR(read(MutableBytesOf(rows.last_updates)));
          // Asynchronous shards have made unlike numbers of updates: what counts is how long ago it was.
          for (uint64_t& last : rows.last_updates) {
            const uint64_t age = header.step() - std::min(last, header.step());
            last = updates_ - std::min(age, updates_);
          }
          break;
        case Section::ROW_VALUES:
          MUSTER_RETURN_IF_ERROR(floats(rows.values));
          break;
        case Section::ROW_SLOT:
          MUSTER_RETURN_IF_ERROR(floats(rows.slots.emplace_back()));
          break;
        default:
          return damaged();
      }
      // Values are the last of a table but for its slots, of which there may be none.
      const bool may_be_last = section.kind() == Section::ROW_VALUES || section.kind() == Section::ROW_SLOT;
      const bool has_all = may_be_last && static_cast<int>(rows.slots.size()) ==
                                              shard_.tables().slot_count(static_cast<int>(section.table()));
      if (has_all) {
        MUSTER_RETURN_IF_ERROR(
            Annotate(shard_.RestoreRows(static_cast<int>(section.table()), rows, updates_), path));
        ++complete_tables;
      }
    }
    if (dense_sections != 1 + slots_.size() || complete_tables != shard_.tables().table_count()) {
      return DataLoss("%s: sections that its model has are missing, or are there twice", path);
    }
    return absl::OkStatus();
  }

  Shard Finish() {
    shard_.Restore(updates_, std::move(parameters_), slots_);
    return std::move(shard_);
  }

 private:
  // The part of `values`, which are those of `from`, that lies in this shard's range.
  void Place(std::span<const float> values, LayoutRange from, std::vector<float>& to) const {
    const LayoutRange own = shard_.range();
    const int64_t begin = std::max(from.begin, own.begin), end = std::min(from.end, own.end);
    if (begin < end)
      std::copy_n(values.begin() + (begin - from.begin), end - begin, to.begin() + (begin - own.begin));
  }

  Shard shard_;
  const uint64_t updates_;
  std::vector<float> parameters_;
  std::vector<std::vector<float>> slots_;
};

ReadSection SectionsOf(ShardFileReader& reader) {
  return [&reader](std::span<char> bytes) { return reader.Read(bytes); };
}

}  // namespace

ShardImage ImageOf(const ShardPlace& place, const ShardSnapshot& snapshot, const UpdateRuleState& rule) {
  ShardImage image;
  *image.header.mutable_config() = place.config;
  image.header.set_shard_index(static_cast<uint32_t>(place.index));
  image.header.set_shard_count(static_cast<uint32_t>(place.count));
  image.header.set_epoch(place.epoch);
  SetRule(rule, &image.header);
  const auto add = [&](const Section& section, std::span<const char> bytes) {
    image.sections.push_back({section, bytes});
  };
  add(SectionOf(Section::PARAMETERS), BytesOf(*snapshot.parameters));
  for (size_t slot = 0; slot < snapshot.slots.size(); ++slot) {
    add(SectionOf(Section::SLOT, 0, static_cast<int>(slot)), BytesOf(snapshot.slots[slot]));
  }
  for (int t = 0; t < static_cast<int>(snapshot.tables.size()); ++t) {
    const TableRows& rows = snapshot.tables[t];
    add(SectionOf(Section::ROW_IDS, t), BytesOf(rows.ids));
    if (!rows.last_updates.empty()) add(SectionOf(Section::ROW_UPDATES, t), BytesOf(rows.last_updates));
    add(SectionOf(Section::ROW_VALUES, t), BytesOf(rows.values));
    for (size_t slot = 0; slot < rows.slots.size(); ++slot) {
      add(SectionOf(Section::ROW_SLOT, t, static_cast<int>(slot)), BytesOf(rows.slots[slot]));
    }
  }
  return image;
}

absl::StatusOr<RestoredShard> ReadImage(const checkpoint::ShardHeader& header, const ReadSection& read,
                                        const std::string& name, const ShardPlace& place) {
  MUSTER_ASSIGN_OR_RETURN(Shard shard, Shard::Create(place.config, place.index, place.count));
  const LayoutRange range = shard.range();
  Assembly assembly(std::move(shard), header.step());
  MUSTER_RETURN_IF_ERROR(assembly.Add(header, read, range, name));
  return RestoredShard{assembly.Finish(), RuleOf(header), {}};
}

absl::StatusOr<checkpoint::Manifest::File> WriteShardCheckpoint(const CheckpointStore& store, uint64_t step,
                                                                const ShardPlace& place,
                                                                const ShardSnapshot& snapshot,
                                                                const UpdateRuleState& rule) {
  const ShardImage image = ImageOf(place, snapshot, rule);
  return store.WriteShard(step, image.header, image.sections);
}

absl::StatusOr<RestoredShard> ReadShardCheckpoint(const CheckpointStore& store,
                                                  const checkpoint::Manifest& manifest,
                                                  const ShardPlace& place) {
  MUSTER_ASSIGN_OR_RETURN(Shard shard, Shard::Create(place.config, place.index, place.count));
  MUSTER_ASSIGN_OR_RETURN(const ParameterLayout layout, LayoutOf(place.config));
  const LayoutRange own = shard.range();
  const bool has_tables = place.config.tables_size() > 0;
  const int old_count = manifest.files_size();
  // Shard 0's says how far the job was.
  Assembly assembly(std::move(shard), manifest.files(old_count == place.count ? place.index : 0).step());
  UpdateRuleState rule;
  for (int i = 0; i < old_count; ++i) {
    const LayoutRange from = layout.Shard(i, old_count);
    const bool overlaps = from.begin < own.end && own.begin < from.end;
    const bool same = old_count == place.count && i == place.index;
    // With the same number of shards each has exactly its own file.
    const bool needed = old_count == place.count ? same : overlaps || has_tables || i == 0;
    if (!needed) continue;
    MUSTER_ASSIGN_OR_RETURN(ShardFileReader reader, store.OpenShard(manifest, i));
    const std::filesystem::path path = store.PathOf(manifest.step(), manifest.files(i).name());
    MUSTER_RETURN_IF_ERROR(Annotate(CheckGoesOn(reader.header().config(), place.config), path.string()));
    if (place.config.mode() != ps::ASYNC && reader.header().step() != manifest.step()) {
      return FailedPrecondition(
          "%s: its server had made %d updates where the checkpoint is of step %d, as asynchronous training "
          "leaves them; steps that all servers make together cannot go on from there",
          path.string(), reader.header().step(), manifest.step());
    }
    if (same || (old_count != place.count && i == 0)) rule = RuleOf(reader.header());
    MUSTER_RETURN_IF_ERROR(assembly.Add(reader.header(), SectionsOf(reader), from, path.string()));
    MUSTER_RETURN_IF_ERROR(store.CheckDigest(manifest, i, reader));
  }
  if (old_count != place.count) {
    rule = WithoutProcesses(std::move(rule));
    for (UpdateRuleState::Worker& worker : rule.workers) worker.sequences = worker.steps = {};
  }
  return RestoredShard{assembly.Finish(), std::move(rule), {}};
}

absl::StatusOr<RestoredShard> ReadShardFile(const CheckpointStore& store, uint64_t step,
                                            const ShardPlace& place) {
  const std::filesystem::path path =
      store.PathOf(step, CheckpointStore::ShardFileName(place.index, place.count));
  MUSTER_ASSIGN_OR_RETURN(ShardFileReader reader, ShardFileReader::Open(path));
  MUSTER_RETURN_IF_ERROR(Annotate(CheckSameJob(reader.header().config(), place.config), path.string()));
  if (reader.header().epoch() != place.epoch) {
    return FailedPrecondition("%s was written in another epoch", path.string());
  }
  MUSTER_ASSIGN_OR_RETURN(RestoredShard restored,
                          ReadImage(reader.header(), SectionsOf(reader), path.string(), place));
  MUSTER_ASSIGN_OR_RETURN(const ShardFileSummary summary, reader.Finish());
  restored.own_file.set_name(path.filename().string());
  restored.own_file.set_bytes(summary.bytes);
  restored.own_file.set_digest(summary.digest);
  restored.own_file.set_step(reader.header().step());
  return restored;
}

}  // namespace muster
