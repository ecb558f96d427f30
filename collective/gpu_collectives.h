// GpuCollectives: what a module for GPUs can do between the ranks of a group, as a program without CUDA sees
// it.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collective/interrupt.h"
#include "collective/queued_collective.h"

namespace muster {

/// By which the ranks of one group find each other, and no others.
using GpuGroupId = std::array<std::byte, 128>;

struct GpuGroupOptions {
  int rank = 0;
  std::vector<std::string> names;                        // of all ranks, for messages
  Duration connect_timeout = std::chrono::minutes(1);    // until all ranks have met
  Duration operation_timeout = std::chrono::minutes(1);  // of each operation
};

/// Of one GPU. Any thread; what it makes is independent of it.
class GpuCollectives {
 public:
  virtual ~GpuCollectives() = default;

  /// Where the GPU is in this host, the same for all processes that use it: "0000:41:00.0".
  virtual const std::string& gpu() const = 0;

  /// On one rank, for a group that is to meet; that rank stays while it does.
  virtual absl::StatusOr<GpuGroupId> MakeGroupId() = 0;

  /// Meets the others. Unavailable, DeadlineExceeded: not all have met; Internal: this GPU, or its library,
  /// has failed. Cancelled once `interrupt`, of this group alone and alive for longer than it, is set. The
  /// backend counts as traffic what would go round a ring.
  virtual absl::StatusOr<std::unique_ptr<CollectiveBackend>> Meet(const GpuGroupOptions& options,
                                                                  const GpuGroupId& id,
                                                                  const Interrupt& interrupt) = 0;
};

}  // namespace muster
