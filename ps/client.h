// ParameterServerClient: a worker's view of all shards as one flat buffer.
//
// A broken stream is connected again and the request sent again under the same sequence number, which the
// shard applies at most once; so is a request that a shard says it does not have. When the process of a shard
// was replaced, all shards go back to the same checkpoint; when workers have come or gone, steps may be
// shared by others: what is asked for then fails with IsGoneBack. A heartbeat tells the shards that this
// worker lives, and brings word of what the job waits for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/cluster_view.h"
#include "kernels/parameter_layout.h"
#include "proto/parameter_server.pb.h"
#include "ps/encoding.h"
#include "ps/frame_queue.h"
#include "ps/row_partition.h"
#include "ps/shard_clock.h"
#include "ps/shard_connection.h"
#include "ps/tls.h"
#include "ps/update_rule.h"

namespace muster {

struct ParameterServerClientOptions {
  ClusterSpec cluster;
  std::shared_ptr<const ClusterView> view;  // null: all stay where `cluster` says
  TaskId task;                              // this worker or chief
  uint64_t incarnation = 0;
  uint64_t generation = 0;
  ps::JobConfig config;
  uint64_t train_steps = 0;  // at which this worker ends
  ParameterLayout layout;
  Duration connect_timeout = std::chrono::minutes(5);  // for the first connection to each server
  Duration server_timeout = std::chrono::seconds(60);  // for a server that was there and is gone
  /// For an answer; longer than a server waits for a silent worker. What waits for the others' end has it for
  /// a sign of life.
  Duration answer_timeout = std::chrono::minutes(11);
  std::optional<TlsIdentity> tls;
  Transport transport = Transport::kAuto;
  /// Each shard is with one of two servers, its own and the next; a silent one is left for the other.
  bool replicated = false;
  Duration replica_silence = std::chrono::milliseconds(1000);
  /// Asked while answers are waited for, four times a second, on the same thread: whatever it fails with ends
  /// the wait; then Join. Empty: nothing does.
  std::function<absl::Status()> interruption;
};

struct JoinResult {
  uint64_t step = 0;         // to go on with
  uint64_t pushes = 0;       // applied of this rank before
  uint64_t all_samples = 0;  // of all gradients that are applied, as shard 0 counts them
  // Which part of each batch is this worker's until the next Join: that of `place` among `count`. count 0: by
  // rank, among all that there were at first.
  int share_place = 0, share_count = 0;
};

/// Where the time of an exchange went, as it was with the shard whose answer came last: docs/ARCHITECTURE.md.
struct ExchangeTimes {
  Duration push{};  // to encode the gradient and to hand it over
  Duration wait{};  // what remains
  Duration pull{};  // on the way, before and after the server had it, and to decode
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
  uint64_t bytes_pushed() const { return bytes_pushed_; }
  uint64_t bytes_pulled() const { return bytes_pulled_; }

  /// Parameters that came while the gradient was still being sent, and counted.
  uint64_t floats_early() const { return floats_early_; }

 private:
  struct Shard;

  // What is asked of one shard, kept until it has answered.
  struct Request {
    ps::ClientHeader header;
    std::span<const float> borrowed;  // in front of the payload
    std::vector<grpc::Slice> payload;
  };

  // Where the answers go; what is empty is not expected.
  struct Destination {
    std::span<float> parameters;         // [layout.size()]
    const RowPartition* rows = nullptr;  // and these rows' values
    std::span<float> row_values;         // packed as in their index
  };

  bool is_async() const { return options_.config.mode() == ps::ASYNC; }
  TaskId ServerOf(const Shard& shard) const;
  std::string AddressOf(const Shard& shard) const;
  absl::Status JoinShards(TimePoint deadline, std::span<float> parameters);
  void BeginJoin(Shard& shard, TimePoint deadline);
  void GiveUpJoin(Shard& shard, absl::Status why);
  absl::Status HandleJoinEvent(FrameQueue::Event event, std::span<float> parameters,
                               std::vector<FrameQueue::Event>* of_others);
  bool SaysThatAllIsOver(const ps::ServerHeader& answer) const;
  absl::Status JoinAgain();
  void Replace(Shard& shard, std::unique_ptr<ShardConnection> connection, bool joined);
  absl::Status JoinEpoch(TimePoint deadline, std::span<float> parameters);
  void Send(Shard& shard);
  void SendWhole(Shard& shard);
  void ReceivePart(Shard& shard, const ShardReply& reply, const Destination& destination);
  void SetAwaiting(Shard& shard, uint64_t request, bool asking);
  absl::Status ReceiveFloats(const Shard& shard, const ShardReply& reply, const Destination& destination);
  absl::Status Align(const Destination& destination);
  absl::StatusOr<std::vector<ps::ServerHeader>> Exchange(std::vector<std::optional<Request>> requests,
                                                         const Destination& destination,
                                                         bool patient = false);
  absl::StatusOr<std::optional<ShardReply>> HandleEvent(const FrameQueue::Event& event, Shard** shard);
  bool TakeProposal(const FrameQueue::Event& event);
  void GiveBack(Shard& shard, const ps::NotPrimary& reply);
  Duration PatienceWith(const Shard& shard) const;
  absl::Status LeaveSilentServers();
  void TurnToOther(Shard& shard);
  void HandleHeartbeat(Shard& shard, const ps::HeartbeatReply& reply);
  void LogWait(TimePoint since);
  absl::StatusOr<ps::AwaitFinishedReply> AwaitFinished();
  void Beat(const std::stop_token& stop);

  const ParameterServerClientOptions options_;
  const std::string uuid_;
  std::mutex connections_mutex_;  // guards which connections there are, what they await, and ballots
  std::vector<std::unique_ptr<Shard>> shards_;
  RowPartition rows_;       // that are pushed
  RowPartition next_rows_;  // that are asked for
  GradientEncoder encoder_;
  const std::shared_ptr<FrameQueue> queue_;
  uint64_t epoch_ = 0;         // of all shards; 0: not joined
  bool finishing_ = false;     // servers may end
  bool has_finished_ = false;  // a server has said that all workers have
  bool reads_exactly_ = false;
  uint64_t step_ = 0;  // sync, bounded: to contribute to next
  uint64_t last_request_ = 0;
  uint64_t last_connection_ = 0;
  uint64_t sequence_ = 0;
  uint64_t bytes_pushed_ = 0;
  uint64_t bytes_pulled_ = 0;
  uint64_t floats_early_ = 0;
  ExchangeTimes times_;  // of the last Exchange; without `wait`
  TimePoint next_wait_log_;
  bool logged_without_cause_ = false;  // the last time
  std::jthread heartbeat_;             // the last member: it uses the others
};

}  // namespace muster
