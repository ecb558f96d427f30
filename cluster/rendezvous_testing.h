// A rendezvous, and the ranks that report to it, at times that a test chooses.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "cluster/rendezvous.h"

namespace muster {

class RendezvousTest : public testing::Test {
 protected:
  static std::vector<std::string> Names(int ranks) {
    std::vector<std::string> names;
    for (int rank = 0; rank < ranks; ++rank) names.push_back("worker:" + std::to_string(rank));
    return names;
  }
  void Make(int ranks, std::optional<int> min_ranks) {
    rendezvous_.emplace(RendezvousOptions{.rank_names = Names(ranks), .min_ranks = min_ranks}, now_);
    states_.assign(ranks, {});
  }
  void Resize(int ranks) {
    rendezvous_->Resize(Names(ranks), now_);
    states_.resize(ranks);
  }
  void Come(int rank, RankState state = {}) {
    states_[rank] = state;
    if (group().is_over) states_[rank].over = group().number;
    rendezvous_->Connect(rank, ++last_process_, now_);
    Report(rank);
  }
  // Its connection has broken, and it makes another one.
  void Reconnect(int rank) {
    rendezvous_->Disconnect(rank, "it has connected anew", now_);
    rendezvous_->Connect(rank, last_process_, now_);
    Report(rank);
  }
  void Report(int rank) { rendezvous_->Report(rank, states_[rank], now_); }
  void Enter() {
    for (const int rank : group().ranks) {
      states_[rank] = {.group = group().number, .is_in_it = true, .has_met = true};
      Report(rank);
    }
  }
  // With the parameters of a step that was made in this group.
  void Leave(int rank, uint64_t step, std::optional<int> unreachable = {}) {
    states_[rank].is_in_it = false;
    states_[rank].parameters = {.step = step, .group = states_[rank].group};
    states_[rank].unreachable = unreachable;
    Report(rank);
  }
  // In an operation in which it has waited so long for the others, and has given up, or been interrupted.
  void LeaveWaiting(int rank, uint64_t step, Duration waited, bool has_timed_out = false) {
    states_[rank].waited = waited;
    states_[rank].has_timed_out = has_timed_out;
    Leave(rank, step);
  }
  // All meet, and make no step, since one of them takes longer than others wait.
  void Stall(int late, uint64_t step) {
    Enter();
    const std::vector<int> ranks = group().ranks;
    Pass(std::chrono::seconds(5));
    for (const int rank : ranks) {
      if (rank != late) LeaveWaiting(rank, step, std::chrono::seconds(5), /*has_timed_out=*/true);
    }
    LeaveWaiting(late, step, {});
  }
  // With signs of life of all who are live.
  void Pass(Duration time) {
    const TimePoint until = now_ + time;
    while (now_ < until) {
      now_ = std::min(until, now_ + std::chrono::milliseconds(250));
      for (size_t rank = 0; rank < states_.size(); ++rank) {
        if (rendezvous_->is_live(rank)) Report(rank);
      }
      rendezvous_->Tick(now_);
    }
  }
  const RankGroup& group() const { return rendezvous_->group(); }
  std::string End() const { return rendezvous_->end() ? rendezvous_->end()->ToString() : ""; }

  TimePoint now_ = TimePoint() + std::chrono::hours(1);
  uint64_t last_process_ = 0;
  std::optional<Rendezvous> rendezvous_;
  std::vector<RankState> states_;
};

}  // namespace muster
