// What servers have of each other's checkpoints: whether they were made, and copies of their files, so that
// who loses a host, with its disk, still goes on from the newest checkpoint.
//
// A server with a buddy sends its file there before it says that it has written it: whatever becomes a
// checkpoint has its copies, or the log says that it has none. They lie in the buddy's own folder, beside its
// files, and go with them. A server that starts asks all others for a newer copy than what it has, before it
// joins them, and when it goes on from a checkpoint offers that to its buddy again, which may be the one that
// was lost.
//
// Also without a buddy, one that finds its file of a later step than its newest checkpoint asks the others:
// all may have ended while they made the first one, which only some had heard of.
#pragma once

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/cluster_view.h"
#include "proto/checkpoint_copy.pb.h"
#include "ps/checkpoint_store.h"
#include "ps/frame_server.h"
#include "ps/tls.h"
#include "ps/transport.h"

namespace muster {

/// Who keeps the copies of a server's files: one on the next host, of several the one that has the same place
/// there; or, if all are on one host, the next one. At least two servers.
int BuddyOf(const ClusterSpec& cluster, int server);

struct CheckpointCopiesOptions {
  ClusterSpec cluster;                      // at the start: who keeps whose files does not change
  std::shared_ptr<const ClusterView> view;  // null: all stay where `cluster` says
  int shard_index = 0;
  uint64_t generation = 0;  // of the cluster
  std::optional<TlsIdentity> tls;
  Transport transport = Transport::kAuto;
  std::filesystem::path folder;                  // of this server's checkpoints
  bool has_buddy = false;                        // all servers alike: else there are no copies
  Duration patience = std::chrono::seconds(30);  // with a buddy that gets no further
};

/// What a server wants of the others. Its calls block, and end early when `stop` is requested (Cancelled).
/// Any thread.
class CheckpointCopies {
 public:
  explicit CheckpointCopies(CheckpointCopiesOptions options);

  /// Returns when the buddy has this file of the folder on its disk. Unavailable or DeadlineExceeded, with
  /// its name: it does not answer; else what it says against it, or why the file cannot be read.
  absl::Status Send(uint64_t step, const checkpoint::Manifest::File& file, const std::stop_token& stop) const;

  /// Others may know of a newer checkpoint than this folder has, as far as this server's own file goes.
  bool HasUncommitted() const;

  /// Puts the newest checkpoint into the folder that another server has made and this server's file is there
  /// for, or a copy of it at the other, unless one that is as new is there and whole. Asks all others until
  /// they have answered or `patience` is over. What fails is logged.
  void Fetch(Duration patience, const std::stop_token& stop) const;

 private:
  class Conversation;
  // Of a file, however often its transfer begins anew: what has come before is none.
  struct Progress {
    uint64_t furthest = 0;  // byte
    TimePoint last = Now();
  };
  absl::Status SendOnce(uint64_t step, const checkpoint::Manifest::File& file, const std::stop_token& stop,
                        Progress* progress) const;
  absl::Status FetchFrom(int server, const std::stop_token& stop, uint64_t* newest) const;
  absl::Status FetchFile(Conversation& other, uint64_t step, const checkpoint::Manifest::File& file,
                         const std::stop_token& stop) const;
  uint64_t NewestWhole() const;

  const CheckpointCopiesOptions options_;
  const CheckpointStore store_;
};

/// Tells others which checkpoints are here, keeps their files, and gives them back. Any thread; files are
/// written and read on one of its own.
class CopyKeeper {
 public:
  /// `frames` must live longer. Whoever asks must be the server that the files are of, if there is TLS, and
  /// of this generation of the cluster.
  CopyKeeper(CheckpointCopiesOptions own, FrameServer* frames);

  /// ClientHeader.checkpoint_copy with its number. What does not fit is refused.
  void OnRequest(FrameServer::StreamId stream, uint64_t number, const std::string& request);
  void OnClosed(FrameServer::StreamId stream);

 private:
  struct Waiting {
    FrameServer::StreamId stream = 0;
    uint64_t number = 0;
    checkpoint_copy::Request request;
  };

  void Run(const std::stop_token& stop);
  absl::Status Check(FrameServer::StreamId stream, const checkpoint_copy::Request& request) const;
  absl::StatusOr<checkpoint_copy::Answer> Handle(const Waiting& waiting);
  absl::StatusOr<checkpoint_copy::Answer> HandleOffer(FrameServer::StreamId stream, int shard,
                                                      const checkpoint_copy::Offer& offer);
  absl::StatusOr<checkpoint_copy::Answer> HandlePiece(FrameServer::StreamId stream, int shard,
                                                      const checkpoint_copy::Piece& piece);
  absl::Status CheckNotMade(int shard, uint64_t step, const checkpoint::Manifest::File& file) const;
  std::string FileOf(int shard) const;
  absl::StatusOr<checkpoint_copy::Answer> HandleList(int shard) const;

  const CheckpointCopiesOptions own_;
  const CheckpointStore store_;
  FrameServer* const frames_;
  struct UnderWay {
    uint64_t step = 0;
    ShardFileCopy copy;
  };
  std::map<FrameServer::StreamId, UnderWay> copies_;  // the thread's

  std::mutex mutex_;  // guards the following
  std::condition_variable_any changed_;
  std::deque<Waiting> waiting_;
  std::set<FrameServer::StreamId> closed_;
  std::jthread thread_;  // the last member: it uses the others
};

}  // namespace muster
