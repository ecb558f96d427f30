// ShardConnection: one stream to a shard, from a worker or from another shard: over gRPC, or past the network
// where both are on one host.
#pragma once

#include <grpcpp/channel.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/cluster_view.h"
#include "proto/parameter_server.pb.h"
#include "ps/frame_faults.h"
#include "ps/frame_queue.h"
#include "ps/tls.h"
#include "ps/transport.h"
#include "ps/wire.h"

namespace muster {

struct ShardReply {
  ps::ServerHeader header;
  FloatPayload payload;
  uint64_t bytes = 0;  // of the whole frame
};

/// Any thread may send; one at a time receives. Once an operation has failed with Unavailable the connection
/// is over: make a new one.
class ShardConnection {
 public:
  /// Connects and opens the stream, whose frames come as events of connection `id`. Unavailable, with the
  /// address: refused, or no answer until the deadline. As soon as `server`, or the task that connects, has
  /// another address, an attempt ends, and a connection breaks, which TCP would notice much later.
  static absl::StatusOr<std::unique_ptr<ShardConnection>> Connect(
      std::shared_ptr<const ClusterView> view, TaskId server, const std::optional<TlsIdentity>& tls,
      Transport transport, TimePoint deadline,
      std::shared_ptr<FrameQueue> queue = std::make_shared<FrameQueue>(), uint64_t id = 0);
  /// To a server that stays where it is.
  static absl::StatusOr<std::unique_ptr<ShardConnection>> Connect(
      const std::string& address, TaskId server, const std::optional<TlsIdentity>& tls, Transport transport,
      TimePoint deadline, std::shared_ptr<FrameQueue> queue = std::make_shared<FrameQueue>(),
      uint64_t id = 0);
  ~ShardConnection();

  /// Starts to send a frame; what `payload` lies over must stay as it is until its answer has come, or this
  /// object is gone. Returns the frame's bytes.
  uint64_t Send(const ps::ClientHeader& header, const std::vector<grpc::Slice>& payload);

  /// The next frame of this connection. Unavailable: the stream broke. DeadlineExceeded: nothing came.
  absl::StatusOr<ShardReply> Receive(TimePoint deadline);

  /// What an event of this connection says. Fails as Receive does.
  absl::StatusOr<ShardReply> Decode(const FrameQueue::Event& event) const;

  /// When this request, the last one, was on its way as a whole, as far as is known yet: the kernel had it,
  /// or the server's memory.
  std::optional<TimePoint> SentAt(uint64_t request) const;

  uint64_t id() const { return id_; }
  /// One of both ends has another address now: the end of the connection is in the queue.
  bool has_moved() const { return has_moved_; }
  bool is_local() const;

  /// An owner for slices over what the sender only lends: the destructor waits until gRPC has let go of them,
  /// which it may not have when the stream is over.
  std::shared_ptr<const void> Lease() const { return lease_; }

  /// For tests: of all connections that are made from now on, in both directions.
  static void InjectFaults(const std::optional<FrameFaultOptions>& faults);

 private:
  class Stream;
  class GrpcStream;
  class SameHostStream;
  // Where both ends are, which may change.
  struct Place {
    explicit Place(std::shared_ptr<const ClusterView> given, TaskId server)
        : view(std::move(given)), whereabouts(*view, server) {}
    bool has_changed() const { return whereabouts.HaveChanged(*view); }
    std::shared_ptr<const ClusterView> view;
    Whereabouts whereabouts;
  };
  static absl::StatusOr<std::unique_ptr<ShardConnection>> Connect(std::optional<Place> place,
                                                                  const std::string& address, TaskId server,
                                                                  const std::optional<TlsIdentity>& tls,
                                                                  Transport transport, TimePoint deadline,
                                                                  std::shared_ptr<FrameQueue> queue,
                                                                  uint64_t id);
  ShardConnection(std::optional<Place> place, std::string address, std::shared_ptr<FrameQueue> queue,
                  uint64_t id);
  void GiveUpIfMoved();
  void Open(std::shared_ptr<grpc::Channel> channel, Transport transport, TimePoint deadline);

  std::future<void> let_go_;  // of all shares of the lease
  std::shared_ptr<const void> lease_;
  const std::optional<Place> place_;  // none: it stays
  const std::string address_;
  const std::shared_ptr<FrameQueue> queue_;  // outlives the stream, which fills it
  std::atomic<bool> has_moved_ = false;      // either end
  const uint64_t id_;
  std::unique_ptr<FrameFaults> incoming_faults_;  // in tests
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<FrameFaults> outgoing_faults_;  // likewise
  std::optional<ClusterView::Watch> watch_;       // the last member: what it calls uses the others
};

}  // namespace muster
