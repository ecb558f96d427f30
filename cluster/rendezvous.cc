#include "cluster/rendezvous.h"

#include <algorithm>
#include <limits>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

namespace muster {
namespace {

constexpr Duration kFirstWord = std::chrono::seconds(5);  // about who is missing; later ones are rarer
constexpr Duration kLongestSuspension = std::chrono::hours(24);

// That it has come to by training; 0: it has not. What a checkpoint has is no such step.
uint64_t MadeStep(const RankState& state) {
  return state.parameters && state.parameters->is_live ? state.parameters->step : 0;
}

}  // namespace

Rendezvous::Rendezvous(const RendezvousOptions& options, TimePoint now)
    : options_(options),
      first_ranks_(std::min(options.first_ranks.value_or(std::numeric_limits<int>::max()),
                            static_cast<int>(options.rank_names.size()))),
      names_(options.rank_names),
      members_(options.rank_names.size()),
      next_number_(options.first_number),
      over_since_(now),
      came_(now) {
  MUSTER_CHECK(!members_.empty() && options.min_ranks.value_or(1) >= 1);
}

void Rendezvous::Connect(int rank, uint64_t process, TimePoint now) {
  Member& member = members_[rank];
  if (member.is_live) Lose(rank, "another process of it has come", now);
  member.state = {};
  member.is_coming = true;
  member.came = now;
  member.refusal.clear();
  if (std::exchange(member.process, process) == process) return;
  if (std::exchange(member.lateness, {}) > Duration::zero()) member.suspended_until = {};
}

void Rendezvous::Report(int rank, const RankState& state, TimePoint now) {
  Member& member = members_[rank];
  const bool was_missing = member.was_live && !member.is_live;
  const auto has_left = [&] { return member.state.group == group_.number && !member.state.is_in_it; };
  const bool had_left = has_left();
  if (!member.was_live) came_ = now;
  member.is_live = member.was_live = true;
  member.is_coming = false;
  member.last_heard = now;
  member.state = state;
  next_number_ = std::max(next_number_, state.group + 1);
  if (was_missing) notices_.push_back(absl::StrCat(names_[rank], " is back"));
  if (IsInGroup(rank) && state.group == group_.number && state.has_met) has_met_ = true;
  if (IsInGroup(rank) && has_left() && !had_left) {
    if (state.unreachable) Suspend(rank, *state.unreachable, now);
    if (!group_.is_over) {
      if (state.has_timed_out) timed_out_at_ = now;
      GiveUp(rank,
             absl::StrCat(names_[rank], state.has_timed_out
                                            ? " has waited in vain for others: its log says for whom"
                                            : " has left the group: its log says why"),
             now);
    }
  }
  Consider(now);
}

void Rendezvous::Refuse(int rank, const std::string& refusal, TimePoint now) {
  Member& member = members_[rank];
  if (member.is_live || member.is_coming) return;
  if (member.refusal.empty()) member.refused_at = now;
  member.refusal = refusal;
}

void Rendezvous::Disconnect(int rank, const std::string& why, TimePoint now) {
  Member& member = members_[rank];
  if (member.is_live) Lose(rank, why, now);
  if (std::exchange(member.is_coming, false)) {
    member.why_lost = why;
    member.awaited_until = now + options_.settle;
  }
  Consider(now);
}

void Rendezvous::Tick(TimePoint now) {
  for (int rank = 0; rank < rank_count(); ++rank) {
    const Member& member = members_[rank];
    if (!member.is_live || now - member.last_heard < options_.lease) continue;
    Lose(rank, absl::StrFormat("nothing was heard of it for %.1f s", ToSeconds(options_.lease)), now);
  }
  Consider(now);
}

void Rendezvous::Resize(std::vector<std::string> rank_names, TimePoint now) {
  MUSTER_CHECK(!rank_names.empty());
  for (size_t rank = rank_names.size(); rank < names_.size(); ++rank) {
    const std::string text = absl::StrCat(names_[rank], " leaves the job");
    if (!end_ && !concluded_) notices_.push_back(text);
    if (!group_.is_over && IsInGroup(static_cast<int>(rank))) Finish(text, now);
  }
  names_ = std::move(rank_names);
  members_.resize(names_.size());
  first_ranks_ = std::min(first_ranks_, rank_count());
  Consider(now);
}

void Rendezvous::Conclude(uint64_t step) {
  concluded_ = step;
  ++version_;
}

void Rendezvous::End(const absl::Status& status) {
  if (end_) return;
  end_ = status;
  ++version_;
}

std::vector<std::string> Rendezvous::TakeNotices() { return std::exchange(notices_, {}); }

bool Rendezvous::IsInGroup(int rank) const {
  return std::binary_search(group_.ranks.begin(), group_.ranks.end(), rank);
}

// Of whom a group could be.
std::vector<int> Rendezvous::LiveRanks(TimePoint now) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < rank_count(); ++rank) {
    const Member& member = members_[rank];
    if (member.is_live && now >= member.suspended_until && !IsLateStill(rank)) ranks.push_back(rank);
  }
  return ranks;
}

// Others went on without it since it was late, and it is in the group before this one still.
bool Rendezvous::IsLateStill(int rank) const {
  const Member& member = members_[rank];
  return member.lateness > Duration::zero() && member.state.is_in_it && !IsInGroup(rank);
}

bool Rendezvous::MayJoin(int rank, TimePoint now) const {
  const Member& member = members_[rank];
  // What it has reported may be from before it heard of its group.
  const bool may_be_in_it =
      IsInGroup(rank) && std::max(member.state.group, member.state.over) < group_.number;
  return member.is_live && !member.state.is_in_it && !may_be_in_it && now >= member.suspended_until;
}

bool Rendezvous::AreAllOfTheFirst(const std::vector<int>& ranks) const {
  const auto first = std::ranges::count_if(ranks, [&](int rank) { return rank < first_ranks_; });
  return first == first_ranks_;
}

bool Rendezvous::AreEnough(const std::vector<int>& ranks) const {
  if (!options_.min_ranks) return AreAllOfTheFirst(ranks);
  return static_cast<int>(ranks.size()) >= std::min(*options_.min_ranks, rank_count());
}

// Whether this job has had a group, under this rank 0 or the one before.
bool Rendezvous::HasBegun() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.is_live && member.state.group > 0; }) ||
         group_.number > 0;
}

// A mistake that nobody else will mend.
bool Rendezvous::EndForRefusal(TimePoint now) {
  if (options_.min_ranks || HasBegun()) return false;
  for (int rank = 0; rank < first_ranks_; ++rank) {
    const Member& member = members_[rank];
    if (member.refusal.empty() || now < member.refused_at + options_.correction) continue;
    End(FailedPrecondition("%s was refused: %s", names_[rank], member.refusal));
    return true;
  }
  return false;
}

TimePoint Rendezvous::Deadline() const {
  if (HasBegun()) return over_since_ + options_.return_timeout;
  TimePoint deadline = over_since_ + options_.connect_timeout;
  // Who has connected in time has come, and has as long as any step to get ready.
  for (const Member& member : members_) {
    if (member.is_coming) deadline = std::max(deadline, member.came + options_.return_timeout);
  }
  return deadline;
}

void Rendezvous::Lose(int rank, const std::string& why, TimePoint now) {
  Member& member = members_[rank];
  member.is_live = false;
  member.why_lost = why;
  // When all is done others may still be at the last thing that they do together.
  if (end_ || concluded_) return;
  const std::string text = absl::StrCat(names_[rank], " has gone: ", why);
  notices_.push_back(text);
  if (!group_.is_over && IsInGroup(rank)) Finish(text, now);
}

// They do not reach each other.
void Rendezvous::Suspend(int rank, int other, TimePoint now) {
  if (other < 0 || other >= rank_count() || !members_[other].is_live) return;
  const int higher = std::max(rank, other);
  const std::string text = absl::StrCat(names_[rank], " does not reach ", names_[other]);
  notices_.push_back(text);
  if (!group_.is_over) GiveUp(rank, text, now);
  std::vector<int> rest = LiveRanks(now);
  std::erase(rest, higher);
  if (!AreEnough(rest)) return;
  members_[higher].suspended_until = now + options_.suspension;
  is_stuck_ = false;
}

void Rendezvous::Finish(const std::string& why, TimePoint now) {
  group_.is_over = true;
  group_.why = why;
  if (has_met_) over_since_ = now;
  ++version_;
}

// One of its own has left it, and in the next one the same might happen. Those that make no step, one after
// the other, share the time in which there has to be one. Not the first, since a step may take longer than
// that; nor the second, if it was only a connection that broke.
void Rendezvous::GiveUp(int rank, const std::string& why, TimePoint now) {
  const RankState& state = members_[rank].state;
  const uint64_t step = MadeStep(state);
  barren_ = step <= step_ ? barren_ + 1 : 0;
  const TimePoint before = over_since_;
  Finish(why, now);
  is_stuck_ = barren_ > (state.has_timed_out ? 1 : 2);
  if (is_stuck_) over_since_ = before;
}

// Those who live, and for whom others have waited until they gave up. In a ring each waits for the one before
// it; who kept all of them waiting has itself waited least, or computes still. Who came late, but before that
// one, has waited for a while: it is not to blame. False: it is not known yet.
bool Rendezvous::FindWhoIsLate(TimePoint now) {
  if (!timed_out_at_) return true;
  std::vector<int> there;
  const auto waited = [&](int rank) {
    const RankState& state = members_[rank].state;
    return state.is_in_it ? Duration::zero() : state.waited;
  };
  Duration longest{}, shortest = Duration::max();
  for (const int rank : group_.ranks) {
    if (rank >= rank_count() || !members_[rank].is_live) continue;
    const RankState& state = members_[rank].state;
    if (state.group != group_.number) continue;
    if (state.is_in_it && now < *timed_out_at_ + options_.lease) return false;  // it may not have heard of it
    there.push_back(rank);
    longest = std::max(longest, waited(rank));
    shortest = std::min(shortest, waited(rank));
  }
  timed_out_at_.reset();
  std::erase_if(there, [&](int rank) {
    return waited(rank) >= longest / 2 || waited(rank) - shortest > options_.lease;
  });
  if (!there.empty()) SuspendLate(there, longest, now);
  return true;
}

void Rendezvous::SuspendLate(const std::vector<int>& late, Duration waited, TimePoint now) {
  std::vector<std::string> names;
  for (const int rank : late) names.push_back(names_[rank]);
  group_.why = absl::StrFormat("others have waited %s in vain for %s, which %s", FormatAge(waited),
                               absl::StrJoin(names, ", "), late.size() == 1 ? "lives" : "live");
  std::vector<int> rest = LiveRanks(now);
  std::erase_if(rest, [&](int rank) { return std::binary_search(late.begin(), late.end(), rank); });
  if (!AreEnough(rest)) {
    notices_.push_back(group_.why);
    return;
  }
  const bool has_made_steps = std::any_of(group_.ranks.begin(), group_.ranks.end(), [&](int rank) {
    return rank < rank_count() && MadeStep(members_[rank].state) > step_;
  });
  Duration longest{};
  for (const int rank : late) {
    Member& member = members_[rank];
    const Duration least = std::max(options_.suspension, options_.return_timeout);
    // So that waiting for it takes ever less of the time. But rank 0 is needed to conclude.
    member.lateness = rank == 0        ? options_.suspension
                      : has_made_steps ? least
                                       : std::max(least, std::min(2 * member.lateness, kLongestSuspension));
    member.suspended_until = now + member.lateness;
    longest = std::max(longest, member.lateness);
  }
  notices_.push_back(absl::StrFormat("%s: they go on without for %s", group_.why, FormatAge(longest)));
  is_stuck_ = false;
  over_since_ = now;
}

void Rendezvous::Consider(TimePoint now) {
  if (end_ || concluded_ || EndForRefusal(now) || !FindWhoIsLate(now)) return;
  if (!AreEnough(LiveRanks(now))) {
    for (Member& member : members_) {
      if (member.lateness > Duration::zero()) member.suspended_until = {};
    }
  }
  std::vector<int> ranks;
  bool all_have_left = true, has_state = false;
  for (int rank = 0; rank < rank_count(); ++rank) {
    const Member& member = members_[rank];
    if (now >= member.suspended_until) members_[rank].suspended_until = TimePoint();
    if (MayJoin(rank, now)) {
      ranks.push_back(rank);
      has_state = has_state || member.state.parameters;
    } else if (member.is_live && now >= member.suspended_until && !IsLateStill(rank)) {
      all_have_left = false;
    }
  }
  if (!group_.is_over) {
    for (const int rank : ranks) {
      if (IsInGroup(rank)) continue;
      Finish(absl::StrCat(names_[rank], " takes part from now on"), now);
      break;
    }
    return;
  }
  const auto is_awaited = [&](const Member& member) {
    return member.is_coming || now < member.awaited_until;
  };
  const bool may_begin = !HasBegun() && std::ranges::none_of(members_, is_awaited);
  const bool are_enough = AreEnough(ranks);
  const bool are_settled = group_.number > 0 || now >= over_since_ + options_.settle;
  // Others than the first may know of groups that there were under another rank 0.
  const bool are_all = static_cast<int>(ranks.size()) == rank_count() ||
                       (may_begin && are_settled && are_enough && AreAllOfTheFirst(ranks));
  const bool is_last_call = options_.min_ranks && may_begin && now >= came_ + options_.last_call;
  const bool is_time = now >= Deadline();
  if (is_time && group_.number > 0 && (!has_met_ || is_stuck_)) {
    End(DeadlineExceeded("%s: tried for %s in vain", group_.why, FormatAge(now - over_since_)));
  } else if (are_all || (are_enough && (is_time || is_last_call ||
                                        (all_have_left && has_state && HasBegun() && are_settled)))) {
    Form(std::move(ranks), now);
  } else if (!is_time) {
    SayWhoIsMissing(now);
  } else {
    End(DeadlineExceeded("%s: waited %s in vain", DescribeMissing(), FormatAge(Deadline() - over_since_)));
  }
}

void Rendezvous::Form(std::vector<int> ranks, TimePoint now) {
  const auto parameters = [&](int rank) { return members_[rank].state.parameters; };  // none is lowest
  const int source = *std::max_element(ranks.begin(), ranks.end(),
                                       [&](int a, int b) { return parameters(a) < parameters(b); });
  const bool all_have_it = std::all_of(ranks.begin(), ranks.end(),
                                       [&](int rank) { return parameters(rank) == parameters(source); });
  if (HasBegun() || static_cast<int>(ranks.size()) < rank_count()) {
    const std::string from = parameters(source) ? absl::StrCat("step ", parameters(source)->step)
                                                : "the beginning, since nobody has later parameters";
    notices_.push_back(
        absl::StrCat("going on from ", from, " with ", ranks.size(), " of ", rank_count(), " workers"));
  }
  if (group_.number == 0) over_since_ = now;  // from now on it is waited for one that meets
  const uint64_t step = parameters(source) ? parameters(source)->step : 0;
  if (step > std::exchange(step_, step)) barren_ = 0;
  group_ = {
      .number = next_number_++, .ranks = std::move(ranks), .is_over = false, .why = std::move(group_.why)};
  has_met_ = is_stuck_ = false;
  if (!all_have_it) group_.source = source;
  silence_ = {};
  ++version_;
}

void Rendezvous::SayWhoIsMissing(TimePoint now) {
  if (silence_ == Duration::zero()) {
    silence_ = kFirstWord;
    next_word_ = now + silence_;
  }
  if (now < next_word_) return;
  silence_ *= 2;
  next_word_ = now + silence_;
  if (const std::string missing = DescribeMissing(); !missing.empty()) {
    notices_.push_back(absl::StrCat("waiting for others: ", missing));
  }
}

std::string Rendezvous::DescribeMissing() const {
  std::string text;
  for (int rank = 0; rank < rank_count(); ++rank) {
    const Member& member = members_[rank];
    const std::string why = !member.refusal.empty() ? "was refused: " + member.refusal
                            : member.is_coming      ? "has connected, but is not ready yet"
                            : !member.is_live && member.why_lost.empty() ? "has not connected"
                            : !member.is_live                            ? "has gone: " + member.why_lost
                            : member.state.is_in_it ? "is still busy with its step or an evaluation"
                            : member.suspended_until == TimePoint() ? ""
                            : member.lateness > Duration::zero()    ? "stays out, since it was late"
                                                                    : "is not reached by another one";
    if (!why.empty()) absl::StrAppend(&text, text.empty() ? "" : "; ", names_[rank], " ", why);
  }
  return text;
}

}  // namespace muster
