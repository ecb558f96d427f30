// ShardServer: one shard at work: its epoch, checkpoints, journal or replica, and for shard 0 the
// coordinator. What it says and hears are frames on the streams of its process (ps/server.h).
#pragma once

#include <memory>

#include "base/status.h"
#include "ps/checkpoint_copies.h"
#include "ps/frame_server.h"
#include "ps/server.h"
#include "ps/shard.h"

namespace muster {

/// Why a server ends that has too little memory.
absl::Status OutOfMemory();

/// Who it is to those who keep copies of its checkpoints.
CheckpointCopiesOptions CopiesOf(const ParameterServerOptions& options);

/// Servers ask each other for checkpoints. Those that stand do not.
bool AsksForCheckpoints(const ParameterServerOptions& options);

/// Any thread may call any method.
class ShardServer {
 public:
  /// `frames` must live longer. `shard_index`: that of the process, or, replicated, the one whose backup it
  /// has at first. Fails as Checkpointer::Open does.
  static absl::StatusOr<std::unique_ptr<ShardServer>> Start(const ParameterServerOptions& options,
                                                            int shard_index, FrameServer* frames);

  /// No frame may come any more. Nobody is told why.
  virtual ~ShardServer() = default;

  virtual void OnFrame(FrameServer::StreamId stream, const ps::ClientHeader& header,
                       ShardGradient gradient) = 0;
  virtual void OnClosed(FrameServer::StreamId stream) = 0;

  /// Serves until the job has ended (OK), or cannot go on (the cause), or End. Deadlines are kept, and the
  /// servers tell each other what they have, only while this runs.
  virtual absl::Status Serve() = 0;

  /// After Serve: everybody has heard of the end, or will not any more. Another process that begins where
  /// this one has ended trains on.
  virtual void Close() = 0;

  /// After Serve: awaits what is being written. DataLoss: the checkpoint with which the job has ended is not
  /// there, and why.
  virtual absl::Status FinishCheckpoints() = 0;

  /// Whoever waits is told.
  virtual void End(const absl::Status& status) = 0;

  /// It knows what is trained: somebody has joined.
  virtual bool has_job() const = 0;

  /// It has work to do until it ends: it speaks for the shard, or will have to.
  virtual bool is_needed() const = 0;

  /// It is the shard's primary and has a backup, or it is its backup and has its primary.
  virtual bool is_in_touch() const = 0;

  virtual ShardMetrics metrics() const = 0;
};

}  // namespace muster
