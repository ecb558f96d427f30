// Progress: how far a training has come, and how fast, as one of its workers counts it. Pure: it is told the
// time.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "trainer/result_record.h"

namespace muster {

/// Where a training stands.
struct TrainingPosition {
  uint64_t step = 0;         // of the parameters
  uint64_t local_steps = 0;  // of them, those that this rank took part in
  uint64_t samples = 0;      // that went into the parameters
};

/// What a worker's own steps have come to, with those that others have made meanwhile.
struct StepsMade {
  uint64_t step = 0;  // of the parameters now
  uint64_t local_steps = 1;
  uint64_t samples = 0;  // that have gone into the parameters
  double loss = 0;       // of the last step
  uint64_t staleness = 0;
};

/// One thread at a time.
class Progress {
 public:
  /// At first, and whenever training goes on from elsewhere: earlier, or where others have come to.
  void GoOnFrom(const TrainingPosition& position);

  /// Training begins in this process. Steps and samples that were there before are not its own.
  void Start(TimePoint now);
  void Add(const StepsMade& steps, TimePoint now);
  /// Nobody has trained for so long.
  void LeaveOut(Duration time) {
    start_ += time;
    after_first_start_ += time;
  }
  void End(TimePoint now) { end_ = now; }

  uint64_t step() const { return at_.step; }
  uint64_t local_steps() const { return at_.local_steps; }
  uint64_t samples() const { return at_.samples; }

  /// Whether a multiple of `every` has been reached, or passed by what others have made, since MarkStep.
  bool HasPassed(uint64_t every) const { return at_.step / every > marked_step_ / every; }
  void MarkStep() { marked_step_ = at_.step; }

  /// The last step, with the rate since MarkLine, and from where training has gone on since then. What is
  /// evaluated, and the learning rate, are left to others.
  MetricsLine Line(TimePoint now) const;
  void MarkLine(TimePoint now);
  Duration SinceLine(TimePoint now) const { return now - last_line_; }

  // Of this process.
  bool has_stepped() const { return at_.step > first_.step; }
  uint64_t steps_made() const { return at_.step - first_.step; }
  uint64_t samples_made() const { return at_.samples - first_.samples; }
  uint64_t own_steps() const { return own_steps_; }  // those that have been lost since, too
  std::optional<double> loss() const { return loss_; }
  std::optional<TimePoint> first_step() const { return first_step_; }  // none: there has been none
  TimePoint end() const { return end_; }
  Duration time() const { return end_ - start_; }
  // The same without this rank's first step, and what others have made until then: what it computes with is
  // prepared in that one.
  uint64_t steps_after_first() const { return first_step_ ? at_.step - after_first_ : 0; }
  Duration time_after_first() const { return end_ - after_first_start_; }

 private:
  TrainingPosition at_;
  TrainingPosition first_;    // the earliest that this process has gone on from
  uint64_t after_first_ = 0;  // the step after its first one, or the earliest that it has gone on from since
  uint64_t marked_step_ = 0;
  uint64_t own_steps_ = 0;
  std::optional<double> loss_;
  std::optional<uint64_t> staleness_;
  bool has_begun_ = false;
  TimePoint start_, end_, last_line_;
  std::optional<TimePoint> first_step_;
  TimePoint after_first_start_;
  uint64_t last_line_samples_ = 0;
  std::optional<uint64_t> begun_at_, reached_;  // since the last line
};

}  // namespace muster
