#include "launcher/bench/noise.h"

#include <algorithm>
#include <cmath>

#include "launcher/bench/results_view.h"

namespace muster::bench {
namespace {

constexpr double kLeastNoise = 0.005;

// Of Student's t at 0.95: the expansion 26.7.5 of Abramowitz and Stegun, with the normal quantile 1.645. It
// is an eighth too small for one degree of freedom, and 1 % for two.
double Quantile(double freedom) { return 1.645 + (1.524 + (1.420 + 0.983 / freedom) / freedom) / freedom; }

}  // namespace

Noise::Noise(const Results& results) {
  const double deviation = results.noise.value_or(-1);
  if (std::isfinite(deviation) && deviation >= 0) deviation_ = deviation;
  double freedom = 0;
  for (const Measurement& measurement : results.measurements) {
    if (HasNumbers(measurement)) freedom += static_cast<double>(measurement.step_seconds.size()) - 1;
  }
  quantile_ = Quantile(std::max(1.0, freedom));
}

double Noise::Of(const Measurement& of) const { return std::max(kLeastNoise, quantile_ * Error(of)); }

double Noise::Between(const Measurement& a, const Measurement& b) const {
  return std::max(kLeastNoise, quantile_ * std::hypot(Error(a), Error(b)));
}

bool Noise::TellsApart(const Measurement& faster, const Measurement& slower) const {
  return faster.samples_per_second / slower.samples_per_second - 1 > Between(faster, slower);
}

// Of a median of n: of one and two the mean's, s / sqrt(n); of more, of normal ones, sqrt(pi / 2) times that
// (David and Nagaraja, "Order Statistics", 8.5): that is for large n, and of three 8 % too much.
double Noise::Error(const Measurement& of) const {
  constexpr double kHalfPi = 1.5707963;
  const auto n = static_cast<double>(of.step_seconds.size());
  return deviation_.value_or(0) * std::sqrt((n > 2 ? kHalfPi : 1) / n);
}

}  // namespace muster::bench
