// RowIndex: which rows of its tables a batch needs, each of them once, and where every sample finds its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/parameter_layout.h"
#include "kernels/parameter_table.h"

namespace muster {

/// The rows of a batch are packed table by table, row by row in order of first use, without gaps; values and
/// gradients both lie so. Building one allocates nothing. One thread at a time.
class RowIndex {
 public:
  /// No tables.
  RowIndex() = default;

  /// Room for batches of `largest_batch` samples, whose floats must be less than 2^31. `columns`: of the ids
  /// of a sample, the position of the one that is a row of tables[i].
  RowIndex(std::span<const TableSpec> tables, std::span<const int> columns, int64_t largest_batch);

  // A copy would not have the room.
  RowIndex(RowIndex&&) = default;
  RowIndex& operator=(RowIndex&&) = default;

  /// ids: [samples, id_count]. An id that is no row of its table is a bug.
  void Build(std::span<const int32_t> ids, int64_t id_count, int64_t samples);

  int table_count() const { return static_cast<int>(tables_.size()); }

  /// Floats of all rows.
  int64_t size() const { return size_; }

  /// Floats of all rows of the worst batch.
  int64_t largest_size() const { return largest_size_; }

  /// Of one table: its distinct rows, the floats [begin, end) that they take, and for each sample where its
  /// row begins.
  std::span<const int64_t> ids(int table) const { return tables_[table].ids; }
  LayoutRange range(int table) const { return tables_[table].range; }
  std::span<const int32_t> offsets(int table) const { return tables_[table].offsets; }

 private:
  struct Table {
    int64_t rows = 0;
    int64_t width = 0;
    int column = 0;
    std::vector<int64_t> ids;
    LayoutRange range;
    std::vector<int32_t> offsets;  // [samples]
  };
  // A slot of a hash table that is empty unless `round` is the current one.
  struct Slot {
    uint32_t round = 0;
    int32_t id = 0;
    int32_t offset = 0;
  };

  int32_t& FindOrInsert(int32_t id, bool* is_new);

  std::vector<Table> tables_;
  std::vector<Slot> slots_;  // 2^n, at least twice the largest batch
  int shift_ = 0;            // 32 - n
  uint32_t round_ = 0;
  int64_t size_ = 0;
  int64_t largest_size_ = 0;
};

}  // namespace muster
