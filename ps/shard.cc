#include "ps/shard.h"

#include <algorithm>
#include <atomic>

#include "ps/job_config.h"

namespace muster {

namespace {

// Fails with bad_alloc where an update could not have what it needs beside the shard: a gradient on its way,
// and a version that somebody still reads. Where gRPC gets no memory for what it receives, it crashes.
void CheckMemoryForUpdates(const LayoutRange& range) {
  const size_t bytes = 2 * range.size() * sizeof(float);
  ::operator delete(::operator new(bytes));
}

}  // namespace

absl::StatusOr<Shard> Shard::Create(const ps::JobConfig& config, int shard_index, int shard_count) {
  MUSTER_ASSIGN_OR_RETURN(const ParameterLayout layout, LayoutOf(config));
  MUSTER_ASSIGN_OR_RETURN(const std::vector<OptimizerConfig> optimizers, OptimizersOf(config));
  MUSTER_ASSIGN_OR_RETURN(const std::vector<TableSpec> tables, TablesOf(config));
  const LayoutRange range = layout.Shard(shard_index, shard_count);
  if (range.size() * static_cast<int64_t>(sizeof(float)) > kMaxFrameBytes / 2) {
    return InvalidArgument(
        "a shard of %d parameters is too large for one message: use more parameter servers", range.size());
  }
  MUSTER_ASSIGN_OR_RETURN(const RowEviction eviction, EvictionOf(config));
  MUSTER_ASSIGN_OR_RETURN(ShardTables shard_tables, ShardTables::Create(tables, optimizers, config.seed(),
                                                                        eviction, shard_index, shard_count));
  MUSTER_ASSIGN_OR_RETURN(LayoutOptimizer optimizer, LayoutOptimizer::Create(layout, range, optimizers));
  Shard shard(range, layout.size(), std::move(optimizer), std::move(shard_tables));
  auto parameters = std::make_shared<std::vector<float>>(range.size());
  layout.Initialize(config.seed(), range, *parameters);
  shard.parameters_ = std::move(parameters);
  CheckMemoryForUpdates(range);
  for (const OptimizerConfig& optimizer_config : optimizers) {
    shard.slot_count_ = std::max(shard.slot_count_, SlotCount(optimizer_config.kind));
  }
  return shard;
}

absl::Status Shard::CheckGradient(const ShardGradient& gradient) const {
  MUSTER_ASSIGN_OR_RETURN(const int64_t row_floats, tables_.CheckRows(gradient.rows));
  if (gradient.values.size_bytes() == (range_.size() + row_floats) * static_cast<int64_t>(sizeof(float))) {
    return absl::OkStatus();
  }
  return InvalidArgument("a gradient of %d bytes for a shard of %d parameters, with rows of %d",
                         gradient.values.size_bytes(), range_.size(), row_floats);
}

void Shard::Apply(std::span<const ShardGradient* const> gradients, uint64_t samples, float rate_scale) {
  std::vector<FloatPayload> rest;  // of the parameters' gradients
  for (const ShardGradient* gradient : gradients) {
    rest.push_back(gradient->values.Part(prepared_, range_.size() - prepared_));
    row_gradients_.resize(gradient->values.size_bytes() / sizeof(float) - range_.size());
    gradient->values.Part(range_.size(), static_cast<int64_t>(row_gradients_.size())).CopyTo(row_gradients_);
    tables_.AddGradients(gradient->rows, row_gradients_);
  }
  const UpdateScale scale(1.0f / static_cast<float>(samples), rate_scale);
  MUSTER_CHECK(ahead_ == nullptr || rate_scale == 1);
  auto updated = std::exchange(ahead_, nullptr);
  if (updated == nullptr) {
    updated = NextVersion();
    optimizer_.Begin(scale);
  }
  ApplyPart({std::exchange(prepared_, 0), range_.size()}, rest, *updated);
  tables_.Apply(scale);
  if (updated == parameters_) return;
  versions_.push_back(std::exchange(parameters_, std::move(updated)));
}

void Shard::Prepare(LayoutRange part, std::span<const FloatPayload> gradients, uint64_t samples) {
  MUSTER_CHECK(part.begin == prepared_);
  if (ahead_ == nullptr) {
    ahead_ = SpareVersion();
    optimizer_.Begin(1.0f / static_cast<float>(samples), /*may_be_taken_back=*/true);
  }
  ApplyPart(part, gradients, *ahead_);
  prepared_ = part.end;
}

void Shard::DropPrepared() {
  if (ahead_ == nullptr) return;
  optimizer_.TakeBack();
  versions_.push_back(std::exchange(ahead_, nullptr));
  prepared_ = 0;
}

// `gradients`: [part.size()] each.
void Shard::ApplyPart(LayoutRange part, std::span<const FloatPayload> gradients, std::span<float> updated) {
  std::vector<FloatPayload::Reader> readers;
  for (const FloatPayload& gradient : gradients) readers.emplace_back(gradient);
  const auto sum = [&](LayoutRange block) -> std::span<const float> {
    gradient_sum_.resize(block.size());
    readers[0].CopyTo(gradient_sum_);
    for (size_t i = 1; i < readers.size(); ++i) readers[i].AddTo(gradient_sum_);
    return gradient_sum_;
  };
  optimizer_.ApplyPart(part, *parameters_, sum, updated);
}

int64_t Shard::superseded_bytes() const {
  const Floats snapshot = snapshot_.lock();
  const auto is_read = [&](const auto& version) { return version.use_count() > 1 && version != snapshot; };
  return std::count_if(versions_.begin(), versions_.end(), is_read) * range_.size() *
         static_cast<int64_t>(sizeof(float));
}

ShardSnapshot Shard::Snapshot() const {
  MUSTER_CHECK(ahead_ == nullptr);
  ShardSnapshot snapshot{.parameters = parameters_, .tables = tables_.CopyRows()};
  snapshot_ = snapshot.parameters;
  for (int slot = 0; slot < slot_count_; ++slot) {
    optimizer_.CopySlot(slot, snapshot.slots.emplace_back(range_.size()));
  }
  return snapshot;
}

void Shard::Restore(uint64_t step, std::vector<float> parameters, std::span<const std::vector<float>> slots) {
  MUSTER_CHECK(static_cast<int64_t>(parameters.size()) == range_.size());
  MUSTER_CHECK(static_cast<int>(slots.size()) == slot_count_ && ahead_ == nullptr);
  parameters_ = std::make_shared<std::vector<float>>(std::move(parameters));
  for (int slot = 0; slot < slot_count_; ++slot) optimizer_.SetSlot(slot, slots[slot]);
  optimizer_.SkipTo(step);
  tables_.SkipTo(step);
}

absl::Status Shard::RestoreRows(int table, const TableRows& rows, uint64_t made) {
  return tables_.RestoreRows(table, rows, made);
}

// Where the next update goes: the current version itself, if nobody reads it.
std::shared_ptr<std::vector<float>> Shard::NextVersion() {
  if (!IsFree(parameters_)) return SpareVersion();
  if (snapshot_.lock() == parameters_) snapshot_.reset();
  return parameters_;
}

std::shared_ptr<std::vector<float>> Shard::SpareVersion() {
  std::shared_ptr<std::vector<float>> next;
  std::erase_if(versions_, [&](auto& version) {
    if (!IsFree(version)) return false;
    if (next == nullptr) next = std::move(version);
    return true;
  });
  if (next == nullptr) return std::make_shared<std::vector<float>>(range_.size());
  if (snapshot_.lock() == next) snapshot_.reset();
  return next;
}

bool Shard::IsFree(const std::shared_ptr<std::vector<float>>& version) {
  if (version.use_count() > 1) return false;
  // Pairs with the release in the last reader's decrement: its reads come before our writes.
  std::atomic_thread_fence(std::memory_order_acquire);
  return true;
}

}  // namespace muster
