#include "trainer/progress.h"

#include <algorithm>

namespace muster {

void Progress::GoOnFrom(const TrainingPosition& position) {
  if (has_begun_) {
    reached_ = std::max(reached_.value_or(0), at_.step);
    first_.step = std::min(first_.step, position.step);
    first_.samples = std::min(first_.samples, position.samples);
    after_first_ = std::min(after_first_, position.step);
  } else {
    first_ = position;
  }
  has_begun_ = true;
  at_ = position;
  begun_at_ = marked_step_ = at_.step;
  last_line_samples_ = at_.samples;
}

void Progress::Start(TimePoint now) { start_ = end_ = last_line_ = now; }

void Progress::Add(const StepsMade& steps, TimePoint now) {
  at_ = {.step = steps.step, .local_steps = at_.local_steps + steps.local_steps, .samples = steps.samples};
  own_steps_ += steps.local_steps;
  loss_ = steps.loss;
  staleness_ = steps.staleness;
  if (first_step_ || !has_stepped()) return;
  first_step_ = after_first_start_ = now;
  after_first_ = at_.step;
}

MetricsLine Progress::Line(TimePoint now) const {
  const double seconds = ToSeconds(SinceLine(now));
  return {
      .step = at_.step,
      .seconds = ToSeconds(now - start_),
      .loss = loss_,
      .samples_per_second = seconds > 0 ? static_cast<double>(at_.samples - last_line_samples_) / seconds : 0,
      .staleness = staleness_,
      .begun_at = begun_at_,
      .reached = reached_};
}

void Progress::MarkLine(TimePoint now) {
  last_line_ = now;
  last_line_samples_ = at_.samples;
  begun_at_.reset();
  reached_.reset();
}

}  // namespace muster
