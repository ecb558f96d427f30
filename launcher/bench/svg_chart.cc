#include "launcher/bench/svg_chart.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <utility>

#include "launcher/bench/markup.h"

namespace muster::bench {
namespace {

constexpr int kWidth = 320;  // of a chart, in units that are about pixels in a card on a phone
constexpr int kHeight = 260;
constexpr int kTickGap = 8;         // more than the radius of a marker
constexpr double kLetterWidth = 7;  // about that of a letter in the style sheet's largest font
constexpr int kSeriesCount = 5;

// Where the axes are. y grows downwards.
struct Plot {
  int left, top, right, bottom;
  int width() const { return right - left; }
  int height() const { return bottom - top; }
};

std::string Open(int width, int height, const std::string& description) {
  return absl::StrFormat("<svg class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n",
                         width, height, Escape(description));
}

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor,
                         Escape(text));
}

double TextWidth(const std::string& text) { return kLetterWidth * static_cast<double>(text.size()); }

// Below an axis: in the middle below its place, as far as the chart's edges leave room.
std::string TickLabel(double x, double y, const std::string& label) {
  const double half = TextWidth(label) / 2;
  if (x + half > kWidth) return Text(kWidth, y, "end", label);
  return x < half ? Text(0, y, "start", label) : Text(x, y, "middle", label);
}

std::string Line(const char* css_class, double x1, double y1, double x2, double y2) {
  return absl::StrFormat("<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", css_class,
                         x1, y1, x2, y2);
}

std::string SeriesClass(const SeriesLook& look) {
  return absl::StrFormat("s%d", std::clamp(look.index, 0, kSeriesCount - 1));
}

// Bounds, which are thinner and have no markers, always have some.
std::string Dashes(ChartLine::Kind kind, const SeriesLook& look) {
  constexpr const char* kDashes[] = {"", "8 4", "2 3", "10 3 2 3"};
  constexpr const char* kBoundDashes[] = {"4 4", "1 3", "9 5", "9 3 1 3"};
  const int variant = std::max(look.variant, 0) % 4;
  const std::string dashes = (kind == ChartLine::Kind::kBound ? kBoundDashes : kDashes)[variant];
  return dashes.empty() ? "" : " stroke-dasharray=\"" + dashes + "\"";
}

const char* KindClass(ChartLine::Kind kind) {
  switch (kind) {
    case ChartLine::Kind::kMeasured:
      return "measured";
    case ChartLine::Kind::kBound:
      return "bound";
    case ChartLine::Kind::kSimulated:
      break;
  }
  return "simulated";
}

// Circle, square, diamond, and triangles on their base and on their tip. Those that are drawn later are
// smaller, so that of points in the same place each one shows.
std::string Marker(const SeriesLook& look, double x, double y, const std::string& hint) {
  constexpr const char* kShapes[kSeriesCount] = {
      "m-6,0a6,6 0 1 0 12,0a6,6 0 1 0 -12,0z", "m-4.7,-4.7h9.4v9.4h-9.4z",
      "m0,-5.9l5.9,5.9l-5.9,5.9l-5.9,-5.9z", "m0,-5.2l5,8.8h-10z", "m0,4.8l4.6,-8h-9.2z"};
  const int index = std::clamp(look.index, 0, kSeriesCount - 1);
  return absl::StrFormat("<path class=\"marker%s\" d=\"M%.1f,%.1f%s\"><title>%s</title></path>\n",
                         look.variant > 0 ? " hollow" : "", x, y, kShapes[index], Escape(hint));
}

struct Range {
  double least = std::numeric_limits<double>::infinity();
  double most = 0;

  void Add(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
  bool empty() const { return least > most; }
};

// What can be drawn of it: on a logarithmic axis nothing at 0.
std::vector<ChartPoint> Drawable(const ChartLine& line, LineChart::Axes axes) {
  std::vector<ChartPoint> points;
  for (const ChartPoint& point : line.points) {
    if (!IsDrawable(point.x) || point.x == 0 || !IsDrawable(point.y)) continue;
    if (axes == LineChart::Axes::kLogLog && point.y == 0) continue;
    points.push_back(point);
  }
  return points;
}

// A place between 0 and 1 for each value of x, and the ticks.
struct XAxis {
  std::function<double(double)> position;
  std::vector<Tick> ticks;
  bool is_logarithmic = true;
};

// A label for each value, from the right as far as there is room: the largest one is compared by.
std::vector<Tick> TicksAt(const std::set<double>& values, const std::function<double(double)>& position) {
  constexpr double kGap = 0.02;
  std::vector<Tick> ticks;
  double free = 2;
  for (auto value = values.rbegin(); value != values.rend(); ++value) {
    std::string label = TickText(*value, Unit::kCount);
    const double half = TextWidth(label) / 2 / kWidth;
    if (position(*value) + half > free) label.clear();
    if (!label.empty()) free = position(*value) - half - kGap;
    ticks.push_back({*value, std::move(label)});
  }
  std::reverse(ticks.begin(), ticks.end());
  return ticks;
}

// Away from the edges, where markers would cover the labels of y.
XAxis AxisAt(const std::set<double>& values) {
  constexpr double kEdge = 0.1;
  const double first = std::log(*values.begin());
  const double length = std::log(*values.rbegin()) - first;
  const auto position = [=](double value) {
    return length > 0 ? kEdge + (1 - 2 * kEdge) * (std::log(value) - first) / length : 0.5;
  };
  return {position, TicksAt(values, position), length > 0};
}

XAxis MakeXAxis(const LineChart& chart, const std::set<double>& values) {
  if (chart.axes == LineChart::Axes::kPoints && !values.empty()) return AxisAt(values);
  const double least = values.empty() ? 1 : *values.begin();
  const double most = values.empty() ? 1 : *values.rbegin();
  const Scale scale = Scale::Logarithmic(least, std::max(most, std::min(least * 2, kLargest)), Unit::kCount);
  return {[scale](double value) { return scale.Position(value); }, scale.ticks()};
}

bool IsLogarithmic(const LineChart& chart, const Range& y) {
  constexpr double kFarApart = 10;  // of which the lower ones would lie on the axis
  return chart.axes == LineChart::Axes::kLogLog ||
         (!y.empty() && y.least > 0 && y.most / y.least > kFarApart);
}

// As high as the highest bound that is no more than twice what is measured: higher ones would leave all else
// at the bottom.
Scale YScale(const LineChart& chart, const Range& y, const std::vector<double>& bounds) {
  double most = y.most;
  for (const double bound : bounds) {
    if (y.empty() || bound <= 2 * y.most) most = std::max(most, bound);
  }
  if (!IsLogarithmic(chart, y)) return Scale::Linear(most, chart.y_unit);
  return y.empty() ? Scale::Logarithmic(1, 10, chart.y_unit)
                   : Scale::Logarithmic(y.least, most, chart.y_unit);
}

struct Layout {
  XAxis x;
  Scale y;
  std::vector<std::vector<ChartPoint>> points;  // by line: those that can be drawn
};

Layout LayoutOf(const LineChart& chart) {
  std::vector<std::vector<ChartPoint>> points;
  std::set<double> x;
  Range y;
  std::vector<double> bounds;
  for (const ChartLine& line : chart.lines) {
    for (const ChartPoint& point : points.emplace_back(Drawable(line, chart.axes))) {
      x.insert(point.x);
      if (line.kind == ChartLine::Kind::kBound) {
        bounds.push_back(point.y);
      } else {
        y.Add(point.y);
      }
    }
  }
  return {MakeXAxis(chart, x), YScale(chart, y, bounds), std::move(points)};
}

std::string Axes(const LineChart& chart, const Plot& plot, const XAxis& x, const Scale& y) {
  const bool is_logarithmic = y.ticks().front().value > 0;
  std::string svg = Text(0, 14, "start", chart.y_title + (is_logarithmic ? ", logarithmic" : ""));
  for (const Tick& tick : y.ticks()) {
    const double at = plot.bottom - y.Position(tick.value) * plot.height();
    svg += Line(tick.label.empty() ? "minor" : "grid", plot.left, at, plot.right, at);
    if (!tick.label.empty()) svg += Text(plot.left - kTickGap, at + 4, "end", tick.label);
  }
  for (const Tick& tick : x.ticks) {
    const double at = plot.left + x.position(tick.value) * plot.width();
    svg += Line(tick.label.empty() ? "minor" : "grid", at, plot.top, at, plot.bottom);
    if (!tick.label.empty()) svg += TickLabel(at, plot.bottom + 17, tick.label);
  }
  svg += Line("axis", plot.left, plot.bottom, plot.right, plot.bottom);
  return svg + Text((plot.left + plot.right) / 2.0, plot.bottom + 36, "middle",
                    chart.x_title + (x.is_logarithmic ? ", logarithmic" : ""));
}

// Through places inside the plot. A single bound, which has no marker, becomes a short line.
std::string Polyline(const ChartLine& line, std::vector<ChartPoint> places) {
  constexpr double kShort = 14;
  if (places.size() == 1 && line.kind == ChartLine::Kind::kBound) {
    places.push_back(places.front());
    places.front().x -= kShort;
    places.back().x += kShort;
  }
  if (places.size() < 2) return "";
  std::string corners;
  for (const ChartPoint& place : places) {
    corners += absl::StrFormat("%s%.1f,%.1f", corners.empty() ? "" : " ", place.x, place.y);
  }
  return absl::StrFormat("<polyline class=\"%s %s\"%s points=\"%s\"/>\n", KindClass(line.kind),
                         SeriesClass(line.look), Dashes(line.kind, line.look), corners);
}

// At places inside the plot: at all that was measured, and at the end of what was simulated, so that its line
// can be told.
std::string Markers(const ChartLine& line, const std::vector<ChartPoint>& places, const Plot& plot) {
  if (line.kind == ChartLine::Kind::kBound || places.empty()) return "";
  std::string svg = absl::StrFormat("<g class=\"%s\">\n", SeriesClass(line.look));
  const size_t first = line.kind == ChartLine::Kind::kSimulated ? places.size() - 1 : 0;
  for (size_t i = first; i < places.size(); ++i) {
    svg += Marker(line.look, plot.left + places[i].x, plot.top - 1 + places[i].y, places[i].hint);
  }
  return svg + "</g>\n";
}

std::string DescriptionOf(const LineChart& chart) {
  std::vector<std::string> parts = {chart.description};
  for (const ChartLine& line : chart.lines) {
    for (const ChartPoint& point : line.points) {
      if (!point.hint.empty()) parts.push_back(point.hint);
    }
  }
  return absl::StrJoin(parts, "; ");
}

std::string DescriptionOf(const BarChart& chart) {
  std::string description = chart.description;
  for (const Bar& bar : chart.bars) description += "; " + bar.label + ": " + bar.value;
  return description;
}

double Known(double value) { return IsDrawable(value) ? value : 0; }

double Sum(double first, double second, double missing) {
  return std::min(Known(first) + Known(second) + Known(missing), kLargest);
}

// Where there are many ticks, every other one has no room for its label.
std::string BarAxis(const Plot& plot, const Scale& scale) {
  const size_t stride = scale.ticks().size() > 5 ? 2 : 1;
  std::string svg;
  for (size_t i = 0; i < scale.ticks().size(); ++i) {
    const Tick& tick = scale.ticks()[i];
    const double at = plot.left + scale.Position(tick.value) * plot.width();
    svg += Line("grid", at, plot.top, at, plot.bottom);
    if (i % stride == 0) svg += TickLabel(at, plot.bottom + 18, tick.label);
  }
  return svg;
}

std::string BarSvg(const Bar& bar, const Plot& plot, const Scale& scale, double top) {
  constexpr int kBarHeight = 13;
  constexpr double kMiddle = kBarHeight / 2.0;
  const auto at = [&](double value) { return plot.left + scale.Position(value) * plot.width(); };
  const auto rectangle = [&](const char* css_class, double from, double to) {
    return absl::StrFormat("<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"/>\n",
                           css_class, at(from), top, at(to) - at(from), kBarHeight);
  };
  const double first = Known(bar.first);
  const double both = Sum(bar.first, bar.second, 0);
  const double all = Sum(bar.first, bar.second, bar.missing);
  std::string svg = absl::StrFormat("<g class=\"%s\">\n", SeriesClass(bar.look));
  svg += rectangle("first", 0, first);
  if (both > first) svg += rectangle("second", first, both);
  if (all > both) svg += rectangle("missing", both, all);
  svg += "</g>\n";
  if (Known(bar.most) > 0) {
    for (const double end : {Known(bar.least), bar.most}) {
      svg += Line("spread", at(end), top + 3, at(end), top + kBarHeight - 3);
    }
    svg += Line("spread", at(Known(bar.least)), top + kMiddle, at(bar.most), top + kMiddle);
  }
  if (Known(bar.mark) > 0) svg += Line("mark", at(bar.mark), top - 3, at(bar.mark), top + kBarHeight + 3);
  return svg;
}

}  // namespace

std::string LineChartSvg(const LineChart& chart) {
  const Plot plot = {.left = 46, .top = 28, .right = kWidth - 12, .bottom = kHeight - 42};
  const Layout layout = LayoutOf(chart);
  std::string svg = Open(kWidth, kHeight, DescriptionOf(chart)) + Axes(chart, plot, layout.x, layout.y);
  // An inner element clips the lines to the plot, and the markers, which follow, may lie on its edge.
  svg += absl::StrFormat("<svg x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\">\n", plot.left, plot.top - 1,
                         plot.width(), plot.height() + 2);
  std::string markers;
  for (size_t i = 0; i < chart.lines.size(); ++i) {
    std::vector<ChartPoint> places = layout.points[i];
    for (ChartPoint& place : places) {
      place.x = layout.x.position(place.x) * plot.width();
      place.y = (1 - layout.y.Position(place.y)) * plot.height() + 1;
    }
    svg += Polyline(chart.lines[i], places);
    markers += Markers(chart.lines[i], places, plot);
  }
  return svg + "</svg>\n" + markers + "</svg>\n";
}

int BoundsShown(const LineChart& chart) {
  const Layout layout = LayoutOf(chart);
  int shown = 0;
  for (size_t i = 0; i < chart.lines.size(); ++i) {
    if (chart.lines[i].kind != ChartLine::Kind::kBound) continue;
    for (const ChartPoint& point : layout.points[i]) {
      const double position = layout.y.Position(point.y);
      if (position >= 0 && position <= 1 + 1e-9) ++shown;
    }
  }
  return shown;
}

std::string BarChartSvg(const BarChart& chart) {
  // Label and value share a line where they fit.
  const bool is_long = std::any_of(chart.bars.begin(), chart.bars.end(), [](const Bar& bar) {
    return TextWidth(bar.label) + TextWidth(bar.value) > kWidth - 12;
  });
  const int text_height = is_long ? 36 : 18;
  const int row_height = text_height + 24;  // with the bar below
  const Plot plot = {.left = 1,
                     .top = 4,
                     .right = kWidth - 16,
                     .bottom = 8 + row_height * static_cast<int>(std::max<size_t>(chart.bars.size(), 1))};
  double most = 0;
  for (const Bar& bar : chart.bars) {
    most = std::max({most, Sum(bar.first, bar.second, bar.missing), Known(bar.mark), Known(bar.most)});
  }
  const Scale scale = Scale::Linear(most, chart.unit);
  std::string svg = Open(kWidth, plot.bottom + 26, DescriptionOf(chart)) + BarAxis(plot, scale);
  double row = plot.top;
  for (const Bar& bar : chart.bars) {
    svg += BarSvg(bar, plot, scale, row + text_height);
    svg += Text(plot.left + 4, row + 13, "start", bar.label);
    svg += is_long ? Text(plot.left + 4, row + 28, "start", bar.value)
                   : Text(kWidth, row + 13, "end", bar.value);
    row += row_height;
  }
  return svg + Line("axis", plot.left, plot.top, plot.left, plot.bottom) + "</svg>\n";
}

std::string LegendSvg(ChartLine::Kind kind, const SeriesLook& look) {
  const bool is_measured = kind == ChartLine::Kind::kMeasured;
  const std::string open = absl::StrFormat(
      "<svg class=\"swatch%s\" viewBox=\"0 0 34 14\" aria-hidden=\"true\">"
      "<polyline class=\"%s\"%s points=\"0,7 34,7\"/>",
      is_measured ? " " + SeriesClass(look) : "", KindClass(kind), Dashes(kind, look));
  return open + (is_measured ? Marker(look, 17, 7, "") : "") + "</svg>";
}

}  // namespace muster::bench
