// Noise: what of a difference between results may be chance.
#pragma once

#include <optional>

#include "launcher/bench/results.h"

namespace muster::bench {

/// How far medians of repetitions are off by chance, as fractions. Two are told apart where they are further
/// apart than nine times in ten by chance: t(nu) * sqrt(a^2 + b^2), with their standard errors a and b and
/// the degrees of freedom nu of the deviation that these come from (Student's t test, with one deviation for
/// all). Half a percent at least: rates that are shown as 1.00 times each other are not told apart.
/// Immutable.
class Noise {
 public:
  explicit Noise(const Results& results);

  /// Something was repeated.
  bool is_known() const { return deviation_.has_value(); }
  double Of(const Measurement& of) const;
  double Between(const Measurement& a, const Measurement& b) const;
  bool TellsApart(const Measurement& faster, const Measurement& slower) const;

 private:
  double Error(const Measurement& of) const;

  std::optional<double> deviation_;
  double quantile_ = 0;
};

}  // namespace muster::bench
