// How the ranks of a group find each other: each listens at its address, and dials those of lower rank.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/wake.h"
#include "cluster/cluster_spec.h"
#include "collective/interrupt.h"
#include "collective/message_stream.h"
#include "collective/peer_stream.h"
#include "proto/collective.pb.h"

namespace muster {

/// A rank of a group.
struct GroupMember {
  TaskId task;
  std::string address;                      // "host:port"
  std::function<std::string()> where = {};  // it is now; any thread. Empty: it stays at `address`
  std::string Address() const { return where ? where() : address; }
};

/// What a rank says of itself and its group, and expects of the others.
struct GroupIdentity {
  std::vector<GroupMember> members;  // by rank
  int rank = 0;
  uint64_t generation = 0;
  /// Of all that has to be the same everywhere for sums to mean something: what the parameters are, how they
  /// are cut into operations, how they are updated.
  uint64_t fingerprint = 0;
};

/// What a rank says first, to a group; and what speaks against one who says this. Empty: nothing.
collective::PeerHello MakeHello(const GroupIdentity& ours);
std::string Refusal(const GroupIdentity& ours, const collective::PeerHello& theirs);
/// The same, but for how many they are.
std::string FingerprintRefusal(const GroupIdentity& ours, const collective::PeerHello& theirs);

/// Takes the connections of other ranks; it outlives groups. Any thread.
class PeerListener {
 public:
  /// Somebody who has said hello, and waits for an answer.
  struct Arrival {
    collective::PeerHello hello;
    MessageStream messages;
  };

  /// At the data address "host:port" alone. `tls` null: plain. AlreadyExists: the port is taken.
  static absl::StatusOr<std::unique_ptr<PeerListener>> Listen(const std::string& address,
                                                              std::shared_ptr<TlsContext> tls);
  ~PeerListener();

  /// Listens there as well. Fails as Listen does.
  absl::Status ListenAlso(const std::string& address);

  /// Where it has listened first, with the port that it has, if 0 was asked for.
  const std::string& address() const { return address_; }
  const std::shared_ptr<TlsContext>& tls() const { return tls_; }

  /// The connection that `rank` has dialed, or dials until `deadline`. FailedPrecondition, here and there: it
  /// belongs to another configuration; the text has both fingerprints. DeadlineExceeded, Cancelled by
  /// `interrupt`. Who has another task's certificate is hung up on.
  absl::StatusOr<std::unique_ptr<PeerStream>> Accept(const GroupIdentity& ours, int rank, TimePoint deadline,
                                                     const Interrupt& interrupt);

  /// Where those go who want to talk to the rendezvous, on the listener's thread; empty, as at first: they
  /// are hung up on.
  void SetRendezvous(std::function<void(Arrival)> to_rendezvous);

 private:
  // A connection that has not said yet what it is.
  struct Pending {
    MessageStream messages;
    TimePoint deadline;
    TimePoint heard;  // that anything came
    bool has_greeted = false;
  };
  PeerListener(UniqueFd socket, std::string address, std::shared_ptr<TlsContext> tls);
  void Run(const std::stop_token& stop);
  void TakeSockets();
  void AcceptPending(const UniqueFd& socket);
  bool GoOn(Pending& pending);
  void Arrive(Pending& pending, collective::PeerHello hello);

  const std::string address_;
  const std::shared_ptr<TlsContext> tls_;
  Wake wake_;
  std::vector<UniqueFd> sockets_;  // the thread's
  std::list<Pending> pending_;     // likewise

  std::mutex mutex_;  // guards the following
  std::vector<UniqueFd> new_sockets_;
  std::condition_variable has_arrived_;
  std::list<Arrival> arrivals_;  // the last one of each rank
  std::function<void(Arrival)> to_rendezvous_;

  std::jthread thread_;  // the last member: it uses the others
};

/// A connection to `member`, which has answered this hello; all addresses of its name are tried in turn, and
/// again until `deadline`, or once where looking it up takes longer. FailedPrecondition: it has refused it;
/// PermissionDenied: another task listens there, for good; Unavailable: it cannot be reached;
/// DeadlineExceeded: it can, but does not answer; InvalidArgument: it does not speak this protocol; Cancelled
/// by `interrupt`; as sockets fail, where this process can make none.
absl::StatusOr<std::unique_ptr<PeerStream>> Dial(const GroupMember& member,
                                                 const collective::PeerHello& hello, const TlsContext* tls,
                                                 TimePoint deadline, const Interrupt& interrupt);

/// "worker:1 (10.0.0.2:2222)", for messages.
std::string Describe(const GroupMember& member);

}  // namespace muster
