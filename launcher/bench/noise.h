// Noise: what of a difference between results may be chance.
#pragma once

#include <optional>

#include "launcher/bench/results.h"

namespace muster::bench {

/// Rates that are shown as 1.00 times each other are not told apart.
inline constexpr double kLeastNoise = 0.005;

/// Standard deviation of a cell's repetitions by their median. Unset: no numbers, or one repetition.
std::optional<double> RelativeDeviation(const Measurement& of);

/// Of all cells: the root of the mean of their squares, each with one less than its repetitions. No cell
/// counts with more than three times the deviation of the median cell: results are medians, which one
/// repetition in which the machine did something else leaves as they are. Unset: nothing was repeated, or
/// only some cells were, with fewer than three repetitions beyond their first ones.
std::optional<double> PooledDeviation(const Results& results);

/// How far medians of repetitions are off by chance, as fractions. Two are told apart where they are further
/// apart than nine times in ten by chance: t(nu) * sqrt(a^2 + b^2), with their standard errors a and b and
/// the degrees of freedom nu of the deviation that these come from (Student's t test, with one deviation for
/// all, results.noise). kLeastNoise at least. Immutable.
class Noise {
 public:
  explicit Noise(const Results& results);

  /// Enough was repeated.
  bool is_known() const { return deviation_.has_value(); }
  /// Its repetitions differ by far more than those of the others.
  bool SticksOut(const Measurement& of) const;
  double Of(const Measurement& of) const;
  double Between(const Measurement& a, const Measurement& b) const;
  bool TellsApart(const Measurement& faster, const Measurement& slower) const;

 private:
  double Error(const Measurement& of) const;

  std::optional<double> deviation_;
  double quantile_ = 0;
};

}  // namespace muster::bench
