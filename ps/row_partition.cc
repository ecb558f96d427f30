#include "ps/row_partition.h"

#include <algorithm>

#include "base/random.h"
#include "base/status.h"

namespace muster {

int OwnerOfRow(int table, uint64_t id, int shard_count) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;  // 2^64 over the golden ratio
  const uint64_t row = Mix64(Mix64(static_cast<uint64_t>(table) + kStep) ^ id);
  int owner = 0;
  uint64_t highest = 0;
  for (int shard = 0; shard < shard_count; ++shard) {
    const uint64_t hash = Mix64(row + static_cast<uint64_t>(shard) * kStep);
    if (shard > 0 && hash <= highest) continue;
    highest = hash;
    owner = shard;
  }
  return owner;
}

void RowPartition::Build(const RowIndex& rows) {
  const int shard_count = static_cast<int>(parts_.size());
  for (Part& part : parts_) {
    part.rows.Clear();
    part.ranges.clear();
    part.size = 0;
    for (int t = 0; t < rows.table_count(); ++t) part.rows.Add();
  }
  for (int t = 0; t < rows.table_count(); ++t) {
    const std::span<const int64_t> ids = rows.ids(t);
    const int64_t width = ids.empty() ? 0 : rows.range(t).size() / static_cast<int64_t>(ids.size());
    int64_t begin = rows.range(t).begin;
    for (const int64_t id : ids) {
      Part& part = parts_[OwnerOfRow(t, static_cast<uint64_t>(id), shard_count)];
      part.rows[t].add_ids(static_cast<uint64_t>(id));
      part.ranges.push_back({begin, begin + width});
      part.size += width;
      begin += width;
    }
  }
}

void RowPartition::Gather(int shard, std::span<const float> packed, std::span<float> part) const {
  MUSTER_CHECK(static_cast<int64_t>(part.size()) == parts_[shard].size);
  float* to = part.data();
  for (const LayoutRange& range : parts_[shard].ranges) {
    to = std::copy_n(packed.data() + range.begin, range.size(), to);
  }
}

void RowPartition::Scatter(int shard, std::span<const float> part, std::span<float> packed) const {
  MUSTER_CHECK(static_cast<int64_t>(part.size()) == parts_[shard].size);
  const float* from = part.data();
  for (const LayoutRange& range : parts_[shard].ranges) {
    std::copy_n(from, range.size(), packed.data() + range.begin);
    from += range.size();
  }
}

}  // namespace muster
