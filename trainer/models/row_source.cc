#include "trainer/models/row_source.h"

#include <algorithm>
#include <numeric>

namespace muster {

absl::StatusOr<TableValues> ReadTables(std::span<const TableSpec> tables, RowSource& source) {
  constexpr int64_t kRowsAtATime = 1 << 16;
  TableValues result;
  int64_t most_rows = 0;
  for (const TableSpec& table : tables) {
    result.emplace_back(table.rows * table.width);
    most_rows = std::max(most_rows, table.rows);
  }
  const int64_t count = static_cast<int64_t>(tables.size());
  std::vector<int> columns(tables.size());
  std::iota(columns.begin(), columns.end(), 0);
  RowIndex index(tables, columns, kRowsAtATime);
  std::vector<int32_t> ids;
  std::vector<float> values;
  // Sample i of a made-up batch names row i of every table, or its last one.
  for (int64_t begin = 0; begin < most_rows; begin += kRowsAtATime) {
    const int64_t end = std::min(begin + kRowsAtATime, most_rows);
    ids.clear();
    for (int64_t i = begin; i < end; ++i) {
      for (const TableSpec& table : tables) ids.push_back(static_cast<int32_t>(std::min(i, table.rows - 1)));
    }
    index.Build(ids, count, end - begin);
    values.resize(index.size());
    MUSTER_RETURN_IF_ERROR(source.ReadRows(index, values));
    for (int t = 0; t < static_cast<int>(count); ++t) {
      const int64_t width = tables[t].width;
      auto from = values.begin() + index.range(t).begin;
      for (const int64_t id : index.ids(t)) {
        std::copy_n(from, width, result[t].begin() + id * width);
        from += width;
      }
    }
  }
  return result;
}

absl::Status TableValuesSource::ReadRows(const RowIndex& rows, std::span<float> values) {
  MUSTER_CHECK(rows.table_count() == static_cast<int>(tables_.size()));
  for (int t = 0; t < rows.table_count(); ++t) {
    const int64_t width = tables_[t].width;
    auto to = values.begin() + rows.range(t).begin;
    for (const int64_t id : rows.ids(t)) to = std::copy_n(values_[t].begin() + id * width, width, to);
  }
  return absl::OkStatus();
}

}  // namespace muster
