#include "launcher/bench/svg_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "launcher/bench/markup.h"
#include "launcher/bench/scale.h"
#include "launcher/bench/xml_testing.h"

namespace muster::bench {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::Not;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<std::string> Labels(const Scale& scale) {
  std::vector<std::string> labels;
  for (const Tick& tick : scale.ticks()) {
    if (!tick.label.empty()) labels.push_back(tick.label);
  }
  return labels;
}

// 1, 2 or 5 times a power of ten.
bool IsRound(double value) {
  const double leading = value / std::pow(10, std::floor(std::log10(value) + 1e-9));
  return std::abs(leading - 1) < 1e-9 || std::abs(leading - 2) < 1e-9 || std::abs(leading - 5) < 1e-9;
}

TEST(Scale, LinearTicksAreRoundAndCoverTheData) {
  EXPECT_THAT(Labels(Scale::Linear(5213, Unit::kNone)), ElementsAre("0", "1k", "2k", "3k", "4k", "5k", "6k"));
  EXPECT_THAT(Labels(Scale::Linear(0.34, Unit::kSeconds)),
              ElementsAre("0", "100 ms", "200 ms", "300 ms", "400 ms"));
  EXPECT_THAT(Labels(Scale::Linear(6.3e6, Unit::kBytes)), ElementsAre("0", "2 MB", "4 MB", "6 MB", "8 MB"));
  for (double largest = 1e-6; largest < 1e9; largest *= 1.07) {
    const Scale scale = Scale::Linear(largest, Unit::kNone);
    EXPECT_THAT(scale.ticks().size(), AllOf(Ge(4u), Le(7u))) << largest;
    EXPECT_TRUE(IsRound(scale.ticks()[1].value)) << largest;
    EXPECT_EQ(scale.ticks().front().value, 0);
    EXPECT_GE(scale.ticks().back().value, largest * (1 - 1e-9));
    EXPECT_LT(scale.ticks()[scale.ticks().size() - 2].value, largest);  // no empty top
    EXPECT_THAT(scale.Position(largest), AllOf(Ge(0.5), Le(1 + 1e-9)));
  }
}

TEST(Scale, LogarithmicTicksAreRoundAndCoverTheData) {
  EXPECT_THAT(Labels(Scale::Logarithmic(1, 1000, Unit::kCount)), ElementsAre("1", "10", "100", "1000"));
  EXPECT_THAT(Labels(Scale::Logarithmic(557, 14001, Unit::kNone)),
              ElementsAre("500", "1k", "2k", "5k", "10k", "20k"));
  for (double smallest = 1e-6; smallest < 1e6; smallest *= 1.9) {
    for (double largest = smallest; largest < smallest * 1e14; largest *= 2.3) {
      const Scale scale = Scale::Logarithmic(smallest, largest, Unit::kNone);
      EXPECT_LE(scale.ticks().front().value, smallest * (1 + 1e-9));
      EXPECT_GE(scale.ticks().back().value, largest * (1 - 1e-9));
      EXPECT_LE(Labels(scale).size(), 10u) << smallest << " " << largest;
      EXPECT_GE(Labels(scale).size(), 2u) << smallest << " " << largest;
      for (const Tick& tick : scale.ticks())
        EXPECT_TRUE(tick.label.empty() || IsRound(tick.value)) << tick.value;
      EXPECT_THAT(scale.Position(smallest), AllOf(Ge(-1e-9), Le(1 + 1e-9)));
    }
  }
}

TEST(Scale, TakesAnyNumber) {
  const double numbers[] = {0, -1, 5e-324, 1e-300, 1, 1e300, 1.7e308, kInfinity, -kInfinity, kNaN};
  for (const double a : numbers) {
    for (const double b : numbers) {
      for (const Scale& scale : {Scale::Linear(a, Unit::kSeconds), Scale::Logarithmic(a, b, Unit::kBytes)}) {
        ASSERT_THAT(scale.ticks().size(), AllOf(Ge(2u), Le(60u))) << a << " " << b;
        for (const double value : numbers) {
          if (!IsDrawable(value)) continue;
          EXPECT_THAT(scale.Position(value), AllOf(Ge(-100), Le(100))) << a << " " << b;
        }
        for (const Tick& tick : scale.ticks()) EXPECT_TRUE(std::isfinite(tick.value)) << a << " " << b;
      }
    }
  }
  EXPECT_FALSE(IsDrawable(kNaN) || IsDrawable(kInfinity) || IsDrawable(-1) || IsDrawable(1.7e308));
}

TEST(Markup, EscapesWhatMeansSomething) {
  EXPECT_EQ(Escape("<a href=\"x\">'&'</a>"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
  EXPECT_EQ(Escape("tab\tline\n \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"),
            "tab\tline\n \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
  const std::string mark = "\xef\xbf\xbd";
  EXPECT_EQ(Escape(std::string_view("\0\x1b[2J", 5)), mark + mark + "[2J");
  EXPECT_EQ(Escape("\xff"), mark);
  EXPECT_EQ(Escape("\xc3"), mark);                                   // cut off
  EXPECT_EQ(Escape("\xc0\xbc"), mark + mark);                        // a long spelling of '<'
  EXPECT_EQ(Escape("\xe0\x80\xbc"), mark + mark + mark);             // a longer one
  EXPECT_EQ(Escape("\xed\xa0\x80"), mark + mark + mark);             // half of a surrogate pair
  EXPECT_EQ(Escape("\xf4\x90\x80\x80"), mark + mark + mark + mark);  // beyond the last character
}

LineChart ChartOf(std::vector<ChartPoint> points) {
  return {.description = "d",
          .x_title = "workers",
          .y_title = "samples/s",
          .lines = {{.points = std::move(points)}}};
}

TEST(LineChart, DrawsLinesAndMarkers) {
  LineChart chart = ChartOf({{1, 1000, "first"}, {2, 2000, "second"}, {4, 4000, "third"}});
  chart.lines.push_back(
      {.kind = ChartLine::Kind::kBound, .look = {.index = 3}, .points = {{1, 1200}, {4, 90000}}});
  chart.lines.push_back({.look = {.index = 3, .variant = 1}, .points = {{2, 500, "hollow"}}});
  const XmlReader svg(LineChartSvg(chart));
  ASSERT_EQ(svg.error, "");
  EXPECT_EQ(FirstBadNumber(svg), "");
  const auto lines = svg.Named("polyline");
  ASSERT_EQ(lines.size(), 2u);  // one point makes none
  EXPECT_EQ(lines[0]->attributes.at("class"), "measured s0");
  // From 0 to 4k: the bound of 90k lies above. A tenth is free at either side.
  EXPECT_EQ(lines[0]->attributes.at("points"), "26.2,143.5 131.0,96.0 235.8,1.0");
  EXPECT_EQ(lines[1]->attributes.at("class"), "bound s3");
  const auto hints = svg.Named("title");
  ASSERT_EQ(hints.size(), 4u);
  EXPECT_EQ(hints[3]->text, "hollow");
  std::vector<std::string> texts;
  for (const XmlElement* text : svg.Named("text")) texts.push_back(text->text);
  EXPECT_THAT(texts,
              ElementsAre("samples/s", "0", "1k", "2k", "3k", "4k", "1", "2", "4", "workers, logarithmic"));
}

TEST(LineChart, HasTicksWhereThePointsAre) {
  EXPECT_THAT(
      TextsOf(XmlReader(LineChartSvg(ChartOf({{2, 1, ""}, {3, 1, ""}}))), "text"),
      ElementsAre("samples/s", "0", "0.2", "0.4", "0.6", "0.8", "1", "2", "3", "workers, logarithmic"));
  EXPECT_THAT(TextsOf(XmlReader(LineChartSvg(ChartOf({{5, 1, ""}}))), "text"),
              AllOf(Contains("5"), Contains("workers")));
}

TEST(LineChart, LabelsNoTicksOnTopOfEachOther) {
  std::vector<ChartPoint> points;
  for (int x = 1; x <= 40; ++x) points.push_back({static_cast<double>(x), 1, ""});
  double last = -100;
  const XmlReader svg(LineChartSvg(ChartOf(points)));
  for (const XmlElement* text : svg.Named("text")) {
    if (text->attributes.at("text-anchor") != "middle" || text->text.starts_with("workers")) continue;
    const double x = std::stod(text->attributes.at("x"));
    EXPECT_GT(x, last + 14) << text->text;
    last = x;
  }
  EXPECT_THAT(TextsOf(XmlReader(LineChartSvg(ChartOf(points))), "text"), Contains("40"));
}

// At 7 units a letter, which is what the widest fonts need.
TEST(LineChart, CutsNoTextOff) {
  LineChart chart = ChartOf({{1, 10, ""}, {10000, 1e6, ""}});
  chart.axes = LineChart::Axes::kLogLog;
  const XmlReader svg(LineChartSvg(chart));
  const double right = std::stod(svg.elements[0].attributes.at("viewBox").substr(4));
  for (const XmlElement* text : svg.Named("text")) {
    const std::string& anchor = text->attributes.at("text-anchor");
    const double width = 7.0 * text->text.size();
    const double left = std::stod(text->attributes.at("x")) - (anchor == "end"      ? width
                                                               : anchor == "middle" ? width / 2
                                                                                    : 0);
    EXPECT_GE(left, 0) << text->text;
    EXPECT_LE(left + width, right) << text->text;
  }
  EXPECT_THAT(TextsOf(XmlReader(LineChartSvg(chart)), "text"), Contains("10000"));
}

TEST(LineChart, FollowsOnlyBoundsThatAreNear) {
  LineChart chart = ChartOf({{1, 1000, ""}, {2, 2000, ""}});
  EXPECT_EQ(BoundsShown(chart), 0);
  chart.lines.push_back({.kind = ChartLine::Kind::kBound, .points = {{1, 3900}, {2, 9000}}});
  EXPECT_THAT(TextsOf(XmlReader(LineChartSvg(chart)), "text"), Contains("4k"));
  EXPECT_EQ(BoundsShown(chart), 1);
  chart.lines[1].points[0].y = 5000;
  EXPECT_THAT(TextsOf(XmlReader(LineChartSvg(chart)), "text"),
              AllOf(Contains("2k"), Not(Contains("3k")), Not(Contains("4k"))));
  EXPECT_EQ(BoundsShown(chart), 0);
}

TEST(LineChart, TellsLinesOfOneStrategyApartWithoutColour) {
  for (const auto kind : {ChartLine::Kind::kMeasured, ChartLine::Kind::kBound, ChartLine::Kind::kSimulated}) {
    std::set<std::string> dashes;
    for (int variant = 0; variant < 4; ++variant) {
      LineChart chart = ChartOf({{1, 1, ""}, {2, 2, ""}});
      chart.lines[0].kind = kind;
      chart.lines[0].look.variant = variant;
      const XmlReader svg(LineChartSvg(chart));
      const auto& line = svg.Named("polyline").at(0)->attributes;
      const auto found = line.find("stroke-dasharray");
      dashes.insert(found == line.end() ? "" : found->second);
    }
    EXPECT_EQ(dashes.size(), 4u);
  }
}

TEST(LineChart, MarksTheEndOfWhatIsSimulated) {
  LineChart chart = ChartOf({{1, 1, ""}, {2, 2, "the end"}});
  chart.lines[0].kind = ChartLine::Kind::kSimulated;
  const XmlReader svg(LineChartSvg(chart));
  ASSERT_EQ(svg.Named("title").size(), 1u);
  EXPECT_EQ(svg.Named("title")[0]->text, "the end");
}

TEST(LineChart, SaysItsNumbersToThoseWhoDoNotSeeIt) {
  const XmlReader svg(LineChartSvg(ChartOf({{1, 1, "one: 1"}, {2, 2, "two: 2"}})));
  EXPECT_EQ(svg.elements[0].attributes.at("aria-label"), "d; one: 1; two: 2");
}

TEST(LineChart, ShowsASingleBoundAsAShortLine) {
  LineChart chart = ChartOf({{2, 1000, ""}});
  chart.lines.push_back({.kind = ChartLine::Kind::kBound, .points = {{2, 1500}}});
  const XmlReader svg(LineChartSvg(chart));
  ASSERT_EQ(svg.error, "");
  ASSERT_EQ(svg.Named("polyline").size(), 1u);
  EXPECT_EQ(svg.Named("polyline")[0]->attributes.at("class"), "bound s0");
}

TEST(LineChart, IsLogarithmicWhereValuesAreFarApart) {
  EXPECT_THAT(LineChartSvg(ChartOf({{1, 100, ""}, {2, 1001, ""}})),
              ::testing::HasSubstr(">samples/s, logarithmic<"));
  EXPECT_THAT(LineChartSvg(ChartOf({{1, 100, ""}, {2, 1000, ""}})), ::testing::HasSubstr(">samples/s<"));
}

TEST(LineChart, TakesAnyPoints) {
  const double numbers[] = {0, -1, 5e-324, 1, 1000, 1e300, 1.7e308, kInfinity, kNaN};
  for (const auto axes : {LineChart::Axes::kPoints, LineChart::Axes::kLogLog}) {
    for (const double a : numbers) {
      for (const double b : numbers) {
        for (const auto kind :
             {ChartLine::Kind::kMeasured, ChartLine::Kind::kBound, ChartLine::Kind::kSimulated}) {
          LineChart chart = ChartOf({{1, a, ""}, {b, 7, ""}, {a, b, ""}});
          chart.axes = axes;
          chart.lines[0].kind = kind;
          const XmlReader svg(LineChartSvg(chart));
          ASSERT_EQ(svg.error, "") << a << " " << b;
          EXPECT_EQ(FirstBadNumber(svg), "");
        }
      }
    }
    LineChart empty = {.axes = axes};
    EXPECT_EQ(XmlReader(LineChartSvg(empty)).error, "");
    EXPECT_THAT(XmlReader(LineChartSvg(empty)).Named("path"), IsEmpty());
  }
}

TEST(BarChart, DrawsBarsToScale) {
  const XmlReader svg(
      BarChartSvg({.description = "d",
                   .unit = Unit::kBytes,
                   .bars = {{.label = "a", .value = "v", .first = 1e6, .second = 3e6, .mark = 2e6},
                            {.label = "b", .value = "w", .first = 2e6}}}));
  ASSERT_EQ(svg.error, "");
  EXPECT_EQ(FirstBadNumber(svg), "");
  const auto bars = svg.Named("rect");
  ASSERT_EQ(bars.size(), 3u);
  std::vector<double> widths;
  for (const XmlElement* bar : bars) widths.push_back(std::stod(bar->attributes.at("width")));
  EXPECT_NEAR(widths[1], 3 * widths[0], 0.2);  // rounded to a tenth
  EXPECT_NEAR(widths[2], 2 * widths[0], 0.2);
  EXPECT_EQ(svg.elements[0].attributes.at("aria-label"), "d; a: v; b: w");
  int marks = 0;
  for (const XmlElement* line : svg.Named("line")) marks += line->attributes.at("class") == "mark" ? 1 : 0;
  EXPECT_EQ(marks, 1);
}

TEST(BarChart, ShowsWhatIsMissingAndTheSpread) {
  const XmlReader svg(
      BarChartSvg({.bars = {{.label = "a", .first = 2, .missing = 2, .least = 1, .most = 3}}}));
  ASSERT_EQ(svg.error, "");
  const auto bars = svg.Named("rect");
  ASSERT_EQ(bars.size(), 2u);
  EXPECT_EQ(bars[1]->attributes.at("class"), "missing");
  EXPECT_EQ(bars[1]->attributes.at("width"), bars[0]->attributes.at("width"));
  int lines = 0;
  for (const XmlElement* line : svg.Named("line")) lines += line->attributes.at("class") == "spread" ? 1 : 0;
  EXPECT_EQ(lines, 3);
}

TEST(BarChart, PutsValuesBelowLongLabels) {
  const auto tops = [](const std::string& label) {
    const XmlReader svg(
        BarChartSvg({.bars = {{.label = label, .value = "522 ms, bound 1.10 s", .first = 1}}}));
    std::map<std::string, std::string> tops;
    for (const XmlElement* text : svg.Named("text")) tops[text->text] = text->attributes.at("y");
    return std::pair(tops[label], tops["522 ms, bound 1.10 s"]);
  };
  EXPECT_EQ(tops("allreduce").first, tops("allreduce").second);
  const std::string long_label = "ps_backup (k = 1, on workers)";
  EXPECT_NE(tops(long_label).first, tops(long_label).second);
}

TEST(BarChart, TakesAnyNumbers) {
  const double numbers[] = {0, -1, 5e-324, 1, 1e300, 1.7e308, kInfinity, kNaN};
  for (const double a : numbers) {
    for (const double b : numbers) {
      const XmlReader svg(
          BarChartSvg({.bars = {{.first = a, .second = b, .missing = b, .mark = a, .least = a, .most = b},
                                {.first = b, .mark = b}}}));
      ASSERT_EQ(svg.error, "") << a << " " << b;
      EXPECT_EQ(FirstBadNumber(svg), "");
    }
  }
  EXPECT_EQ(XmlReader(BarChartSvg({})).error, "");
}

TEST(Legend, TellsSeriesApartWithoutColour) {
  std::vector<std::string> shapes;
  for (int index = 0; index < 5; ++index) {
    for (int variant = 0; variant < 4; ++variant) {
      const XmlReader svg(LegendSvg(ChartLine::Kind::kMeasured, {.index = index, .variant = variant}));
      ASSERT_EQ(svg.error, "");
      const XmlElement& path = *svg.Named("path").at(0);
      const auto& line = svg.Named("polyline").at(0)->attributes;
      const auto dashes = line.find("stroke-dasharray");
      const std::string shape = path.attributes.at("d") + path.attributes.at("class") +
                                (dashes == line.end() ? "" : dashes->second);
      EXPECT_THAT(shapes, Each(::testing::Ne(shape)));
      shapes.push_back(shape);
    }
  }
}

TEST(XmlReader, RefusesWhatIsNoXml) {
  EXPECT_EQ(XmlReader("<a b=\"c\"><d/>x &amp; y</a>\n").error, "");
  for (const char* bad : {"", "x", "<a>", "<a></b>", "<a/><b/>", "<a>&</a>", "<a>&nbsp;</a>", "<a b=c/>",
                          "<a b=\"<\"/>", "<a b=\"1\" b=\"2\"/>", "<a>\x1b</a>", "<a", "<a>></a>", "</a>"}) {
    EXPECT_NE(XmlReader(bad).error, "") << bad;
  }
}

}  // namespace
}  // namespace muster::bench
