// PeerLinks: connections to other ranks, and traffic in both directions at once.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>

#include "base/clock.h"
#include "base/status.h"
#include "collective/collective.h"
#include "collective/interrupt.h"
#include "collective/peer_listener.h"
#include "collective/peer_stream.h"
#include "collective/spin.h"

namespace muster {

/// What goes to one peer while something comes from another, or from the same one: a state machine that
/// PeerLinks feeds. Memory it hands out stays valid until the next call.
class Flow {
 public:
  virtual ~Flow() = default;
  /// What may be sent now; empty: nothing before more has been received, or at all. More may come behind it
  /// from call to call, never less, until some is sent.
  virtual std::span<const std::byte> ToSend() = 0;
  virtual void Sent(size_t bytes) = 0;
  /// Where to put what comes; empty: all is there.
  virtual std::span<std::byte> Room() = 0;
  virtual void Received(size_t bytes) = 0;
  /// Everything is sent and received.
  virtual bool is_done() const = 0;
};

/// One thread at a time.
class PeerLinks {
 public:
  /// `interrupt` lives longer. Operations fail when nothing has moved for `timeout`.
  PeerLinks(GroupIdentity identity, PeerListener& listener, Duration timeout, const Interrupt& interrupt);

  /// Connects to those of `ranks` to which there is no connection yet. Each of them names this rank, too, in
  /// a call that is as far as this one.
  absl::Status Connect(const std::set<int>& ranks, TimePoint deadline);

  /// Until the flow is done. Unavailable: a peer that the text names has gone, or its host does not answer
  /// any more; DeadlineExceeded: nothing came from the peer that it names.
  absl::Status Drive(Flow& flow, int send_to, int receive_from);

  /// Grows while an operation gets on, for others that wait until it is done. It lives longer; null: none.
  void CountProgress(std::atomic<uint32_t>* progress) { progress_ = progress; }

  /// How long the kernel of a rank that this one is connected to takes to answer, as far as ours knows.
  RoundTripTimes RoundTrip(int rank) const { return RoundTripOf(*streams_.at(rank)); }

  const GroupIdentity& identity() const { return identity_; }
  const Traffic& traffic() const { return traffic_; }

 private:
  absl::Status Sleep(const PeerStream& to, const PeerStream& from, bool sends, bool receives,
                     TimePoint deadline);

  const GroupIdentity identity_;
  PeerListener& listener_;
  const Duration timeout_;
  const Interrupt& interrupt_;
  std::map<int, std::unique_ptr<PeerStream>> streams_;
  Spin spin_;
  std::atomic<uint32_t>* progress_ = nullptr;
  Traffic traffic_;
};

/// The place in its group of the rank that could not be reached, where that is why something failed: its
/// kernel, and not only the process, does not answer.
std::optional<int> UnreachablePosition(const absl::Status& status);

}  // namespace muster
