#include "launcher/bench/svg_chart.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <limits>

#include "launcher/bench/markup.h"

namespace muster::bench {
namespace {

constexpr int kWidth = 380;  // of a chart, in units that are pixels on a phone
constexpr int kHeight = 270;
constexpr int kTickGap = 6;
constexpr int kSeriesCount = 5;

// Where the axes are. y grows downwards.
struct Plot {
  int left, top, right, bottom;
  int width() const { return right - left; }
  int height() const { return bottom - top; }
};

std::string Open(int width, int height, const std::string& description) {
  return absl::StrFormat("<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n", width, height,
                         Escape(description));
}

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor,
                         Escape(text));
}

std::string Line(const char* css_class, double x1, double y1, double x2, double y2) {
  return absl::StrFormat("<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", css_class,
                         x1, y1, x2, y2);
}

std::string SeriesClass(const SeriesLook& look) {
  return absl::StrFormat("s%d", std::clamp(look.index, 0, kSeriesCount - 1));
}

const char* Dashes(const SeriesLook& look) {
  constexpr const char* kDashes[] = {"", " stroke-dasharray=\"8 4\"", " stroke-dasharray=\"2 3\"",
                                     " stroke-dasharray=\"10 3 2 3\""};
  return kDashes[std::max(look.variant, 0) % 4];
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

Scale XScale(const LineChart& chart, Range x) {
  if (x.empty()) x.Add(1);
  x.Add(std::min(x.least * 2, kLargest));
  return chart.axes == LineChart::Axes::kLogLog || x.most / x.least > 64
             ? Scale::Logarithmic(x.least, x.most, Unit::kCount)
             : Scale::Doubling(x.least, x.most);
}

bool IsLogarithmic(const LineChart& chart, const Range& y) {
  constexpr double kFarApart = 10;  // of which the lower ones would lie on the axis
  return chart.axes == LineChart::Axes::kLogLog ||
         (!y.empty() && y.least > 0 && y.most / y.least > kFarApart);
}

Scale YScale(const LineChart& chart, const Range& y, const Range& bound) {
  double most = y.most;
  if (!bound.empty()) most = y.empty() ? bound.most : std::max(most, std::min(bound.most, 2 * y.most));
  if (!IsLogarithmic(chart, y)) return Scale::Linear(most, chart.y_unit);
  return y.empty() ? Scale::Logarithmic(1, 10, chart.y_unit)
                   : Scale::Logarithmic(y.least, most, chart.y_unit);
}

std::string Axes(const LineChart& chart, const Plot& plot, const Scale& x, const Scale& y) {
  const bool is_logarithmic = y.ticks().front().value > 0;
  std::string svg = Text(0, 14, "start", chart.y_title + (is_logarithmic ? ", logarithmic" : ""));
  for (const Tick& tick : y.ticks()) {
    const double at = plot.bottom - y.Position(tick.value) * plot.height();
    svg += Line(tick.label.empty() ? "minor" : "grid", plot.left, at, plot.right, at);
    if (!tick.label.empty()) svg += Text(plot.left - kTickGap, at + 4, "end", tick.label);
  }
  for (const Tick& tick : x.ticks()) {
    const double at = plot.left + x.Position(tick.value) * plot.width();
    svg += Line(tick.label.empty() ? "minor" : "grid", at, plot.top, at, plot.bottom);
    if (!tick.label.empty()) svg += Text(at, plot.bottom + 17, "middle", tick.label);
  }
  svg += Line("axis", plot.left, plot.bottom, plot.right, plot.bottom);
  return svg + Text((plot.left + plot.right) / 2.0, plot.bottom + 36, "middle", chart.x_title);
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
                         SeriesClass(line.look),
                         line.kind == ChartLine::Kind::kMeasured ? Dashes(line.look) : "", corners);
}

// At places inside the plot.
std::string Markers(const ChartLine& line, const std::vector<ChartPoint>& places, const Plot& plot) {
  std::string svg = absl::StrFormat("<g class=\"%s\">\n", SeriesClass(line.look));
  for (const ChartPoint& place : places) {
    svg += Marker(line.look, plot.left + place.x, plot.top - 1 + place.y, place.hint);
  }
  return svg + "</g>\n";
}

}  // namespace

std::string LineChartSvg(const LineChart& chart) {
  const Plot plot = {.left = 50, .top = 28, .right = kWidth - 18, .bottom = kHeight - 42};
  std::vector<std::vector<ChartPoint>> points;
  Range x_range, y_range, bound_range;
  for (const ChartLine& line : chart.lines) {
    for (const ChartPoint& point : points.emplace_back(Drawable(line, chart.axes))) {
      x_range.Add(point.x);
      (line.kind == ChartLine::Kind::kBound ? bound_range : y_range).Add(point.y);
    }
  }
  const Scale x = XScale(chart, x_range);
  const Scale y = YScale(chart, y_range, bound_range);

  std::string svg = Open(kWidth, kHeight, chart.description) + Axes(chart, plot, x, y);
  // An inner element clips the lines to the plot, and the markers, which follow, may lie on its edge.
  svg += absl::StrFormat("<svg x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\">\n", plot.left, plot.top - 1,
                         plot.width(), plot.height() + 2);
  std::string markers;
  for (size_t i = 0; i < chart.lines.size(); ++i) {
    const ChartLine& line = chart.lines[i];
    std::vector<ChartPoint> places = points[i];
    for (ChartPoint& place : places) {
      place.x = x.Position(place.x) * plot.width();
      place.y = (1 - y.Position(place.y)) * plot.height() + 1;
    }
    svg += Polyline(line, places);
    if (line.kind == ChartLine::Kind::kMeasured) markers += Markers(line, places, plot);
  }
  return svg + "</svg>\n" + markers + "</svg>\n";
}

std::string BarChartSvg(const BarChart& chart) {
  constexpr int kRow = 40;  // of the label and its bar
  constexpr int kBarTop = 18, kBarHeight = 13;
  const Plot plot = {.left = 1,
                     .top = 4,
                     .right = kWidth - 24,
                     .bottom = 8 + kRow * static_cast<int>(std::max<size_t>(chart.bars.size(), 1))};
  const auto drawable = [](double value) { return IsDrawable(value) ? value : 0; };
  const auto end = [&](const Bar& bar) {
    return std::min(drawable(bar.first) + drawable(bar.second), kLargest);
  };
  double most = 0;
  for (const Bar& bar : chart.bars) most = std::max({most, end(bar), drawable(bar.mark)});
  const Scale scale = Scale::Linear(most, chart.unit);
  std::string svg = Open(kWidth, plot.bottom + 26, chart.description);
  for (const Tick& tick : scale.ticks()) {
    const double at = plot.left + scale.Position(tick.value) * plot.width();
    svg += Line("grid", at, plot.top, at, plot.bottom);
    svg += Text(at, plot.bottom + 18, tick.value == 0 ? "start" : "middle", tick.label);
  }
  double row = plot.top;
  for (const Bar& bar : chart.bars) {
    const double first = scale.Position(drawable(bar.first)) * plot.width();
    const double both = scale.Position(end(bar)) * plot.width();
    constexpr char kRectangle[] = "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"/>\n";
    svg += absl::StrFormat("<g class=\"%s\">\n", SeriesClass(bar.look));
    svg += absl::StrFormat(kRectangle, "first", plot.left, row + kBarTop, first, kBarHeight);
    svg += absl::StrFormat(kRectangle, "second", plot.left + first, row + kBarTop, both - first, kBarHeight);
    svg += "</g>\n";
    if (drawable(bar.mark) > 0) {
      const double at = plot.left + scale.Position(bar.mark) * plot.width();
      svg += Line("mark", at, row + kBarTop - 3, at, row + kBarTop + kBarHeight + 3);
    }
    svg += Text(plot.left + 4, row + 13, "start", bar.label) + Text(plot.right, row + 13, "end", bar.value);
    row += kRow;
  }
  return svg + Line("axis", plot.left, plot.top, plot.left, plot.bottom) + "</svg>\n";
}

std::string LegendSvg(ChartLine::Kind kind, const SeriesLook& look) {
  const bool is_measured = kind == ChartLine::Kind::kMeasured;
  const std::string open = absl::StrFormat(
      "<svg class=\"swatch%s\" viewBox=\"0 0 34 14\" aria-hidden=\"true\">"
      "<polyline class=\"%s\"%s points=\"0,7 34,7\"/>",
      is_measured ? " " + SeriesClass(look) : "", KindClass(kind), is_measured ? Dashes(look) : "");
  return open + (is_measured ? Marker(look, 17, 7, "") : "") + "</svg>";
}

}  // namespace muster::bench
