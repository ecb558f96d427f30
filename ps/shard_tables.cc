#include "ps/shard_tables.h"

#include <algorithm>

#include "ps/wire.h"

namespace muster {

absl::StatusOr<ShardTables> ShardTables::Create(std::span<const TableSpec> tables,
                                                std::span<const OptimizerConfig> by_group, uint64_t seed,
                                                RowEviction eviction, int shard_index, int shard_count) {
  ShardTables result;
  MUSTER_ASSIGN_OR_RETURN(result.tables_, MakeTables(tables, by_group, seed, eviction));
  result.sums_.resize(tables.size());
  result.shard_index_ = shard_index;
  result.shard_count_ = shard_count;
  return result;
}

absl::StatusOr<int64_t> ShardTables::CheckRows(const RepeatedRows& rows) const {
  if (rows.size() != static_cast<int>(tables_.size())) {
    return InvalidArgument("rows of %d tables, the model has %d", rows.size(), tables_.size());
  }
  int64_t floats = 0;
  for (int t = 0; t < rows.size(); ++t) {
    const TableSpec& spec = tables_[t].spec();
    if (rows[t].ids_size() > spec.rows) {
      return InvalidArgument("%d rows of table %s, which has %d", rows[t].ids_size(), spec.name, spec.rows);
    }
    for (const uint64_t id : rows[t].ids()) {
      if (id >= static_cast<uint64_t>(spec.rows)) {
        return InvalidArgument("row %d of table %s, which has %d", id, spec.name, spec.rows);
      }
      if (OwnerOfRow(t, id, shard_count_) != shard_index_) {
        return InvalidArgument("row %d of table %s is not of shard %d", id, spec.name, shard_index_);
      }
    }
    floats += rows[t].ids_size() * spec.width;
  }
  if (floats * static_cast<int64_t>(sizeof(float)) > kMaxFrameBytes / 2) {
    return InvalidArgument("rows of %d numbers are too many for one message: make batches smaller", floats);
  }
  return floats;
}

void ShardTables::AddGradients(const RepeatedRows& rows, std::span<const float> gradients) {
  const float* from = gradients.data();
  for (int t = 0; t < rows.size(); ++t) {
    RowSums& sums = sums_[t];
    const int64_t width = tables_[t].spec().width;
    for (const uint64_t id : rows[t].ids()) {
      const auto [found, is_new] = sums.places.try_emplace(static_cast<int64_t>(id), sums.ids.size());
      if (is_new) {
        sums.ids.push_back(static_cast<int64_t>(id));
        sums.gradients.insert(sums.gradients.end(), from, from + width);
      } else {
        float* const sum = sums.gradients.data() + found->second * width;
        for (int64_t i = 0; i < width; ++i) sum[i] += from[i];
      }
      from += width;
    }
  }
}

void ShardTables::Apply(UpdateScale scale) {
  for (size_t t = 0; t < tables_.size(); ++t) {
    RowSums& sums = sums_[t];
    tables_[t].Apply(sums.ids, sums.gradients, scale);
    sums.places.clear();
    sums.ids.clear();
    sums.gradients.clear();
  }
}

void ShardTables::Read(const RepeatedRows& rows, std::span<float> values) const {
  std::vector<int64_t> ids;
  int64_t begin = 0;
  for (int t = 0; t < rows.size(); ++t) {
    ids.assign(rows[t].ids().begin(), rows[t].ids().end());
    const int64_t floats = rows[t].ids_size() * tables_[t].spec().width;
    tables_[t].Read(ids, values.subspan(begin, floats));
    begin += floats;
  }
}

std::vector<TableRows> ShardTables::CopyRows() const {
  std::vector<TableRows> rows;
  for (const ParameterTable& table : tables_) rows.push_back(table.CopyRows());
  return rows;
}

absl::Status ShardTables::RestoreRows(int table, const TableRows& rows, uint64_t made) {
  MUSTER_CHECK(table >= 0 && table < static_cast<int>(tables_.size()));
  const auto is_own = [&](int64_t id) {
    return OwnerOfRow(table, static_cast<uint64_t>(id), shard_count_) == shard_index_;
  };
  if (std::all_of(rows.ids.begin(), rows.ids.end(), is_own)) return tables_[table].RestoreRows(rows, made);
  const size_t width = tables_[table].spec().width;
  TableRows own{.slots = std::vector<std::vector<float>>(rows.slots.size())};
  const auto take = [&](const std::vector<float>& from, size_t row, std::vector<float>& to) {
    if (from.size() < (row + 1) * width) return;  // RestoreRows will say so
    to.insert(to.end(), from.begin() + row * width, from.begin() + (row + 1) * width);
  };
  for (size_t row = 0; row < rows.ids.size(); ++row) {
    if (!is_own(rows.ids[row])) continue;
    own.ids.push_back(rows.ids[row]);
    if (row < rows.last_updates.size()) own.last_updates.push_back(rows.last_updates[row]);
    take(rows.values, row, own.values);
    for (size_t s = 0; s < rows.slots.size(); ++s) take(rows.slots[s], row, own.slots[s]);
  }
  return tables_[table].RestoreRows(own, made);
}

int64_t ShardTables::updated_rows() const {
  int64_t rows = 0;
  for (const ParameterTable& table : tables_) rows += table.updated_rows();
  return rows;
}

void ShardTables::SkipTo(uint64_t updates) {
  for (ParameterTable& table : tables_) table.SkipTo(updates);
}

}  // namespace muster
