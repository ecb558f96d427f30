// CoordinatorLink: the stream from a shard to ps:0, which has the coordinator. Connects, and connects again
// when it breaks.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "base/status.h"
#include "cluster/cluster_view.h"
#include "proto/parameter_server.pb.h"
#include "ps/shard_connection.h"
#include "ps/tls.h"

namespace muster {

struct CoordinatorLinkOptions {
  std::shared_ptr<const ClusterView> view;
  std::vector<int> servers = {0};  // one of these speaks for shard 0
  int shard_index = 0;             // of this shard, for its log
  std::optional<TlsIdentity> tls;
  Transport transport = Transport::kAuto;
  Duration silence = std::chrono::hours(1);            // of it, after which it is looked for again
  Duration connect_timeout = std::chrono::seconds(1);  // for one attempt; a stop waits no longer
  Duration pause = std::chrono::milliseconds(200);     // between attempts
  bool was_there = false;                              // ps:0, as this shard's journal says
  Duration server_timeout = std::chrono::seconds(60);  // for a ps:0 that was there and is gone
};

/// Any thread may send. The callbacks run on the link's own thread; they are not called any more once the
/// destructor has begun to return.
class CoordinatorLink {
 public:
  struct Callbacks {
    /// What is said first on each connection; nullopt: nothing any more, this was the last. Takes as long as
    /// it needs, but not after a stop.
    std::function<std::optional<ps::ShardJoin>(const std::stop_token& stop)> join;
    std::function<void(const ps::Coordination&)> on_coordination;
    /// ps:0 refuses this shard, or has been gone for too long: there will be no more.
    std::function<void(const absl::Status&)> on_lost;
  };

  CoordinatorLink(CoordinatorLinkOptions options, Callbacks callbacks);
  ~CoordinatorLink();

  /// While there is no connection: nothing happens.
  void SendJoin(const ps::ShardJoin& join);
  void Send(const ps::ShardReport& report);

 private:
  void Run(const std::stop_token& stop);
  absl::Status Converse(int server, const std::stop_token& stop);
  void Send(ps::ClientHeader header);

  const CoordinatorLinkOptions options_;
  const Callbacks callbacks_;
  std::optional<TimePoint> last_heard_;  // of ps:0, ever
  std::mutex mutex_;
  std::shared_ptr<FrameQueue> queue_ = std::make_shared<FrameQueue>();  // of the connection, as that guarded
  std::unique_ptr<ShardConnection> connection_;
  std::jthread thread_;  // the last member: it uses the others
};

}  // namespace muster
