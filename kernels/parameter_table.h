// Tables: parameters of which an update touches a few rows, such as embeddings and the weights of crossed
// columns. They lie beside the ParameterLayout, row by row where they are used.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/initializer.h"
#include "kernels/optimizer.h"

namespace muster {

struct TableSpec {
  std::string name;   // unique among the model's tensors and tables, e.g. "wide/education"
  int64_t rows = 0;   // ids are in [0, rows)
  int64_t width = 0;  // floats of a row
  Initializer initializer = Initializer::kZeros;
  float scale = 0;
  int optimizer_group = 0;  // which of the job's optimizers updates it
  friend bool operator==(const TableSpec&, const TableSpec&) = default;
};

/// InvalidArgument: two tables of one name, a size below 1, more than 2^31 - 1 rows, a row of more than 2^16
/// floats, a group without an optimizer.
absl::Status ValidateTables(std::span<const TableSpec> tables, size_t optimizer_count);

/// When rows that no update has touched for long are dropped, so that ids that come and go do not fill the
/// memory: after updates `every`, 2 `every`, ... those that the last `after` * `every` have not touched. A
/// function of the updates alone: whoever makes the same ones drops the same rows.
struct RowEviction {
  uint64_t every = 0;  // updates
  uint64_t after = 0;  // times `every`; 0: never
  bool is_on() const { return after > 0; }
};

/// The rows of a table that have been updated: what is not a function of its spec and the seed.
struct TableRows {
  std::vector<int64_t> ids;
  std::vector<float> values;              // [ids.size(), width]
  std::vector<std::vector<float>> slots;  // the optimizer's, each like values
  std::vector<uint64_t> last_updates;     // [ids.size()]: which of the table's updates, from 1; or none
  friend bool operator==(const TableRows&, const TableRows&) = default;
};

/// The rows of one table that have been updated, with their optimizer's slots, but for those that were
/// dropped since. All other rows have their initial values, pure functions of (seed, table, id), and take no
/// memory: so the order in which rows come into use changes nothing. One thread at a time; an id out of range
/// is a bug.
class ParameterTable {
 public:
  /// `index`: of the table in the model. An optimizer that is not valid is a bug, and so is an eviction that
  /// has `after` without `every`.
  ParameterTable(const TableSpec& spec, int index, const OptimizerConfig& optimizer, uint64_t seed,
                 RowEviction eviction = {});

  const TableSpec& spec() const { return spec_; }
  int64_t updated_rows() const { return static_cast<int64_t>(places_.size()); }

  /// values: [ids.size(), width], packed.
  void Read(std::span<const int64_t> ids, std::span<float> values) const;

  /// One update, as Optimizer::ApplyRows; it counts as one also without any row. ids: distinct.
  /// gradient_sums: [ids.size(), width], packed. Drops rows if it is time to.
  void Apply(std::span<const int64_t> ids, std::span<const float> gradient_sums, UpdateScale scale);

  int slot_count() const { return static_cast<int>(optimizer_->slots().size()); }

  /// A copy of all updated rows; with last_updates if any may ever be dropped.
  TableRows CopyRows() const;

  /// Puts rows back that are not there yet, distinct and of this table. InvalidArgument: sizes that do not
  /// fit, an id that is out of range or there already; nothing has changed then. Those without last_updates
  /// have been touched by update `made`, at the latest.
  absl::Status RestoreRows(const TableRows& rows, uint64_t made = 0);

  /// As if `updates` updates had been made.
  void SkipTo(uint64_t updates);

 private:
  int64_t PlaceOf(int64_t id);
  std::vector<int64_t> IdsByPlace() const;
  void Evict();
  std::span<float> RowAt(int64_t place) {
    return std::span(values_).subspan(place * spec_.width, spec_.width);
  }

  TableSpec spec_;
  uint64_t seed_;
  RowEviction eviction_;
  uint64_t updates_ = 0;
  absl::flat_hash_map<int64_t, int64_t> places_;  // of the rows in use
  std::vector<float> values_;                     // [room for rows, width]
  std::unique_ptr<Optimizer> optimizer_;          // of all of values_
  std::vector<int64_t> touched_;                  // the places of one update
  std::vector<uint64_t> last_updates_;            // by place, if rows are ever dropped
};

/// One of each, by optimizer group. Fails as ValidateTables does.
absl::StatusOr<std::vector<ParameterTable>> MakeTables(std::span<const TableSpec> tables,
                                                       std::span<const OptimizerConfig> by_group,
                                                       uint64_t seed, RowEviction eviction = {});

}  // namespace muster
