// What a worker's client is told of the job, its servers, and how long to wait for them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/cluster_view.h"
#include "cluster/tls_identity.h"
#include "kernels/parameter_layout.h"
#include "proto/parameter_server.pb.h"
#include "ps/transport.h"

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

}  // namespace muster
