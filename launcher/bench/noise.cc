#include "launcher/bench/noise.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "launcher/bench/results_view.h"

namespace muster::bench {
namespace {

// Of a normal cell of three the deviation is so many times the one of all once in eight thousand times.
constexpr double kFar = 3;

// Of Student's t at 0.95: the expansion 26.7.5 of Abramowitz and Stegun, with the normal quantile 1.645. It
// is an eighth too small for one degree of freedom, and 1 % for two.
double Quantile(double freedom) { return 1.645 + (1.524 + (1.420 + 0.983 / freedom) / freedom) / freedom; }

double FreedomOf(const Measurement& of) { return static_cast<double>(of.step_seconds.size()) - 1; }

double FreedomOf(const Results& results) {
  double freedom = 0;
  for (const Measurement& measurement : results.measurements) {
    if (HasNumbers(measurement)) freedom += FreedomOf(measurement);
  }
  return freedom;
}

// What half of the repetitions are off by at least: one of three that is far away is not among them.
double MedianDistance(const Measurement& of) {
  const double median = of.median_step_seconds();
  std::vector<double> distances;
  for (const double seconds : of.step_seconds) distances.push_back(std::abs(seconds / median - 1));
  return MedianOf(std::move(distances));
}

}  // namespace

std::optional<double> RelativeDeviation(const Measurement& of) {
  const std::vector<double>& all = of.step_seconds;
  if (!HasNumbers(of) || all.size() < 2) return std::nullopt;
  const double mean = std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
  double squares = 0;
  for (const double seconds : all) squares += std::pow((seconds - mean) / of.median_step_seconds(), 2);
  return std::sqrt(squares / FreedomOf(of));
}

std::optional<double> PooledDeviation(const Results& results) {
  constexpr double kLeastFreedom = 3;  // to speak for cells that were not repeated
  std::vector<double> squares;
  for (const Measurement& measurement : results.measurements) {
    if (const auto deviation = RelativeDeviation(measurement)) squares.push_back(*deviation * *deviation);
  }
  const double freedom = FreedomOf(results);
  const auto is_single = [](const Measurement& of) { return HasNumbers(of) && of.step_seconds.size() < 2; };
  const bool has_single = std::ranges::any_of(results.measurements, is_single);
  if (freedom < 1 || (has_single && freedom < kLeastFreedom)) return std::nullopt;
  const double most = kFar * kFar * MedianOf(squares);
  double sum = 0;
  for (const Measurement& measurement : results.measurements) {
    const auto deviation = RelativeDeviation(measurement);
    if (deviation) sum += FreedomOf(measurement) * std::min(*deviation * *deviation, most);
  }
  return std::sqrt(sum / freedom);
}

Noise::Noise(const Results& results) {
  const double deviation = results.noise.value_or(-1);
  if (std::isfinite(deviation) && deviation >= 0) deviation_ = deviation;
  quantile_ = Quantile(std::max(1.0, FreedomOf(results)));
}

bool Noise::SticksOut(const Measurement& of) const {
  const auto deviation = RelativeDeviation(of);
  return is_known() && deviation && *deviation > std::max(kLeastNoise, kFar * *deviation_);
}

double Noise::Of(const Measurement& of) const { return std::max(kLeastNoise, quantile_ * Error(of)); }

double Noise::Between(const Measurement& a, const Measurement& b) const {
  return std::max(kLeastNoise, quantile_ * std::hypot(Error(a), Error(b)));
}

bool Noise::TellsApart(const Measurement& faster, const Measurement& slower) const {
  return faster.samples_per_second / slower.samples_per_second - 1 > Between(faster, slower);
}

// Of a median of n: of one and two the mean's, s / sqrt(n); of more, of normal ones, sqrt(pi / 2) times that
// (David and Nagaraja, "Order Statistics", 8.5): that is for large n, and of three 8 % too much. Where a cell
// sticks out by more than a single repetition its own numbers say more.
double Noise::Error(const Measurement& of) const {
  constexpr double kHalfPi = 1.5707963;
  const auto n = static_cast<double>(of.step_seconds.size());
  const double error = deviation_.value_or(0) * std::sqrt((n > 2 ? kHalfPi : 1) / n);
  return SticksOut(of) ? std::max(error, MedianDistance(of)) : error;
}

}  // namespace muster::bench
