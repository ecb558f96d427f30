// RendezvousClient: a rank's connection to the rendezvous. It reports what this rank does, and ends its group
// when that is over.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/wake.h"
#include "cluster/cluster_view.h"
#include "cluster/rendezvous.h"
#include "collective/peer_listener.h"

namespace muster {

struct RendezvousClientOptions {
  GroupIdentity all;                        // the job's ranks; members[0] is where the rendezvous is reached
  std::shared_ptr<const ClusterView> view;  // null: all stay where they are
  uint64_t incarnation = 0;
  Duration connect_timeout = std::chrono::minutes(5);  // at first
  Duration return_timeout = std::chrono::minutes(10);  // when it has been lost
};

/// What a rank is to do next.
struct RankOrders {
  RankGroup group;                    // to be in
  std::optional<uint64_t> concluded;  // nothing: all is done, in so many steps
};

/// How a rank comes to leave a group.
struct Departure {
  std::optional<int> unreachable;  // as those of RankState
  Duration waited{};
  bool has_timed_out = false;
};

/// One thread at a time. Reports nothing before the first Join or Fail. Fails for good: as Dial does, as the
/// rendezvous has ended the job, and with Aborted where another process of this task has come.
class RendezvousClient {
 public:
  RendezvousClient(RendezvousClientOptions options, std::shared_ptr<TlsContext> tls);
  ~RendezvousClient();

  /// Leaves the group that this rank was in, with these parameters, if it has any, and waits until it is
  /// one of another. `interrupt` is set when that is over.
  absl::StatusOr<RankOrders> Join(std::optional<ParametersVersion> parameters, const Departure& departure,
                                  std::shared_ptr<Interrupt> interrupt);
  /// The group can do something.
  void HasMet();
  /// Until all is done. Cancelled: its group is over before.
  absl::Status AwaitConclusion();
  /// Ends the job for all ranks, and waits until the rendezvous says so, but not for long.
  void Fail(const std::string& why);

  /// Why the group is over, where an operation has failed with `status`: Cancelled, or how the job has ended.
  /// The rendezvous hears of it at about the same time, and knows who was the first to go: it is waited for,
  /// up to two seconds; where it says nothing, so does the text. `is_reason`: `status` is, unless the
  /// rendezvous is about to say another.
  absl::Status Explain(const absl::Status& status, bool is_reason = false) const;

 private:
  // Both ends of a connection to the rendezvous: their addresses.
  struct Place {
    std::string there, own;
    friend bool operator==(const Place&, const Place&) = default;
  };
  Place PlaceNow() const;
  void Run(const std::stop_token& stop);
  void Talk(MessageStream messages, const Place& place, const std::stop_token& stop);
  collective::RankReport MakeReport();
  void Obey(const collective::GroupOrders& orders);
  void Lose(const std::string& why);
  void End(const absl::Status& status);
  absl::Status end() const { return {end_code_, end_}; }
  bool has_ended() const { return end_code_ != absl::StatusCode::kOk; }

  const RendezvousClientOptions options_;
  const std::shared_ptr<TlsContext> tls_;
  const uint64_t process_;
  Interrupt stop_;
  Wake wake_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  RankState state_;
  bool takes_part_ = false;    // it has joined, or failed: before that it has nothing to report
  bool is_to_report_ = false;  // before the next heartbeat
  std::string failure_;
  RankOrders orders_;  // no group: not known
  std::shared_ptr<Interrupt> interrupt_;
  std::optional<std::string> why_;  // its group is over; unset: it is not, as far as is known
  // A Status of its own for each thread: they share no reference count.
  absl::StatusCode end_code_ = absl::StatusCode::kOk;
  std::string end_;

  std::optional<ClusterView::Watch> watch_;
  std::jthread thread_;  // the last member: it uses the others
};

}  // namespace muster
