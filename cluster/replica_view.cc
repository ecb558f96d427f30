#include "cluster/replica_view.h"

#include <map>
#include <string>

#include "base/status.h"

namespace muster {
namespace {

// More than half, whatever the sum's last bits are: of two such sets one voter is in both.
constexpr double kMajority = 0.5 + 1e-9;

}  // namespace

ReplicaVotes VotesOf(const ClusterSpec& cluster, int shard) {
  const int backup = FirstBackupOf(shard, static_cast<int>(cluster.ps.size()));
  MUSTER_CHECK(backup != shard);
  std::vector<std::string> hosts;  // ranks, then the two servers
  for (int rank = 0; rank < cluster.rank_count(); ++rank) {
    const TaskId task = TaskOfRank(cluster, rank);
    hosts.push_back(HostOfAddress(cluster.addresses(task.role)[task.index]));
  }
  hosts.push_back(HostOfAddress(cluster.ps[shard]));
  hosts.push_back(HostOfAddress(cluster.ps[backup]));
  std::map<std::string, int> tasks;
  for (const std::string& host : hosts) ++tasks[host];
  ReplicaVotes votes;
  for (const std::string& host : hosts) {
    votes.ranks.push_back(1.0 / static_cast<double>(tasks[host]) / static_cast<double>(tasks.size()));
  }
  votes.backup = votes.ranks.back();
  votes.ranks.pop_back();
  votes.primary = votes.ranks.back();
  votes.ranks.pop_back();
  return votes;
}

void ReplicaView::Begin() {
  role_ = ReplicaRole::kPrimary;
  view_ = 1;
}

uint64_t ReplicaView::OfferBackup() {
  MUSTER_CHECK(role_ == ReplicaRole::kPrimary);
  has_backup_ = true;
  offered_ = proposed();
  Touch();
  return offered_;
}

void ReplicaView::AddBackup(uint64_t view) {
  MUSTER_CHECK(role_ == ReplicaRole::kPrimary && has_backup_ && view >= view_);
  offered_ = 0;
  view_ = view;
}

void ReplicaView::Follow(uint64_t view) {
  MUSTER_CHECK(view >= view_ && role_ != ReplicaRole::kPrimary);
  role_ = ReplicaRole::kBackup;
  view_ = view;
  Touch();
}

void ReplicaView::StepDown() {
  role_ = ReplicaRole::kNone;
  has_backup_ = false;
  offered_ = 0;
  promises_.clear();
}

bool ReplicaView::Lost() {
  out_of_touch_ = true;
  return BeginNextIfPromised();
}

void ReplicaView::Touch() {
  out_of_touch_ = false;
  promises_.clear();
}

bool ReplicaView::Promise(int rank, uint64_t view) {
  if (!is_proposing() || view != proposed()) return false;
  promises_.insert(rank);
  return BeginNextIfPromised();
}

bool ReplicaView::BeginNextIfPromised() {
  if (!is_proposing()) return false;
  double sum = own_vote_;
  for (const int rank : promises_) sum += votes_[rank];
  if (sum < kMajority) return false;
  role_ = ReplicaRole::kPrimary;
  view_ = proposed();
  has_backup_ = false;
  offered_ = 0;
  promises_.clear();
  return true;
}

bool ReplicaBallot::Promise(uint64_t view, int server, uint64_t earlier, int primary, bool is_sole) {
  if ((view_ == 0 && !is_sole) || view <= earlier || !Follow(earlier, primary)) return false;
  if (promised_ > view_ && promised_to_ != server) return false;
  promised_ = view;
  promised_to_ = server;
  return true;
}

void ReplicaBallot::GiveBack(uint64_t view, int server) {
  if (promised_ <= view && promised_to_ == server) promised_ = 0;
}

bool ReplicaBallot::Follow(uint64_t view, int server) {
  if (view < view_ || (view == view_ && server != primary_)) return false;
  view_ = view;
  primary_ = server;
  return true;
}

}  // namespace muster
