// A shard's state to and from the files of a checkpoint.
#pragma once

#include "base/status.h"
#include "proto/parameter_server.pb.h"
#include "ps/checkpoint_store.h"
#include "ps/shard.h"
#include "ps/update_rule.h"

namespace muster {

/// Where a shard stands in its job.
struct ShardPlace {
  ps::JobConfig config;
  int index = 0;
  int count = 1;
  uint64_t epoch = 0;  // number
};

/// A shard's state as it is written and sent: a header that does not say yet what its sections are, and
/// those, whose bytes are the snapshot's.
struct ShardImage {
  checkpoint::ShardHeader header;
  std::vector<CheckpointSection> sections;
};
ShardImage ImageOf(const ShardPlace& place, const ShardSnapshot& snapshot, const UpdateRuleState& rule);

/// Writes the file of a shard for the checkpoint named `step`; the shard itself may have made another number
/// of updates. Any thread.
absl::StatusOr<checkpoint::Manifest::File> WriteShardCheckpoint(const CheckpointStore& store, uint64_t step,
                                                                const ShardPlace& place,
                                                                const ShardSnapshot& snapshot,
                                                                const UpdateRuleState& rule);

struct RestoredShard {
  Shard shard;
  UpdateRuleState rule;
  checkpoint::Manifest::File own_file;  // of ReadShardFile
};

/// Fills `bytes` with the next section.
using ReadSection = std::function<absl::Status(std::span<char> bytes)>;

/// Reads a shard's own image. DataLoss, with `name`: its sections are not those of the job.
absl::StatusOr<RestoredShard> ReadImage(const checkpoint::ShardHeader& header, const ReadSection& read,
                                        const std::string& name, const ShardPlace& place);

/// Reads what a shard owns out of a checkpoint that may have been made by another number of shards, and by
/// another number of workers. FailedPrecondition: of another model, other optimizers (the rates aside, but
/// FTRL's) or another seed, with the difference; DataLoss: a file is damaged, or is not the checkpoint's own;
/// NotFound: one is missing.
///
/// From another number of shards, what makes pushes count once is not taken over: no process of that job is
/// left.
absl::StatusOr<RestoredShard> ReadShardCheckpoint(const CheckpointStore& store,
                                                  const checkpoint::Manifest& manifest,
                                                  const ShardPlace& place);

/// Reads a shard's own file, whether or not a checkpoint was made with it. FailedPrecondition: written by
/// another job or in another epoch; else as ReadShardCheckpoint.
absl::StatusOr<RestoredShard> ReadShardFile(const CheckpointStore& store, uint64_t step,
                                            const ShardPlace& place);

}  // namespace muster
