#include "launcher/bench/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <limits>

#include "launcher/bench/report_charts.h"
#include "launcher/bench/results_testing.h"
#include "launcher/bench/results_view.h"
#include "launcher/bench/xml_testing.h"

namespace muster::bench {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Two strategies with curves, of one group.
Results SmallResults() {
  Results results = {
      .created = "today",
      .where = "2 hosts",
      .command = "muster bench --workers=1,2",
      .measurements = {Measured(Strategy::kSyncServers, 1, 900), Measured(Strategy::kAllReduce, 1, 1000),
                       Measured(Strategy::kSyncServers, 2, 1500), Measured(Strategy::kAllReduce, 2, 1900)}};
  results.curves = {{.cell = MakeCell(Strategy::kSyncServers, 1), .points = {{4, 2000}, {1000, 9000}}},
                    {.cell = MakeCell(Strategy::kAllReduce, 1), .points = {{4, 3000}, {1000, 90000}}}};
  return results;
}

int Count(const std::string& text, const std::string& what) {
  int count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(Report, IsOnePageThatNeedsNothingElse) {
  const std::string html = ReportHtml(SmallResults());
  const XmlReader page(html);
  ASSERT_EQ(page.error, "");
  EXPECT_TRUE(html.starts_with("<!DOCTYPE html>\n"));
  for (const char* outside : {"src=", "url(", "@import", "<script", "<link", "https:"}) {
    EXPECT_THAT(html, Not(HasSubstr(outside)));
  }
  EXPECT_EQ(Count(html, "http:"), 1);  // the name of the namespace
  EXPECT_THAT(html, HasSubstr("<meta name=\"viewport\" content=\"width=device-width"));
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme: dark"));
}

TEST(Report, HasTheAdviceFirstThenChartsThenEveryCell) {
  const std::string html = ReportHtml(SmallResults());
  const XmlReader page(html);
  ASSERT_EQ(page.error, "");
  EXPECT_THAT(TextsOf(page, "h2"), ElementsAre("Advice", "mnist_mlp over 1 Gbit/s", "Every cell",
                                               "What the words mean", "How it was made"));
  EXPECT_THAT(TextsOf(page, "p"), Contains("Use allreduce (compared at 2 workers)."));
  EXPECT_EQ(page.Named("figure").size(), 4u);
  EXPECT_EQ(page.Named("tr").size(), 1u + 1u + 4u) << "the header, and that of the group";
  EXPECT_THAT(TextsOf(page, "pre"), ElementsAre("muster bench --workers=1,2"));
  // Measured, predicted, and in the legend.
  EXPECT_EQ(Count(html, "class=\"measured s3\""), 2);
  EXPECT_EQ(Count(html, "class=\"simulated s3\""), 1);
  EXPECT_EQ(Count(html, "<title>allreduce, 2 workers: 1900 samples/s</title>"), 2);
  EXPECT_EQ(Count(html, "<title>allreduce, 1000 workers: 90000 samples/s, simulated</title>"), 1);
  EXPECT_THAT(TextsOf(page, "span"),
              ElementsAre("ps_sync (k = 2, own hosts)", "allreduce", "simulated", "mnist_mlp over 1 Gbit/s"));
  for (const XmlElement* svg : page.Named("svg")) {
    EXPECT_TRUE(svg->attributes.contains("viewBox") || svg->attributes.contains("width"));  // the inner ones
  }
}

TEST(Report, NamesWhatWasMeasuredInItsTitle) {
  Results results = SmallResults();
  results.measurements.push_back(Measured(Strategy::kAllReduce, 2, 10, {.model = "a & b"}));
  results.measurements[0].step_seconds = {0.1, 0.2, 0.3};
  const XmlReader page(ReportHtml(results));
  EXPECT_EQ(page.Named("title").at(0)->text, "muster bench: mnist_mlp and a &amp; b on 2 hosts");
  EXPECT_THAT(TextsOf(page, "p"),
              Contains("Measured by muster bench on 2 hosts, each cell 1 to 3 times, today"));
  for (Measurement& measurement : results.measurements) measurement.step_seconds = {0.1, 0.2, 0.3};
  results.measurements.push_back(Failed(Strategy::kHybrid, 2, "lost"));
  EXPECT_THAT(TextsOf(XmlReader(ReportHtml(results)), "p"),
              Contains("Measured by muster bench on 2 hosts, each cell 3 times, today"));
}

// Whether they were typed or not.
TEST(Report, SaysStepsBatchesAndTheVersion) {
  Results results = SmallResults();
  EXPECT_EQ(SettingsText(results), "steps of 100 samples");
  results.steps = 60;
  results.version = "1.2<3";
  EXPECT_EQ(SettingsText(results), "60 steps of each worker, of 100 samples; muster 1.2<3");
  const std::string html = ReportHtml(results);
  const XmlReader page(html);
  ASSERT_EQ(page.error, "");
  EXPECT_EQ(Count(html, "60 steps of each worker, of 100 samples; muster 1.2&lt;3"), 2)
      << "above, and beside the command";
  results.measurements.push_back(Measured(Strategy::kAllReduce, 2, 10, {.model = "wide_deep"}));
  results.measurements.back().batch_size = 1;
  results.measurements.push_back(Failed(Strategy::kHybrid, 2, "lost"));
  EXPECT_EQ(SettingsText(results),
            "60 steps of each worker, of 100 samples (mnist_mlp) and 1 sample (wide_deep); muster 1.2<3");
  results.measurements.push_back(Measured(Strategy::kAllReduce, 1, 10, {.model = "wide_deep"}));
  results.measurements.back().batch_size = 3;
  EXPECT_EQ(
      SettingsText(results),
      "60 steps of each worker, of 100 samples (mnist_mlp) and 3 to 1 samples (wide_deep, by the number "
      "of workers); muster 1.2<3");
  EXPECT_EQ(SettingsText({}), "");
}

// The narrowest phones in use are 320 CSS pixels wide. Whether words overlap is only seen in a browser.
TEST(Report, CanBeReadOnAPhone) {
  const std::string html = ReportHtml(SmallResults());
  const XmlReader page(html);
  ASSERT_EQ(page.error, "");
  constexpr double kLeastPixels = 11;
  constexpr double kPhone = 320 - 2 * (10 + 8 + 1);  // what body and figure leave of it, with its border
  constexpr double kWide = 400 - 2 * (16 + 1);       // the same of the narrowest column where there is room
  EXPECT_THAT(html, HasSubstr("@media (max-width: 419px) { body { padding: 14px 10px 30px; } .card, figure { "
                              "padding: 10px 8px; } }"));
  EXPECT_THAT(html, HasSubstr("minmax(min(100%, 400px), 1fr)"));
  EXPECT_THAT(html, HasSubstr(".chart { display: block; width: 100%;"));
  EXPECT_THAT(html, HasSubstr("svg text { fill: var(--soft); font-size: 12.5px;"));
  EXPECT_THAT(html, HasSubstr("@media (min-width: 440px) { svg text { font-size: 10.5px; } }"));
  int charts = 0;
  for (const XmlElement* svg : page.Named("svg")) {
    const auto kind = svg->attributes.find("class");
    if (kind == svg->attributes.end() || kind->second != "chart") continue;
    double left = 0, top = 0, width = 0, height = 0;
    const std::string& view = svg->attributes.at("viewBox");
    ASSERT_EQ(std::sscanf(view.c_str(), "%lf %lf %lf %lf", &left, &top, &width, &height), 4);
    EXPECT_GE(12.5 * kPhone / width, kLeastPixels) << view;
    EXPECT_GE(10.5 * kWide / width, kLeastPixels) << view;
    ++charts;
  }
  EXPECT_EQ(charts, 4);
  EXPECT_EQ(Count(html, "<table"), Count(html, "<div class=\"scroll\"")) << "what is wider scrolls by itself";
}

TEST(Report, SaysWhatFailedBesideTheNumbersOfOtherRepetitions) {
  Results results = SmallResults();
  EXPECT_THAT(ReportHtml(results), Not(HasSubstr("failed")));
  results.measurements[0].failures = 1;
  results.measurements[0].failure = "worker:1 was lost";
  const std::string html = ReportHtml(results);
  EXPECT_EQ(XmlReader(html).error, "");
  EXPECT_THAT(html, HasSubstr("1 of its jobs failed: worker:1 was lost</td>"));
}

TEST(Report, NamesEachRowAndSaysWhatFailedBesideItsName) {
  Results results = SmallResults();
  results.measurements.push_back(Failed(Strategy::kHybrid, 2, "worker:1 was lost"));
  const std::string html = ReportHtml(results);
  const XmlReader page(html);
  ASSERT_EQ(page.error, "");
  EXPECT_THAT(html, HasSubstr("<tr><th scope=\"row\">allreduce, 2&#160;workers</th><td>"));
  EXPECT_THAT(html, HasSubstr("<tr><th scope=\"row\">hybrid (k&#160;=&#160;2, own hosts), 2&#160;workers</th>"
                              "<td class=\"error\" colspan=\"5\"><span>worker:1 was lost</span></td></tr>"));
  EXPECT_THAT(html, HasSubstr("<tr><th scope=\"rowgroup\" colspan=\"6\"><span>mnist_mlp over 1 Gbit/s"));
  const XmlElement* region = nullptr;
  for (const XmlElement* element : page.Named("div")) {
    if (element->attributes.contains("tabindex")) region = element;
  }
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(region->attributes.at("role"), "region");
  EXPECT_EQ(region->attributes.at("aria-label"), "Every cell");
  EXPECT_THAT(TextsOf(page, "caption"), ElementsAre("Every cell"));
}

TEST(Report, DescribesOnlyWhatIsInThePictures) {
  Results results = SmallResults();
  EXPECT_THAT(TextsOf(XmlReader(ReportHtml(results)), "figcaption"),
              ElementsAre(HasSubstr("the simulator"), HasSubstr("sent"),
                          "In which each worker makes one gradient: a step; with ps_async as many steps as "
                          "there are workers; with ps_backup n / (n - 1) steps of n workers, since one "
                          "gradient is left out of each."));
  Measurement& last = results.measurements.back();  // a step of 105 ms
  last.bound_step_seconds = 0.09;
  last.predicted_step_seconds = 0.11;
  last.step_seconds.push_back(last.step_seconds[0]);
  EXPECT_THAT(
      TextsOf(XmlReader(ReportHtml(results)), "figcaption"),
      ElementsAre("Thin dashes: the bound of the links.", HasSubstr("the simulator"), HasSubstr("sent"),
                  "In which each worker makes one gradient: a step; with ps_async as many steps as there are "
                  "workers; "
                  "with ps_backup n / (n - 1) steps of n workers, since one gradient is left out of each. "
                  "Full colour: the bound, where it is known; pale: the rest. Thick line across: the "
                  "prediction. Thin line along: from the shortest repetition to the longest."));
  last.bound_step_seconds = 0.001;
  EXPECT_THAT(ReportHtml(results), HasSubstr("The bounds of the links lie above the picture."));
  EXPECT_THAT(ReportHtml(results), Not(HasSubstr("<span>bound of the links</span>")));
}

TEST(Report, HasNoChartOfNoBytes) {
  Results results = SmallResults();
  for (Measurement& measurement : results.measurements) {
    measurement.sent_bytes_per_step = measurement.received_bytes_per_step = 0;
  }
  EXPECT_THAT(TextsOf(XmlReader(ReportHtml(results)), "h3"), Not(Contains(HasSubstr("Bytes per step"))));
}

TEST(ReportCharts, DrawTheBoundWhereAStepTookLess) {
  Results results = {.measurements = {Measured(Strategy::kAsyncServers, 2, 1000)}};  // a step of 200 ms
  results.measurements[0].bound_step_seconds = 0.3;
  const Group group = GroupsOf(results).at(0);
  const BarChart chart = RoundTimeChart(group, LinesOf(group));
  ASSERT_EQ(chart.bars.size(), 1u);
  EXPECT_DOUBLE_EQ(chart.bars[0].first, 2 * 0.2) << "of two workers";
  EXPECT_EQ(chart.bars[0].second, 0);
  EXPECT_DOUBLE_EQ(chart.bars[0].missing, 2 * 0.1);
}

// Of the same samples/s: what is beside each other is the same work.
TEST(ReportCharts, CompareTheTimeOfAGradientOfEachWorker) {
  Results results;
  for (const Strategy strategy :
       {Strategy::kAsyncServers, Strategy::kBackupWorkers, Strategy::kSyncServers}) {
    Measurement& of = results.measurements.emplace_back(Measured(strategy, 4, 1000));
    const double gradients = strategy == Strategy::kAsyncServers    ? 1
                             : strategy == Strategy::kBackupWorkers ? 3
                                                                    : 4;
    of.step_seconds = {gradients * 0.1, gradients * 0.1, gradients * 0.2};
    of.bound_step_seconds = gradients * 0.05;
    of.predicted_step_seconds = gradients * 0.12;
  }
  const Group group = GroupsOf(results).at(0);
  const BarChart chart = RoundTimeChart(group, LinesOf(group));
  ASSERT_EQ(chart.bars.size(), 3u);
  for (const Bar& bar : chart.bars) {
    SCOPED_TRACE(bar.label);
    EXPECT_DOUBLE_EQ(bar.first, 0.2);
    EXPECT_DOUBLE_EQ(bar.second, 0.2);
    EXPECT_DOUBLE_EQ(bar.mark, 0.48);
    EXPECT_DOUBLE_EQ(bar.least, 0.4);
    EXPECT_DOUBLE_EQ(bar.most, 0.8);
    EXPECT_EQ(bar.value, "400 ms, bound 200 ms");
  }
}

TEST(ReportCharts, HaveTheStepAloneWhereNoBoundIsKnown) {
  const Results results = {.measurements = {Measured(Strategy::kAllReduce, 2, 1000)}};
  const Group group = GroupsOf(results).at(0);
  const BarChart chart = RoundTimeChart(group, LinesOf(group));
  EXPECT_DOUBLE_EQ(chart.bars.at(0).first, 0.2);
  EXPECT_EQ(chart.bars.at(0).second, 0);
}

TEST(Report, HasACurveForEachNumberOfServers) {
  Results results = SmallResults();
  const CellOptions one = {.servers = 1};
  results.measurements.push_back(Measured(Strategy::kSyncServers, 2, 700, one));
  results.curves.push_back(
      {.cell = MakeCell(Strategy::kSyncServers, 1, one), .points = {{4, 800}, {9, 900}}});
  const std::string html = ReportHtml(results);
  const XmlReader page(html);
  ASSERT_EQ(page.error, "");
  const std::vector<std::string> titles = TextsOf(page, "h3");
  EXPECT_THAT(titles, Contains("Predicted beyond, k = 1"));
  EXPECT_THAT(titles, Contains("Predicted beyond, k = 2"));
  EXPECT_EQ(Count(html, "class=\"simulated s1\""), 2) << "one in each";
  EXPECT_EQ(Count(html, "class=\"simulated s3\""), 2) << "allreduce beside both";
  // The legend of the group, and that of its own curve.
  EXPECT_EQ(Count(html, "<span>ps_sync (k = 1, own hosts)</span>"), 2);
  EXPECT_EQ(Count(html, "<span>ps_sync (k = 2, own hosts)</span>"), 2);
}

TEST(Report, HasEveryHost) {
  Results results = SmallResults();
  EXPECT_THAT(ReportHtml(results), Not(HasSubstr("Every host")));
  results.measurements[0].hosts = {{.host = "<a>",
                                    .tasks = "worker:0",
                                    .busy_processors = 0.53,
                                    .sent_bytes_per_second = 11.8e6,
                                    .received_bytes_per_second = 2e6}};
  const std::string html = ReportHtml(results);
  const XmlReader page(html);
  ASSERT_EQ(page.error, "");
  const std::vector<std::string> cells = TextsOf(page, "td");
  EXPECT_THAT(html, HasSubstr("<th scope=\"col\" class=\"text\">HOST</th>"));
  for (const char* text : {"&lt;a&gt;", "worker:0", "53 %", "12 MB/s", "2.0 MB/s"}) {
    EXPECT_THAT(cells, Contains(text));
  }
}

TEST(Report, SaysWhatIsKnownOfTheLatency) {
  Results results = SmallResults();
  EXPECT_THAT(ReportHtml(results), HasSubstr("The latency of the links is not known"));
  results.links = {{.bytes_per_second = 125e6, .latency_seconds = 21e-6}};
  EXPECT_THAT(ReportHtml(results),
              HasSubstr("Latency from one host to another: 21.0 us, which the curves include."));
}

TEST(Report, EscapesWhatComesFromOutside) {
  const std::string bad = "<script>alert('1')</script>&\"\x01";
  const std::string escaped = "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;&quot;";
  Results results = {.created = bad, .where = bad, .command = bad};
  results.measurements = {Measured(Strategy::kAllReduce, 2, 10, {.model = bad}),
                          Measured(Strategy::kSyncServers, 2, 10, {.model = bad}),
                          Failed(Strategy::kHybrid, 2, bad)};
  const std::string html = ReportHtml(results);
  EXPECT_EQ(XmlReader(html).error, "");
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, HasSubstr(" colspan=\"5\"><span>" + escaped));
  EXPECT_THAT(html, HasSubstr("<span>" + escaped));
  EXPECT_THAT(html, HasSubstr("aria-label=\"Measured samples per second over workers: " + escaped));
  EXPECT_THAT(html, HasSubstr("<pre>" + escaped));
}

TEST(Report, OfNothingSaysSo) {
  const std::string html = ReportHtml({});
  const XmlReader page(html);
  EXPECT_EQ(page.error, "");
  EXPECT_THAT(TextsOf(page, "li"), ElementsAre("Nothing was measured."));
  EXPECT_EQ(Count(html, "<figure>"), 0);
}

TEST(Report, OfFailuresHasNoCharts) {
  const std::string html = ReportHtml({.measurements = {Failed(Strategy::kHybrid, 2, "lost")}});
  EXPECT_EQ(XmlReader(html).error, "");
  EXPECT_EQ(Count(html, "<figure>"), 0);
  EXPECT_THAT(html, HasSubstr("None: no cell has numbers."));
  EXPECT_THAT(html, HasSubstr("<span>lost</span></td>"));
}

TEST(Report, OfOnePointHasAChart) {
  const std::string html = ReportHtml({.measurements = {Measured(Strategy::kAllReduce, 1, 50)}});
  EXPECT_EQ(XmlReader(html).error, "");
  EXPECT_EQ(Count(html, "<figure>"), 3);
  EXPECT_EQ(Count(html, "<title>allreduce, 1 worker: 50.0 samples/s</title>"), 1);
}

TEST(Report, TakesAnyNumbers) {
  for (const double number : {0.0, -1.0, 5e-324, 1e300, 1.7e308, std::numeric_limits<double>::infinity(),
                              std::numeric_limits<double>::quiet_NaN()}) {
    Results results = SmallResults();
    results.links = {{.bytes_per_second = 125e6}};
    Measurement& measurement = results.measurements[2];
    measurement.hosts = {{.host = "a"}};
    for (double* field : {&measurement.samples_per_second, &measurement.scaling_efficiency,
                          &measurement.sent_bytes_per_step, &measurement.received_bytes_per_step,
                          &measurement.cpu_seconds_per_step, &measurement.target_gap_seconds,
                          &measurement.bound_step_seconds, &measurement.hosts[0].busy_processors,
                          &results.curves[0].points[0].samples_per_second, &measurement.step_seconds[0]}) {
      *field = number;
      const XmlReader page(ReportHtml(results));
      EXPECT_EQ(page.error, "");
      EXPECT_EQ(FirstBadNumber(page), "");
      *field = 1;
    }
    for (auto* field :
         {&measurement.test_accuracy, &measurement.seconds_to_target, &measurement.predicted_step_seconds,
          &measurement.communication_seconds, &measurement.algorithm_bytes_per_second,
          &measurement.bus_bytes_per_second, &measurement.hosts[0].sent_bytes_per_second,
          &results.links[0].latency_seconds, &results.noise, &results.median_prediction_error,
          &results.target_accuracy, &results.compute_seconds_per_step}) {
      *field = number;
      const XmlReader page(ReportHtml(results));
      EXPECT_EQ(page.error, "");
      EXPECT_EQ(FirstBadNumber(page), "");
    }
  }
}

std::vector<std::string> LineNames(const Results& results) {
  std::vector<std::string> names;
  for (const Group& group : GroupsOf(results)) {
    for (const Line& line : LinesOf(group)) names.push_back(line.name);
  }
  return names;
}

TEST(ReportLines, AreOneForEachStrategy) {
  EXPECT_THAT(LineNames(SmallResults()), ElementsAre("ps_sync (k = 2, own hosts)", "allreduce"));
}

TEST(ReportLines, AreOneForEachNumberOfServersThatCanBeChosen) {
  const CellOptions one = {.servers = 1};
  Results results = SmallResults();
  results.measurements.push_back(Measured(Strategy::kSyncServers, 2, 700, one));
  EXPECT_THAT(LineNames(results),
              ElementsAre("ps_sync (k = 1, own hosts)", "ps_sync (k = 2, own hosts)", "allreduce"));
  const Group group = GroupsOf(results).at(0);
  const std::vector<Line> lines = LinesOf(group);
  EXPECT_EQ(lines[0].curve, nullptr);
  EXPECT_EQ(lines[1].curve, &results.curves[0]);
  EXPECT_EQ(lines[1].look.variant, 1);
  EXPECT_EQ(MostWorkers(lines), 2);
}

TEST(ReportLines, GoOnWhereServersGrowWithTheWorkers) {
  const auto measured = [](int workers, int servers) {
    return Measured(Strategy::kSyncServers, workers, 100, {.servers = servers, .servers_on_workers = true});
  };
  EXPECT_THAT(LineNames({.measurements = {measured(1, 1), measured(4, 4), measured(2, 2)}}),
              ElementsAre("ps_sync (k = workers, on workers)"));
  EXPECT_THAT(LineNames({.measurements = {measured(1, 1), measured(4, 2)}}),
              ElementsAre("ps_sync (k = 1 to 2, on workers)"));
}

// A line whose servers grow has no curve: each has the servers of one of its points.
TEST(ReportLines, HaveACurveOnlyWithTheServersOfAllOfThem) {
  const CellOptions one = {.servers = 1, .servers_on_workers = true};
  const CellOptions two = {.servers = 2, .servers_on_workers = true};
  Results results = {
      .measurements = {Measured(Strategy::kSyncServers, 1, 100, one),
                       Measured(Strategy::kSyncServers, 2, 150, two), Measured(Strategy::kAllReduce, 2, 150)},
      .curves = {{.cell = MakeCell(Strategy::kSyncServers, 1, one), .points = {{8, 300}}},
                 {.cell = MakeCell(Strategy::kSyncServers, 2, two), .points = {{8, 500}}}}};
  EXPECT_THAT(LineNames(results),
              ElementsAre("ps_sync (k = workers, on workers)", "ps_sync (k = 1, on workers)",
                          "ps_sync (k = 2, on workers)", "allreduce"));
  const std::vector<Group> groups = GroupsOf(results);
  const std::vector<Line> lines = LinesOf(groups.at(0));
  EXPECT_THAT(ServersOfCurves(lines), ElementsAre(1, 2));
  const std::vector<Line> with_two = LinesWith(lines, 2);
  ASSERT_EQ(with_two.size(), 3u);
  EXPECT_EQ(with_two[0].measured.size(), 1u);
  EXPECT_EQ(with_two[1].curve, &results.curves[1]);
  EXPECT_EQ(with_two[2].name, "allreduce");
}

TEST(ReportLines, LeaveOutWhatFailed) {
  Results results = SmallResults();
  for (Measurement& measurement : results.measurements) measurement.error = "lost";
  EXPECT_THAT(LineNames(results), ElementsAre("ps_sync (k = 2, own hosts)", "allreduce"));  // of the curves
  results.curves.clear();
  EXPECT_THAT(LineNames(results), ElementsAre());
}

}  // namespace
}  // namespace muster::bench
