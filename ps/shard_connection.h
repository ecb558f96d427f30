// ShardConnection: one channel and one stream from a worker to one shard.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "proto/parameter_server.pb.h"
#include "ps/tls.h"
#include "ps/wire.h"

namespace muster {

struct ShardReply {
  ps::ServerHeader header;
  FloatPayload payload;
  uint64_t bytes = 0;  // of the whole frame
};

/// Used by one thread. Once an operation has failed with Unavailable the connection is over: make a new one.
class ShardConnection {
 public:
  /// Connects and opens the stream. Unavailable at the deadline, with the address.
  static absl::StatusOr<std::unique_ptr<ShardConnection>> Connect(const std::string& address, TaskId server,
                                                                  const std::optional<TlsIdentity>& tls,
                                                                  TimePoint deadline);
  ~ShardConnection();

  /// Starts to send a frame; what `payload` lies over must stay as it is until its answer has come, or this
  /// object is gone. Returns the frame's bytes.
  uint64_t Send(const ps::ClientHeader& header, const std::vector<grpc::Slice>& payload);

  /// The next frame from the server. Unavailable: the stream broke. DeadlineExceeded: nothing came.
  absl::StatusOr<ShardReply> Receive(TimePoint deadline);

 private:
  class Stream;
  ShardConnection(std::shared_ptr<grpc::Channel> channel, std::string address);

  std::shared_ptr<grpc::Channel> channel_;
  const std::string address_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace muster
