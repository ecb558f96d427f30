// The native collective backend: TCP, with TLS, between hosts, and shared memory within one.
#pragma once

#include <memory>

#include "collective/collective.h"
#include "collective/peer_listener.h"

namespace muster {

struct NativeOptions {
  GroupIdentity identity;
  Duration connect_timeout = std::chrono::minutes(1);    // until all ranks have met
  Duration operation_timeout = std::chrono::minutes(1);  // of each operation
  bool shares_memory = true;  // false: ranks of one host as if each were on a host of its own
  /// Set, unless null, where ranks of this host could not share memory: to try again costs each group
  /// seconds.
  bool* memory_has_failed = nullptr;
};

/// Meets the other ranks. On a host with several of them, of one user and network namespace, sums are made
/// in shared memory first, and one of them exchanges them with the other hosts. `listener` lives longer than
/// this call. Fails as PeerListener::Accept and Dial do, naming the rank. Cancelled once `interrupt`, of this
/// group alone and alive for longer than it, is set.
absl::StatusOr<std::unique_ptr<Collective>> MakeNative(const NativeOptions& options, PeerListener& listener,
                                                       Interrupt& interrupt);

}  // namespace muster
