// Charts as SVG elements for an HTML page. Colours and strokes come from the page's style sheet through
// classes: `s0` to `s4` set the colour of a series, and the parts are `grid`, `axis`, `measured`, `bound`,
// `simulated`, `marker`, `first`, `second` and `mark`. They scale with the page (viewBox) and are well-formed
// XML. What an axis cannot show (IsDrawable) is left out.
#pragma once

#include <string>
#include <vector>

#include "launcher/bench/scale.h"

namespace muster::bench {

struct ChartPoint {
  double x = 0;
  double y = 0;
  std::string hint;  // what a pointer held over it shows
};

/// How a series is told apart without its colour, too.
struct SeriesLook {
  int index = 0;    // of five: colour and shape of the marker
  int variant = 0;  // of one index: from 1 on with hollow markers and dashes
};

struct ChartLine {
  enum class Kind { kMeasured, kBound, kSimulated };
  Kind kind = Kind::kMeasured;  // only measured points have markers
  SeriesLook look;
  std::vector<ChartPoint> points;  // by x
};

struct LineChart {
  std::string description;  // for those who do not see it
  std::string x_title, y_title;
  enum class Axes {
    kDoubling,  // powers of two; y from 0; logarithmic where values differ by more than a factor of 10
    kLogLog,
  };
  Axes axes = Axes::kDoubling;
  Unit y_unit = Unit::kNone;
  std::vector<ChartLine> lines;
};

/// A bound may leave the plot at the top; the axis follows it no higher than to twice what is measured.
std::string LineChartSvg(const LineChart& chart);

struct Bar {
  std::string label;  // at the left above the bar
  std::string value;  // at its right
  SeriesLook look;
  double first = 0;   // from 0
  double second = 0;  // from there on
  double mark = 0;    // a line across; 0: none
};

struct BarChart {
  std::string description;
  Unit unit = Unit::kNone;
  std::vector<Bar> bars;
};

/// Bars lie and stand below each other.
std::string BarChartSvg(const BarChart& chart);

/// A short line for a legend: measured ones as they look, the other kinds in the colour of the text.
std::string LegendSvg(ChartLine::Kind kind, const SeriesLook& look);

}  // namespace muster::bench
