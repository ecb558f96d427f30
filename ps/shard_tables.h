// The rows that one shard owns of every table, updated as a whole step at a time.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/parameter_table.h"
#include "ps/row_partition.h"

namespace muster {

/// One thread at a time. Rows are named as they travel: a list of ids for each table, values and gradients
/// packed in the same order.
class ShardTables {
 public:
  /// No tables.
  ShardTables() = default;

  /// Fails as MakeTables does.
  static absl::StatusOr<ShardTables> Create(std::span<const TableSpec> tables,
                                            std::span<const OptimizerConfig> by_group, uint64_t seed,
                                            RowEviction eviction, int shard_index, int shard_count);

  /// Floats of these rows. InvalidArgument: not one list for each table, a row that its table does not have
  /// or another shard owns. What the other methods take has been checked here.
  absl::StatusOr<int64_t> CheckRows(const RepeatedRows& rows) const;

  /// Adds to the gradient of the open step, which begins at zero.
  void AddGradients(const RepeatedRows& rows, std::span<const float> gradients);

  /// Updates every table with what was added, and opens the next step.
  void Apply(UpdateScale scale);

  void Read(const RepeatedRows& rows, std::span<float> values) const;

  /// Of each table the rows that have been updated.
  std::vector<TableRows> CopyRows() const;

  /// Those that this shard owns are put back, as by ParameterTable::RestoreRows.
  absl::Status RestoreRows(int table, const TableRows& rows, uint64_t made);

  void SkipTo(uint64_t updates);

  uint32_t table_count() const { return static_cast<uint32_t>(tables_.size()); }
  int slot_count(int table) const { return tables_[table].slot_count(); }
  int64_t updated_rows() const;

 private:
  // The sum of the gradients of one table.
  struct RowSums {
    absl::flat_hash_map<int64_t, int64_t> places;
    std::vector<int64_t> ids;
    std::vector<float> gradients;  // [ids.size(), width]
  };

  std::vector<ParameterTable> tables_;
  std::vector<RowSums> sums_;
  int shard_index_ = 0;
  int shard_count_ = 1;
};

}  // namespace muster
