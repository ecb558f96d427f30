// ReplicaView: which of the two servers of a shard may speak for it.
//
// A replicated shard is on two servers. Its primary answers nothing before the backup has what the answer
// follows from. When one of the two is out of touch, the other goes on alone: that is the next view (Oki and
// Liskov, "Viewstamped replication", 1988). Both may think so of each other, so a view needs the promises of
// a majority. The voters are the workers, which have to come to the new primary anyway, and the two servers.
// A host has one vote, which its tasks share: so those that a lost host leaves behind are enough where there
// are three hosts.
//
// Who has promised a view to one server promises none to the other until it knows what became of that: the
// server gives it back, when the other one is in touch again, or a later view has begun. A worker that knows
// of no view is a new process, and an earlier one may have promised: it does only if there was none. It may
// have joined, and have lost the answer together with the server that let it in.
//
// Both classes are pure: no threads, sockets or clocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "cluster/cluster_spec.h"

namespace muster {

/// The server that has the backup of a shard at first; its primary is at first the server of its number.
inline int FirstBackupOf(int shard, int shard_count) { return (shard + 1) % shard_count; }

/// What the voters of one shard weigh; all of them together 1.
struct ReplicaVotes {
  std::vector<double> ranks;
  double primary = 0, backup = 0;  // the servers that are so at first
};

/// Of a cluster with two servers at least. Tasks with the same address, ports aside, are on one host.
ReplicaVotes VotesOf(const ClusterSpec& cluster, int shard);

enum class ReplicaRole {
  kNone,     // it has nothing that anybody could go on with
  kBackup,   // it has all that the primary has acknowledged
  kPrimary,  // it may acknowledge: with a backup what that has, too
};

/// A server's side. One thread at a time.
class ReplicaView {
 public:
  ReplicaView(std::vector<double> votes_of_ranks, double own_vote)
      : votes_(std::move(votes_of_ranks)), own_vote_(own_vote) {}

  ReplicaRole role() const { return role_; }
  uint64_t view() const { return view_; }
  /// As a primary: there is, or may be, a backup that could go on without it.
  bool has_backup() const { return has_backup_; }
  /// It has to do without the other, which takes promises of proposed().
  bool is_proposing() const { return out_of_touch_ && (role_ == ReplicaRole::kBackup || has_backup_); }
  /// The next view, beyond the one that the other may have been offered.
  uint64_t proposed() const { return std::max(view_, offered_) + 1; }

  /// The shard begins here, and nobody else has any of it.
  void Begin();
  /// As a primary: from here on nothing is acknowledged that the other does not have. Returns the view in
  /// which it may be the backup. It is not before any that workers may have promised: once it has begun,
  /// nobody is bound by these any more.
  uint64_t OfferBackup();
  /// It has said that it is, in this view, at least that of this server.
  void AddBackup(uint64_t view);
  /// Has all that the primary of this view has acknowledged.
  void Follow(uint64_t view);
  /// Another server speaks for the shard.
  void StepDown();

  /// The other server is out of touch. True: so the next view has begun, with this one as its primary.
  bool Lost();
  /// It is in touch again: what was promised is given back.
  void Touch();
  /// A worker has promised this view to this server, and waits on it. True: as Lost().
  bool Promise(int rank, uint64_t view);
  /// It does not wait on it any more.
  void Withdraw(int rank) { promises_.erase(rank); }

 private:
  bool BeginNextIfPromised();

  std::vector<double> votes_;
  double own_vote_;
  ReplicaRole role_ = ReplicaRole::kNone;
  uint64_t view_ = 0;        // 0: it never had a part in one
  bool has_backup_ = false;  // or the other may be it without this one's knowledge
  uint64_t offered_ = 0;     // view, to the other, which has not said yet that it is in it; 0: none
  bool out_of_touch_ = false;
  std::set<int> promises_;  // ranks, of proposed()
};

/// A worker's side, for one shard. The two servers are 0 and 1. One thread at a time.
class ReplicaBallot {
 public:
  /// Of the shard's primary, as far as this worker has been told; 0: nothing yet.
  uint64_t view() const { return view_; }
  int primary() const { return primary_; }

  /// Promises this view to the server that asks for it, and says of an earlier one whose it is. `is_sole`:
  /// no other process of this rank has ever joined, as far as the server knows. False: it must not.
  bool Promise(uint64_t view, int server, uint64_t earlier, int primary, bool is_sole = false);
  /// The server gives back what it was promised.
  void GiveBack(uint64_t view, int server);
  /// A server says that it is the primary of this view. False: another one is, or a later view has begun:
  /// what this one says is not to be believed.
  bool Follow(uint64_t view, int server);

 private:
  uint64_t view_ = 0;
  int primary_ = 0;
  uint64_t promised_ = 0;  // view; 0: none
  int promised_to_ = 0;
};

}  // namespace muster
