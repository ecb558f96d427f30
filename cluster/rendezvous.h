// Rendezvous: which ranks make up the group of an allreduce job. One per job, beside rank 0. The protocol as
// a function: events and a time go in, state comes out; no threads, sockets, files or clocks.
//
// A group is over when one of its ranks has gone, is silent or has left it, and when a rank comes that is not
// in it. All that live leave it then, with the parameters of the last step that they have made, and the next
// group is made of them, under a higher number. Their steps may differ by one, and a rank that comes anew has
// none: then one with the highest step is the source of the others' parameters.
//
// What ranks report is their whole state: a report makes up for all before.
//
// A job can get more ranks while it runs, and fewer: those with the highest numbers come and go. Who is to
// come is not waited for, and who goes ends its group, but is not lost.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace muster {

struct RendezvousOptions {
  std::vector<std::string> rank_names;  // "worker:1 (10.0.0.2:4000)"
  /// A group has at least so many, or all that the job has, if it has fewer. Unset: it has all ranks that the
  /// job began with and that have not left it since.
  std::optional<int> min_ranks;
  std::optional<int> first_ranks;  // that the job began with; unset: those above
  /// Of the first group that this one makes: higher than any that a process of rank 0 before it can have
  /// given.
  uint64_t first_number = 1;
  /// Before the first group of a job all ranks that it began with are waited for, this long.
  Duration connect_timeout = std::chrono::minutes(5);
  /// But where min_ranks are enough and are there, only this long since the last one came: others come later.
  Duration last_call = std::chrono::seconds(30);
  /// Later it is waited this long for a group, and for one that makes a step, and the job ends.
  Duration return_timeout = std::chrono::minutes(10);
  /// A rank is lost when nothing was heard of it for this long.
  Duration lease = std::chrono::milliseconds(1500);
  /// Where rank 0 was replaced: how long the others have to find it; likewise those who lose it before they
  /// have reported.
  Duration settle = std::chrono::seconds(3);
  /// Of two live ranks that do not reach each other the higher one stays out for this long, unless there
  /// would be too few without it. So does one that others have waited for in vain, but, if it is not rank 0,
  /// for return_timeout if that is longer, and for twice as long each time that a group with it makes no
  /// step.
  Duration suspension = std::chrono::seconds(10);
  /// Before the job has begun, and where it needs all ranks: after a process was refused another one of its
  /// rank has so long to report, or the job ends.
  Duration correction = std::chrono::seconds(10);
};

/// Which parameters a rank has: of equal versions the bits are equal.
struct ParametersVersion {
  bool is_live =
      true;  // else it has read a checkpoint, which is worth less than any that somebody has made on
  uint64_t step = 0;
  /// Number of the last one in which they were made, or found to be the others'; of a checkpoint its digest.
  uint64_t group = 0;
  friend auto operator<=>(const ParametersVersion&, const ParametersVersion&) = default;
};

/// What a rank says of itself.
struct RankState {
  uint64_t group = 0;  // number of the newest that it was in; 0: none
  bool is_in_it = false;
  bool has_met = false;  // all the others of that group
  uint64_t over = 0;     // number of the newest that it knows to be over: it does not enter it, or one before
  std::optional<ParametersVersion> parameters;  // while it is in none
  std::optional<int> unreachable;               // a rank of that group whom it has tried to reach in vain
  Duration waited{};           // for the others, in the operation in which it has left; none: it was in none
  bool has_timed_out = false;  // that is why
};

struct RankGroup {
  uint64_t number = 0;        // 0: there was none
  std::vector<int> ranks;     // ascending
  std::optional<int> source;  // whose parameters the others get; unset: all have the same, or none
  bool is_over = true;
  std::string why;  // it is over, or the one before it is
};

/// One thread at a time. A rank out of range is a bug.
class Rendezvous {
 public:
  Rendezvous(const RendezvousOptions& options, TimePoint now);

  /// Events. What changes because of them is read below. Tick comes several times within a lease.
  /// A process of a rank has come, perhaps instead of another one; from its first report on it takes part. It
  /// may read a checkpoint before, and what that has counts: no job begins without it.
  /// `process`: a number of its own; the same one has only connected anew.
  void Connect(int rank, uint64_t process, TimePoint now);
  void Report(int rank, const RankState& state, TimePoint now);
  /// A process of a rank was turned away, since it differs from rank 0: `refusal` says how. It may be left
  /// over from another job, or have been started by mistake.
  void Refuse(int rank, const std::string& refusal, TimePoint now);
  /// `why`: "its connection was closed".
  void Disconnect(int rank, const std::string& why, TimePoint now);
  void Tick(TimePoint now);
  /// The job has these ranks now, at least one.
  void Resize(std::vector<std::string> rank_names, TimePoint now);
  /// All that there is to do is done, in `step` steps: no group is made any more.
  void Conclude(uint64_t step);
  /// There is no going on. The first one counts.
  void End(const absl::Status& status);

  /// Grows whenever group(), end() or concluded() change.
  uint64_t version() const { return version_; }
  const RankGroup& group() const { return group_; }
  const std::optional<uint64_t>& concluded() const { return concluded_; }
  /// For good. DeadlineExceeded, naming who is missing.
  const std::optional<absl::Status>& end() const { return end_; }

  int rank_count() const { return static_cast<int>(members_.size()); }
  bool is_live(int rank) const { return members_[rank].is_live; }

  /// What people should read, since the last call.
  std::vector<std::string> TakeNotices();

 private:
  struct Member {
    bool is_live = false;  // it has reported, and is not silent
    bool was_live = false;
    bool is_coming = false;   // it has connected, and not reported yet
    TimePoint came;           // when it did so last
    TimePoint awaited_until;  // its connection broke before it had reported
    TimePoint last_heard;
    std::string why_lost;
    std::string refusal;  // of a process of it, which nobody has taken the place of; empty: none
    TimePoint refused_at;
    RankState state;
    TimePoint suspended_until;
    std::optional<uint64_t> process;  // none has come
    Duration lateness{};  // how long it was suspended last because others waited for it; zero: it was not
  };

  bool IsInGroup(int rank) const;
  std::vector<int> LiveRanks(TimePoint now) const;
  bool IsLateStill(int rank) const;
  bool MayJoin(int rank, TimePoint now) const;
  bool AreAllOfTheFirst(const std::vector<int>& ranks) const;
  bool AreEnough(const std::vector<int>& ranks) const;
  bool HasBegun() const;
  bool EndForRefusal(TimePoint now);
  TimePoint Deadline() const;
  void Lose(int rank, const std::string& why, TimePoint now);
  void Suspend(int rank, int other, TimePoint now);
  void Finish(const std::string& why, TimePoint now);
  void GiveUp(int rank, const std::string& why, TimePoint now);
  bool FindWhoIsLate(TimePoint now);
  void SuspendLate(const std::vector<int>& late, Duration waited, TimePoint now);
  void Consider(TimePoint now);
  void Form(std::vector<int> ranks, TimePoint now);
  void SayWhoIsMissing(TimePoint now);
  std::string DescribeMissing() const;

  const RendezvousOptions options_;
  int first_ranks_;                 // of those that the job began with, how many have never left it
  std::vector<std::string> names_;  // by rank, as is:
  std::vector<Member> members_;
  RankGroup group_;
  uint64_t next_number_;                   // higher than any that was heard of
  uint64_t step_ = 0;                      // with which group_ began
  bool has_met_ = false;                   // group_: it could do something
  int barren_ = 0;                         // groups that one of their own has left, since there was a step
  bool is_stuck_ = false;                  // group_: it was one of those, and not the first
  std::optional<TimePoint> timed_out_at_;  // group_: it is not known yet for whom it was waited
  TimePoint over_since_;                   // no group could do anything since then
  TimePoint came_;                         // a rank, for the first time
  TimePoint next_word_;                    // about who is missing
  Duration silence_{};                     // before that
  std::optional<uint64_t> concluded_;
  std::optional<absl::Status> end_;
  std::vector<std::string> notices_;
  uint64_t version_ = 1;
};

}  // namespace muster
