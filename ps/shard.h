// Shard: what one parameter server owns of a model: a range of the parameters, rows of the tables, and the
// state of their optimizers.
//
// Parameters are versions that never change once somebody reads them: an update then writes another buffer,
// and the old one lives until gRPC has sent it to everybody who was promised it. So nothing is copied to be
// sent, and no lock is held while it is. Gradients are summed and applied block by block out of the messages
// that they came in.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/layout_optimizer.h"
#include "kernels/parameter_layout.h"
#include "proto/parameter_server.pb.h"
#include "ps/shard_tables.h"
#include "ps/wire.h"

namespace muster {

/// As it was received: of the shard's range of the parameters, and behind it that of `rows`.
struct ShardGradient {
  FloatPayload values;
  RepeatedRows rows;
  bool finite = false;   // known: no number is NaN or infinite
  uint64_t arrival = 0;  // a number of it, where that matters (ps/early_update.h)
};

/// What a checkpoint has of a shard: a copy that nobody changes, and parameters that are shared, which nobody
/// changes either.
struct ShardSnapshot {
  Floats parameters;
  std::vector<std::vector<float>> slots;  // of the optimizers, each [range.size()]
  std::vector<TableRows> tables;
};

/// One thread at a time.
class Shard {
 public:
  /// With initial values. Fails as LayoutOf, OptimizersOf, TablesOf and ShardTables::Create do;
  /// InvalidArgument if a shard does not fit into a message.
  static absl::StatusOr<Shard> Create(const ps::JobConfig& config, int shard_index, int shard_count);

  LayoutRange range() const { return range_; }
  int64_t model_size() const { return model_size_; }
  Floats parameters() const { return parameters_; }
  const ShardTables& tables() const { return tables_; }

  /// InvalidArgument: rows that are not this shard's, or another number of floats than they and the range
  /// have.
  absl::Status CheckGradient(const ShardGradient& gradient) const;

  /// Of older parameters that somebody still reads; those of the last snapshot do not count.
  int64_t superseded_bytes() const;

  /// Costs a copy of slots and tables. While nothing is prepared.
  ShardSnapshot Snapshot() const;

  /// Goes on after `step` updates with these parameters and slots, [range.size()] each, and with no rows but
  /// those of RestoreRows. Sizes that do not fit are a bug, and that something is prepared.
  void Restore(uint64_t step, std::vector<float> parameters, std::span<const std::vector<float>> slots);

  /// Those of `rows` that are this shard's, as by ParameterTable::RestoreRows.
  absl::Status RestoreRows(int table, const TableRows& rows, uint64_t made);

  /// The most that an optimizer of the job has, whichever shard that is in.
  int slot_count() const { return slot_count_; }

  /// One update with the sum of these gradients, taken in their order, over `samples`. All have passed
  /// CheckGradient. What is prepared is of them, their number of samples and a rate_scale of 1.
  void Apply(std::span<const ShardGradient* const> gradients, uint64_t samples, float rate_scale);

  /// Makes a part of the next update ahead of it, where nobody sees it: of these floats of the gradients
  /// ([part.size()]), taken in their order, over `samples` of the whole update. Parts follow each other from
  /// 0 on.
  void Prepare(LayoutRange part, std::span<const FloatPayload> gradients, uint64_t samples);

  /// As far as it goes, what the next Apply will make; null: nothing. Shared, and not changed there.
  Floats prepared() const { return ahead_; }

  /// Nothing is prepared.
  void DropPrepared();

 private:
  Shard(LayoutRange range, int64_t model_size, LayoutOptimizer optimizer, ShardTables tables)
      : range_(range),
        model_size_(model_size),
        optimizer_(std::move(optimizer)),
        tables_(std::move(tables)) {}

  static bool IsFree(const std::shared_ptr<std::vector<float>>& version);
  std::shared_ptr<std::vector<float>> NextVersion();
  std::shared_ptr<std::vector<float>> SpareVersion();
  void ApplyPart(LayoutRange part, std::span<const FloatPayload> gradients, std::span<float> updated);

  LayoutRange range_;
  int64_t model_size_;
  int slot_count_ = 0;
  LayoutOptimizer optimizer_;
  ShardTables tables_;
  std::vector<float> gradient_sum_;   // of one block
  std::vector<float> row_gradients_;  // of one push
  std::shared_ptr<std::vector<float>> parameters_;
  std::shared_ptr<std::vector<float>> ahead_;                 // the next ones, as far as they are prepared
  int64_t prepared_ = 0;                                      // floats of them
  mutable std::weak_ptr<const std::vector<float>> snapshot_;  // parameters of the last one
  std::vector<std::shared_ptr<std::vector<float>>>
      versions_;  // older ones, and at most one that nobody reads
};

}  // namespace muster
