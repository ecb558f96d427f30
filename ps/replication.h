// Replication: what one of the two servers of a replicated shard does about the other one. As the primary it
// sends it the shard, then everything that is done to it; as the backup it does the same things again, and
// takes over when the primary is lost (cluster/replica_view.h says when).
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/replica_view.h"
#include "proto/replication.pb.h"
#include "ps/outbox.h"
#include "ps/shard_checkpoint.h"
#include "ps/shard_connection.h"
#include "ps/shard_replay.h"

namespace muster {

struct ReplicationOptions {
  ClusterSpec cluster;  // how many there are
  std::shared_ptr<const ClusterView> view;
  int shard_index = 0;
  TaskId own, partner;      // servers of the shard
  uint64_t generation = 0;  // of the cluster
  std::optional<TlsIdentity> tls;
  Transport transport = Transport::kAuto;
  /// Of the other, after which it is out of touch; longer for much data.
  Duration silence = std::chrono::seconds(1);
  /// What a new backup does not have yet of what was done since its base, before answers wait for it; or as
  /// much as the base is, if that is more.
  uint64_t most_behind_bytes = 256 << 20;
  std::string name;  // for its log
};

/// A shard at a moment, and what is in no part of it.
struct ReplicaBase {
  ShardImage image;
  std::shared_ptr<const void> owner;  // of what the image's sections lie over
  uint64_t epoch_step = 0;
  std::vector<std::pair<journal::Record, FloatPayload>> carried;
};

/// All calls, those to the host included, are made with the server's mutex held.
class Replication {
 public:
  class Host {
   public:
    virtual ~Host() = default;
    /// This server is the primary from now on. Null: the shard begins here.
    virtual void TakeOver(std::unique_ptr<ShardReplay> shard) = 0;
    /// Another server is; this one forgets the shard.
    virtual void StepDown() = 0;
    /// Asks all workers that are joined, or wait for it, for a promise of the next view.
    virtual void Propose() = 0;
    /// Those who wait, but have not joined, are let go, and given back what they may have promised.
    virtual void LetGo() = 0;
    /// The primary proposes no view any more; those who wait can be served.
    virtual void GoOn() = 0;
    /// As the primary: the largest that is sent for this shard at once; 0: it has not begun.
    virtual int64_t FrameBytes() const = 0;
    /// nullopt: the shard has not begun.
    virtual std::optional<ReplicaBase> Base() = 0;
    /// The job has ended well, as the primary says; or it cannot go on here.
    virtual void OnEnd(const absl::Status& status) = 0;
  };

  /// All must live longer. The mutex is taken by a thread of this object.
  Replication(ReplicationOptions options, FrameServer* frames, Outbox* outbox, Host* host, std::mutex* mutex);

  ~Replication() { Stop(); }

  /// Without the mutex held. After it there is no connection, and no call comes from one.
  void Stop();

  const ReplicaView& view() const { return view_; }
  TaskId partner() const { return options_.partner; }
  /// As the primary: there is a backup, which knows it.
  bool is_safe() const { return in_sync_ && !view_.is_proposing(); }
  /// As the backup: the primary is not out of touch.
  bool follows() const { return view_.role() == ReplicaRole::kBackup && stream_ && !view_.is_proposing(); }
  bool is_primary() const { return view_.role() == ReplicaRole::kPrimary; }
  /// It may answer workers that come.
  bool serves() const { return is_primary() && !view_.is_proposing(); }
  /// As a backup: everybody has finished.
  bool has_finished() const;

  /// As the primary: one more thing was done to the shard.
  void Log(const journal::Record& record, const FloatPayload& payload = {});
  /// It has begun, and there is something for a backup.
  void OnBegun() { SendBaseIfReady(); }
  /// How long the other may be silent.
  Duration Patience() const;
  /// It speaks for the shard no more, as far as it knows.
  void StepDown();
  /// The job has ended well; to be called again and again. True: the other server has heard of it, or said
  /// it.
  bool TellEnd();

  /// From the other server's connection. Fails if it is not who it says, or says what cannot be.
  absl::Status Handle(StreamId stream, const std::string& message, FloatPayload payload);
  void OnClosed(StreamId stream);

  /// As the backup: what the primary has said of the workers; null: nothing.
  const UpdateRule* rule() const { return shard_ == nullptr ? nullptr : &shard_->shard->rule(); }

  void Promise(int rank, uint64_t view);
  void Withdraw(int rank) { view_.Withdraw(rank); }

  /// To be called several times a second.
  void Tick(TimePoint now);

 private:
  // What has come of a base.
  struct Incoming {
    replication::Base base;
    std::deque<FloatPayload> pieces;
    uint64_t bytes_left = 0;
    std::unique_ptr<ShardReplay> shard;  // once all pieces are there
  };

  void Run(const std::stop_token& stop);
  absl::Status Converse(const std::stop_token& stop);
  bool WantsConnection();
  void Send(replication::Message message, const std::vector<grpc::Slice>& payload = {});
  void SayHello();
  void SendPing();
  replication::Hello OwnHello() const;
  void OnAnswer(const replication::Answer& answer);
  void StepDownFor(const replication::Hello& other);
  void SendBaseIfReady();
  void OnOutOfTouch();
  void OnNextView(ReplicaRole before);
  void ReleaseIfAlone();
  void HoldBackIfFarBehind(uint64_t bytes);
  absl::Status HandleHello(StreamId stream, const replication::Message& message);
  absl::Status HandlePart(const replication::Message& message, FloatPayload payload);
  absl::Status BuildShard();
  void Answer(StreamId stream, const replication::Answer& answer);

  const ReplicationOptions options_;
  FrameServer* const frames_;
  Outbox* const outbox_;
  Host* const host_;
  std::mutex& mutex_;  // the server's; guards the following
  ReplicaView view_;
  TimePoint next_proposal_;

  // As the primary, or when it has just started: to the other.
  ShardConnection* connection_ = nullptr;  // the thread's
  uint64_t last_sent_ = 0;                 // order
  bool is_heard_ = false;                  // its answer to hello has come
  bool streams_ = false;                   // the base is on its way, and all that comes after it
  uint64_t base_number_ = 0;
  uint64_t base_bytes_ = 0, behind_bytes_ = 0;  // of what was sent after it, until the other has it
  uint64_t offered_ = 0;                        // view: the other may be the backup in it
  bool in_sync_ = false;                        // and is
  bool begins_ = false;  // the first backup is waited for: nothing is acknowledged without it
  bool drop_ = false;    // this connection
  bool end_heard_ = false;
  TimePoint next_end_;
  Duration connect_timeout_;  // of the thread's next attempt

  // As the backup: from the primary.
  std::optional<StreamId> stream_;
  TimePoint last_heard_;
  uint64_t last_received_ = 0;  // order
  uint64_t applied_ = 0;        // number
  std::unique_ptr<ShardReplay> shard_;
  std::optional<Incoming> incoming_;

  std::jthread thread_;  // the last member: it uses the others
};

}  // namespace muster
