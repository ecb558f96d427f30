#include "launcher/bench/scale.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace muster::bench {
namespace {

constexpr double kSmallest = 1e-300;  // on logarithmic axes

double PowerOfTen(int exponent) { return std::pow(10.0, exponent); }

struct Prefixed {
  double value;
  const char* prefix;
};

// "k" and 2 of 2000. Where no prefix is large or small enough, the nearest one.
Prefixed SplitPrefix(double value, bool is_below_one) {
  constexpr const char* kLarge[] = {"", "k", "M", "G", "T"};
  constexpr const char* kSmall[] = {"", "m", "u", "n"};
  int index = 0;
  // A little less than 1000 and 1, since ticks are products of inexact powers of ten.
  while (value >= 999.9 && index < 4) {
    value /= 1000;
    ++index;
  }
  if (index > 0 || !is_below_one) return {value, kLarge[index]};
  while (value < 0.9999 && index < 3) {
    value *= 1000;
    ++index;
  }
  return {value, kSmall[index]};
}

double ClampPositive(double value) {
  return std::isfinite(value) ? std::clamp(value, kSmallest, kLargest) : kSmallest;
}

// 1, 2 and 5 times the powers of ten from the last at or below `smallest` to the first at or above `largest`.
std::vector<double> OneTwoFive(double smallest, double largest) {
  std::vector<double> values;
  const int first = static_cast<int>(std::floor(std::log10(smallest) - 1e-9));
  for (int exponent = first; values.empty() || values.back() < largest * (1 - 1e-9); ++exponent) {
    for (const double factor : {1, 2, 5}) {
      const double value = factor * PowerOfTen(exponent);
      if (value <= smallest * (1 + 1e-9)) values.clear();
      values.push_back(value);
      if (value >= largest * (1 - 1e-9)) break;
    }
  }
  return values;
}

}  // namespace

std::string TickText(double value, Unit unit) {
  if (value == 0) return "0";
  if (unit == Unit::kCount && value < 99999.5) return absl::StrFormat("%.5g", value);
  const Prefixed split = SplitPrefix(value, unit == Unit::kSeconds);
  const char* const name = unit == Unit::kSeconds ? "s" : unit == Unit::kBytes ? "B" : "";
  const char* const space = *name == '\0' ? "" : " ";
  if (unit == Unit::kSeconds && value >= 999.9) return absl::StrFormat("%.3g s", value);
  return absl::StrFormat("%.3g%s%s%s", split.value, space, split.prefix, name);
}

bool IsDrawable(double value) { return std::isfinite(value) && value >= 0 && value <= kLargest; }

Scale::Scale(bool is_logarithmic, std::vector<Tick> ticks)
    : is_logarithmic_(is_logarithmic), ticks_(std::move(ticks)) {}

Scale Scale::Linear(double largest, Unit unit) {
  largest = ClampPositive(largest) <= kSmallest ? 1 : ClampPositive(largest);
  const double power = PowerOfTen(static_cast<int>(std::floor(std::log10(largest))));
  double step = power;
  for (const double factor : {0.2, 0.5, 1.0, 2.0}) {
    step = factor * power;
    if (largest / step <= 6 + 1e-9) break;
  }
  std::vector<Tick> ticks;
  for (int i = 0; ticks.empty() || ticks.back().value < largest * (1 - 1e-9); ++i) {
    ticks.push_back({i * step, TickText(i * step, unit)});
  }
  return {false, std::move(ticks)};
}

Scale Scale::Logarithmic(double smallest, double largest, Unit unit) {
  smallest = ClampPositive(smallest);
  largest = std::max(ClampPositive(largest), smallest);
  if (largest / smallest < 1.5) {  // room to either side of what is one point
    smallest = ClampPositive(smallest / 2);
    largest = ClampPositive(largest * 2);
  }
  std::vector<Tick> ticks;
  if (largest / smallest <= 100) {
    for (const double value : OneTwoFive(smallest, largest)) ticks.push_back({value, TickText(value, unit)});
    return {true, std::move(ticks)};
  }
  const int first = static_cast<int>(std::floor(std::log10(smallest) + 1e-9));
  const int last = static_cast<int>(std::ceil(std::log10(largest) - 1e-9));
  const int stride = (last - first + 5) / 6;  // decades between labels
  for (int exponent = first;; exponent += stride) {
    ticks.push_back({PowerOfTen(exponent), TickText(PowerOfTen(exponent), unit)});
    if (exponent >= last) break;
    for (int factor = 2; stride == 1 && factor < 10; ++factor) {
      ticks.push_back({factor * PowerOfTen(exponent), ""});
    }
  }
  return {true, std::move(ticks)};
}

double Scale::Transformed(double value) const {
  return is_logarithmic_ ? std::log10(ClampPositive(value)) : std::clamp(value, 0.0, kLargest);
}

double Scale::Position(double value) const {
  const double first = Transformed(ticks_.front().value);
  const double last = Transformed(ticks_.back().value);
  return std::clamp((Transformed(value) - first) / (last - first), -100.0, 100.0);
}

}  // namespace muster::bench
