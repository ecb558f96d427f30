#include "kernels/row_index.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace muster {

RowIndex::RowIndex(std::span<const TableSpec> tables, std::span<const int> columns, int64_t largest_batch) {
  MUSTER_CHECK(tables.size() == columns.size() && largest_batch >= 0);
  for (size_t i = 0; i < tables.size(); ++i) {
    Table table{.rows = tables[i].rows, .width = tables[i].width, .column = columns[i]};
    const int64_t most = std::min(table.rows, largest_batch);
    table.ids.reserve(most);
    table.offsets.reserve(largest_batch);
    largest_size_ += most * table.width;
    tables_.push_back(std::move(table));
  }
  MUSTER_CHECK(largest_size_ <= std::numeric_limits<int32_t>::max());
  slots_.resize(std::bit_ceil(static_cast<uint64_t>(2 * largest_batch + 2)));
  shift_ = 32 - std::countr_zero(slots_.size());
}

void RowIndex::Build(std::span<const int32_t> ids, int64_t id_count, int64_t samples) {
  MUSTER_CHECK(static_cast<int64_t>(ids.size()) == samples * id_count);
  size_ = 0;
  for (Table& table : tables_) {
    MUSTER_CHECK(table.column < id_count);
    MUSTER_CHECK(samples <= static_cast<int64_t>(table.offsets.capacity()));
    if (++round_ == 0) {  // the counter has gone round, so old slots could look new
      std::fill(slots_.begin(), slots_.end(), Slot{});
      round_ = 1;
    }
    table.ids.clear();
    table.offsets.resize(samples);
    table.range.begin = size_;
    const int32_t* id = ids.data() + table.column;
    for (int64_t i = 0; i < samples; ++i, id += id_count) {
      MUSTER_CHECK(*id >= 0 && *id < table.rows, "an id that is no row of its table");
      bool is_new = false;
      int32_t& offset = FindOrInsert(*id, &is_new);
      if (is_new) {
        offset = static_cast<int32_t>(size_);
        table.ids.push_back(*id);
        size_ += table.width;
      }
      table.offsets[i] = offset;
    }
    table.range.end = size_;
  }
}

// Linear probing from the top bits of a product with 2^32 over the golden ratio (Knuth, "The art of computer
// programming", volume 3, 6.4), which spreads ids that follow each other.
int32_t& RowIndex::FindOrInsert(int32_t id, bool* is_new) {
  const uint32_t mask = static_cast<uint32_t>(slots_.size()) - 1;
  for (uint32_t place = (static_cast<uint32_t>(id) * 2654435769u) >> shift_;; place = (place + 1) & mask) {
    Slot& slot = slots_[place];
    if (slot.round == round_ && slot.id != id) continue;  // ends: there are twice as many slots as samples
    *is_new = slot.round != round_;
    slot.round = round_;
    slot.id = id;
    return slot.offset;
  }
}

}  // namespace muster
