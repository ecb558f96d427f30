// Which shard owns which row of a table, and a batch's rows by shard.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/row_index.h"
#include "proto/parameter_server.pb.h"

namespace muster {

/// Rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998): the
/// shard with the highest hash of (shard, table, id), so that another number of shards moves only the rows
/// that must. The same on every machine.
int OwnerOfRow(int table, uint64_t id, int shard_count);

using RepeatedRows = google::protobuf::RepeatedPtrField<ps::Rows>;

/// The rows of a RowIndex by the shards that own them. Each shard's rows are packed table by table in the
/// order of their ids, which is how they travel. One thread at a time.
class RowPartition {
 public:
  explicit RowPartition(int shard_count) : parts_(shard_count) {}

  void Build(const RowIndex& rows);

  /// One for each table.
  const RepeatedRows& rows(int shard) const { return parts_[shard].rows; }

  /// Floats of a shard's rows.
  int64_t size(int shard) const { return parts_[shard].size; }

  /// From the packed rows of the whole index to those of a shard ([size(shard)]), and back.
  void Gather(int shard, std::span<const float> packed, std::span<float> part) const;
  void Scatter(int shard, std::span<const float> part, std::span<float> packed) const;

 private:
  struct Part {
    RepeatedRows rows;
    std::vector<LayoutRange> ranges;  // of each row, in the whole index
    int64_t size = 0;
  };
  std::vector<Part> parts_;
};

}  // namespace muster
