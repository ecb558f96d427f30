// ShardReplay: does again with a shard what was done to it, as a journal says or its primary. Since
// everything else is a function of that, the shard is then what it was, and another process can go on with
// it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "proto/journal.pb.h"
#include "ps/job_config.h"
#include "ps/requests.h"
#include "ps/shard_epoch.h"

namespace muster {

/// What was done to a shard. The payload of a push is its gradient, as it was received.
journal::Record JoinRecord(const WorkerIdentity& worker);
journal::Record PushRecord(const WorkerIdentity& worker, const ps::Push& push, const ShardGradient& gradient);
journal::Record DecisionRecord(const StepDecision& decision);
journal::Record FinishRecord(int rank, uint64_t next_step);
journal::Record EndRecord();
journal::Record CommonRecord(uint64_t checkpoint);

/// One thread at a time.
struct ShardReplay {
  ps::JobConfig config;
  UpdateConfig update;
  std::unique_ptr<Requests> requests;              // in whose numbers the shard speaks
  std::optional<ShardEpoch> shard;                 // always there
  std::map<uint64_t, std::vector<int>> decisions;  // that other shards may not have made yet, and more
  std::map<int, uint64_t> finished;                // by rank: next_step
  uint64_t newest_common = 0;                      // step of a checkpoint that all servers had

  /// Begins with a shard as it was; the other pointers must live longer. FailedPrecondition: of a job with
  /// another number of ranks; InvalidArgument: of one that makes no sense.
  static absl::StatusOr<std::unique_ptr<ShardReplay>> Begin(const ps::JobConfig& config, const Epoch& epoch,
                                                            Shard base, UpdateRuleState rule, int rank_count,
                                                            FrameServer* frames, Outbox* outbox);

  /// DataLoss: what the job cannot have.
  absl::Status Replay(const journal::Record& record, FloatPayload payload);

  /// Of steps from here on nothing was decided.
  uint64_t next_decision() const;
};

}  // namespace muster
