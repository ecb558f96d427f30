// Where the rows of a model's tables come from: servers, this process, a file.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/parameter_table.h"
#include "kernels/row_index.h"

namespace muster {

class RowSource {
 public:
  virtual ~RowSource() = default;

  /// values: [rows.size()], packed as RowIndex says.
  virtual absl::Status ReadRows(const RowIndex& rows, std::span<float> values) = 0;
};

/// Every row of each table, [rows, width] of one after the other.
using TableValues = std::vector<std::vector<float>>;

/// Reads them all, a number of rows at a time.
absl::StatusOr<TableValues> ReadTables(std::span<const TableSpec> tables, RowSource& source);

/// Rows of tables that are in memory as a whole, and stay there.
class TableValuesSource final : public RowSource {
 public:
  TableValuesSource(std::span<const TableSpec> tables, const TableValues& values)
      : tables_(tables), values_(values) {}
  absl::Status ReadRows(const RowIndex& rows, std::span<float> values) override;

 private:
  const std::span<const TableSpec> tables_;
  const TableValues& values_;
};

}  // namespace muster
