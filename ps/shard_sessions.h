// ShardSessions: a worker's sessions with all shards, whatever becomes of connections, processes and hosts.
//
// A request is asked of several shards at once and answered by each once. A broken stream is connected again
// and what had no answer is sent again as it was, so that a shard can tell that it has it; so is a request
// that a shard says it does not have. A replicated shard is with one of two servers; since the one that is to
// take over needs the promises of workers, a session that breaks is taken up again also while nothing is
// asked. A heartbeat tells the shards that this worker lives, and brings word of what the job waits for.
#pragma once

#include <atomic>
#include <cstdint>
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
#include "cluster/replica_view.h"
#include "kernels/parameter_layout.h"
#include "proto/parameter_server.pb.h"
#include "ps/client_options.h"
#include "ps/exchange_times.h"
#include "ps/frame_queue.h"
#include "ps/row_partition.h"
#include "ps/shard_connection.h"

namespace muster {

/// What is asked of one shard.
struct ShardRequest {
  ps::ClientHeader header;
  std::span<const float> borrowed;  // in front of the payload, until there is an answer
  std::vector<grpc::Slice> payload;
};

/// By shard; without a value it is not asked.
using ShardRequests = std::vector<std::optional<ShardRequest>>;

/// Where the floats of answers go; what is empty is not expected.
struct AnswerTarget {
  std::span<float> parameters;         // [layout.size()]
  const RowPartition* rows = nullptr;  // and these rows' values
  std::span<float> row_values;         // packed as in their index
};

struct ShardAnswers {
  std::vector<ps::ServerHeader> headers;  // by shard; empty ones of those that were not asked
  ExchangeTimes times;                    // without `wait`
};

/// One thread at a time, beside its own. Joining and asking fail with Cancelled where the shards have gone
/// back to an earlier step, or other workers share the batches: then Join; with DataLoss where a shard has
/// lost what it had told; with Unavailable and DeadlineExceeded, naming the shard, where one is waited for no
/// longer.
class ShardSessions {
 public:
  /// `options` has a view.
  explicit ShardSessions(ParameterServerClientOptions options);
  ~ShardSessions();

  const ParameterServerClientOptions& options() const { return options_; }
  int count() const { return static_cast<int>(shards_.size()); }
  LayoutRange range(int shard) const { return shards_[shard]->range; }

  /// Begins sessions with all shards, which are in one epoch then, and receives their parameters
  /// ([layout.size()]). By shard, what it let this worker in with.
  absl::StatusOr<std::vector<ps::JoinReply>> Join(std::span<float> parameters);

  enum class Patience {
    kAnswer,  // answer_timeout
    kLife,    // as long as servers show that they live: others may have hours of work left
  };
  absl::StatusOr<ShardAnswers> Exchange(ShardRequests requests, const AnswerTarget& target,
                                        Patience patience = Patience::kAnswer);

  /// Tells all shards that this worker has succeeded. From now on servers may end.
  absl::Status Finish(uint64_t next_step);

  /// Tells ps:0, if it is there, why this worker ends. Nothing may follow.
  void Fail(const std::string& why);

  /// By shard, how long it has been waited for; 0: it is not. Any thread may call it.
  std::vector<Duration> waiting();

  /// Of all requests and their answers, ids and headers included; heartbeats are not.
  uint64_t bytes_sent() const { return bytes_sent_; }
  uint64_t bytes_received() const { return bytes_received_; }

  /// Parameters that came while the gradient was still being sent, and counted.
  uint64_t floats_early() const { return floats_early_; }

 private:
  static constexpr Duration kStallAfter = std::chrono::seconds(3);  // a wait is told of
  struct Shard {
    TaskId task;           // by whose name it is known
    int server = 0;        // of the two that it may be with
    ReplicaBallot ballot;  // which of them speaks for it
    LayoutRange range;
    std::unique_ptr<ShardConnection> connection;
    bool joined = false;  // over this connection
    bool wanted = false;  // to be joined, if it is not
    uint64_t join = 0;    // the number of the join in flight, 0 if none
    TimePoint join_deadline, next_attempt;
    bool is_held_up = false;     // it has said whom the join in flight waits for
    Duration connect_timeout{};  // of the next attempt, where there are two servers
    absl::Status last_error;
    ps::JoinReply joined_as;
    uint64_t epoch = 0;                     // number, when it was joined
    uint64_t step = 0;                      // of the parameters received last
    uint64_t awaiting = 0;                  // the number of the request in flight, 0 if none
    bool asking = false;                    // whether that may be sent
    std::optional<TimePoint> waited_since;  // for it to answer, or to be joined
    std::optional<ShardRequest> in_flight;
    TimePoint sent_at;  // when it was told to send that, as a whole
    int64_t early = 0;  // floats of the answer to that which are there already, one after the other
    TimePoint last_heard;
    std::string waits_for;  // the server's last word about that
  };

  // The sessions are used by a caller's thread, or, while that does something else, by the keeper, which lets
  // go as soon as there is a caller.
  class Use {
   public:
    explicit Use(ShardSessions& sessions) : asking_(sessions.asking_) {
      ++asking_;
      lock_ = std::unique_lock(sessions.use_);
    }
    ~Use() { --asking_; }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    std::atomic<int>& asking_;
    std::unique_lock<std::mutex> lock_;
  };
  absl::StatusOr<ShardAnswers> ExchangeInUse(ShardRequests requests, const AnswerTarget& target,
                                             Patience patience);
  absl::Status Interruption();
  void Keep(const std::stop_token& stop);
  bool IsIdle() const;
  absl::Status Tend();
  void NoteListening();

  // In shard_sessions_joining.cc.
  absl::Status JoinEpoch(TimePoint deadline, std::span<float> parameters);
  absl::Status JoinShards(TimePoint deadline, std::span<float> parameters);
  absl::Status JoinAgain();
  void BeginJoin(Shard& shard, TimePoint deadline);
  void GiveUpJoin(Shard& shard, absl::Status why);
  absl::Status HandleJoinEvent(FrameQueue::Event event, std::span<float> parameters,
                               std::vector<FrameQueue::Event>* of_others);
  absl::Status HandleJoinReply(Shard& shard, const ShardReply& reply, std::span<float> parameters);
  void Replace(Shard& shard, std::unique_ptr<ShardConnection> connection, bool joined);
  TaskId ServerOf(const Shard& shard) const;
  std::string AddressOf(const Shard& shard) const;
  ps::Ranks RanksNow() const;

  void Beat(const std::stop_token& stop);
  absl::Status Ask(ShardRequests requests);
  void Send(Shard& shard);
  void SendWhole(Shard& shard);
  void SetAwaiting(Shard& shard, uint64_t request, bool asking);
  Shard* Find(uint64_t connection);
  const Shard& LongestSilent() const;
  absl::StatusOr<std::optional<ShardReply>> HandleEvent(const FrameQueue::Event& event, Shard& shard);
  void HandleHeartbeat(Shard& shard, const ps::HeartbeatReply& reply);
  void ReceivePart(Shard& shard, const ShardReply& reply, const AnswerTarget& target);
  absl::Status ReceiveFloats(const Shard& shard, const ShardReply& reply, const AnswerTarget& target);
  absl::Status TakeAnswer(Shard& shard, ShardReply reply, const AnswerTarget& target, ShardAnswers* answers);
  bool SaysThatAllIsOver(const ps::ServerHeader& answer) const;
  void LogWait(TimePoint since);
  bool TakeProposal(const FrameQueue::Event& event);
  void GiveBack(Shard& shard, const ps::NotPrimary& reply);
  Duration PatienceWith(const Shard& shard) const;
  absl::Status LeaveSilentServers();
  void TurnToOther(Shard& shard);

  const ParameterServerClientOptions options_;
  const std::string uuid_;
  std::mutex use_;                // guards what connections_mutex_ does not, and is taken before it
  std::atomic<int> asking_ = 0;   // callers that have it, or wait for it
  bool is_keeping_ = false;       // the keeper has it
  absl::Status kept_;             // what it has heard, which is the answer to the next request
  std::mutex connections_mutex_;  // guards which connections there are, what they await, and ballots
  std::vector<std::unique_ptr<Shard>> shards_;
  const std::shared_ptr<FrameQueue> queue_;
  uint64_t epoch_ = 0;         // of all shards; 0: not joined
  bool finishing_ = false;     // servers may end
  bool has_finished_ = false;  // a server has said that all workers have
  uint64_t last_request_ = 0;
  uint64_t last_connection_ = 0;
  std::atomic<uint64_t> bytes_sent_ = 0;
  std::atomic<uint64_t> bytes_received_ = 0;
  uint64_t floats_early_ = 0;
  TimePoint listened_at_;
  TimePoint next_wait_log_;
  bool logged_without_cause_ = false;  // the last time
  std::jthread heartbeat_;             // the last members: they use the others
  std::jthread keeper_;                // of replicated shards
};

}  // namespace muster
