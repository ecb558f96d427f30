// Charts as SVG elements for an HTML page. Colours and strokes come from the page's style sheet through
// classes: `s0` to `s4` set the colour of a series, and a `chart` has the parts `grid`, `axis`, `measured`,
// `bound`, `simulated`, `marker`, `first`, `second`, `missing`, `spread` and `mark`. They scale with the page
// (viewBox) and are well-formed XML. What an axis cannot show (IsDrawable) is left out. Those who do not see
// a chart get its description with the hints of its points or the values of its bars.
#pragma once

#include <string>
#include <vector>

#include "launcher/bench/scale.h"

namespace muster::bench {

struct ChartPoint {
  double x = 0;
  double y = 0;
  std::string hint;  // what a pointer held over its marker shows
};

/// How a series is told apart without its colour, too.
struct SeriesLook {
  int index = 0;    // of five: colour and shape of the marker
  int variant = 0;  // of one index: from 1 on with hollow markers and other dashes
};

struct ChartLine {
  enum class Kind { kMeasured, kBound, kSimulated };
  Kind kind = Kind::kMeasured;  // markers: measured points, and the last of those simulated
  SeriesLook look;
  std::vector<ChartPoint> points;  // by x
};

struct LineChart {
  std::string description;  // for those who do not see it
  std::string x_title, y_title;
  enum class Axes {
    // x logarithmic, with ticks where the points are; y from 0, or logarithmic where values differ by more
    // than a factor of 10.
    kPoints,
    kLogLog,
  };
  Axes axes = Axes::kPoints;
  Unit y_unit = Unit::kNone;
  std::vector<ChartLine> lines;
};

/// Bounds that are more than twice what is measured at most lie above the plot.
std::string LineChartSvg(const LineChart& chart);

/// How many points of bounds lie in the plot.
int BoundsShown(const LineChart& chart);

struct Bar {
  std::string label;  // at the left above the bar
  std::string value;  // at its right, or below where labels are long
  SeriesLook look;
  double first = 0;    // from 0
  double second = 0;   // from there on
  double missing = 0;  // from there on, only an outline
  double mark = 0;     // a line across; 0: none
  double least = 0;    // a thin line along the bar from here
  double most = 0;     // to here; 0: none
};

struct BarChart {
  std::string description;
  Unit unit = Unit::kNone;
  std::vector<Bar> bars;
};

/// Bars lie and stand below each other.
std::string BarChartSvg(const BarChart& chart);

/// A short line for a legend: measured ones as they look, the other kinds without a series.
std::string LegendSvg(ChartLine::Kind kind, const SeriesLook& look);

}  // namespace muster::bench
