#include "cluster/coordinator.h"

#include <absl/strings/str_join.h>

#include <algorithm>

namespace muster {

Coordinator::Coordinator(const CoordinatorOptions& options, TimePoint now)
    : options_(options),
      first_ranks_(std::min(options.first_ranks, static_cast<int>(options.rank_names.size()))),
      names_(options.rank_names),
      members_(names_.size()),
      shards_(options.shard_count),
      shard_steps_(options.shard_count),
      created_(now),
      last_chosen_(now) {
  MUSTER_CHECK(rank_count() > 0 && options.shard_count > 0);
  MUSTER_CHECK(options.aggregate > 0 && options.aggregate <= rank_count());
  for (Member& member : members_) member.last_heard = member.last_progress = now;
  for (int rank = first_ranks_; rank < rank_count(); ++rank) members_[rank].state = MemberState::kAbsent;
}

void Coordinator::SetRanks(std::vector<std::string> names) {
  MUSTER_CHECK(!names.empty());
  for (size_t rank = names.size(); rank < names_.size(); ++rank) {
    notices_.push_back({.state = MemberState::kLost, .text = names_[rank] + " has left the job"});
  }
  const bool are_fewer = names.size() < names_.size();
  names_ = std::move(names);
  members_.resize(names_.size(), {.state = MemberState::kAbsent});
  for (auto& [step, open] : open_) {
    open.holders.erase(open.holders.lower_bound(rank_count()), open.holders.end());
    std::erase_if(open.complete, [this](int rank) { return rank >= rank_count(); });
  }
  first_ranks_ = std::min(first_ranks_, rank_count());
  ++version_;
  if (are_fewer) EndIfAllAreDone();
}

void Coordinator::Join(int rank, TimePoint now) {
  Member& member = members_[rank];
  member.last_heard = member.last_progress = now;
  member.awaits = false;
  if (member.state == MemberState::kLive) return;
  const bool is_first = member.state == MemberState::kExpected || member.state == MemberState::kAbsent;
  SetState(rank, MemberState::kLive, is_first ? "" : "is back");
  BeginEpochIfNeeded(now);
  Choose(now);  // which may have to wait until the batch is shared with it
}

void Coordinator::Heard(int rank, TimePoint now) {
  Member& member = members_[rank];
  member.last_heard = now;
  if (member.state == MemberState::kLost && member.lost_in_silence) {
    member.last_progress = now;
    SetState(rank, MemberState::kLive, "is heard again");
  }
}

void Coordinator::Pushed(int rank, TimePoint now) {
  Member& member = members_[rank];
  member.last_heard = member.last_progress = now;
  member.awaits = false;
  if (member.state == MemberState::kLost) SetState(rank, MemberState::kLive, "contributes again");
}

void Coordinator::Await(int rank, uint64_t next_step, TimePoint now) {
  Member& member = members_[rank];
  member.last_heard = member.last_progress = now;
  member.awaits = true;
  member.finished_at = next_step;
  ++version_;
  Choose(now);  // as in Finish
}

void Coordinator::Finish(int rank, uint64_t next_step, TimePoint now) {
  members_[rank].last_heard = members_[rank].last_progress = now;
  if (members_[rank].state == MemberState::kFinished) return;
  members_[rank].finished_at = next_step;
  SetState(rank, MemberState::kFinished, "has finished");
  Choose(now);  // a step that waited only for this one goes on without it
  EndIfAllAreDone();
}

// Where batches are shared, one that is lost leaves nothing behind, since the others have made all of it: but
// the chief, which is rank 0, has the result still to write.
bool Coordinator::IsDone(int rank) const {
  const MemberState state = members_[rank].state;
  if (state == MemberState::kLost) {
    return rank >= first_ranks_ || (rank > 0 && options_.shares && HasAnyFinished());
  }
  return state == MemberState::kFinished || state == MemberState::kAbsent;
}

bool Coordinator::HasAnyFinished() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.state == MemberState::kFinished; });
}

void Coordinator::EndIfAllAreDone() {
  for (int rank = 0; rank < rank_count(); ++rank) {
    if (!IsDone(rank)) return;
  }
  if (!end_) end_ = absl::OkStatus();
}

void Coordinator::ShardJoin(int shard, const std::string& uuid, uint64_t epoch,
                            const std::set<CheckpointId>& checkpoints, TimePoint now,
                            uint64_t newest_common) {
  ShardProcess& known = shards_[shard];
  if (epoch_.number > 0 && known.uuid != uuid && epoch == epoch_.number) {
    if (!known.uuid.empty()) {
      notices_.push_back({.text = absl::StrFormat(
                              "another process of ps:%d goes on with all that the one before had", shard)});
    }
  } else if (epoch_.number > 0 && known.uuid != uuid) {
    why_next_epoch_ = absl::StrFormat("ps:%d has started again", shard);
    // Those who have finished wait to hear that it lasts (ps/shard_server.cc), and do it again.
    if (options_.may_go_back && end_ && end_->ok()) end_.reset();
  } else if (epoch_.number > 0 && epoch < epoch_.number && epoch_.step > 0 && !epoch_.goes_on &&
             !checkpoints.contains(begins_with_)) {
    why_next_epoch_ = absl::StrFormat("ps:%d cannot read its part of checkpoint %d", shard, epoch_.step);
  }
  known = {.uuid = uuid, .epoch = epoch, .checkpoints = checkpoints, .newest_common = newest_common};
  BeginEpochIfNeeded(now);
  newest_common_ = std::max(newest_common_, NewestCommon().step);
}

// Step 0: there is none.
CheckpointId Coordinator::NewestCommon() const {
  std::set<CheckpointId> common = shards_[0].checkpoints;
  for (const ShardProcess& shard : shards_) {
    std::erase_if(common, [&](const CheckpointId& id) { return !shard.checkpoints.contains(id); });
  }
  return common.empty() ? CheckpointId() : *common.rbegin();
}

bool Coordinator::AwaitsFirstRank(int rank) const {
  // Where shards know of an epoch, or have a checkpoint, the job has begun long ago.
  const auto is_anew = [](const ShardProcess& shard) {
    return shard.epoch == 0 && shard.checkpoints.empty();
  };
  return options_.begins_together && members_[rank].state == MemberState::kExpected &&
         std::ranges::all_of(shards_, is_anew);
}

void Coordinator::BeginEpochIfNeeded(TimePoint now) {
  const auto is_missing = [](const ShardProcess& shard) { return shard.uuid.empty(); };
  if (end_ || (epoch_.number > 0 && why_next_epoch_.empty()) || std::ranges::any_of(shards_, is_missing) ||
      !WhoIsToCome().empty()) {
    return;
  }
  // Shards that outlived the process of an earlier coordinator know its epochs.
  uint64_t last_number = epoch_.number;
  for (const ShardProcess& shard : shards_) last_number = std::max(last_number, shard.epoch);
  if (last_number > epoch_.number && why_next_epoch_.empty()) why_next_epoch_ = "ps:0 has started again";
  const CheckpointId newest = NewestCommon();
  if (!why_next_epoch_.empty() && !options_.may_go_back) {
    end_ = DataLoss("%s and lost its parameters, without a checkpoint: start the whole job again",
                    why_next_epoch_);
  } else if (newest.step == 0) {
    end_ = CheckBeginningAnew(last_number);
  }
  ++version_;
  if (end_) return;
  epoch_ = {.number = last_number == 0 ? options_.first_epoch : last_number + 1, .step = newest.step};
  begins_with_ = newest;
  newest_common_ = newest.step;
  if (!why_next_epoch_.empty()) {
    notices_.push_back({.state = MemberState::kLost,
                        .text = absl::StrFormat("%s: all go back to step %d", why_next_epoch_, epoch_.step)});
  } else if (epoch_.step > 0) {
    notices_.push_back({.text = absl::StrFormat("going on from the checkpoint of step %d", epoch_.step)});
  }
  why_next_epoch_.clear();
  for (Member& member : members_) {
    if (member.state == MemberState::kFinished) member.state = MemberState::kExpected;
  }
  BeginSteps(now);
  RenewLeases(now);
}

// From that of the epoch on.
void Coordinator::BeginSteps(TimePoint now) {
  next_step_ = epoch_.step;
  open_.clear();
  decisions_.clear();
  std::fill(shard_steps_.begin(), shard_steps_.end(), epoch_.step);
  last_chosen_ = now;
  for (Member& member : members_) {
    member.finished_at = 0;
    member.awaits = false;
  }
  if (options_.shares) participants_ = WhoIsAtWork();
}

std::vector<int> Coordinator::WhoIsAtWork() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < rank_count(); ++rank) {
    if (IsAtWork(rank)) ranks.push_back(rank);
  }
  return ranks;
}

bool Coordinator::IsEnding() const {
  return std::any_of(members_.begin(), members_.end(), [](const Member& member) {
    return member.state == MemberState::kFinished || (member.state == MemberState::kLive && member.awaits);
  });
}

bool Coordinator::IsParticipant(int rank) const {
  return std::binary_search(participants_.begin(), participants_.end(), rank);
}

bool Coordinator::IsBehind(int shard) const {
  return shards_[shard].epoch != epoch_.number || shard_steps_[shard] < next_step_;
}

// True: no step may be chosen now.
bool Coordinator::SharesAnew(TimePoint now) {
  if (!options_.shares || epoch_.number == 0 || !why_next_epoch_.empty()) return false;
  std::vector<int> wanted = WhoIsAtWork();
  if (end_ || IsEnding()) {
    for (const int rank : wanted) {
      if (IsParticipant(rank)) continue;
      participants_.insert(std::upper_bound(participants_.begin(), participants_.end(), rank), rank);
      ++version_;
    }
    return false;
  }
  if (wanted == participants_) return false;
  if (wanted.empty()) return true;  // whoever comes back makes it
  for (int shard = 0; shard < options_.shard_count; ++shard) {
    if (IsBehind(shard)) return true;
  }
  notices_.push_back({.text = absl::StrFormat("from step %d on each batch is shared by %d", next_step_,
                                              static_cast<int>(wanted.size()))});
  epoch_ = {.number = epoch_.number + 1, .step = next_step_, .goes_on = true};
  BeginSteps(now);
  ++version_;
  return true;
}

void Coordinator::Resume(const Epoch& epoch, uint64_t next_step,
                         const std::map<uint64_t, std::vector<int>>& decisions, uint64_t newest_common) {
  epoch_ = epoch;
  newest_common_ = newest_common;
  begins_with_.step = epoch.step;
  next_step_ = next_step;
  decisions_ = decisions;
  std::fill(shard_steps_.begin(), shard_steps_.end(), epoch.step);
  // They had joined, or were lost: who is silent for its lease is not waited for.
  for (Member& member : members_) member.state = MemberState::kLive;
  ++version_;
}

void Coordinator::RenewLeases(TimePoint now) {
  for (Member& member : members_) member.last_heard = member.last_progress = now;
}

// What was trained is not to be lost because a folder was forgotten. That some shards have a first checkpoint
// that others did not get to is no such case.
std::optional<absl::Status> Coordinator::CheckBeginningAnew(uint64_t last_number) const {
  const auto has_any = [](const ShardProcess& shard) { return !shard.checkpoints.empty(); };
  // A coordinator that has just started is told by those that the one before has left.
  uint64_t newest_common = newest_common_;
  for (const ShardProcess& shard : shards_) newest_common = std::max(newest_common, shard.newest_common);
  const bool is_before_the_first = last_number > 0 && newest_common == 0;
  if (is_before_the_first || std::none_of(shards_.begin(), shards_.end(), has_any)) return std::nullopt;
  std::vector<std::string> newest;
  for (size_t i = 0; i < shards_.size(); ++i) {
    newest.push_back(has_any(shards_[i]) ? absl::StrFormat("ps:%d has up to step %d", i,
                                                           shards_[i].checkpoints.rbegin()->step)
                                         : absl::StrFormat("ps:%d has none", i));
  }
  return FailedPrecondition(
      "the servers have no checkpoint in common (%s): bring the files together, or remove them to begin anew",
      absl::StrJoin(newest, ", "));
}

void Coordinator::Report(int shard, const ShardReport& report, TimePoint now) {
  if (report.epoch != epoch_.number || epoch_.number == 0) return;
  shards_[shard].epoch = report.epoch;
  shard_steps_[shard] = std::max(shard_steps_[shard], report.step);
  for (const HeldPart& part : report.held) {
    MUSTER_CHECK(part.rank >= 0);
    if (part.step < next_step_ || part.rank >= rank_count()) continue;  // of one that has left
    const auto [found, is_first] = open_.try_emplace(part.step);
    OpenStep& open = found->second;
    if (is_first) open.waiting_since = now;
    std::set<int>& holders = open.holders[part.rank];
    if (holders.insert(shard).second && static_cast<int>(holders.size()) == options_.shard_count) {
      open.complete.push_back(part.rank);
    }
  }
  const uint64_t applied = *std::min_element(shard_steps_.begin(), shard_steps_.end());
  decisions_.erase(decisions_.begin(), decisions_.lower_bound(applied));
  Choose(now);
}

void Coordinator::Choose(TimePoint now) {
  if (SharesAnew(now)) return;
  for (auto open = open_.find(next_step_); open != open_.end(); open = open_.find(next_step_)) {
    std::vector<int>& complete = open->second.complete;
    const int needed = NeededFor(complete);
    if (complete.empty() || static_cast<int>(complete.size()) < needed) return;
    std::vector<int> chosen(complete.begin(), complete.begin() + needed);
    std::sort(chosen.begin(), chosen.end());
    decisions_.emplace(next_step_++, std::move(chosen));
    last_chosen_ = now;
    ++version_;
    open_.erase(open);
    // What others wait for next, they have waited for since now.
    if (const auto next = open_.find(next_step_); next != open_.end()) next->second.waiting_since = now;
  }
}

bool Coordinator::IsAtWork(int rank) const {
  return members_[rank].state == MemberState::kExpected || members_[rank].state == MemberState::kLive;
}

// A bounded worker finishes ahead of the steps it has contributed to, and may be heard of before its parts
// are.
bool Coordinator::IsExpectedAt(int rank, uint64_t step) const {
  if (options_.shares && !IsParticipant(rank)) return false;
  const Member& member = members_[rank];
  const bool is_done = member.state == MemberState::kFinished || (IsAtWork(rank) && member.awaits);
  return is_done ? step < member.finished_at : IsAtWork(rank);
}

int Coordinator::NeededFor(const std::vector<int>& complete) const {
  int available = 0;
  for (int rank = 0; rank < rank_count(); ++rank) {
    if (IsExpectedAt(rank, next_step_) ||
        std::find(complete.begin(), complete.end(), rank) != complete.end()) {
      ++available;
    }
  }
  return options_.shares ? available : std::min(options_.aggregate, available);
}

int Coordinator::needed() const {
  const auto open = open_.find(next_step_);
  return std::max(1, NeededFor(open == open_.end() ? std::vector<int>() : open->second.complete));
}

bool Coordinator::IsComplete(int rank) const {
  const auto open = open_.find(next_step_);
  if (open == open_.end()) return false;
  const std::vector<int>& complete = open->second.complete;
  return std::find(complete.begin(), complete.end(), rank) != complete.end();
}

void Coordinator::SetState(int rank, MemberState state, std::string text) {
  members_[rank].state = state;
  if (!text.empty()) notices_.push_back({rank, state, names_[rank] + " " + text});
  ++version_;
}

// Since when others wait for something that this rank has to do; the end of time if they do not.
TimePoint Coordinator::WaitedForSince(int rank) const {
  const Member& member = members_[rank];
  if (const auto open = open_.find(next_step_); open != open_.end()) {
    const bool is_waited_for = IsExpectedAt(rank, next_step_) && !IsComplete(rank);
    return is_waited_for ? std::max(open->second.waiting_since, member.last_progress) : TimePoint::max();
  }
  const auto awaits = [](const Member& other) { return other.awaits && other.state == MemberState::kLive; };
  const bool is_awaited = !member.awaits && std::any_of(members_.begin(), members_.end(), awaits);
  return is_awaited ? member.last_progress : TimePoint::max();
}

TimePoint Coordinator::DeadlineOf(int rank) const {
  const Member& member = members_[rank];
  switch (member.state) {
    case MemberState::kExpected:
      return member.last_progress + options_.worker_timeout;
    case MemberState::kLive: {
      const TimePoint silent = member.last_heard + options_.lease;
      const TimePoint since = WaitedForSince(rank);
      return since == TimePoint::max() ? silent : std::min(silent, since + options_.worker_timeout);
    }
    case MemberState::kFinished:
    case MemberState::kLost:
    case MemberState::kAbsent:
      return TimePoint::max();
  }
  return TimePoint::max();
}

// When nobody is left that could go on, and nobody has come back since then; or when those who live do
// nothing.
TimePoint Coordinator::EndDeadline() const {
  if (end_) return TimePoint::max();
  TimePoint last_heard = TimePoint::min(), last_progress = TimePoint::min();
  bool anyone_at_work = false;
  for (int rank = 0; rank < rank_count(); ++rank) {
    anyone_at_work = anyone_at_work || IsAtWork(rank);
    last_progress = std::max(last_progress, members_[rank].last_progress);
    if (members_[rank].state == MemberState::kLost)
      last_heard = std::max(last_heard, members_[rank].last_heard);
  }
  const TimePoint idle = last_progress + 2 * options_.worker_timeout;
  return anyone_at_work ? idle
                        : std::min(idle, std::max(last_heard, last_progress) + options_.worker_timeout);
}

void Coordinator::Tick(TimePoint now) {
  for (int rank = 0; rank < rank_count(); ++rank) {
    if (now < DeadlineOf(rank)) continue;
    Member& member = members_[rank];
    std::string why;
    member.lost_in_silence = false;
    if (member.state == MemberState::kExpected) {
      why = absl::StrFormat("has not joined for %s", FormatAge(now - member.last_progress));
    } else if (now >= member.last_heard + options_.lease) {
      member.lost_in_silence = true;
      why = absl::StrFormat("has been silent for %s", FormatAge(now - member.last_heard));
    } else {
      why = absl::StrFormat("lives, but has not contributed for %s", FormatAge(now - WaitedForSince(rank)));
    }
    SetState(rank, MemberState::kLost, why + ": the others go on without it");
    EndIfAllAreDone();  // where only one that came later was waited for
  }
  BeginEpochIfNeeded(now);
  Choose(now);
  if (now < EndDeadline()) return;
  std::string who;
  for (int rank = 0; rank < rank_count(); ++rank) {
    const Member& member = members_[rank];
    if (IsDone(rank)) continue;
    who += absl::StrFormat(
        "%s%s (%s for %s)", who.empty() ? "" : ", ", names_[rank],
        member.state == MemberState::kLost ? "silent" : "nothing done",
        FormatAge(now - (member.state == MemberState::kLost ? member.last_heard : member.last_progress)));
  }
  end_ = DeadlineExceeded("no worker is left that could go on: %s", who);
  ++version_;
}

TimePoint Coordinator::next_deadline() const {
  TimePoint deadline = EndDeadline();
  for (int rank = 0; rank < rank_count(); ++rank) deadline = std::min(deadline, DeadlineOf(rank));
  return deadline;
}

bool Coordinator::AllOthersDone(int rank) const {
  for (int other = 0; other < rank_count(); ++other) {
    if (other != rank && IsAtWork(other) && !members_[other].awaits) return false;
  }
  return true;
}

TimePoint Coordinator::waiting_since() const {
  if (const auto open = open_.find(next_step_); open != open_.end()) return open->second.waiting_since;
  return decisions_.empty() ? TimePoint::max() : last_chosen_;
}

std::string Coordinator::DescribeMissing(int rank, TimePoint now) const {
  const Member& member = members_[rank];
  std::string why;
  if (member.state == MemberState::kExpected) {
    why = "not joined";
  } else {
    const std::map<int, std::set<int>>& holders = open_.at(next_step_).holders;
    const auto held = holders.find(rank);
    if (held == holders.end()) {
      why = "no gradient yet";
    } else {
      for (int shard = 0; shard < options_.shard_count; ++shard) {
        if (!held->second.contains(shard))
          why += absl::StrFormat("%sps:%d", why.empty() ? "not at " : ", ", shard);
      }
    }
    why += DescribeSilence(rank, now);
  }
  return absl::StrFormat("%s (%s)", names_[rank], why);
}

std::string Coordinator::DescribeSilence(int rank, TimePoint now) const {
  const Duration silent = now - members_[rank].last_heard;
  return silent > std::chrono::seconds(2) ? ", silent for " + FormatAge(silent) : "";
}

std::vector<int> Coordinator::AwaitedRanks() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < rank_count(); ++rank) {
    if (open_.contains(next_step_) && IsExpectedAt(rank, next_step_) && !IsComplete(rank)) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::string Coordinator::DescribeWait(TimePoint now) const {
  const TimePoint since = waiting_since();
  if (since == TimePoint::max()) return "";
  std::string missing;
  uint64_t step = next_step_;
  if (open_.contains(next_step_)) {
    for (const int rank : AwaitedRanks()) {
      missing += (missing.empty() ? "" : ", ") + DescribeMissing(rank, now);
    }
    // Else it waits to be shared by others.
    for (int shard = 0; missing.empty() && shard < options_.shard_count; ++shard) {
      if (IsBehind(shard)) missing = absl::StrFormat("ps:%d (has not made the steps before)", shard);
    }
    if (missing.empty()) missing = "any worker";
  } else {
    step = decisions_.begin()->first;
    for (int shard = 0; shard < options_.shard_count; ++shard) {
      if (shard_steps_[shard] > step) continue;
      missing += absl::StrFormat("%sps:%d (has not applied it)", missing.empty() ? "" : ", ", shard);
    }
  }
  return absl::StrFormat("step %d has waited %s for %s", step, FormatAge(now - since), missing);
}

// Before the first epoch.
std::vector<std::string> Coordinator::WhoIsToCome() const {
  std::vector<std::string> names;
  for (int shard = 0; epoch_.number == 0 && shard < options_.shard_count; ++shard) {
    if (shards_[shard].uuid.empty()) names.push_back(absl::StrFormat("ps:%d", shard));
  }
  for (int rank = 0; epoch_.number == 0 && rank < rank_count(); ++rank) {
    if (AwaitsFirstRank(rank)) names.push_back(names_[rank]);
  }
  return names;
}

TimePoint Coordinator::beginning_awaited_since() const {
  return WhoIsToCome().empty() ? TimePoint::max() : created_;
}

std::string Coordinator::DescribeBeginning(TimePoint now) const {
  const std::vector<std::string> names = WhoIsToCome();
  if (names.empty()) return "";
  return absl::StrFormat("the beginning has waited %s for %s", FormatAge(now - created_),
                         absl::StrJoin(names, ", "));
}

TimePoint Coordinator::end_awaited_since() const {
  TimePoint since = TimePoint::max();
  const bool anyone_at_work = !WhoIsAtWork().empty();
  for (const Member& member : members_) {
    const bool awaits = member.awaits && member.state == MemberState::kLive;
    // Those who have finished wait for whoever is lost and has to come back.
    const bool waits_for_lost = member.state == MemberState::kFinished && !anyone_at_work;
    if (awaits || waits_for_lost) since = std::min(since, member.last_progress);
  }
  return end_ ? TimePoint::max() : since;
}

std::string Coordinator::DescribeEnd(TimePoint now) const {
  const TimePoint since = end_awaited_since();
  if (since == TimePoint::max()) return "";
  std::string others;
  for (int rank = 0; rank < rank_count(); ++rank) {
    const MemberState state = members_[rank].state;
    if (IsDone(rank) || (state == MemberState::kLive && members_[rank].awaits)) continue;
    const std::string what = state == MemberState::kExpected ? "not joined"
                             : state == MemberState::kLost   ? "lost" + DescribeSilence(rank, now)
                                                             : "at work" + DescribeSilence(rank, now);
    others += absl::StrFormat("%s%s (%s)", others.empty() ? "" : ", ", names_[rank], what);
  }
  if (others.empty()) return "";
  return absl::StrFormat("the end has waited %s for %s", FormatAge(now - since), others);
}

std::vector<MembershipNotice> Coordinator::TakeNotices() { return std::exchange(notices_, {}); }

}  // namespace muster
