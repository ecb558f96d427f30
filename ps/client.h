// ParameterServerClient: a worker's view of all shards as one flat buffer.
//
// What it pushes has a sequence number, so that each shard applies it at most once however often it is sent
// (ps/shard_sessions.h). When the process of a shard was replaced, all shards go back to the same checkpoint;
// when workers have come or gone, steps may be shared by others: what is asked for then fails with
// IsGoneBack.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "proto/parameter_server.pb.h"
#include "ps/client_options.h"
#include "ps/exchange_times.h"
#include "ps/row_partition.h"
#include "ps/shard_clock.h"
#include "ps/update_rule.h"

namespace muster {

struct AnswerTarget;
struct ShardRequest;
class GradientEncoder;
class ShardSessions;

struct JoinResult {
  uint64_t step = 0;         // to go on with
  uint64_t pushes = 0;       // applied of this rank before
  uint64_t all_samples = 0;  // of all gradients that are applied, as shard 0 counts them
  // Which part of each batch is this worker's until the next Join: that of `place` among `count`. count 0: by
  // rank, among all that there were at first.
  int share_place = 0, share_count = 0;
};

struct PushResult {
  PushOutcome outcome = PushOutcome::kApplied;
  uint64_t step = 0;  // sync, bounded: to contribute to next; async: of the parameters
  double mean_loss = 0;
  uint64_t samples = 0;
  uint64_t staleness = 0;
  uint64_t all_samples = 0;  // of all gradients that are applied, as shard 0 counts them
  ExchangeTimes times;
};

/// What a worker brings to an update: sums over `samples` at the parameters and rows received last.
struct Contribution {
  uint64_t samples = 0;
  double loss_sum = 0;
  std::span<const float> gradient;  // [layout.size() + rows.size()]: behind that of the layout the rows'
  const RowIndex& rows;             // of the batch
};

/// The shards have gone back to an earlier step, because one of them was replaced, or other workers share the
/// batches from this step on: Join again, and go on from there.
inline bool IsGoneBack(const absl::Status& status) { return absl::IsCancelled(status); }

/// One thread at a time. Everything may fail with IsGoneBack, Join too.
class ParameterServerClient {
 public:
  explicit ParameterServerClient(ParameterServerClientOptions options);
  ~ParameterServerClient();

  /// Connects to all shards and receives the parameters into `parameters` ([layout.size()]). In sync mode all
  /// of them are those of one step, the first that this rank has not contributed to; or, of a job that needs
  /// all workers, the one that is to be made next: a part that is there already is pushed again.
  absl::StatusOr<JoinResult> Join(std::span<float> parameters);

  /// One fused exchange with every shard: pushes the contribution, receives the updated parameters and the
  /// rows of the next batch ([next_rows.size()]). 4 bytes each way for each parameter and float of the rows,
  /// 2 if the job's wire_type has 16 bits, and one to five for each id. With top_k only a part of the
  /// parameters travels, so that `parameters` must be as they were received last, by Join or here. The result
  /// is what ps:0 said.
  absl::StatusOr<PushResult> PushPull(const Contribution& contribution, std::span<float> parameters,
                                      const RowIndex& next_rows, std::span<float> next_row_values);

  /// Receives rows ([rows.size()]), in sync mode those of the same step as the parameters received last,
  /// unless the other workers have gone on without this one: the newest step that any of them is of.
  absl::StatusOr<uint64_t> PullRows(const RowIndex& rows, std::span<float> values);

  /// Waits until all other workers have finished or are lost, and receives the final parameters. From then on
  /// they, and rows, come as the shards have them, whatever the job's wire_type, and nothing is pushed before
  /// another Join. The counts are those of ps:0.
  absl::StatusOr<ps::AwaitFinishedReply> AwaitOthers(std::span<float> parameters);

  /// Tells all shards that this worker has succeeded.
  absl::Status Finish();

  /// Tells ps:0, if it is there, why this worker ends, and would again: so that the others need not wait for
  /// it. Nothing may follow.
  void Fail(const std::string& why);

  /// By shard, how long it has been waited for; 0: it is not. Any thread may call it.
  std::vector<Duration> waiting();

  /// Of all requests and their answers, ids and headers included; heartbeats are not.
  uint64_t bytes_pushed() const;
  uint64_t bytes_pulled() const;

  /// Parameters that came while the gradient was still being sent, and counted.
  uint64_t floats_early() const;

 private:
  bool is_async() const { return config_.mode() == ps::ASYNC; }
  absl::Status Align(const AnswerTarget& target);
  absl::Status PullParameters(std::vector<std::optional<ShardRequest>> requests, const AnswerTarget& target);
  absl::StatusOr<ps::AwaitFinishedReply> AwaitFinished();

  const std::unique_ptr<ShardSessions> sessions_;
  const ps::JobConfig& config_;     // of their options
  const int64_t layout_size_;       // likewise
  std::vector<ShardClock> clocks_;  // by shard; in async mode each counts its own steps
  RowPartition rows_;               // that are pushed
  RowPartition next_rows_;          // that are asked for
  const std::unique_ptr<GradientEncoder> encoder_;
  bool reads_exactly_ = false;
  uint64_t step_ = 0;  // sync, bounded: to contribute to next
  uint64_t sequence_ = 0;
};

}  // namespace muster
