// Axes: where a value lies, and at which round values it has ticks.
#pragma once

#include <string>
#include <vector>

namespace muster::bench {

enum class Unit { kNone, kCount, kSeconds, kBytes };

/// "0", "2k", "1.5M"; of a count "2000"; "20 ms"; "250 MB". Any finite number of at least 0.
std::string TickText(double value, Unit unit);

/// Whether an axis can show it: finite, at least 0, and not beyond kLargest.
bool IsDrawable(double value);
inline constexpr double kLargest = 1e300;

struct Tick {
  double value = 0;
  std::string label;  // empty: a thin line between two labels
};

/// From a first to a last tick. Values are clamped to [0, kLargest], and on logarithmic axes to at least
/// 1e-300.
class Scale {
 public:
  /// From 0 to the first round number that is not below `largest`, with steps of 1, 2 or 5 times a power of
  /// ten: 4 to 7 ticks.
  static Scale Linear(double largest, Unit unit);

  /// Round numbers around [smallest, largest]: powers of ten, up to two decades with 2 and 5 between.
  static Scale Logarithmic(double smallest, double largest, Unit unit);

  /// 0 at the first tick, 1 at the last one; outside of them at most 100 to either side.
  double Position(double value) const;
  const std::vector<Tick>& ticks() const { return ticks_; }

 private:
  Scale(bool is_logarithmic, std::vector<Tick> ticks);
  double Transformed(double value) const;

  bool is_logarithmic_;
  std::vector<Tick> ticks_;
};

}  // namespace muster::bench
